"""HTTP requests as bytes, also invalid ones, and what they cost the server."""
import concurrent.futures
import contextlib
import pathlib
import re
import socket
import time

PROBE_SECONDS = 10  # for a busy machine; the longest timeout that a probe would have
GROWTH_MAX = 16 << 20
GRACE_SECONDS = 0.25  # kHttpGraceTime of runner/base/http_server.h
# Of any server of ours: (request, code).
HOSTILE = (
    (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 5_000_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", 431),
    (b"GET /../../../etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET //etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET /metrics%00.html HTTP/1.1\r\n\r\n", 404),
    (b"GET /metrics\0 HTTP/1.1\r\n\r\n", 400),
    (b"\0" * 1000 + b"\r\n\r\n", 400),
    (b"\xff\xfe\r\n\r\n", 400),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
)


def ask(port, request, timeout=60):
    """The answer to these bytes; as much of it as came when the server resets the connection."""
    answer = b""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=timeout)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                answer += chunk
    return answer


def get(port, path, timeout=60):
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode(), timeout)


def code_of(answer):
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found.group(1)) if found else None


def resident_bytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024


def scrape(port):
    """A client that gets no CPU between its connection and its request may be dropped to make room, but not within the
    grace time. It asks again, as Prometheus would."""
    deadline = time.monotonic() + 60
    while True:
        begin = time.monotonic()
        answer = get(port, "/metrics")
        if answer or begin > deadline:
            return answer
        assert time.monotonic() - begin >= GRACE_SECONDS, "shut out too soon"


def assert_scrapes_at_once_are_answered(port, scrapes, series):
    with concurrent.futures.ThreadPoolExecutor(scrapes) as pool:
        answers = list(pool.map(lambda _: scrape(port), range(scrapes)))
    assert {code_of(answer) for answer in answers} == {200}
    assert all(series in answer for answer in answers)


def assert_slow_peers_keep_no_probe_waiting(port, peers):
    """The slow peers begin a request and never end it."""
    with contextlib.ExitStack() as open_connections:
        for _ in range(peers):
            peer = open_connections.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        for path in ("/healthz", "/readyz", "/metrics"):
            begin = time.monotonic()
            assert code_of(get(port, path, PROBE_SECONDS)) == 200, path
            assert time.monotonic() - begin < PROBE_SECONDS, path


def assert_refused_at_no_cost(port, pid, requests, rounds=10):
    """requests: (bytes, code)"""
    def one_round():
        for request, expected in requests:
            answer = ask(port, request)
            assert code_of(answer) == expected, (request[:80], answer[:200])
            assert b"root:" not in answer
    one_round()
    before = resident_bytes(pid)
    for _ in range(rounds):
        one_round()
    grown = resident_bytes(pid) - before
    assert grown < GROWTH_MAX, f"it grew by {grown >> 20} MiB"
