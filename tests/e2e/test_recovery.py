"""What the operator does about every way in which a pod, its container or its machine can end: the right pods, the
right condition and reason, one event, and a plain message. Real kubelet, real agents."""
import re
import signal

import pytest

from command_line import kubectl_lockstep
from kube_api import ApiError
from real_jobs import ENDLESS, STEPS
from runs import losses
from waiting import wait_until

# A container whose process 1 is a shell: it runs the agent, and ends with the number in /tmp/code once that is there, or
# takes more and more memory once /tmp/eat is there.
ENDS_ON_REQUEST = """lockstep "$@" & agent=$!
trap 'kill -TERM $agent' TERM
while kill -0 $agent 2>/dev/null; do
  [ -e /tmp/code ] && exit "$(cat /tmp/code)"
  [ -e /tmp/eat ] && exec tail /dev/zero
  sleep 0.05
done
wait $agent"""


def shell(script):
    """Fields of spec.trainer: the agent's command line becomes the script's "$@"."""
    return {"command": ["sh", "-c", script, "lockstep"]}


def end_with(jobs, node, code):
    jobs.execute(node, f"echo {code} > /tmp/code.part && mv /tmp/code.part /tmp/code")


def evict(jobs, node):
    name = jobs.pod_name(node)
    jobs.api.client.create("pods", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
                           jobs.api.namespace, name, "eviction")


def drain(cluster, jobs, machine):
    """Of this test's pods: those of earlier ones may still be on their way out, and drain waits for all."""
    cluster.kubectl("drain", machine.name, "--force", "--delete-emptydir-data", f"--pod-selector={jobs.selector()}")


def one_event(jobs, reason, about=""):
    """The message of the only event with this reason, and with this in its message, which was counted once."""
    wait_until(lambda: jobs.reasons().count(reason) > 0, f"event {reason}",
               on_timeout=lambda: str(jobs.events()))
    (found,) = [event for event in jobs.events() if event[0] == reason and about in event[1]]
    assert found[2] == 1
    return found[1]


def assert_described(jobs, *words):
    text = " ".join(jobs.describe().split())
    for word in words:
        assert word in text, f"{word!r} is not in\n{text}"


def assert_recovery_is_told(jobs, reason, *words):
    """One event, in these words; the condition's reason and message; and all of it in `kubectl describe`."""
    message = one_event(jobs, reason)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    jobs.wait_for_recovered(message)
    jobs.wait_for_event(lambda event: event[0] == "Recovered", "event Recovered")
    assert_described(jobs, reason, message, "Recovered")


def why(jobs):
    """What `kubectl lockstep why` says, on one line."""
    done = kubectl_lockstep(jobs.api, "why", "job")
    assert done.returncode in (0, 1), done.stderr
    return " ".join(done.stdout.split())


def test_node_1_is_deleted_by_force(jobs, undisturbed, timings):
    jobs.start()
    jobs.wait_for_step(200)
    survivors = jobs.processes(0)
    seconds = jobs.seconds_to_next_step(lambda: jobs.delete_pod(1))
    timings.add("kubectl delete pod --force of node 1", seconds)
    assert jobs.processes(0) == survivors
    # "somebody deleted it", or the pod: its deletion was seen, or its absence.
    assert_recovery_is_told(jobs, "PodDeleted", "somebody deleted", "job-1-0")
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_until_complete()
    jobs.assert_same_curve(undisturbed(STEPS))


@pytest.mark.parametrize("code, reason, counts, words", [
    (10, "PeerLost", 0, "lost its peers"),
    (143, "Terminated", 0, "told to stop by somebody else"),
    (1, "Crash", 1, "ended with 1 (Crash)"),
    (2, "InvalidUsage", 1, "the same input has worked before"),
    (3, "DataUnreadable", 1, "the same input has worked before"),
])
def test_an_exit_code_that_a_new_pod_may_mend(jobs, undisturbed, timings, code, reason, counts, words):
    jobs.start(trainer=shell(ENDS_ON_REQUEST), flags=("--checkpoint_every", "0"))  # a checkpoint would clear the count
    jobs.wait_for_step(200)
    jobs.wait_for_condition("Running", reason="StepCommitted")  # before that the operator takes 2 and 3 for mistakes of the job
    survivors = jobs.processes(0)
    seconds = jobs.seconds_to_next_step(lambda: end_with(jobs, 1, code))
    timings.add(f"node 1's container ends with {code}", seconds)
    assert jobs.processes(0) == survivors
    assert_recovery_is_told(jobs, reason, words, "job-1-0")
    assert sum(jobs.status()["bookkeeping"].get("counted", {}).values()) == counts
    jobs.wait_for_pods("job-0-0", "job-1-1")
    # The pod that failed stays, for its logs.
    jobs.wait_for(lambda: jobs.pods()["job-1-0"]["status"]["phase"] == "Failed", "Failed of the pod that ended")
    assert "no GPU found" in jobs.api.kubectl("logs", "job-1-0").stdout
    status = jobs.wait_until_complete()
    assert status["restarts"]["pod"] == 1
    (failure,) = status["recentFailures"]
    assert (failure["node"], failure["attempt"], failure["exitCode"], failure["reason"]) == (1, 0, code, reason)
    jobs.assert_same_curve(undisturbed(STEPS))


