"""TrainJobs that wait in Kueue's queues: on a real API server with Kueue's CRDs, before a stand-in for its controller or,
with KUEUE_BIN, before the real one (make cluster-queues)."""
import functools

import pytest

from fake_kubelet import Behaviour, Exit
from fault_proxy import FaultProxy
from kueue_queues import GROUP, MANAGED, WORKLOADS, Queues, crd_text, install_crds, kueue_binary, start_controller
from kueue_stand_in import StandIn, now
from test_gang_kinds import COSCHEDULING, OWN_SCHEDULER, crds  # pylint: disable=unused-import
from test_operator_dies import ScenarioRun, try_each_death  # pylint: disable=unused-import
from train_jobs import TRAIN_JOBS, Jobs, environment_of, train_job
from waiting import wait_until

ONE_CPU = {"resourcesPerNode": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
CHECKPOINT = {"volume": {"emptyDir": {}}}
QUEUE = "kueue.x-k8s.io/queue-name"
POD_GROUPS = "scheduling.x-k8s.io/v1alpha1/podgroups"
needs_stand_in = pytest.mark.skipif(kueue_binary() is not None, reason="it changes CRDs beneath a controller that runs")


class QueuedJobs(Jobs):
    """TrainJobs of one CPU per node that name a queue."""

    def create(self, name="job", queue="team", labels=(), trainer=(), **options):
        body = train_job(name, trainer={**ONE_CPU, **dict(trainer)}, **options)
        body["metadata"]["labels"] = {QUEUE: queue, **dict(labels)}
        return self.api.create(TRAIN_JOBS, body)

    def wait_until_admitted(self, name="job"):
        return self.wait_for_condition("Admitted", "True", "Admitted", name)

    def wait_for_words(self, *words, name="job", kind="Admitted"):
        """The condition's message has them all."""
        self.wait_for(lambda: all(word in self.condition(kind, name).get("message", "") for word in words),
                      f"the words {words}", name)
        return self.condition(kind, name)


@pytest.mark.long
@needs_stand_in
def test_crds_come_and_go(control_plane, api, kubelet, operator):
    """Without the CRD, or with one of another version, the job says so and waits. When the CRD is deleted later, the
    pods end, and the jobs wait until it is back."""
    plane = control_plane
    plane.kubectl("delete", "crd", "workloads.kueue.x-k8s.io", "--ignore-not-found")
    jobs = QueuedJobs(api)
    operator()
    jobs.create(nodes=1)
    condition = jobs.wait_for_words("waits for queue \"team\"", "v1beta2 or v1beta1", "install Kueue")
    assert (condition["status"], condition["reason"]) == ("False", "QueueUnavailable")
    assert jobs.status()["phase"] == "Suspended" and jobs.pods() == {}

    text = crd_text("workloads").replace("name: v1beta", "name: v2beta")
    plane.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    plane.wait_for_crd("workloads.kueue.x-k8s.io")
    jobs.create("other", nodes=1)
    jobs.wait_for_words("v1beta2 or v1beta1", name="other")
    plane.kubectl("delete", "crd", "workloads.kueue.x-k8s.io")

    install_crds(plane)
    controller = start_controller(plane)
    queues = Queues(api, controller)
    try:
        queues.make(4)
        for name in ("job", "other"):
            jobs.wait_for_pods(f"{name}-0-0", job=name)
        plane.kubectl("delete", "crd", "workloads.kueue.x-k8s.io", "--wait=false")
        for name in ("job", "other"):
            jobs.wait_for_condition("Admitted", "False", "QueueUnavailable", name)
            assert jobs.live_pods(name) == []
        jobs.delete("other")
        install_crds(plane)
        jobs.wait_until_admitted()
        jobs.wait_for_pods("job-0-1")
    finally:
        controller.stop()
        queues.remove()


@pytest.mark.long
@needs_stand_in
def test_kueue_is_upgraded_from_v1beta1_to_a_version_that_does_not_serve_it(control_plane, api, kubelet, operator):
    """A job that runs goes on, and what follows is said in v1beta2."""
    plane = control_plane
    install_crds(plane)
    install_crds(plane, ["resourceflavors"], served=("v1beta1", "v1beta2"))
    install_crds(plane, ["workloads"], served=("v1beta1",))
    older, newer = StandIn(plane.api, "v1beta1").start(), StandIn(plane.api)
    queues = Queues(api, older)
    try:
        operator()
        jobs = QueuedJobs(api)
        queues.make(2)
        jobs.create(nodes=1)
        queues.wait_for_condition("PodsReady", "True", "Started")
        jobs.wait_for_pods("job-0-0")
        older.stop()
        install_crds(plane)
        queues.controller = newer.start()
        jobs.create("second", nodes=1)
        jobs.wait_for_pods("second-0-0", job="second")
        assert jobs.live_pods() == ["job-0-0"]
        queues.deactivate()
        wait_until(lambda: not queues.reserved(), "released reservation")
        assert jobs.live_pods() == []
    finally:
        for controller in (older, newer):
            controller.stop()
        install_crds(plane)
        queues.controller = newer
        queues.let_go()
        queues.remove()


@pytest.fixture(scope="session")
def kueue(control_plane):
    install_crds(control_plane)
    controller = start_controller(control_plane)
    yield controller
    controller.stop()


@pytest.fixture
def queues(api, kueue):
    made = Queues(api, kueue)
    yield made
    made.let_go()
    made.remove()


@pytest.fixture
def jobs(api, kubelet, operator, queues):
    operator()
    return QueuedJobs(api)


def test_a_job_waits_until_it_is_admitted_and_makes_room_when_it_ends(api, kubelet, jobs, queues):
    queues.make(3)
    jobs.create(nodes=3)
    jobs.wait_until_admitted()
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-0")
    for pod in jobs.pods().values():
        assert QUEUE not in pod["metadata"]["labels"] and pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
        assert not pod["spec"].get("schedulingGates") and environment_of(pod)["LOCKSTEP_NUM_NODES"] == "3"
    queues.wait_for_condition("PodsReady", "True", "Started")

    jobs.create("second", nodes=2)
    condition = jobs.wait_for_words("waits in queue \"team\"", "insufficient", name="second")
    assert (condition["status"], condition["reason"]) == ("False", "Queued")
    assert jobs.status("second")["phase"] == "Suspended" and jobs.pods("second") == {}

    for node in range(3):
        kubelet.exit(api.namespace, f"job-{node}-0", Exit(0))
    jobs.wait_for_condition("Complete")
    queues.wait_for_condition("Finished", "True", "Succeeded")
    wait_until(lambda: not queues.workload()["metadata"].get("finalizers"), "Workload without a finalizer")
    jobs.wait_for_pods("second-0-0", "second-1-0", job="second")


@pytest.mark.parametrize("trainer", [{}, {"command": ["python", "train.py"]}], ids=["own model", "program of the user's"])
def test_a_part_of_the_nodes_is_admitted(api, jobs, queues, trainer):
    queues.make(2)
    jobs.create(nodes=4, elastic={"minNodes": 2, "maxNodes": 4}, trainer=trainer)
    jobs.wait_for_words("2 of 4 pods")
    jobs.wait_for_pods("job-0-0", "job-1-0")
    jobs.wait_for_condition("PodsReady")
    assert jobs.get()["spec"]["trainer"]["numNodes"] == 4
    assert environment_of(jobs.pods()["job-0-0"])["LOCKSTEP_NUM_NODES"] == "2"
    assert jobs.status()["nodes"]["summary"] == "2/2"
    queues.wait_for_condition("PodsReady", "True", "Started")


def test_an_evicted_job_keeps_its_reservation_until_its_last_pod_has_ended(api, kubelet, jobs, queues):
    queues.make(2)
    kubelet.behave_by_name(api.namespace, "job-1-0", Behaviour(on_delete=None))
    jobs.create(nodes=2, checkpoint=CHECKPOINT)
    queues.wait_for_condition("PodsReady", "True", "Started")
    queues.deactivate()
    jobs.wait_for_words("evicted", "write a last checkpoint", kind="Suspended")
    jobs.wait_for(lambda: "job-0-0" not in jobs.pods(), "end of the pod that listens")
    assert queues.reserved() and not jobs.get()["spec"]["suspend"]
    kubelet.exit(api.namespace, "job-1-0", Exit(143))
    wait_until(lambda: not queues.reserved(), "released reservation")
    jobs.wait_for_condition("Admitted", "False", "Deactivated")
    queues.wait_for_condition("QuotaReserved", "False")
    queues.deactivate(active=True)
    jobs.wait_until_admitted()
    jobs.wait_for_pods("job-0-1", "job-1-1")
    queues.wait_for_condition("PodsReady", "True", "Started")


def test_a_job_of_a_higher_priority_comes_first_and_both_finish(api, kubelet, jobs, queues):
    queues.make(2, preempts=True)
    queues.make_priority("high", 1000)
    queues.make_priority("low", 1)
    jobs.create(nodes=2, labels={"kueue.x-k8s.io/priority-class": "low"})
    queues.wait_for_condition("PodsReady", "True", "Started")
    jobs.create("urgent", nodes=2, labels={"kueue.x-k8s.io/priority-class": "high"})
    jobs.wait_for_pods("urgent-0-0", "urgent-1-0", job="urgent")
    assert queues.workload("urgent")["spec"]["priority"] == 1000
    assert jobs.condition("Suspended")["status"] == "True" and jobs.live_pods() == []
    for name, attempt in (("urgent", 0), ("job", 1)):
        jobs.wait_for_pods(f"{name}-0-{attempt}", f"{name}-1-{attempt}", job=name)
        for node in range(2):
            kubelet.exit(api.namespace, f"{name}-{node}-{attempt}", Exit(0))
        jobs.wait_for_condition("Complete", name=name)


@pytest.mark.long
def test_a_priority_class_that_does_not_exist_is_named_and_waited_for(api, jobs, queues):
    """Also one to which the label of a job that runs is changed: then the job keeps its priority until the class is there."""
    classes = [f"{name}-{api.namespace}" for name in ("first", "second")]
    label = "kueue.x-k8s.io/priority-class"

    def words(name):
        return f'there is no WorkloadPriorityClass "{name}" (label {label})'

    queues.make(2)
    jobs.create(nodes=2, labels={label: classes[0]})
    condition = jobs.wait_for_words("cannot wait in queue \"team\"", words(classes[0]))
    assert (condition["status"], condition["reason"]) == ("False", "PriorityClassMissing")
    jobs.wait_for_event(lambda event: event[0] == "PriorityClassMissing", "event PriorityClassMissing")
    assert jobs.pods() == {} and queues.workloads() == []
    queues.make_priority(classes[0], 7)
    jobs.wait_for_pods("job-0-0", "job-1-0")
    assert queues.workload()["spec"]["priority"] == 7

    jobs.patch({"metadata": {"labels": {label: classes[1]}}})
    condition = jobs.wait_for_words("Its priority is not changed", words(classes[1]))
    assert (condition["status"], condition["reason"]) == ("True", "Admitted")
    jobs.wait_for_event(lambda event: event[0] == "PriorityClassMissing" and classes[1] in event[1], "the second event")
    queues.make_priority(classes[1], 8)
    wait_until(lambda: queues.workload()["spec"]["priority"] == 8, "the priority of the second class")
    jobs.wait_for(lambda: classes[1] not in jobs.condition("Admitted")["message"], "a message without the class")
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]
    for name in classes:
        api.client.delete(f"{GROUP}/workloadpriorityclasses", None, name)


