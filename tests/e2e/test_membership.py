"""Suspension, scaling, deadlines and the end of a job, on a real kubelet."""
import signal
import subprocess

import pytest

from real_jobs import ENDLESS, run_undisturbed
from runs import checkpoints, losses
from train_jobs import TRAIN_JOBS
from waiting import wait_until

RELATIVE_TOLERANCE = 1e-5
RELATIVE_TOLERANCE_LATER = 1e-3
STEPS_AFTER_A_CHANGE = 50
ROUNDS_MAX = 10


def test_scaling_2_3_1_leaves_the_loss_curve_as_it_was(api, jobs, tmp_path, timings):
    """The global batch stays, so the world size changes rounding alone."""
    jobs.start(steps=ENDLESS, elastic={"minNodes": 1, "maxNodes": 3, "rejoinTimeoutSeconds": 5})
    jobs.wait_for_step(100)

    def scale(nodes):
        api.kubectl("scale", "trainjob/job", f"--replicas={nodes}")
        wait_until(lambda: (jobs.agent(0) or {}).get("nnodes") == nodes, f"a group of {nodes}", 120,
                   lambda: str(jobs.status()))
    changes = []
    for nodes in (3, 1):
        seconds = jobs.seconds_to_next_step(lambda nodes=nodes: scale(nodes))
        timings.add(f"kubectl scale to {nodes} nodes, to the next step of the new group", seconds)
        changes.append(max(losses(jobs.run_folder())))
        jobs.wait_for_step(changes[-1] + STEPS_AFTER_A_CHANGE)
    assert jobs.live_pods() == ["job-0-0"]
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    jobs.wait_for(lambda: not jobs.live_pods(), "end of the pods")

    found = losses(jobs.run_folder())
    assert sorted(found) == list(range(1, max(found) + 1))
    expected = losses(run_undisturbed(tmp_path, changes[-1] + STEPS_AFTER_A_CHANGE))
    off = {step: abs(found[step] - loss) / abs(loss) for step, loss in expected.items()}
    assert [step for step in off if step <= changes[0] + STEPS_AFTER_A_CHANGE and off[step] > RELATIVE_TOLERANCE] == []
    # What another order of summing changes in the last bit grows with the steps: here for changes[1] - changes[0].
    assert max(off.values()) < RELATIVE_TOLERANCE_LATER, max(off.values())
    assert jobs.status()["restarts"]["total"] == 0


def test_a_deadline_ends_the_job_with_a_checkpoint(jobs):
    jobs.start(steps=ENDLESS, flags=("--checkpoint_every", "0"), activeDeadlineSeconds=15)
    jobs.wait_for_step(10)
    failed = jobs.wait_for_condition("Failed", timeout=120)
    assert failed["reason"] == "DeadlineExceeded" and "activeDeadlineSeconds" in failed["message"]
    jobs.wait_for(lambda: not jobs.live_pods(), "end of the pods")
    wait_until(lambda: checkpoints(jobs.run_folder()), "checkpoint of the end")


def test_a_finished_job_goes_with_its_pods_when_its_time_is_over(jobs):
    jobs.start(steps=50, ttlSecondsAfterFinished=5)
    jobs.wait_until_gone(timeout=120)
    wait_until(lambda: jobs.pods() == {}, "end of the pods")
    assert checkpoints(jobs.run_folder())[-1] == "step-00000050"


@pytest.mark.parametrize("policy, left", [("Running", ["job-0-0", "job-1-0"]), ("All", []),
                                          ("None", ["job-0-0", "job-1-0"])])
def test_what_stays_of_a_finished_job(jobs, policy, left):
    jobs.start(steps=50, podCleanup=policy)
    jobs.wait_until_complete()
    jobs.wait_for(lambda: sorted(jobs.pods()) == left, f"pods {left}")
    for node in range(len(left)):
        assert jobs.api.kubectl("logs", left[node]).stdout


def test_a_grace_period_shorter_than_the_checkpoint_tears_nothing(jobs, lockstep):
    """SIGKILL in the middle of checkpoints: what bears a final name is whole, and the run goes on from it."""
    jobs.start(steps=ENDLESS, flags=("--checkpoint_every", "1", "--hidden_units", "512"))
    torn = 0
    for attempt in range(ROUNDS_MAX):
        reached = max(losses(jobs.run_folder()), default=0) if attempt else 0
        jobs.wait_for_step(reached + 5)
        before = jobs.pod_name(0)
        jobs.kill_worker(0, number=int(signal.SIGSTOP))  # as a volume that does not answer: it cannot stop in time
        # Of the newest generation; a successor removes what its predecessor left.
        torn += bool(list(jobs.run_folder().glob(".tmp-*")) or list(jobs.run_folder().glob(".tmp-*/*")))
        codes = jobs.delete_and_see_ends((0, 1), grace=1)
        assert codes[before] == 137
        verified = subprocess.run([lockstep, "ckpt", "verify", jobs.run_folder()], capture_output=True, text=True,
                                  check=False)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        jobs.wait_for(lambda before=before: jobs.pod_of(0) and jobs.pod_name(0) != before, "replacement")
        if torn and attempt >= 2:
            break
    assert torn
    jobs.wait_for_step(max(losses(jobs.run_folder())) + 1)


def test_deleting_a_job_takes_everything_with_it(api, jobs):
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(10)
    api.kubectl("delete", "trainjob", "job", "--wait=true", "--timeout=60s")
    wait_until(lambda: jobs.pods() == {} and not api.control_plane.exists("services", api.namespace, "job"),
               "end of pods and Service", 120)
    assert api.list(TRAIN_JOBS) == []
