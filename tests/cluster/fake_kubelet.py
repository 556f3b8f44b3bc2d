"""A kubelet for tests that runs no container and does exactly what it is told.

Each pod that the scheduler binds to one of its nodes follows a Behaviour: chosen by the test beforehand (behave()),
or told afterwards (exit(), evict(), …). As the real one, it reports through the pod's status alone, lets a deleted pod
exit within its grace period, and removes it with a precondition on its UID.

Each pod has a loopback address of its own (127.a.b.c), where nothing listens unless serve_status() says so: then the
agent's /status is answered there on port 8080, and POST /nodes recorded.
"""
import contextlib
import dataclasses
import datetime
import http.client
import http.server
import itertools
import json
import random
import socket
import socketserver
import threading

from kube_api import NO_ANSWER, STRATEGIC_PATCH, ApiError, StopWatch, node_is_usable
from waiting import pause, wait_until

AGENT_PORT = 8080
LEASE_SECONDS = 40
LOST = "fake.lockstep.dev/lost"


@dataclasses.dataclass(frozen=True)
class Exit:
    """How a pod's containers end."""
    code: int = 0
    message: str = ""  # the termination message
    container_reason: str = ""  # default: Completed or Error; "OOMKilled"
    pod_reason: str = ""  # status.reason: "Evicted", "NodeShutdown", …
    condition: tuple = ()  # a further condition: ("DisruptionTarget", its reason, its message)


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """start: "Ready"; "Running" (not ready: its probe fails); "Waiting" (a container that never starts, with
    waiting_reason and waiting_message: ImagePullBackOff, CreateContainerError, …); "Ignored" (nothing is ever reported
    or removed). sidecars: None: containers beside the trainer start as it does; "Ended" (with 0, while the trainer goes
    on); "Waiting" (for their image). exits: once started, exits so by itself. on_delete: how it answers SIGTERM; None: not at all, so that
    only the end of the grace period kills it (137)."""
    start: str = "Ready"
    waiting_reason: str = "ContainerCreating"
    waiting_message: str = ""
    sidecars: str | None = None
    exits: Exit | None = None
    on_delete: Exit | None = Exit(143)


READY = Behaviour()


def oom_killed(message=""):
    return Exit(137, message, container_reason="OOMKilled")


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(pod):
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def is_deleted(pod):
    return "deletionTimestamp" in pod["metadata"]


