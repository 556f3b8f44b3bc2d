"""Many TrainJobs at once, on KWOK nodes: run through to their end, and measured.

The measure of the machine is its own ceiling in the same run: the same pods, made by plain HTTP from 32 threads, on the
same control plane, with the same scheduler and KWOK at work on them.
"""
import concurrent.futures
import dataclasses
import os
import pathlib
import time

from operator_process import OperatorProcess
from pod_history import PodHistory
from train_jobs import TRAIN_JOBS, train_job
from waiting import wait_until

THREADS = 32
RUN_SECONDS = 2  # of each pod
PODS_PER_KWOK_NODE = 200
ANNOTATIONS = {"fake.lockstep.dev/exit-after": f"{RUN_SECONDS}s"}
# Fields that the API server has set, and that a copy of a pod must not have.
NOT_COPIED = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences",
              "namespace")


@dataclasses.dataclass(frozen=True)
class Figures:
    jobs: int
    pods: int
    pods_per_second: float      # made by the operator, from the first to the last
    ceiling_per_second: float   # the same by plain HTTP
    pods_made_after: float      # seconds from the operator's start to its last pod
    complete_after: float       # … to the last job's end
    cpu_seconds: float          # of the operator, until then
    resident_bytes: int         # its most
    requests: float             # to the API server

    @property
    def ratio(self):
        return self.pods_per_second / self.ceiling_per_second

    def __str__(self):
        return (f"{self.jobs} jobs, {self.pods} pods: {self.pods_per_second:.0f} pods/s by the operator, "
                f"{self.ceiling_per_second:.0f} pods/s by {THREADS} threads of plain HTTP, ratio {self.ratio:.2f}; "
                f"all made after {self.pods_made_after:.1f} s, all complete after {self.complete_after:.1f} s; "
                f"operator: {self.cpu_seconds:.2f} s of CPU, {self.resident_bytes / 2**20:.0f} MiB, "
                f"{self.requests:.0f} requests")


@dataclasses.dataclass(frozen=True)
class Namespace:
    """What a History needs of an Api (namespace.py)."""
    client: object
    namespace: str


class Arrivals(PodHistory):
    """When each pod was first seen."""

    def __init__(self, plane, namespace):
        super().__init__(Namespace(plane.api, namespace))
        self.seen_at = {}

    def take(self, pod):
        self.seen_at.setdefault(pod["metadata"]["name"], time.monotonic())
        super().take(pod)

    def per_second(self):
        times = sorted(self.seen_at.values())
        return (len(times) - 1) / (times[-1] - times[0])


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def most_resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def in_parallel(work, items):
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))


def phases(plane, namespace):
    found = [job.get("status", {}).get("phase", "") for job in plane.api.list(TRAIN_JOBS, namespace)]
    return {phase: found.count(phase) for phase in sorted(set(found))}


def run_through(plane, jobs, nodes, timeout, **flags):
    """All jobs are there before the operator starts, so that it works as fast as it can. flags: the operator's."""
    namespace = plane.make_namespace(f"many-{plane.number()}")
    trainer = {"podTemplate": {"metadata": {"annotations": ANNOTATIONS}}}
    in_parallel(lambda n: plane.api.create(TRAIN_JOBS, train_job(f"job-{n}", nodes, trainer), namespace), range(jobs))
    pods = jobs * nodes
    with Arrivals(plane, namespace) as arrivals, OperatorProcess(plane, namespace=namespace, **flags) as operator:
        began = time.monotonic()

        def told():
            seen = f"{len(arrivals.seen_at)} of {pods} pods; jobs: {phases(plane, namespace)}"
            return f"{seen}\n{operator.log_tail()}"
        wait_until(lambda: len(arrivals.seen_at) >= pods, f"{pods} pods", timeout, told)
        wait_until(lambda: phases(plane, namespace) == {"Complete": jobs}, f"{jobs} complete jobs", timeout, told)
        ended = time.monotonic()
        requests = sum(v for name, v in operator.metrics().items() if name.startswith("rest_client_requests_total"))
        cpu, resident = cpu_seconds(operator.pid), most_resident_bytes(operator.pid)
    names = arrivals.names()
    expected = sorted(f"job-{job}-{node}-0" for job in range(jobs) for node in range(nodes))
    assert names == expected, f"pods that are not the first attempts: {sorted(set(names) ^ set(expected))}"
    made_per_second = arrivals.per_second()
    last = max(arrivals.seen_at.values())
    return Figures(jobs, pods, made_per_second, ceiling(plane, namespace, timeout), last - began, ended - began, cpu,
                   resident, requests)


def copy_of(pod):
    metadata = {name: value for name, value in pod["metadata"].items() if name not in NOT_COPIED}
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def ceiling(plane, namespace, timeout):
    """Pods per second, of copies of the pods in this namespace."""
    copies = [copy_of(pod) for pod in plane.api.list("pods", namespace)]
    other = plane.make_namespace(f"ceiling-{plane.number()}")
    with Arrivals(plane, other) as arrivals:
        in_parallel(lambda pod: plane.api.create("pods", pod, other), copies)
        wait_until(lambda: len(arrivals.seen_at) >= len(copies), f"{len(copies)} copies", timeout)
    return arrivals.per_second()
