"""The operator is killed after its n-th write, for every n of a scenario, and started again: the end is the same, no pod
is made twice, none is lost. The scenarios of gangs are in test_gangs.py, those of queues in test_queues.py.

`make test` takes the first and the middle n of each scenario; --scenario all (make e2e) takes all. Cases of one
scenario run one after the other, each in a namespace of its own, with leader election off.
"""
import contextlib
import signal

import pytest

from fake_kubelet import Exit
from fault_proxy import FaultProxy
from operator_process import OPERATOR
from train_jobs import Jobs

UNHARMED = 1_000_000  # writes after which the operator would die: counted, and never reached


class ScenarioRun:
    """One run of a scenario: what a user does and what the pods do, with an operator that dies after so many writes.
    `start`: the fixture `operator`, for the namespace of `api`; `proxy`: a FaultProxy that counts the writes."""

    jobs_type = Jobs

    def __init__(self, api, kubelet, start, proxy, dies_after):
        self.api, self.kubelet = api, kubelet
        self.jobs = self.jobs_type(api)
        self.made = []  # names of pods in the order of their making: none may be there twice
        self.start = start
        proxy.kill_after(dies_after, lambda: self.operator.send_signal(signal.SIGKILL))
        self.operator = start(wait=False, kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR))
        self.deaths = 0

    def look_after_the_operator(self):
        if not self.operator.is_running():
            assert self.operator.wait() == -signal.SIGKILL, self.operator.log()
            self.deaths += 1
            self.operator = self.start(wait=False)

    def until(self, holds, what):
        def seen():
            self.look_after_the_operator()
            self.look()
            return holds()
        self.jobs.wait_for(seen, what)

    def look(self):
        """Notes what must hold all the time."""
        for name, pod in self.jobs.pods().items():
            entry = (name, pod["metadata"]["uid"])
            if entry not in self.made:
                self.made.append(entry)

    def until_condition(self, kind, status="True"):
        self.until(lambda: self.jobs.condition(kind).get("status") == status, f"condition {kind}={status}")

    def until_ready(self, *names):
        """These pods live and are ready, and the status says so."""
        def holds():
            pods = self.jobs.pods()
            return set(names) <= set(pods) and self.jobs.live_pods() == sorted(names) and all(
                any(c["type"] == "Ready" and c["status"] == "True" for c in pods[name]["status"].get("conditions", []))
                for name in names) and self.jobs.condition("PodsReady").get("status") == "True"
        self.until(holds, f"ready pods {names}")

    def exit(self, name, how):
        self.kubelet.exit(self.api.namespace, name, how)

    def is_settled(self):
        """Nothing is on its way out, and the status counts what is there."""
        pods = self.jobs.pods().values()
        if any("deletionTimestamp" in pod["metadata"] for pod in pods):
            return False
        active = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        return self.jobs.is_gone() or self.jobs.status().get("nodes", {"active": 0})["active"] == len(active)

    def result(self):
        """What must not depend on when the operator died."""
        status = self.jobs.status() if not self.jobs.is_gone() else {}
        names = [name for name, _ in self.made]
        assert len(set(names)) == len(names), f"a pod was made twice: {self.made}"
        failures = [(f["node"], f["attempt"], f.get("exitCode"), f["reason"]) for f in status.get("recentFailures", [])]
        return {"phase": status.get("phase"), "attempts": status.get("attempts", []),
                "restarts": status.get("restarts"), "failures": failures, "nodes": status.get("nodes"),
                "conditions": {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])},
                "pods": sorted(self.jobs.pods()), "made": sorted(names)}

    def clear(self):
        """Removes what would disturb the next run of the scenario. The operator is gone by then."""


def create_and_finish(s):
    s.jobs.create(nodes=2)
    s.until_ready("job-0-0", "job-1-0")
    s.exit("job-0-0", Exit(0))
    s.exit("job-1-0", Exit(0))
    s.until_condition("Complete")


def fail_and_replace(s):
    s.jobs.create(nodes=2)
    s.until_ready("job-0-0", "job-1-0")
    s.exit("job-1-0", Exit(1, "it broke"))
    s.until_ready("job-0-0", "job-1-1")
    s.exit("job-0-0", Exit(12))
    s.until_ready("job-0-1", "job-1-1")
    # Those that failed stay for their logs.
    s.until(lambda: sorted(s.jobs.pods()) == ["job-0-0", "job-0-1", "job-1-0", "job-1-1"], "pods")


