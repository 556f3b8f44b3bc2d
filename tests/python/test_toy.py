"""The toy workload, which uses each part of the seam, while something breaks: workers and an agent that are killed in both phases,
in an evaluation, while an output is written, while the data are prepared. Two nodes of two ranks; epochs and batches are uneven,
dropout is on, the second phase trains what the first one kept."""
import os
import random
import re
import shutil
import signal

import pytest

from jobs import WorkloadJob, fresh_starts, max_step, wait_until
from plugin_build import EXAMPLE, build_plugin, do
from programs import ROOT
from runs import Running, checkpoints, equal_weights, evaluations, losses, weights


@pytest.fixture(scope="module")
def toy(installed, tmp_path_factory):
    """The flags that name it."""
    base = tmp_path_factory.mktemp("toy")
    shutil.copy(ROOT / "tests/python/plugins/toy.cc", base)
    shutil.copy(ROOT / "tests/runner/loop/toy_workload.h", base)
    (base / "CMakeLists.txt").write_text((EXAMPLE / "CMakeLists.txt").read_text().replace("byte_lm", "toy"))
    return ["--plugin", build_plugin(base, base / "build", installed), "--batch_size", 20, "--threads", 1, "--log_every", 1,
            "--eval_every", 2, "--checkpoint_every", 30, "--rejoin_timeout_seconds", 20, "--ema_decay", 0.9, "--lr_schedule", "plateau"]


@pytest.fixture(scope="module")
def undisturbed(lockstep, toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    do(lockstep, "run", "toy", *toy, "--nproc", 4, "--status_port", 0, "--train_dir", folder)
    steps = max(losses(folder))
    assert steps > 100 and len(evaluations(folder)) >= 10
    return folder


def texts(folder):
    """What the ranks had read in each evaluation, by its file."""
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("sentences.txt")}


def finish(job, undisturbed, lost_texts=0):
    """All is as in the undisturbed run; but for so many texts, which were lost with the rank that had gathered them."""
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    assert losses(job.folder) == losses(undisturbed)
    assert evaluations(job.folder) == evaluations(undisturbed)
    assert equal_weights(weights(job.folder), weights(undisturbed))
    best = [(folder / "best_model.pt").read_bytes() for folder in (job.folder, undisturbed)]
    assert best[0] == best[1]
    found, expected = texts(job.folder), texts(undisturbed)
    assert found.keys() == expected.keys() and len(found) >= 2
    changed = [text for path, text in found.items() if text != expected[path]]
    assert len(changed) <= lost_texts and set(changed) <= {"what the ranks had read is lost\n"}


def start(lockstep, toy, tmp_path, *flags):
    return WorkloadJob(lockstep, "toy", tmp_path / "run", tmp_path, *toy, "--milliseconds", 20, *flags, faulty=True)


def test_its_task_reads_a_sentence_with_the_averages_and_the_buffer_of_a_checkpoint(lockstep, toy, undisturbed):
    """By hand: sentence 5 has the last five of seven words."""
    import torch
    from safetensors.torch import load_file
    average = load_file(undisturbed / checkpoints(undisturbed)[-1] / "ema.safetensors")
    offset = float(weights(undisturbed)["offset"])
    words = torch.tensor([1 + (5 + place * place) % 7 for place in range(2, 7)])
    table = torch.sin(torch.arange(32.0)).reshape(8, 4)
    number = float((torch.tanh(table[words] @ average["trunk"]) @ average["number"]).sum())
    plugin = toy[:2]
    said = do(lockstep, "toy", "read", *plugin, "--checkpoint", undisturbed, "--sentence", 5)
    assert said.startswith("sentence 5: ") and float(said.split()[-1]) == pytest.approx(number - offset, abs=0.001)
    assert offset != 0.0


def test_weights_without_the_buffer_are_completed_by_the_plugins_workload(lockstep, toy, tmp_path, undisturbed):
    from safetensors.torch import save_file
    save_file({name: tensor for name, tensor in weights(undisturbed).items() if name != "offset"}, tmp_path / "weights.safetensors")
    said = do(lockstep, "run", "toy", *toy, "--nproc", 1, "--status_port", 0, "--train_dir", tmp_path / "run", "--max_steps", 1,
              "--state_dict_path", tmp_path / "weights.safetensors")
    assert "weights from " in said and losses(tmp_path / "run").keys() == {1}


