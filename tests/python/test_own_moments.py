"""Ranks of a program with the package `lockstep` that are lost where a kill between two lines of the program does not reach: inside the package,
while a group forms or something is sent; and programs with threads and handlers of their own."""
import re
import subprocess
import sys

import pytest

from own_runs import KILLS, OWN, PACKAGE, assert_equal, launch, losses_of, own, result_of, undisturbed  # noqa: F401
from programs import clean_environment, text
from test_own_exact import processes_of

MOMENTS = OWN / "moments.py"


@pytest.fixture
def survive(own, undisturbed):  # noqa: F811
    """Runs TwoOptimizers with kills of cases.py and of moments.py: no bit is another one, and each rank has had so many processes."""
    def call(*moments, kills=(), processes=None, ranks=3, **how):
        folder = own("TwoOptimizers", *kills, program=MOMENTS, ranks=ranks, more=[word for moment in moments for word in ("--moment", moment)], **how)
        output = (folder / "output").read_text()
        for number, moment in enumerate(moments):
            assert (folder / f"moment-{number}").exists(), f"{moment} did not happen: {output}"
        assert_equal(result_of(folder), undisturbed("TwoOptimizers", MOMENTS, ranks))
        assert [len(processes_of(folder, rank)) for rank in range(ranks)] == processes, output
        return output
    return call


def test_ranks_may_be_lost_while_what_follows_a_loss_goes_on(survive):
    """Rank 1 alone keeps the state."""
    survive("0:1:sending 6", "2:2:receiving 7", "2:3:half formed", "0:2:handed over", kills=["2:2:reduced"], processes=[3, 1, 4])


# The first loss is that of rank 2, or of rank 0 where rank 1 is to hand the state over.
OF_OLD = ["waiting", "placed", "joining", "said", "half formed", "sending 6", "handed over", "joined"]
OF_NEW = ["placed", "restoring", "joining", "said", "half formed", "receiving 6", "handed over", "joined"]


@pytest.mark.long
@pytest.mark.parametrize("is_rank_0", [True, False])
@pytest.mark.parametrize(("process", "where"), [(process, where) for process, moments in ((1, OF_OLD), (2, OF_NEW)) for where in moments])
def test_a_rank_is_lost_at_each_moment_after_a_loss(survive, process, where, is_rank_0):
    first = (2 if is_rank_0 else 0) if process == 1 else (0 if is_rank_0 else 2)
    rank = first if process == 2 else 0 if is_rank_0 else 1
    processes = [1, 1, 1]
    processes[first] += 1
    processes[rank] += (process, where) != (2, "placed")  # that one is before the program counts it
    survive(f"{rank}:{process}:{where}", kills=[f"{first}:2:reduced"], processes=processes)


def test_ranks_may_be_lost_in_the_last_sum_and_between_the_steps_of_two_optimizers(survive):
    survive("1:1:last bucket 3", "0:1:last bucket 6", kills=["2:8:between", "0:10:between"], processes=[3, 2, 2])


def test_of_four_ranks_two_may_be_lost_at_once_and_one_of_them_again_while_both_get_the_state(survive):
    survive("3:2:receiving 6", kills=["1:2:backward", "3:2:backward", "0:5:last gradient"], ranks=4, processes=[2, 2, 1, 3])


@pytest.mark.parametrize("moment", ["0:1:first sending 2", *(pytest.param(moment, marks=pytest.mark.long) for moment in [
    "1:1:first receiving 2", "0:1:first half formed"])])
def test_a_rank_that_is_lost_while_all_begin_alike_costs_a_start_of_all(survive, moment):
    survive(moment, processes=[2, 2, 2])


@pytest.mark.long
def test_a_broken_connection_at_the_start_is_said_and_is_no_failure(own, undisturbed):  # noqa: F811
    folder = own("Unconnected", program=MOMENTS, max_restarts=0)
    assert "rank 1 is started again: a rank was lost while rank 0's parameters were sent: the cable is cut" in (folder / "output").read_text()
    assert_equal(result_of(folder), undisturbed("TwoOptimizers", MOMENTS))


@pytest.mark.parametrize("kills", [[], pytest.param(["2:4:beside"], marks=pytest.mark.long)])
def test_a_rank_that_holds_pythons_lock_for_long_is_not_taken_for_dead(own, undisturbed, kills):  # noqa: F811
    folder = own("Locked", *kills, program=MOMENTS, more=["--trouble"], flags=["--heartbeat_timeout_seconds", 2], max_restarts=len(kills))
    assert_equal(result_of(folder), undisturbed("Small", MOMENTS))
    assert [len(processes_of(folder, rank)) for rank in range(3)] == [1, 1, 1 + len(kills)], (folder / "output").read_text()


@pytest.mark.parametrize("threads", ["all", pytest.param("training", marks=pytest.mark.long), pytest.param("other", marks=pytest.mark.long)])
def test_the_training_may_be_in_another_thread_and_another_one_computes(own, undisturbed, threads):  # noqa: F811
    assert_equal(result_of(own("Small", *KILLS[:5], program=MOMENTS, more=["--threads", threads])), undisturbed("Small", MOMENTS))


def test_a_handler_of_the_programs_own_is_called_and_the_program_ends_and_goes_on_later(own, undisturbed, launch, tmp_path):  # noqa: F811
    words = [MOMENTS, "--folder", tmp_path, "--case", "OwnHandler", "--checkpoint", 100]
    stopped = launch(*words, "--trouble", "--stop", "1:4:backward", LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    assert stopped.returncode == 143, text(stopped)
    assert len(list(tmp_path.glob("asked-*"))) == 3, text(stopped)
    made = losses_of(tmp_path, 0)
    assert len(made) in (5, 6) and (tmp_path / f"checkpoints/step-{len(made):08}").exists(), text(stopped)
    done = launch(*words, LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    assert done.returncode == 0, text(done)
    assert_equal(result_of(tmp_path), undisturbed("Small", MOMENTS))


# Models that are cast and back between two forwards.
TWICE = """
import torch, lockstep
lockstep.init_process_group()
net = torch.nn.Linear(2, 2)
model, optimizer = lockstep.DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=0.1)
for step in lockstep.restore(model=model, optimizer=optimizer).steps(1):
    first = model(torch.ones(1, 2)).sum()
    net.bfloat16().float()
    (first + model(torch.ones(1, 2)).sum()).backward()
"""


def test_a_parameter_that_is_in_the_graph_twice_is_named():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, env=clean_environment(PYTHONPATH=str(PACKAGE)))
    assert done.returncode == 1 and re.search(r"the gradient of (weight|bias) came twice in one backward: a parameter must be used through one node",
                                              done.stderr), text(done)


@pytest.mark.long
def test_groups_that_are_cut_in_a_transfer_again_and_again_leave_nothing_behind(own):  # noqa: F811
    """But for the group of a collective that never ended, until there are two."""
    folder = own("Wide", program=MOMENTS, more=["--trouble"], max_restarts=60, timeout=900, KILLS="60", STEPS="160")
    assert len((folder / "kills").read_text()) == 60, (folder / "output").read_text()
    for rank in (0, 1):
        lines = [line.split() for line in (folder / f"held-{rank}.txt").read_text().splitlines()]
        of_one_process = [[int(threads), int(descriptors)] for process, threads, descriptors in lines if process == lines[-1][0]]
        for early, late in zip(zip(*of_one_process[:10]), zip(*of_one_process[-10:])):
            assert max(late) < max(early) + 20, lines
    assert_equal(result_of(folder), result_of(own("Wide", program=MOMENTS, STEPS="160", timeout=900)), steps=160)
