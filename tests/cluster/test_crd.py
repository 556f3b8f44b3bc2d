"""The CRD on a real API server: what it refuses, what it fills in, and how kubectl shows it.

The cases are those of tests/operator/api/cases. Our own validation (lockstep validate) answers those of new objects alike."""
import json
import os
import pathlib
import subprocess

import pytest

from operator_process import operator_binary

ROOT = pathlib.Path(__file__).resolve().parents[2]
API_TESTS = ROOT / "tests/operator/api"
TRAINJOBS = "lockstep.dev/v1/trainjobs"


def load_cases():
    """Whole objects, as the tool that the C++ test shares its reading with prints them."""
    tools = os.environ.get("LOCKSTEP_TEST_TOOLS", operator_binary().parents[1] / "tools")
    tool = pathlib.Path(tools) / "trainjob_cases"
    if not tool.exists():
        raise FileNotFoundError(f"{tool} is not built: build the target trainjob_cases, or set LOCKSTEP_TEST_TOOLS")
    printed = subprocess.run([tool, API_TESTS], check=True, capture_output=True, text=True, timeout=60).stdout
    return {one["name"]: one for one in json.loads(printed)}


CASES = load_cases()


@pytest.fixture(scope="module")
def namespace(control_plane):
    name = control_plane.make_namespace("crd-cases")
    yield name
    control_plane.api.delete("namespaces", name=name)


def written_by_user(job):
    return json.dumps({name: value for name, value in job.items() if name != "status"})


def store(plane, namespace, job):
    """As a user's apply and an operator's status."""
    plane.kubectl("apply", "-f", "-", stdin=written_by_user(job), namespace=namespace)
    if "status" in job:
        plane.api.patch(TRAINJOBS, {"status": job["status"]}, namespace, job["metadata"]["name"], "status")


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_accepted_or_refused_as_by_our_own_validation(control_plane, namespace, name):
    case = CASES[name]
    try:
        if "stored" in case:
            store(control_plane, namespace, case["stored"])
        done = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(case["job"]),
                                     namespace=namespace, check=False)
    finally:
        if "stored" in case:
            control_plane.api.delete(TRAINJOBS, namespace, case["stored"]["metadata"]["name"])
    if not case["refused"]:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode != 0, done.stdout
    for refusal in case["refused"]:
        assert (refusal["server"] or refusal["field"]) in done.stderr
        assert refusal["says"] in done.stderr


def test_defaults_are_those_of_the_golden_file(api):
    def printed(*words):
        return json.loads(api.kubectl(*words, "-o", "json").stdout)

    stored = printed("apply", "--dry-run=server", "-f", API_TESTS / "defaults/written.yaml")
    golden = printed("create", "--dry-run=client", "-f", API_TESTS / "defaults/stored.yaml")
    assert stored["spec"] == golden["spec"]


@pytest.fixture
def job(api):
    """An elastic job that trains, as its operator would show it."""
    body = {"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "metadata": {"name": "sasrec"},
            "spec": {"trainer": {"image": "i", "numNodes": 3}, "elastic": {"minNodes": 1, "maxNodes": 4}}}
    body["status"] = {
        "phase": "Running", "reason": "Training", "message": "3 of 3 pods train",
        "nodes": {"desired": 3, "ready": 2, "active": 3, "summary": "2/3"}, "restarts": {"total": 4},
        "selector": "lockstep.dev/job=sasrec",
        "progress": {"step": 812, "totalSteps": 1000, "percent": 81, "summary": "81%", "eta": "3m10s", "loss": "0.4321"},
        "conditions": [{"type": "Running", "status": "True", "reason": "Training", "message": "m",
                        "lastTransitionTime": "2026-11-21T10:00:00Z"}]}
    store(api.control_plane, api.namespace, body)
    return body


def table(text):
    """Column → value, of a table with one row whose values have no two spaces in them."""
    header, row = text.rstrip("\n").split("\n")
    starts = [at for at in range(len(header)) if header[at] != " " and (at == 0 or header[at - 1] == " ")]
    ends = starts[1:] + [None]
    return {header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends)}


def test_get_shows_the_columns(api, job):
    shown = table(api.kubectl("get", "tj").stdout)
    assert list(shown) == ["NAME", "PHASE", "READY", "STEP", "PROGRESS", "ETA", "RESTARTS", "AGE"]
    assert list(shown.values())[:-1] == ["sasrec", "Running", "2/3", "812", "81%", "3m10s", "4"]


def test_get_wide_says_why_too(api, job):
    shown = table(api.kubectl("get", "trainjob", "-o", "wide").stdout)
    assert list(shown)[-3:] == ["LOSS", "REASON", "MESSAGE"]
    assert list(shown.values())[-3:] == ["0.4321", "Training", "3 of 3 pods train"]


