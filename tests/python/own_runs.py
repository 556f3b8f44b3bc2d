"""Runs programs that use the package `lockstep`, under `lockstep launch` with three ranks, and compares what they have written."""
import pathlib
import sys

import pytest

from programs import ROOT, bin_folder, clean_environment, text

OWN = ROOT / "tests/python/user_programs/own"
CASES = OWN / "cases.py"
VENV = pathlib.Path(sys.executable).parent
PACKAGE = bin_folder().parent / "python"
STEPS = 12
# One after the other, each alone: at every moment of a step, rank 0 and others.
KILLS = ["0:1:forward", "1:2:backward", "2:3:last gradient", "0:4:reduced", "1:5:optimizer", "0:6:last gradient", "2:8:reduced",
         "1:11:optimizer"]


@pytest.fixture
def launch(lockstep, run, tmp_path):
    """Runs a program of the package to its end."""
    def call(*words, ranks=3, max_restarts=50, timeout=300, status_port=0, **variables):
        return run([lockstep, "launch", "--status_port", status_port, "--nproc", ranks, "--max_restarts", max_restarts, *words], cwd=tmp_path,
                   timeout=timeout, **clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE),
                                                        XDG_CACHE_HOME=str(tmp_path / "cache"), **variables))
    return call


@pytest.fixture
def own(launch, tmp_path_factory):
    """Runs a case to its end; its folder, with `output`."""
    def call(case, *kills, program=CASES, python=None, more=(), flags=(), **how):
        folder = tmp_path_factory.mktemp("own")
        words = [word for kill in kills for word in ("--kill", kill)]
        done = launch(*flags, *(["--", python] if python else []), program, "--folder", folder, "--case", case, *words, *more, **how)
        (folder / "output").write_text(text(done))
        assert done.returncode == 0, text(done)
        for number, kill in enumerate(kills):
            assert (folder / f"killed-{number}").exists(), f"{kill} did not happen: {text(done)}"
        return folder
    return call


_undisturbed = {}  # results of runs that several tests compare with


@pytest.fixture
def undisturbed(own):
    """The result of a case that nobody disturbs."""
    def call(case, program=CASES, ranks=3):
        if (case, ranks) not in _undisturbed:
            _undisturbed[case, ranks] = result_of(own(case, program=program, ranks=ranks))
        return _undisturbed[case, ranks]
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
    ranks = len(list(folder.glob("end-*.txt")))
    return [(losses_of(folder, rank), (folder / f"end-{rank}.txt").read_text()) for rank in range(ranks)]


def assert_equal(disturbed, expected, steps=STEPS, are_alike=True):
    """Bit for bit. A rank that dies between its last part in a step and the line that it would have written leaves that line out.
    `are_alike`: all ranks hold the same at the end."""
    for (losses, end), (all_losses, expected_end) in zip(disturbed, expected, strict=True):
        assert sorted(all_losses) == list(range(steps))
        assert losses.items() <= all_losses.items()
        assert end == expected_end
    assert {step for losses, _ in disturbed for step in losses} == set(range(steps))
    assert (len({end for _, end in expected}) == 1) == are_alike
