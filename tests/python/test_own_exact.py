"""What is rarer, or breaks at moments that a kill alone does not hit: every loss and the state at the end are those of the undisturbed run, bit
for bit. Three ranks."""
import re

import pytest

from own_runs import CASES, KILLS, OWN, assert_equal, launch, own, result_of, undisturbed  # noqa: F401
from programs import python_with_torch, text

MORE = OWN / "more_cases.py"
FEW_KILLS = ["0:2:last gradient", "1:5:reduced", "2:8:backward"]


def processes_of(folder, rank):
    return (folder / f"processes-{rank}.txt").read_text().split()


@pytest.mark.parametrize("case", [pytest.param("Rare", marks=pytest.mark.long), pytest.param("Compiled", marks=pytest.mark.long), "Sampled"])
def test_a_lost_rank_changes_no_bit(own, undisturbed, case):  # noqa: F811
    assert_equal(result_of(own(case, *FEW_KILLS, program=MORE)), undisturbed(case, MORE))


def test_a_lost_rank_has_its_own_buffers_again(own, undisturbed):  # noqa: F811
    assert_equal(result_of(own("OwnBuffers", *KILLS, program=MORE)), undisturbed("OwnBuffers", MORE), are_alike=False)


def test_a_rank_that_is_a_step_behind_is_replaced_and_that_is_no_failure(own, undisturbed):  # noqa: F811
    folder = own("Behind", program=MORE, more=["--trouble"], max_restarts=0)
    assert_equal(result_of(folder), undisturbed("Small", MORE))
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 2, 1], (folder / "output").read_text()


@pytest.mark.long
def test_in_a_block_a_rank_that_is_a_step_behind_goes_on_with_the_others_state(own, undisturbed):  # noqa: F811
    folder = own("BehindInBlock", program=MORE, more=["--trouble"], max_restarts=0)
    assert_equal(result_of(folder), undisturbed("InBlock", MORE))
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 1, 1], (folder / "output").read_text()


@pytest.mark.long
def test_in_a_block_a_collective_may_follow_a_step_in_any_iteration_and_no_step_is_redone(own, undisturbed):  # noqa: F811
    folder = own("Sometimes", "2:6:metric", program=MORE, max_restarts=1)
    assert_equal(result_of(folder), undisturbed("InBlock", MORE))
    output = (folder / "output").read_text()
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 1, 2], output
    assert any("goodput" in line and line.endswith(", 0 steps redone") for line in output.splitlines()), output


@pytest.mark.long
def test_in_a_block_weights_may_be_moved_and_no_step_is_redone(own, undisturbed):  # noqa: F811
    folder = own("SharpnessInBlock", "1:5:second", program=MORE, max_restarts=1)
    assert_equal(result_of(folder), undisturbed("SharpnessInBlock", MORE))
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 2, 1], (folder / "output").read_text()


@pytest.mark.long
def test_without_a_block_a_rank_that_is_lost_while_weights_are_moved_costs_a_start_of_all_which_is_said(own, undisturbed):  # noqa: F811
    folder = own("Sharpness", "1:5:second", program=MORE, max_restarts=1)
    assert_equal(result_of(folder), undisturbed("Sharpness", MORE))
    output = (folder / "output").read_text()
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [2, 2, 2], output
    assert "a rank was lost while the parameters were no longer those of the newest commit" in output and "`with run.step()`" in output


@pytest.mark.long
def test_each_rank_that_hangs_is_replaced_with_the_stacks_of_all_and_whoever_has_the_first_port_lives_on(own, undisturbed, free_port):  # noqa: F811
    folder = own("HangingTwice", program=MORE, flags=["--stall_timeout_seconds", 2, "--master_port", free_port()], max_restarts=2)
    assert_equal(result_of(folder), undisturbed("Small", MORE))
    output = (folder / "output").read_text()
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 2, 2], output
    assert output.count("_reducer.py\", line") >= 4 and output.count("in wait_for") >= 2, output


@pytest.mark.parametrize(("case", "where", "step"), [("Uneven", "is at the end of its loop", 11), ("Leaving", "has ended its program", 7)])
def test_a_rank_that_is_at_its_end_before_the_others_is_named(launch, tmp_path, case, where, step):  # noqa: F811
    done = launch(MORE, "--folder", tmp_path, "--case", case, max_restarts=0)
    assert done.returncode == 1, text(done)
    assert re.search(f"rank 1 {where} after {step} steps, and rank [02] waits for it in a collective, in step {step}: make the same number of steps",
                     text(done)), text(done)


@pytest.mark.long
def test_a_rank_that_has_ended_is_not_silent_while_another_saves(own):  # noqa: F811
    own("Saving", program=MORE, flags=["--heartbeat_timeout_seconds", 2], max_restarts=0)


@pytest.mark.long
def test_ranks_that_wait_for_one_that_evaluates_are_not_stalled_nor_is_it(own):  # noqa: F811
    own("Evaluating", program=MORE, flags=["--heartbeat_timeout_seconds", 2, "--stall_timeout_seconds", 3], max_restarts=0)


