"""Lost workers and agents: the survivors keep their state and go on, and the curve is the undisturbed one.

Two nodes of two ranks each, SASRec with dropout, over Gloo. Where every committed step ran with the same world size the
weights must be bit-equal to the undisturbed run's.
"""
import os
import random
import re
import resource
import signal
import subprocess
import time

import pytest

from programs import bin_folder, clean_environment, program, write_interactions
from jobs import Job, free_port, fresh_starts, is_alive, max_step, read_metrics, sasrec_flags, wait_until
from runs import Running, checkpoints, equal_weights, evaluations, losses, records, weights

STEPS = 250  # most tests hurt the job at step 50: two hundred follow
EVALUATING = ["--eval_every", "20"]
KILLS = 20


def run_undisturbed(base, steps, *flags):
    base.mkdir(exist_ok=True)
    dataset = write_interactions(base / "small.txt")
    subprocess.run([str(w) for w in [program(bin_folder() / "lockstep"), "run", "sasrec", "--nproc", 4,
                                     "--status_port", 0, "--train_dir", base / "run", *sasrec_flags(dataset, steps, *flags)]],
                   check=True, env=clean_environment(), capture_output=True, timeout=300)
    return base / "run"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS)


@pytest.fixture(scope="module")
def undisturbed_evaluating(tmp_path_factory):
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS, *EVALUATING)


def assert_same(folder, reference):
    found, expected = losses(folder), losses(reference)
    assert found.keys() == expected.keys()
    assert [step for step in found if found[step] != expected[step]] == []
    assert equal_weights(weights(folder), weights(reference))


def finish(job, folder, reference, redone_max=1):
    """It ends as if nothing had happened, and nobody went back to a checkpoint or the seed, which would end alike."""
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    redone = [int(steps) for steps in re.findall(r"going on at step \d+.*?(\d+) steps? redone", job.output())]
    assert all(steps <= redone_max for steps in redone), job.output()
    assert_same(folder, reference)


def test_several_agents_train_as_one(lockstep, small_dataset, tmp_path, undisturbed):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, steps=STEPS)
    finish(job, tmp_path / "run", undisturbed)


@pytest.mark.long
def test_20_killed_workers_at_random_steps_cost_no_step_and_no_other_process(lockstep, small_dataset, tmp_path):
    steps = 3000  # more than the kills need, however late each is noticed on a busy machine
    reference = run_undisturbed(tmp_path / "reference", steps)
    folder = tmp_path / "run"
    job = Job(lockstep, small_dataset, folder, tmp_path, steps=steps)
    draw = random.Random(7)
    at = 20
    for number in range(1, KILLS + 1):
        job.wait_for_progress(at)
        before = job.all_workers()
        rank = draw.randrange(4)
        job.kill_rank(rank)
        status = job.wait_for_recovery(number)
        after = job.all_workers()
        assert {r: pid for r, pid in after.items() if r != rank} == {r: p for r, p in before.items() if r != rank}
        at = max_step(status) + draw.randint(5, 35)
    status = job.status()
    assert len(status["recoveries"]) == 10 and status["recoveriesTotal"] == KILLS
    assert max(recovery["redoneSteps"] for recovery in status["recoveries"]) <= 1
    finish(job, folder, reference)


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_agent_comes_back_and_its_workers_take_the_state_from_the_others(lockstep, small_dataset, tmp_path,
                                                                                   undisturbed, node):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--checkpoint_every", "100000", steps=STEPS)
    job.wait_for_progress(60)
    before = job.all_workers()
    os.kill(job.agents()[node], signal.SIGKILL)
    after = job.all_workers(other_than=before)
    for rank in range(4):
        assert (after[rank] != before[rank]) == (rank // 2 == node), f"rank {rank}: only the lost node's are new"
    finish(job, tmp_path / "run", undisturbed)
    assert "resumed from" not in job.output()
    assert len(re.findall(r"starting (?:it|node \d) again", job.output())) == 1


@pytest.mark.long
def test_all_agents_but_one_are_killed(lockstep, small_dataset, tmp_path):
    reference = run_undisturbed(tmp_path / "reference", STEPS, "--batch_size", "12")
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--checkpoint_every", "100000", nodes=4, nproc=1,
              steps=STEPS)
    job.wait_for_progress(40)
    agents = job.agents()
    survivor = job.all_workers()[2]
    for node in (0, 1, 3):
        os.kill(agents[node], signal.SIGKILL)
    job.wait_for_progress(60)
    assert is_alive(survivor)
    finish(job, tmp_path / "run", reference)