@pytest.mark.parametrize("category", ["all", "ml"])
def test_get_of_a_category_shows_it(api, job, category):
    assert "sasrec" in api.kubectl("get", category).stdout


def test_explain_reads_well(control_plane):
    def explain(field):
        return control_plane.kubectl("explain", field).stdout

    text = explain("trainjob.spec.trainer.numNodes")
    assert "FIELD: numNodes <integer>" in text
    assert "Number of pods, each of which is a node in torchrun's words." in text
    assert "enum: Lockstep, Torchrun, None" in explain("tj.spec.trainer")
    assert "<no description>" not in explain("tj") + explain("tj.spec") + explain("tj.status")
    assert "bookkeeping" in control_plane.kubectl("explain", "tj", "--recursive").stdout


def test_a_second_apply_changes_nothing(api, job):
    before = api.get(TRAINJOBS, "sasrec")["metadata"]["generation"]
    assert "unchanged" in api.kubectl("apply", "-f", "-", stdin=written_by_user(job)).stdout
    assert api.kubectl("diff", "-f", "-", stdin=written_by_user(job)).stdout == ""
    assert api.get(TRAINJOBS, "sasrec")["metadata"]["generation"] == before == 1


def test_status_and_spec_are_written_apart(api, job):
    api.client.patch(TRAINJOBS, {"spec": {"suspend": True}, "status": {"phase": "Failed"}}, api.namespace, "sasrec")
    stored = api.get(TRAINJOBS, "sasrec")
    assert (stored["spec"]["suspend"], stored["status"]["phase"], stored["metadata"]["generation"]) == (True, "Running", 2)
    api.client.patch(TRAINJOBS, {"spec": {"suspend": False}, "status": {"phase": "Suspended"}}, api.namespace, "sasrec",
                     "status")
    stored = api.get(TRAINJOBS, "sasrec")
    assert (stored["spec"]["suspend"], stored["status"]["phase"], stored["metadata"]["generation"]) == (True, "Suspended", 2)


def test_scale_changes_the_number_of_nodes_within_the_bounds(api, job):
    api.kubectl("scale", "tj/sasrec", "--replicas=4")
    assert api.get(TRAINJOBS, "sasrec")["spec"]["trainer"]["numNodes"] == 4
    scale = api.client.request("GET", f"/apis/lockstep.dev/v1/namespaces/{api.namespace}/trainjobs/sasrec/scale")
    assert scale["status"] == {"replicas": 3, "selector": "lockstep.dev/job=sasrec"}
    refused = api.kubectl("scale", "tj/sasrec", "--replicas=5", check=False)
    assert "must lie between elastic.minNodes and elastic.maxNodes" in refused.stderr
    assert api.get(TRAINJOBS, "sasrec")["spec"]["trainer"]["numNodes"] == 4


def test_scale_of_a_fixed_job_is_refused_with_what_to_do(api):
    body = {"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "metadata": {"name": "fixed"},
            "spec": {"trainer": {"image": "i"}}}
    store(api.control_plane, api.namespace, body)
    refused = api.kubectl("scale", "tj/fixed", "--replicas=2", check=False)
    assert refused.returncode != 0
    assert "only where spec.elastic is set; otherwise suspend the job" in refused.stderr


def test_the_example_is_accepted(api):
    done = api.kubectl("apply", "--dry-run=server", "-f", ROOT / "manifests/examples/trainjob.yaml")
    assert "trainjob.lockstep.dev/sasrec created" in done.stdout
    assert "Warning" not in done.stderr


# As that project calls them.
KUBEFLOW_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainjobs.trainer.kubeflow.org"},
    "spec": {"group": "trainer.kubeflow.org", "scope": "Namespaced",
             "names": {"kind": "TrainJob", "listKind": "TrainJobList", "plural": "trainjobs", "singular": "trainjob"},
             "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                 "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}


def test_beside_kubeflow_s_trainjobs_tj_is_ours_and_theirs_have_a_full_name(control_plane, namespace):
    def names(kind):
        return control_plane.kubectl("get", kind, "-o", "name", namespace=namespace).stdout.split()

    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(KUBEFLOW_CRD))
    try:
        control_plane.kubectl("wait", "--for=condition=Established", f"crd/{KUBEFLOW_CRD['metadata']['name']}")
        control_plane.kubectl("apply", "-f", "-", namespace=namespace, stdin=json.dumps(
            {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "kf"}}))
        theirs = "trainjob.trainer.kubeflow.org/kf"
        assert names("trainjobs.trainer.kubeflow.org") == [theirs]
        assert theirs not in names("tj") and theirs not in names("trainjobs")
    finally:
        control_plane.kubectl("delete", "crd", KUBEFLOW_CRD["metadata"]["name"])
