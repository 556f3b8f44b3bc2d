"""Programs that use the package `lockstep`, under `lockstep launch`: what is lost when a rank is lost. Three ranks: two hide every fault of
order, because a + b is b + a."""
import pathlib
import subprocess
import sys

import pytest

from programs import ROOT, bin_folder, clean_environment, text

CASES = ROOT / "tests/python/user_programs/own/cases.py"
VENV = pathlib.Path(sys.executable).parent
PACKAGE = bin_folder().parent / "python"
STEPS = 12
# One after the other, each alone: at every moment of a step, rank 0 and others.
KILLS = ["0:1:forward", "1:2:backward", "2:3:last gradient", "0:4:reduced", "1:5:optimizer", "0:6:last gradient", "2:8:reduced",
         "1:11:optimizer"]


@pytest.fixture
def launch(lockstep, run, tmp_path):
    """Runs a program of the package with three ranks to its end."""
    def call(*words):
        return run([lockstep, "launch", "--status_port", "0", "--nproc", "3", "--max_restarts", "50", *words], cwd=tmp_path,
                   **clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(tmp_path / "cache")))
    return call


@pytest.fixture
def own(launch, tmp_path_factory):
    """Runs a case to its end; its folder, with `output`."""
    def call(case, *kills, more=()):
        folder = tmp_path_factory.mktemp("own")
        words = [word for kill in kills for word in ("--kill", kill)]
        done = launch(CASES, "--folder", folder, "--case", case, *words, *more)
        (folder / "output").write_text(text(done))
        assert done.returncode == 0, text(done)
        for number, kill in enumerate(kills):
            assert (folder / f"killed-{number}").exists(), f"{kill} did not happen: {text(done)}"
        return folder
    return call


def losses_of(folder, rank):
    """step → loss; the same each time it was made."""
    found = {}
    for line in (folder / f"losses-{rank}.txt").read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"step {step} of rank {rank} was made again, with another loss"
    return found


def result_of(folder):
    """Every loss of every rank, and what each rank holds at the end."""
    return [(losses_of(folder, rank), (folder / f"end-{rank}.txt").read_text()) for rank in range(3)]


def assert_equal(disturbed, undisturbed):
    """A rank that dies between its last part in a step and the line that it would have written leaves that line out."""
    for (losses, end), (all_losses, undisturbed_end) in zip(disturbed, undisturbed, strict=True):
        assert sorted(all_losses) == list(range(STEPS))
        assert losses.items() <= all_losses.items()
        assert end == undisturbed_end == undisturbed[0][1]
    assert {step for losses, _ in disturbed for step in losses} == set(range(STEPS))


@pytest.mark.parametrize("case", ["Transformer", "Pictures", "Several", "AcrossIterations", "Gan", "Collectives", "Unseeded", "Epochs", "SyncFlag"])
def test_a_lost_rank_changes_no_bit_of_any_loss_or_state(own, case):
    undisturbed = result_of(own(case))
    assert_equal(result_of(own(case, *KILLS)), undisturbed)


def test_several_ranks_may_be_lost_at_once_and_while_others_come(own):
    undisturbed = result_of(own("Transformer"))
    disturbed = own("Transformer", "0:2:backward", "1:2:backward", "0:-1:restore", "2:5:last gradient", "1:5:forward", "0:7:optimizer")
    assert_equal(result_of(disturbed), undisturbed)


def test_a_rank_that_is_lost_before_all_have_begun_costs_a_start_of_all(own):
    assert_equal(result_of(own("Several", "1:-1:restore")), result_of(own("Several")))


def test_a_rank_that_stops_is_replaced(own):
    assert_equal(result_of(own("Transformer", "1:4:backward", more=["--signal", "SIGSTOP"])), result_of(own("Transformer")))


def test_a_backward_that_fails_and_is_caught_is_made_again_by_all(own):
    assert_equal(result_of(own("OutOfMemory", more=["--trouble"])), result_of(own("OutOfMemory")))


@pytest.mark.parametrize("case", ["Transformer", "Collectives"])
def test_the_same_program_gives_the_same_numbers_under_torchrun(own, tmp_path, case):
    subprocess.run([VENV / "torchrun", "--standalone", "--nproc_per_node", "3", CASES, "--folder", tmp_path, "--case", case], check=True,
                   env=clean_environment(PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1"), timeout=300)
    assert_equal(result_of(tmp_path), result_of(own(case)))


def test_the_same_program_runs_alone(tmp_path):
    subprocess.run([sys.executable, CASES, "--folder", tmp_path, "--case", "Epochs"], check=True, timeout=300,
                   env=clean_environment(PYTHONPATH=str(PACKAGE)))
    assert sorted(losses_of(tmp_path, 0)) == list(range(STEPS))


@pytest.mark.parametrize(("what", "words"), [
    ("not begun", "lockstep.init_process_group has not been called yet: call it first"),
    ("begun twice", "lockstep.init_process_group is called twice: call it once"),
    ("other model", "parameter 0 is weight float32 [4, 9] in this rank and weight float32 [4, 8] in rank 0: build the same model in all ranks"),
    ("other number of models", "this rank has wrapped more than 1 models in lockstep.DistributedDataParallel before lockstep.restore, and rank 0 has wrapped 1"),
    ("restored twice", "lockstep.restore is called twice: call it once, with all objects"),
    ("no state", "lockstep.restore got data=list, which has no state_dict and load_state_dict"),
    ("unreadable state", "the state of odd cannot be handed to another rank"),
    ("new group", "torch.distributed.new_group cannot be recovered when a rank is lost"),
    ("all to all", "torch.distributed.all_to_all_single cannot be recovered when a rank is lost"),
    ("reentrant", "came from a backward inside another one (torch.utils.checkpoint with use_reentrant=True): use use_reentrant=False"),
])
def test_a_mistake_is_refused_by_name(lockstep, run, tmp_path, what, words):
    done = run([lockstep, "launch", "--status_port", "0", "--nproc", "3", "--max_restarts", "0",
                ROOT / "tests/python/user_programs/own/mistakes.py", what], cwd=tmp_path,
               **clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(tmp_path.parent / "cache")))
    assert done.returncode == 1
    assert words in text(done)
