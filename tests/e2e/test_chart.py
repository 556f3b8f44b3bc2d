"""The Helm chart on a real node, with real images: it takes over what kubectl has installed, `helm test` trains, and
after an uninstall only the CRD and the key are left."""
import pathlib
import sys

import pytest

from real_jobs import ENDLESS
from runs import losses
from waiting import wait_until

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "chart"))

from helm import CHART, NAMESPACE, RELEASE, Helm  # noqa: E402

RELEASED = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/managed-by=Helm"
KINDS = ("deployments,services,serviceaccounts,configmaps,secrets,roles,rolebindings,leases,pods,networkpolicies,"
         "poddisruptionbudgets")
CLUSTER_KINDS = "clusterroles,clusterrolebindings,customresourcedefinitions"


@pytest.fixture
def helm(cluster):
    """On the cluster of all tests, which has its operator back at the end."""
    yield Helm(cluster.folder, cluster.kubeconfig)
    cluster.install_operator()


def released(cluster):
    """Everything that has the release's labels, by kind and name."""
    return {line for kinds in (KINDS, CLUSTER_KINDS)
            for line in cluster.kubectl("get", kinds, "-l", RELEASED, "-o", "name", namespace=NAMESPACE).stdout.split()}


def operator_pods(cluster):
    """name → command line, of those that are not being deleted."""
    return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["args"] for pod in cluster.api.list("pods", NAMESPACE)
            if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "operator" and
            "deletionTimestamp" not in pod["metadata"]}


def settled(cluster):
    """operator_pods(), once they are two: Helm does not wait until the last old one is asked to end."""
    wait_until(lambda: len(operator_pods(cluster)) == 2, "two operator pods", 60, lambda: str(operator_pods(cluster)))
    return operator_pods(cluster)


def test_the_chart_takes_over_trains_and_leaves(cluster, helm, jobs):
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(50)
    before = jobs.processes(0), jobs.processes(1)

    helm("install", RELEASE, CHART, "-n", NAMESPACE, "--take-ownership", "--set",
         "highAvailability=true,networkPolicy.enabled=true,test.steps=12", "--wait", "--timeout", "120s")
    tested = helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "300s", timeout=330)
    assert "Phase:          Succeeded" in tested.stdout
    said = tested.stderr  # where Helm shows the log of a hook
    assert f"TrainJob {NAMESPACE}/{RELEASE}-test was complete after" in said and "step 12 of 12" in said
    assert not [one for one in released(cluster) if one.endswith(f"{RELEASE}-test")]
    assert cluster.api.list("lockstep.dev/v1/trainjobs", NAMESPACE) == []

    replicas = settled(cluster)
    helm("upgrade", RELEASE, CHART, "-n", NAMESPACE, "--reuse-values", "--set", "logLevel=debug", "--wait",
         "--timeout", "120s")
    upgraded = settled(cluster)
    assert not upgraded.keys() & replicas.keys()
    assert all("--log_level=debug" in args for args in upgraded.values())
    helm("rollback", RELEASE, "1", "-n", NAMESPACE, "--wait", "--timeout", "120s")
    assert sorted(settled(cluster).values()) == sorted(replicas.values())
    assert (jobs.processes(0), jobs.processes(1)) == before

    helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    wait_until(lambda: released(cluster) == {"customresourcedefinition.apiextensions.k8s.io/trainjobs.lockstep.dev",
                                             "secret/lockstep-token-key"}, "end of the release", 60,
               lambda: str(released(cluster)))
    step = max(losses(jobs.run_folder()))
    wait_until(lambda: max(losses(jobs.run_folder())) > step, "a step without an operator")
    assert (jobs.processes(0), jobs.processes(1)) == before


def test_a_test_that_fails_says_why_and_leaves_nothing(cluster, helm):
    helm("install", RELEASE, CHART, "-n", NAMESPACE, "--take-ownership", "--wait", "--timeout", "120s",
         "--set", "test.image.repository=lockstep/operator")  # has no trainer: its arguments are wrong
    try:
        done = helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "300s", check=False, timeout=330)
        assert done.returncode != 0
        assert f"TrainJob {NAMESPACE}/{RELEASE}-test has failed: " in done.stdout + done.stderr
        assert not [one for one in released(cluster) if one.endswith(f"{RELEASE}-test")]
    finally:
        helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
        cluster.kubectl("delete", "trainjob", f"{RELEASE}-test", "--ignore-not-found", namespace=NAMESPACE)
