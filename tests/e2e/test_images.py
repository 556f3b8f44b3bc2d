"""The images as `docker run` uses them (podman here), and as pods see them."""
import json
import pathlib
import re
import shutil
import time
import urllib.request

import pytest
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from images import OPERATOR, RUNNER, VERSION
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
def test_it_runs_as_nobody_and_says_where_it_is_from(images, name):
    found = inspect(images, name)["Config"]
    assert found["User"] == "65532:65532"
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in found["Labels"].items()}
    for key in ("title", "description", "licenses", "version", "revision", "created", "base.name"):
        assert key in labels
    assert labels["version"] == VERSION and labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[0-9a-f]{40}", labels["revision"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])


@pytest.mark.parametrize("name, most_mb", [(OPERATOR, 80), (RUNNER, 700)])
def test_it_is_small(images, name, most_mb):
    """The sum of its layers, unpacked."""
    assert inspect(images, name)["Size"] < most_mb * 1e6


def test_the_runners_programs_find_their_libraries(images):
    linked = images.run("--rm", "--entrypoint", "sh", RUNNER, "-c", "ldd /opt/lockstep/bin/* /opt/lockstep/lib/*").stdout
    assert "not found" not in linked and "libc.so" in linked


def test_the_operators_image_has_no_shell(images):
    assert images.run("--rm", OPERATOR, "--version").stdout.split()[-1] == VERSION
    assert images.run("--rm", "--entrypoint", "sh", OPERATOR, check=False).returncode != 0


def files_of(images, name, folder, target):
    """Copies a folder of an image to `target`."""
    container = images.podman("create", name).stdout.strip()
    try:
        images.podman("cp", f"{container}:{folder}", target)
    finally:
        images.podman("rm", container)


@pytest.mark.parametrize("name, component, bundled", [
    (OPERATOR, "operator", {"boost", "libcpprest2.10", "libssl3", "libtcmalloc-minimal4", "libc6"}),
    (RUNNER, "runner", {"boost", "torch", "nvidia-cuda-runtime", "libisal2", "libjpeg62-turbo", "libpng16-16",
                         "libtcmalloc-minimal4", "libyaml-cpp0.7", "libc6"}),
])
def test_it_says_what_is_in_it_and_under_which_licence(images, tmp_path, name, component, bundled):
    files_of(images, name, "/opt/lockstep/share", tmp_path)
    share = tmp_path / "share"
    document = parse_file(str(share / "lockstep" / f"{component}.spdx.json"))
    assert validate_full_spdx_document(document) == []
    found = {package.name: package for package in document.packages}
    assert bundled <= found.keys() and found[f"lockstep-{component}"].version == VERSION
    assert all(package.version for package in document.packages)
    assert "Apache License" in (share / "doc/lockstep/LICENSE").read_text(encoding="utf-8")
    for ours in bundled & {"boost", "torch", "nvidia-cuda-runtime"}:
        assert list((share / "doc" / ours).iterdir())
    if component == "operator":  # the runner's are where Debian puts them
        files_of(images, name, "/usr/share/doc", tmp_path)
        assert (tmp_path / "doc/libcpprest2.10/copyright").read_text(encoding="utf-8")


def layers_of(images, name, folder):
    """digest → size when compressed, of an image's layers, lowest first."""
    images.podman("save", "--format", "oci-dir", "--output", folder, name)
    def blob(digest):
        return json.loads((folder / "blobs" / digest.replace(":", "/")).read_text(encoding="utf-8"))

    (listed,) = json.loads((folder / "index.json").read_text(encoding="utf-8"))["manifests"]
    manifest = blob(listed["digest"])
    return {layer["digest"]: layer["size"] for layer in manifest["layers"]}


def test_a_new_version_of_ours_pulls_a_few_megabytes(images, tmp_path):
    """Of the layers of a runner whose programs are others, those with LibTorch are the same."""
    stage = tmp_path / "stage"
    shutil.copytree(images.root / "stage-runner", stage)
    for word in ("one", "two"):
        with open(stage / "opt/lockstep/bin/lockstep-worker", "ab") as program:
            program.write(word.encode())
        images.build_stage("runner", f"localhost/runner:{word}", stage)
    old, new = (layers_of(images, f"localhost/runner:{word}", tmp_path / word) for word in ("one", "two"))
    pulled = sum(size for digest, size in new.items() if digest not in old)
    assert 0 < pulled < 20e6, (old, new)
    assert sum(old.values()) > 100e6


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


def test_proteins_are_trained_on_without_data(images, tmp_path):
    tmp_path.chmod(0o777)
    said = images.run("--rm", "--read-only", "--volume", f"{tmp_path}:/checkpoints", RUNNER, "run", "protein", "--pdb_path",
                      "generated:20:40", "--max_steps", "2", "--status_port", "0")
    assert re.search(r"structures +20 from generated:20:40", said.stdout), said.stdout + said.stderr
    # An epoch is one step here: the first is the best so far when it is evaluated, and the second is the last.
    assert checkpoints(tmp_path) == ["step-00000001", "step-00000002"]


def test_the_default_command_takes_the_data_set_of_the_volume(images, tmp_path):
    """As the documents have it: `docker run -p … -v data:/data:ro -v NAME:/checkpoints IMAGE`, its page, `docker stop`."""
    data = tmp_path / "data"
    data.mkdir()
    tmp_path.chmod(0o755)
    write_interactions(data / "mine.txt", users=400)
    name = f"lockstep-test-{time.monotonic_ns()}"  # of the container and of the volume, which the first run makes
    images.run("--detach", "--name", name, "--publish", "127.0.0.1::8080", "--volume", f"{data}:/data:ro",
               "--volume", f"{name}:/checkpoints", RUNNER)
    try:
        def logs():
            done = images.podman("logs", name)
            return done.stdout + done.stderr
        wait_until(lambda: "first step done" in logs(), "first step", 120, logs)
        assert "/data/mine.txt" in logs() and "no data set" not in logs()
        address = images.podman("port", name, "8080/tcp").stdout.strip()
        with urllib.request.urlopen(f"http://{address}/", timeout=5) as answer:
            assert answer.headers.get_content_type() == "text/html"
        images.podman("stop", "--time", "60", name)
        assert int(images.podman("inspect", "--format", "{{.State.ExitCode}}", name).stdout) == 143
        folder = pathlib.Path(images.podman("volume", "inspect", "--format", "{{.Mountpoint}}", name).stdout.strip())
        assert checkpoints(folder)
    finally:
        images.podman("rm", "--force", name)
        images.podman("volume", "rm", "--force", name, check=False)


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
    with jobs.forwarded_port("pod/job-0-0", 8080) as port, \
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        assert answer.headers.get_content_type() == "text/html"
    assert "\nlockstep_steps_total{" in jobs.metrics_text(0)


def test_a_job_of_the_restricted_profile_trains_with_a_read_only_root(api, jobs):
    """The Pod Security Standard "restricted", enforced, and no file of the image's may change."""
    api.kubectl("label", "namespace", api.namespace, "pod-security.kubernetes.io/enforce=restricted")
    read_only = {"name": "trainer", "securityContext": {"readOnlyRootFilesystem": True},
                 "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]}
    jobs.start(steps=200, pod_spec={"containers": [read_only]})
    jobs.wait_until_complete()