def test_a_device_fault_moves_to_another_machine(second_machine, jobs, undisturbed, timings):
    jobs.start(trainer=shell(ENDS_ON_REQUEST))
    jobs.wait_for_step(200)
    before = jobs.pod_of(1)["spec"]["nodeName"]
    seconds = jobs.seconds_to_next_step(lambda: end_with(jobs, 1, 12))
    timings.add("node 1's container ends with 12 (device fault)", seconds)
    assert jobs.pod_of(1)["spec"]["nodeName"] != before
    assert_recovery_is_told(jobs, "DeviceFault", f"on another node than {before} (its device is at fault)")
    jobs.wait_until_complete()
    jobs.assert_same_curve(undisturbed(STEPS))


def test_an_exit_code_that_no_new_pod_would_mend_fails_the_job(jobs):
    code, reason = 5, "NotFinite"
    jobs.start(trainer=shell(ENDS_ON_REQUEST))
    jobs.wait_for_step(100)
    end_with(jobs, 1, code)
    failed = jobs.wait_for_condition("Failed", reason=reason)
    assert f"ended with {code} ({reason})" in failed["message"]
    jobs.wait_for(lambda: jobs.live_pods() == [], "end of the pods")
    assert f"ended with {code}" in one_event(jobs, reason)
    assert_described(jobs, f"ended with {code} ({reason})", "the same steps would lead to the same numbers again")
    assert reason in why(jobs) and "has failed" in why(jobs), why(jobs)


def test_a_data_set_that_is_not_there_is_said_in_the_agents_own_words(jobs):
    (jobs.data / "small.txt").unlink()
    jobs.start()
    failed = jobs.wait_for_condition("Failed", reason="DataUnreadable", timeout=120)
    assert "/data/small.txt" in failed["message"] and "not found" in failed["message"]
    assert_described(jobs, 'data set "/data/small.txt" not found')


def test_a_wrong_flag_is_said_in_the_agents_own_words(jobs):
    jobs.start(flags=("--num_epoch", "3"))
    failed = jobs.wait_for_condition("Failed", reason="InvalidUsage", timeout=120)
    assert "--num_epoch" in failed["message"]


def test_a_container_that_the_kernel_killed_for_memory(jobs, undisturbed, timings):
    jobs.start(trainer=shell(ENDS_ON_REQUEST))
    jobs.wait_for_step(200)
    survivors = jobs.processes(0)
    seconds = jobs.seconds_to_next_step(lambda: jobs.execute(1, "touch /tmp/eat"))
    timings.add("node 1's container takes 1 GiB and is killed by the kernel (the taking included)", seconds)
    assert jobs.processes(0) == survivors
    assert_recovery_is_told(jobs, "OutOfMemory", "job-1-0")
    assert "OutOfMemory" in why(jobs) and "memory" in why(jobs)
    jobs.wait_for_pods("job-0-0", "job-1-1")
    status = jobs.wait_until_complete()
    assert status["recentFailures"][0]["reason"] == "OutOfMemory"
    assert "memory limit" in status["recentFailures"][0]["message"]
    jobs.assert_same_curve(undisturbed(STEPS))


def test_a_worker_that_the_kernel_killed_for_memory_is_named_so(jobs):
    """The agent lives on: it is small. The second worker that ends so ends the pod."""
    jobs.start(trainer={"resourcesPerNode": {"requests": {"cpu": "50m"}, "limits": {"memory": "60Mi"}}})
    failed = jobs.wait_for_condition("Failed", timeout=180)
    assert "memory" in failed["message"], failed
    assert_described(jobs, "memory")


def test_an_eviction_is_not_counted(jobs, undisturbed, timings):
    jobs.start()
    jobs.wait_for_step(200)
    seconds = jobs.seconds_to_next_step(lambda: evict(jobs, 1))
    timings.add("eviction of node 1's pod", seconds)
    assert_recovery_is_told(jobs, "EvictionByEvictionAPI", "evict", "job-1-0")
    status = jobs.wait_until_complete()
    assert not status.get("bookkeeping", {}).get("counted")
    jobs.assert_same_curve(undisturbed(STEPS))


SPREAD = {"topologySpreadConstraints": [{
    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"lockstep.dev/job": "job"}}}]}


