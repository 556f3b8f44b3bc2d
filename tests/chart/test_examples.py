"""Every example is accepted by a real API server with our CRD, its pods are made, and it says how it is applied. Every
overlay is accepted, too."""
import json
import re
import subprocess
import sys

import pytest
import yaml

from helm import ROOT, tool
from namespace import fresh_namespace
from operator_process import OperatorProcess
from train_jobs import TRAIN_JOBS, Jobs
from waiting import wait_until

OVERLAYS = {"default": "lockstep-system", "ha": "lockstep-system", "monitoring": "lockstep-system",
            "namespaced": "lockstep-jobs"}
MONITORING_CRDS = tool("kubectl").parents[1] / "crds"
EXAMPLES = sorted((ROOT / "manifests/examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def crd(control_plane):
    control_plane.kubectl("apply", "--server-side", "-f", ROOT / "manifests/base/crd.yaml")
    control_plane.wait_for_crd("trainjobs.lockstep.dev")
    yield control_plane
    control_plane.kubectl("delete", "crd", "trainjobs.lockstep.dev")


@pytest.fixture(scope="module")
def operator(crd):
    with OperatorProcess(crd) as running:
        yield running


def documents_of(path):
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one]


def test_there_is_one_for_each_thing_that_people_ask_for():
    assert {path.stem for path in EXAMPLES} >= {"trainjob", "one-gpu", "many-nodes", "elastic", "spot-nodes", "torchrun"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_server_accepts_it_without_a_warning(crd, path):
    done = crd.kubectl("apply", "--dry-run=server", "--validate=strict", "-o", "json", "-f", path)
    assert done.stderr == ""
    objects = json.loads(done.stdout)
    jobs = [one for one in objects.get("items", [objects]) if one["kind"] == "TrainJob"]
    assert len(jobs) == 1
    claims = {one["metadata"]["name"] for one in objects.get("items", []) if one["kind"] == "PersistentVolumeClaim"}
    volume = jobs[0]["spec"].get("checkpoint", {}).get("volume", {})
    assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_head_says_how_it_is_applied(path):
    head = re.match(r"(?:#.*\n)+", path.read_text(encoding="utf-8")).group(0)
    assert f"kubectl apply -f manifests/examples/{path.name}" in head


def make_claim(api, name):
    api.create("persistentvolumeclaims", {"metadata": {"name": name}, "spec": {
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_pods_are_made(crd, operator, path):
    objects = documents_of(path)
    (job,) = [one for one in objects if one["kind"] == "TrainJob"]
    name, nodes = job["metadata"]["name"], job["spec"]["trainer"].get("numNodes", 1)
    with fresh_namespace(crd, f"example-{path.stem}") as api:
        if "claimName: datasets" in path.read_text(encoding="utf-8") and "datasets" not in {
                one["metadata"]["name"] for one in objects}:
            make_claim(api, "datasets")  # which its head asks for
        api.kubectl("apply", "-f", path)
        jobs = Jobs(api)
        if "kueue.x-k8s.io/queue-name" in job["metadata"].get("labels", {}):  # this cluster has no Kueue
            nodes = 0
            wait_until(lambda: jobs.condition("Admitted", name).get("reason") == "QueueUnavailable", "the reason of its wait")
        wait_until(lambda: len(jobs.pods(name)) == nodes, f"{nodes} pods", 60, lambda: str(jobs.status(name)))
        assert jobs.condition("Failed", name).get("status") != "True"
        api.client.delete(TRAIN_JOBS, api.namespace, name)
        jobs.wait_until_gone(name)
    assert operator.is_running()


@pytest.mark.long
def test_the_program_of_the_torchrun_example_runs_under_torchrun(tmp_path):
    (config,) = [one for one in documents_of(ROOT / "manifests/examples/torchrun.yaml") if one["kind"] == "ConfigMap"]
    (tmp_path / "train.py").write_text(config["data"]["train.py"], encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           tmp_path / "train.py"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", done.stdout, re.M)]
    assert len(losses) == 10 and losses[-1] < 0.1 * losses[0]


# --- the overlays

def test_without_the_prometheus_operator_the_monitoring_overlay_is_refused_with_its_kinds(crd):
    if crd.exists("apiextensions.k8s.io/v1/customresourcedefinitions", None, "podmonitors.monitoring.coreos.com"):
        pytest.fail("an earlier test left the CRDs of the Prometheus operator")
    done = crd.kubectl("apply", "--server-side", "--dry-run=server", "-k", ROOT / "manifests/overlays/monitoring", check=False)
    assert done.returncode != 0 and 'no matches for kind "PodMonitor"' in done.stderr


@pytest.fixture(scope="module")
def cluster_of_overlays(crd):
    """With the CRDs of the Prometheus operator, and the namespaces."""
    paths = sorted(MONITORING_CRDS.glob("*.yaml"))
    files = [word for path in paths for word in ("-f", path)]
    assert files, f"{MONITORING_CRDS} is empty: run scripts/setup test"
    crd.kubectl("apply", "--server-side", *files)
    for path in paths:
        crd.wait_for_crd(yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"])
    team = crd.make_namespace("lockstep-jobs")
    yield crd
    crd.api.delete("namespaces", name=team)
    crd.kubectl("delete", *files)


@pytest.mark.parametrize("name, namespace", OVERLAYS.items())
def test_a_server_accepts_an_overlay_without_a_warning(cluster_of_overlays, name, namespace):
    done = cluster_of_overlays.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "name", "-k",
                                       ROOT / "manifests/overlays" / name)
    assert done.stderr == ""
    assert "deployment.apps/lockstep-operator" in done.stdout
    kinds = {line.split("/")[0] for line in done.stdout.split()}
    bindings = {line.split("/")[1] for line in done.stdout.split()
                if line.startswith("clusterrolebinding.rbac.authorization.k8s.io/")}
    assert bindings == ({"lockstep-operator", "lockstep-operator-queues"} if namespace == "lockstep-system" else
                        {"lockstep-operator-queues-lockstep-jobs"})
    if name == "monitoring":
        assert kinds >= {f"{one}.monitoring.coreos.com" for one in ("servicemonitor", "podmonitor", "prometheusrule")}
