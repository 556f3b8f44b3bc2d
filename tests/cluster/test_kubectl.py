"""kubectl as people use it, judged by what it prints, with an operator that runs."""
import concurrent.futures
import json
import pathlib
import time

import pytest

from fake_kubelet import Behaviour, Exit
from train_jobs import TRAIN_JOBS, Jobs, environment_of, run_report, train_job
from waiting import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "manifests/examples/trainjob.yaml"
SLOW_TO_END = Behaviour(on_delete=None)  # until the grace period is over, or the test says so
LONG_GRACE = {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 600}}}


def apply(api, *words, **options):
    return api.kubectl("apply", *words, "-f", "-", stdin=json.dumps(train_job(**options)))


def table(text):
    """Rows as column → value. Columns begin where their headings do."""
    header, *rows = text.rstrip("\n").split("\n")
    starts = [at for at in range(len(header)) if header[at] != " " and (at == 0 or header[at - 1] == " ")]
    ends = starts[1:] + [None]
    return [{header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, ends)} for row in rows]


# --- apply, diff


def reconciles(process):
    return sum(value for name, value in process.metrics().items()
               if name.startswith("controller_runtime_reconcile_total{"))


@pytest.mark.parametrize("how", [[], ["--server-side"]])
def test_a_second_apply_changes_no_generation_and_no_status(api, jobs, process, how):
    assert "created" in apply(api, *how).stdout or how
    jobs.wait_for_condition("PodsReady")
    before = jobs.get()
    again = apply(api, *how)
    assert how or "unchanged" in again.stdout
    after = jobs.get()
    assert after["metadata"]["generation"] == 1
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    # The operator looks at it anew, and has nothing to write.
    seen = reconciles(process)
    touched = jobs.patch({"metadata": {"annotations": {"touched": "yes"}}})["metadata"]["resourceVersion"]
    wait_until(lambda: reconciles(process) > seen, "further look at the job")
    assert jobs.get()["metadata"]["resourceVersion"] == touched


def test_diff_says_nothing_after_apply_and_shows_a_change(api, jobs):
    apply(api, elastic={"minNodes": 1, "maxNodes": 4})
    jobs.wait_for_condition("PodsReady")

    def diff(**options):
        body = train_job(elastic={"minNodes": 1, "maxNodes": 4}, **options)
        return api.kubectl("diff", "-f", "-", stdin=json.dumps(body), check=False)

    same = diff()
    assert (same.returncode, same.stdout) == (0, ""), same.stdout + same.stderr
    other = diff(nodes=3)
    assert other.returncode == 1
    assert "-    numNodes: 2" in other.stdout and "+    numNodes: 3" in other.stdout


def test_a_changed_file_is_applied(api, jobs):
    bounds = {"minNodes": 1, "maxNodes": 4}
    apply(api, elastic=bounds)
    jobs.wait_for_condition("PodsReady")
    assert "configured" in apply(api, elastic=bounds, nodes=3).stdout
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-0")
    jobs.wait_for(lambda: jobs.status()["observedGeneration"] == 2, "observedGeneration")


# --- explain


def fields_without_description(schema, path):
    """Paths of the fields of a schema that explain would show without a word."""
    found = []
    for name, field in schema.get("properties", {}).items():
        at = f"{path}.{name}"
        if not field.get("description", "").strip() and at != "tj.metadata":
            found.append(at)
        found += fields_without_description(field, at)
        found += fields_without_description(field.get("items", {}), at)
    return [at for at in found if not at.startswith("tj.metadata.")]


def test_every_field_has_a_description(control_plane):
    crd = control_plane.api.get("apiextensions.k8s.io/v1/customresourcedefinitions", name="trainjobs.lockstep.dev")
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["properties"]["spec"]["properties"]["trainer"]["properties"]["numNodes"]  # the walk finds something
    assert fields_without_description(schema, "tj") == []


