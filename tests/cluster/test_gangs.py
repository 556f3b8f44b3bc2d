"""Gangs on a control plane that has Kubernetes' own PodGroups (feature gate GenericWorkload): four nodes of one pod each,
the real scheduler, and the operator with its ServiceAccount's rights."""
import pytest

from control_plane import ControlPlane
from fake_kubelet import Behaviour, Exit
from fault_proxy import FaultProxy
from operator_process import OPERATOR
from test_api_faults import ALWAYS, EveryOther, plural_of
from test_operator_dies import ScenarioRun, try_each_death  # pylint: disable=unused-import
from train_jobs import Jobs
from waiting import wait_until

POD_GROUPS = "scheduling.k8s.io/v1beta1/podgroups"
WHOLE_NODE = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}


@pytest.fixture(scope="module")
def control_plane():
    """In place of the session's."""
    with ControlPlane(native_gangs=True) as running:
        running.apply_base()
        yield running


@pytest.fixture
def jobs(api, restricted_operator):
    return GangJobs(api)


class GangJobs(Jobs):
    """Jobs whose pods take a node each, and their PodGroups."""

    def create_gang(self, name="job", trainer=(), scheduling=(), **more):
        return self.create(name, trainer={**WHOLE_NODE, **dict(trainer)},
                           scheduling={"gang": "Native", **dict(scheduling)}, **more)

    def prefix(self, name="job"):
        return f"{name}-{self.get(name)['metadata']['uid'][:8]}-"

    def groups(self, name="job"):
        """Their numbers, those that are being deleted left out."""
        prefix = self.prefix(name)
        listed = self.api.list(POD_GROUPS, labelSelector=f"lockstep.dev/job={name}")
        return sorted(int(group["metadata"]["name"].removeprefix(prefix)) for group in listed
                      if "deletionTimestamp" not in group["metadata"])

    def group_of(self, pod, name="job"):
        """The number of the group that the pod says it is in."""
        return int(self.pods(name)[pod]["spec"]["schedulingGroup"]["podGroupName"].removeprefix(self.prefix(name)))

    def bound(self, name="job"):
        return sorted(pod for pod, body in self.pods(name).items() if body["spec"].get("nodeName"))


def finish(jobs, kubelet, name, pods):
    for pod in pods:
        kubelet.exit(jobs.api.namespace, pod, Exit(0))
    jobs.wait_for_condition("Complete", name=name)


# --- scheduled together


def test_two_gangs_that_fit_one_after_the_other_both_finish(jobs, kubelet):
    jobs.create_gang("first", nodes=3)
    jobs.wait_for_condition("GangScheduled", name="first")
    jobs.create_gang("second", nodes=3)
    jobs.wait_for_pods("second-0-0", "second-1-0", "second-2-0", job="second")
    waiting = jobs.wait_for_condition("GangScheduled", "False", "Unschedulable", name="second")
    assert "minCount" in waiting["message"], waiting
    assert jobs.bound("second") == [], "it holds the fourth node, which helps nobody"
    finish(jobs, kubelet, "first", [f"first-{n}-0" for n in range(3)])
    jobs.wait_for_condition("GangScheduled", name="second")
    jobs.wait_for_condition("PodsReady", name="second")
    finish(jobs, kubelet, "second", [f"second-{n}-0" for n in range(3)])


def test_a_gang_that_can_never_fit_holds_nothing_and_says_why(jobs):
    jobs.create_gang(nodes=5)
    jobs.wait_for_pods(*(f"job-{n}-0" for n in range(5)))
    why = jobs.wait_for_condition("GangScheduled", "False", "Unschedulable")["message"]
    assert why.startswith("0 of the 5 pods of the gang are scheduled (PodGroup job-") and "minCount" in why
    jobs.wait_for_condition("PodsReady", "False", "Unschedulable")
    assert jobs.bound() == []
    jobs.create_gang("small", nodes=4)
    jobs.wait_for_condition("PodsReady", name="small")


