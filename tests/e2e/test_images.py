"""The images as `docker run` uses them (podman here), and as pods see them."""
import json
import time
import urllib.request

import pytest

from images import OPERATOR, RUNNER
from programs import write_interactions
from real_jobs import ENDLESS
from runs import checkpoints
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("cluster")  # which has built them


@pytest.fixture
def images(cluster):
    return cluster.images


def inspect(images, name):
    return json.loads(images.podman("image", "inspect", name).stdout)[0]


@pytest.mark.parametrize("name", [RUNNER, OPERATOR])
def test_programs_find_their_libraries_and_run_as_nobody(images, name):
    found = inspect(images, name)
    assert found["Config"]["User"] == "65532:65532"
    linked = images.run("--rm", "--entrypoint", "sh", name, "-c", "ldd /opt/lockstep/bin/*").stdout
    assert "not found" not in linked and "libc.so" in linked


def test_the_runners_entrypoint_is_the_agent(images):
    found = inspect(images, RUNNER)
    assert found["Config"]["Entrypoint"] == ["lockstep"]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in found["Config"]["Env"]
    assert "run sasrec" in images.run("--rm", RUNNER, "--help").stdout


def test_without_data_it_trains_on_a_generated_set_and_says_how_to_mount_ones_own(images, tmp_path):
    tmp_path.chmod(0o777)
    words = ["--rm", "--read-only", "--volume", f"{tmp_path}:/checkpoints", RUNNER,
             "run", "sasrec", "--dataset", "auto", "--data_dir", "/data", "--max_steps", "12", "--status_port", "0"]
    said = images.run(*words)
    text = said.stdout + said.stderr
    assert "no data set in /data" in text and "-v" in text and ":/data" in text
    assert checkpoints(tmp_path) == ["step-00000012"]
    # A second one goes on where the first has ended.
    words[words.index("12")] = "20"
    assert "resumed from" in images.run(*words).stdout
    assert checkpoints(tmp_path)[-1] == "step-00000020"


def test_the_default_command_takes_the_data_set_of_the_volume(images, tmp_path):
    """`docker run -v data:/data -v checkpoints:/checkpoints IMAGE`, its page, and `docker stop`."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    out.chmod(0o777)
    tmp_path.chmod(0o755)
    write_interactions(data / "mine.txt", users=400)
    name = f"lockstep-test-{time.monotonic_ns()}"
    images.run("--detach", "--name", name, "--volume", f"{data}:/data:ro", "--volume", f"{out}:/checkpoints",
               RUNNER)
    try:
        def logs():
            done = images.podman("logs", name)
            return done.stdout + done.stderr
        wait_until(lambda: "first step done" in logs(), "first step", 120, logs)
        assert "/data/mine.txt" in logs() and "no data set" not in logs()
        images.podman("stop", "--time", "60", name)
        assert int(images.podman("inspect", "--format", "{{.State.ExitCode}}", name).stdout) == 143
        assert checkpoints(out)
    finally:
        images.podman("rm", "--force", name)


def test_a_folder_that_it_may_not_write_to_is_named(images, tmp_path):
    tmp_path.chmod(0o755)  # root's
    done = images.run("--rm", "--volume", f"{tmp_path}:/checkpoints", RUNNER, "run", "sasrec", "--dataset",
                      "generated", "--max_steps", "2", "--status_port", "0", check=False)
    assert done.returncode == 4
    assert "/checkpoints" in done.stderr and "65532" in done.stderr


def test_operator_without_a_cluster_says_so(images):
    done = images.run("--rm", OPERATOR, check=False)
    assert done.returncode == 2 and "kubeconfig" in done.stderr.lower() + done.stdout.lower()


def test_pods_answer_for_people_and_for_prometheus(jobs):
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(10)
    ip = jobs.pod_of(0)["status"]["podIP"]
    with urllib.request.urlopen(f"http://{ip}:8080/", timeout=5) as answer:
        assert answer.headers.get_content_type() == "text/html"
    assert "\nlockstep_steps_total " in jobs.metrics_text(0)
