"""The promise: `kubectl apply -f trainjob.yaml` trains, and recovers. `make test` runs those marked `first`."""
import re
import subprocess
import time

import pytest
import yaml

from images import ROOT
from real_jobs import STEPS, copy_into, read_metrics
from runs import checkpoints, losses
from waiting import wait_until

EXAMPLE = ROOT / "manifests/examples/trainjob.yaml"
COLUMNS = ["NAME", "PHASE", "READY", "STEP", "PROGRESS", "ETA", "RESTARTS", "AGE"]


def columns(text):
    """The words of the last line, by the heads of the first."""
    lines = text.rstrip("\n").splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", lines[0])]
    ends = starts[1:] + [None]
    return {lines[0][a:b].strip(): lines[-1][a:b].strip() for a, b in zip(starts, ends)}


def operator_metric(cluster, name):
    """The sum over its labels."""
    def address():
        return cluster.api.get("pods", "lockstep-system", cluster.operator_pod())["status"]["podIP"]
    lines = read_metrics(address).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.mark.first
def test_the_example_trains_to_the_end(cluster, api, bare_jobs, ml100k, lockstep, timings):
    jobs = bare_jobs
    checkpoint_folder = jobs.make_volume("sasrec-checkpoints")
    copy_into(ml100k, jobs.make_volume("datasets"))
    counted = operator_metric(cluster, "lockstep_trainjob_time_to_first_step_seconds_count")
    # The claims are bound first: a pod that had to wait for that would add conditions and events.
    claims = [one for one in yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
              if one["kind"] == "PersistentVolumeClaim"]
    api.kubectl("apply", "-f", "-", stdin=yaml.dump_all(claims))
    wait_until(lambda: [one["status"].get("phase") for one in api.list("persistentvolumeclaims")] == ["Bound"] * 2,
               "bound claims", 60, lambda: str(api.list("persistentvolumeclaims")))
    begin = time.monotonic()
    api.kubectl("apply", "-f", EXAMPLE)
    jobs.wait_for_step(1, "sasrec")
    timings.add("apply to the first step (image on the node)", time.monotonic() - begin)

    pods = jobs.pods("sasrec")
    assert sorted(pods) == ["sasrec-0-0", "sasrec-1-0"]
    assert api.get("services", "sasrec")["spec"]["clusterIP"] == "None"
    assert {one["spec"]["hostname"] for one in pods.values()} == {"sasrec-0", "sasrec-1"}

    def is_under_way():  # the kubelet's probe sees a pod ready some time after its first step
        status = jobs.status("sasrec")
        return status.get("progress", {}).get("step", 0) > 0 and status["nodes"]["summary"] == "2/2"
    jobs.wait_for(is_under_way, "progress of both pods", "sasrec")
    row = columns(api.kubectl("get", "tj").stdout)
    assert list(row) == COLUMNS
    assert row["PHASE"] == "Running" and row["READY"] == "2/2" and int(row["STEP"]) > 0
    assert row["PROGRESS"].endswith("%") and re.fullmatch(r"(\d+[hms])+", row["ETA"])

    jobs.wait_until_complete("sasrec", timeout=900)
    status = jobs.status("sasrec")
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == 160
    assert status["progress"]["summary"] == "100%" and status["progress"]["lastCheckpointStep"] == 160
    assert jobs.condition("CheckpointReady", "sasrec")["status"] == "True"
    row = columns(api.kubectl("get", "tj").stdout)
    assert (row["PHASE"], row["STEP"], row["PROGRESS"], row["RESTARTS"]) == ("Complete", "160", "100%", "0")
    assert api.kubectl("wait", "--for=condition=Complete", "tj/sasrec", "--timeout=5s").returncode == 0

    folder = checkpoint_folder / "sasrec"
    assert checkpoints(folder)[-1] == "step-00000160"
    verified = subprocess.run([lockstep, "ckpt", "verify", folder], capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # What has ended stays, with its logs.
    assert "first step done" in api.kubectl("logs", "sasrec-0-0").stdout
    assert operator_metric(cluster, "lockstep_trainjob_time_to_first_step_seconds_count") == counted + 1
    # The first step may be known before the kubelet has seen both pods ready.
    wait_until(lambda: "AllDone" in jobs.reasons("sasrec"), "event AllDone", 60, lambda: str(jobs.events("sasrec")))
    reasons = jobs.reasons("sasrec")
    assert sorted(reasons[:3]) == ["PodsReady", "Running", "StateLoaded"] and reasons[3:] == ["AllDone"]


@pytest.mark.first
def test_the_readme_shows_the_example():
    text = EXAMPLE.read_text(encoding="utf-8")
    job = text[text.index("apiVersion: lockstep.dev/v1"):]
    assert job in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_killed_worker_costs_no_other_process_and_no_step(jobs, undisturbed, timings):
    jobs.start()
    jobs.wait_for_step(200)
    agent = jobs.processes(1)[:2]
    others = jobs.processes(0)
    seconds = jobs.seconds_to_next_step(lambda: jobs.kill_worker(1))
    timings.add("kill -9 of a worker (kubectl exec included)", seconds,
                f"in the agent's clock {jobs.answer(0)['recoveries'][-1]['totalSeconds']:.2f}")
    assert jobs.processes(0) == others and jobs.processes(1)[:2] == agent
    told = jobs.wait_for_event(lambda event: event[0] == "WorkerRestarted", "event WorkerRestarted")
    assert "Pod job-1-0: " in told[1] and "rank 1" in told[1] and "SIGKILL" in told[1] and told[2] == 1
    wait_until(lambda: jobs.history.of("Recovering", "GroupReforms", "Recovered"), "word of a recovery", 60,
               lambda: str(jobs.status()))
    assert told[1] in " ".join(jobs.describe().split())
    status = jobs.wait_until_complete()
    assert status["restarts"]["pod"] == 0 and status["restarts"]["process"] == 1
    jobs.assert_same_curve(undisturbed(STEPS))


@pytest.mark.first
@pytest.mark.parametrize("node", [0])
def test_a_pod_that_is_deleted_by_force_is_replaced_at_once(jobs, undisturbed, timings, node):
    jobs.start()
    jobs.wait_for_step(200)
    other = 1 - node
    survivors = jobs.processes(other)
    seconds = jobs.seconds_to_next_step(lambda: jobs.delete_pod(node))
    timings.add(f"kubectl delete pod --force of node {node}", seconds)
    assert jobs.processes(other) == survivors
    told = jobs.wait_for_event(lambda event: event[0] == "PodDeleted", "event PodDeleted")
    assert "somebody deleted" in told[1] and f"job-{node}-0" in told[1]
    jobs.wait_for_recovered(told[1])
    assert told[1] in " ".join(jobs.describe().split())
    assert sorted(jobs.pods()) == sorted([f"job-{node}-1", f"job-{other}-0"])
    jobs.wait_until_complete()
    jobs.assert_same_curve(undisturbed(STEPS))
    assert [event for event in jobs.events() if event[0] == "PodDeleted"][0][2] == 1
    assert jobs.reasons().count("PodDeleted") == 1


def test_suspend_writes_a_checkpoint_and_resume_goes_on_at_the_next_step(jobs, undisturbed, timings):
    steps = 3 * STEPS  # so many that a busy machine does not end the job before it is suspended
    jobs.start(steps=steps, flags=("--checkpoint_every", "0"))
    jobs.wait_for_step(200)
    begin = time.monotonic()
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    jobs.wait_for(lambda: jobs.pods() == {} or not jobs.live_pods(), "end of the pods")
    timings.add("suspend: from the patch to no pod", time.monotonic() - begin)
    stopped_at = max(losses(jobs.run_folder()))
    assert checkpoints(jobs.run_folder())[-1] == f"step-{stopped_at:08d}"
    assert jobs.status()["progress"]["lastCheckpointStep"] == stopped_at
    begin = time.monotonic()
    jobs.patch({"spec": {"suspend": False}})
    wait_until(lambda: max(losses(jobs.run_folder())) > stopped_at, "the next step", 120)
    timings.add("resume: from the patch to the next step", time.monotonic() - begin)
    # Not from the beginning: that would give the same curve.
    resumed = re.search(r"resumed from \S*step-(\d+)", jobs.api.kubectl("logs", jobs.pod_name(0)).stdout)
    assert resumed and int(resumed[1]) == stopped_at
    jobs.wait_until_complete()
    jobs.assert_same_curve(undisturbed(steps))