def test_a_suspended_job_gives_its_place_back_and_queues_anew(jobs, queues):
    queues.make(2)
    jobs.create(nodes=2)
    queues.wait_for_condition("PodsReady", "True", "Started")
    first = queues.workload()["metadata"]["uid"]
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended", "True", "Suspended")
    wait_until(lambda: queues.workload() is None, "end of the Workload")
    jobs.patch({"spec": {"suspend": False}})
    jobs.wait_for_pods("job-0-1", "job-1-1")
    assert queues.workload()["metadata"]["uid"] != first


def test_a_deleted_job_holds_its_reservation_until_its_last_pod_has_ended(api, kubelet, jobs, queues):
    queues.make(1)
    kubelet.behave_by_name(api.namespace, "job-0-0", Behaviour(on_delete=None))
    jobs.create(nodes=1)
    queues.wait_for_condition("PodsReady", "True", "Started")
    jobs.delete()
    jobs.wait_until_gone()
    jobs.create("second", nodes=1)
    wait_until(lambda: "deletionTimestamp" in queues.workload()["metadata"], "deleted Workload")
    wait_until(lambda: "deletionTimestamp" in jobs.pods()["job-0-0"]["metadata"], "deleted pod")
    jobs.wait_for_words("waits in queue", name="second")
    assert queues.reserved() and jobs.pods("second") == {}
    kubelet.exit(api.namespace, "job-0-0", Exit(143))
    wait_until(lambda: queues.workload() is None, "end of the Workload")
    jobs.wait_for_pods("second-0-0", job="second")