class FakeKubelet:
    """Plays all `nodes` (names). start() … stop(); `with` does both. Its threads: one watches pods, one renews leases,
    one ends grace periods, one per served /status. What a test says may come from any thread."""

    def __init__(self, api, nodes=("fake-0", "fake-1", "fake-2", "fake-3"), gpus=8):
        self.api = api
        self.nodes = list(nodes)
        self.gpus = gpus
        self.lock = threading.Lock()
        self.rules = []       # (match, Behaviour), the newest first
        self.pods = {}        # uid → the pod as last seen
        self.chosen = {}      # uid → its Behaviour
        self.killed_at = {}   # uid → when a pod that does not answer SIGTERM gets SIGKILL
        self.lost_nodes = set()
        self.servers = {}     # (namespace, name) → StatusServer
        self.addresses = PodAddresses()
        self.watch_end = StopWatch()
        self.ending = threading.Event()
        self.threads = []
        self.failure = None   # a bug of ours: shown by check()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def start(self):
        for name in self.nodes:
            self.add_node(name)
        wait_until(lambda: all(node_is_usable(self.api.get("nodes", name=name)) for name in self.nodes), "ready nodes")
        for target in (self.watch_pods, self.renew_leases, self.kill_after_grace_period):
            self.threads.append(threading.Thread(target=self.run_guarded, args=(target,), name=target.__name__))
            self.threads[-1].start()
        return self

    def stop(self):
        """Its nodes go away, and their pods at once; then check()."""
        self.ending.set()
        self.watch_end.stop()
        for thread in self.threads:
            thread.join(60)
        for pod in self.pods.values():
            if pod["spec"].get("nodeName") in self.nodes:
                with contextlib.suppress(ApiError, *NO_ANSWER):
                    self.remove(pod)
        for server in self.servers.values():
            server.stop()
        self.addresses.close()
        for name in self.nodes:
            with contextlib.suppress(ApiError, *NO_ANSWER):
                self.api.delete("nodes", name=name)
        self.check()

    def check(self):
        if self.failure is not None:
            raise AssertionError(f"the fake kubelet failed: {self.failure!r}") from self.failure

    def run_guarded(self, target):
        try:
            target()
        except Exception as error:  # pylint: disable=broad-except
            self.failure = error

    # --- what the test says

    def behave(self, match, behaviour):
        """Pods that start from now on and for which match(pod) is true follow `behaviour`; a later rule comes first.
        Pods without a rule become Ready and run."""
        with self.lock:
            self.rules.insert(0, (match, behaviour))

    def behave_by_name(self, namespace, name, behaviour):
        self.behave(lambda pod: key_of(pod) == (namespace, name), behaviour)

    def exit(self, namespace, name, how=Exit()):
        """The pod's containers end now. Waits until it runs."""
        pod = self.wait_for(namespace, name, lambda pod: pod["status"].get("phase") == "Running", "running")
        self.report(pod, ended_status(pod, how))

    def change(self, namespace, name, behaviour):
        """A pod that has begun behaves otherwise from now on: one that waits for its image starts, one that is ready
        stops answering its probe."""
        pod = self.wait_for(namespace, name, lambda pod: "podIP" in pod["status"], "begun")
        with self.lock:
            self.chosen[pod["metadata"]["uid"]] = behaviour
        self.report(pod, begun_status(pod, behaviour, pod["status"]["podIP"]))

    def evict(self, namespace, name, message="The node was low on resource: memory."):
        """As the kubelet does it under pressure; the containers get SIGTERM, and 143 is their code."""
        self.exit(namespace, name, Exit(143, pod_reason="Evicted",
                                        condition=("DisruptionTarget", "TerminationByKubelet", message)))

    def wait_for(self, namespace, name, condition, what, timeout=60):
        """The pod, once condition(pod) is true."""
        def seen():
            self.check()
            try:
                pod = self.api.get("pods", namespace, name)
            except ApiError as error:
                assert error.status != 404, f"pod {namespace}/{name} is not there"
                raise
            assert condition(pod), f"pod {namespace}/{name} has {json.dumps(pod.get('status'))}"
            return pod
        return wait_until(seen, f"pod {namespace}/{name} {what}", timeout)

    def serve_status(self, namespace, name, document):
        """The agent of this pod answers GET /status with `document` (bytes: as they are) from now on. Returns its server,
        which has `.document` (to be changed), `.posts` (what POST /nodes brought) and `.gets`."""
        pod = self.wait_for(namespace, name, lambda pod: pod["status"].get("podIP"), "with an address")
        with self.lock:
            old = self.servers.pop((namespace, name), None)
        if old:
            old.stop()
        server = StatusServer(pod["status"]["podIP"], document)
        with self.lock:
            self.servers[(namespace, name)] = server
        return server

    # --- nodes

    def add_node(self, name):
        size = {"cpu": "96", "memory": "1Ti", "pods": "250", "ephemeral-storage": "1Ti",
                "nvidia.com/gpu": str(self.gpus)}
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "lockstep.dev/played-by": "fake-kubelet"}
        self.api.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        self.api.patch("nodes", {"status": {
            "capacity": size, "allocatable": size, "conditions": [node_condition("True", "KubeletReady")],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}]}},
            name=name, subresource="status")
        self.renew_lease(name)

    def lose_node(self, name):
        """The node's kubelet falls silent: its pods change no more and are never removed by it. The node is marked as
        the node controller marks it after its grace period: Ready Unknown, and tainted. Its taint comes some time after
        that, and a new pod could land there; ours is there first."""
        with self.lock:
            self.lost_nodes.add(name)
        self.set_taints(name, [{"key": LOST, "effect": "NoSchedule"}])
        self.set_node_ready(name, "Unknown", "NodeStatusUnknown")

    def find_node(self, name):
        """It is back, and does what was asked of its pods meanwhile."""
        with self.lock:
            self.lost_nodes.discard(name)
            waiting = [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == name]
        self.renew_lease(name)
        self.set_node_ready(name, "True", "KubeletReady")
        self.set_taints(name, [])
        for pod in waiting:
            self.act(pod)

    def remove_node(self, name):
        """As a cloud's autoscaler removes one; its pods are left to the pod garbage collector."""
        with self.lock:
            self.lost_nodes.add(name)
        self.nodes.remove(name)
        self.api.delete("nodes", name=name)

    def set_node_ready(self, name, status, reason):
        self.api.patch("nodes", {"status": {"conditions": [node_condition(status, reason)]}}, name=name,
                       subresource="status", content_type=STRATEGIC_PATCH)

    def set_taints(self, name, taints):
        self.api.patch("nodes", {"spec": {"taints": taints}}, name=name)

    def renew_lease(self, name):
        time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": time}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                 "metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
        resource = "coordination.k8s.io/v1/leases"
        try:
            self.api.patch(resource, {"spec": spec}, "kube-node-lease", name)
        except ApiError as error:
            if error.status != 404:
                raise
            self.api.create(resource, lease, "kube-node-lease")

    def renew_leases(self):
        while not self.ending.wait(LEASE_SECONDS / 4):
            for name in list(self.nodes):
                if name not in self.lost_nodes:
                    with contextlib.suppress(ApiError, *NO_ANSWER):
                        self.renew_lease(name)

    # --- pods

    def watch_pods(self):
        """List, watch, and again when the watch ends, however it ends: the API server may be away for a while."""
        while not self.ending.is_set():
            try:
                listed = self.api.request("GET", "/api/v1/pods")
                seen = {pod["metadata"]["uid"] for pod in listed["items"]}
                for uid in set(self.pods) - seen:
                    self.forget(uid)
                for pod in listed["items"]:
                    self.take(pod)
                for kind, pod in self.api.watch("pods", resource_version=listed["metadata"]["resourceVersion"],
                                                stop=self.watch_end):
                    if kind == "DELETED":
                        self.forget(pod["metadata"]["uid"])
                    elif kind != "BOOKMARK":
                        self.take(pod)
            except (ApiError, ValueError, *NO_ANSWER):
                pause(0.1)

    def take(self, pod):
        with self.lock:
            self.pods[pod["metadata"]["uid"]] = pod
        self.act(pod)

    def forget(self, uid):
        with self.lock:
            pod = self.pods.pop(uid, None)
            self.chosen.pop(uid, None)
            self.killed_at.pop(uid, None)
            server = self.servers.pop(key_of(pod), None) if pod else None
        if server:
            server.stop()

    def behaviour_of(self, pod):
        """Chosen when the pod is first seen on a node of ours."""
        with self.lock:
            uid = pod["metadata"]["uid"]
            if uid not in self.chosen:
                self.chosen[uid] = next((rule for match, rule in self.rules if match(pod)), READY)
            return self.chosen[uid]

    def act(self, pod):
        """What a kubelet does on seeing this pod in this state: at most one report. The report makes the watch show the
        pod again, and so the next one follows; what failed is tried again after the next list."""
        node = pod["spec"].get("nodeName")
        if node not in self.nodes or node in self.lost_nodes:
            return
        behaviour = self.behaviour_of(pod)
        if behaviour.start == "Ignored":
            return
        try:
            if is_deleted(pod):
                self.end_deleted(pod, behaviour)
            elif "podIP" not in pod["status"]:
                self.report(pod, begun_status(pod, behaviour, self.addresses.next()))
            elif behaviour.exits is not None and pod["status"]["phase"] == "Running":
                self.report(pod, ended_status(pod, behaviour.exits))
        except ApiError as error:
            if error.status in (400, 422):
                raise RuntimeError("the API server refuses what the fake kubelet reports") from error
            if error.status not in (404, 409):  # gone, or another pod by now: the watch says so too
                raise

    def end_deleted(self, pod, behaviour):
        uid = pod["metadata"]["uid"]
        if pod["status"].get("phase") != "Running":
            self.remove(pod)
        elif behaviour.on_delete is not None:
            self.report(pod, ended_status(pod, behaviour.on_delete))
        else:
            with self.lock:
                self.killed_at[uid] = datetime.datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])

    def kill_after_grace_period(self):
        """SIGKILL at the end of the grace period for pods that do not answer SIGTERM."""
        while not self.ending.is_set():
            time = datetime.datetime.now(datetime.timezone.utc)
            with self.lock:
                due = [self.pods[uid] for uid, at in self.killed_at.items() if at <= time]
            for pod in due:
                if pod["spec"]["nodeName"] not in self.lost_nodes:
                    with contextlib.suppress(ApiError, *NO_ANSWER):
                        self.report(pod, ended_status(pod, Exit(137)))
            self.ending.wait(0.05)

    def remove(self, pod):
        namespace, name = key_of(pod)
        self.api.delete("pods", namespace, name, gracePeriodSeconds=0,
                        preconditions={"uid": pod["metadata"]["uid"]})

    def report(self, pod, status):
        namespace, name = key_of(pod)
        self.api.patch("pods", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}, namespace, name,
                       "status", STRATEGIC_PATCH)