def test_nodes_whose_frozen_tables_differ_are_refused(lockstep, toy, tmp_path, free_port):
    port = free_port()

    def node(rank, pitch):
        return Running([lockstep, "run", "toy", *toy, "--table_pitch", pitch, "--train_dir", tmp_path / f"run{rank}", "--nproc", 1,
                        "--nnodes", 2, "--node_rank", rank, "--coordinator", f"127.0.0.1:{port}", "--status_port", 0], tmp_path)
    first, second = node(0, 1), node(1, 2)
    assert second.end() == 2, second.output()
    assert re.search("the sha256 of the table of words is [0-9a-f]{64} in .* and [0-9a-f]{64} in ", second.output())
    assert "start all ranks with the same flags, data and version of lockstep" in second.output()
    first.signal(signal.SIGKILL)
    first.end()


def test_killed_ranks_in_both_phases_cost_no_step(lockstep, toy, tmp_path, undisturbed):
    job = start(lockstep, toy, tmp_path)
    steps = max(losses(undisturbed))
    draw = random.Random(7)
    for number, part in enumerate((0.1, 0.3, 0.45, 0.6, 0.75), start=1):
        job.wait_for_progress(int(part * steps))
        if number == 4:
            os.kill(job.agents()[1], signal.SIGKILL)
        else:
            job.kill_rank(draw.randrange(4))
        assert max_step(job.wait_for_recovery(number)) < steps
    finish(job, undisturbed, lost_texts=5)


@pytest.mark.parametrize("rank", [0, pytest.param(3, marks=pytest.mark.long)])
def test_a_rank_that_is_killed_in_an_evaluation_costs_neither_a_step_nor_the_evaluation(lockstep, toy, tmp_path, undisturbed, rank):
    job = start(lockstep, toy, tmp_path)
    job.wait_for_progress(20)
    job.inject(1, "slow_evaluation", 3600.0)
    job.wait_for_status(lambda status: status["workers"] and all(
        worker["activity"] == "evaluating" for worker in status["workers"]), "an evaluation")
    job.kill_rank(rank)
    job.wait_for_recovery(1)
    finish(job, undisturbed)


def test_rank_0_is_killed_while_it_writes_an_output(lockstep, toy, tmp_path, undisturbed):
    job = start(lockstep, toy, tmp_path, "--checkpoint_every", 100000)
    job.wait_for_progress(20)
    job.inject(0, "stall_write", 3600.0)
    wait_until(lambda: [path for path in job.folder.rglob("*tmp*") if path.is_file()], "an output that is being written")
    job.kill_rank(0)
    job.wait_for_recovery(1)
    assert job.end() == 0, job.output()
    assert not [path for path in job.folder.rglob("*tmp*") if path.is_file()]
    assert losses(job.folder) == losses(undisturbed)
    assert (job.folder / "best_model.pt").read_bytes() == (undisturbed / "best_model.pt").read_bytes()
    assert texts(job.folder).keys() == texts(undisturbed).keys()


@pytest.mark.long
def test_a_rank_that_is_killed_while_it_prepares_goes_on_where_it_was(lockstep, toy, tmp_path, undisturbed):
    """Eight seconds, longer than the deadlines of a stall, of silence, of a worker's hello and of a first group (3 s, to which
    the coordinator adds the 2 s of silence): parts that are finished are a sign of life."""
    parts = tmp_path / "parts"
    job = start(lockstep, toy, tmp_path, "--prepared", parts, "--part_milliseconds", 400, "--stall_timeout_seconds", 1,
                "--heartbeat_timeout_seconds", 2, "--rejoin_timeout_seconds", 1, "--rendezvous_timeout_seconds", 3)
    job.wait_for(lambda: (parts / "6").exists(), "seven parts")
    before = {name: (parts / name).stat().st_mtime_ns for name in "0123"}
    job.kill_rank(2)
    finish(job, undisturbed)
    assert job.output().count("SIGKILL") == 1 and "did not say hello" not in job.output(), job.output()
    made = sorted(path.stat().st_mtime for path in parts.iterdir())
    assert len(made) == 20 and made[-1] - made[0] > 6, "it was no longer than the deadlines"
    assert {name: (parts / name).stat().st_mtime_ns for name in before} == before
