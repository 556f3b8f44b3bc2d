"""A model of one's own on a real cluster: its image and the manifest, as in docs/your-own-model.md."""
import re
import shutil

import pytest
import yaml

from images import ROOT
from plugin_build import EXAMPLE as SOURCE
from runs import checkpoints, losses
from waiting import wait_until

EXAMPLE = ROOT / "manifests/examples/plugin.yaml"
IMAGE = "docker.io/library/byte_lm:1"


@pytest.fixture(scope="module")
def image(cluster, tmp_path_factory):
    """The image of the page, compiled in the sdk's, on the node."""
    folder = tmp_path_factory.mktemp("byte_lm") / "source"
    shutil.copytree(SOURCE, folder)
    shutil.copy(ROOT / "LICENSE", folder / "text.txt")
    cluster.images.build_sdk()
    cluster.images.build(IMAGE, (folder / "Dockerfile").read_text(encoding="utf-8"), folder)
    cluster.import_image(IMAGE)
    return IMAGE


def apply_example(api, jobs, change=lambda job: None):
    folder = jobs.make_volume("byte-lm-checkpoints")
    claim, job = yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
    change(job)
    api.kubectl("apply", "-f", "-", stdin=yaml.dump(claim))
    wait_until(lambda: [one["status"].get("phase") for one in api.list("persistentvolumeclaims")] == ["Bound"],
               "bound claim", 60, lambda: str(api.list("persistentvolumeclaims")))
    api.kubectl("apply", "-f", "-", stdin=yaml.dump(job))
    return folder / "byte-lm"


def train_longer(job):
    """300 steps instead of 60, so that it does not end before it is suspended."""
    args = job["spec"]["trainer"]["args"]
    args[args.index("--num_epochs") + 1] = "100"


def test_the_example_trains_to_the_end_although_a_worker_is_killed_and_the_job_suspended(image, api, bare_jobs):
    jobs = bare_jobs
    folder = apply_example(api, jobs, train_longer)
    jobs.wait_for_step(5, "byte-lm")
    jobs.seconds_to_next_step(lambda: jobs.kill_worker(1, "byte-lm"), "byte-lm")
    jobs.wait_for(lambda: jobs.status("byte-lm").get("restarts", {}).get("process") == 1, "the restart", "byte-lm")
    assert jobs.status("byte-lm")["restarts"]["pod"] == 0
    jobs.patch({"spec": {"suspend": True}}, "byte-lm")
    jobs.wait_for_condition("Suspended", name="byte-lm")
    jobs.wait_for(lambda: not jobs.live_pods("byte-lm"), "end of the pods", "byte-lm")
    stopped_at = checkpoints(folder)[-1]
    assert stopped_at < "step-00000300"
    jobs.patch({"spec": {"suspend": False}}, "byte-lm")
    jobs.wait_until_complete("byte-lm", timeout=900)
    status = jobs.status("byte-lm")
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == 300
    assert checkpoints(folder)[-1] == "step-00000300"
    assert losses(folder)[300] < losses(folder)[1]
    log = api.kubectl("logs", jobs.pod_name(0, "byte-lm")).stdout
    assert "/opt/models/byte_lm.so (sha256 " in log
    assert re.search(rf"resumed from \S*{stopped_at}\b", log), log


@pytest.mark.parametrize("args, message", [
    (["--widht", "32"], "unknown flag --widht; did you mean --width?"),
    (["--plugin", "/opt/models/other.so"], "--plugin /opt/models/other.so: No such file or directory"),
])
def test_what_only_the_image_knows_is_refused_there(image, api, bare_jobs, args, message):
    jobs = bare_jobs
    apply_example(api, jobs, lambda job: job["spec"]["trainer"]["args"].extend(args))
    jobs.wait_for_condition("Failed", name="byte-lm", timeout=300)
    assert message in str(jobs.condition("Failed", "byte-lm"))