@pytest.mark.parametrize("nodes", [2, 1])  # of one node nobody is left to say how far the run has come
def test_a_new_checkpoint_clears_the_budget_of_nodes(lockstep, small_dataset, tmp_path, nodes):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--max_restarts", "1", "--checkpoint_every", "20",
              nodes=nodes, steps=10_000_000)
    job.wait_for_progress(20)
    for number in range(1, 4):
        seen = max_step(job.wait_for_status(lambda s: True, "a status"))
        job.wait_for_status(lambda s, old=seen: s["lastCheckpoint"] and s["lastCheckpoint"]["step"] > old, "a checkpoint")
        os.kill(job.agents()[nodes - 1], signal.SIGKILL)
        job.wait_for(lambda n=number: len(re.findall(r"\(replacement 1 of 1\)", job.output())) == n, f"replacement {number}")
        job.all_workers()
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()


@pytest.mark.long
def test_a_soft_limit_of_64_open_files_does_not_stop_recoveries(lockstep, small_dataset, tmp_path, undisturbed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))  # which the job inherits
    try:
        job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, steps=STEPS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for number in (1, 2, 3):
        job.wait_for_progress(20 * number)
        job.kill_rank(number)
        job.wait_for_recovery(number)
    finish(job, tmp_path / "run", undisturbed, redone_max=3)


def test_a_hard_limit_that_is_too_low_is_named(lockstep, small_dataset, tmp_path):
    done = subprocess.run(["bash", "-c", 'ulimit -n 24; exec "$@"', "-", lockstep, "run", "sasrec", *map(str, sasrec_flags(small_dataset, STEPS)),
                           "--train_dir", tmp_path / "run", "--nproc", "4", "--status_port", "0"],
                          env=clean_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode not in (0, 2), done.stdout + done.stderr
    assert "this process may have 24 files and sockets open" in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.long
def test_two_workers_killed_at_once(lockstep, small_dataset, tmp_path, undisturbed):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, steps=STEPS)
    job.wait_for_progress(50)
    workers = job.all_workers()
    for rank in (0, 3):
        os.kill(workers[rank], signal.SIGKILL)
    finish(job, tmp_path / "run", undisturbed)
    assert re.search(r"\[node 1\] lockstep: leaving the group of generation 1 \(SignalKILL\): .*rank \d", job.output()), job.output()


def test_a_stopped_worker_is_found_by_its_silence(lockstep, small_dataset, tmp_path, undisturbed):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--heartbeat_timeout_seconds", "2", steps=STEPS)
    job.wait_for_progress(50)
    job.kill_rank(1, signal.SIGSTOP)
    recovery = job.wait_for_recovery(1)["recoveries"][0]
    # How much later than the heartbeat timeout is the benchmark's to say: this is far above it.
    assert recovery["rank"] == 1 and 2 <= recovery["detectionSeconds"] < 6
    finish(job, tmp_path / "run", undisturbed)
    assert re.search(r"rank 1 .*its process has not run for [2-5] s \(stopped, frozen or starved\)", job.output())


@pytest.mark.long
@pytest.mark.parametrize("node", [0, 1])
def test_a_stopped_agent_that_goes_on_is_let_in_again(lockstep, small_dataset, tmp_path, undisturbed, node):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--heartbeat_timeout_seconds", "3", steps=STEPS, faulty=True)
    job.wait_for_progress(50)
    agent = job.agents()[node]
    job.inject(2 * (1 - node), "stall_compute", 6.0)  # or the job might be over before the silence is noticed
    os.kill(agent, signal.SIGSTOP)
    if node == 1:
        job.wait_for_status(lambda s: s["phase"] == "Recovering", "the loss of node 1")
    else:
        job.wait_for_text(r"\[node 1\] lockstep: looking for the coordinator")
    os.kill(agent, signal.SIGCONT)
    job.wait_for_recovery(1)
    assert job.agents()[node] == agent, "it was let in again, not replaced"
    finish(job, tmp_path / "run", undisturbed)