def test_a_deleted_job_on_a_dead_node_gives_its_quota_back_and_its_name(api, kubelet, jobs, queues):
    queues.make(1)
    jobs.create(nodes=1)
    queues.wait_for_condition("PodsReady", "True", "Started")
    kubelet.lose_node(jobs.pods()["job-0-0"]["spec"]["nodeName"])
    jobs.delete()
    jobs.wait_until_gone()
    wait_until(lambda: "deletionTimestamp" in jobs.pods()["job-0-0"]["metadata"], "deleted pod")
    api.client.delete("pods", api.namespace, "job-0-0", gracePeriodSeconds=1)
    jobs.create(nodes=1)
    jobs.wait_for_pods("job-0-1")
    assert "job-0-0" in jobs.pods(), "nobody has removed it"


def test_an_edit_while_it_waits_replaces_the_workload(jobs, queues):
    queues.make(1)
    jobs.create(nodes=2)
    jobs.wait_for_words("waits in queue", "insufficient")
    first = queues.workload()["metadata"]["uid"]
    jobs.patch({"spec": {"trainer": {"numNodes": 1, "image": "registry.example/runner:2"}}})
    jobs.wait_for_pods("job-0-0")
    made = queues.workload()
    assert made["metadata"]["uid"] != first and made["spec"]["podSets"][0]["count"] == 1
    assert jobs.pods()["job-0-0"]["spec"]["containers"][0]["image"] == "registry.example/runner:2"


REFUSED = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "UPPER_case", "key": "k"}}}]}


def test_a_job_whose_pods_are_refused_gives_its_reservation_back_and_asks_again_when_it_is_edited(jobs, queues):
    queues.make(2)
    jobs.create(nodes=2, trainer=REFUSED, health={"startupTimeoutSeconds": 5})
    jobs.wait_for(lambda: jobs.status().get("reason") == "InvalidSpec", "InvalidSpec")
    jobs.wait_for(lambda: jobs.status()["phase"] == "Suspended", "the end of its time")
    assert "has given its reservation back" in jobs.status()["message"]
    assert "spec.trainer.env[0].valueFrom.secretKeyRef.name" in jobs.status()["message"]
    wait_until(lambda: queues.workload() is None, "end of the Workload")
    jobs.create("second", nodes=2)
    jobs.wait_for_pods("second-0-0", "second-1-0", job="second")
    jobs.delete("second")
    jobs.patch({"spec": {"trainer": {"env": []}}})
    jobs.wait_for_pods("job-0-0", "job-1-0")


def test_an_edit_of_a_job_whose_pods_are_refused_replaces_the_workload(jobs, queues):
    queues.make(2)
    jobs.create(nodes=2, trainer=REFUSED)
    jobs.wait_for(lambda: jobs.status().get("phase") == "Pending" and jobs.status()["reason"] == "InvalidSpec",
                  "InvalidSpec")
    first = queues.workload()["metadata"]["uid"]
    jobs.patch({"spec": {"trainer": {"env": [], "numNodes": 1, "image": "registry.example/runner:2"}}})
    jobs.wait_for_pods("job-0-0")
    made = queues.workload()
    assert made["metadata"]["uid"] != first and made["spec"]["podSets"][0]["count"] == 1


