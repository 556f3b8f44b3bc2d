"""`command: [python, train.py]` in an image that holds nothing of Lockstep: Debian's Python, and PyTorch as PyPI has it. The
agent comes by an init container, and with it the package `lockstep`."""
import json
import os
import subprocess
import sys

import pytest
import torch

from images import ROOT, cache
from jobs import max_step
from own_runs import OWN
from programs import bin_folder, clean_environment
from real_jobs import DATA_CLAIM, copy_into
from test_own_elastic import steps_of as steps_of_batches
from test_recovery import SPREAD, drain, evict, node_on
from waiting import wait_until

VENV = "/opt/py-test"  # where the tests' Python is in the container: PyTorch comes by a volume, because it is 5 GB
PROGRAM = ROOT / "tests/python/user_programs/ddp.py"
DEBIAN = ("FROM docker.io/library/debian:bookworm-slim\n"
          "RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 && rm -rf /var/lib/apt/lists/*\n")
WITHOUT_A_SHELL = DEBIAN + ("RUN rm -rf /bin/sh /bin/bash /bin/dash /usr/bin/sh /usr/bin/bash /usr/bin/dash\n")
EPOCHS, STEPS = 100, 600


def image_of(cluster, is_bare):
    """The image's name, and the trainer's securityContext."""
    name = f"docker.io/lockstep-tests/user-program:{'bare' if is_bare else 'debian'}"
    if not cluster.images.exists(name):
        cluster.images.build(name, WITHOUT_A_SHELL if is_bare else DEBIAN + "USER 65532:65532\n")
    cluster.import_image(name)
    return name, {"runAsUser": 12345, "runAsNonRoot": True, "readOnlyRootFilesystem": True} if is_bare else {}


@pytest.fixture(params=["debian", "no shell, no name, read-only root"])
def case(request, cluster):
    return image_of(cluster, is_bare=request.param != "debian")


@pytest.fixture
def debian(cluster):
    return image_of(cluster, is_bare=False)


def losses_of(folder):
    """step → the loss that was written for it; the same each time that it was made."""
    found = {}
    for line in (folder / "losses.txt").read_text(encoding="utf-8").splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"step {step} was made again, with another loss"
    return found


