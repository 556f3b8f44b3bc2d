"""Bad input, as people and clusters produce it: refused or waited for, said with its place and what to do, and never
answered by taking or deleting what is somebody else's."""
import contextlib
import dataclasses
import datetime
import re
import socket

import pytest

from control_plane import TOKEN_KEY_LINE
from fake_kubelet import Behaviour, Exit
from train_jobs import TRAIN_JOBS, ApiError, Jobs, environment_of
from waiting import wait_until

SLOW_TO_END = Behaviour(on_delete=None)
LONG_GRACE = {"spec": {"terminationGracePeriodSeconds": 600}}
TEMPLATE = "spec.trainer.podTemplate"


# --- what the API server refuses before the operator hears of it (mistakes in a file: test_bad_jobs)

@pytest.mark.parametrize("patch, field", [
    ({"trainer": {"image": "another"}}, "spec.trainer.image"),
    ({"trainer": {"args": ["run", "gpt2rec"]}}, "spec.trainer.args"),
    ({"trainer": {"launcher": "None"}}, "spec.trainer.launcher"),
    ({"trainer": {"numNodes": 3}}, "spec.trainer.numNodes"),
    ({"successPolicy": "Node0"}, "spec.successPolicy"),
    ({"managedBy": "example.com/other"}, "spec.managedBy"),
])
def test_what_a_run_is_does_not_change_while_it_runs(api, jobs, patch, field):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    with pytest.raises(ApiError) as refused:
        jobs.patch({"spec": patch})
    assert refused.value.status == 422
    assert field in refused.value.message
    assert re.search(r"make a new TrainJob|suspend (the job|it)", refused.value.message)
    assert jobs.live_pods() == ["job-0-0", "job-1-0"] and jobs.get()["metadata"]["generation"] == 1


# --- templates


def test_the_grace_period_follows_the_time_for_the_last_checkpoint(api, jobs, kubelet):
    checkpoint = {"volume": {"emptyDir": {}}, "onSuspendTimeoutSeconds": 30}
    jobs.create(nodes=2, trainer={"podTemplate": {"spec": {"terminationGracePeriodSeconds": 60}}}, checkpoint=checkpoint)
    jobs.wait_for_condition("PodsReady")
    survivor = jobs.pods()["job-0-0"]["metadata"]["uid"]
    jobs.patch({"spec": {"checkpoint": {"onSuspendTimeoutSeconds": 100}}})
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    pods = jobs.pods()
    assert pods["job-0-0"]["metadata"]["uid"] == survivor
    assert [pods[name]["spec"]["terminationGracePeriodSeconds"] for name in ("job-0-0", "job-1-1")] == [60, 130]


def test_a_template_that_is_changed_for_one_that_makes_no_pod_waits_and_heals(jobs):
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    broken = {"spec": {"tolerations": [{"key": "a", "operator": "Sometimes"}]}}
    jobs.patch({"spec": {"suspend": False, "trainer": {"podTemplate": broken}}})
    said = jobs.wait_for_condition("PodsReady", "False", "InvalidSpec")
    assert f"{TEMPLATE}.spec.tolerations[0].operator" in said["message"]
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    jobs.patch({"spec": {"suspend": False, "trainer": {"podTemplate": None}}})
    jobs.wait_for_condition("PodsReady")


def test_what_a_template_may_say_reaches_the_pods(jobs):
    template = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
                "spec": {"containers": [{"name": "trainer", "env": [{"name": "MINE", "value": "1"}]},
                                        {"name": "sidecar", "image": "registry.example/sidecar:1"}],
                         "tolerations": [{"key": "gpu", "operator": "Exists"}], "serviceAccountName": "default"}}
    jobs.create(nodes=1, trainer={"podTemplate": template})
    jobs.wait_for_condition("PodsReady")
    (pod,) = jobs.pods().values()
    assert pod["metadata"]["labels"]["team"] == "a" and pod["metadata"]["annotations"]["note"] == "b"
    assert [container["name"] for container in pod["spec"]["containers"]] == ["trainer", "sidecar"]
    assert environment_of(pod)["MINE"] == "1"
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]


