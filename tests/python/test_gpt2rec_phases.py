"""`lockstep run gpt2rec`: the rates of its phases, which weights each of them trains, when it halves a rate or stops early, and
a loss between two of them, and going on with another number of ranks."""
import re

import pytest
import torch

from gpt2rec_runs import QUICK, SMALL, train
from jobs import WorkloadJob, fresh_starts
from programs import text
from runs import checkpoints, equal_weights, evaluations, losses, records, weights

# A batch of all ratings: each epoch is one step, and each step is followed by an evaluation.
WHOLE = ["--batch_size", "1000"]


def rates(folder):
    """step → learning rate."""
    return {record["step"]: record["lr"] for record in records(folder) if "loss" in record}


# --- phases


def test_each_phase_has_its_own_rate_from_its_first_step_on(run, lockstep, small_1m, tmp_path):
    flags = [*SMALL, *WHOLE, "--phase1_epochs", "2", "--phase2_epochs", "2", "--phase1_lr", "3e-4", "--phase2_lr", "7e-5"]
    done = train(run, lockstep, tmp_path / "run", *flags, data=small_1m)
    assert rates(tmp_path / "run") == {1: 3e-4, 2: 3e-4, 3: 7e-5, 4: 7e-5}
    assert re.search(r"learning rate +0\.0003, then 7e-05, plateau", done.stdout), done.stdout
    assert "now phase 2: 2 epochs, lr 7e-05, clip 0.5, from step 3" in " ".join(text(done).split())
    assert "(with a higher --phase2_epochs)" in " ".join(text(done).split())
    flags[flags.index("--phase2_epochs") + 1] = "3"
    train(run, lockstep, tmp_path / "run", *flags, data=small_1m)
    assert rates(tmp_path / "run") == {1: 3e-4, 2: 3e-4, 3: 7e-5, 4: 7e-5, 5: 7e-5}