def fail_for_good(s):
    s.jobs.create(nodes=2)
    s.until_ready("job-0-0", "job-1-0")
    s.exit("job-1-0", Exit(2, "no such flag"))
    s.until_condition("Failed")
    s.until(lambda: s.jobs.live_pods() == [], "end of the pods")


def restart_the_gang(s):
    s.jobs.create(nodes=2, restartPolicy={"scope": "Gang"})
    s.until_ready("job-0-0", "job-1-0")
    s.exit("job-1-0", Exit(1))
    s.until_ready("job-0-1", "job-1-1")
    s.until(lambda: sorted(s.jobs.pods()) == ["job-0-1", "job-1-0", "job-1-1"], "end of the pod that had not failed")


def scale(s):
    s.jobs.create(nodes=1, elastic={"minNodes": 1, "maxNodes": 3})
    s.until_ready("job-0-0")
    s.jobs.patch({"spec": {"trainer": {"numNodes": 3}}})
    s.until_ready("job-0-0", "job-1-0", "job-2-0")
    s.jobs.patch({"spec": {"trainer": {"numNodes": 2}}})
    s.until_ready("job-0-0", "job-1-0")
    s.until(lambda: s.jobs.status()["nodes"]["desired"] == 2 and len(s.jobs.pods()) == 2, "two nodes")


def suspend_and_resume(s):
    s.jobs.create(nodes=2)
    s.until_ready("job-0-0", "job-1-0")
    s.jobs.patch({"spec": {"suspend": True}})
    s.until_condition("Suspended")
    s.until(lambda: s.jobs.pods() == {}, "no pods")
    s.jobs.patch({"spec": {"suspend": False}})
    s.until_ready("job-0-1", "job-1-1")
    s.until_condition("Suspended", "False")


def ttl(s):
    s.jobs.create(nodes=1, ttlSecondsAfterFinished=0)
    s.until_ready("job-0-0")
    s.exit("job-0-0", Exit(0))
    s.until(s.jobs.is_gone, "end of the job")
    s.until(lambda: s.jobs.pods() == {}, "end of its pods")


SCENARIOS = [fail_and_replace, create_and_finish, fail_for_good, restart_the_gang, scale, suspend_and_resume, ttl]


def chosen(writes, everything):
    """After which writes the operator dies: 1 to all."""
    return list(range(1, writes + 1)) if everything else sorted({1, (writes + 1) // 2})


@pytest.fixture
def try_each_death(control_plane, api, kubelet, operator, request):
    """try_each_death(scenario, run_type=ScenarioRun): kills the operator after each of the chosen writes, and compares the
    end with that of a run without a death."""
    namespaces = []

    @contextlib.contextmanager
    def run(scenario, run_type, dies_after):
        namespace = control_plane.make_namespace(f"{api.namespace[:40]}-{control_plane.number()}")
        namespaces.append(namespace)
        with FaultProxy(control_plane) as proxy:
            scenario_run = run_type(type(api)(control_plane, namespace), kubelet,
                                    lambda **flags: operator(namespace=namespace, **flags), proxy, dies_after)
            scenario(scenario_run)
            scenario_run.until(scenario_run.is_settled, "rest")
            yield scenario_run, proxy
            scenario_run.operator.kill()
            scenario_run.clear()

    def try_each(scenario, run_type=ScenarioRun):
        with run(scenario, run_type, UNHARMED) as (undisturbed, proxy):
            expected = undisturbed.result()
            undisturbed.operator.terminate()
            writes = proxy.changes
        tried = chosen(writes, request.config.getoption("--scenario") == "all")
        print(f"{scenario.__name__}: {writes} writes; dies after {tried}; the end is {expected}")
        for after in tried:
            with run(scenario, run_type, after) as (scenario_run, _):
                # Two changes that are seen together are one write: there may be fewer than in the first run.
                assert scenario_run.deaths == 1 or after > writes * 3 // 4, f"it made no {after} writes"
                assert scenario_run.result() == expected, f"dead after write {after} of {writes}"

    yield try_each
    for namespace in namespaces:
        control_plane.api.delete("namespaces", name=namespace)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_the_end_is_the_same_wherever_the_operator_died(scenario, try_each_death):
    try_each_death(scenario)
