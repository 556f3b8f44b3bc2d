"""Programs that use the package `lockstep`, under `lockstep launch`: what is lost when a rank is lost. Three ranks: two hide every fault of
order, because a + b is b + a."""
import subprocess
import sys

import pytest

from own_runs import CASES, KILLS, PACKAGE, VENV, assert_equal, launch, own, result_of, undisturbed  # noqa: F401
from programs import clean_environment


# test_own_exact.py has every case with other kills (long).
@pytest.mark.parametrize("case", ["Gan", *(pytest.param(case, marks=pytest.mark.long) for case in ("Epochs", "Pictures", "AcrossIterations", "Collectives"))])
def test_a_lost_rank_changes_no_bit_of_any_loss_or_state(own, undisturbed, case):  # noqa: F811
    assert_equal(result_of(own(case, *KILLS)), undisturbed(case))


def test_several_ranks_may_be_lost_at_once_and_while_others_come(own, undisturbed):  # noqa: F811
    disturbed = own("Transformer", "0:2:backward", "1:2:backward", "0:-1:restore", "2:5:last gradient", "1:5:forward", "0:7:optimizer")
    assert_equal(result_of(disturbed), undisturbed("Transformer"))


def test_a_rank_that_is_lost_before_all_have_begun_costs_a_start_of_all(own, undisturbed):  # noqa: F811
    assert_equal(result_of(own("Several", "1:-1:restore")), undisturbed("Several"))


def test_a_rank_that_stops_is_replaced(own, undisturbed):  # noqa: F811
    assert_equal(result_of(own("Transformer", "1:4:backward", more=["--signal", "SIGSTOP"])), undisturbed("Transformer"))


def test_a_rank_that_stops_while_it_is_started_again_is_replaced(own, undisturbed):  # noqa: F811
    """When it has said hello, and has no state yet."""
    assert_equal(result_of(own("Transformer", "1:4:backward", "1:-2:restore", more=["--signal", "SIGSTOP"])), undisturbed("Transformer"))


def test_a_backward_that_fails_and_is_caught_is_made_again_by_all(own, undisturbed):  # noqa: F811
    assert_equal(result_of(own("OutOfMemory", more=["--trouble"])), undisturbed("OutOfMemory"))


@pytest.mark.long
@pytest.mark.parametrize("case", ["Transformer", "Collectives", "Epochs", "Pictures", "Several", "Gan"])
def test_the_same_program_gives_the_same_numbers_under_torchrun(undisturbed, tmp_path, case):  # noqa: F811
    subprocess.run([VENV / "torchrun", "--standalone", "--nproc_per_node", "3", CASES, "--folder", tmp_path, "--case", case], check=True,
                   env=clean_environment(PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1"), timeout=300)
    assert_equal(result_of(tmp_path), undisturbed(case))


# Registered before the package's own function, so it is called after it.
COUNT_AT_END = """
import atexit, glob, torch
atexit.register(lambda: print("left:", [name for path in glob.glob("/proc/self/task/*/comm") if "gloo" in (name := open(path).read())]))
import lockstep
lockstep.init_process_group()
model = lockstep.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in lockstep.restore(model=model, optimizer=optimizer).steps(2):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_under_torchrun_no_thread_of_a_group_is_left_for_pythons_end(tmp_path):
    """One that then gives a tensor up may abort the process."""
    (tmp_path / "train.py").write_text(COUNT_AT_END)
    done = subprocess.run([VENV / "torchrun", "--standalone", "--nproc_per_node", "1", tmp_path / "train.py"], capture_output=True, text=True,
                          env=clean_environment(PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1"), timeout=300)
    assert "left: []" in done.stdout, done


@pytest.mark.parametrize("case", ["Epochs", pytest.param("Transformer", marks=pytest.mark.long)])
def test_the_same_program_gives_the_same_numbers_alone(undisturbed, tmp_path, case):  # noqa: F811
    subprocess.run([sys.executable, CASES, "--folder", tmp_path, "--case", case], check=True, timeout=300,
                   env=clean_environment(PYTHONPATH=str(PACKAGE)))
    assert_equal(result_of(tmp_path), undisturbed(case, ranks=1))