def test_adapters_rest_in_phase_1_and_are_trained_in_phase_2(run, lockstep, tmp_path):
    flags = [*SMALL, "--batch_size", "3000", "--phase1_epochs", "1", "--phase2_epochs", "1", "--phase1_lr", "0",
             "--phase2_lr", "0.02", "--lr_schedule", "constant"]
    done = train(run, lockstep, tmp_path / "run", *flags)
    assert "LoRA included" in text(done)
    steps = len(losses(tmp_path / "run"))
    train(run, lockstep, tmp_path / "first", *flags, "--max_steps", steps // 2)  # the end of phase 1
    adapters = [name for name in weights(tmp_path / "run") if name.endswith("lora_B.weight")]
    assert len(adapters) == 6
    before, after = weights(tmp_path / "first"), weights(tmp_path / "run")
    for name in adapters:
        assert before[name].count_nonzero() == 0 and after[name].abs().max() > 1e-4, name

    # model.pth is of the best evaluation: that of phase 2, since the first phase learnt nothing.
    first, second = (record["valid_ndcg@10"] for record in evaluations(tmp_path / "run"))
    assert second > first
    saved = torch.load(tmp_path / "run/model.pth", weights_only=True)
    for name in adapters:
        in_guide = "gpt2.base_model.model.transformer." + name.replace("lora_B", "lora_B.default")
        assert saved[in_guide].equal(after[name]), name
    assert (tmp_path / "run/lora/adapter_model.safetensors").exists()


def test_a_second_phase_with_cached_texts_trains_no_adapters(run, lockstep, small_1m, tmp_path):
    done = train(run, lockstep, tmp_path / "run", *SMALL, *WHOLE, "--phase1_epochs", "1", "--phase2_epochs", "2",
                 "--phase2_cache", "--phase2_lr", "0.01", data=small_1m)
    assert "LoRA included" not in text(done)
    assert list(losses(tmp_path / "run")) == [1, 2, 3]
    assert not any("lora" in name for name in weights(tmp_path / "run"))
    saved = torch.load(tmp_path / "run/model.pth", weights_only=True)
    seconds = [tensor for name, tensor in saved.items() if "lora_B" in name]
    assert len(seconds) == 6 and not any(tensor.count_nonzero() for tensor in seconds)
    assert not (tmp_path / "run/lora").exists()


# --- halved rates and early stops


@pytest.mark.parametrize("phases, ends", [
    (["--lr", "0", "--epochs", "50"], {1: 0, 2: 0, 3: 0}),
    # Each phase has its own patience; what was best in the first one stays the best.
    (["--phase1_epochs", "50", "--phase2_epochs", "50", "--phase1_lr", "0", "--phase2_lr", "0"], dict.fromkeys(range(1, 6), 0))],
    ids=["one phase", "two phases"])
def test_a_run_stops_early_when_validation_is_no_longer_better(run, lockstep, small_1m, tmp_path, phases, ends):
    """At rate 0 the first evaluation is the best: a phase ends after two that are no better."""
    done = train(run, lockstep, tmp_path / "run", *SMALL, *WHOLE, *phases, "--lr_schedule", "constant",
                 "--early_stopping_patience", "2", "--nproc", "2", data=small_1m)
    assert "stopped early" in text(done)
    assert rates(tmp_path / "run") == ends
    found = evaluations(tmp_path / "run")
    assert [record["step"] for record in found] == list(ends)
    assert len({record["valid_ndcg@10"] for record in found}) == 1


def halved(figures, patience, rate):
    """step → rate of the steps, each of which is followed by an evaluation that found a figure; less is better."""
    best, bad, found = None, 0, {}
    for step, figure in figures.items():
        found[step] = rate
        is_better = best is None or figure < best - abs(best) * 1e-4
        best, bad = (figure, 0) if is_better else (best, bad + 1)
        if bad > patience:
            rate, bad = rate / 2, 0
    return found


def test_the_rate_is_halved_when_the_loss_stays(run, lockstep, small_1m, tmp_path):
    train(run, lockstep, tmp_path / "run", *SMALL, *WHOLE, "--epochs", "6", "--lr", "1e-8", "--min_lr", "0", "--dropout", "0",
          "--plateau_patience", "1", data=small_1m)
    # The first evaluation is the best; after the third and the fifth there are two more that are no better.
    assert rates(tmp_path / "run") == pytest.approx({1: 1e-8, 2: 1e-8, 3: 1e-8, 4: 5e-9, 5: 5e-9, 6: 2.5e-9})


def test_the_training_loss_decides_when_the_rate_is_halved(run, lockstep, small_1m, tmp_path):
    train(run, lockstep, tmp_path / "run", *SMALL, *WHOLE, "--epochs", "14", "--lr", "0.01", "--min_lr", "0", "--dropout", "0.8",
          "--plateau_patience", "0", "--early_stop_patience", "0", "--nproc", "2", data=small_1m)
    by_step = losses(tmp_path / "run")
    assert len(by_step) == 14
    found = rates(tmp_path / "run")
    assert found == pytest.approx(halved(by_step, 0, 0.01)) and found[14] < 0.01
    validation = {record["step"]: -record["valid_ndcg@10"] for record in evaluations(tmp_path / "run")}
    assert found != pytest.approx(halved(validation, 0, 0.01)), "the two say the same: nothing is shown"


# --- losses


# Rank 3 shows where the group is: the others have ended phase 1 and wait for it.
@pytest.mark.parametrize("killed", [3, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.parametrize("cached", [[], pytest.param(["--phase2_cache"], marks=pytest.mark.long)],
                         ids=["adapters trained", "texts encoded again"])
def test_a_worker_killed_during_the_change_of_phase_costs_no_step(run, lockstep, small_1m, tmp_path, killed, cached):
    flags = [*SMALL, "--batch_size", "12", "--phase1_epochs", "8", "--phase2_epochs", "2", "--phase1_lr", "1e-3",
             "--phase2_lr", "1e-3", "--early_stop_patience", "0", *cached]
    train(run, lockstep, tmp_path / "whole", *flags, "--nproc", "4", data=small_1m)
    whole = losses(tmp_path / "whole")
    end_of_phase_1 = len(whole) // 10 * 8
    job = WorkloadJob(lockstep, "gpt2rec", tmp_path / "run", tmp_path, "--data_path", small_1m, *QUICK[:2], *QUICK[4:], *flags,
                      "--rejoin_timeout_seconds", "20", faulty=True)
    job.wait_for_progress(2)
    job.inject(3, "stall_restoring", 3600.0 if killed == 3 else 5.0)
    status = job.wait_for_status(lambda s: all(worker["activity"] == "restoring" for worker in s["workers"]), "the change of phase")
    assert {worker["step"] for worker in status["workers"]} == {end_of_phase_1}
    job.kill_rank(killed)
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    assert re.findall(r"state from rank \d at step (\d+)", job.output()) == [str(end_of_phase_1)], job.output()
    assert losses(tmp_path / "run") == whole and rates(tmp_path / "run") == rates(tmp_path / "whole")
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole") != []
    assert equal_weights(weights(tmp_path / "run"), weights(tmp_path / "whole"))


# --- other ranks


@pytest.mark.parametrize("before, after, phase, resume",
                         [("2", "1", 1, False), ("2", "1", 2, False), ("2", "1", 2, True), ("1", "3", 1, False)],
                         ids=["fewer in phase 1", "fewer in phase 2", "fewer from another folder", "more in phase 1"])
def test_a_run_goes_on_with_another_number_of_ranks(run, lockstep, small_1m, tmp_path, before, after, phase, resume):
    flags = [*SMALL, "--batch_size", "101", "--phase1_epochs", "1", "--phase2_epochs", "1", "--phase1_lr", "1e-3", "--phase2_lr",
             "1e-3"]
    train(run, lockstep, tmp_path / "whole", *flags, "--nproc", before, data=small_1m)
    whole = losses(tmp_path / "whole")
    stop = 2 if phase == 1 else len(whole) // 2 + 1
    assert (stop < len(whole) // 2) == (phase == 1)
    first = tmp_path / "first"
    train(run, lockstep, first, *flags, "--nproc", before, "--max_steps", stop, data=small_1m)
    second = tmp_path / "second" if resume else first
    done = train(run, lockstep, second, *flags, *(["--resume", first] if resume else []), "--nproc", after, data=small_1m)
    assert "resumed from" in text(done)
    found = losses(second)
    assert list(found) == [step for step in whole if not resume or step > stop]
    assert found == pytest.approx({step: whole[step] for step in found}, rel=1e-4)
    assert checkpoints(second)[-1] == checkpoints(tmp_path / "whole")[-1]
