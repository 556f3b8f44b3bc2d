"""Between the operator and the real API server: answers instead of it, delays it, loses its answers, cuts and holds its
watches, and ends the operator after its n-th write.

The proxy ends TLS with the API server's own certificate, so a client needs a bearer token, as in a pod:
kubeconfig_of_service_account() makes a kubeconfig that leads through it. What no fault concerns is passed on as it is.
"""
import dataclasses
import http.client
import http.server
import json
import socket
import socketserver
import ssl
import threading
import time
import typing
import urllib.parse

NOT_PASSED_ON = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}
BROKEN = (OSError, http.client.HTTPException, ValueError)


@dataclasses.dataclass(frozen=True)
class Request:
    """What faults are matched with."""
    method: str
    path: str  # without the query
    query: dict
    body: str = ""

    @property
    def is_watch(self):
        return self.query.get("watch") in ("true", "1")

    @property
    def is_write(self):
        return self.method != "GET"

    @property
    def is_change(self):
        """A write of an object; Events and Leases, which other threads of the operator write, do not count."""
        return self.is_write and not {"events", "leases"} & set(self.path.split("/"))


@dataclasses.dataclass
class Fault:
    match: typing.Callable[[Request], bool]
    times: int  # how often still
    status: int = 0  # 0: the API server does what was asked, and its answer is lost
    reason: str = ""
    retry_after: int | None = None
    delay: float = 0.0  # seconds before the request is passed on; nothing else happens to it


class FaultProxy:
    """`with FaultProxy(control_plane) as proxy`. All methods may be called while clients are at work."""

    def __init__(self, control_plane):
        self.plane = control_plane
        self.lock = threading.Lock()
        self.faults = []
        self.requests = []  # (Request, the status that was answered; 0: none) in the order of the answers
        self.watches = set()  # Handlers that stream one now
        self.flowing = threading.Event()  # cleared: events of watches are held back
        self.flowing.set()
        self.tear = False
        self.changes = 0  # that have succeeded, while somebody counts them
        self.kill_at = None  # (so many changes, the function that ends the client)
        self.turn = threading.Lock()  # of the changes that are counted
        self.tls_in = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls_in.load_cert_chain(*control_plane.certificates.server)
        self.tls_out = ssl.create_default_context(cafile=control_plane.certificates.ca)
        self.server = Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"proxy": self}))
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)
        self.flowing.set()
        self.cut_watches()

    def kubeconfig_of_service_account(self, namespace, service_account):
        token = self.plane.token_of(namespace, service_account)
        path = self.plane.folder / f"{namespace}.{service_account}.by-{self.port}.kubeconfig"
        return self.plane.write_kubeconfig(path, {"token": token}, namespace, port=self.port)

    # --- faults

    def answer(self, match, status, reason="", times=1, retry_after=None):
        """The next `times` requests that match never reach the API server: this is their answer."""
        with self.lock:
            self.faults.append(Fault(match, times, status, reason, retry_after))

    def lose_answer(self, match, times=1):
        """The next `times` requests that match are done, but the connection ends before the client hears of it."""
        with self.lock:
            self.faults.append(Fault(match, times))

    def delay(self, match, seconds, times):
        """The next `times` requests that match reach the API server so much later."""
        with self.lock:
            self.faults.append(Fault(match, times, delay=seconds))

    def clear(self):
        with self.lock:
            self.faults.clear()

    def cut_watches(self):
        """All watches that are open end now, in the middle of their stream. Returns how many."""
        with self.lock:
            cut = list(self.watches)
        for handler in cut:
            handler.cut()
        return len(cut)

    def tear_next_event(self):
        """The next event of a watch arrives by half, and its connection ends."""
        self.tear = True

    def hold_watches(self):
        """Clients' caches grow stale: events wait here until release_watches(). Nothing is lost."""
        self.flowing.clear()

    def release_watches(self):
        self.flowing.set()

    def kill_after(self, changes, kill):
        """From now on changes are passed on one after the other, and counted. When so many have succeeded, `kill()` ends
        the client, before it hears of the last one; no other is passed on."""
        self.kill_at = (changes, kill)

    def pop_fault(self, request):
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.match(request):
                    fault.times -= 1
                    return fault
        return None

    def note(self, request, status):
        with self.lock:
            self.requests.append((request, status))

    def answered(self, match):
        """How many requests that match were answered, or lost, until now."""
        with self.lock:
            return sum(1 for request, _ in self.requests if match(request))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Nothing is printed: these tests are about clients that go away."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client, one of its own to the API server."""
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def setup(self):
        self.request = self.proxy.tls_in.wrap_socket(self.request, server_side=True)
        super().setup()
        self.upstream = http.client.HTTPSConnection("127.0.0.1", self.proxy.plane.port, context=self.proxy.tls_out,
                                                    timeout=320)

    def finish(self):
        self.upstream.close()
        super().finish()

    def pass_on(self):
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, url.path, dict(urllib.parse.parse_qsl(url.query)), body.decode())
        fault = self.proxy.pop_fault(request)
        if fault and fault.delay:
            time.sleep(fault.delay)
            fault = None
        if fault and fault.status:
            self.answer_instead(request, fault)
        elif self.proxy.kill_at and request.is_change:
            with self.proxy.turn:
                is_over = self.proxy.changes >= self.proxy.kill_at[0]
                self.cut() if is_over else self.forward(request, body, fault)
        else:
            self.forward(request, body, fault)

    def forward(self, request, body, fault):
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in NOT_PASSED_ON}
            self.upstream.request(self.command, self.path, body or None, headers)
            answer = self.upstream.getresponse()
            if request.is_watch and answer.status == 200:
                self.stream(request, answer)
            else:
                text = answer.read()
                self.proxy.note(request, 0 if fault else answer.status)
                if self.proxy.kill_at and request.is_change and answer.status < 300:
                    self.proxy.changes += 1
                    if self.proxy.changes == self.proxy.kill_at[0]:
                        self.proxy.kill_at[1]()
                if fault:
                    self.cut()
                else:
                    self.send(answer.status, answer.getheaders(), text)
        except BROKEN:
            self.cut()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

    def answer_instead(self, request, fault):
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": fault.status,
                  "reason": fault.reason, "message": f"a test answers {fault.status}"}
        headers = [("Content-Type", "application/json")]
        if fault.retry_after is not None:
            headers.append(("Retry-After", str(fault.retry_after)))
        self.proxy.note(request, fault.status)
        self.send(fault.status, headers, json.dumps(status).encode())

    def send(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, request, answer):
        with self.proxy.lock:
            self.proxy.watches.add(self)
        self.proxy.note(request, 200)
        try:
            self.send_response_only(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in iter(answer.readline, b""):
                self.proxy.flowing.wait()
                if self.proxy.tear:
                    self.proxy.tear = False
                    self.chunk(line[:len(line) // 2])
                    raise ConnectionAbortedError("torn, as the test says")
                self.chunk(line)
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with self.proxy.lock:
                self.proxy.watches.discard(self)

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def cut(self):
        """TCP ends in both directions, on both sides, whoever reads or writes."""
        self.close_connection = True
        for one in (self.request, self.upstream.sock):
            if one is not None:
                try:
                    socket.socket.shutdown(one, socket.SHUT_RDWR)
                except OSError:
                    pass

    def log_message(self, *_):
        pass
