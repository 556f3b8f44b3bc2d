"""`lockstep render` prints the objects that the operator makes."""
import json

import pytest

from command_line import lockstep
from train_jobs import Jobs, train_job
from waiting import wait_until

ARGS = ["run", "sasrec", "--dataset", "/data/a.inter"]
TOKEN, UID, RUN = "<from the operator's key>", "<the TrainJob's UID>", "<from its creation time and UID>"
JOBS = {
    "plain": {"nodes": 3},
    "elastic": {"nodes": 2, "elastic": {"minNodes": 1, "maxNodes": 4}, "networkPolicy": "IntraJob"},
    "torchrun": {"nodes": 2, "trainer": {"launcher": "Torchrun", "args": ["train.py"], "numProcPerNode": 2}},
    "checkpoints": {"nodes": 2, "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "ckpt"}}}},
    "template": {"nodes": 1, "trainer": {
        "args": ARGS, "env": [{"name": "A", "value": "1"}],
        "resourcesPerNode": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}},
        "podTemplate": {"metadata": {"labels": {"team": "a"}}, "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}], "securityContext": {"runAsUser": 1000},
            "containers": [{"name": "sidecar", "image": "registry.example/sidecar:1"},
                           {"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}]}}}},
}


def rendered(tmp_path, body, *words):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    done = lockstep("render", "-f", path, "--output", "json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["items"]


def job_of(name):
    options = json.loads(json.dumps(JOBS[name]))
    options["trainer"] = {"args": ARGS, **options.get("trainer", {})}
    return train_job(**options)


def filled(rendered_object, uid, token, run_number):
    """With what only a cluster knows."""
    text = json.dumps(rendered_object)
    for placeholder, known in ((UID, uid), (TOKEN, token), (RUN, run_number)):
        text = text.replace(json.dumps(placeholder)[1:-1], known)
    return json.loads(text)


def differences(expected, found, path=""):
    """Where `found` lacks or changes something of `expected`; what the API server adds is no difference."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [one for key, value in expected.items()
                for one in (differences(value, found[key], f"{path}.{key}") if key in found else [f"{path}.{key}"])]
    if isinstance(expected, list) and isinstance(found, list):
        # Admission may append (tolerations); nothing is put in between.
        if len(found) < len(expected):
            return [path]
        return [one for i, value in enumerate(expected) for one in differences(value, found[i], f"{path}[{i}]")]
    return [] if expected == found else [f"{path}: {expected!r} became {found!r}"]


def names_of(container):
    return [variable["name"] for variable in container.get("env", [])]


@pytest.mark.parametrize("name", JOBS)
def test_the_objects_are_those_that_the_operator_makes(api, kubelet, operator, tmp_path, name):
    operator(operator_namespace="lockstep-system")
    jobs = Jobs(api)
    if "checkpoint" in JOBS[name]:
        api.create("persistentvolumeclaims", {"metadata": {"name": "ckpt"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    body = job_of(name)
    api.create("lockstep.dev/v1/trainjobs", body)
    nodes = body["spec"]["trainer"]["numNodes"]
    wait_until(lambda: len(jobs.pods()) == nodes, "pods")
    uid = jobs.get()["metadata"]["uid"]

    objects = rendered(tmp_path, body, "--namespace", api.namespace)
    kinds = [one["kind"] for one in objects]
    policies = ["NetworkPolicy"] if body["spec"].get("networkPolicy") else []
    assert kinds == ["Service", *policies, *["Pod"] * nodes]
    pods = jobs.pods()
    assert sorted(pods) == [one["metadata"]["name"] for one in objects if one["kind"] == "Pod"]
    for one in objects:
        if one["kind"] != "Pod":
            resource = {"Service": "services", "NetworkPolicy": "networking.k8s.io/v1/networkpolicies"}[one["kind"]]
            assert differences(filled(one, uid, "", ""), api.get(resource, "job")) == []
            continue
        real = {"apiVersion": "v1", "kind": "Pod", **pods[one["metadata"]["name"]]}  # a list leaves these out
        (trainer,) = [c for c in real["spec"]["containers"] if c["name"] == "trainer"]
        (token,) = [v["value"] for v in trainer["env"] if v["name"] == "LOCKSTEP_TOKEN"]
        assert len(token) == 64 and token not in json.dumps(one)
        (run_number,) = [v["value"] for v in trainer["env"] if v["name"] == "LOCKSTEP_RUN"]
        assert differences(filled(one, uid, token, run_number), real) == []
        for rendered_container, made in zip(one["spec"]["containers"], real["spec"]["containers"]):
            assert names_of(rendered_container) == names_of(made)  # and none more
        assert [v["name"] for v in one["spec"].get("volumes", [])] == [v["name"] for v in real["spec"]["volumes"]]


def test_any_number_of_nodes_and_any_attempt_can_be_rendered(tmp_path):
    objects = rendered(tmp_path, job_of("plain"), "--nodes", "1000", "--attempt", "3")
    assert len(objects) == 1001
    last = objects[-1]
    assert last["metadata"]["name"] == "job-999-3"
    environment = {v["name"]: v["value"] for v in last["spec"]["containers"][0]["env"]}
    assert (environment["LOCKSTEP_NODE_RANK"], environment["LOCKSTEP_NUM_NODES"]) == ("999", "1000")
    assert environment["LOCKSTEP_POD_ATTEMPT"] == "3"