# --- what is missing, or forbidden for now


def claim(name):
    return {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
                                                 "resources": {"requests": {"storage": "1Gi"}}}}


def volume(name, namespace, claim_name):
    return {"metadata": {"name": name}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"},
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": namespace, "name": claim_name}}}


def test_a_missing_claim_is_named_and_its_job_begins_once_it_is_there(api, jobs, control_plane):
    checkpoint = {"volume": {"persistentVolumeClaim": {"claimName": "nowhere"}}}
    jobs.create(nodes=2, checkpoint=checkpoint)
    said = jobs.wait_for_condition("PodsReady", "False", "ClaimMissing")
    assert '"nowhere"' in said["message"] and api.namespace in said["message"] and "create it" in said["message"]
    assert jobs.pods() == {}
    name = f"volume-{control_plane.number()}"
    control_plane.api.create("persistentvolumes", volume(name, api.namespace, "nowhere"))
    try:
        api.create("persistentvolumeclaims", claim("nowhere"))
        jobs.wait_for_condition("PodsReady", timeout=90)
    finally:
        control_plane.kubectl("delete", "pv", name, "--wait=false")
        control_plane.api.patch("persistentvolumes", {"metadata": {"finalizers": None}}, name=name)


@pytest.fixture
def no_pods_here(api):
    """A real admission policy that takes no pods in the test's namespace; calling it takes the policy away."""
    cluster = api.control_plane.api
    kinds = [f"admissionregistration.k8s.io/v1/{kind}" for kind in ("validatingadmissionpolicies",
                                                                    "validatingadmissionpolicybindings")]
    name = f"no-pods-in-{api.namespace}"
    cluster.create(kinds[0], {"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                                                "resources": ["pods"]}]},
        "matchConditions": [{"name": "here", "expression": f"request.namespace == '{api.namespace}'"}],
        "validations": [{"expression": "false", "message": "no pods before Monday"}]}})
    cluster.create(kinds[1], {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}})
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    def is_in_force():
        try:
            api.create("pods", pod)
        except ApiError as error:
            return "no pods before Monday" in error.message
        api.client.delete("pods", api.namespace, "probe", gracePeriodSeconds=0)
        return False
    wait_until(is_in_force, "policy in force")
    left = list(reversed(kinds))

    def remove():
        while left:
            cluster.delete(left.pop(0), name=name)
    yield remove
    remove()


def test_what_an_admission_policy_refuses_waits_in_its_words_until_it_does_not(api, no_pods_here, jobs):
    jobs.create(nodes=2)
    said = jobs.wait_for_condition("PodsReady", "False", "InvalidSpec")
    assert "an admission of this cluster refuses a pod" in said["message"] and "no pods before Monday" in said["message"]
    assert jobs.condition("Failed").get("status") != "True"
    no_pods_here()
    jobs.wait_for_condition("PodsReady", timeout=120)