def node_condition(status, reason):
    time = now()
    return {"type": "Ready", "status": status, "reason": reason, "message": "", "lastHeartbeatTime": time,
            "lastTransitionTime": time}


def pod_condition(kind, status, reason="", message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}


def begun_status(pod, behaviour, address):
    """The pod is ready when all its containers are, and Pending while one of them has never started."""
    states = {
        "Running": {"running": {"startedAt": now()}},
        "Ready": {"running": {"startedAt": now()}},
        "Waiting": {"waiting": {"reason": behaviour.waiting_reason, "message": behaviour.waiting_message}},
        "Ended": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}}
    begun = []
    for container in pod["spec"]["containers"]:
        is_trainer = container["name"] == "trainer"
        start = behaviour.start if is_trainer or behaviour.sidecars is None else behaviour.sidecars
        begun.append(container_status(container, states[start], start == "Ready"))
    waits = any("waiting" in one["state"] for one in begun)
    not_ready = [one["name"] for one in begun if not one["ready"]]
    ready = ("False", "ContainersNotReady", f"containers with unready status: [{' '.join(not_ready)}]") \
        if not_ready else ("True",)
    return {
        "phase": "Pending" if waits else "Running", "startTime": now(), "hostIP": "127.0.0.1",
        "conditions": [pod_condition("PodReadyToStartContainers", "True"), pod_condition("Initialized", "True"),
                       pod_condition("ContainersReady", *ready), pod_condition("Ready", *ready)],
        "containerStatuses": begun, "podIP": address, "podIPs": [{"ip": address}],
    }


