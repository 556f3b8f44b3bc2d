"""ProteinMPNN and the masked side chains while something breaks: workers and agents that are killed at random, a loss in the
middle of a validation, a loss that is no number. Two nodes of two ranks each, or one; batches are uneven, dropout is on."""
import os
import random
import re
import shutil
import signal
import subprocess

import pytest

from jobs import WorkloadJob, fresh_starts, max_step
from programs import bin_folder, clean_environment, fetched, program
from runs import Running, equal_weights, evaluations, losses, weights

STEPS = 110
COMMON = ["--threads", "1", "--log_every", "1", "--max_steps", STEPS, "--checkpoint_every", "50", "--eval_every", "3",
          "--rejoin_timeout_seconds", "20"]
VARIANTS = {
    "mpnn": ["--variant", "mpnn", "--pdb_path", "generated:30:50", "--hidden_dim", "32", "--num_encoder_layers", "1",
             "--num_decoder_layers", "1", "--num_neighbors", "12", "--batch_tokens", "500", "--warmup_steps", "20", "--lr",
             "0.003"],
    "mdm": ["--variant", "mdm", "--pdb_path", "generated:30:40", "--hidden_dim", "32", "--num_heads", "4", "--batch_scope",
            "total", "--batch_size", "10", "--num_epochs", "1000", "--early_stop_patience", "0"]}


# In `make test` test_every_model.py kills workers of both; test_recovery.py has a loss in a validation, and one that is no number.
@pytest.fixture(scope="module", params=[pytest.param(variant, marks=pytest.mark.long) for variant in VARIANTS])
def flags(request):
    return [*VARIANTS[request.param], *COMMON]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, flags):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    argv = [program(bin_folder() / "lockstep"), "run", "protein", "--nproc", 4, "--status_port", 0, "--train_dir", folder, *flags]
    subprocess.run([str(word) for word in argv], check=True, env=clean_environment(), capture_output=True, timeout=300)
    return folder


def finish(job, folder, reference):
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    assert losses(folder) == losses(reference)
    assert evaluations(folder) == evaluations(reference) != []
    assert equal_weights(weights(folder), weights(reference))


def test_killed_workers_and_a_killed_agent_cost_no_step(lockstep, tmp_path, flags, undisturbed):
    job = WorkloadJob(lockstep, "protein", tmp_path / "run", tmp_path, *flags)
    draw = random.Random(3)
    at = 10
    for number in range(1, 4):
        job.wait_for_progress(at)
        job.kill_rank(draw.randrange(4))
        at = max_step(job.wait_for_recovery(number)) + draw.randint(5, 15)
    job.wait_for_progress(at)
    os.kill(job.agents()[1], signal.SIGKILL)
    job.wait_for_recovery(4)
    finish(job, tmp_path / "run", undisturbed)


def test_a_loss_in_a_validation_costs_no_step_and_no_validation(lockstep, tmp_path, flags, undisturbed):
    job = WorkloadJob(lockstep, "protein", tmp_path / "run", tmp_path, *flags, faulty=True)
    job.wait_for_progress(20)
    job.inject(0, "slow_evaluation", 3600.0)
    job.wait_for_status(lambda status: status["workers"] and all(
        worker["activity"] == "evaluating" for worker in status["workers"]), "a validation")
    job.kill_rank(3)
    job.wait_for_recovery(1)
    finish(job, tmp_path / "run", undisturbed)


def test_a_loss_that_is_no_number_on_one_rank_is_one_skipped_step_for_all(lockstep, tmp_path, flags):
    job = WorkloadJob(lockstep, "protein", tmp_path / "run", tmp_path, *flags, "--drift_check_every", "5", nodes=1, faulty=True)
    job.wait_for_progress(20)
    job.inject(1, "not_finite")
    assert job.end() == 0, job.output()
    assert len(re.findall("skipped on all ranks", job.output())) == 1, job.output()
    assert fresh_starts(job.output()) == 1 and "going on at step" not in job.output(), "nobody ended over it"
    assert sorted(losses(tmp_path / "run")) == list(range(1, STEPS + 1))
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_a_loss_that_is_no_number_ends_all_ranks_where_no_step_may_be_skipped(lockstep, tmp_path, flags):
    job = WorkloadJob(lockstep, "protein", tmp_path / "run", tmp_path, *flags, "--max_skipped_steps", "0", "--max_steps",
                      1_000_000, "--num_epochs", 1_000_000, nodes=1, faulty=True)
    job.wait_for_progress(20)
    job.inject(1, "not_finite")
    assert job.end() == 5, job.output()
    assert "--max_skipped_steps 0" in job.output() and fresh_starts(job.output()) == 1, "nobody tried it again"


def test_a_worker_that_is_killed_while_it_prepares_is_started_again(lockstep, tmp_path):
    """The parts that were finished are kept, and the cache is that of an undisturbed preparation."""
    source = fetched("get_structures") / "1ake.pdb"
    for name in ("reference", "hurt"):
        (tmp_path / name).mkdir()
        for copy in range(250):
            shutil.copy2(source, tmp_path / name / f"{copy}.pdb")
    line = ["run", "protein", *VARIANTS["mpnn"][:2], *VARIANTS["mpnn"][4:], "--max_steps", "1", "--eval_every", "0", "--nproc", "2",
            "--num_examples_per_epoch", "4", "--val_split", "0.01", "--status_port", "0"]
    whole = subprocess.run([str(word) for word in [lockstep, *line, "--pdb_path", tmp_path / "reference", "--train_dir",
                                                   tmp_path / "first"]], env=clean_environment(), capture_output=True, text=True,
                           check=False, timeout=300)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    running = Running([lockstep, *line, "--pdb_path", tmp_path / "hurt", "--train_dir", tmp_path / "second"], tmp_path)
    parts = tmp_path / "hurt/.lockstep"
    running.wait_for(lambda: len(list(parts.glob("*.parts/*"))) >= 2, "two parts")
    running.kill_worker(0)
    assert running.end() == 0, running.output()
    assert re.search(r"structures +250 from ", running.output()), running.output()
    caches = [next((tmp_path / name / ".lockstep").glob("*.cache")).read_bytes() for name in ("reference", "hurt")]
    assert len(caches[0]) == len(caches[1])
    assert losses(tmp_path / "second") == losses(tmp_path / "first")