def test_a_quota_is_said_in_the_servers_words_and_the_job_goes_on_once_it_is_raised(api, jobs, history):
    api.create("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    wait_until(lambda: api.get("resourcequotas", "few").get("status", {}).get("hard"), "quota in force")
    jobs.create(nodes=3)
    said = jobs.wait_for_condition("PodsReady", "False", "QuotaExceeded")
    assert "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1" in said["message"]
    assert len(jobs.live_pods()) == 1
    api.client.patch("resourcequotas", {"spec": {"hard": {"pods": "5"}}}, api.namespace, "few")
    jobs.wait_for_condition("PodsReady", timeout=90)
    assert history.names() == ["job-0-0", "job-1-0", "job-2-0"]
    assert jobs.status()["restarts"]["total"] == 0 and not jobs.status().get("recentFailures")


def test_a_missing_priority_class_is_named_and_its_job_begins_once_it_is_there(api, control_plane, jobs, history):
    classes = "scheduling.k8s.io/v1/priorityclasses"
    jobs.create(nodes=2, scheduling={"priorityClassName": "later"})
    said = jobs.wait_for_condition("PodsReady", "False", "PriorityClassMissing")
    words = 'there is no PriorityClass "later" (spec.scheduling.priorityClassName); create it, or name another one'
    assert words in said["message"] and jobs.pods() == {}
    jobs.wait_for_event(lambda event: event[0] == "PriorityClassMissing" and words in event[1], "event PriorityClassMissing")
    control_plane.api.create(classes, {"metadata": {"name": "later"}, "value": 7})
    try:
        jobs.wait_for_condition("PodsReady")
        assert [pod["spec"]["priority"] for pod in jobs.pods().values()] == [7, 7]
        assert history.names() == ["job-0-0", "job-1-0"]
    finally:
        control_plane.api.delete(classes, name="later")


@pytest.mark.long
def test_a_quota_with_room_for_some_pods_is_not_asked_for_all_the_others(api, jobs, process, history):
    api.create("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "6"}}})
    wait_until(lambda: api.get("resourcequotas", "few").get("status", {}).get("hard"), "quota in force")
    jobs.create(nodes=60)
    jobs.wait_for_condition("PodsReady", "False", "QuotaExceeded")
    jobs.wait_for(lambda: jobs.status()["nodes"]["ready"] == 6, "six pods")
    refused = refusals(process)
    assert 1 <= refused <= 8  # of the batch of eight that ran into it
    wait_until(lambda: refusals(process) > refused, "the next try", 30)
    wait_until(lambda: refusals(process) > refused + 1, "and the one after", 40)
    assert refusals(process) == refused + 2
    api.client.patch("resourcequotas", {"spec": {"hard": {"pods": "60"}}}, api.namespace, "few")
    jobs.wait_for_condition("PodsReady", timeout=120)
    assert len(history.names()) == 60 and jobs.status()["restarts"]["total"] == 0


def test_a_job_that_a_queue_holds_back_outlives_its_startup_timeout_and_starts_when_it_may(api, jobs, history):
    gates = {"podTemplate": {"spec": {"schedulingGates": [{"name": "example.com/queue"}]}}}
    # Long enough for a busy machine to show the operator its own pods: until then it cannot know that they are gated.
    jobs.create(nodes=2, trainer=gates, health={"startupTimeoutSeconds": 10})
    held = jobs.wait_for_condition("PodsReady", "False", "SchedulingGated")
    assert "example.com/queue" in held["message"]
    # When the ten seconds are over, the operator is made to look again.
    made = datetime.datetime.fromisoformat(api.get("pods", "job-0-0")["metadata"]["creationTimestamp"][:-1] + "+00:00")
    wait_until(lambda: datetime.datetime.now(datetime.timezone.utc) - made > datetime.timedelta(seconds=12), "12 s")
    generation = jobs.patch({"spec": {"health": {"startupTimeoutSeconds": 9}}})["metadata"]["generation"]
    jobs.wait_for(lambda: jobs.status()["observedGeneration"] == generation, "a look at the change")
    assert jobs.condition("Failed")["status"] == "False"
    jobs.patch({"spec": {"health": {"startupTimeoutSeconds": 300}}})
    for pod in ("job-0-0", "job-1-0"):
        api.client.patch("pods", {"spec": {"schedulingGates": None}}, api.namespace, pod)
    jobs.wait_for_condition("PodsReady")
    assert history.names() == ["job-0-0", "job-1-0"]


# --- deleted while it works


def errors(process):
    return [record for record in process.records() if record["level"] == "error"]


def test_a_job_that_is_deleted_while_its_pods_start(api, jobs, kubelet, process, history):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace, Behaviour(start="Waiting"))
    jobs.create(nodes=3)
    jobs.wait_for(lambda: len(jobs.live_pods()) == 3, "three pods")
    jobs.delete()
    jobs.wait_until_gone(timeout=120)
    wait_until(lambda: jobs.pods() == {}, "end of the pods", 120)
    wait_until(lambda: not api.control_plane.exists("services", api.namespace, "job"), "end of the service", 120)
    assert history.names() == ["job-0-0", "job-1-0", "job-2-0"]
    assert errors(process) == []


def test_a_job_that_is_deleted_at_once_leaves_nothing(api, jobs, process):
    for number in range(10):
        jobs.create(f"job-{number}", nodes=2)
        jobs.delete(f"job-{number}")
    jobs.create("last", nodes=1)
    jobs.wait_for_condition("PodsReady", name="last")
    wait_until(lambda: [pod["metadata"]["name"] for pod in api.list("pods")] == ["last-0-0"], "end of all other pods")
    wait_until(lambda: {one["metadata"]["name"] for one in api.list("services")} == {"last"}, "end of other services")
    assert errors(process) == []


@pytest.fixture
def doomed(api):
    """As `api`, of a namespace that the test itself deletes. The jobs of earlier tests are gone: an operator of all
    namespaces would be refused in theirs, too."""
    plane = api.control_plane
    wait_until(lambda: plane.api.list(TRAIN_JOBS) == [], "end of the jobs of earlier tests")
    return dataclasses.replace(api, namespace=plane.make_namespace(f"doomed-{plane.number()}"))


def refusals(process):
    """Requests that were answered 403."""
    return sum(v for name, v in process.metrics().items() if name.startswith("rest_client_requests_total") and
               'code="403"' in name)


def test_a_namespace_that_is_being_deleted_is_left_in_peace(doomed, kubelet, operator):
    process = operator(namespace=None)  # of all namespaces
    jobs = Jobs(doomed)
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == doomed.namespace, SLOW_TO_END)
    jobs.create(nodes=2, trainer={"podTemplate": LONG_GRACE})
    jobs.wait_for_condition("PodsReady")
    doomed.client.delete("namespaces", name=doomed.namespace)
    wait_until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in jobs.pods().values()), "deletion")
    kubelet.exit(doomed.namespace, "job-1-0", Exit(1))  # would be replaced elsewhere
    wait_until(lambda: sorted(jobs.pods()) == ["job-0-0"], "end of one pod")
    kubelet.exit(doomed.namespace, "job-0-0", Exit(143))
    wait_until(lambda: jobs.pods() == {}, "end of the pods")
    # The namespace controller would come back after half of the longest grace period, or when the namespace changes.
    with contextlib.suppress(ApiError):  # it may be gone by now
        doomed.client.patch("namespaces", {"metadata": {"annotations": {"touched": "yes"}}}, name=doomed.namespace)
    wait_until(lambda: not doomed.control_plane.exists("namespaces", None, doomed.namespace), "end of the namespace")
    assert errors(process) == [] and refusals(process) <= 10  # pods, and events about them
    process.wait_until_ready()