# The stalled rank shows where the group is; another one is killed meanwhile.
@pytest.mark.parametrize("fault, activity", [pytest.param("stall_forming", "forming", marks=pytest.mark.long),
                                             ("stall_restoring", "restoring"),
                                             pytest.param("stall_evaluation", "evaluating", marks=pytest.mark.long)])
@pytest.mark.parametrize("killed", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_loss_during(lockstep, small_dataset, tmp_path, undisturbed_evaluating, fault, activity, killed):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, *EVALUATING, steps=STEPS, faulty=True)
    job.wait_for_progress(40)
    job.inject(0, fault, 3.0)
    if fault != "stall_evaluation":
        job.kill_rank(2)
    job.wait_for_status(lambda s: s["workers"][0]["activity"] == activity, f"rank 0 {activity}")
    job.kill_rank(killed)
    finish(job, tmp_path / "run", undisturbed_evaluating)


# The source stops in the middle of sending, or a receiver of receiving; then either dies.
@pytest.mark.parametrize("stalls, dies", [pytest.param(0, 0, marks=pytest.mark.long), (0, 2),
                                          pytest.param(2, 2, marks=pytest.mark.long), pytest.param(2, 0, marks=pytest.mark.long)])
def test_a_loss_while_the_state_is_on_its_way(lockstep, small_dataset, tmp_path, undisturbed, stalls, dies):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--checkpoint_every", "20", steps=STEPS, faulty=True)
    job.wait_for_progress(50)
    if stalls == 0:
        job.inject(0, "stall_transfer", 3.0)
    before = job.all_workers()
    job.kill_rank(2)
    if stalls == 2:
        job.all_workers(other_than=before)
        job.inject(2, "stall_transfer", 3.0)
    job.wait_for_status(lambda s: any(w["activity"] == "restoring" for w in s["workers"]), "the transfer")
    job.kill_rank(dies)
    finish(job, tmp_path / "run", undisturbed)


@pytest.mark.long
def test_what_a_run_begins_with_is_told_although_its_first_group_breaks(lockstep, tmp_path):
    folder = run_undisturbed(tmp_path, 40, "--checkpoint_every", "20")
    newest = checkpoints(folder)[-1]
    (folder / newest / "model.safetensors").write_bytes(b"damaged")
    job = Job(lockstep, tmp_path / "small.txt", folder, tmp_path, "--checkpoint_every", "20", steps=60, faulty=True)

    job.inject(0, "stall_transfer", 6.0)

    def is_on_its_way(status):  # rank 0 has read, which all wait for, and stands in the middle of sending
        workers = status["workers"]
        return (bool(workers) and all(worker["activity"] == "restoring" for worker in workers)
                and workers[0]["phase"] == "waiting" and (workers[0]["secondsUnchanged"] or 0) > 1)
    job.wait_for_status(is_on_its_way, "the transfer")
    job.kill_rank(3)
    assert job.end() == 0, job.output()
    assert "from rank 0 at step 20" in job.output(), "the first group broke after rank 0 had read"
    assert fresh_starts(job.output()) == 1
    assert len(re.findall(f"passed over .*{newest}", job.output())) == 1


@pytest.mark.long
def test_a_survivor_that_hangs_while_it_forms_a_group_is_replaced(lockstep, small_dataset, tmp_path, undisturbed):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, steps=STEPS, faulty=True)
    job.wait_for_progress(50)
    job.inject(0, "stall_forming", 600.0)
    job.kill_rank(2)
    finish(job, tmp_path / "run", undisturbed)
    assert re.search(r"rank 0 .*still in a collective .* after its group was cut", job.output())


def test_rank_0_is_killed_while_it_writes_a_checkpoint(lockstep, small_dataset, tmp_path, undisturbed):
    folder = tmp_path / "run"
    job = Job(lockstep, small_dataset, folder, tmp_path, steps=STEPS, faulty=True)
    job.wait_for_progress(20)
    job.inject(0, "stall_write", 30.0)
    wait_until(lambda: list(folder.glob(".tmp-*")), "a checkpoint that is being written")
    job.kill_rank(0)
    finish(job, folder, undisturbed)
    assert not list(folder.glob(".tmp-*"))
    assert checkpoints(folder)


