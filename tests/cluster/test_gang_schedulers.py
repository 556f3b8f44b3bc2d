"""Gangs under the schedulers of Volcano and of scheduler-plugins themselves, on four nodes of one pod each.

GANG_SCHEDULERS is the folder that scripts/setup queues has filled (make cluster-queues): a program and the CRDs of each."""
import os
import pathlib

import pytest
import yaml

from fake_kubelet import Exit
from processes import Process
from test_gangs import GangJobs, finish
from waiting import wait_until

FOLDER = pathlib.Path(os.environ.get("GANG_SCHEDULERS", "/nonexistent"))
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="GANG_SCHEDULERS names no folder of schedulers: make cluster-queues")

VOLCANO = {"actions": "enqueue, allocate, backfill",
           "tiers": [{"plugins": [{"name": "priority"}, {"name": "gang"}]},
                     {"plugins": [{"name": "predicates"}, {"name": "proportion"}, {"name": "nodeorder"}]}]}


def coscheduling(kubeconfig):
    plugin = [{"name": "Coscheduling"}]
    return {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(kubeconfig)},
            "profiles": [{"schedulerName": "scheduler-plugins-scheduler",
                          "plugins": {"multiPoint": {"enabled": plugin},
                                      "queueSort": {"enabled": plugin, "disabled": [{"name": "*"}]}},
                          "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}]}]}


@pytest.fixture(scope="module", params=["Volcano", "Coscheduling"])
def gang(request, control_plane):
    """The value of spec.scheduling.gang whose scheduler runs."""
    plane, name = control_plane, request.param.lower()
    for crd in sorted((FOLDER / name).glob("*.yaml")):
        plane.kubectl("apply", "--server-side", "-f", crd)
        group, plural = crd.stem.split("_")
        plane.wait_for_crd(f"{plural}.{group}")
    config = plane.folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(VOLCANO if name == "volcano" else coscheduling(plane.kubeconfig)), encoding="utf-8")
    port = plane.ports.take()
    flags = ["--kubeconfig", plane.kubeconfig, "--leader-elect=false", "--scheduler-conf", config, "--enable-healthz=false",
             "--listen-address", f"127.0.0.1:{port}"] if name == "volcano" else ["--config", config, "--secure-port", port]
    scheduler = Process(f"{name}-scheduler", [FOLDER / name / "scheduler", *flags], plane.folder)
    scheduler.start()
    yield request.param
    scheduler.stop()
    for crd in (FOLDER / name).glob("*.yaml"):
        plane.kubectl("delete", "--wait", "-f", crd)


@pytest.fixture
def jobs(api, restricted_operator):
    return GangJobs(api)


def test_two_gangs_that_fit_one_after_the_other_both_finish(jobs, kubelet, gang):
    jobs.create_gang("first", nodes=3, scheduling={"gang": gang})
    jobs.wait_for_condition("PodsReady", name="first")
    jobs.wait_for_condition("GangScheduled", name="first")
    jobs.create_gang("second", nodes=3, scheduling={"gang": gang})
    wait_until(lambda: len(jobs.pods("second")) == 3, "the pods of the second gang")
    jobs.wait_for_condition("GangScheduled", "False", "Unschedulable", name="second")
    assert jobs.bound("second") == [], "it holds the fourth node, which helps nobody"
    finish(jobs, kubelet, "first", [f"first-{n}-0" for n in range(3)])
    jobs.wait_for_condition("PodsReady", name="second")
    finish(jobs, kubelet, "second", [f"second-{n}-0" for n in range(3)])


def test_a_replaced_pod_of_a_running_gang_is_scheduled(jobs, kubelet, gang):
    jobs.create_gang(nodes=3, scheduling={"gang": gang})
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(jobs.api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-1", "job-2-0")
    jobs.wait_for_condition("PodsReady")
    assert set(jobs.bound()) >= {"job-0-0", "job-1-1", "job-2-0"}
