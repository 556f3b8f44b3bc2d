"""What the chart renders, refuses and says, without a cluster."""
import json
import re
import subprocess
import tarfile

import pytest
import yaml

from helm import CHART, MONITORING, ROOT, by_name, documents, is_hook

OPERATOR = ("Deployment", "lockstep-operator")
MONITORS = {"serviceMonitor.enabled": "ServiceMonitor", "podMonitor.enabled": "PodMonitor",
            "prometheusRule.enabled": "PrometheusRule"}


def pod_spec(objects):
    return by_name(objects)[OPERATOR]["spec"]["template"]["spec"]


def container(objects):
    (only,) = pod_spec(objects)["containers"]
    return only


def refusal(helm, values, *words):
    done = helm.template(values, *words, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


# --- the chart itself

def test_lint_has_nothing_to_say_against_it(helm):
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART).stdout


def test_its_versions_are_the_projects():
    project = re.search(r"project\(lockstep VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (project.group(1), project.group(1))


def test_a_package_holds_the_files_that_the_repository_links_to(helm, tmp_path):
    helm("package", CHART, "--destination", tmp_path)
    (archive,) = tmp_path.glob("lockstep-*.tgz")
    with tarfile.open(archive) as packed:
        crd = packed.extractfile("lockstep/files/crd.yaml").read().decode()
        names = packed.getnames()
    assert crd == (ROOT / "manifests/base/crd.yaml").read_text(encoding="utf-8")
    assert not [name for name in names if name.endswith(".py")]
    from_package = by_name(documents(helm("template", "lockstep", archive, "--set", "tokenKey.existingSecret=x").stdout))
    from_folder = by_name(documents(helm("template", "lockstep", CHART, "--set", "tokenKey.existingSecret=x").stdout))
    assert from_package == from_folder


def test_the_readme_has_every_value_with_its_default():
    done = subprocess.run([ROOT / "scripts/chart_readme", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    rows = {path: yaml.safe_load(default) for path, default in re.findall(r"^\| `([^`]+)` \| `([^`]*)` \|", readme, re.M)}
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def found(path):
        value = values
        for name in path.split("."):
            value = value[name]
        return value
    assert {path: found(path) for path in rows} == rows
    undescribed = [path for path in leaves(values) if not any(path == row or path.startswith(row + ".") for row in rows)]
    assert undescribed == []


def leaves(values, above=""):
    for name, value in values.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from leaves(value, path + ".")
        else:
            yield path


def test_the_schema_knows_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(below, found, path):
        if "$ref" in below:
            below = schema["definitions"][below["$ref"].rsplit("/", 1)[1]]
        if below.get("type") != "object":
            return
        assert "additionalProperties" in below or path in (".affinity", ".podSecurityContext", ".securityContext"), path
        if "properties" not in below or not isinstance(found, dict):
            return
        assert set(found) <= set(below["properties"]), path
        for name, value in found.items():
            compare(below["properties"][name], value, f"{path}.{name}")
    compare({**schema, "properties": {**schema["properties"]}}, values, "")
    assert set(schema["properties"]) - {"global"} == set(values)


# --- what is refused

@pytest.mark.parametrize("values, says", [
    ({"workers": "many"}, "at '/workers': got string, want integer"),
    ({"workers": 0}, "at '/workers': minimum: got 0, want 1"),
    ({"imag": {"tag": "1"}}, "additional properties 'imag' not allowed"),
    ({"image.tga": "1"}, "at '/image': additional properties 'tga' not allowed"),
    ({"image.digest": "latest"}, "at '/image/digest'"),
    ({"image.pullPolicy": "Sometimes"}, "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ({"scope": "cluster"}, "at '/scope': value must be one of 'Cluster', 'Namespace'"),
    ({"crds.enabled": "yes"}, "at '/crds/enabled': got string, want boolean"),
    ({"logLevel": "loud"}, "at '/logLevel'"),
    ({"resources.limit": {}}, "at '/resources': additional properties 'limit' not allowed"),
    ({"serviceMonitor.interval": "15"}, "at '/serviceMonitor/interval'"),
    ({"podDisruptionBudget.maxUnavailable": "half"}, "at '/podDisruptionBudget/maxUnavailable'"),
    ({"readinessProbe.httpGet": {}}, "at '/readinessProbe': additional properties 'httpGet' not allowed"),
    ({"tolerations": {}}, "at '/tolerations': got object, want array"),
    ({"runbookUrl": "docs/alerts.md"}, "at '/runbookUrl'"),
])
def test_a_wrong_or_unknown_value_is_named(helm, values, says):
    assert says in refusal(helm, values)


def test_several_replicas_without_an_election_are_refused(helm):
    assert "there are 3 replicas" in refusal(helm, {"leaderElection": False, "replicas": 3})
    assert "leaderElection is false" in refusal(helm, {"leaderElection": False, "highAvailability": True})
    objects = helm.objects({"leaderElection": False})
    assert container(objects)["args"].count("--leader_elect=false") == 1


def test_a_service_account_of_ones_own_must_be_named(helm):
    assert "serviceAccount.name" in refusal(helm, {"serviceAccount.create": False})
    objects = helm.objects({"serviceAccount.create": False, "serviceAccount.name": "mine"})
    assert pod_spec(objects)["serviceAccountName"] == "mine"
    assert by_name(objects)["ClusterRoleBinding", "lockstep-operator"]["subjects"][0]["name"] == "mine"
    assert ("ServiceAccount", "mine") not in by_name(objects)


@pytest.mark.parametrize("value, kind", MONITORS.items())
def test_a_toggle_whose_crd_is_absent_says_so_and_what_to_do(helm, value, kind):
    said = refusal(helm, {value: True})
    assert f"{value} is true, but the cluster has no {kind}" in said and "install the Prometheus operator's CRDs" in said
    way_out = re.search(r"--api-versions (\S+)", said).group(1)
    kinds = {one["kind"] for one in helm.objects({value: True}, "--api-versions", way_out)}
    assert kind in kinds


# --- what is rendered

def test_nothing_optional_is_there_by_default(helm):
    kinds = {one["kind"] for one in helm.objects()}
    assert kinds == {"ServiceAccount", "Secret", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role",
                     "RoleBinding", "Lease", "FlowSchema", "Deployment"}


@pytest.mark.parametrize("values, kinds", [
    ({"podDisruptionBudget.enabled": True}, {"PodDisruptionBudget"}),
    ({"service.enabled": True}, {"Service"}),
    ({"serviceMonitor.enabled": True}, {"Service", "ServiceMonitor"}),
    ({"podMonitor.enabled": True}, {"PodMonitor"}),
    ({"prometheusRule.enabled": True}, {"PrometheusRule"}),
    ({"dashboards.enabled": True}, {"ConfigMap"}),
    ({"networkPolicy.enabled": True}, {"NetworkPolicy"}),
    ({"highAvailability": True}, {"PodDisruptionBudget"}),
])
def test_a_toggle_adds_its_kinds_and_no_others(helm, values, kinds):
    every = [word for one in MONITORING for word in ("--api-versions", one)]
    plain = {one["kind"] for one in helm.objects()}
    assert {one["kind"] for one in helm.objects(values, *every)} - plain == kinds


@pytest.mark.parametrize("values, gone", [
    ({"crds.enabled": False}, {("CustomResourceDefinition", "trainjobs.lockstep.dev")}),
    ({"tokenKey.existingSecret": "mine"}, {("Secret", "lockstep-token-key")}),
    ({"leaderElection": False}, {("Lease", "lockstep-operator"), ("FlowSchema", "lockstep-operator-lease")}),
    ({"flowSchema": False}, {("FlowSchema", "lockstep-operator-lease")}),
    ({"rbac.aggregate": False}, {("ClusterRole", "lockstep-trainjobs-view"), ("ClusterRole", "lockstep-trainjobs-edit")}),
    ({"rbac.create": False}, {("ClusterRole", "lockstep-operator"), ("ClusterRoleBinding", "lockstep-operator"),
                              ("ClusterRole", "lockstep-operator-queues"),
                              ("ClusterRoleBinding", "lockstep-operator-queues"),
                              ("Role", "lockstep-leader-election"), ("RoleBinding", "lockstep-leader-election")}),
])
def test_a_part_that_is_switched_off_is_gone(helm, values, gone):
    assert set(by_name(helm.objects())) - set(by_name(helm.objects(values))) == gone


def test_keep_is_a_policy_of_the_crd_and_of_the_key(helm):
    def kept(values):
        return {one["kind"] for one in helm.objects(values)
                if one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"}
    assert kept({}) == {"CustomResourceDefinition", "Secret"}
    assert kept({"crds.keep": False}) == {"Secret"}
    assert kept({"crds.keep": False, "tokenKey.keep": False}) == set()


def test_the_key_is_32_bytes_and_no_two_renderings_have_the_same(helm):
    def key():
        secret = by_name(helm.objects())["Secret", "lockstep-token-key"]
        assert secret["immutable"] is True
        return yaml.safe_load(f"!!binary {secret['data']['key']}")
    first, second = key(), key()
    assert len(first) == len(second) == 32 and first != second


def test_a_key_of_ones_own_is_mounted_under_the_name_that_the_operator_reads(helm):
    objects = helm.objects({"tokenKey.existingSecret": "mine", "tokenKey.entry": "jobs"})
    (volume,) = pod_spec(objects)["volumes"]
    assert volume["secret"] == {"secretName": "mine", "defaultMode": 0o440, "items": [{"key": "jobs", "path": "key"}]}


@pytest.mark.parametrize("image, expected", [
    ({}, "lockstep/operator:0.1.0"),
    ({"image.tag": "2"}, "lockstep/operator:2"),
    ({"image.registry": "registry.example:5000"}, "registry.example:5000/lockstep/operator:0.1.0"),
    ({"image.digest": "sha256:" + "a" * 64, "image.tag": "2"}, "lockstep/operator@sha256:" + "a" * 64),
])
def test_an_image_is_named_by_registry_repository_and_tag_or_digest(helm, image, expected):
    assert container(helm.objects(image))["image"] == expected


def test_values_of_the_pod_reach_it(helm):
    toleration = {"key": "control-plane", "operator": "Exists"}
    objects = helm.objects({
        "imagePullSecrets": [{"name": "pull"}], "nodeSelector": {"a": "b"}, "tolerations": [toleration],
        "priorityClassName": "system-cluster-critical", "podLabels": {"x": "y"}, "podAnnotations": {"p": "q"},
        "commonLabels": {"team": "ml"}, "env": [{"name": "TZ", "value": "UTC"}], "extraArgs": ["--context=c"],
        "workers": 3, "qps": 1000000 // 10, "burst": 5, "logLevel": "debug", "prometheusNamespace": "o11y",
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}]})
    spec, only = pod_spec(objects), container(objects)
    assert spec["imagePullSecrets"] == [{"name": "pull"}] and spec["tolerations"] == [toleration]
    assert spec["nodeSelector"] == {"a": "b"} and spec["priorityClassName"] == "system-cluster-critical"
    metadata = by_name(objects)[OPERATOR]["spec"]["template"]["metadata"]
    assert metadata["labels"].items() >= {"x": "y", "team": "ml", "app.kubernetes.io/component": "operator"}.items()
    assert metadata["annotations"]["p"] == "q"
    assert only["args"][3:] == ["--workers=3", "--qps=100000", "--burst=5", "--log_level=debug",
                                f"--agent_image={only['image']}",
                                "--prometheus_namespace=o11y", "--context=c"]
    assert only["env"] == [{"name": "TZ", "value": "UTC"}]
    assert [mount["name"] for mount in only["volumeMounts"]] == ["token-key", "ca"]
    assert all(one["metadata"]["labels"]["team"] == "ml" for one in objects)


def test_on_openshift_no_pod_names_a_user_or_group(helm):
    everywhere, there = helm.objects(), helm.objects({"openshift": True})
    assert pod_spec(everywhere)["securityContext"].keys() - pod_spec(there)["securityContext"].keys() == {
        "runAsUser", "runAsGroup", "fsGroup"}
    assert set(container(there)["args"]) - set(container(everywhere)["args"]) == {"--fs_group=false"}
    hooks = by_name([one for one in documents(helm.template({"openshift": True}).stdout) if is_hook(one)])
    assert hooks["Pod", "lockstep-test"]["spec"]["securityContext"] == pod_spec(there)["securityContext"]


def test_the_flow_schema_is_about_the_lease_of_this_release(helm):
    objects = by_name(helm.objects({"scope": "Namespace", "serviceAccount.name": "mine"}, namespace="team-a"))
    (rule,) = objects["FlowSchema", "lockstep-operator-lease-team-a"]["spec"]["rules"]
    assert rule["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": {"name": "mine", "namespace": "team-a"}}]
    assert rule["resourceRules"] == [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                                      "namespaces": ["team-a"], "verbs": ["get", "create", "update"]}]


def test_labels_of_values_never_replace_those_of_the_selector(helm):
    deployment = by_name(helm.objects({"podLabels": {"app.kubernetes.io/component": "other"}}))[OPERATOR]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= deployment["spec"]["selector"]["matchLabels"].items()


def test_extra_objects_are_templates(helm):
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra"}}
    assert ("ConfigMap", "lockstep-extra") in by_name(helm.objects({"extraObjects": [extra]}))


def test_names_follow_the_release_and_fit_into_those_of_kubernetes(helm):
    def name_of(release, values=None):
        return by_name(helm.objects(values, release=release)).keys() & {("Deployment", f"{n}-operator") for n in (
            "prod-lockstep", "lockstep-dev", "mine", "r" * 40)}
    assert name_of("prod") == {("Deployment", "prod-lockstep-operator")}
    assert name_of("lockstep-dev") == {("Deployment", "lockstep-dev-operator")}
    assert name_of("prod", {"fullnameOverride": "mine"}) == {("Deployment", "mine-operator")}
    assert name_of("r" * 53) == {("Deployment", "r" * 40 + "-operator")}


def test_the_test_is_a_trainjob_that_a_pod_without_more_rights_waits_for(helm):
    hooks = by_name([one for one in documents(helm.template().stdout) if is_hook(one)])
    assert {kind for kind, _ in hooks} == {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Pod"}
    for one in hooks.values():
        policies = set(one["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(","))
        assert policies == {"before-hook-creation", "hook-succeeded", "hook-failed"}
    job = yaml.safe_load(hooks["ConfigMap", "lockstep-test"]["data"]["trainjob.yaml"])
    assert job["spec"]["trainer"]["image"] == "lockstep/runner:0.1.0" and job["metadata"]["name"] == "lockstep-test"
    assert not [one for one in documents(helm.template({"test.enabled": False}).stdout) if is_hook(one)]