def test_a_full_disk_costs_checkpoints_and_lines_of_metrics_and_nothing_else(lockstep, small_dataset, tmp_path, undisturbed):
    folder = tmp_path / "run"
    job = Job(lockstep, small_dataset, folder, tmp_path, steps=STEPS, faulty=True)
    job.wait_for_progress(20)

    job.inject(0, "disk_full")
    job.wait_for_text("No space left on device")
    job.mend_disk()
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    found, expected = losses(folder), losses(undisturbed)
    assert found.items() <= expected.items() and max(found) == STEPS, "lines are written again when there is room"
    assert equal_weights(weights(folder), weights(undisturbed))


@pytest.mark.parametrize("fault, named", [pytest.param("stall_data", "no progress for .*, waiting for data",
                                                       marks=pytest.mark.long),
                                          pytest.param("stall_compute", "no progress for .*, computing",
                                                       marks=pytest.mark.long),
                                          pytest.param("stall_device", "no progress for .*, waiting for its device",
                                                       marks=pytest.mark.long),
                                          ("stall_collective", "still in a collective .* after its group was cut")])
def test_a_worker_that_hangs_is_named_with_its_place_and_replaced(lockstep, small_dataset, tmp_path, undisturbed, fault,
                                                                  named):
    # By flag, and as a pod has it from its TrainJob.
    by_flag = fault == "stall_data"
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, *(["--stall_timeout_seconds", "2"] if by_flag else []),
              steps=STEPS, faulty=True, **({} if by_flag else {"LOCKSTEP_STALL_TIMEOUT_SECONDS": "6"}))
    job.wait_for_progress(50)
    before = job.all_workers()
    job.inject(3, fault, 600.0)
    job.wait_for_text(rf"rank 3 .*{named}")
    after = job.all_workers(other_than=before)
    assert [rank for rank in before if after[rank] != before[rank]] == [3], "the others keep their processes and states"
    finish(job, tmp_path / "run", undisturbed)
    assert re.search(r"stack of the training thread:(?:\n.*){1,15}stall_here", job.output())


@pytest.mark.long
def test_a_worker_that_hangs_in_an_evaluation_is_blamed_and_not_those_that_wait_for_it(lockstep, small_dataset, tmp_path,
                                                                                       undisturbed_evaluating):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, *EVALUATING, "--stall_timeout_seconds", "2", steps=STEPS, faulty=True)
    job.wait_for_progress(50)
    job.inject(3, "stall_evaluation", 600.0)
    job.wait_for_text("rank 3 .*no progress .*evaluating; 3 ranks wait for it")
    finish(job, tmp_path / "run", undisturbed_evaluating)
    assert not re.search("rank [012] .*no progress", job.output())


def begin_a_long_evaluation(job):
    """Rank 0, which has all users of this small data set, evaluates for an hour and shows progress; the others wait for
    it. The step that it evaluates."""
    job.wait_for_progress(40)
    job.inject(0, "slow_evaluation", 3600.0)

    def only_it_evaluates(status):
        workers = status["workers"]
        waiting = [w for w in workers if w["phase"] == "waiting" and (w["secondsUnchanged"] or 0) > 5]
        return all(w["activity"] == "evaluating" for w in workers) and len(waiting) == len(workers) - 1
    return max_step(job.wait_for_status(only_it_evaluates, "a long evaluation"))


@pytest.mark.long
def test_a_long_evaluation_is_left_at_once_when_a_rank_is_lost_and_made_again(lockstep, small_dataset, tmp_path,
                                                                              undisturbed_evaluating):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, *EVALUATING, steps=STEPS, faulty=True)
    begin_a_long_evaluation(job)
    before = job.all_workers()
    job.kill_rank(3)
    job.wait_for_recovery(1)
    after = job.all_workers()
    assert [rank for rank in before if after[rank] != before[rank]] == [3], "the others keep their processes and states"
    finish(job, tmp_path / "run", undisturbed_evaluating)
    assert evaluations(tmp_path / "run") == evaluations(undisturbed_evaluating)


