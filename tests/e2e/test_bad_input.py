"""Users' mistakes and failures around a job, on a real kubelet: the status says what is wrong, and nothing is lost."""
import signal

import pytest

from host_traces import run
from images import RUNNER
from kube_api import ApiError
from real_jobs import CHECKPOINT_CLAIM, ENDLESS, STEPS
from runs import checkpoints
from waiting import wait_until


def pods_ready_says(jobs, reason, *words, timeout=120):
    found = jobs.wait_for_condition("PodsReady", "False", reason, timeout=timeout)
    for word in words:
        assert word in found["message"], found
    return found


def scratch_image(cluster, name, dockerfile):
    """An image of the test's own, on every node."""
    cluster.images.build(name, dockerfile)
    cluster.import_image(name)
    return name


def test_an_image_without_the_agent_is_named(cluster, jobs):
    image = scratch_image(cluster, "docker.io/lockstep-tests/empty:1", "FROM localhost/pause:1\nENTRYPOINT []\nUSER 65532\n")
    jobs.start(trainer={"image": image, "command": ["lockstep"]})
    jobs.wait_for(lambda: "lockstep" in jobs.status().get("message", "") and (
        "not found" in jobs.status()["message"] or "no such file" in jobs.status()["message"]), "word on the program",
        timeout=120)


def test_an_image_of_another_architecture_is_said_so(cluster, jobs):
    """The file is an ELF for another machine: the kernel answers "exec format error"."""
    folder = cluster.folder / "foreign"
    folder.mkdir(exist_ok=True)
    elf = bytearray(open("/bin/true", "rb").read())
    elf[18:20] = (0xB7).to_bytes(2, "little")  # EM_AARCH64
    (folder / "lockstep").write_bytes(elf)
    (folder / "lockstep").chmod(0o755)
    name = "docker.io/lockstep-tests/foreign:1"
    cluster.images.build(name, f"FROM {RUNNER}\nUSER 0\nCOPY lockstep /opt/lockstep/bin/lockstep\nUSER 65532\n",
                         folder)
    cluster.import_image(name)
    jobs.start(trainer={"image": name})
    jobs.wait_for(lambda: "exec format error" in str(jobs.status()), "exec format error", timeout=120)


def test_a_claim_that_cannot_be_bound_is_said(api, jobs):
    api.create("persistentvolumeclaims", {"metadata": {"name": "unbound"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "100Ti"}}}})
    jobs.start(checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "unbound"}}})
    pods_ready_says(jobs, "Unschedulable", "pod job-0-0", "PersistentVolumeClaim")


def test_a_read_only_claim_for_checkpoints_is_refused(jobs):
    with pytest.raises(ApiError) as refused:
        jobs.start(checkpoint={"volume": {"persistentVolumeClaim": {"claimName": CHECKPOINT_CLAIM, "readOnly": True}}})
    assert refused.value.status == 422
    assert "spec.checkpoint.volume.persistentVolumeClaim.readOnly" in refused.value.message


def test_a_read_only_checkpoint_volume_fails_with_the_folder_and_the_way_out(jobs):
    run("mount", "--bind", jobs.checkpoints, jobs.checkpoints)
    try:
        run("mount", "-o", "remount,bind,ro", jobs.checkpoints)
        jobs.start()
        failed = jobs.wait_for_condition("Failed", timeout=180)
        assert "/checkpoints/job is not writable" in failed["message"]
        assert "Read-only file system" in failed["message"]
        assert {one["reason"] for one in jobs.status()["recentFailures"]} == {"CheckpointFailed"}
    finally:
        run("umount", "--lazy", jobs.checkpoints)


def test_a_checkpoint_volume_of_root_fails_with_the_user_and_the_way_out(jobs):
    jobs.checkpoints.chmod(0o755)
    jobs.start()
    failed = jobs.wait_for_condition("Failed", timeout=180)
    assert "/checkpoints/job is not writable" in failed["message"] and "user 65532" in failed["message"]


def test_an_empty_data_volume_is_said_with_what_was_looked_for(jobs):
    for path in jobs.data.iterdir():
        path.unlink()
    jobs.start()
    failed = jobs.wait_for_condition("Failed", reason="DataUnreadable", timeout=120)
    assert "/data/small.txt" in failed["message"]


def test_a_name_service_that_does_not_answer_holds_nothing_up(cluster, jobs, undisturbed):
    """The operator sends the address of pod 0 to the agents."""
    cluster.pause_component("coredns")
    try:
        jobs.start()
        jobs.wait_for_step(200)
        jobs.delete_pod(0)
        jobs.wait_until_complete()
    finally:
        cluster.continue_component("coredns")
    jobs.assert_same_curve(undisturbed(STEPS))


def test_a_name_service_that_does_not_answer_is_said_without_the_operator(cluster, api, jobs):
    cluster.pause_component("coredns")
    cluster.kubectl("scale", "deployment/lockstep-operator", "--replicas=0", namespace="lockstep-system")
    try:
        api.create("pods", {"metadata": {"name": "alone"}, "spec": {"restartPolicy": "Never", "containers": [{
            "name": "trainer", "image": RUNNER, "env": [{"name": "LOCKSTEP_TOKEN", "value": "x" * 32}],
            "args": ["run", "sasrec", "--dataset", "generated", "--nnodes", "2", "--node_rank", "1", "--coordinator",
                     "nobody-0.nobody:29400"]}]}})
        wait_until(lambda: "name service does not answer" in api.kubectl("logs", "alone", check=False).stdout +
                   api.kubectl("logs", "alone", check=False).stderr, "word on the name service", 60,
                   lambda: api.kubectl("logs", "alone", check=False).stdout)
    finally:
        cluster.continue_component("coredns")
        cluster.kubectl("scale", "deployment/lockstep-operator", "--replicas=1", namespace="lockstep-system")
        cluster.kubectl("rollout", "status", "deployment/lockstep-operator", "--timeout=120s",
                        namespace="lockstep-system")


def test_a_kubelet_that_is_killed_while_training_stops_nothing(cluster, jobs, undisturbed):
    """The agents' heartbeats count more than a node's Ready condition."""
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(100)
    machine = cluster.nodes[0]
    machine.kill("kubelet")
    try:
        wait_until(lambda: not cluster.node_is_usable(machine.name), "loss of the machine's lease", 60)
        before = jobs.answer(0)
        jobs.wait_for_step(max(worker["step"] for worker in before["workers"]) + 50)
        assert jobs.answer(0)["generation"] == before["generation"]
    finally:
        machine.restart("kubelet")
        machine.wait_until_usable()
    jobs.wait_for_condition("Running")
    jobs.assert_same_beginning(undisturbed(STEPS))
    assert sorted(name.rsplit("-", 1)[0] for name in jobs.live_pods()) == ["job-0", "job-1"]


def test_an_agent_that_somebody_stops_leaves_a_checkpoint(jobs):
    jobs.start(steps=ENDLESS, flags=("--checkpoint_every", "0"))
    jobs.wait_for_step(100)
    jobs.execute(0, f"kill -{int(signal.SIGTERM)} 1")
    wait_until(lambda: checkpoints(jobs.run_folder()), "checkpoint", 60)
