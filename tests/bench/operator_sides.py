"""The same pods made by plain HTTP, by Indexed Jobs and by TrainJobs, one side after the other on one control plane.

Each side has a namespace of its own, which is gone before the next begins. The API server, etcd, the scheduler, the
controller-manager with its endpoint controllers and KWOK are the same for all; so is what the pods ask for.
"""
import asyncio
import dataclasses
import json
import multiprocessing
import subprocess
import time

from control_plane import ControlPlane
from fake_kubelet import AGENT_PORT
from many_jobs import Namespace, copy_of, cpu_seconds, in_parallel, most_resident_bytes
from operator_process import OperatorProcess
from pod_history import History
from train_jobs import IMAGE, TRAIN_JOBS, run_report, train_job
from waiting import wait_until

INDEXED_JOBS = "batch/v1/jobs"
PODS_PER_NODE = 20
POD_ADDRESSES = "10.64.0.0/10"


class Plane(ControlPlane):
    """With the controllers that write EndpointSlices, and pods' addresses that they take. An agent answers at all of them,
    as it would in a real pod."""

    controllers = "*"

    def __enter__(self):
        subprocess.run(["ip", "route", "replace", "local", POD_ADDRESSES, "dev", "lo"], check=True)
        self.nodes = multiprocessing.Value("i")  # of the jobs that are followed now
        self.agents = multiprocessing.Process(target=lambda: asyncio.run(answer_as_agents(self.nodes)), daemon=True)
        self.agents.start()
        return super().__enter__()

    def __exit__(self, *error):
        self.agents.kill()
        subprocess.run(["ip", "route", "del", "local", POD_ADDRESSES, "dev", "lo"], check=True)
        return super().__exit__(*error)

    def start_component(self, name, flags):
        super().start_component(name, [f"--cidr={POD_ADDRESSES}" if str(flag).startswith("--cidr=") else flag
                                       for flag in flags])


async def answer_as_agents(nodes):
    """As agents that are ready: their workers train, on `nodes` pods. GET /status: so they say; POST /coordinator: taken
    note of."""
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(run_report(step=1, nodes=nodes.value)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "0.0.0.0", AGENT_PORT, backlog=1024)
    await server.serve_forever()


class Pods(History):
    """When each pod was first seen, seen running, seen done."""

    resource = "pods"

    def __init__(self, plane, namespace):
        super().__init__(Namespace(plane.api, namespace))
        self.seen, self.running, self.done = {}, {}, {}

    def take(self, one):
        name, phase, now = one["metadata"]["name"], one.get("status", {}).get("phase"), time.monotonic()
        self.seen.setdefault(name, now)
        if phase in ("Running", "Succeeded"):
            self.running.setdefault(name, now)
        if phase == "Succeeded":
            self.done.setdefault(name, now)


class Objects(History):
    """When each job was first seen to say that all its pods are ready, and that it is complete."""

    def __init__(self, plane, namespace, side):
        super().__init__(Namespace(plane.api, namespace))
        self.side, self.resource = side, side.resource
        self.ready, self.complete = {}, {}

    def take(self, one):
        name, now = one["metadata"]["name"], time.monotonic()
        if self.side.is_complete(one):
            self.complete.setdefault(name, now)
        if self.side.is_ready(one) or name in self.complete:
            self.ready.setdefault(name, now)