def test_a_stop_in_a_long_evaluation_costs_no_step_and_no_evaluation(lockstep, small_dataset, tmp_path,
                                                                     undisturbed_evaluating):
    folder = tmp_path / "run"
    job = Job(lockstep, small_dataset, folder, tmp_path, *EVALUATING, "--checkpoint_every", "100000", steps=STEPS, faulty=True)
    step = begin_a_long_evaluation(job)
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()
    assert "had not stopped" not in job.output()
    assert checkpoints(folder)[-1] == f"step-{step:08}"
    assert max(losses(folder)) == step
    assert all(evaluation["step"] < step for evaluation in evaluations(folder))
    job = Job(lockstep, small_dataset, folder, tmp_path, *EVALUATING, steps=STEPS)
    assert job.end() == 0, job.output()
    assert_same(folder, undisturbed_evaluating)
    assert evaluations(folder) == evaluations(undisturbed_evaluating)


def test_the_slowest_rank_and_its_lag_are_named(lockstep, small_dataset, tmp_path):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, steps=10_000_000, faulty=True)
    job.wait_for_progress(50)

    def is_slowed(status):
        job.inject(3, "stall_compute", 0.2)  # one step of it; again and again
        return status["slowest"] is not None and status["slowest"]["rank"] == 3 and status["slowest"]["lagSeconds"] > 0.01
    job.wait_for_status(is_slowed, "the lag of rank 3")
    text = read_metrics(job.port)
    assert re.search(r"^lockstep_slowest_rank(\{.*\})? 3$", text, re.M)
    assert float(re.search(r"^lockstep_straggler_lag_seconds(?:\{.*\})? (\S+)$", text, re.M)[1]) > 0
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()


def test_a_nan_on_one_rank_is_one_skipped_step_for_all(lockstep, small_dataset, tmp_path):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--drift_check_every", "1", steps=STEPS, faulty=True)
    job.wait_for_progress(50)
    before = job.all_workers()
    job.inject(2, "not_finite")
    job.wait_for_text("skipped on all ranks")
    assert job.all_workers() == before, "nobody ended over it"
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1 and "going on at step" not in job.output(), job.output()
    assert len(re.findall("skipped on all ranks", job.output())) == 1
    assert list(losses(tmp_path / "run")) == list(range(1, STEPS + 1))


def test_a_nan_on_one_rank_that_may_not_be_skipped_ends_all_at_once(lockstep, small_dataset, tmp_path):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--max_skipped_steps", "0", steps=10_000_000, faulty=True)
    job.wait_for_progress(50)
    job.inject(2, "not_finite")
    assert job.end() == 5, job.output()
    assert fresh_starts(job.output()) == 1, "nobody tried it again"


class LoneJob(Job):
    """One node, without a parent or an operator that replaces it."""

    def __init__(self, lockstep, dataset, folder, base, *flags, **environment):
        self.port, self.nproc, self.ranks, self.folder = free_port(), 2, 2, folder
        Running.__init__(self, [lockstep, "run", "sasrec", "--nproc", self.nproc, "--status_port", self.port, "--train_dir", folder,
                                *sasrec_flags(dataset, 10_000_000, "--checkpoint_every", "0", *flags)], base, **environment)

    def agents(self):
        return {0: self.process.pid}


def assert_newest_step_is_written(folder):
    last = max(losses(folder))
    assert checkpoints(folder)[-1] == f"step-{last:08d}", "what was done since the last checkpoint is not lost"


def test_a_crash_loop_ends_a_run_of_one_node_with_the_reason_and_the_newest_state(lockstep, worker, small_dataset, tmp_path):
    folder = tmp_path / "run"
    broken = tmp_path / "broken"
    program_of_rank = tmp_path / "worker.sh"
    program_of_rank.write_text(f'#!/bin/sh\n[ "$LOCAL_RANK" = 1 ] && [ -e "{broken}" ] && exit 1\nexec "{worker}" "$@"\n')
    program_of_rank.chmod(0o755)
    job = LoneJob(lockstep, small_dataset, folder, tmp_path, LOCKSTEP_WORKER=str(program_of_rank))
    job.wait_for_progress(20)
    broken.touch()
    job.kill_rank(1)
    assert job.end() == 1, job.output()
    assert "crash loop: 3 restarts in a row came no further than step " in job.output()
    assert_newest_step_is_written(folder)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_that_gives_up_writes_the_newest_state_first(lockstep, small_dataset, tmp_path, rank):
    folder = tmp_path / "run"
    job = LoneJob(lockstep, small_dataset, folder, tmp_path, "--max_restarts", "1")
    job.wait_for_progress(10)
    job.kill_rank(rank)
    job.wait_for_progress(max_step(job.wait_for_recovery(1)) + 10)
    job.kill_rank(rank)
    assert job.end() == 137, job.output()
    assert "giving up after 1 restarts (--max_restarts 1)" in job.output()
    assert fresh_starts(job.output()) == 1, "rank 0 got the state from the others"
    assert_newest_step_is_written(folder)