def test_the_ranks_beyond_the_gang_come_when_it_has_its_nodes(jobs, kubelet):
    jobs.create_gang("first", nodes=3)
    jobs.wait_for_condition("GangScheduled", name="first")
    jobs.create_gang(nodes=3, elastic={"minNodes": 2, "maxNodes": 3})
    jobs.wait_for_pods("job-0-0", "job-1-0")
    jobs.wait_for_condition("GangScheduled", "False", "Unschedulable")
    assert sorted(jobs.pods()) == ["job-0-0", "job-1-0"]
    finish(jobs, kubelet, "first", [f"first-{n}-0" for n in range(3)])
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-0")
    jobs.wait_for_condition("PodsReady")
    assert {jobs.group_of(pod) for pod in jobs.pods()} == {0}


# --- over the life of a job


def test_a_replaced_pod_of_a_gang_that_runs_is_scheduled_in_its_group(api, jobs, kubelet):
    jobs.create_gang(nodes=4)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-2-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-1", "job-3-0")
    jobs.wait_for_condition("PodsReady")
    assert jobs.group_of("job-2-1") == 0 and jobs.groups() == [0]


def test_a_gang_that_restarts_is_another_group_once_its_pods_have_ended(api, jobs, kubelet):
    deaf = Behaviour(on_delete=None)
    kubelet.behave_by_name(api.namespace, "job-0-0", deaf)
    jobs.create_gang(nodes=2, restartPolicy={"scope": "Gang"},
                     trainer={"podTemplate": {"spec": {"terminationGracePeriodSeconds": 3600}}})
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_condition("GangScheduled", "False", "EarlierGangEnding")
    # The condition is written before the pod is told to end.
    wait_until(lambda: jobs.live_pods() == [], "the end of pod 0 to begin")
    assert jobs.groups() == [0]
    kubelet.exit(api.namespace, "job-0-0", Exit(143))
    jobs.wait_for_pods("job-0-1", "job-1-1")
    jobs.wait_for_condition("GangScheduled")
    assert jobs.group_of("job-0-1") == jobs.group_of("job-1-1") == 1
    jobs.wait_for(lambda: jobs.groups() == [1], "end of the first group")


