"""A hundred TrainJobs with a mistake (bad_jobs): each is named in the fields that its author wrote, and none fails for
what the API server, an admission or a kubelet refuses."""
import json

import pytest

from bad_jobs import ENDS, LIMITED, LIMITS, REFUSED, RESTRICTED, TEMPLATE, TEMPLATES, WAITS, WRONG_PODS
from fake_kubelet import Behaviour
from train_jobs import TRAIN_JOBS, ApiError, train_job
from waiting import wait_until


def named(body, name):
    return {**body, "metadata": {**body["metadata"], "name": name}}


class Crowd:
    """Many TrainJobs at a time, by their names: one list of them is one request."""

    def __init__(self, api, bodies):
        self.api = api
        self.names = [f"job-{number}" for number in range(len(bodies))]
        for name, body in zip(self.names, bodies):
            api.create(TRAIN_JOBS, named(body, name))

    def statuses(self):
        found = {job["metadata"]["name"]: job.get("status", {}) for job in self.api.list(TRAIN_JOBS)}
        return [found.get(name, {}) for name in self.names]

    def wait_until_all(self, holds, what, timeout=180):
        def missing():
            return [(name, status.get("phase"), status.get("reason"), status.get("message"))
                    for name, status in zip(self.names, self.statuses()) if not holds(status)]
        wait_until(lambda: not missing(), what, timeout, lambda: repr(missing()))
        return self.statuses()


def is_refused(status):
    return status.get("phase") == "Pending" and status.get("reason") == "InvalidSpec"


def wrong(cases, statuses):
    """Those whose message lacks what it should say."""
    return [(says, status["message"]) for (_, *says), status in zip(cases, statuses)
            if any(words not in status["message"] for words in says)]


def test_there_are_a_hundred():
    assert sum(map(len, (REFUSED, TEMPLATES, WRONG_PODS, LIMITED, RESTRICTED, WAITS, ENDS))) >= 100


def test_what_is_wrong_is_refused_with_its_place_when_it_is_applied(api):
    answers = [(field, says, api.kubectl("create", "-f", "-", stdin=json.dumps(body), check=False).stderr)
               for body, field, says in REFUSED]
    assert [answer for answer in answers if answer[0] not in answer[2] or answer[1] not in answer[2]] == []
    assert api.list(TRAIN_JOBS) == []


def test_pods_that_are_refused_hold_their_job_back_and_name_the_field(api, process):
    cases = [(train_job(trainer={"podTemplate": template}), f"{TEMPLATE}.{path}", says)
             for template, path, says in TEMPLATES] + WRONG_PODS
    crowd = Crowd(api, [body for body, *_ in cases])
    statuses = crowd.wait_until_all(is_refused, "InvalidSpec of all")
    assert not wrong(cases, statuses)
    assert api.list("pods") == []
    assert [status["nodes"]["active"] for status in statuses] == [0] * len(cases)


def test_what_a_limit_range_refuses_names_it(api, process):
    api.create("limitranges", LIMITS)
    wait_until(lambda: limits_a_pod(api), "LimitRange in force")
    crowd = Crowd(api, [body for body, *_ in LIMITED])
    assert not wrong(LIMITED, crowd.wait_until_all(is_refused, "InvalidSpec of all"))


def limits_a_pod(api):
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    made = api.client.create("pods", pod, api.namespace)
    api.client.delete("pods", api.namespace, "probe", gracePeriodSeconds=0)
    return "resources" in made["spec"]["containers"][0] and made["spec"]["containers"][0]["resources"].get("limits")


def test_what_pod_security_refuses_is_said_in_its_words(api, process):
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.client.patch("namespaces", labels, name=api.namespace)
    crowd = Crowd(api, [body for body, *_ in RESTRICTED])
    assert not wrong(RESTRICTED, crowd.wait_until_all(is_refused, "InvalidSpec of all"))


def test_what_a_kubelet_cannot_start_waits_in_its_words(api, kubelet, process):
    for number, wait in enumerate(WAITS):
        kubelet.behave_by_name(api.namespace, f"job-{number}-0-0", wait.behaviour)
    crowd = Crowd(api, [train_job(nodes=1)] * len(WAITS))
    statuses = crowd.wait_until_all(lambda status: status.get("reason") in [wait.reason for wait in WAITS],
                                    "the kubelet's words of all")
    for wait, status in zip(WAITS, statuses):
        assert status["phase"] == "Starting" and status["reason"] == wait.reason
        assert wait.message in status["message"] and "container trainer" in status["message"]


def test_what_the_program_refuses_before_its_first_step_fails_and_says_what_to_do(api, kubelet, process):
    for number, end in enumerate(ENDS):
        kubelet.behave_by_name(api.namespace, f"job-{number}-0-0", Behaviour(exits=end))
    crowd = Crowd(api, [train_job(nodes=1)] * len(ENDS))
    statuses = crowd.wait_until_all(lambda status: status.get("phase") == "Failed", "the end of all")
    for end, status in zip(ENDS, statuses):
        assert f"ended with {end.code}" in status["message"]
        assert "delete the job, and apply its file again" in status["message"]


# --- mending them


TYPO = {"podTemplate": {"spec": {"containers": [{"name": "side"}]}}}
MENDED = {"podTemplate": {"spec": {"containers": [{"name": "side", "image": "busybox"}]}}}


