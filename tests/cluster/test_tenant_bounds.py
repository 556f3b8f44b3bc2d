"""What one user may write or answer does not stop the operator for the others: it has 512 MiB, as the manifests give it,
a hostile job beside an honest one, and the honest one's status goes on."""
import contextlib
import json
import os
import sys

import pytest

from many_jobs import most_resident_bytes
from memory_group import memory_group
from train_jobs import TRAIN_JOBS, Jobs, run_report, train_job
from waiting import wait_until

LIMIT = 512 << 20
AGE_MAX = 60  # seconds
LEVELS = 9_900  # the API server takes 10,000


@pytest.fixture
def group():
    with memory_group(f"lockstep-bounds-{os.getpid()}", LIMIT) as found:
        yield found


@pytest.fixture
def bounded(group, api, kubelet, operator):
    """bounded() starts an operator that has so much memory; it must be the same process at the end."""
    started = []

    def start():
        started.append(operator(namespace=None, group=group, progress_seconds=1))
        return started[-1]
    yield start
    for one in started:
        assert one.is_running(), one.log_tail()
        assert most_resident_bytes(one.pid) < LIMIT


class Honest:
    """A job that trains, beside the hostile ones."""

    def __init__(self, api, kubelet):
        self.jobs = Jobs(api)
        self.jobs.create("honest", nodes=1)
        self.jobs.wait_for_condition("PodsReady", name="honest", timeout=AGE_MAX)
        self.step = 1
        self.agent = kubelet.serve_status(api.namespace, "honest-0-0", self.report())

    def report(self):
        return run_report(step=self.step, total=1_000_000, nodes=1, job="honest")

    def goes_on(self, times=2):
        """The status shows each step within AGE_MAX seconds."""
        for _ in range(times):
            self.step += 1
            self.agent.document = self.report()
            self.jobs.wait_for(lambda: self.jobs.status("honest").get("progress", {}).get("step") == self.step,
                               f"step {self.step}", "honest", AGE_MAX)


def create_many(api, count, name, nodes=1, **options):
    for number in range(count):
        api.create(TRAIN_JOBS, train_job(f"{name}-{number}", nodes=nodes, **options))


def names_of(count, name):
    return [f"{name}-{number}" for number in range(count)]


def wait_for_refusal(jobs, name, words):
    found = jobs.wait_for_condition("PodsReady", "False", "InvalidSpec", name, AGE_MAX)
    assert words in found["message"], found
    assert not jobs.pods(name)


@pytest.mark.long
def test_agents_that_answer_with_a_mebibyte_of_tiny_values(api, kubelet, bounded):
    operator = bounded()
    honest = Honest(api, kubelet)
    create_many(api, 4, "hostile")
    agents = []
    for number, key in enumerate(("recentFailures", "nodes", "anything", "metrics")):
        body = b'{"job": "hostile-%d", "%s": [' % (number, key.encode()) + b"{}," * 340_000 + b"{}]}"
        agents.append(kubelet.serve_status(api.namespace, f"hostile-{number}-0-0", body))
    wait_until(lambda: all(agent.gets >= 1 for agent in agents), "a reading of every hostile agent", AGE_MAX)
    honest.goes_on()
    operator.wait_until(lambda: "values; a summary has at most" in operator.log(), "a line about it in the log")


@pytest.mark.long
def test_pod_templates_of_over_a_megabyte(api, kubelet, bounded):
    bounded()
    honest = Honest(api, kubelet)
    template = {"x": [{}] * 460_000}  # 1.4 MB: 40 MB as a document
    create_many(api, 8, "hostile", trainer={"podTemplate": template})
    small = {"x": [{}] * 80_000}  # below 256 kB: 7 MB as a document
    create_many(api, 20, "dense", trainer={"podTemplate": small})
    create_many(api, 8, "foreign", trainer={"podTemplate": template}, managedBy="example.com/other")
    for name in names_of(8, "hostile"):
        wait_for_refusal(honest.jobs, name, "bytes of JSON; the operator reads at most 262144")
    for name in names_of(20, "dense"):
        wait_for_refusal(honest.jobs, name, "values of JSON; the operator reads at most")
    honest.goes_on()
    assert not honest.jobs.status("foreign-0")


@pytest.mark.long
def test_pods_that_fill_a_page_of_the_list(api, kubelet, bounded):
    """They never run; the operator lists them when it starts."""
    for number in range(60):
        api.create("pods", {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"hostile-{number}", "labels": {"lockstep.dev/job": "hostile"}},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "x", "image": "x", "args": [""] * 200_000}]}})
    bounded()
    Honest(api, kubelet).goes_on()


def nested(levels):
    return "[" * levels + "]" * levels


@contextlib.contextmanager
def deep_recursion():
    """So that Python's json reads such a job."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(4 * LEVELS)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.long
def test_a_pod_template_of_nearly_ten_thousand_levels(api, kubelet, bounded):
    operator = bounded()
    honest = Honest(api, kubelet)
    text = json.dumps(train_job("hostile", trainer={"podTemplate": {"spec": {"x": "DEEP"}}}))
    with deep_recursion():
        api.create(TRAIN_JOBS, text.replace('"DEEP"', nested(LEVELS)))
        wait_for_refusal(honest.jobs, "hostile", "levels of nesting; the operator reads at most 126")
    honest.goes_on()
    # It reads such a job with its first list, too.
    operator.kill()
    operator.start()
    honest.goes_on(1)


def status_of_lost_pods(attempt):
    """As the operator writes it after 10,000 pods were lost one by one: no two neighbours have been replaced equally
    often."""
    pods = range(10_000)
    return {"observedGeneration": 1, "phase": "Recovering", "nodes": {"desired": len(pods), "ready": 0},
            "restarts": {"total": attempt * len(pods), "pod": attempt * len(pods)},
            "attempts": [{"node": pod, "attempt": attempt + pod % 2} for pod in pods],
            "bookkeeping": {"created": ",".join(str(pod) for pod in pods[::2]),
                            "withoutProgress": {str(pod): attempt for pod in pods},
                            "quickReplacements": {str(pod): {"times": attempt, "last": 1_795_255_200 + attempt}
                                                  for pod in pods}},
            "recentFailures": [{"node": pod, "attempt": attempt, "time": "2026-11-21T10:00:00Z", "message": "m" * 1024,
                                "host": "h" * 60} for pod in pods[:10]],
            "conditions": [{"type": f"C{number}", "status": "False", "reason": "R", "message": "m" * 4096,
                            "lastTransitionTime": "2026-11-21T10:00:00Z"} for number in range(10)]}


def test_the_status_of_ten_thousand_pods_that_were_lost_twice_is_stored(api):
    """No operator runs. What counts is what the API server stores, with its own record of who owns which field."""
    api.create(TRAIN_JOBS, train_job("big", nodes=10_000))
    for attempt in (1, 2):
        job = api.get(TRAIN_JOBS, "big")
        body = {"apiVersion": job["apiVersion"], "kind": job["kind"], "status": status_of_lost_pods(attempt),
                "metadata": {name: job["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}}
        path = f"/apis/{job['apiVersion']}/namespaces/{api.namespace}/trainjobs/big/status?fieldManager=lockstep-operator"
        stored = api.client.request("PUT", path, body)
    assert stored["spec"] == job["spec"], "a status is written without the spec"
    assert stored["status"]["attempts"] == status_of_lost_pods(2)["attempts"]
    fields = next(entry for entry in stored["metadata"]["managedFields"] if entry.get("subresource") == "status")
    assert len(json.dumps(fields)) < 16_000
    assert len(json.dumps(stored, separators=(",", ":"))) < 1 << 20