# The others hold the state, and only rank 0 may write it: they wait until it has got it.
@pytest.mark.parametrize("shape", [{"nodes": 2, "nproc": 1}, {"nodes": 1, "nproc": 2}], ids=["two nodes", "one node"])
def test_a_stop_while_rank_0_is_started_again_keeps_the_state(lockstep, small_dataset, tmp_path, shape):
    folder = tmp_path / "run"
    job = Job(lockstep, small_dataset, folder, tmp_path, "--checkpoint_every", "0", steps=10_000_000, **shape)
    job.wait_for_progress(50)
    job.kill_rank(0)
    job.wait_for_text(r"rank 0 \(pid \d+\) ended with .*; starting it again")
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    assert_newest_step_is_written(folder)


@pytest.mark.parametrize("node", [pytest.param(0, marks=pytest.mark.long), 1])
def test_node_0_shows_what_all_nodes_and_their_parent_decide(lockstep, small_dataset, tmp_path, node):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, steps=10_000_000)
    job.wait_for_progress(50)
    job.kill_rank(3)
    status = job.wait_for_status(lambda s: s["recoveriesTotal"] == 1 and s["ladder"]["lastDecision"], "a decision")
    assert status["ladder"]["rung"] == "process"
    assert re.fullmatch(r"node 1: rank 3 .*SIGKILL.*starting it again.*", status["ladder"]["lastDecision"])
    text = read_metrics(job.port)
    assert re.search(r'^lockstep_restarts_total\{[^}]*reason="SignalKILL"[^}]*rung="process"[^}]*\} 1$', text, re.M)
    os.kill(job.agents()[node], signal.SIGKILL)
    status = job.wait_for_status(lambda s: s["ladder"]["rung"] == "pod", "the parent's decision")
    assert re.search(rf"node {node} .*starting it again as attempt", status["ladder"]["lastDecision"]), status["ladder"]
    text = read_metrics(job.port)
    assert re.search(r'^lockstep_restarts_total\{[^}]*reason="SignalKILL"[^}]*rung="pod"[^}]*\} 1$', text, re.M), text
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()


@pytest.mark.long
def test_node_0_shows_that_a_node_and_that_the_parent_gave_up(lockstep, small_dataset, tmp_path):
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--max_restarts", "1", "--checkpoint_every", "0",
              steps=10_000_000, faulty=True)

    def kill_rank_3(then):
        before = job.wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 4, "training")
        job.wait_for_progress(max_step(before) + 10)
        job.kill_rank(3)
        return job.wait_for_status(lambda s: s["generation"] > before["generation"] and then(s), "what follows", timeout=60)
    job.wait_for_progress(10)
    kill_rank_3(lambda s: s["ladder"]["rung"] == "process")
    # Told by the agent that ends, then by its successor.
    kill_rank_3(lambda s: s["ladder"]["rung"] == "pod" and s["phase"] == "Running")
    text = read_metrics(job.port)
    assert re.search(r'^lockstep_gave_up_total\{[^}]*reason="SignalKILL"[^}]*rung="process"[^}]*\} 1$', text, re.M), text
    assert re.search(r'^lockstep_restarts_total\{[^}]*rung="pod"[^}]*\} 1$', text, re.M), text
    kill_rank_3(lambda s: s["ladder"]["rung"] == "process")
    job.wait_for_progress(max_step(job.wait_for_status(lambda s: True, "a status")) + 10)
    job.inject(0, "stall_compute", 10.0)  # node 0 ends later than its page says why
    job.wait_for_status(lambda s: (s["workers"][0]["secondsUnchanged"] or 0) > 0.5, "rank 0 that stalls")
    job.kill_rank(3)
    status = job.wait_for_status(lambda s: s["ladder"]["rung"] == "pod", "the last decision", timeout=30)
    assert re.fullmatch(r"giving up after 1 replaced nodes \(--max_restarts 1\); node 1 .*giving up after 1 restarts "
                        r"\(--max_restarts 1\); rank 3 .*SIGKILL.*; ending the job", status["ladder"]["lastDecision"])
    text = read_metrics(job.port)
    assert re.search(r'^lockstep_gave_up_total\{[^}]*rung="process"[^}]*\} 2$', text, re.M), text
    assert re.search(r'^lockstep_gave_up_total\{[^}]*reason="SignalKILL"[^}]*rung="pod"[^}]*\} 1$', text, re.M), text
    assert job.end() == 137, job.output()