def condition(one, kind):
    found = [c for c in one.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else {}


def annotations(run_seconds):
    return {"fake.lockstep.dev/exit-after": f"{run_seconds}s"}


class RawPods:
    """Copies of the pods that a TrainJob had."""

    name = "raw pods"
    resource = None

    def __init__(self):
        self.sample = None

    def make(self, plane, namespace, jobs, nodes, run_seconds):
        def create(number):
            pod = {**self.sample, "metadata": {**self.sample["metadata"], "name": f"pod-{number}",
                                               "annotations": annotations(run_seconds)}}
            plane.api.create("pods", pod, namespace)
        in_parallel(create, range(jobs * nodes))


class IndexedJobs:
    resource = INDEXED_JOBS

    def __init__(self, with_service):
        self.with_service = with_service
        self.name = "Indexed Jobs" + (" with a headless Service" if with_service else "")

    def make(self, plane, namespace, jobs, nodes, run_seconds):
        def create(number):
            name = f"job-{number}"
            if self.with_service:
                plane.api.create("services", {"metadata": {"name": name}, "spec": {
                    "clusterIP": "None", "publishNotReadyAddresses": True,
                    "selector": {"batch.kubernetes.io/job-name": name}}}, namespace)
            container = {"name": "trainer", "image": IMAGE, "args": ["run", "sasrec"]}
            plane.api.create(INDEXED_JOBS, {"metadata": {"name": name}, "spec": {
                "completions": nodes, "parallelism": nodes, "completionMode": "Indexed", "backoffLimit": 1000,
                "template": {"metadata": {"annotations": annotations(run_seconds)}, "spec": {
                    "subdomain": name, "restartPolicy": "Never", "containers": [container]}}}}, namespace)
        in_parallel(create, range(jobs))

    def is_ready(self, one):
        return one.get("status", {}).get("ready", 0) == one["spec"]["completions"]

    def is_complete(self, one):
        return condition(one, "Complete").get("status") == "True"


class TrainJobs:
    resource = TRAIN_JOBS

    def __init__(self, launcher):
        self.launcher = launcher
        self.name = "Lockstep" if launcher == "Lockstep" else f"Lockstep, launcher {launcher}"

    def make(self, plane, namespace, jobs, nodes, run_seconds):
        trainer = {"launcher": self.launcher, "podTemplate": {"metadata": {"annotations": annotations(run_seconds)}}}
        if self.launcher != "Lockstep":
            trainer["command"] = ["train"]
        in_parallel(lambda n: plane.api.create(TRAIN_JOBS, train_job(f"job-{n}", nodes, trainer), namespace),
                    range(jobs))

    def is_ready(self, one):
        return condition(one, "PodsReady").get("status") == "True"

    def is_complete(self, one):
        return condition(one, "Complete").get("status") == "True"


@dataclasses.dataclass
class Times:
    """Seconds from the first request on; None: the side has none."""
    exist: float
    running: float
    said: float = None           # … and the jobs say so
    complete: float = None       # all of them; of raw pods: all have ended
    after_last_done: float = None  # from the last pod's end to its job's, at most
    cpu: float = None            # of the controller
    resident: int = None         # of the operator, at most


def run_side(plane, side, jobs, nodes, run_seconds, timeout):
    namespace = plane.make_namespace(f"side-{plane.number()}")
    with Pods(plane, namespace) as pods:
        if side.resource is None:
            times = follow(plane, side, pods, None, (namespace, jobs, nodes, run_seconds, timeout), None)
        else:
            with Objects(plane, namespace, side) as objects:
                what = (namespace, jobs, nodes, run_seconds, timeout)
                if isinstance(side, TrainJobs):
                    with OperatorProcess(plane, namespace=namespace) as operator:
                        times = follow(plane, side, pods, objects, what, operator.pid)
                        times.resident = most_resident_bytes(operator.pid)
                else:
                    times = follow(plane, side, pods, objects, what, plane["kube-controller-manager"].pid)
    sample = copy_of(plane.api.list("pods", namespace, limit=1)[0])
    clear(plane, namespace, timeout)
    return times, sample


def follow(plane, side, pods, objects, what, controller):
    namespace, jobs, nodes, run_seconds, timeout = what
    count = jobs * nodes
    plane.nodes.value = nodes
    cpu = cpu_seconds(controller) if controller else None
    began = time.monotonic()
    side.make(plane, namespace, jobs, nodes, run_seconds)
    wait_until(lambda: len(pods.seen) >= count, f"{count} pods of {side.name}", timeout)
    wait_until(lambda: len(pods.running) >= count, f"{count} running pods of {side.name}", timeout,
               lambda: f"{len(pods.running)} run")
    times = Times(max(pods.seen.values()) - began, max(pods.running.values()) - began)
    if objects is None:
        wait_until(lambda: len(pods.done) >= count, f"end of {count} pods of {side.name}", timeout)
        times.complete = max(pods.done.values()) - began
        return times
    wait_until(lambda: len(objects.complete) >= jobs, f"{jobs} complete jobs of {side.name}", timeout,
               lambda: f"{len(objects.complete)} are complete, {len(pods.done)} pods are done")
    times.said = max(objects.ready.values()) - began
    times.complete = max(objects.complete.values()) - began
    last = {}
    for name, done in list(pods.done.items()):
        job = max((job for job in objects.complete if name.startswith(f"{job}-")), key=len)
        last[job] = max(done, last.get(job, 0.0))
    times.after_last_done = max(objects.complete[job] - done for job, done in last.items())
    times.cpu = cpu_seconds(controller) - cpu
    return times


def clear(plane, namespace, timeout):
    plane.api.delete("namespaces", name=namespace)
    wait_until(lambda: not plane.exists("namespaces", None, namespace), f"end of namespace {namespace}", timeout)


@dataclasses.dataclass
class LifeTimes:
    """Of one job: from the request to the last pod that runs, and to the condition."""
    made: float
    suspended: float
    resumed: float
    restarted: float  # as a gang


def run_life(plane, nodes, timeout):
    """Made, suspended, resumed, and restarted as a gang, for one pod of which has failed."""
    namespace = plane.make_namespace(f"life-{plane.number()}")
    api = plane.api

    def job():
        return api.get(TRAIN_JOBS, namespace, "job")

    def seconds_until(holds, what):
        began = time.monotonic()
        wait_until(holds, what, timeout, lambda: job().get("status", {}).get("message", ""))
        return time.monotonic() - began

    def all_ready(gang_restarts=0):
        now = job()
        restarts = now.get("status", {}).get("restarts", {}).get("gang", 0)
        return condition(now, "PodsReady").get("status") == "True" and restarts == gang_restarts

    with OperatorProcess(plane, namespace=namespace):
        trainer = {"launcher": "Torchrun", "command": ["train"]}
        api.create(TRAIN_JOBS, train_job("job", nodes, trainer), namespace)
        made = seconds_until(all_ready, "ready pods")
        api.patch(TRAIN_JOBS, {"spec": {"suspend": True}}, namespace, "job")
        suspended = seconds_until(lambda: condition(job(), "Suspended").get("status") == "True", "suspension")
        api.patch(TRAIN_JOBS, {"spec": {"suspend": False}}, namespace, "job")
        resumed = seconds_until(all_ready, "ready pods after the suspension")
        api.patch("pods", {"metadata": {"annotations": {"fake.lockstep.dev/exit-after": "0s",
                                                        "fake.lockstep.dev/exit-code": "1"}}}, namespace, "job-1-1")
        restarted = seconds_until(lambda: all_ready(1), "ready pods after the gang's restart")
    clear(plane, namespace, timeout)
    return LifeTimes(made, suspended, resumed, restarted)


def run_replacements(plane, nodes, timeout, count=10):
    """Seconds from the request that deletes a pod of a job by force to the watch event of the pod that replaces it."""
    namespace = plane.make_namespace(f"replaced-{plane.number()}")
    plane.nodes.value = nodes
    seconds = []
    with Pods(plane, namespace) as pods, OperatorProcess(plane, namespace=namespace):
        plane.api.create(TRAIN_JOBS, train_job("job", nodes), namespace)
        wait_until(lambda: len(pods.running) == nodes, f"{nodes} running pods", timeout)
        for node_rank in range(1, count + 1):
            wait_until(lambda: condition(plane.api.get(TRAIN_JOBS, namespace, "job"), "PodsReady").get("status") == "True",
                       "ready pods", timeout)
            began = time.monotonic()
            plane.api.delete("pods", namespace, f"job-{node_rank}-0", gracePeriodSeconds=0)
            new = f"job-{node_rank}-1"
            wait_until(lambda: new in pods.seen, new, timeout)
            seconds.append(pods.seen[new] - began)
    clear(plane, namespace, timeout)
    return seconds