@pytest.mark.parametrize("field, words", [
    ("tj", ["GROUP: lockstep.dev", "KIND: TrainJob", "in one or more pods"]),
    ("tj.spec.trainer.numNodes", ["FIELD: numNodes <integer>", "Number of pods, each of which is a node in torchrun's words."]),
    ("tj.spec.trainer.podTemplate", ["FIELD: podTemplate <Object>"]),
    ("tj.spec.elastic.minNodes", ["FIELD: minNodes <integer>"]),
    ("tj.spec.restartPolicy.rules.exitCodes", ["FIELD: exitCodes <[]integer>"]),
    ("tj.spec.checkpoint.volume", ["FIELD: volume <Object>"]),
    ("tj.status.conditions", ["FIELD: conditions <[]Object>"]),
    ("tj.status.progress.percent", ["FIELD: percent <integer>"]),
])
def test_explain_says_what_a_field_is_for(control_plane, field, words):
    # A new CRD is in the API server's OpenAPI document a while later.
    wait_until(lambda: control_plane.kubectl("explain", field, check=False).returncode == 0, "documentation")
    text = control_plane.kubectl("explain", field).stdout
    for word in words:
        assert word in " ".join(text.split())
    description = " ".join(text.split("DESCRIPTION:")[1].split("FIELDS:")[0].split())
    assert len(description.split()) >= 4 and description.endswith("."), description
    assert "<no description>" not in text


# --- get


