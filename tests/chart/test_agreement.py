"""The chart and the kustomize overlays make the same objects, where both make them."""
import subprocess

import pytest
import yaml

from helm import MONITORING, NAMESPACE, RELEASE, ROOT, by_name, documents
from command_line import program
from control_plane import kube_bin

OVERLAYS = ROOT / "manifests/overlays"
# What only one of them makes, and why.
OF_THE_CHART = {("Secret", "lockstep-token-key"),  # by hand with kustomize: it has no random numbers
                ("Lease", "lockstep-operator")}  # so that nothing is left over at uninstall
OF_KUSTOMIZE = {("Namespace", NAMESPACE)}  # helm install --create-namespace
LABELS_OF_RELEASES = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version",
                      "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of", "helm.sh/chart")
PAIRS = {
    "default": {},
    "namespaced": {"scope": "Namespace"},
    "ha": {"highAvailability": True},
    "monitoring": {"serviceMonitor.enabled": True, "podMonitor.enabled": True, "prometheusRule.enabled": True,
                   "dashboards.enabled": True},
    "with the network policy": {"networkPolicy.enabled": True},
    "on openshift": {"openshift": True},
}
COMPONENTS = {"with the network policy": "network-policy", "on openshift": "openshift"}


def without_marks(one):
    """The object without the labels and annotations that only releases have."""
    metadata = {name: dict(value) if isinstance(value, dict) else value for name, value in one["metadata"].items()}
    metadata["labels"] = {name: value for name, value in metadata.get("labels", {}).items()
                          if name not in LABELS_OF_RELEASES}
    metadata.get("annotations", {}).pop("helm.sh/resource-policy", None)
    return {**one, "metadata": {name: value for name, value in metadata.items() if value != {}}}


def kustomized(folder):
    done = subprocess.run([kube_bin() / "kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name(documents(done.stdout))


@pytest.fixture
def overlay(tmp_path):
    """overlay(name): its objects."""
    def objects(name):
        if (OVERLAYS / name).exists():
            return kustomized(OVERLAYS / name)
        # As the component's head tells people to take it in.
        folder = OVERLAYS.relative_to(ROOT)
        made = tmp_path / folder / "own"
        made.mkdir(parents=True)
        (tmp_path / "manifests/base").symlink_to(ROOT / "manifests/base")
        (tmp_path / "manifests/components").symlink_to(ROOT / "manifests/components")
        (made / "kustomization.yaml").write_text(yaml.dump({
            "resources": ["../../base"], "components": [f"../../components/{COMPONENTS[name]}"]}), encoding="utf-8")
        return kustomized(made)
    return objects


@pytest.mark.parametrize("name, values", PAIRS.items())
def test_chart_and_overlay_agree(helm, overlay, name, values):
    every = [word for one in MONITORING for word in ("--api-versions", one)]
    namespace = "lockstep-jobs" if name == "namespaced" else NAMESPACE
    of_chart = by_name(helm.objects(values, *every, namespace=namespace))
    of_overlay = overlay(name)
    assert set(of_chart) - set(of_overlay) == OF_THE_CHART
    assert set(of_overlay) - set(of_chart) == (set() if name == "namespaced" else OF_KUSTOMIZE)
    for key in set(of_chart) & set(of_overlay):
        assert without_marks(of_chart[key]) == without_marks(of_overlay[key]), key


def test_the_release_of_the_comparison_is_the_one_that_the_manifests_are_named_after(helm):
    assert RELEASE == "lockstep"
    deployment = by_name(helm.objects())["Deployment", "lockstep-operator"]
    assert deployment["metadata"]["labels"]["app.kubernetes.io/instance"] == "lockstep"


def test_the_prometheus_rule_is_made_of_the_rule_files():
    done = subprocess.run([ROOT / "scripts/prometheus_rule", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_chart_has_every_rule_and_every_dashboard(helm):
    objects = by_name(helm.objects({"prometheusRule.enabled": True, "dashboards.enabled": True}, "--api-versions",
                                   "monitoring.coreos.com/v1/PrometheusRule"))
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "dashboards/rules").glob("*.yaml"))]
    groups = [group for one in files for group in one["groups"]]
    assert objects["PrometheusRule", "lockstep"]["spec"]["groups"] == groups
    for path in (ROOT / "dashboards").glob("*.json"):
        config = objects["ConfigMap", f"lockstep-dashboard-{path.stem}"]
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config["data"] == {path.name: path.read_text(encoding="utf-8")}


def test_the_runbooks_are_where_the_values_say(helm):
    objects = helm.objects({"prometheusRule.enabled": True, "dashboards.enabled": True,
                            "runbookUrl": "https://wiki.example/lockstep"}, "--api-versions",
                           "monitoring.coreos.com/v1/PrometheusRule")
    (rule,) = [one for one in objects if one["kind"] == "PrometheusRule"]
    urls = {alert["alert"]: alert["annotations"]["runbook_url"] for group in rule["spec"]["groups"]
            for alert in group["rules"] if "alert" in alert}
    assert urls and all(url == f"https://wiki.example/lockstep#{name.lower()}" for name, url in urls.items())
    boards = by_name(objects)["ConfigMap", "lockstep-dashboard-operator"]["data"]["operator.json"]
    assert "https://wiki.example/lockstep#operatordown" in boards and "lockstep.dev/docs" not in boards


def test_the_monitors_find_what_they_are_for(helm):
    """By label and by the port's name, as the Prometheus operator does."""
    objects = by_name(helm.objects(PAIRS["monitoring"], *(word for one in MONITORING for word in ("--api-versions", one))))
    rendered = subprocess.run([program("lockstep"), "render", "-f", ROOT / "manifests/examples/trainjob.yaml"],
                              capture_output=True, text=True, check=True).stdout
    pods = [one for one in documents(rendered) if one["kind"] == "Pod"]
    pod_monitor = objects["PodMonitor", "lockstep-trainjobs"]["spec"]
    assert pod_monitor["selector"] == {"matchExpressions": [{"key": "lockstep.dev/job", "operator": "Exists"}]}
    ports = {one["port"] for one in pod_monitor["podMetricsEndpoints"]}
    assert pods and all("lockstep.dev/job" in pod["metadata"]["labels"] for pod in pods)
    assert all(ports <= {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]} for pod in pods)

    service = objects["Service", "lockstep-operator"]
    monitor = objects["ServiceMonitor", "lockstep-operator"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {one["port"] for one in monitor["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
    template = objects["Deployment", "lockstep-operator"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    named = {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