def test_a_job_in_a_namespace_where_nothing_can_be_made_any_more_makes_no_noise(api, doomed, kubelet, operator):
    plane = api.control_plane
    process = operator(namespace=None)
    jobs = Jobs(doomed)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    plane.stop_component("kube-controller-manager")  # it would empty the namespace
    try:
        plane.api.delete("namespaces", name=doomed.namespace)
        kubelet.exit(doomed.namespace, "job-1-0", Exit(1))
        wait_until(lambda: refusals(process) > 0 or jobs.status()["nodes"]["failed"] == 1, "notice of the failure")
        witness = Jobs(api)  # is served, while the other one is left alone
        witness.create("witness", nodes=1)
        witness.wait_for_condition("PodsReady", name="witness")
        assert jobs.live_pods() == ["job-0-0"]
    finally:
        plane.restart_component("kube-controller-manager")
    wait_until(lambda: not plane.exists("namespaces", None, doomed.namespace), "end of the namespace")
    assert errors(process) == [] and refusals(process) <= 10


# --- what somebody else made with our names


def strangers_pod():
    return {"metadata": {"name": "job-1-0", "labels": {"lockstep.dev/job": "job", "app": "theirs"}},
            "spec": {"containers": [{"name": "main", "image": "registry.example/theirs:1"}]}}


