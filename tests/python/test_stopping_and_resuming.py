"""Stopping, dying and going on: nothing is lost, nothing is half-written, the curve is the undisturbed one."""
import hashlib
import json
import os
import re
import signal

import pytest

from jobs import is_alive, wait_until
from runs import SMALL_MODEL, Running, checkpoints, equal_weights, losses, records, weights

STEPS = 1200  # so many that a signal at the 25th finds the run at work, even where this test waits for the CPU


def command(lockstep, dataset, folder, *flags, nproc=2, steps=STEPS):
    return [lockstep, "run", "sasrec", "--dataset", dataset, "--train_dir", folder, "--nproc", nproc, "--dropout_rate",
            "0.2", "--num_epochs", 1_000_000, "--max_steps", steps, "--log_every", "1", "--eval_every", "0",
            "--checkpoint_every", "10", "--ema_decay", "0.9", *SMALL_MODEL, *flags]


# Enough steps that a signal always finds the run at work.
ENDLESS = 100_000


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a run that nothing happened to."""
    from programs import bin_folder, clean_environment, program, write_interactions
    import subprocess
    base = tmp_path_factory.mktemp("undisturbed")
    dataset = write_interactions(base / "small.txt")
    subprocess.run([str(w) for w in command(program(bin_folder() / "lockstep"), dataset, base / "run")], check=True,
                   env=clean_environment(), capture_output=True)
    return base / "run"


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_signal_finishes_the_step_and_leaves_a_checkpoint(lockstep, small_dataset, tmp_path, number, code):
    folder = tmp_path / "run"
    running = Running(command(lockstep, small_dataset, folder, "--checkpoint_every", "0", steps=ENDLESS), tmp_path)
    running.wait_for_step(folder, 20)
    running.signal(number)
    assert running.end() == code, running.output()
    last = max(losses(folder))
    assert checkpoints(folder) == [f"step-{last:08d}"]
    assert "resume" in running.output()


def test_a_stopped_run_goes_on_bit_exactly(run, lockstep, small_dataset, tmp_path, undisturbed):
    folder = tmp_path / "run"
    running = Running(command(lockstep, small_dataset, folder, steps=STEPS), tmp_path)
    running.wait_for_step(folder, 15)
    running.signal(signal.SIGTERM)
    assert running.end() == 143, running.output()
    done = run(command(lockstep, small_dataset, folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from" in done.stdout
    assert losses(folder) == losses(undisturbed)
    assert equal_weights(weights(folder), weights(undisturbed))


def test_a_second_ctrl_c_leaves_at_once(lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    running = Running(command(lockstep, small_dataset, folder, steps=ENDLESS), tmp_path)
    running.wait_for(lambda: checkpoints(folder), "complete checkpoint")
    workers = running.worker_pids()
    running.signal(signal.SIGINT)
    running.signal(signal.SIGINT)
    assert running.end() == 130, running.output()
    wait_until(lambda: not any(is_alive(pid) for pid in workers), "end of the workers", timeout=30)
    assert_all_complete(lockstep, folder)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_worker_costs_no_step(lockstep, small_dataset, tmp_path, undisturbed, rank):
    folder = tmp_path / "run"
    running = Running(command(lockstep, small_dataset, folder), tmp_path)
    running.wait_for_step(folder, 25)
    running.kill_worker(rank)
    assert running.end() == 0, running.output()
    assert f"rank {rank}" in running.output() and "SIGKILL" in running.output()
    assert losses(folder) == losses(undisturbed)
    assert equal_weights(weights(folder), weights(undisturbed))


def test_a_killed_agent_leaves_no_worker_and_the_run_goes_on(run, lockstep, small_dataset, tmp_path, undisturbed):
    folder = tmp_path / "run"
    running = Running(command(lockstep, small_dataset, folder), tmp_path)
    running.wait_for_step(folder, 25)
    workers = running.worker_pids()
    assert len(workers) == 2
    running.signal(signal.SIGKILL)
    running.end()
    wait_until(lambda: not any(is_alive(pid) for pid in workers), "end of the workers", timeout=30)
    assert_all_complete(lockstep, folder)
    done = run(command(lockstep, small_dataset, folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(folder) == losses(undisturbed)
    assert equal_weights(weights(folder), weights(undisturbed))


def test_a_checkpoint_of_two_ranks_goes_on_with_three_and_with_one(run, lockstep, small_dataset, tmp_path, undisturbed):
    for nproc in (3, 1):
        folder = tmp_path / f"w{nproc}"
        first = run(command(lockstep, small_dataset, folder, steps=60))
        assert first.returncode == 0, first.stdout + first.stderr
        second = run(command(lockstep, small_dataset, folder, nproc=nproc, steps=120))
        assert second.returncode == 0, second.stdout + second.stderr
        reference = losses(undisturbed)
        for step, loss in losses(folder).items():
            assert loss == pytest.approx(reference[step], rel=1e-5), f"step {step}, {nproc} ranks"


def test_a_damaged_checkpoint_is_passed_over_and_named(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, steps=30)).returncode == 0
    newest = folder / "step-00000030" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    done = run(command(lockstep, small_dataset, folder, steps=40))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed over" in done.stdout and "step-00000030" in done.stdout and "step-00000020" in done.stdout
    assert sorted(losses(folder)) == list(range(1, 41))


def test_another_runs_checkpoint_is_refused_with_the_ways_out(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, steps=10)).returncode == 0
    other = run(command(lockstep, small_dataset, folder, "--lr", "0.5", steps=20))
    assert other.returncode == 2
    assert "--resume" in other.stdout + other.stderr and "--lr" in other.stdout + other.stderr
    taken = run(command(lockstep, small_dataset, folder, "--lr", "0.5", "--resume", folder / "step-00000010", steps=20))
    assert taken.returncode == 0, taken.stdout + taken.stderr


def test_resume_with_another_batch_goes_on_at_the_same_place_in_the_data(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "first"
    assert run(command(lockstep, small_dataset, folder, "--batch_size", "6", steps=25)).returncode == 0
    taken = run(command(lockstep, small_dataset, tmp_path / "second", "--batch_size", "12", "--resume", folder, steps=20))
    assert taken.returncode == 0, taken.stdout + taken.stderr
    # 60 users: ten steps an epoch, then five. Two epochs and a half are 12 steps, and the 13th holds the next samples.
    assert "step 25 of the checkpoint, with 10 steps an epoch, is step 12 now, with 5" in taken.stdout
    assert sorted(losses(tmp_path / "second")) == list(range(13, 21))
    # Its own checkpoints count in its own steps.
    again = run(command(lockstep, small_dataset, tmp_path / "second", "--batch_size", "12", "--resume", folder, steps=24))
    assert again.returncode == 0 and "of the checkpoint" not in again.stdout, again.stdout + again.stderr
    assert sorted(losses(tmp_path / "second")) == list(range(13, 25))


def test_a_checkpoint_of_another_model_is_refused(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, steps=10)).returncode == 0
    done = run(command(lockstep, small_dataset, tmp_path / "other", "--hidden_units", "32", "--resume", folder, steps=20))
    assert done.returncode == 2
    assert "item_emb.weight" in done.stdout + done.stderr


def test_a_checkpoint_of_a_newer_format_is_refused(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, steps=10)).returncode == 0
    path = folder / "step-00000010" / "state.json"
    state = json.loads(path.read_text())
    del state["checksum"]
    state["format_version"] = 99
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    state["checksum"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(state))
    done = run(command(lockstep, small_dataset, folder, steps=20))
    assert done.returncode == 2
    assert "99" in done.stdout + done.stderr


def test_a_finished_run_has_nothing_left_to_do(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, steps=20)).returncode == 0
    before = losses(folder)
    again = run(command(lockstep, small_dataset, folder, steps=20))
    assert again.returncode == 0, again.stdout + again.stderr
    assert losses(folder) == before


def test_a_run_begun_with_resume_goes_on_from_its_own_newest_checkpoint_when_all_workers_die(
        run, lockstep, small_dataset, tmp_path):
    assert run(command(lockstep, small_dataset, tmp_path / "first", steps=20)).returncode == 0
    folder = tmp_path / "second"
    running = Running(command(lockstep, small_dataset, folder, "--resume", tmp_path / "first"), tmp_path)
    running.wait_for_step(folder, 45)
    for pid in running.worker_pids():
        os.kill(pid, signal.SIGKILL)
    assert running.end() == 0, running.output()
    origins = re.findall(r"^  state +resumed from (\S+)", running.output(), re.M)
    assert len(origins) == 2 and "first" in origins[0] and "second" in origins[1], origins


def test_the_last_checkpoint_holds_what_the_last_evaluation_found(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, steps=20)).returncode == 0
    counters = json.loads((folder / "step-00000020" / "state.json").read_text())["progress"]["counters"]
    assert counters["evaluated_step"] == 20 and counters["best_metric"] is not None
    assert run(command(lockstep, small_dataset, folder, steps=30)).returncode == 0
    epochs = [line.split()[0] for line in (folder / "log.txt").read_text().splitlines()]
    assert len(epochs) == len(set(epochs)) == 3, epochs  # the header and two evaluations
    assert not list(folder.glob(".stale-*"))


def test_a_stop_between_a_step_and_its_evaluation_loses_no_evaluation(run, lockstep, small_dataset, tmp_path):
    flags = ["--lr_schedule", "plateau", "--plateau_patience", "1", "--eval_every", "1"]
    steps = 400  # each evaluation takes longer than its steps
    assert run(command(lockstep, small_dataset, tmp_path / "whole", *flags, steps=steps)).returncode == 0
    folder = tmp_path / "stopped"
    running = Running(command(lockstep, small_dataset, folder, *flags, steps=steps), tmp_path)
    running.wait_for_step(folder, 15)
    running.signal(signal.SIGTERM)
    assert running.end() == 143, running.output()
    assert run(command(lockstep, small_dataset, folder, *flags, steps=steps)).returncode == 0
    assert losses(folder) == losses(tmp_path / "whole")
    evaluations = [r["step"] for r in records(folder) if r.get("evaluation")]
    assert evaluations == [r["step"] for r in records(tmp_path / "whole") if r.get("evaluation")]


def test_two_runs_in_one_folder_are_refused(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    first = Running(command(lockstep, small_dataset, folder, steps=ENDLESS), tmp_path)
    first.wait_for_step(folder, 15)
    second = run(command(lockstep, small_dataset, folder, steps=ENDLESS))
    assert second.returncode == 2, second.stdout + second.stderr
    assert ".lock" in second.stdout + second.stderr
    first.signal(signal.SIGTERM)
    assert first.end() == 143, first.output()


def test_early_stop_ends_all_ranks_at_the_same_step(run, lockstep, small_dataset, tmp_path):
    done = run(command(lockstep, small_dataset, tmp_path / "run", "--eval_every", "1", "--early_stop_patience", "2",
                       "--lr", "0", steps=ENDLESS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped early" in done.stdout


def test_four_ranks_weights_go_to_python_and_back(run, lockstep, small_dataset, tmp_path):
    import torch
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, nproc=4, steps=20)).returncode == 0
    exported = tmp_path / "exported.pt"
    assert run([lockstep, "ckpt", "export", folder, "--format", "pt", "--output", exported]).returncode == 0
    state = torch.load(exported, weights_only=True)
    assert equal_weights(dict(state), weights(folder))
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "python.pth")

    def figures(*flags):
        done = run(command(lockstep, small_dataset, tmp_path / "none", "--inference_only=true", *flags))
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"(?:NDCG|HR)@10: [0-9.]+", done.stdout)
    ours = figures("--state_dict_path", exported)
    assert len(ours) >= 4
    assert figures("--state_dict_path", tmp_path / "python.pth") == ours
    assert figures("--state_dict_path", folder) == ours


def test_inference_without_a_checkpoint_is_refused(run, lockstep, small_dataset, tmp_path):
    done = run(command(lockstep, small_dataset, tmp_path / "none", "--inference_only=true"))
    assert done.returncode == 2
    assert "--state_dict_path" in done.stdout + done.stderr


def assert_all_complete(lockstep, folder):
    """Every checkpoint that bears a final name is whole."""
    import subprocess
    verified = subprocess.run([lockstep, "ckpt", "verify", folder], capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr
