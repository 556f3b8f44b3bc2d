"""Programs that use the package `lockstep`, under `lockstep launch`: what is lost when a rank is lost. Three ranks: two hide every fault of
order, because a + b is b + a."""
import pathlib
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
def own(lockstep, run, tmp_path_factory, tmp_path):
    """Runs a case with three ranks to its end; its folder, with `output`."""
    def call(case, *kills, expected=0):
        folder = tmp_path_factory.mktemp("own")
        words = [word for kill in kills for word in ("--kill", kill)]
        done = run([lockstep, "launch", "--status_port", "0", "--nproc", "3", "--max_restarts", "50", CASES, "--folder", folder,
                    "--case", case, *words], cwd=tmp_path,
                   **clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(tmp_path / "cache")))
        (folder / "output").write_text(text(done))
        assert done.returncode == expected, text(done)
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


@pytest.mark.parametrize("case", ["Transformer", "Pictures", "Several", "AcrossIterations", "Gan", "Collectives", "Unseeded"])
def test_a_lost_rank_changes_no_bit_of_any_loss_or_state(own, case):
    undisturbed = result_of(own(case))
    assert_equal(result_of(own(case, *KILLS)), undisturbed)


def test_several_ranks_may_be_lost_at_once_and_while_others_come(own):
    undisturbed = result_of(own("Transformer"))
    disturbed = own("Transformer", "0:2:backward", "1:2:backward", "0:-1:restore", "2:5:last gradient", "1:5:forward", "0:7:optimizer")
    assert_equal(result_of(disturbed), undisturbed)


def test_a_rank_that_is_lost_before_all_have_begun_costs_a_start_of_all(own):
    assert_equal(result_of(own("Several", "1:-1:restore")), result_of(own("Several")))
