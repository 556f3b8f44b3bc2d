"""Whatever options are set, the rendered objects are valid: kubeconform checks them by the schemas of the test API
server's own OpenAPI documents."""
import json
import subprocess

import pytest

from helm import MONITORING, ROOT, tool
from schemas import LOCATION, write_schemas_of_crds, write_schemas_of_server

EVERYTHING = {
    "highAvailability": True, "networkPolicy.enabled": True, "serviceMonitor.enabled": True, "podMonitor.enabled": True,
    "prometheusRule.enabled": True, "dashboards.enabled": True, "imagePullSecrets": [{"name": "pull"}],
    "tolerations": [{"key": "a", "operator": "Exists"}], "nodeSelector": {"a": "b"}, "priorityClassName": "high",
    "env": [{"name": "A", "value": "b"}], "tokenKey.existingSecret": "mine", "tokenKey.entry": "jobs",
    "networkPolicy.metricsFrom": [{"namespaceSelector": {}}], "serviceAccount.annotations": {"a": "b"}}
VALUES = {
    "default": {}, "one namespace": {"scope": "Namespace"}, "high availability": {"highAvailability": True},
    "everything": EVERYTHING, "everything in one namespace": {**EVERYTHING, "scope": "Namespace"},
    "as little as can be": {"crds.enabled": False, "rbac.create": False, "rbac.aggregate": False, "test.enabled": False,
                            "serviceAccount.create": False, "serviceAccount.name": "mine", "resources": {},
                            "leaderElection": False, "tokenKey.existingSecret": "mine"},
}
MANIFESTS = [f"overlays/{name}" for name in ("default", "namespaced", "ha", "monitoring")]


@pytest.fixture(scope="module")
def conform(control_plane, tmp_path_factory):
    """conform(text): kubeconform's report of YAML documents."""
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas_of_server(control_plane.api, folder)
    write_schemas_of_crds(folder)

    def check(text):
        done = subprocess.run([tool("kubeconform"), "-strict", "-summary", "-output", "json", "-schema-location",
                               f"{folder}/{LOCATION}"], input=text, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)
    return check


def assert_conforms(report):
    assert report.get("resources") in (None, []), json.dumps(report["resources"], indent=1)
    assert report["summary"]["valid"] > 0
    assert report["summary"]["invalid"] == report["summary"]["errors"] == report["summary"]["skipped"] == 0


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_renders_what_kubernetes_knows(helm, conform, name):
    every = [word for one in MONITORING for word in ("--api-versions", one)]
    assert_conforms(conform(helm.template(VALUES[name], *every).stdout))


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_overlays_hold_what_kubernetes_knows(control_plane, conform, name):
    assert_conforms(conform(control_plane.kubectl("kustomize", ROOT / "manifests" / name).stdout))


@pytest.mark.parametrize("path", sorted((ROOT / "manifests/examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_conform(conform, path):
    assert_conforms(conform(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("text, says", [
    ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replica: 1}\n", "replica"),
    ("apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: a}\nspec: {trainer: {image: i, nodes: 2}}\n", "nodes"),
    ("apiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nmetadata: {name: a}\nspec: {selector: {}, ports: []}\n",
     "ports"),
    ("apiVersion: monitoring.coreos.com/v1\nkind: Unknown\nmetadata: {name: a}\n", "could not find schema"),
])
def test_the_schemas_refuse_what_kubernetes_would(conform, text, says):
    """Otherwise the tests above would say nothing."""
    (refused,) = conform(text)["resources"]
    assert refused["status"] in ("statusInvalid", "statusError") and says in json.dumps(refused)