def test_the_spec_of_a_job_whose_pods_are_refused_is_mended_in_place(api, jobs, history):
    jobs.create(nodes=2, trainer=TYPO)
    jobs.wait_for(lambda: is_refused(jobs.status()), "InvalidSpec")
    jobs.patch({"spec": {"trainer": {**MENDED, "image": "registry.example/runner:2"}}})
    jobs.wait_for_condition("PodsReady")
    assert {pod["metadata"]["annotations"]["lockstep.dev/generation"] for pod in jobs.pods().values()} == {"2"}
    assert history.names() == ["job-0-0", "job-1-0"] and jobs.status()["restarts"]["total"] == 0
    with pytest.raises(ApiError) as refused:  # it has pods now
        jobs.patch({"spec": {"trainer": {"image": "registry.example/runner:3"}}})
    assert "changes only while the job is suspended" in refused.value.message


def test_a_limit_range_that_is_mended_lets_the_job_begin(api, jobs):
    api.create("limitranges", LIMITS)
    wait_until(lambda: limits_a_pod(api), "LimitRange in force")
    body = {"requests": {"cpu": "0.7"}}
    jobs.create(nodes=1, trainer={"resourcesPerNode": body}, health={"startupTimeoutSeconds": 5})
    jobs.wait_for(lambda: is_refused(jobs.status()), "InvalidSpec")
    # The next tries come 10 and 30 s after the first: startupTimeoutSeconds is over by then.
    wait_until(lambda: len([e for e in jobs.events() if e[0] == "InvalidSpec"]) == 1, "one event")
    api.client.delete("limitranges", api.namespace, "limits")
    jobs.wait_for_condition("PodsReady", timeout=120)
    assert [event[0] for event in jobs.events()].count("InvalidSpec") == 1


def test_a_job_that_has_ended_says_that_it_is_to_be_deleted(api, kubelet, jobs):
    kubelet.behave_by_name(api.namespace, "job-0-0", Behaviour(exits=ENDS[0]))
    jobs.create(nodes=1)
    jobs.wait_for_condition("Failed")
    for patch in ({"trainer": {"args": ["run", "gpt2rec"]}}, {"trainer": MENDED}, {"trainer": {"numNodes": 2}}):
        with pytest.raises(ApiError) as refused:
            jobs.patch({"spec": patch})
        assert "the job has ended; delete it, and apply the file again" in refused.value.message
        assert "suspend" not in refused.value.message
    jobs.patch({"spec": {"ttlSecondsAfterFinished": 3600}})


SHM = "site-shm"


@pytest.fixture
def site_that_mounts_shared_memory(api):
    """An admission policy that mounts /dev/shm in all pods of the test's namespace."""
    cluster = api.control_plane.api
    kinds = [f"admissionregistration.k8s.io/v1/{kind}" for kind in ("mutatingadmissionpolicies",
                                                                    "mutatingadmissionpolicybindings")]
    name = f"shm-in-{api.namespace}"
    volume = f'Object.spec.volumes{{name: "{SHM}", emptyDir: Object.spec.volumes.emptyDir{{medium: "Memory"}}}}'
    mount = f'Object.spec.containers.volumeMounts{{name: "{SHM}", mountPath: "/dev/shm"}}'
    patches = ('(has(object.spec.volumes) ? [] : [JSONPatch{op: "add", path: "/spec/volumes", value: []}]) + '
               '(has(object.spec.containers[0].volumeMounts) ? [] : '
               '[JSONPatch{op: "add", path: "/spec/containers/0/volumeMounts", value: []}]) + '
               f'[JSONPatch{{op: "add", path: "/spec/volumes/-", value: {volume}}}, '
               f'JSONPatch{{op: "add", path: "/spec/containers/0/volumeMounts/-", value: {mount}}}]')
    try:
        cluster.create(kinds[0], {"metadata": {"name": name}, "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                                                    "resources": ["pods"]}]},
            "matchConditions": [{"name": "here", "expression": f"request.namespace == '{api.namespace}'"}],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patches}}]}})
    except ApiError as error:
        pytest.skip(f"this version of Kubernetes has no MutatingAdmissionPolicy of v1: {error}")
    cluster.create(kinds[1], {"metadata": {"name": name}, "spec": {"policyName": name}})
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    def is_in_force():
        made = api.client.create("pods", pod, api.namespace)
        api.client.delete("pods", api.namespace, "probe", gracePeriodSeconds=0)
        return any(volume["name"] == SHM for volume in made["spec"].get("volumes", []))
    wait_until(is_in_force, "policy in force")
    yield
    for kind in reversed(kinds):
        cluster.delete(kind, name=name)


def test_a_site_that_mounts_shared_memory_itself(api, site_that_mounts_shared_memory, jobs):
    jobs.create(nodes=1)
    jobs.wait_for(lambda: is_refused(jobs.status()), "InvalidSpec")
    assert "set spec.trainer.sharedMemory: None" in jobs.status()["message"]
    jobs.patch({"spec": {"trainer": {"sharedMemory": "None"}}})
    jobs.wait_for_condition("PodsReady")
    (pod,) = jobs.pods().values()
    mounts = [mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    assert mounts == [SHM]


