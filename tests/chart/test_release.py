"""The chart's life on a real API server: installed, upgraded, rolled back, uninstalled and installed again, with a TrainJob
that must not notice. The operator is a process with the release's own rights and key."""
import base64
import contextlib
import json
import shutil

import pytest
import yaml

from helm import CHART, NAMESPACE, RELEASE, ROOT, tool
from control_plane import BASE
from kube_api import ApiError
from operator_process import OperatorProcess
from train_jobs import TRAIN_JOBS, train_job
from waiting import wait_until

CRD = "apiextensions.k8s.io/v1/customresourcedefinitions"
CRD_NAME = "trainjobs.lockstep.dev"
KEPT = {(CRD, None, CRD_NAME), ("secrets", NAMESPACE, "lockstep-token-key"),
        ("apiregistration.k8s.io/v1/apiservices", None, "v1.lockstep.dev")}  # the API server's own shadow of the CRD
NEW_FIELD = "podCleanup"  # of spec; the older chart's CRD does not have it
MONITORING_CRDS = tool("helm").parents[1] / "crds"
# Resources whose objects come and go by themselves.
TRANSIENT = ("events", "leases", "pods", "replicasets", "endpointslices", "endpoints", "controllerrevisions")


def resources(api):
    """group/version/plural of everything that can be listed."""
    found = [("", one) for one in api.request("GET", "/api/v1")["resources"]]
    for group in api.request("GET", "/apis")["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        found += [(version + "/", one) for one in api.request("GET", f"/apis/{version}")["resources"]]
    return sorted(prefix + one["name"] for prefix, one in found if "list" in one["verbs"])


def inventory(api):
    """(resource, namespace, name) of every object of the cluster, but for what comes and goes by itself and is not called
    after us."""
    found = set()
    for resource in resources(api):
        with contextlib.suppress(ApiError):  # of a CRD that has just gone
            for one in api.list(resource):
                name = one["metadata"]["name"]
                if resource.rsplit("/", 1)[-1] in TRANSIENT and "lockstep" not in name or resource.endswith("events"):
                    continue
                found.add((resource, one["metadata"].get("namespace"), name))
    return found


def stored_crd(plane):
    return plane.api.get(CRD, name=CRD_NAME)


def spec_fields(plane):
    schema = stored_crd(plane)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"])


def key_of_release(plane):
    return base64.b64decode(plane.api.get("secrets", NAMESPACE, "lockstep-token-key")["data"]["key"])


def install(helm, *words, **options):
    return helm("install", RELEASE, CHART, "-n", NAMESPACE, "--wait", "--timeout", "120s", *words, **options)


def uninstall(helm):
    helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")


def leftovers(api):
    """What ends only some time after the command that deletes its owner."""
    found = {("namespaces", one["metadata"]["name"]) for one in api.list("namespaces")
             if "deletionTimestamp" in one["metadata"]}
    found |= {(resource, one["metadata"]["name"]) for resource in ("pods", "apps/v1/replicasets")
              for one in api.list(resource, NAMESPACE)}
    services = {one["metadata"]["name"] for one in api.list("apiregistration.k8s.io/v1/apiservices")}
    ours = (".lockstep.dev", ".monitoring.coreos.com")
    return found | {("apiservices", name) for name in services if name.endswith(ours)}


@pytest.fixture
def plane(control_plane, cluster_helm):
    """Without a release, a CRD and a key, before and after."""
    def clear():
        if RELEASE in cluster_helm("list", "-q", "-a", "-n", NAMESPACE).stdout.split():
            cluster_helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")
        # An API server that has just begun to serve a CRD is in no hurry to stop it.
        control_plane.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found", timeout=400)
        control_plane.kubectl("delete", "secret", "lockstep-token-key", "-n", NAMESPACE, "--ignore-not-found")
        wait_until(lambda: leftovers(control_plane.api) == set(), "end of earlier tests' objects", 180,
                   lambda: str(leftovers(control_plane.api)))
    clear()
    yield control_plane
    clear()


@pytest.fixture(scope="module")
def older_chart(tmp_path_factory):
    """Version 0.0.9: its CRD lacks a field, its operator had four workers."""
    folder = tmp_path_factory.mktemp("older") / "lockstep"
    shutil.copytree(CHART, folder)
    metadata = (folder / "Chart.yaml").read_text(encoding="utf-8")
    (folder / "Chart.yaml").write_text(metadata.replace("ersion: 0.1.0", "ersion: 0.0.9"), encoding="utf-8")
    crd = yaml.safe_load((folder / "files/crd.yaml").read_text(encoding="utf-8"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"][NEW_FIELD]
    (folder / "files/crd.yaml").write_text(yaml.dump(crd), encoding="utf-8")
    values = (folder / "values.yaml").read_text(encoding="utf-8")
    (folder / "values.yaml").write_text(values.replace("workers: 32", "workers: 4"), encoding="utf-8")
    return folder


@contextlib.contextmanager
def operator_of_release(plane, name):
    """With the rights of the release's ServiceAccount and the key of its Secret."""
    kubeconfig = plane.kubeconfig_of_service_account(NAMESPACE, "lockstep-operator")
    process = OperatorProcess(plane, kubeconfig=kubeconfig, name=name, token_key=key_of_release(plane),
                              leader_elect=True, operator_namespace=NAMESPACE)
    with process:
        yield process


def running_pods(plane, namespace, job):
    """{(name, uid)}"""
    return {(pod["metadata"]["name"], pod["metadata"]["uid"])
            for pod in plane.api.list("pods", namespace, labelSelector=f"lockstep.dev/job={job}")
            if pod["status"].get("phase") == "Running"}


class Witness:
    """A TrainJob whose pods must stay the same."""

    def __init__(self, plane):
        self.plane = plane
        self.namespace = plane.make_namespace(f"team-{plane.number()}")
        plane.api.create(TRAIN_JOBS, train_job("witness", nodes=2), self.namespace)
        wait_until(lambda: len(self.running()) == 2, "two running pods")
        self.uid, self.pods = self.job()["metadata"]["uid"], self.running()

    def job(self):
        return self.plane.api.get(TRAIN_JOBS, self.namespace, "witness")

    def running(self):
        return running_pods(self.plane, self.namespace, "witness")

    def assert_untouched(self):
        assert self.job()["metadata"]["uid"] == self.uid and "deletionTimestamp" not in self.job()["metadata"]
        assert self.running() == self.pods

    def token(self):
        (pod,) = [one for one in self.plane.api.list("pods", self.namespace) if one["metadata"]["name"] == "witness-0-0"]
        return [entry["value"] for entry in pod["spec"]["containers"][0]["env"] if entry["name"] == "LOCKSTEP_TOKEN"]

    def end(self):
        self.plane.api.delete("namespaces", name=self.namespace)


def args_of_operator(plane):
    deployment = plane.api.get("apps/v1/deployments", NAMESPACE, "lockstep-operator")
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_no_trainjob_notices_an_upgrade_a_rollback_an_uninstall_and_a_new_install(plane, cluster_helm, older_chart):
    before = inventory(plane.api)
    cluster_helm("install", RELEASE, older_chart, "-n", NAMESPACE, "--wait", "--timeout", "120s")
    assert NEW_FIELD not in spec_fields(plane)
    key = key_of_release(plane)
    assert len(key) == 32
    # Our operator would wait for its own CRD (tests/cluster/test_cluster_setup.py), so none runs yet.
    cluster_helm("upgrade", RELEASE, CHART, "-n", NAMESPACE, "--wait", "--timeout", "120s")
    assert NEW_FIELD in spec_fields(plane) and "--workers=32" in args_of_operator(plane)
    with operator_of_release(plane, "first"):
        witness = Witness(plane)
        token = witness.token()
        holder = plane.api.get("coordination.k8s.io/v1/leases", NAMESPACE, "lockstep-operator")["spec"]["holderIdentity"]

        cluster_helm("upgrade", RELEASE, CHART, "-n", NAMESPACE, "--set", "logLevel=debug", "--wait")
        assert "--log_level=debug" in args_of_operator(plane) and key_of_release(plane) == key
        lease = plane.api.get("coordination.k8s.io/v1/leases", NAMESPACE, "lockstep-operator")
        assert lease["spec"]["holderIdentity"] == holder  # an upgrade leaves it to the operator
        witness.assert_untouched()

        cluster_helm("rollback", RELEASE, "1", "-n", NAMESPACE, "--wait")
        assert "--workers=4" in args_of_operator(plane) and NEW_FIELD not in spec_fields(plane)
        assert key_of_release(plane) == key
        witness.assert_untouched()
        cluster_helm("rollback", RELEASE, "3", "-n", NAMESPACE, "--wait")
        assert NEW_FIELD in spec_fields(plane)

    uninstall(cluster_helm)
    witness.assert_untouched()
    mine = {("pods", witness.namespace, "witness-0-0"), ("pods", witness.namespace, "witness-1-0")}

    def left():
        return {one for one in inventory(plane.api) - before if witness.namespace not in one[1:]}
    wait_until(lambda: left() == KEPT, "end of all else", 60, lambda: str(left() ^ KEPT))
    assert mine <= {("pods", witness.namespace, name) for name, _ in witness.running()}

    install(cluster_helm)  # takes over what was kept
    assert key_of_release(plane) == key
    with operator_of_release(plane, "second") as operator:
        wait_until(lambda: operator.metrics().get('lockstep_trainjobs{phase="Running"}', 0) +
                   operator.metrics().get('lockstep_trainjobs{phase="Starting"}', 0) == 1, "sight of the witness")
        plane.api.delete("pods", witness.namespace, "witness-1-0", gracePeriodSeconds=0)
        wait_until(lambda: {name for name, _ in witness.running()} == {"witness-0-0", "witness-1-1"}, "a replacement")
        assert witness.token() == token  # the same key, so old pods and new ones understand each other
    witness.end()
    wait_until(lambda: plane.api.list(TRAIN_JOBS) == [], "end of the witness")


def strategy(plane):
    return plane.api.get("apps/v1/deployments", NAMESPACE, "lockstep-operator")["spec"]["strategy"]


def test_without_an_election_an_upgrade_ends_the_old_operator_before_the_new_one_begins(plane, cluster_helm):
    install(cluster_helm)
    rolling = strategy(plane)
    assert rolling == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    cluster_helm("upgrade", RELEASE, CHART, "-n", NAMESPACE, "--set", "leaderElection=false", "--wait")
    assert strategy(plane) == {"type": "Recreate"}
    cluster_helm("rollback", RELEASE, "1", "-n", NAMESPACE, "--wait")
    assert strategy(plane) == rolling


def test_a_server_side_upgrade_to_no_election_is_accepted(plane, helm):
    """As Helm 4 and Argo CD apply it: fields that nobody wrote are kept, and Recreate allows no such field."""
    for election in (True, False):
        text = helm.template({"leaderElection": election}, "-s", "templates/deployment.yaml").stdout
        plane.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    assert strategy(plane) == {"type": "Recreate"}
    plane.api.delete("apps/v1/deployments", NAMESPACE, "lockstep-operator")


def test_without_keep_nothing_at_all_is_left(plane, cluster_helm):
    before = inventory(plane.api)
    install(cluster_helm, "--set", "crds.keep=false,tokenKey.keep=false,highAvailability=true,networkPolicy.enabled=true,"
            "service.enabled=true,dashboards.enabled=true")
    made = inventory(plane.api) - before
    kinds = {resource.rsplit("/", 1)[-1] for resource, _, _ in made}
    assert kinds >= {"customresourcedefinitions", "secrets", "configmaps", "services", "networkpolicies", "deployments",
                     "poddisruptionbudgets", "clusterroles", "leases"}
    uninstall(cluster_helm)
    wait_until(lambda: inventory(plane.api) == before, "end of the release", 60,
               lambda: str(inventory(plane.api) ^ before))


def test_the_operators_pods_run_under_restricted_pod_security_without_a_warning(plane, cluster_helm):
    done = install(cluster_helm, "--set", "highAvailability=true")  # --wait: they were admitted, and are ready
    assert "would violate PodSecurity" not in done.stderr
    pods = plane.api.list("pods", NAMESPACE, labelSelector="app.kubernetes.io/component=operator")
    assert len(pods) == 2
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2  # on different machines


def test_the_notes_say_what_to_do_next(plane, cluster_helm):
    def notes(*words):
        done = cluster_helm("install", RELEASE, CHART, "-n", NAMESPACE, "--dry-run=server", *words)
        return done.stdout[done.stdout.index("NOTES:"):]
    said = notes()
    for line in (f"kubectl rollout status deployment/lockstep-operator -n {NAMESPACE}", f"helm test lockstep -n {NAMESPACE}",
                 "kind: TrainJob", "kubectl delete tj -A --all", f"kubectl delete -n {NAMESPACE} crd/{CRD_NAME} secret/lockstep-token-key",
                 "all namespaces"):
        assert line in said, said
    assert "kubectl create secret generic mine" in notes("--set", "tokenKey.existingSecret=mine")
    assert f"namespace {NAMESPACE} alone" in notes("--set", "scope=Namespace")
    assert "deletes the CRD, and with it every TrainJob" in notes("--set", "crds.keep=false")
    assert "apply --server-side -f manifests/base/crd.yaml" in notes("--set", "crds.enabled=false")


def test_the_trainjob_of_the_notes_is_one(plane, cluster_helm):
    said = install(cluster_helm).stdout
    job = said[said.index("     apiVersion: lockstep.dev/v1"):said.index("     END\n")]
    plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=job)


# --- a CRD that is there already

def test_a_crd_of_somebody_else_is_refused_and_taken_over_on_demand_with_its_trainjobs(plane, cluster_helm):
    plane.kubectl("apply", "--server-side", "-f", BASE / "crd.yaml")
    plane.wait_for_crd(CRD_NAME)
    uid = stored_crd(plane)["metadata"]["uid"]
    refused = install(cluster_helm, check=False)
    assert refused.returncode != 0 and "invalid ownership metadata" in refused.stderr and CRD_NAME in refused.stderr
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert "invalid ownership\nmetadata" in readme and "--take-ownership" in readme
    cluster_helm("uninstall", RELEASE, "-n", NAMESPACE, "--ignore-not-found")
    install(cluster_helm, "--take-ownership")
    assert stored_crd(plane)["metadata"]["uid"] == uid


@pytest.mark.long
def test_the_labels_and_annotations_of_the_readme_do_the_same(plane, cluster_helm):
    plane.kubectl("apply", "--server-side", "-f", BASE / "crd.yaml")
    plane.kubectl("label", "crd", CRD_NAME, "app.kubernetes.io/managed-by=Helm", "--overwrite")
    plane.kubectl("annotate", "crd", CRD_NAME, f"meta.helm.sh/release-name={RELEASE}",
                  f"meta.helm.sh/release-namespace={NAMESPACE}", "--overwrite")
    install(cluster_helm)
    assert stored_crd(plane)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_stored_crd_is_the_files(plane, cluster_helm):
    install(cluster_helm)
    ours = yaml.safe_load((ROOT / "manifests/base/crd.yaml").read_text(encoding="utf-8"))["spec"]
    stored = stored_crd(plane)["spec"]
    assert json.dumps(stored["versions"], sort_keys=True) == json.dumps(ours["versions"], sort_keys=True)


# --- the key

def test_no_rendering_without_the_cluster_replaces_the_key(plane, cluster_helm, helm):
    install(cluster_helm)
    key = key_of_release(plane)
    rendered = helm.template({}, "--show-only", "templates/token_key.yaml").stdout
    done = plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=rendered, check=False)
    assert done.returncode != 0 and "field is immutable when `immutable` is set" in done.stderr
    assert key_of_release(plane) == key


def test_a_key_under_another_entry_is_named(plane, cluster_helm):
    install(cluster_helm)
    refused = cluster_helm("upgrade", RELEASE, CHART, "-n", NAMESPACE, "--set", "tokenKey.entry=other", check=False)
    assert 'has no entry "other" (tokenKey.entry); it has: key' in refused.stderr


# --- one namespace

@pytest.mark.long
def test_two_teams_have_an_operator_each(plane, cluster_helm):
    teams = [plane.make_namespace(f"{name}-{plane.number()}") for name in ("blue", "green")]
    more = {teams[0]: "scope=Namespace", teams[1]: "scope=Namespace,crds.enabled=false,rbac.aggregate=false"}
    try:
        for team, values in more.items():
            cluster_helm("install", RELEASE, CHART, "-n", team, "--set", values, "--wait", "--timeout", "120s")
            kubeconfig = plane.kubeconfig_of_service_account(team, "lockstep-operator")
            with OperatorProcess(plane, namespace=team, kubeconfig=kubeconfig, name=f"operator-{team}", leader_elect=True,
                                 operator_namespace=team):
                plane.api.create(TRAIN_JOBS, train_job("job", nodes=1), team)
                wait_until(lambda namespace=team: running_pods(plane, namespace, "job"), "a running pod")
    finally:
        for team in teams:
            cluster_helm("uninstall", RELEASE, "-n", team, "--ignore-not-found", "--wait")
            plane.api.delete("namespaces", name=team)
        wait_until(lambda: plane.api.list(TRAIN_JOBS) == [], "end of the teams' jobs")


# --- the Prometheus operator

@pytest.fixture
def monitoring(plane):
    """Its CRDs in the cluster; add() puts them there."""
    files = sorted(MONITORING_CRDS.glob("monitoring.coreos.com_*.yaml"))
    assert len(files) == 3, f"{MONITORING_CRDS}: run scripts/setup test"
    names = [word for path in files for word in ("-f", path)]

    def add():
        plane.kubectl("apply", "--server-side", *names)
        for path in files:
            plane.wait_for_crd(yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"])
    yield add
    plane.kubectl("delete", "--ignore-not-found", *names)


def test_without_a_prometheus_operator_nothing_is_installed_and_with_it_everything(plane, cluster_helm, monitoring):
    toggles = "serviceMonitor.enabled=true,podMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true"
    before = inventory(plane.api)
    refused = install(cluster_helm, "--set", toggles, check=False)
    assert refused.returncode != 0 and "install the Prometheus operator's CRDs first" in refused.stderr
    assert inventory(plane.api) == before
    monitoring()
    install(cluster_helm, "--set", toggles)
    for kind, name in (("servicemonitors", "lockstep-operator"), ("podmonitors", "lockstep-trainjobs"),
                       ("prometheusrules", "lockstep")):
        assert plane.exists(f"monitoring.coreos.com/v1/{kind}", NAMESPACE, name)
    uninstall(cluster_helm)