def test_a_deactivated_job_stays_so_when_it_is_edited_or_suspended_and_resumed(jobs, queues):
    queues.make(1)
    jobs.create(nodes=2)
    jobs.wait_for_words("waits in queue", "insufficient")
    first = queues.workload()["metadata"]["uid"]
    queues.deactivate()
    jobs.wait_for_condition("Admitted", "False", "Deactivated")
    jobs.patch({"spec": {"suspend": True, "trainer": {"numNodes": 1}}})
    jobs.wait_for_condition("Suspended", "True", "Suspended")
    jobs.patch({"spec": {"suspend": False}})
    jobs.wait_for_condition("Admitted", "False", "Deactivated")
    assert queues.workload()["metadata"]["uid"] == first and jobs.pods() == {}
    queues.deactivate(active=True)
    jobs.wait_for_pods("job-0-0")
    assert queues.workload()["metadata"]["uid"] != first


def test_a_time_limit_and_the_parameters_of_a_check_are_in_the_workload(api, jobs, queues):
    queues.make(1)
    parameter = "provreq.kueue.x-k8s.io/ValidUntilSeconds"
    body = train_job(nodes=1, trainer=ONE_CPU)
    body["metadata"] |= {"labels": {QUEUE: "team", "kueue.x-k8s.io/max-exec-time-seconds": "600"},
                         "annotations": {parameter: "0"}}
    api.create(TRAIN_JOBS, body)
    queues.wait_for_condition("PodsReady", "True", "Started")
    made = queues.workload()
    assert made["spec"]["maximumExecutionTimeSeconds"] == 600 and made["metadata"]["annotations"][parameter] == "0"
    queues.deactivate()
    wait_until(lambda: not queues.reserved(), "released reservation")
    assert queues.workload()["status"]["accumulatedPastExecutionTimeSeconds"] >= 0


def test_growth_queues_again_and_shrinking_makes_room(jobs, queues):
    queues.make(3)
    jobs.create(nodes=2, elastic={"minNodes": 1, "maxNodes": 3})
    queues.wait_for_condition("PodsReady", "True", "Started")
    first = queues.workload()["metadata"]["uid"]
    jobs.patch({"spec": {"trainer": {"numNodes": 3}}})
    jobs.wait_for_pods("job-0-1", "job-1-1", "job-2-0")
    assert queues.workload()["metadata"]["uid"] != first
    queues.wait_for_condition("PodsReady", "True", "Started")

    jobs.patch({"spec": {"trainer": {"numNodes": 1}}})
    wait_until(lambda: queues.workload()["status"].get("reclaimablePods") == [{"name": "main", "count": 2}],
               "share that is given back")
    jobs.create("second", nodes=2)
    jobs.wait_for_pods("second-0-0", "second-1-0", job="second")
    jobs.wait_for_pods("job-0-1")


def test_a_queue_that_does_not_exist_is_said_and_waited_for(api, jobs, queues):
    queues.make(1, queue="others")
    jobs.create(nodes=1)
    condition = jobs.wait_for_words("waits in queue \"team\"", "LocalQueue team doesn't exist")
    assert condition["reason"] == "Inadmissible"
    queues.make_local("team")
    jobs.wait_for_pods("job-0-0")


def test_admission_checks_are_waited_for_and_add_to_the_pods(api, jobs, queues):
    check = f"check-{api.namespace}"
    queues.make(1, checks=[check])
    jobs.create(nodes=1)
    jobs.wait_for_words("quota is reserved", check)
    assert jobs.pods() == {}
    queues.pass_check(check, podSetUpdates=[{"name": "main", "labels": {"booked": "yes"}, "tolerations": [
        {"key": "booked", "operator": "Exists", "effect": "NoSchedule"}]}])
    jobs.wait_for_pods("job-0-0")
    pod = jobs.pods()["job-0-0"]
    assert pod["metadata"]["labels"]["booked"] == "yes"
    assert "booked" in [toleration.get("key") for toleration in pod["spec"]["tolerations"]]


def test_pods_of_a_topology_wait_for_the_nodes_that_the_queue_chooses(api, kubelet, jobs, queues):
    """Also a pod that replaces one."""
    queues.make(2, topology="kubernetes.io/hostname")
    jobs.create(nodes=2, scheduling={"topology": "kubernetes.io/hostname"})
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_for_condition("PodsReady")
    nodes = {pod["spec"]["nodeName"] for name, pod in jobs.pods().items() if name != "job-1-0"}
    assert len(nodes) == 1, "the level that all share is the host"
    for name in ("job-0-0", "job-1-1"):
        assert jobs.pods()[name]["spec"]["nodeSelector"]["kubernetes.io/hostname"] in nodes


def test_slices_of_a_job_are_asked_for_with_their_size(jobs, queues):
    """Kueue refuses a Workload with the one and without the other."""
    queues.make(2, topology="kubernetes.io/hostname")
    words = {"kueue.x-k8s.io/podset-slice-required-topology": "kubernetes.io/hostname",
             "kueue.x-k8s.io/podset-slice-size": "1"}
    jobs.create(nodes=2, trainer={"podTemplate": {"metadata": {"annotations": words}}})
    jobs.wait_for_condition("PodsReady")
    request = queues.workload()["spec"]["podSets"][0]["topologyRequest"]
    assert (request["podSetSliceRequiredTopology"], request["podSetSliceSize"]) == ("kubernetes.io/hostname", 1)


