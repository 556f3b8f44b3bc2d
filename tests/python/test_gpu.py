"""Recovery on a GPU, as far as one shows it: NCCL with one rank, and several ranks over Gloo that share it.

Skipped where there is no GPU, or where the programs were built without CUDA (`make images-cuda`, preset cuda). More than
one rank over NCCL needs more GPUs: nobody has run that here (docs/recovery.md).
"""
import json
import signal
import subprocess

import pytest

from programs import bin_folder, clean_environment, program
from jobs import Job, max_step
from runs import losses

STEPS = 5000


def why_not():
    """None when a GPU can be trained on."""
    done = subprocess.run([str(program(bin_folder() / "lockstep")), "doctor", "--json"], capture_output=True, text=True,
                          check=False, env=clean_environment(), timeout=120)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    return next((f"{name}: {checks[name]['found']}" for name in ("CUDA", "GPUs") if checks[name]["verdict"] != "ok"), None)


@pytest.fixture(scope="module", autouse=True)
def gpu():
    if reason := why_not():
        pytest.skip(reason)


def close(found, expected):
    assert sorted(found) == sorted(expected)
    assert [s for s in found if abs(found[s] - expected[s]) > 1e-4 * abs(expected[s])] == []


def undisturbed(lockstep, dataset, folder, nodes, nproc, *flags):
    job = Job(lockstep, dataset, folder / "undisturbed", folder, *flags, nodes=nodes, nproc=nproc, steps=STEPS)
    assert job.end() == 0, job.output()
    return losses(folder / "undisturbed")


@pytest.mark.parametrize("nodes, nproc, backend", [(1, 1, "nccl"), (1, 2, "gloo"), (2, 2, "gloo")])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_costs_a_step_on_a_gpu_too(lockstep, small_dataset, tmp_path, nodes, nproc, backend, how):
    flags = ["--device", "cuda", "--backend", backend, "--heartbeat_timeout_seconds", "2", "--deterministic", "true",
             "--checkpoint_every", "1000"]
    expected = undisturbed(lockstep, small_dataset, tmp_path, nodes, nproc, *flags)
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, *flags, nodes=nodes, nproc=nproc, steps=STEPS)
    job.wait_for_progress(50)
    job.kill_rank(nodes * nproc - 1, how)
    status = job.wait_for_recovery(1)
    if nodes * nproc > 1:  # somebody lives who holds the state
        assert status["recoveries"][0]["redoneSteps"] <= 1, status
    assert job.end() == 0, job.output()
    close(losses(tmp_path / "run"), expected)


def test_a_cut_group_gives_the_gpu_back(lockstep, small_dataset, tmp_path):
    """Ten groups one after the other leave no memory behind on the device."""
    flags = ["--device", "cuda", "--backend", "gloo"]
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, *flags, nodes=1, nproc=2, steps=10_000_000)
    job.wait_for_progress(20)
    used = []
    for number in range(1, 11):
        job.kill_rank(1)
        status = job.wait_for_recovery(number)
        job.wait_for_progress(max_step(status) + 50)
        used.append(job.wait_for_status(lambda s: (s["progress"]["deviceMemoryBytes"] or 0) > 0, "memory")["progress"][
            "deviceMemoryBytes"])
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()
    assert max(used[5:]) <= max(used[:5]) * 1.05, used