def occupy(api, node):
    """By a pod that no scheduler has placed: the pod that is there now has no successor there."""
    api.create("pods", {"metadata": {"name": f"on-{node}"}, "spec": {"nodeName": node, "containers": [
        {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}})


def test_a_pod_that_waits_gets_the_node_of_one_that_is_done(api, jobs, kubelet):
    """The scheduler does not count members that have ended."""
    jobs.create_gang(nodes=4, restartPolicy={"scope": "Pod"}, trainer={"launcher": "None"})
    jobs.wait_for_condition("PodsReady")
    occupy(api, jobs.pods()["job-1-0"]["spec"]["nodeName"])
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_condition("GangScheduled", "False", "Unschedulable")
    kubelet.exit(api.namespace, "job-0-0", Exit(0))
    jobs.wait_for(lambda: "job-1-1" in jobs.bound(), "a node for job-1-1", timeout=60)
    jobs.wait_for_condition("PodsReady")
    finish(jobs, kubelet, "job", ["job-1-1", "job-2-0", "job-3-0"])


@pytest.mark.parametrize("gang", ["Native", "None"])
def test_a_pod_that_can_be_spared_gives_its_node_to_pod_0(api, jobs, kubelet, gang):
    jobs.create_gang(nodes=4, elastic={"minNodes": 2, "maxNodes": 4}, scheduling={"gang": gang})
    jobs.wait_for_condition("PodsReady")
    freed = jobs.pods()["job-3-0"]["spec"]["nodeName"]
    occupy(api, jobs.pods()["job-0-0"]["spec"]["nodeName"])
    kubelet.exit(api.namespace, "job-0-0", Exit(1))
    jobs.wait_for_event(lambda event: event[0] == "RoomMadeForPod0", "event RoomMadeForPod0")
    jobs.wait_for_pods("job-0-1", "job-1-0", "job-2-0", "job-3-1", timeout=60)
    assert jobs.pods()["job-0-1"]["spec"]["nodeName"] == freed and "job-3-1" not in jobs.bound()
    assert jobs.status()["restarts"] == {"process": 0, "pod": 1, "gang": 0, "total": 1}
    assert {failure["node"] for failure in jobs.status()["recentFailures"]} == {0}


def test_each_resume_is_another_group(jobs):
    jobs.create_gang(nodes=2)
    jobs.wait_for_condition("GangScheduled")
    for number in (1, 2):
        jobs.patch({"spec": {"suspend": True}})
        jobs.wait_for_condition("Suspended")
        jobs.wait_for(lambda: jobs.groups() == [], "end of the group")
        jobs.patch({"spec": {"suspend": False}})
        jobs.wait_for_condition("GangScheduled")
        assert jobs.groups() == [number]
    jobs.wait_for_condition("PodsReady")


def test_a_preempted_gang_is_one_restart_that_is_not_counted(api, control_plane, jobs, kubelet):
    for name, value in (("gangs-low", 10), ("gangs-high", 1000)):
        control_plane.api.create("scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
    try:
        jobs.create_gang(nodes=3, scheduling={"priorityClassName": "gangs-low"})
        jobs.wait_for_condition("PodsReady")
        jobs.create_gang("urgent", nodes=3, scheduling={"priorityClassName": "gangs-high"})
        jobs.wait_for_condition("PodsReady", name="urgent")
        jobs.wait_for(lambda: jobs.status()["restarts"]["gang"] == 1, "one restart of the gang")
        assert {pod["spec"]["priority"] for pod in jobs.pods().values()} == {10}
        assert "counted" not in jobs.status().get("bookkeeping", {})
        finish(jobs, kubelet, "urgent", [f"urgent-{n}-0" for n in range(3)])
        jobs.wait_for_condition("GangScheduled")
        assert jobs.status()["restarts"]["gang"] == 1 and jobs.status()["restarts"]["pod"] == 0
        assert {jobs.group_of(pod) for pod in jobs.live_pods()} == {1}
    finally:
        for name in ("gangs-low", "gangs-high"):
            control_plane.api.delete("scheduling.k8s.io/v1/priorityclasses", name=name)


@pytest.mark.long
def test_a_priority_class_that_does_not_exist_is_named_and_waited_for(control_plane, jobs):
    jobs.create_gang(nodes=2, scheduling={"priorityClassName": "gangs-later"})
    words = 'there is no PriorityClass "gangs-later" (spec.scheduling.priorityClassName)'
    for kind in ("GangScheduled", "PodsReady"):
        assert words in jobs.wait_for_condition(kind, "False", "PriorityClassMissing")["message"]
    assert jobs.pods() == {} and jobs.groups() == []
    control_plane.api.create("scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "gangs-later"}, "value": 10})
    try:
        jobs.wait_for_condition("PodsReady")
        jobs.wait_for_condition("GangScheduled")
    finally:
        control_plane.api.delete("scheduling.k8s.io/v1/priorityclasses", name="gangs-later")


# --- gates that are off fail silently


def test_a_topology_that_the_api_server_drops_is_reported(jobs):
    """This one's gate TopologyAwareWorkloadScheduling is off."""
    jobs.create_gang(nodes=2, scheduling={"topology": "topology.kubernetes.io/zone"})
    said = jobs.wait_for_condition("GangScheduled", "False", "TopologyIgnored")["message"]
    assert "TopologyAwareWorkloadScheduling" in said
    jobs.wait_for_event(lambda event: event[0] == "TopologyIgnored", "event TopologyIgnored")
    jobs.wait_for_condition("PodsReady")


@pytest.mark.long
def test_a_scheduler_whose_gate_is_off_is_found_out(control_plane, jobs):
    scheduler = control_plane["kube-scheduler"]
    with_gate = scheduler.argv
    scheduler.stop()
    scheduler.argv = [word for word in with_gate if "GenericWorkload" not in str(word)]
    scheduler.start()
    try:
        jobs.create_gang(nodes=2)
        said = jobs.wait_for_condition("GangScheduled", "False", "NoGang", timeout=120)["message"]
        assert "GenericWorkload" in said
        jobs.wait_for_event(lambda event: event[0] == "NoGang", "event NoGang")
        jobs.wait_for_condition("PodsReady")
    finally:
        scheduler.stop()
        scheduler.argv = with_gate
        scheduler.start()


# --- an API server in trouble, and an operator that dies


def is_of_groups(request):
    return request.is_write and plural_of(request) in ("podgroups", "pods", "trainjobs/status")


@pytest.mark.parametrize("status, reason", [(429, "TooManyRequests"), (500, "InternalError")])
def test_a_server_that_refuses_every_other_write_of_a_gang(api, control_plane, kubelet, operator, status, reason):
    with FaultProxy(control_plane) as proxy:
        storm = EveryOther(is_of_groups)
        proxy.answer(storm, status, reason, times=ALWAYS)
        operator(kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR))
        jobs = GangJobs(api)
        live_through_a_restart(jobs, kubelet)
        assert len(storm.waits()) >= 5


def test_answers_that_are_lost_make_no_second_group(api, control_plane, kubelet, operator):
    with FaultProxy(control_plane) as proxy:
        proxy.lose_answer(EveryOther(is_of_groups), times=ALWAYS)
        operator(kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR))
        live_through_a_restart(GangJobs(api), kubelet)


def test_an_api_server_that_is_slow_delays_a_gang_and_breaks_nothing(api, control_plane, kubelet, operator):
    with FaultProxy(control_plane) as proxy:
        proxy.delay(lambda request: not request.is_watch and "/leases/" not in request.path, 1.0, times=ALWAYS)
        operator(kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR))
        live_through_a_restart(GangJobs(api), kubelet)


def live_through_a_restart(jobs, kubelet):
    jobs.create_gang(nodes=2, restartPolicy={"scope": "Gang"})
    jobs.wait_for_condition("PodsReady", timeout=120)
    kubelet.exit(jobs.api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-1", "job-1-1", timeout=120)
    jobs.wait_for_condition("GangScheduled", timeout=120)
    jobs.wait_for(lambda: jobs.groups() == [1], "end of the first group", timeout=120)
    finish(jobs, kubelet, "job", ["job-0-1", "job-1-1"])


def test_an_api_server_that_restarts_while_a_gang_waits(control_plane, jobs, kubelet):
    jobs.create_gang("first", nodes=3)
    jobs.wait_for_condition("GangScheduled", name="first")
    jobs.create_gang("second", nodes=3)
    jobs.wait_for_condition("GangScheduled", "False", "Unschedulable", name="second")
    control_plane.stop_component("kube-apiserver")
    control_plane.restart_component("kube-apiserver")
    finish(jobs, kubelet, "first", [f"first-{n}-0" for n in range(3)])
    jobs.wait_for_condition("PodsReady", name="second", timeout=120)
    assert jobs.groups("second") == [0]


def gang_restarts(s):
    s.jobs.create_gang(nodes=2, restartPolicy={"scope": "Gang"})
    s.until_ready("job-0-0", "job-1-0")
    s.exit("job-1-0", Exit(1))
    s.until_ready("job-0-1", "job-1-1")
    s.until(lambda: sorted(s.jobs.pods()) == ["job-0-1", "job-1-0", "job-1-1"], "end of the pod that had not failed")
    s.until(lambda: s.jobs.groups() == [1], "end of the first group")


def gang_is_suspended(s):
    s.jobs.create_gang(nodes=2)
    s.until_ready("job-0-0", "job-1-0")
    s.jobs.patch({"spec": {"suspend": True}})
    s.until_condition("Suspended")
    s.until(lambda: s.jobs.pods() == {} and s.jobs.groups() == [], "no pods and no group")
    s.jobs.patch({"spec": {"suspend": False}})
    s.until_ready("job-0-1", "job-1-1")
    s.until_condition("GangScheduled")
    s.until(lambda: s.jobs.groups() == [1], "the second group")


def gang_grows(s):
    s.jobs.create_gang(nodes=2, elastic={"minNodes": 2, "maxNodes": 3})
    s.until_ready("job-0-0", "job-1-0")
    s.until_condition("GangScheduled")
    s.jobs.patch({"spec": {"trainer": {"numNodes": 3}}})
    s.until_ready("job-0-0", "job-1-0", "job-2-0")


def gang_grows_while_suspended(s):
    s.jobs.create_gang(nodes=2)
    s.until_ready("job-0-0", "job-1-0")
    s.jobs.patch({"spec": {"suspend": True}})
    s.until_condition("Suspended")
    s.until(lambda: s.jobs.pods() == {} and s.jobs.groups() == [], "no pods and no group")
    s.jobs.patch({"spec": {"suspend": False, "trainer": {"numNodes": 3}}})
    s.until_ready("job-0-1", "job-1-1", "job-2-0")
    s.until_condition("GangScheduled")


def gang_is_preempted(s):
    """By a pod that is nobody's: the whole gang makes room, and waits until the node is free again."""
    s.jobs.create_gang(nodes=4, restartPolicy={"scope": "Gang"})
    s.until_ready("job-0-0", "job-1-0", "job-2-0", "job-3-0")
    s.until_condition("GangScheduled")
    s.api.create("pods", {"metadata": {"name": "urgent"}, "spec": {
        "priorityClassName": "system-node-critical", "containers": [
            {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 8}}}]}})
    s.until(lambda: s.api.get("pods", "urgent")["spec"].get("nodeName"), "a node for the urgent pod")
    s.until(lambda: s.jobs.status()["restarts"]["gang"] == 1 and s.jobs.bound() == [], "a gang that waits")
    s.api.client.delete("pods", s.api.namespace, "urgent")
    s.until_ready("job-0-1", "job-1-1", "job-2-1", "job-3-1")
    s.until_condition("GangScheduled")
    s.until(lambda: s.jobs.groups() == [1], "end of the first group")


