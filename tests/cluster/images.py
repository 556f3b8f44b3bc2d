"""Our images, built for the tests by podman from the programs that the build has made; in a store of their own in
LOCKSTEP_CACHE, so that what changes is built again and what does not is taken from there. Needs root.

The base image is made by debootstrap under the name that the Dockerfiles use: no registry is asked.
"""
import datetime
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from host_traces import run
from node import build_pause

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = "docker.io/library/debian:bookworm-slim"
PAUSE = "localhost/pause:1"
VERSION = "0.1.0"
RUNNER = f"docker.io/lockstep/runner:{VERSION}"
OPERATOR = f"docker.io/lockstep/operator:{VERSION}"
SDK = f"docker.io/lockstep/sdk:{VERSION}"


def cache():
    return pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep"))


def build_folder():
    """The CMake build whose bin/ holds the programs: LOCKSTEP_BIN's, else the preset dev's."""
    return pathlib.Path(os.environ.get("LOCKSTEP_BIN", ROOT / "build/dev/bin")).resolve().parent


def debian_mirror():
    """The machine's own."""
    places = [pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").glob("*")]
    for path in places:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+/debian/?)(?:\s|$)", text, re.M)
        if found:
            return found.group(1)
    return "http://deb.debian.org/debian"


def revision():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def digest(paths):
    found = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


class Images:
    """Of one user: a lock keeps two test runs from building at once."""

    def __init__(self, root=None):
        self.root = root or cache() / "images"
        self.root.mkdir(parents=True, exist_ok=True)
        self.podman_argv = ["podman", "--root", self.root / "store", "--runroot", self.root / "run",
                            "--cgroup-manager", "cgroupfs", "--events-backend", "none"]

    def podman(self, *words, check=True, timeout=1200, **options):
        argv = [str(word) for word in [*self.podman_argv, *words]]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout, **options)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def exists(self, name):
        return self.podman("image", "exists", name, check=False).returncode == 0

    def build_all(self):
        """Builds those of base, pause, operator and runner that are missing or out of date."""
        with open(self.root / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.make_base()
            self.make_pause()
            self.build_ours("operator", OPERATOR)
            self.build_ours("runner", RUNNER)
            self.podman("image", "prune", "--force")

    def make_base(self):
        if self.exists(BASE):
            return
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            tree = pathlib.Path(folder) / "tree"
            run("debootstrap", "--variant=minbase", "bookworm", tree, debian_mirror())
            for cached in ("var/cache/apt", "var/lib/apt/lists"):
                shutil.rmtree(tree / cached)
                (tree / cached).mkdir()
            archive = pathlib.Path(folder) / "tree.tar"
            run("tar", "--directory", tree, "--create", "--file", archive, ".")
            self.podman("import", archive, BASE)

    def make_pause(self):
        if self.exists(PAUSE):
            return
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            build_pause(folder)
            self.build(PAUSE, "FROM scratch\nCOPY pause /pause\nENTRYPOINT [\"/pause\"]\n", folder)

    def build_ours(self, component, name):
        """By the Dockerfile that people use, from the programs of build_folder()."""
        dockerfile = ROOT / component / "Dockerfile"
        stage = self.root / f"stage-{component}"
        run("cmake", "--install", build_folder(), "--component", component, "--strip", "--prefix",
            stage / "opt/lockstep")
        made_of = digest([dockerfile, __file__, *sorted(path for path in (stage / "opt/lockstep").rglob("*") if path.is_file())])
        record = self.root / f"{component}.made-of"
        if self.exists(name) and record.exists() and record.read_text(encoding="utf-8") == made_of:
            return
        self.build_stage(component, name, stage)
        record.write_text(made_of, encoding="utf-8")

    def build_sdk(self):
        """What models of one's own are compiled with, beside the runner's image that is there already."""
        stage = self.root / "stage-runner"
        run("cmake", "--install", build_folder(), "--component", "plugin", "--prefix", stage / "opt/sdk")
        self.build_stage("runner", SDK, stage, "--target", "sdk")

    def build_stage(self, component, name, stage, *words):
        """With the options of scripts/images."""
        self.podman("build", "--isolation", "chroot", "--timestamp", "0", "--build-arg", f"VERSION={VERSION}",
                    "--build-arg", f"REVISION={revision()}", "--build-arg", f"CREATED={now()}",
                    "--file", ROOT / component / "Dockerfile", "--tag", name, *words, stage)

    def build(self, name, dockerfile, context=None):
        """From the text of a Dockerfile; context: the folder from which it copies, if it does."""
        with tempfile.TemporaryDirectory(dir=self.root) as empty:
            self.podman("build", "--isolation", "chroot", "--file", "-", "--tag", name, context or empty,
                        input=dockerfile)
        return name

    def save(self, archive, *names):
        """One file for Node.import_image()."""
        pathlib.Path(archive).unlink(missing_ok=True)
        self.podman("save", "--multi-image-archive", "--output", archive, *names)
        return archive

    def run(self, *words, **options):
        """`podman run`, as far as a machine without systemd and crun can."""
        return self.podman("run", "--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
                           *words, **options)