def as_it_was(found):
    metadata = found["metadata"]
    return metadata["uid"], metadata.get("ownerReferences"), metadata["labels"], found["spec"]


def test_a_pod_of_somebody_else_with_our_name_is_left_alone(api, jobs, kubelet):
    api.create("pods", strangers_pod())
    theirs = as_it_was(kubelet.wait_for(api.namespace, "job-1-0", lambda p: p["status"].get("podIP"), "running"))
    jobs.create(nodes=2)
    said = jobs.wait_for_condition("PodsReady", "False", "NameTaken")
    assert "pod job-1-0" in said["message"] and "delete" in said["message"].lower()
    jobs.wait_for_event(lambda event: event[0] == "NameTaken", "event NameTaken")
    jobs.delete()
    jobs.wait_until_gone()
    wait_until(lambda: sorted(jobs.pods()) == ["job-1-0"], "end of our pod")
    assert as_it_was(api.get("pods", "job-1-0")) == theirs


def test_the_job_begins_when_the_pod_with_its_name_is_gone(api, jobs, kubelet):
    api.create("pods", strangers_pod())
    kubelet.wait_for(api.namespace, "job-1-0", lambda p: p["status"].get("podIP"), "running")
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady", "False", "NameTaken")
    api.client.delete("pods", api.namespace, "job-1-0")
    jobs.wait_for_condition("PodsReady", timeout=90)
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]
    assert jobs.status()["restarts"]["total"] == 0