def node_on(jobs, machine):
    """The job's node whose pod is there."""
    placed = {jobs.pod_of(node)["spec"]["nodeName"]: node for node in (0, 1)}
    assert machine.name in placed, placed
    return placed[machine.name]


def test_a_drained_machine_loses_no_step(cluster, second_machine, jobs, undisturbed, timings):
    jobs.start(pod_spec=SPREAD)
    jobs.wait_for_step(200)
    victim = node_on(jobs, second_machine)
    try:
        seconds = jobs.seconds_to_next_step(lambda: drain(cluster, jobs, second_machine))
        timings.add(f"kubectl drain of the machine of node {victim}", seconds)
        assert jobs.pod_of(victim)["spec"]["nodeName"] != second_machine.name
        assert_recovery_is_told(jobs, "EvictionByEvictionAPI", "evict", f"job-{victim}-0")
        jobs.wait_until_complete()
        jobs.assert_same_curve(undisturbed(STEPS))
    finally:
        cluster.kubectl("uncordon", second_machine.name)


def test_a_machine_that_vanishes_is_given_up(second_machine, jobs, undisturbed, timings):
    """Its kubelet and its containers end, and report nothing."""
    jobs.start(steps=ENDLESS, pod_spec=SPREAD)
    jobs.wait_for_step(100)
    victim = node_on(jobs, second_machine)
    try:
        seconds = jobs.seconds_to_next_step(second_machine.vanish, timeout=180)
        timings.add(f"the machine of node {victim} vanishes (known 10 s after its kubelet's last word)", seconds)
        assert jobs.pod_of(victim)["spec"]["nodeName"] != second_machine.name
        # The operator counts the node as lost, or the taint manager deletes the pod, whichever is first.
        reason = jobs.condition("Recovering")["message"]
        reason = "NodeLost" if "NodeLost" in reason else "DeletionByTaintManager"
        # The pod in its place may have been bound to the machine, too, before the scheduler knew.
        message = one_event(jobs, reason, f"job-{victim}-0")
        assert second_machine.name in message
        jobs.wait_for_recovered(reason)
        jobs.wait_for_event(lambda event: event[0] == "Recovered", "event Recovered")
        assert_described(jobs, reason, message, "Recovered")
        jobs.assert_same_beginning(undisturbed(STEPS))
    finally:
        second_machine.come_back()


# --- what waits


def test_an_image_that_cannot_be_pulled_is_named(jobs):
    jobs.start(trainer={"image": "registry.invalid/nobody/runner:1"})
    found = jobs.wait_for_condition("PodsReady", "False", "ImagePullBackOff", timeout=120)
    assert "registry.invalid/nobody/runner:1" in found["message"]
    assert jobs.status()["phase"] in ("Pending", "Starting")
    assert_described(jobs, "ImagePullBackOff")


def test_pods_that_find_no_machine_say_why(jobs):
    jobs.start(trainer={"resourcesPerNode": {"requests": {"cpu": "5000"}}})
    found = jobs.wait_for_condition("PodsReady", "False", "Unschedulable")
    assert "Insufficient cpu" in found["message"] and re.search(r"pod job-\d-0 cannot be scheduled", found["message"])
    assert_described(jobs, "Insufficient cpu")


def test_startup_that_takes_too_long_fails_with_the_reason(jobs):
    jobs.start(trainer={"image": "registry.invalid/nobody/runner:1"}, health={"startupTimeoutSeconds": 30})
    failed = jobs.wait_for_condition("Failed", reason="StartupTimeout", timeout=120)
    assert "registry.invalid" in failed["message"] and "startupTimeoutSeconds is 30" in failed["message"]


# --- the operator restarted in the middle of each

FAULTS = {
    "a killed worker": lambda jobs: jobs.kill_worker(1),
    "a deleted pod of node 1": lambda jobs: jobs.delete_pod(1),
    "a deleted pod of node 0": lambda jobs: jobs.delete_pod(0),
    "a crash": lambda jobs: end_with(jobs, 1, 1),
    "a container that lost its peers (10)": lambda jobs: end_with(jobs, 1, 10),
    "a container that was told to stop (143)": lambda jobs: end_with(jobs, 1, 143),
    "a container killed for memory": lambda jobs: jobs.execute(1, "touch /tmp/eat"),
    "an eviction": lambda jobs: evict(jobs, 1),
}


EVENTS = {
    "a killed worker": "WorkerRestarted", "a crash": "Crash", "a container that lost its peers (10)": "PeerLost",
    "a container that was told to stop (143)": "Terminated", "a container killed for memory": "OutOfMemory",
    "an eviction": "EvictionByEvictionAPI"}


def end_operator(cluster):
    cluster.api.delete("pods", "lockstep-system", cluster.operator_pod(), gracePeriodSeconds=0)


