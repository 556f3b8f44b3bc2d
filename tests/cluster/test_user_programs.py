"""A TrainJob whose command is the user's own program, under launcher Lockstep, on a real API server: what its pods are, and
what is refused. The program itself runs in tests/e2e and tests/python/test_agent_folder.py."""
import pytest

from fake_kubelet import Exit
from train_jobs import Jobs

OWN = {"image": "pytorch/pytorch:2.11", "command": ["python", "train.py"], "args": ["--epochs", "10"]}
NOBODY = {"podTemplate": {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}}}
CLAIM = {"persistentVolumeClaim": {"claimName": "checkpoints"}}


def trainer_of(pod):
    (found,) = [one for one in pod["spec"]["containers"] if one["name"] == "trainer"]
    return found


def mounts_of(pod):
    return {mount["name"] for mount in trainer_of(pod)["volumeMounts"]}


def make_claim(api):
    api.create("persistentvolumeclaims", {"metadata": {"name": "checkpoints"}, "spec": {
        "accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}})


def restrict(api):
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    api.client.patch("namespaces", labels, name=api.namespace)


def test_the_command_is_started_under_the_agent_that_an_init_container_brings(api, kubelet, operator):
    operator(agent_image="registry.example/lockstep/operator:7")
    jobs = Jobs(api)
    jobs.create(nodes=2, trainer=OWN)
    jobs.wait_for_condition("PodsReady")
    for pod in jobs.pods().values():
        assert trainer_of(pod)["command"] == ["/opt/lockstep-agent/lockstep", "launch", "--", "python", "train.py"]
        assert trainer_of(pod)["args"] == OWN["args"] and trainer_of(pod)["image"] == OWN["image"]
        (init,) = pod["spec"]["initContainers"]
        assert init["image"] == "registry.example/lockstep/operator:7"
        assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "runAsNonRoot" not in pod["spec"]["securityContext"]  # the image may need root
    # The pods stay when a rank is lost, and one that is lost alone is replaced alone, as for our own models.
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    assert jobs.status()["restarts"]["pod"] == 1 and jobs.status()["restarts"]["gang"] == 0


def test_a_namespace_with_restricted_pod_security_admits_a_program_that_needs_no_root(api, jobs):
    restrict(api)
    jobs.create("needs-root", nodes=1, trainer=OWN)
    jobs.wait_for_condition("PodsReady", "False", "InvalidSpec", name="needs-root")
    assert "runAsNonRoot != true" in jobs.status("needs-root")["message"]
    read_only = {"podTemplate": {"spec": {**NOBODY["podTemplate"]["spec"], "containers": [
        {"name": "trainer", "securityContext": {"readOnlyRootFilesystem": True}}]}}}
    jobs.create("nobody", nodes=1, trainer={**OWN, **read_only})
    jobs.wait_for_condition("PodsReady", name="nobody")
    (pod,) = jobs.pods("nobody").values()
    assert {"lockstep-agent", "lockstep-tmp", "lockstep-shm"} <= mounts_of(pod)


def test_a_quota_counts_the_init_container_with_the_trainer(api, jobs):
    """A quota of CPU and memory admits only containers that ask for some; the pod's sum does not grow by it."""
    api.create("resourcequotas", {"metadata": {"name": "quota"}, "spec": {
        "hard": {"requests.cpu": "1", "requests.memory": "2Gi", "limits.memory": "2Gi"}}})
    jobs.create(nodes=1, trainer={**OWN, "resourcesPerNode": {"requests": {"cpu": "1", "memory": "2Gi"},
                                                              "limits": {"memory": "2Gi"}}})
    jobs.wait_for_condition("PodsReady")
    used = api.get("resourcequotas", "quota")["status"]["used"]
    assert used["requests.cpu"] == "1" and used["requests.memory"] == "2Gi"


def test_what_the_image_starts_must_be_known(jobs):
    jobs.create(nodes=1, trainer={"image": OWN["image"], "args": OWN["args"]})
    jobs.wait_for_condition("PodsReady", "False", "InvalidSpec")
    assert 'spec.trainer.command: is missing, and args begin with "--epochs"' in jobs.status()["message"]
    assert jobs.pods() == {} and jobs.status()["phase"] == "Pending"
    jobs.patch({"spec": {"trainer": {"command": OWN["command"]}}})
    jobs.wait_for_condition("PodsReady")


@pytest.mark.parametrize("command, words", [
    (["accelerate", "launch", "train.py"], "leave `accelerate launch` and its flags out"),
    (["python", "-m", "torch.distributed.run", "train.py"], "leave `-m torch.distributed.run` and its flags out"),
])
def test_a_launcher_as_the_command_is_refused_with_what_to_write(jobs, command, words):
    jobs.create(nodes=1, trainer={**OWN, "command": command})
    jobs.wait_for_condition("PodsReady", "False", "InvalidSpec")
    assert words in jobs.status()["message"]


@pytest.mark.parametrize("trainer, mount_on, expected", [
    (OWN, None, {"job-0-0", "job-1-0"}),
    (OWN, "Node0", {"job-0-0"}),
    ({}, None, {"job-0-0"}),
    ({}, "AllNodes", {"job-0-0", "job-1-0"}),
    ({"launcher": "Torchrun", "command": ["torchrun", "train.py"]}, None, {"job-0-0"}),
    ({"launcher": "Torchrun", "command": ["torchrun", "train.py"]}, "AllNodes", {"job-0-0", "job-1-0"}),
])
def test_the_checkpoint_volume_is_mounted_where_mount_on_says(api, jobs, trainer, mount_on, expected):
    make_claim(api)
    checkpoint = {"volume": CLAIM, **({"mountOn": mount_on} if mount_on else {})}
    jobs.create(nodes=2, trainer=trainer, checkpoint=checkpoint)
    jobs.wait_for(lambda: len(jobs.pods()) == 2, "two pods")
    assert {name for name, pod in jobs.pods().items() if "lockstep-checkpoint" in mounts_of(pod)} == expected


def test_the_number_of_pods_of_an_elastic_program_changes_while_it_runs(jobs):
    jobs.create(nodes=2, trainer=OWN, elastic={"minNodes": 1, "maxNodes": 3})
    jobs.wait_for_condition("PodsReady")
    jobs.patch({"spec": {"trainer": {"numNodes": 3}}})
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-0")
    variables = {one["name"]: one.get("value") for one in trainer_of(jobs.pods()["job-2-0"])["env"]}
    assert (variables["LOCKSTEP_MIN_NODES"], variables["LOCKSTEP_MAX_NODES"]) == ("1", "3")
    jobs.patch({"spec": {"trainer": {"numNodes": 1}}})
    jobs.wait_for_pods("job-0-0")