def test_get_wide_shows_how_far_it_is_and_why(api, jobs, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.serve_status(api.namespace, "job-0-0", run_report(step=42, total=100))
    jobs.wait_for(lambda: jobs.status().get("progress", {}).get("step") == 42, "progress")
    (row,) = table(api.kubectl("get", "trainjobs", "-o", "wide").stdout)
    assert list(row) == ["NAME", "PHASE", "READY", "STEP", "PROGRESS", "ETA", "RESTARTS", "AGE", "LOSS", "REASON",
                         "MESSAGE"]
    assert (row["NAME"], row["PHASE"], row["READY"], row["STEP"], row["PROGRESS"]) == ("job", "Running", "2/2", "42",
                                                                                      "42%")
    assert (row["ETA"], row["RESTARTS"], row["LOSS"], row["REASON"]) == ("42s", "0", "0.5", "StepCommitted")
    assert row["MESSAGE"] == "Pod 0 reports steps; 2 of 2 pods train."


@pytest.mark.parametrize("category, also", [("all", ["pod/job-0-0", "service/job"]), ("ml", [])])
def test_get_of_a_category_lists_it(api, jobs, category, also):
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")
    listed = api.kubectl("get", category, "-o", "name").stdout.splitlines()
    assert {"trainjob.lockstep.dev/job", *also} <= set(listed)


# --- describe


def described(api, *words, timeout=60):
    """What describe prints, once it has all of these words."""
    def told():
        text = api.kubectl("describe", "tj", "job").stdout
        joined = " ".join(text.split())
        for word in words:
            assert word in joined, f"no {word!r} in:\n{text}"
        return joined
    return wait_until(told, "description", timeout)


def test_describe_says_which_image_a_job_waits_for(api, jobs, kubelet):
    kubelet.behave_by_name(api.namespace, "job-1-0", Behaviour(
        start="Waiting", waiting_reason="ImagePullBackOff", waiting_message='Back-off pulling image "nowhere/x:1"'))
    jobs.create(nodes=2)
    # Its event is posted after the status: both are waited for.
    described(api, "ImagePullBackOff", "pod job-1-0, container trainer: Back-off pulling image",
              "1 of 2 pods", "Warning ImagePullBackOff")


def test_describe_says_why_a_job_failed(api, jobs, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    words = {"exitCode": 3, "reason": "Data", "message": "/data/ml-100k.inter: line 7 has 3 fields, expected 4",
             "rank": 1, "step": 0, "generation": 1}
    kubelet.exit(api.namespace, "job-1-0", Exit(3, json.dumps(words)))
    jobs.wait_for_condition("Failed")
    # Its event is posted after the status: both are waited for.
    described(api, "Phase: Failed", "line 7 has 3 fields, expected 4", "Exit Code: 3", "Node: 1", "Rank: 1", "Warning")


def test_describe_says_what_a_quota_forbids(api, jobs):
    api.create("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    wait_until(lambda: api.get("resourcequotas", "few").get("status", {}).get("hard"), "quota in force")
    jobs.create(nodes=2)
    described(api, "QuotaExceeded", "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1")


def test_describe_tells_the_story_in_events(api, jobs, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-1-0", Exit(1, "it broke"))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    described(api, "Normal PodsReady", "Warning Crash", "Normal Recovered", "it broke", "Restarts:")


# --- wait


@pytest.mark.parametrize("code, condition", [(0, "Complete"), (2, "Failed")])
def test_wait_returns_when_the_job_has_ended(api, jobs, kubelet, code, condition):
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.kubectl, "wait", "tj/job", f"--for=condition={condition}", "--timeout=60s")
        kubelet.exit(api.namespace, "job-0-0", Exit(code))
        assert "condition met" in waiting.result().stdout
    assert "condition met" in api.kubectl("wait", "tj/job", "--for=condition=PodsReady=false", "--timeout=5s").stdout


def test_wait_may_begin_before_there_is_any_status(api, kubelet, operator):
    jobs = Jobs(api)
    jobs.create(nodes=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.kubectl, "wait", "tj/job", "--for=condition=PodsReady", "--timeout=60s")
        operator()
        assert "condition met" in waiting.result().stdout


# --- scale


def test_scale_shows_in_the_columns_and_in_the_pods(api, jobs):
    jobs.create(nodes=1, elastic={"minNodes": 1, "maxNodes": 3})
    jobs.wait_for_condition("PodsReady")
    assert "scaled" in api.kubectl("scale", "tj", "job", "--current-replicas=1", "--replicas=3").stdout
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-0")
    jobs.wait_for(lambda: table(api.kubectl("get", "tj").stdout)[0]["READY"] == "3/3", "READY 3/3")
    late = api.kubectl("scale", "tj", "job", "--current-replicas=1", "--replicas=2", check=False)
    assert late.returncode != 0 and "Expected replicas to be 1, was 3" in late.stderr
    scale = api.client.request("GET", f"/apis/lockstep.dev/v1/namespaces/{api.namespace}/trainjobs/job/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    chosen = api.list("pods", labelSelector=scale["status"]["selector"])  # what an autoscaler would look at
    assert sorted(pod["metadata"]["name"] for pod in chosen) == ["job-0-0", "job-1-0", "job-2-0"]


def test_scale_of_a_job_with_a_fixed_number_says_what_to_do(api, jobs):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    refused = api.kubectl("scale", "tj/job", "--replicas=3", check=False)
    assert refused.returncode != 0 and "suspend the job" in refused.stderr
    assert jobs.live_pods() == ["job-0-0", "job-1-0"]


# --- delete


def is_clean(api):
    """Nothing is left that belonged to the job."""
    return (not api.list("pods") and not api.control_plane.exists("services", api.namespace, "job"))


@pytest.mark.parametrize("mode", ["background", "foreground"])
def test_delete_takes_everything_along_and_nothing_is_made_meanwhile(api, jobs, kubelet, history, mode):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace, SLOW_TO_END)
    jobs.create(nodes=2, trainer=LONG_GRACE)
    jobs.wait_for_condition("PodsReady")
    api.kubectl("delete", "tj", "job", f"--cascade={mode}", "--wait=false")
    wait_until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in jobs.pods().values()), "deleted pods")
    assert jobs.is_gone() == (mode == "background")
    kubelet.exit(api.namespace, "job-1-0", Exit(143))
    wait_until(lambda: sorted(jobs.pods()) == ["job-0-0"], "end of one pod")
    kubelet.exit(api.namespace, "job-0-0", Exit(143))
    jobs.wait_until_gone()
    wait_until(lambda: is_clean(api), "end of all objects")
    assert history.names() == ["job-0-0", "job-1-0"]


def test_delete_that_orphans_leaves_pods_that_a_new_job_does_not_take(api, jobs, kubelet, history):
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")
    uid = jobs.pods()["job-0-0"]["metadata"]["uid"]
    api.kubectl("delete", "tj", "job", "--cascade=orphan")
    orphan = jobs.pods()["job-0-0"]
    assert orphan["metadata"]["uid"] == uid and "deletionTimestamp" not in orphan["metadata"]
    assert not orphan["metadata"].get("ownerReferences")
    jobs.create(nodes=1)
    said = jobs.wait_for_condition("PodsReady", "False", "NameTaken")
    assert "Service job" in said["message"] and "delete" in said["message"].lower()
    assert jobs.pods()["job-0-0"]["metadata"]["uid"] == uid
    api.kubectl("delete", "pod/job-0-0", "service/job")
    jobs.wait_for_condition("PodsReady", timeout=90)
    assert jobs.pods()["job-0-0"]["metadata"]["uid"] != uid


def test_a_job_that_is_deleted_and_applied_again_at_once_waits_for_the_old_pods(api, jobs, kubelet):
    kubelet.behave_by_name(api.namespace, "job-0-0", SLOW_TO_END)
    apply(api, nodes=1, trainer=LONG_GRACE)
    jobs.wait_for_condition("PodsReady")
    old = jobs.pods()["job-0-0"]["metadata"]["uid"]
    api.kubectl("delete", "tj", "job")
    apply(api, nodes=1, trainer=LONG_GRACE)
    said = jobs.wait_for_condition("PodsReady", "False", "PreviousRunTerminating")
    assert "job-0-0" in said["message"] and "earlier TrainJob" in said["message"]
    kubelet.exit(api.namespace, "job-0-0", Exit(143))
    jobs.wait_for(lambda: old not in [pod["metadata"]["uid"] for pod in jobs.pods().values()], "end of the old pod")
    jobs.wait_for_condition("PodsReady", timeout=90)
    job, pod, service = jobs.get(), jobs.pods()["job-0-0"], api.get("services", "job")
    for owned in (pod, service):
        assert owned["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert jobs.status()["restarts"]["total"] == 0 and not jobs.status().get("recentFailures")


def test_a_job_that_is_made_again_says_that_it_goes_on_and_its_node_0_waits_for_the_old_one(api, jobs, kubelet):
    checkpoint = {"volume": {"emptyDir": {}}}
    kubelet.behave_by_name(api.namespace, "job-0-1", SLOW_TO_END)
    apply(api, nodes=1, trainer=LONG_GRACE, checkpoint=checkpoint)
    jobs.wait_for_condition("PodsReady")
    first = environment_of(jobs.pods()["job-0-0"])
    kubelet.exit(api.namespace, "job-0-0", Exit(1, "it broke"))
    jobs.wait_for(lambda: jobs.pods().get("job-0-1", {}).get("status", {}).get("phase") == "Running", "a second pod 0")
    created = jobs.get()["metadata"]["creationTimestamp"]
    api.kubectl("delete", "tj", "job")
    # Creation times, which order the runs, have whole seconds: a job that lived for less than one is not told apart.
    wait_until(lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > created, "next second")
    apply(api, nodes=1, trainer=LONG_GRACE, checkpoint=checkpoint)
    # The old node 0 is attempt 1: its name is not the one that is wanted, its last checkpoint is.
    jobs.wait_for(lambda: "pod job-0-1 of an earlier TrainJob of this name has not ended"
                  in jobs.condition("PodsReady").get("message", ""), "wait for the old pod 0")
    kubelet.exit(api.namespace, "job-0-1", Exit(143))
    jobs.wait_for_condition("PodsReady", timeout=90)
    again = environment_of(jobs.pods()["job-0-0"])
    assert int(again["LOCKSTEP_RUN"]) > int(first["LOCKSTEP_RUN"])
    assert again["LOCKSTEP_RESUME"] == "SameConfig"
    origin = "resumed from /checkpoints/job/step-00000040, which an earlier TrainJob of this name wrote"
    kubelet.serve_status(api.namespace, "job-0-0", run_report(step=42, nodes=1, origin=origin))
    described(api, "Resume: SameConfig", f"Pod 0 reports steps; 1 of 1 pod trains; the state: {origin}.",
              f"The run's state: {origin}.")


# --- the example


def volume(name, claim, namespace, mode):
    """A PersistentVolume that is this claim's."""
    return {"metadata": {"name": name}, "spec": {
        "capacity": {"storage": "10Gi"}, "accessModes": [mode], "hostPath": {"path": "/nowhere"},
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": namespace, "name": claim}}}


def test_the_example_becomes_pods(api, jobs, control_plane):
    volumes = {f"{claim}-{control_plane.number()}": (claim, mode)
               for claim, mode in (("datasets", "ReadWriteMany"), ("sasrec-checkpoints", "ReadWriteOnce"))}
    try:
        for name, (claim, mode) in volumes.items():
            control_plane.api.create("persistentvolumes", volume(name, claim, api.namespace, mode))
        said = api.kubectl("apply", "-f", EXAMPLE)
        assert "Warning" not in said.stderr
        jobs.wait_for_condition("PodsReady", name="sasrec", timeout=90)
        pods = jobs.pods("sasrec")
        mounts = {name: {m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
                  for name, pod in pods.items()}
        assert "/checkpoints" in mounts["sasrec-0-0"] and "/checkpoints" not in mounts["sasrec-1-0"]
        assert all("/data" in found for found in mounts.values())
        assert "unchanged" in api.kubectl("apply", "-f", EXAMPLE).stdout
        assert api.get(TRAIN_JOBS, "sasrec")["metadata"]["generation"] == 1
    finally:
        for name in volumes:
            control_plane.kubectl("delete", "pv", name, "--wait=false")
            control_plane.api.patch("persistentvolumes", {"metadata": {"finalizers": None}}, name=name)
