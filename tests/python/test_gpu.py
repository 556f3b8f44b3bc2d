"""Recovery on a GPU, as far as one shows it: NCCL with one rank, several ranks over Gloo that share it, and two over an
NCCL that lets them share it (2.30.3 or newer, by NCCL_LIBRARY or the machine's own). And each model beside itself on the CPU.

Skipped where there is no GPU, or where the programs were built without CUDA (`make images-cuda`, preset cuda). In the
order of docs/recovery.md: what is new is first.
"""
import json
import os
import signal
import subprocess

import pytest

from programs import bin_folder, clean_environment, program
from jobs import Job, max_step
from runs import losses

STEPS = int(os.environ.get("STEPS", "5000"))
NCCL_THAT_SHARES = (2, 30, 3)


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


@pytest.fixture
def sharing():
    """What lets two ranks of NCCL share a GPU, as an environment."""
    preload = {"LD_PRELOAD": os.environ["NCCL_LIBRARY"]} if os.environ.get("NCCL_LIBRARY") else {}
    done = subprocess.run([str(program(bin_folder() / "lockstep-worker")), "--build_info"], capture_output=True, text=True,
                          check=True, env=clean_environment(**preload), timeout=120)
    found = json.loads(done.stdout).get("nccl", "0")
    if tuple(int(part) for part in found.split(".")) < NCCL_THAT_SHARES:
        pytest.skip(f"NCCL is {found}: from 2.30.3 on two ranks may share a GPU; NCCL_LIBRARY names a libnccl.so.2")
    return {**preload, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}


def close(found, expected):
    assert sorted(found) == sorted(expected)
    assert [s for s in found if abs(found[s] - expected[s]) > 1e-4 * abs(expected[s])] == []


def undisturbed(lockstep, dataset, folder, nodes, nproc, *flags, **environment):
    job = Job(lockstep, dataset, folder / "undisturbed", folder, *flags, nodes=nodes, nproc=nproc, steps=STEPS,
              **environment)
    assert job.end() == 0, job.output()
    return losses(folder / "undisturbed")


def lose_a_worker(lockstep, dataset, folder, nodes, nproc, backend, how, **environment):
    """The last rank is lost in the middle of a step; nobody else, and no more than the step that was in flight."""
    flags = ["--device", "cuda", "--backend", backend, "--heartbeat_timeout_seconds", "2", "--deterministic", "true",
             "--checkpoint_every", "1000"]
    expected = undisturbed(lockstep, dataset, folder, nodes, nproc, *flags, **environment)
    job = Job(lockstep, dataset, folder / "run", folder, *flags, nodes=nodes, nproc=nproc, steps=STEPS, **environment)
    job.wait_for_progress(50)
    survivors = {rank: pid for rank, pid in job.all_workers().items() if rank < nodes * nproc - 1}
    job.kill_rank(nodes * nproc - 1, how)
    status = job.wait_for_recovery(1)
    assert {rank: pid for rank, pid in job.all_workers().items() if rank in survivors} == survivors
    if survivors:  # somebody lives who holds the state
        assert status["recoveries"][0]["redoneSteps"] <= 1, status
    assert job.end() == 0, job.output()
    close(losses(folder / "run"), expected)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_collective_of_nccl_that_a_peer_has_left_is_aborted(lockstep, small_dataset, tmp_path, sharing, how):
    """The survivor's all-reduce is in flight; it keeps its process, its memory and its step. Two nodes of one rank: each
    has the GPU for its first."""
    lose_a_worker(lockstep, small_dataset, tmp_path, 2, 1, "nccl", how, **sharing)


@pytest.mark.parametrize("nodes, nproc, backend", [(1, 1, "nccl"), (1, 2, "gloo"), (2, 2, "gloo")])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_costs_a_step_on_a_gpu_too(lockstep, small_dataset, tmp_path, nodes, nproc, backend, how):
    lose_a_worker(lockstep, small_dataset, tmp_path, nodes, nproc, backend, how)


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


SASREC = ["--maxlen", "12", "--hidden_units", "16", "--num_blocks", "2", "--batch_size", "12"]
MODELS = {
    "sasrec": ["sasrec", "--dataset", "generated", *SASREC],
    "tisasrec": ["sasrec", "--variant", "tisasrec", "--dataset", "generated", *SASREC],
    "mpnn": ["protein", "--pdb_path", "generated:13:40", "--hidden_dim", "32", "--batch_tokens", "240"],
    "mdm": ["protein", "--variant", "mdm", "--pdb_path", "generated:13:40", "--hidden_dim", "32", "--num_heads", "4",
            "--batch_size", "6"],
    "gpt2rec, texts encoded once": ["gpt2rec", "--data_path", "generated", "--gpt2_config", "2x32", "--batch_size", "64"],
    "gpt2rec, adapters trained": ["gpt2rec", "--data_path", "generated", "--gpt2_config", "2x32", "--batch_size", "64",
                                  "--use_cache", "false"],
    "jit": ["jit", "--data_path", "generated:60:3", "--model", "3x64/4", "--img_size", "16", "--batch_size", "12",
            "--warmup_epochs", "0", "--lr", "0.002", "--dropout", "0.1", "--sample_images", "0", "--precision", "fp32"],
}


@pytest.mark.parametrize("model", MODELS)
def test_every_model_learns_as_on_the_cpu(run, lockstep, tmp_path, model):
    """With the dropout of its defaults: the masks are drawn in the same way on both."""
    for device in ("cpu", "cuda"):
        done = run([lockstep, "run", *MODELS[model], "--train_dir", tmp_path / device, "--batch_scope", "total", "--max_steps", "3",
                    "--log_every", "1", "--eval_every", "0", "--device", device, "--status_port", "0"])
        assert done.returncode == 0, done.stdout + done.stderr
    close(losses(tmp_path / "cuda"), losses(tmp_path / "cpu"))