def test_a_stop_while_a_group_forms_keeps_the_state(lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    job = Job(lockstep, small_dataset, folder, tmp_path, "--checkpoint_every", "100000", steps=10_000_000, faulty=True)
    job.wait_for_progress(50)
    before = job.all_workers()
    # The new worker has nothing to lose and leaves at once; rank 0 waits for it at the store.
    job.kill_rank(3)
    job.all_workers(other_than=before)
    job.inject(3, "stall_forming", 600.0)
    job.wait_for_status(lambda s: s["workers"][0]["activity"] == "forming", "rank 0 that waits for rank 3")
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()
    last = max(losses(folder))
    assert checkpoints(folder)[-1] == f"step-{last:08d}", "what was done since the last checkpoint is not lost"


def test_status_metrics_and_summary_tell_where_the_time_went(lockstep, small_dataset, tmp_path):
    # No checkpoint: one would clear the budget.
    job = Job(lockstep, small_dataset, tmp_path / "run", tmp_path, "--checkpoint_every", "100000", steps=1000)
    job.wait_for_progress(50)
    job.kill_rank(1)
    status = job.wait_for_recovery(1)
    recovery = status["recoveries"][0]
    assert recovery["cause"] == "SignalKILL" and recovery["rank"] == 1
    assert status["restarts"] == 1
    # The decision and its reason: in /status, in the log, in the metrics.
    ladder = status["ladder"]
    assert (ladder["rung"], ladder["restarts"], ladder["budgetLeft"]) == ("process", 1, 9), ladder
    assert "SIGKILL" in ladder["lastDecision"] and "starting it again" in ladder["lastDecision"]
    assert ladder["lastDecision"] in job.output()
    text = read_metrics(job.port)
    assert re.search(r'^lockstep_restarts_total\{[^}]*reason="SignalKILL"[^}]*rung="process"[^}]*\} 1$', text, re.M)
    seconds = {match[1]: float(match[2]) for match in
               re.finditer(r'^lockstep_goodput_seconds_total\{([^}]*)\} (\S+)$', text, re.M)}
    assert any("SignalKILL" in labels and "waiting" in labels for labels in seconds)
    assert sum(seconds.values()) == pytest.approx(time.time() - status["startTime"], abs=1.5)
    assert re.search(r"^lockstep_recoveries_total\{[^}]*SignalKILL[^}]*\} 1", text, re.M)
    status = job.status()
    wall = time.time() - status["startTime"]
    assert sum(part["seconds"] for part in status["goodput"]["seconds"]) == pytest.approx(wall, abs=1.5)
    assert job.end() == 0
    # The end summary: "goodput 95.0 % of 15.5 s: work 14.7 s, waiting 0.8 s (SignalKILL 0.3, …), redone 0.0 s (1 step)".
    said = re.search(r"goodput .*% of ([\d.]+) s: work ([\d.]+) s, waiting ([\d.]+) s \((.*)\), redone ([\d.]+) s", job.output())
    whole, work, waiting, redone = (float(said[n]) for n in (1, 2, 3, 5))
    assert work + waiting + redone == pytest.approx(whole, abs=0.3)
    causes = {cause: float(seconds) for cause, seconds in re.findall(r"(\w+) ([\d.]+)", said[4])}
    assert "SignalKILL" in causes and sum(causes.values()) == pytest.approx(waiting, abs=0.3)