@pytest.mark.long
def test_ranks_that_all_wait_before_the_first_step_are_stalled(launch, tmp_path):  # noqa: F811
    done = launch("--stall_timeout_seconds", 2, MORE, "--folder", tmp_path, "--case", "WithoutTheOthers", max_restarts=0)
    assert done.returncode == 11, text(done)
    assert re.search(r"has shown no progress for \d+ s at step 0, in a collective", text(done)), text(done)


def test_a_rank_whose_volume_hangs_is_stalled_and_replaced(own, undisturbed, tmp_path):  # noqa: F811
    folder = own("HangingVolume", program=MORE, more=["--checkpoint", 3], flags=["--stall_timeout_seconds", 2],
                 LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    output = (folder / "output").read_text()
    assert re.search(r"rank 0 \(node 0\) has shown no progress for \d+ s at step 6, waiting for the disk; 2 ranks wait for it", output), output
    assert_equal(result_of(folder), undisturbed("Small", MORE))
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} == {"step-00000009", "step-00000012"}


@pytest.mark.long
def test_a_rank_whose_abandoned_collectives_hold_more_than_its_gradients_is_replaced(own, undisturbed, free_port):  # noqa: F811
    port = free_port()
    folder = own("Abandoned", "2:6:reduced", program=MORE, more=["--trouble"], max_restarts=1, status_port=port, STATUS_PORT=str(port))
    assert_equal(result_of(folder), undisturbed("Small", MORE))
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 2, 2], (folder / "output").read_text()


@pytest.mark.parametrize(("case", "kills"), [
    *(pytest.param(case, kills, marks=pytest.mark.long) for case, kills in [
        ("Between", ["1:4:reduced"]), ("Branching", ["0:4:reduced"]), ("Reduced", ["0:3:metric", "1:6:reduced"]), ("Unused", ["1:6:reduced"]),
        ("Left", ["1:4:optimizer", "2:8:reduced", "1:11:optimizer"]), ("Kept", ["1:3:reduced", "0:11:optimizer"]), ("After", ["2:12:after"]),
        ("Warmup", ["1:2:reduced"]), ("Growing", ["0:4:reduced", "2:7:backward"]), ("Averaged", ["1:5:metric"]), ("Sharpness", ["1:5:second"])]),
    ("LeftEpochs", ["1:2:optimizer", "0:5:optimizer", "2:8:backward", "1:11:optimizer"])])
def test_what_is_rarer_in_a_program_changes_no_bit_either(own, undisturbed, case, kills):  # noqa: F811
    assert_equal(result_of(own(case, *kills, program=MORE, max_restarts=len(kills))), undisturbed(case, MORE))


def test_an_object_that_does_not_take_its_state_is_named(launch, tmp_path):  # noqa: F811
    done = launch(MORE, "--folder", tmp_path, "--case", "Unloadable", "--kill", "1:4:reduced", max_restarts=1)
    assert done.returncode == 1, text(done)
    assert "odd does not take the state that it is given (RuntimeError: size mismatch for x): make it with the same sizes" in text(done), text(done)


def test_a_state_that_does_not_arrive_as_it_was_is_named(launch, tmp_path):  # noqa: F811
    done = launch(MORE, "--folder", tmp_path, "--case", "Casting", "--kill", "1:4:reduced", max_restarts=1)
    assert done.returncode == 1, text(done)
    assert "average.x is float32 [3] " in text(done) and "after the state of rank 0 was loaded, and is float64 [3] " in text(done), text(done)


@pytest.mark.long
def test_state_above_2_gib(own):  # noqa: F811
    expected = result_of(own("Large", program=MORE, ranks=2, timeout=1200))
    assert_equal(result_of(own("Large", "1:4:backward", program=MORE, ranks=2, timeout=1200)), expected)


# The oldest PyTorch that is promised, and the newest.
@pytest.mark.long
@pytest.mark.parametrize("version", ["2.4.0", "2.15.0"])
@pytest.mark.parametrize("case", ["Transformer", "Pictures", "Several", "AcrossIterations", "Gan", "Collectives", "Epochs"])
def test_a_lost_rank_changes_no_bit_with_another_torch(own, case, version):  # noqa: F811
    python = python_with_torch(version)
    assert_equal(result_of(own(case, *KILLS, python=python)), result_of(own(case, python=python)))


MOMENTS = ["forward", "backward", "last gradient", "reduced", "optimizer"]
PROGRAMS = {CASES: ["Transformer", "Pictures", "Several", "AcrossIterations", "Gan", "Collectives", "Unseeded", "Epochs", "SyncFlag"],
            MORE: ["OwnBuffers", "Rare", "Compiled", "Sampled", "InBlock", "Branching", "Reduced", "Warmup", "Growing", "Averaged"]}


@pytest.mark.long
@pytest.mark.parametrize("is_rank_0", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("program", "case"), [(program, case) for program, cases in PROGRAMS.items() for case in cases])
def test_each_case_with_a_rank_lost_at_each_moment(own, undisturbed, program, case, ranks, is_rank_0):  # noqa: F811
    kills = [f"{0 if is_rank_0 else ranks - 1}:{1 + 2 * number}:{moment}" for number, moment in enumerate(MOMENTS)]
    assert_equal(result_of(own(case, *kills, program=program, ranks=ranks)), undisturbed(case, program, ranks), are_alike=case != "OwnBuffers")