def test_a_service_of_somebody_else_with_our_name_is_left_alone(api, jobs):
    api.create("services", {"metadata": {"name": "job", "labels": {"app": "theirs"}},
                            "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}})
    theirs = as_it_was(api.get("services", "job"))
    jobs.create(nodes=2)
    said = jobs.wait_for_condition("PodsReady", "False", "NameTaken")
    assert "Service job" in said["message"] and "delete" in said["message"].lower()
    # Node 0 was sent beside the Service. The others wait: without it they would not find it.
    assert list(jobs.pods()) == ["job-0-0"]
    assert as_it_was(api.get("services", "job")) == theirs
    api.client.delete("services", api.namespace, "job")
    jobs.wait_for_condition("PodsReady", timeout=90)
    assert api.get("services", "job")["spec"]["clusterIP"] == "None"


def test_a_network_policy_of_somebody_else_with_our_name_is_left_alone(api, jobs):
    policies = "networking.k8s.io/v1/networkpolicies"
    api.create(policies, {"metadata": {"name": "job", "labels": {"app": "theirs"}}, "spec": {"podSelector": {}}})
    theirs = as_it_was(api.get(policies, "job"))
    jobs.create(nodes=2, networkPolicy="IntraJob")
    said = jobs.wait_for_condition("PodsReady", "False", "NameTaken")
    assert "NetworkPolicy job" in said["message"]
    assert jobs.pods() == {}  # they would run without what was asked for
    assert as_it_was(api.get(policies, "job")) == theirs


def test_a_service_that_somebody_deletes_is_made_again(api, jobs):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    before = api.get("services", "job")["metadata"]["uid"]
    api.client.delete("services", api.namespace, "job")
    wait_until(lambda: api.control_plane.exists("services", api.namespace, "job"), "another Service")
    assert api.get("services", "job")["metadata"]["uid"] != before
    assert sorted(jobs.pods()) == ["job-0-0", "job-1-0"]


def test_a_service_that_somebody_changes_is_put_right(api, jobs):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    selector = api.get("services", "job")["spec"]["selector"]
    api.client.patch("services", {"spec": {"selector": {"app": "theirs"}}}, api.namespace, "job")
    wait_until(lambda: api.get("services", "job")["spec"]["selector"] == selector, "the right selector")


def test_a_network_policy_that_somebody_changes_is_put_right_and_then_left_alone(api, jobs):
    policies = "networking.k8s.io/v1/networkpolicies"
    jobs.create(nodes=2, networkPolicy="IntraJob")
    jobs.wait_for_condition("PodsReady")
    made = api.get(policies, "job")
    assert made["metadata"]["generation"] == 1  # it is what it should be, as the API server stores it
    labels = {"podSelector": {"matchLabels": {"app": "theirs"}}}
    api.client.patch(policies, {"spec": {"ingress": [{}], **labels}}, api.namespace, "job")
    wait_until(lambda: api.get(policies, "job")["spec"] == made["spec"], "the right policy",
               on_timeout=lambda: repr(api.get(policies, "job")))
    assert api.get(policies, "job")["metadata"]["generation"] == 3


# --- the operator's own configuration


def ends(operator, **flags):
    """(exit code, what it said) of an operator that cannot work."""
    process = operator(wait=False, **flags)
    return process.wait(), process.log()


def test_a_missing_token_key_ends_it_with_the_line_that_makes_one(operator, tmp_path):
    code, said = ends(operator, token_key_file=tmp_path / "nothing", operator_namespace="lockstep-system")
    assert code == 2
    assert str(tmp_path / "nothing") in said and TOKEN_KEY_LINE in said


def test_a_token_key_that_is_too_short_ends_it(operator):
    code, said = ends(operator, token_key=b"short", operator_namespace="lockstep-system")
    assert code == 2
    assert "holds 5 bytes, expected 32" in said and TOKEN_KEY_LINE in said


def test_a_port_that_is_taken_is_named(operator):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = ends(operator, metrics_port=port)
    assert code not in (0, -6, -11)
    assert str(port) in said and "in use" in said.lower()


@pytest.mark.parametrize("text, says", [
    ("apiVersion: v1\nkind: Config\nclusters: {", ":3:1: not YAML"),
    ("apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n", "nowhere"),
    ("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n"
     "clusters: [{name: b, cluster: {server: 'https://127.0.0.1:1'}}]\n"
     "users: [{name: c, user: {exec: {command: aws, apiVersion: client.authentication.k8s.io/v1}}}]\n", "exec"),
])
def test_a_kubeconfig_that_cannot_be_used_ends_it_with_the_files_name(operator, tmp_path, text, says):
    path = tmp_path / "kubeconfig"
    path.write_text(text, encoding="utf-8")
    code, said = ends(operator, kubeconfig=path)
    assert code == 2
    assert str(path) in said and says in said


def test_a_kubeconfig_that_is_not_there_is_named(operator, tmp_path):
    code, said = ends(operator, kubeconfig=tmp_path / "nothing")
    assert code == 2 and str(tmp_path / "nothing") in said


def test_an_unknown_flag_ends_it_with_the_way_to_help(operator):
    code, said = ends(operator, no_such_flag=1)
    assert code == 2
    assert "--no_such_flag" in said and "--help" in said


def test_a_server_that_is_not_signed_by_the_ca_is_said(api, operator, tmp_path):
    plane = api.control_plane
    text = plane.kubeconfig.read_text(encoding="utf-8")
    stranger = plane.certificates.admin[0]  # a certificate, and no CA of this server
    path = tmp_path / "kubeconfig"
    path.write_text(text.replace(str(plane.certificates.ca), str(stranger)), encoding="utf-8")
    process = operator(wait=False, kubeconfig=path)
    wait_until(lambda: re.search("certificate", process.log(), re.I), "word on the certificate", on_timeout=process.log)
    assert not process.answers("readyz")