class GangRun(ScenarioRun):
    jobs_type = GangJobs

    def result(self):
        sizes = {group["metadata"]["name"].rsplit("-", 1)[1]: group["spec"]["schedulingPolicy"]["gang"]["minCount"]
                 for group in self.api.list(POD_GROUPS) if "deletionTimestamp" not in group["metadata"]}
        result = {**super().result(), "groups": sizes, "group of": {pod: self.jobs.group_of(pod) for pod in self.jobs.pods()}}
        # Which pods of a preempted gang are seen to go before it restarts is the scheduler's affair.
        result["failures"] = [failure for failure in result["failures"] if failure[-1] != "PreemptionByScheduler"]
        return result

    def clear(self):
        """Its pods take whole nodes. The garbage collector, which would delete them, learns of new kinds every 30 s."""
        self.jobs.delete()
        self.api.client.delete("pods", self.api.namespace)
        self.jobs.wait_for_absence(lambda: self.jobs.pods() == {}, "end of the gang's pods")


@pytest.mark.parametrize("scenario", [gang_restarts, *(pytest.param(one, marks=pytest.mark.long) for one in (
    gang_is_suspended, gang_grows, gang_grows_while_suspended, gang_is_preempted))], ids=lambda s: s.__name__)
def test_the_end_is_the_same_wherever_the_operator_died(scenario, try_each_death):
    try_each_death(scenario, GangRun)