def start(jobs, case, program, *args, command=(f"{VENV}/bin/python",), trainer=(), pod_spec=(), **spec):
    """A job of two pods that runs this program with PyTorch."""
    image, security = case
    copy_into(program, jobs.data)
    template = {"metadata": {"labels": dict([jobs.selector().split("=")])}, "spec": {
        "containers": [{"name": "trainer", "securityContext": security, "volumeMounts": [
            {"name": "data", "mountPath": "/data", "readOnly": True},
            {"name": "pytorch", "mountPath": VENV, "readOnly": True}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": DATA_CLAIM}},
                    {"name": "pytorch", "hostPath": {"path": str(cache() / "py-test")}}], **dict(pod_spec)}}
    jobs.start(trainer={"image": image, "command": [*command, f"/data/{program.name}"], "podTemplate": template,
                        "args": [*args], **dict(trainer)}, **spec)


def kill_rank(api, jobs, node):
    api.kubectl("exec", jobs.pod_name(node), "--container", "trainer", "--", f"{VENV}/bin/python", "-c",
                f"import os; os.kill({jobs.worker_pid(node)}, 9)")


def suspend(jobs):
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended", timeout=120)
    wait_until(lambda: not jobs.live_pods(), "end of the pods", 120)


def test_a_program_recovers_moves_pauses_and_ends(api, jobs, case, timings):
    start(jobs, case, PROGRAM, "--folder", "/checkpoints", "--epochs", str(EPOCHS), "--sleep", "0.1")
    jobs.wait_for_step(20)
    jobs.wait_for_condition("Running", reason="StepCommitted")
    timings.add("own program: kill -9 of a rank", jobs.seconds_to_next_step(lambda: kill_rank(api, jobs, 1)))
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]
    jobs.wait_for(lambda: jobs.status()["restarts"]["process"] >= 1, "restart in the status")

    timings.add("own program: eviction of a pod", jobs.seconds_to_next_step(lambda: evict(jobs, 1), timeout=240))
    assert jobs.live_pods() == ["job-0-0", "job-1-1"]

    suspend(jobs)
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


def steps_of(folder, rank):
    """step → (loss, pid); each step was made once."""
    found = {}
    for line in (folder / f"losses-{rank}.txt").read_text(encoding="utf-8").splitlines():
        step, loss, pid = line.split()
        assert int(step) not in found, f"rank {rank} has made step {step} twice"
        found[int(step)] = (loss, int(pid))
    return found


def losses_by_step(folder, rank):
    return {step: loss for step, (loss, _) in steps_of(folder, rank).items()}


def run_here(program, folder, *args, nproc=2, flags=()):
    """The same program without Kubernetes, undisturbed."""
    folder.mkdir()
    subprocess.run([bin_folder() / "lockstep", "launch", *flags, "--status_port", "0", "--nproc", str(nproc), program, *args], check=True,
                   timeout=600, env=clean_environment(PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", OMP_NUM_THREADS="1",
                                                      PYTHONPATH=str(bin_folder().parent / "python")))
    return folder


def test_a_program_with_five_lines_keeps_its_state(cluster, second_machine, api, jobs, case, timings, tmp_path):
    """kill -9 of a rank, a pod that is deleted, a machine that is drained: the rank of the other pod is one process all the time. Then the
    job is suspended and goes on. No step is made twice, and every loss is that of an undisturbed run."""
    program = ROOT / "tests/python/user_programs/own/in_pods.py"
    steps = 3000
    start(jobs, case, program, "/checkpoints", str(steps), "0.05", pod_spec=SPREAD)
    jobs.wait_for_step(20)
    victim = node_on(jobs, second_machine)
    timings.add("program with five lines: kill -9 of a rank", jobs.seconds_to_next_step(lambda: kill_rank(api, jobs, victim)))
    timings.add("program with five lines: pod deleted", jobs.seconds_to_next_step(lambda: jobs.delete_pod(victim), timeout=240))
    assert node_on(jobs, second_machine) == victim
    try:
        timings.add("program with five lines: machine drained",
                    jobs.seconds_to_next_step(lambda: drain(cluster, jobs, second_machine), timeout=240))
    finally:
        cluster.kubectl("uncordon", second_machine.name)
    assert len({pid for _, pid in steps_of(jobs.checkpoints, 1 - victim).values()}) == 1
    suspend(jobs)
    assert max(losses_by_step(jobs.checkpoints, 0)) < steps - 1
    jobs.patch({"spec": {"suspend": False}})
    status = jobs.wait_until_complete()
    assert status["restarts"]["gang"] == 0
    undisturbed = run_here(program, tmp_path / "undisturbed", tmp_path / "undisturbed", str(steps), "0")
    for rank in (0, 1):
        expected, found = losses_by_step(undisturbed, rank), losses_by_step(jobs.checkpoints, rank)
        # A rank that is lost between its last part in a step and the line of that step leaves the line out.
        assert found.items() <= expected.items() and len(found) >= steps - 3


def test_a_program_with_five_lines_is_scaled_2_3_1(api, jobs, debian, tmp_path):
    """Nodes come and go at the end of a step: each batch is read once, and losses and weights are those of one rank."""
    program, gates = OWN / "elastic.py", (5, 12)

    def changes():
        """How often the ranks were told of nodes that come or go."""
        return api.kubectl("logs", jobs.pod_name(0), "--container", "trainer").stdout.count("leaves together")
    start(jobs, debian, program, "/checkpoints", "5", "--gate", *map(str, gates),
          elastic={"minNodes": 1, "maxNodes": 3, "rejoinTimeoutSeconds": 300})
    for times, (gate, nodes) in enumerate(zip(gates, (3, 1)), start=1):
        jobs.wait_for_step(gate)
        api.kubectl("scale", "trainjob/job", f"--replicas={nodes}")
        wait_until(lambda times=times: changes() == times, "the word that nodes come or go", 120, jobs.logs)
        (jobs.checkpoints / f"gate-{gate}").touch()
    status = jobs.wait_until_complete()
    assert status["restarts"]["total"] == 0
    alone = tmp_path / "alone"
    run_here(program, alone, alone, "10", nproc=1)
    found, expected = steps_of_batches(jobs.checkpoints), steps_of_batches(alone)
    assert sorted(found) == sorted(expected)
    for step, (ranks, ids, loss) in found.items():
        assert ranks == (2 if step <= gates[0] else 3 if step <= gates[1] else 1), step
        assert ids == expected[step][1] and loss == pytest.approx(expected[step][2], rel=1e-5), step
    end = torch.load(jobs.checkpoints / "end.pt")
    for name, tensor in torch.load(alone / "end.pt").items():
        torch.testing.assert_close(end[name], tensor, rtol=1e-4, atol=1e-6)


def logged_by_trainer(folder):
    """What Hugging Face's Trainer has logged until its newest checkpoint, and that checkpoint's step."""
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    state = json.loads((newest / "trainer_state.json").read_text(encoding="utf-8"))
    changing = ("runtime", "per_second")
    return [{name: value for name, value in entry.items() if not any(part in name for part in changing)}
            for entry in state["log_history"]], state["global_step"]


def test_hugging_faces_trainer_keeps_its_state(cluster, second_machine, api, jobs, debian, timings, tmp_path):
    """The example, unchanged: kill -9 of a rank, a pod that is deleted, a machine that is drained; the rank of the other pod is one process all
    the time. What it logs is that of an undisturbed run, until a pod takes its rank's random states with it. Then it is suspended, made smaller,
    and goes on from its own checkpoint."""
    program, steps = ROOT / "examples/python/hf_finetune.py", 3000
    options = ["--save_steps", "100", "--steps"]
    start(jobs, debian, program, "--folder", "/checkpoints/out", *options, str(steps), pod_spec=SPREAD,
          command=("torchrun", "--recover", f"{VENV}/bin/python"), checkpoint={"mountOn": "AllNodes"},
          trainer={"env": [{"name": "HF_HOME", "value": "/tmp/huggingface"}, {"name": "OMP_NUM_THREADS", "value": "1"}],
                   "resourcesPerNode": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "3Gi"}}})
    jobs.wait_for_step(20)
    victim = node_on(jobs, second_machine)
    survivor = jobs.worker_pid(1 - victim)
    timings.add("Hugging Face's Trainer: kill -9 of a rank", jobs.seconds_to_next_step(lambda: kill_rank(api, jobs, victim)))
    deleted_at = max_step(jobs.wait_for_step(100))
    timings.add("Hugging Face's Trainer: pod deleted", jobs.seconds_to_next_step(lambda: jobs.delete_pod(victim), timeout=240))
    try:
        timings.add("Hugging Face's Trainer: machine drained",
                    jobs.seconds_to_next_step(lambda: drain(cluster, jobs, second_machine), timeout=240))
    finally:
        cluster.kubectl("uncordon", second_machine.name)
    assert jobs.worker_pid(1 - victim) == survivor
    jobs.wait_for_step(max_step(jobs.agent(0)) + 100)
    suspend(jobs)
    logged, step = logged_by_trainer(jobs.checkpoints / "out")
    assert step < steps
    undisturbed = run_here(program, tmp_path / "undisturbed", "--folder", str(tmp_path / "undisturbed"), *options, str(steps), flags=["--recover"])
    expected = logged_by_trainer(undisturbed)[0][:len(logged)]
    assert [entry["step"] for entry in logged] == [entry["step"] for entry in expected]
    assert [entry for entry in logged if entry["step"] <= deleted_at] == [entry for entry in expected if entry["step"] <= deleted_at]
    api.kubectl("scale", "trainjob/job", "--replicas=1")
    jobs.patch({"spec": {"suspend": False}})
    status = jobs.wait_until_complete()
    assert status["restarts"]["gang"] == 0 and logged_by_trainer(jobs.checkpoints / "out")[1] == steps