@pytest.mark.parametrize("what", FAULTS)
def test_the_operator_restarts_in_the_middle(cluster, jobs, undisturbed, timings, what):
    jobs.start(trainer=shell(ENDS_ON_REQUEST))
    jobs.wait_for_step(200)

    def inject_both_faults():
        end_operator(cluster)
        FAULTS[what](jobs)
    seconds = jobs.seconds_to_next_step(inject_both_faults)
    timings.add(f"{what}, and the operator at the same time", seconds)
    status = jobs.wait_until_complete()
    jobs.assert_same_curve(undisturbed(STEPS))
    assert status["restarts"]["total"] == 1
    one_event(jobs, EVENTS.get(what, "PodDeleted"))
    assert max(int(re.fullmatch(r"job-\d-(\d+)", name).group(1)) for name in jobs.pods()) <= 1


MOVES = {
    "a device fault": lambda cluster, jobs, machine: end_with(jobs, node_on(jobs, machine), 12),
    "a drain": drain,
}


@pytest.mark.parametrize("what", MOVES)
def test_the_operator_restarts_while_a_pod_moves(cluster, second_machine, jobs, undisturbed, timings, what):
    jobs.start(trainer=shell(ENDS_ON_REQUEST), pod_spec=SPREAD)
    jobs.wait_for_step(200)
    victim = node_on(jobs, second_machine)

    def inject_both_faults():
        end_operator(cluster)
        MOVES[what](cluster, jobs, second_machine)
    try:
        seconds = jobs.seconds_to_next_step(inject_both_faults)
        timings.add(f"{what}, and the operator at the same time", seconds)
        assert jobs.pod_of(victim)["spec"]["nodeName"] != second_machine.name
        assert jobs.wait_until_complete()["restarts"]["total"] == 1
        jobs.assert_same_curve(undisturbed(STEPS))
        one_event(jobs, {"a drain": "EvictionByEvictionAPI", "a device fault": "DeviceFault"}[what])
    finally:
        cluster.kubectl("uncordon", second_machine.name)


def test_the_operator_restarts_while_a_job_fails(cluster, jobs):
    code, reason = 5, "NotFinite"
    jobs.start(trainer=shell(ENDS_ON_REQUEST))
    jobs.wait_for_step(100)
    end_operator(cluster)
    end_with(jobs, 1, code)
    jobs.wait_for_condition("Failed", reason=reason, timeout=120)
    assert f"ended with {code}" in one_event(jobs, reason)


@pytest.mark.parametrize("trainer, reason", [
    ({"image": "registry.invalid/nobody/runner:1"}, "ImagePullBackOff"),
    ({"resourcesPerNode": {"requests": {"cpu": "5000"}}}, "Unschedulable"),
])
def test_the_operator_restarts_while_pods_wait(cluster, jobs, trainer, reason):
    """The new operator reports the same reason, makes no second pod, and writes no second event."""
    jobs.start(trainer=trainer)
    jobs.wait_for_condition("PodsReady", "False", reason, timeout=120)
    since = jobs.condition("PodsReady")["lastTransitionTime"]
    pods = jobs.pods()
    cluster.restart_operator()
    generation = jobs.patch({"spec": {"restartPolicy": {"maxRestarts": 11}}})["metadata"]["generation"]
    jobs.wait_for(lambda: jobs.status().get("observedGeneration") == generation, "word of the new operator")
    assert jobs.condition("PodsReady")["lastTransitionTime"] == since
    assert jobs.pods().keys() == pods.keys()
    one_event(jobs, reason)


def test_a_refused_eviction_leaves_the_run_alone(api, jobs):
    """A PodDisruptionBudget of the user's works with our pods."""
    api.create("policy/v1/poddisruptionbudgets", {
        "metadata": {"name": "keep"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"lockstep.dev/job": "job"}}}})
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(50)
    name = jobs.pod_name(1)
    wait_until(lambda: api.get("policy/v1/poddisruptionbudgets", "keep").get("status", {}).get("expectedPods") == 2,
               "budget in force")
    with pytest.raises(ApiError) as refused:
        api.client.create("pods", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
                          api.namespace, name, "eviction")
    assert refused.value.status == 429
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]


def test_sigstop_of_a_worker_is_a_hang_that_is_found(jobs, timings):
    jobs.start(steps=ENDLESS, health={"stallTimeoutSeconds": 10})
    jobs.wait_for_step(100)
    seconds = jobs.seconds_to_next_step(lambda: jobs.kill_worker(1, number=int(signal.SIGSTOP)), timeout=180)
    timings.add("SIGSTOP of a worker (health.stallTimeoutSeconds: 10)", seconds)
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]
    assert max(losses(jobs.run_folder())) > 100
