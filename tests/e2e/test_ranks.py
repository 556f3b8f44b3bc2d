"""A pod's rank from its environment, three ways: TrainJob, Indexed Job, StatefulSet; and other people's launchers."""
import json
import re
import time

import pytest

from images import ROOT, RUNNER, cache
from jobs import max_step, sasrec_flags
from real_jobs import CHECKPOINT_CLAIM, DATA_CLAIM, ENDLESS, copy_into, read_json
from runs import losses
from waiting import wait_until

TOKEN = "0123456789abcdef0123456789abcdef"
STEPS = 300


def pod_template(name, steps, restart):
    """Two of these train together; nothing of ours made them."""
    flags = [str(word) for word in sasrec_flags("/data/small.txt", steps)]
    return {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "subdomain": name, "restartPolicy": restart, "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "trainer", "image": RUNNER, "env": [{"name": "LOCKSTEP_TOKEN", "value": TOKEN}],
                "args": ["run", "sasrec", "--nnodes", "2", "--coordinator", f"{name}-0.{name}:29400", *flags],
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True},
                                 {"name": "checkpoints", "mountPath": "/checkpoints"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": DATA_CLAIM}},
                        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": CHECKPOINT_CLAIM}}]}}


def make_headless_service(api, name):
    api.create("services", {"metadata": {"name": name}, "spec": {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name},
        "ports": [{"name": "coordinator", "port": 29400}]}})


def losses_of(api, pods, folder):
    return f"{pods}\n{api.kubectl('logs', '--selector=app=group', '--prefix', '--tail=20', check=False).stdout}"


def test_a_trainjob_gives_each_pod_its_rank(api, jobs):
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(10)
    for node in (0, 1):
        status = jobs.answer(node)
        (own,) = [worker for worker in status["workers"] if worker["pid"]]
        assert status["node"] == own["node"] == own["rank"] == node


def test_an_indexed_job_trains_without_the_operator(api, jobs, undisturbed):
    make_headless_service(api, "group")
    api.create("batch/v1/jobs", {"metadata": {"name": "group"}, "spec": {
        "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0,
        "template": pod_template("group", STEPS, "Never")}})
    wait_until(lambda: api.get("batch/v1/jobs", "group").get("status", {}).get("succeeded") == 2, "end of both pods", 180,
               lambda: losses_of(api, api.list("pods", labelSelector="app=group"), jobs.checkpoints))
    found, expected = losses(jobs.checkpoints), losses(undisturbed(STEPS))
    assert found == expected


def test_a_stateful_set_trains_without_the_operator(api, jobs):
    make_headless_service(api, "group")
    api.create("apps/v1/statefulsets", {"metadata": {"name": "group"}, "spec": {
        "serviceName": "group", "replicas": 2, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "group"}}, "template": pod_template("group", ENDLESS, "Always")}})

    def status_of(pod):
        ip = api.get("pods", pod)["status"].get("podIP") if api.control_plane.exists("pods", api.namespace, pod) else None
        return read_json(f"http://{ip}:8080/status") if ip else None
    wait_until(lambda: max_step(status_of("group-0") or {"workers": []}) >= 20, "step 20", 180,
               lambda: losses_of(api, "", jobs.checkpoints))
    for node in (0, 1):
        status = status_of(f"group-{node}")
        assert status["node"] == node and status["worldSize"] == 2


# --- an image that knows nothing of us

VENV = "/opt/py-test"  # where the tests' Python is in the container
TWIN = ROOT / "tests/python/sasrec_twin.py"
KILL_THE_TWIN = f"""for one in /proc/[0-9]*; do
  tr '\\0' ' ' <"$one/cmdline" 2>/dev/null | grep -q '^{VENV}/bin/python -u /data/{TWIN.name}' && kill -9 "${{one#/proc/}}"
done"""


@pytest.fixture
def python_image(cluster):
    """Python without any of our programs. PyTorch itself comes by a volume: it is 5 GB."""
    name = "docker.io/lockstep-tests/python:1"
    images = cluster.images
    if not images.exists(name):
        images.build(name, "FROM docker.io/library/debian:bookworm-slim\n"
                     "RUN apt-get update && apt-get install -y --no-install-recommends python3 libgomp1 && "
                     "rm -rf /var/lib/apt/lists/*\nUSER 65532:65532\n")
    cluster.import_image(name)
    return name


def test_torchrun_gets_its_environment_a_gang_restart_and_an_end(api, jobs, python_image, timings):
    """The PyTorch twin, as its users have it: a rank that dies ends the group, which goes on from its checkpoint."""
    copy_into(TWIN, jobs.data)
    # torch asks for the user's name, which a numeric user has only by its environment.
    volumes = {"containers": [{"name": "trainer", "env": [{"name": "USER", "value": "trainer"}], "volumeMounts": [
        {"name": "data", "mountPath": "/data"}, {"name": "pytorch", "mountPath": VENV, "readOnly": True}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": DATA_CLAIM}},
                    {"name": "pytorch", "hostPath": {"path": str(cache() / "py-test")}}]}
    jobs.start(trainer={"image": python_image, "launcher": "Torchrun", "args": [],
                        "command": [f"{VENV}/bin/python", "-m", "torch.distributed.run", "--max-restarts=0",
                                    f"/data/{TWIN.name}", "--dataset", "/data/small.txt", "--num_epochs", "1000000",
                                    "--max_steps", "1500", "--print_losses", "--no_evaluation",
                                    "--checkpoint", "/checkpoints/twin.pt", "--checkpoint_every", "20"],
                        "podTemplate": {"spec": volumes}})

    def said(node):
        return api.kubectl("logs", jobs.pod_name(node), check=False).stdout if jobs.pod_of(node) else ""
    wait_until(lambda: "step 60 loss" in said(0), "step 60 of the twin", 240, lambda: said(0) + said(1))
    begin = time.monotonic()
    jobs.execute(1, KILL_THE_TWIN)
    wait_until(lambda: "job-0-1" in jobs.live_pods() and "resumed at step" in said(0), "resumption", 240,
               lambda: said(0) + said(1))
    timings.add("launcher Torchrun: kill -9 of a rank, to new pods of all nodes that have read the checkpoint",
                time.monotonic() - begin)
    jobs.wait_until_complete(timeout=400)
    status = jobs.status()
    assert status["restarts"]["gang"] == 1 and status["restarts"]["pod"] == 0
    assert jobs.pod_name(0).endswith("-1") and jobs.pod_name(1).endswith("-1")
    assert int(re.search(r"resumed at step (\d+)", said(0))[1]) >= 60
    assert "step 1499 loss" in said(0) and json.loads(said(0).splitlines()[-1])["items"] > 0
    jobs.wait_for_event(lambda event: "all pods are replaced" in event[1], "event about the new pods")
