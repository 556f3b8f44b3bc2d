"""The states of tests/golden/operator/pod_states.yaml are those that a real scheduler and kubelet report."""
import contextlib
import json

import pytest

from images import RUNNER
from kube_api import ApiError
from namespace import fresh_namespace
from pod_states import differences_from, name_of
from waiting import wait_until

HOLD = "tests.lockstep.dev/hold"  # a finalizer: a deleted pod stays to be looked at
IGNORES_SIGTERM = "exec tail -f /dev/null"  # as process 1, for which the kernel has no default action
OBEYS_SIGTERM = "trap 'exit 143' TERM; tail -f /dev/null & wait"


def container(script=IGNORES_SIGTERM, name="trainer", **more):
    return {"name": name, "image": RUNNER, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script], **more}


def spec(*containers, **more):
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": list(containers), **more}


NOBODY = {"schedulerName": "nobody"}
CONFIG_MAP = {"configMapKeyRef": {"name": "settings", "key": "seed"}}
# How a pod gets into each state by itself.
PODS = {
    "new": spec(container(), **NOBODY),
    "gated": spec(container(), schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
    "starting": spec(container(), volumes=[{"name": "settings", "configMap": {"name": "settings"}}]),
    "no image": spec(container(image="lockstep/runer:0.1.0")),
    "no config map": spec(container(env=[{"name": "SEED", "valueFrom": CONFIG_MAP}])),
    "initializing": spec(container(), initContainers=[container(name="fetch")]),
    "init failed": spec(container(), initContainers=[
        container("printf 'no such bucket' >/dev/termination-log; exit 7", "fetch")]),
    "running": spec(container(readinessProbe={"exec": {"command": ["false"]}, "periodSeconds": 1})),
    "ready": spec(container(readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 1})),
    "ready with a sidecar": spec(container(), initContainers=[container(name="logs", restartPolicy="Always")]),
    "sidecar ended": spec(container("exit 1", "logs"), container()),
    "sidecar without an image": spec(container(name="logs", image="lockstep/logs:1"), container()),
    "trainer done": spec(container(name="logs"), container("exit 0")),
    "done": spec(container("exit 0")),
    "exited 1": spec(container("exit 1")),
    "evicted for its own limit": spec(
        container(f"head -c 4M /dev/zero >/scratch/file; {OBEYS_SIGTERM}",
                  volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]),
        volumes=[{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]),
}
# A state that the kubelet may report in place of the first.
INSTEAD = {"evicted for its own limit": "evicted without an exit code"}


class Pods:
    """Of one namespace, named after what they are for."""

    def __init__(self, api):
        self.api = api

    def make(self, what, pod_spec):
        self.api.create("pods", {"metadata": {"name": name_of(what), "finalizers": [HOLD]}, "spec": pod_spec})

    def get(self, what):
        return self.api.get("pods", name_of(what))

    def wait_for(self, state, what=None, timeout=120):
        """The pod, once it is in the state of the file."""
        what = what or state

        def is_there():
            pod = self.get(what)
            different = differences_from(state, pod)
            if different and (state not in INSTEAD or differences_from(INSTEAD[state], pod)):
                raise AssertionError("\n".join([*different, json.dumps(pod["status"])]))
            return pod
        return wait_until(is_there, f"{state!r} of pod {name_of(what)}", timeout)

    def delete(self, what, **options):
        self.api.client.delete("pods", self.api.namespace, name_of(what), **options)

    def remove_all(self):
        for pod in self.api.list("pods"):
            name = pod["metadata"]["name"]
            self.api.client.patch("pods", {"metadata": {"finalizers": None}}, self.api.namespace, name)
        for pod in self.api.list("pods"):
            with contextlib.suppress(ApiError):  # it is gone
                self.api.client.delete("pods", self.api.namespace, pod["metadata"]["name"], gracePeriodSeconds=0)


@pytest.fixture(scope="module")
def pods(cluster):
    """PODS have been made, so that they get into their states at the same time."""
    with fresh_namespace(cluster, "kubelet-states") as api:
        found = Pods(api)
        for state, pod_spec in PODS.items():
            found.make(state, pod_spec)
        yield found
        found.remove_all()


@pytest.mark.parametrize("state", PODS)
def test_a_pod_gets_into_the_state_by_itself(pods, state):
    pods.wait_for(state)


def test_a_pod_that_no_node_fits_is_unscheduled(pods):
    pods.make("too large", spec(container(resources={"limits": {"nvidia.com/gpu": "1"}})))

    def is_unscheduled():
        # The numbers of nodes are the cluster's.
        different = [line for line in differences_from("unscheduled", pods.get("too large"))
                     if not line.startswith("conditions.PodScheduled.message")]
        assert not different, "\n".join(different)
        return True
    wait_until(is_unscheduled, "'unscheduled'")
    (condition,) = pods.get("too large")["status"]["conditions"]
    assert "nodes are available: " in condition["message"] and "Insufficient nvidia.com/gpu." in condition["message"]


def test_a_pod_that_is_being_deleted_stays_ready_while_it_runs(pods):
    pods.make("slow", spec(container(), terminationGracePeriodSeconds=20))
    pods.wait_for("ready", "slow")
    pods.delete("slow")
    wait_until(lambda: "Killing" in [event["reason"] for event in pods.api.list(
        "events", fieldSelector="involvedObject.name=slow")], "SIGTERM")
    assert "deletionTimestamp" in pods.wait_for("ready", "slow")["metadata"]
    pods.wait_for("exited 137", "slow")


@pytest.mark.parametrize("script, code", [(OBEYS_SIGTERM, 143), (IGNORES_SIGTERM, 137)])
def test_a_deleted_pod_has_its_exit_code(pods, script, code):
    what = f"deleted {code}"
    pods.make(what, spec(container(script), terminationGracePeriodSeconds=5))
    pods.wait_for("ready", what)
    pods.delete(what)
    assert "deletionTimestamp" in pods.wait_for(f"exited {code}", what)["metadata"]


def test_a_drained_pod_is_a_target_of_the_disruption(pods):
    pods.make("drained", spec(container(), terminationGracePeriodSeconds=10))
    pods.wait_for("ready", "drained")
    pods.api.client.create("pods", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "drained"}},
                           pods.api.namespace, "drained", "eviction")
    assert "deletionTimestamp" in pods.wait_for("drained")["metadata"]
