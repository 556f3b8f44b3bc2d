"""`command: [python, train.py]` in an image that holds nothing of Lockstep: Debian's Python, and PyTorch as PyPI has it. The
agent comes by an init container."""
import pytest

from images import ROOT, cache
from real_jobs import DATA_CLAIM, copy_into
from test_recovery import evict
from waiting import wait_until

VENV = "/opt/py-test"  # where the tests' Python is in the container: PyTorch comes by a volume, because it is 5 GB
PROGRAM = ROOT / "tests/python/user_programs/ddp.py"
DEBIAN = ("FROM docker.io/library/debian:bookworm-slim\n"
          "RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 && rm -rf /var/lib/apt/lists/*\n")
WITHOUT_A_SHELL = DEBIAN + ("RUN rm -rf /bin/sh /bin/bash /bin/dash /usr/bin/sh /usr/bin/bash /usr/bin/dash\n")
EPOCHS, STEPS = 100, 600


@pytest.fixture(params=["debian", "no shell, no name, read-only root"])
def case(request, cluster):
    """The image's name, and the trainer's securityContext."""
    is_bare = request.param != "debian"
    name = f"docker.io/lockstep-tests/user-program:{'bare' if is_bare else 'debian'}"
    if not cluster.images.exists(name):
        cluster.images.build(name, WITHOUT_A_SHELL if is_bare else DEBIAN + "USER 65532:65532\n")
    cluster.import_image(name)
    return name, {"runAsUser": 12345, "runAsNonRoot": True, "readOnlyRootFilesystem": True} if is_bare else {}


def losses_of(folder):
    """step → the loss that was written for it; the same each time that it was made."""
    found = {}
    for line in (folder / "losses.txt").read_text(encoding="utf-8").splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"step {step} was made again, with another loss"
    return found


def test_a_program_recovers_moves_pauses_and_ends(api, jobs, case, timings):
    image, security = case
    copy_into(PROGRAM, jobs.data)
    template = {"metadata": {"labels": dict([jobs.selector().split("=")])}, "spec": {
        "containers": [{"name": "trainer", "securityContext": security, "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "pytorch", "mountPath": VENV, "readOnly": True}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": DATA_CLAIM}},
                    {"name": "pytorch", "hostPath": {"path": str(cache() / "py-test")}}]}}
    jobs.start(trainer={"image": image, "command": [f"{VENV}/bin/python", f"/data/{PROGRAM.name}"], "podTemplate": template,
                        "args": ["--folder", "/checkpoints", "--epochs", str(EPOCHS), "--sleep", "0.1"]})
    jobs.wait_for_step(20)
    jobs.wait_for_condition("Running", reason="StepCommitted")

    def kill_rank_of_node_1():
        pid = jobs.worker_pid(1)
        api.kubectl("exec", jobs.pod_name(1), "--container", "trainer", "--", f"{VENV}/bin/python", "-c",
                    f"import os; os.kill({pid}, 9)")
    timings.add("own program: kill -9 of a rank", jobs.seconds_to_next_step(kill_rank_of_node_1))
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]
    jobs.wait_for(lambda: jobs.status()["restarts"]["process"] >= 1, "restart in the status")

    timings.add("own program: eviction of a pod", jobs.seconds_to_next_step(lambda: evict(jobs, 1), timeout=240))
    assert jobs.live_pods() == ["job-0-0", "job-1-1"]

    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended", timeout=120)
    wait_until(lambda: not jobs.live_pods(), "end of the pods", 120)
    done = max(losses_of(jobs.checkpoints))
    assert done < STEPS - 1
    jobs.patch({"spec": {"suspend": False}})
    status = jobs.wait_until_complete()
    assert status["restarts"]["gang"] == 0
    assert sorted(losses_of(jobs.checkpoints)) == list(range(STEPS))
    assert "from epoch" in api.kubectl("logs", jobs.pod_name(0)).stdout


def test_the_exception_that_ends_a_program_is_in_the_status(api, jobs, case):
    image, security = case
    (jobs.data / "broken.py").write_text("raise ValueError('no such split: tset')\n", encoding="utf-8")
    template = {"spec": {
        "containers": [{"name": "trainer", "securityContext": security, "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": DATA_CLAIM}}]}}
    jobs.start(nodes=1, trainer={"image": image, "command": ["python3", "/data/broken.py"], "args": [],
                                 "podTemplate": template}, restartPolicy={"maxRestarts": 0})
    failed = jobs.wait_for_condition("Failed", timeout=300)
    assert "ValueError: no such split: tset (broken.py:1" in failed["message"], failed
    assert "no such split" in jobs.describe()