def workload_made_before():
    return {"apiVersion": GROUP, "kind": "Workload", "metadata": {"name": "made-before"},
            "spec": {"queueName": "team", "podSets": [{"name": "main", "count": 2, "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "trainer", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}]}}


def test_a_prebuilt_workload_is_adopted(api, jobs, queues):
    queues.make(2)
    jobs.create(nodes=2, labels={"kueue.x-k8s.io/prebuilt-workload-name": "made-before"})
    jobs.wait_for_words("prebuilt", "made-before", "not there")
    workload = workload_made_before()
    workload["spec"] |= {"priority": 1, "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "low"}}
    api.create(WORKLOADS, workload)
    jobs.wait_for_pods("job-0-0", "job-1-0")
    assert [w["metadata"]["name"] for w in queues.workloads()] == ["made-before"]
    assert queues.workload()["metadata"]["name"] == "made-before"
    queues.make_priority("high", 1000)
    jobs.patch({"metadata": {"labels": {"kueue.x-k8s.io/priority-class": "high"}}})
    wait_until(lambda: queues.workload()["spec"].get("priority") == 1000, "the priority that the label names")


def adopts(request):
    return request.method == "PATCH" and request.path.endswith("/workloads/made-before") and "ownerReferences" in request.body


@pytest.mark.parametrize("status, reason, said", [
    (409, "Conflict", None), (422, "Invalid", "cannot take over the prebuilt Workload made-before")])
def test_an_adoption_that_fails_at_first_succeeds_in_the_end(control_plane, api, kubelet, operator, queues, status, reason, said):
    """Nothing wakes the job: a Workload that is not adopted yet is not watched."""
    queues.make(2)
    api.create(WORKLOADS, workload_made_before())
    with FaultProxy(control_plane) as proxy:
        proxy.answer(adopts, status, reason, times=1)
        operator(kubeconfig=proxy.kubeconfig_of_service_account("lockstep-system", "lockstep-operator"))
        jobs = QueuedJobs(api)
        jobs.create(nodes=2, labels={"kueue.x-k8s.io/prebuilt-workload-name": "made-before"})
        if said:
            jobs.wait_for_words(said)
        jobs.wait_for_pods("job-0-0", "job-1-0")
        assert proxy.answered(adopts) == 2


def test_a_prebuilt_workload_of_another_job_is_left_alone(api, jobs, kubelet, queues):
    """A job that names the Workload of another one neither takes its quota away when it is suspended nor finishes it."""
    queues.make(2)
    jobs.create("first", nodes=1)
    jobs.wait_until_admitted("first")
    jobs.wait_for_pods("first-0-0", job="first")
    (of_first,) = queues.workloads()
    jobs.create("second", nodes=1, labels={"kueue.x-k8s.io/prebuilt-workload-name": of_first["metadata"]["name"]})
    jobs.wait_for_words("belongs to TrainJob first", name="second")
    jobs.patch({"spec": {"suspend": True}}, name="second")
    jobs.wait_for_condition("Suspended", "True", "Suspended", name="second")
    jobs.delete("second")
    jobs.wait_until_gone("second")
    (still,) = queues.workloads()
    assert still["metadata"]["uid"] == of_first["metadata"]["uid"] and "deletionTimestamp" not in still["metadata"]
    assert jobs.live_pods("first") == ["first-0-0"]
    kubelet.exit(api.namespace, "first-0-0", Exit(0))
    jobs.wait_for_condition("Complete", name="first")


def test_a_suspended_job_keeps_its_prebuilt_workload_and_gives_the_share_back(api, jobs, queues):
    queues.make(2)
    api.create(WORKLOADS, workload_made_before())
    jobs.create(nodes=2, labels={"kueue.x-k8s.io/prebuilt-workload-name": "made-before"})
    queues.wait_for_condition("PodsReady", "True", "Started")
    first = queues.workload()["metadata"]["uid"]
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended", "True", "Suspended")
    wait_until(lambda: not queues.reserved(), "released reservation")
    assert jobs.live_pods() == [] and queues.workload()["spec"]["active"] is False
    jobs.patch({"spec": {"suspend": False}})
    jobs.wait_for_pods("job-0-1", "job-1-1")
    assert queues.workload()["metadata"]["uid"] == first and queues.workload()["spec"]["active"]


def test_a_dispatched_job_gets_a_workload_and_no_pods(api, jobs, queues):
    queues.make(2)
    jobs.create(nodes=2, managedBy="kueue.x-k8s.io/multikueue")
    queues.wait_for_condition("Admitted")
    jobs.create("beside", nodes=1, queue="nobody")
    jobs.wait_for_words("nobody", name="beside")  # the operator has looked at all there is
    assert jobs.pods() == {} and jobs.status() == {}
    queues.wait_for_condition("PodsReady", "False", "WaitForStart")
    ready = {"type": "PodsReady", "status": "True", "reason": "AllPodsReady", "message": "2 of 2 pods are ready.",
             "lastTransitionTime": now()}
    status = {"nodes": {"active": 2}, "conditions": [ready]}  # as Kueue copies it from the other cluster
    api.client.patch(TRAIN_JOBS, {"status": status}, api.namespace, "job", "status")
    queues.wait_for_condition("PodsReady", "True", "Started")
    queues.deactivate()
    queues.wait_for_condition("Evicted")
    jobs.create("later", nodes=1, queue="nobody")
    jobs.wait_for_words("nobody", name="later")
    assert queues.reserved(), "its pods write a checkpoint in the other cluster"
    api.client.patch(TRAIN_JOBS, {"status": {"nodes": {"active": 0}}}, api.namespace, "job", "status")
    wait_until(lambda: not queues.reserved(), "released reservation")
    jobs.delete()
    wait_until(lambda: queues.workload() is None, "end of the Workload")


def test_kueue_leaves_the_pods_of_a_queued_job_alone(api, jobs, queues):
    """Its pod integration, in a namespace where it manages also what has no queue name, knows them by their owner."""
    api.client.patch("namespaces", {"metadata": {"labels": MANAGED}}, None, api.namespace)
    queues.make(1)
    if queues.is_real:  # it does hold back a pod of nobody
        bare = api.create("pods", {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
        assert {"name": "kueue.x-k8s.io/admission"} in bare["spec"]["schedulingGates"]
        wait_until(queues.workloads, "the bare pod's Workload")
        api.client.patch("pods", {"metadata": {"finalizers": None}}, api.namespace, "bare")
        api.client.delete("pods", api.namespace, "bare", gracePeriodSeconds=0)
        wait_until(lambda: not queues.workloads(), "end of the bare pod's Workload")
    jobs.create(nodes=1)
    jobs.wait_for_pods("job-0-0")
    pod = jobs.pods()["job-0-0"]
    assert not pod["spec"].get("schedulingGates") and not pod["metadata"].get("finalizers")
    assert QUEUE not in pod["metadata"]["labels"] and "kueue.x-k8s.io/managed" not in pod["metadata"]["labels"]
    assert [w["metadata"]["ownerReferences"][0]["kind"] for w in queues.workloads()] == ["TrainJob"]


# --- faults


def test_eviction_while_the_pods_start(api, kubelet, jobs, queues):
    queues.make(2)
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace and pod["metadata"]["name"].endswith("-0"),
                   Behaviour(start="Waiting"))
    jobs.create(nodes=2)
    jobs.wait_for_pods("job-0-0", "job-1-0")
    queues.wait_for_condition("PodsReady", "False", "WaitForStart")
    queues.deactivate()
    wait_until(lambda: not queues.reserved(), "released reservation")
    assert jobs.live_pods() == []
    queues.deactivate(active=True)
    jobs.wait_for_pods("job-0-1", "job-1-1")
    queues.wait_for_condition("PodsReady", "True", "Started")


def test_eviction_while_the_job_recovers(api, kubelet, jobs, queues):
    queues.make(2)
    kubelet.behave_by_name(api.namespace, "job-1-1", Behaviour(start="Waiting"))
    jobs.create(nodes=2)
    queues.wait_for_condition("PodsReady", "True", "Started")
    kubelet.exit(api.namespace, "job-1-0", Exit(139))
    queues.wait_for_condition("PodsReady", "False", "WaitForRecovery")
    jobs.wait_for_pods("job-0-0", "job-1-1")
    assert queues.reserved()
    queues.deactivate()
    wait_until(lambda: not queues.reserved(), "released reservation")
    queues.deactivate(active=True)
    jobs.wait_for_pods("job-0-1", "job-1-2")
    queues.wait_for_condition("PodsReady", "True", "Started")
    assert jobs.status()["restarts"]["pod"] == 1


def test_eviction_while_a_checkpoint_is_written(api, kubelet, jobs, queues):
    """The user has suspended the job, and its pods write their last checkpoint: the eviction changes nothing for them."""
    queues.make(1)
    kubelet.behave_by_name(api.namespace, "job-0-0", Behaviour(on_delete=None))
    jobs.create(nodes=1, checkpoint=CHECKPOINT)
    queues.wait_for_condition("PodsReady", "True", "Started")
    uid = jobs.pods()["job-0-0"]["metadata"]["uid"]
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for(lambda: "deletionTimestamp" in jobs.pods()["job-0-0"]["metadata"], "a pod that is told to stop")
    queues.deactivate()
    queues.wait_for_condition("Evicted")
    assert jobs.pods()["job-0-0"]["metadata"]["uid"] == uid and queues.reserved()
    kubelet.exit(api.namespace, "job-0-0", Exit(143))
    wait_until(lambda: not queues.reserved(), "released reservation")
    jobs.wait_for_condition("Suspended", "True", "Suspended")
    assert queues.workload()["spec"]["active"] is False, "the next one would be active"
    queues.deactivate(active=True)
    wait_until(lambda: queues.workload() is None, "end of the Workload")


@pytest.mark.long
def test_an_api_server_that_is_slow_delays_a_queued_job_and_breaks_nothing(control_plane, api, kubelet, operator, queues):
    queues.make(1)
    with FaultProxy(control_plane) as proxy:
        proxy.delay(lambda request: not request.is_watch and "/leases/" not in request.path, 1.0, times=1_000_000)
        operator(kubeconfig=proxy.kubeconfig_of_service_account("lockstep-system", "lockstep-operator"))
        jobs = QueuedJobs(api)
        jobs.create(nodes=1, checkpoint=CHECKPOINT)
        jobs.wait_for_pods("job-0-0", timeout=120)
        queues.deactivate()
        wait_until(lambda: not queues.reserved(), "released reservation", 120)
        assert jobs.live_pods() == []
        queues.deactivate(active=True)
        jobs.wait_for_pods("job-0-1", timeout=120)
        kubelet.exit(api.namespace, "job-0-1", Exit(0))
        jobs.wait_for_condition("Complete", timeout=120)


def test_writes_to_workloads_that_are_refused_at_first_are_done_in_the_end(control_plane, api, kubelet, operator, queues):
    """429 for the first of each kind of write, and the API server started again while the job waits."""
    queues.make(1)
    with FaultProxy(control_plane) as proxy:
        operator(kubeconfig=proxy.kubeconfig_of_service_account("lockstep-system", "lockstep-operator"))
        jobs = QueuedJobs(api)
        for method in ("POST", "PATCH", "DELETE"):
            proxy.answer(lambda request, method=method: request.method == method and "/workloads" in request.path,
                         429, "TooManyRequests", times=2, retry_after=0)
        jobs.create(nodes=2)
        jobs.wait_for_words("insufficient")
        jobs.patch({"spec": {"trainer": {"numNodes": 1}}})
        jobs.wait_for_pods("job-0-0")
        queues.wait_for_condition("PodsReady", "True", "Started")
        proxy.lose_answer(lambda request: request.method == "PATCH" and request.path.endswith("/status") and
                          "/workloads" in request.path)
        queues.deactivate()
        wait_until(lambda: not queues.reserved(), "released reservation")
        control_plane.stop_component("kube-apiserver")
        control_plane.restart_component("kube-apiserver")
        wait_until(queues.are_served, "list of Workloads")
        queues.deactivate(active=True)
        jobs.wait_for_pods("job-0-1")
        kubelet.exit(api.namespace, "job-0-1", Exit(0))
        jobs.wait_for_condition("Complete")
        queues.wait_for_condition("Finished", "True", "Succeeded")


class QueueRun(ScenarioRun):
    """One with queues of its own; the scenario makes them first."""

    jobs_type = QueuedJobs

    def __init__(self, kueue, api, *more):
        super().__init__(api, *more)
        self.queues = Queues(api, kueue)
        self.workloads_at_once = 0

    def look(self):
        super().look()
        owned = [workload for workload in self.queues.workloads() if workload["metadata"].get("ownerReferences")]
        self.workloads_at_once = max(self.workloads_at_once, len(owned))

    def until_started(self, *pods):
        self.until_ready(*pods)
        self.until(lambda: self.queues.condition("PodsReady").get("reason") == "Started", "Workload that has started")

    def until_suspended(self):
        self.jobs.patch({"spec": {"suspend": True}})
        self.until_condition("Suspended")

    def finish(self, *pods):
        """Its Workload is finished, and the operator has let go of it."""
        for pod in pods:
            self.exit(pod, Exit(0))
        self.until_condition("Complete")
        self.until(self.is_workload_finished, "Workload that is finished and let go of")

    def is_workload_finished(self):
        return self.queues.condition("Finished").get("reason") == "Succeeded" and \
            not self.queues.workload()["metadata"].get("finalizers")

    def result(self):
        assert self.workloads_at_once == 1
        return {**super().result(), "workloads": [summary(workload) for workload in self.queues.workloads()]}

    def clear(self):
        self.queues.let_go()
        self.queues.remove()


def summary(workload):
    """What the operator decides of it, and whether it holds quota."""
    status = workload.get("status", {})
    admitted = [pod_set["count"] for pod_set in status.get("admission", {}).get("podSetAssignments", [])]
    return {"owner": [owner["name"] for owner in workload["metadata"].get("ownerReferences", [])],
            "finalizers": workload["metadata"].get("finalizers", []), "active": workload["spec"].get("active", True),
            "count": [pod_set["count"] for pod_set in workload["spec"]["podSets"]], "admitted": admitted,
            "given back": status.get("reclaimablePods", []),
            "conditions": {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])}}


def queue_evict_and_finish(s):
    s.queues.make(2)
    s.jobs.create(nodes=2)
    s.until_started("job-0-0", "job-1-0")
    s.queues.deactivate()
    s.until(lambda: not s.queues.reserved(), "released reservation")
    s.queues.deactivate(active=True)
    s.until_started("job-0-1", "job-1-1")
    s.finish("job-0-1", "job-1-1")


def queue_suspend_and_delete(s):
    s.queues.make(2)
    s.jobs.create(nodes=1)
    s.until_ready("job-0-0")
    s.until_suspended()
    s.until(lambda: s.queues.workload() is None, "end of the Workload")
    s.jobs.patch({"spec": {"suspend": False}})
    s.until_ready("job-0-1")
    s.jobs.delete()

    def is_all_gone():
        left = s.queues.workload()
        if left is not None:
            meta = left["metadata"]
            raise AssertionError(f"left: {meta['name']}, {meta.get('deletionTimestamp')}, {meta.get('finalizers')}, "
                                 f"{meta.get('ownerReferences')}, {left.get('status')}")
        return s.jobs.is_gone() and not s.jobs.pods()
    s.until(is_all_gone, "end of all")


def queue_grow_and_shrink(s):
    s.queues.make(3)
    s.jobs.create(nodes=2, elastic={"minNodes": 1, "maxNodes": 3})
    s.until_started("job-0-0", "job-1-0")
    first = s.queues.workload()["metadata"]["uid"]
    s.jobs.patch({"spec": {"trainer": {"numNodes": 3}}})
    s.until_started("job-0-1", "job-1-1", "job-2-0")
    assert s.queues.workload()["metadata"]["uid"] != first
    s.jobs.patch({"spec": {"trainer": {"numNodes": 1}}})
    s.until_ready("job-0-1")
    s.until(lambda: s.queues.workload()["status"].get("reclaimablePods") == [{"name": "main", "count": 2}],
            "share that is given back")
    s.finish("job-0-1")


def queue_edit_while_it_waits_and_finish(s):
    """The second Workload takes the first one's place."""
    s.queues.make(1)
    s.jobs.create(nodes=2)
    s.until(lambda: s.queues.condition("QuotaReserved").get("status") == "False", "Workload that waits")
    s.jobs.patch({"spec": {"trainer": {"numNodes": 1}}})
    s.until_started("job-0-0")
    s.finish("job-0-0")


def queue_admit_in_part_and_finish(s):
    s.queues.make(2)
    s.jobs.create(nodes=3, elastic={"minNodes": 2, "maxNodes": 3})
    s.until_started("job-0-0", "job-1-0")
    s.finish("job-0-0", "job-1-0")


def queue_preempt_and_finish(s):
    """By a Workload that is nobody's."""
    s.queues.make(2, preempts=True)
    s.jobs.create(nodes=2)
    s.until_started("job-0-0", "job-1-0")
    urgent = workload_made_before()
    urgent["spec"]["priority"] = 1000
    s.api.create(WORKLOADS, urgent)
    s.until(lambda: s.jobs.pods() == {} and not s.queues.reserved(), "released reservation")
    s.until(lambda: "admission" in s.api.get(WORKLOADS, "made-before").get("status", {}), "admission of the other one")
    s.api.client.delete(WORKLOADS, s.api.namespace, "made-before")
    s.until(lambda: len(s.queues.workloads()) == 1, "end of the other one")
    s.until_started("job-0-1", "job-1-1")
    s.finish("job-0-1", "job-1-1")


def queue_wait_for_a_check_and_finish(s):
    check = f"check-{s.api.namespace}"
    s.queues.make(2, checks=[check])
    s.jobs.create(nodes=2)
    s.until(lambda: s.queues.condition("QuotaReserved").get("status") == "True", "reserved quota")
    s.queues.pass_check(check, podSetUpdates=[{"name": "main", "labels": {"booked": "yes"}}])
    s.until_started("job-0-0", "job-1-0")
    assert {pod["metadata"]["labels"]["booked"] for pod in s.jobs.pods().values()} == {"yes"}
    s.finish("job-0-0", "job-1-0")


def queue_evict_a_gang_and_finish(s):
    """In a queue and in a gang: one after the other. Another reservation is another PodGroup."""
    s.queues.make(2)
    s.jobs.create(nodes=2, scheduling={"gang": "Coscheduling"}, trainer=OWN_SCHEDULER)
    s.until_started("job-0-0", "job-1-0")
    s.queues.deactivate()
    s.until(lambda: not s.queues.reserved() and s.api.list(POD_GROUPS) == [], "released reservation, and no group")
    s.queues.deactivate(active=True)
    s.until_started("job-0-1", "job-1-1")
    s.until_condition("GangScheduled")
    s.finish("job-0-1", "job-1-1")


def queue_adopt_suspend_and_finish(s):
    s.queues.make(2)
    s.api.create(WORKLOADS, workload_made_before())
    s.jobs.create(nodes=2, labels={"kueue.x-k8s.io/prebuilt-workload-name": "made-before"})
    s.until_started("job-0-0", "job-1-0")
    s.until_suspended()
    s.until(lambda: not s.queues.reserved() and not s.queues.workload()["spec"].get("active", True),
            "released reservation")
    s.jobs.patch({"spec": {"suspend": False}})
    s.until_started("job-0-1", "job-1-1")
    s.finish("job-0-1", "job-1-1")


def queue_dispatch_and_finish(s):
    """Kueue would run it in another cluster, and copy its status: the test does."""
    s.queues.make(2)
    s.jobs.create(nodes=2, managedBy="kueue.x-k8s.io/multikueue")
    s.until(lambda: s.queues.condition("Admitted").get("status") == "True", "admitted Workload")
    s.jobs.patch({"spec": {"suspend": True}})
    s.until(lambda: s.queues.workload() is None, "end of the Workload")
    s.jobs.patch({"spec": {"suspend": False}})
    # The last write before the end: whether it comes before it must not depend on when the operator dies.
    s.until(lambda: s.queues.condition("PodsReady").get("reason") == "WaitForStart", "Workload that waits for its pods")
    complete = {"type": "Complete", "status": "True", "reason": "AllDone", "message": "All nodes are done.",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}
    s.api.client.patch(TRAIN_JOBS, {"status": {"phase": "Complete", "message": complete["message"],
                                               "conditions": [complete]}}, s.api.namespace, "job", "status")
    s.until(s.is_workload_finished, "Workload that is finished and let go of")
    assert s.made == []


@pytest.mark.parametrize("scenario", [
    queue_evict_and_finish, queue_adopt_suspend_and_finish,
    *(pytest.param(one, marks=pytest.mark.long) for one in (
        queue_suspend_and_delete, queue_grow_and_shrink, queue_edit_while_it_waits_and_finish, queue_admit_in_part_and_finish,
        queue_wait_for_a_check_and_finish, queue_preempt_and_finish, queue_dispatch_and_finish))],
    ids=lambda s: s.__name__)
def test_the_end_is_the_same_wherever_the_operator_died(scenario, kueue, try_each_death):
    try_each_death(scenario, functools.partial(QueueRun, kueue))


def test_the_end_of_a_queued_gang_is_the_same_wherever_the_operator_died(kueue, crds, try_each_death):
    crds.install(COSCHEDULING)
    try_each_death(queue_evict_a_gang_and_finish, functools.partial(QueueRun, kueue))