def ended_status(pod, how):
    reason = how.container_reason or ("Completed" if how.code == 0 else "Error")
    state = {"terminated": {"exitCode": how.code, "reason": reason, "message": how.message, "finishedAt": now(),
                            "startedAt": pod["status"].get("startTime") or now()}}
    why = "PodCompleted" if how.code == 0 else "PodFailed"
    conditions = [pod_condition("PodReadyToStartContainers", "False"), pod_condition("ContainersReady", "False", why),
                  pod_condition("Ready", "False", why)]
    if how.condition:
        kind, condition_reason, message = how.condition
        conditions.append(pod_condition(kind, "True", condition_reason, message))
    status = {"phase": "Succeeded" if how.code == 0 else "Failed", "conditions": conditions,
              "containerStatuses": [container_status(one, state, False) for one in pod["spec"]["containers"]]}
    if how.pod_reason:
        status["reason"] = how.pod_reason
        status["message"] = how.condition[2] if how.condition else ""
    return status


def container_status(container, state, ready):
    return {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
            "ready": ready, "started": ready, "state": state}


class PodAddresses:
    """Loopback addresses that only this process gives out: all of 127.a, of which one is bound as the sign."""

    def __init__(self):
        draw = random.Random()
        self.sign = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:
            self.prefix = f"127.{draw.randint(128, 254)}"
            try:
                self.sign.bind((f"{self.prefix}.255.254", AGENT_PORT))
                break
            except OSError:
                continue
        self.numbers = itertools.count(1)

    def next(self):
        number = next(self.numbers) % 60_000
        return f"{self.prefix}.{number // 250}.{number % 250 + 1}"

    def close(self):
        self.sign.close()


class Server(socketserver.ThreadingTCPServer):
    """http.server's own asks DNS for the name of its address."""
    allow_reuse_address = True
    daemon_threads = True


class StatusServer:
    """An agent's port 8080, as far as the operator sees it."""

    def __init__(self, address, document):
        self.document = document
        self.gets = 0
        self.posts = []  # (path, headers, body)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, code, body):
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):  # noqa: N802
                outer.gets += 1
                if self.path.partition("?")[0] == "/status":
                    document = outer.document
                    self.answer(200, document if isinstance(document, bytes) else json.dumps(document).encode())
                else:
                    self.answer(404, b"{}")

            def do_POST(self):  # noqa: N802
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.posts.append((self.path, dict(self.headers), body.decode()))
                self.answer(200, b"{}")

            def log_message(self, *_):
                pass

        def bound():
            try:
                return Server((address, AGENT_PORT), Handler)
            except OSError as error:
                raise AssertionError(f"{address}:{AGENT_PORT}: {error}") from error
        # Another test may listen on this port of all addresses for a while; `ss -ltnp` names any other program.
        self.server = wait_until(bound, f"free port {AGENT_PORT}", 120)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)
