#!/usr/bin/env python3
"""Does what README.md says, word for word, as somebody who has nothing yet: `make newcomer`. Root, and hours.

  newcomer.py [local|cluster]   one half of it; without a word both

Local: in a bare Debian 12 (bare_debian.py) with a clone of HEAD, the commands before the images, but `make test`.
Cluster: in a clone of HEAD on this machine, with podman as `docker` and a real control plane, kubelet and containerd
(tests/cluster/node_cluster.py), the images and what follows. Pushing is replaced by loading them into the node, as the
README allows. What is shown is compared with what the README says, and the time and the bytes that came over the
network are printed for each step.
"""
import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("cluster", "docs"):
    sys.path.append(str(HERE.parent / folder))

from bare_debian import BareDebian  # noqa: E402
from control_plane import kube_bin  # noqa: E402
from host_traces import missing_for_nodes  # noqa: E402
from images import PAUSE, Images  # noqa: E402
from node_cluster import NodeCluster  # noqa: E402
from pages import ROOT, page_commands  # noqa: E402
from shell import Shell  # noqa: E402

SKIPPED = {"make test": "left out: it is `make test`"}
SECONDS_MAX = 3 * 3600
LOCAL_IMAGES = ("docker.io/lockstep/runner:0.1.0", "docker.io/lockstep/operator:0.1.0")

# (command, what the README says of it: expressions that its output must have). The README has no other commands.
SAID = (
    (r"make demo$", [
        r"setup: installing Debian packages", r"setup: downloading LibTorch",  # installs what is missing
        r"no GPU found, training on the CPU|GPU0",  # the devices found
        r"learning rate +0\.001", r"flags given +--dataset",  # what was chosen and what follows
        r"ranks +2 \(1 node", r"\.inter \(RecBole",  # 2 ranks, MovieLens-100K
        r"\d+%  step \d+/\d+ .* loss ", r"samples/s",  # progress
        r"epoch:20, .*NDCG@10",  # metrics, the result
        r"Result on MovieLens-100K", r"epoch 20 +epoch 200", r"test_ndcg@10 +0\.\d+ +0\.\d+",
        r"time +\w.* %", r"saved +", r"resume +lockstep run"]),  # where the time went, what next
    (r"export PATH=", []),
    (r"lockstep run sasrec --dataset generated", [r"ranks +2", r"done at step"]),
    (r"docker build .*runner", [r"lockstep/runner:0\.1\.0"]),
    (r"docker build .*operator", [r"lockstep/operator:0\.1\.0"]),
    (r"kubectl apply --server-side", [r"trainjobs.lockstep.dev serverside-applied"]),
    (r"head -c 32", [r"secret/lockstep-token-key created"]),
    (r"kubectl rollout", [r"successfully rolled out"]),
    (r"kubectl apply -f - ", [r"trainjob.lockstep.dev/first created"]),
    (r"kubectl get tj first -w", [r"NAME +PHASE +READY +STEP +PROGRESS +ETA", r"first +\w+ +[012]/2"]),
    (r"kubectl wait tj/first --for=condition=PodsReady", [r"condition met"]),
    (r"kubectl delete pod first-1-0", [r'pod "first-1-0" deleted']),
    (r"kubectl describe tj first", [r"Pod first-1-0 .*was lost \(PodDeleted\): .*it is replaced"]),
    (r"kubectl logs -f first-0-0", [r"state +", r"done at step 1600 of 1600"]),
    (r"kubectl wait tj/first --for=condition=Complete", [r"condition met"]),
)


@dataclasses.dataclass
class Step:
    where: str
    command: str
    seconds: float
    received: int
    wrong: list


def bytes_received():
    """Over all interfaces but the loopback."""
    lines = pathlib.Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    fields = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[1]) for row in fields if row[0] != "lo")


def is_known(command):
    return command in SKIPPED or any(re.match(pattern, command) for pattern, _ in SAID)


def missing(command, output):
    """What the README says of the command's output and is not there."""
    expected = [one for pattern, said in SAID if re.match(pattern, command) for one in said]
    return [one for one in expected if not re.search(one, output)]


class Newcomer:
    """Follows the commands that a shell is given, and remembers each as a Step."""

    def __init__(self):
        self.steps = []

    def follow(self, where, shell, commands, after=lambda command: None):
        for command in commands:
            print(f"[{where}] $ {command.splitlines()[0]}", flush=True)
            if command in SKIPPED:
                print(f"  {SKIPPED[command]}")
                continue
            began, before = time.monotonic(), bytes_received()
            code, output = shell.run(command, SECONDS_MAX)
            step = Step(where, command, time.monotonic() - began, bytes_received() - before, missing(command, output))
            self.steps.append(step)
            print(f"  {step.seconds:.0f} s, {step.received / 1e6:.1f} MB", flush=True)
            if code != 0 or step.wrong:
                print(output[-6000:])
            if code != 0:
                step.wrong.append(f"exit code {code}")
                return
            after(command)

    def report(self):
        print("\n| where | command | seconds | MB received | not as the README says |\n|---|---|---:|---:|---|")
        for step in self.steps:
            first = step.command.splitlines()[0].replace("|", "\\|")
            print(f"| {step.where} | `{first}` | {step.seconds:.0f} | {step.received / 1e6:.1f} | "
                  f"{', '.join(step.wrong).replace('|', ' or ')} |")
        print(f"\n{sum(step.seconds for step in self.steps) / 60:.0f} minutes, "
              f"{sum(step.received for step in self.steps) / 1e6:.0f} MB")
        return not any(step.wrong for step in self.steps)


def halves():
    """The README's commands before the images, and from there on."""
    commands = page_commands(ROOT / "README.md")
    first = next(at for at, one in enumerate(commands) if one.startswith("docker "))
    return commands[:first], commands[first:]


def locally(newcomer, commands, folder):
    debian = BareDebian(folder, ROOT)
    began, before = time.monotonic(), bytes_received()
    debian.make()
    print(f"a bare Debian: {time.monotonic() - began:.0f} s, {(bytes_received() - before) / 1e6:.1f} MB")
    try:
        with Shell(folder, debian.environment(), debian.argv) as shell:
            for command in ("cd /root", "git clone --quiet file:///repository lockstep", "cd lockstep"):
                code, output = shell.run(command, 600)
                if code != 0:
                    raise RuntimeError(f"{command}: {output}")
            newcomer.follow("bare Debian", shell, commands)
    finally:
        debian.remove()


class BareImages(Images):
    """A store with what a cluster and a Dockerfile begin with, and nothing of ours."""

    def __init__(self, root, state):
        """state: a folder with a short name; podman takes at most 50 letters there."""
        super().__init__(root)
        self.podman_argv[self.podman_argv.index("--runroot") + 1] = state

    def build_all(self):
        self.make_base()
        self.make_pause()

    def close(self):
        """podman leaves its store mounted on itself, and a folder with a mount in it cannot be removed."""
        subprocess.run(["umount", "--lazy", self.root / "store/overlay"], capture_output=True, check=False)


@contextlib.contextmanager
def bare_cluster(images):
    """A real node that has no image of ours."""
    why = missing_for_nodes()
    if why:
        raise RuntimeError(why)
    cluster = NodeCluster(images=(PAUSE,))
    cluster.images = images
    with cluster:
        yield cluster


def on_a_cluster(newcomer, commands, folder):
    clone = pathlib.Path(folder) / "lockstep"
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", clone], check=True)
    with tempfile.TemporaryDirectory(prefix="newcomer-") as state, \
            contextlib.closing(BareImages(pathlib.Path(folder) / "images", state)) as images, \
            bare_cluster(images) as cluster:
        programs = pathlib.Path(folder) / "bin"
        programs.mkdir()
        (programs / "docker").symlink_to(HERE / "docker")
        environment = {**os.environ, "PATH": f"{programs}:{kube_bin()}:{os.environ['PATH']}",
                       "KUBECONFIG": str(cluster.kubeconfig),
                       "NEWCOMER_PODMAN": " ".join(str(word) for word in cluster.images.podman_argv[1:])}
        builds = [one for one in commands if one.startswith("docker build")]

        def load(command):
            """In place of a push, once all are built."""
            if command == builds[-1]:
                for name in LOCAL_IMAGES:
                    cluster.import_image(name)
        # What follows node 0 ends with the run, as the README says.
        with Shell(clone, environment, watches=re.compile(r"kubectl get\b.* -w")) as shell:
            newcomer.follow("cluster", shell, commands, load)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=("local", "cluster"), nargs="?")
    half = parser.parse_args().half
    if os.geteuid() != 0:
        sys.exit("make newcomer: needs root (debootstrap, chroot, real nodes)")
    local_commands, cluster_commands = halves()
    newcomer = Newcomer()
    parent = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep")) / "newcomer"
    parent.mkdir(parents=True, exist_ok=True)
    for wanted, follow, commands in (("local", locally, local_commands), ("cluster", on_a_cluster, cluster_commands)):
        if half in (None, wanted):
            folder = tempfile.mkdtemp(dir=parent)
            try:
                follow(newcomer, commands, folder)
            finally:
                # The tree is gone by now, or was left on purpose because something is mounted in it.
                if not (pathlib.Path(folder) / "debian").exists():
                    shutil.rmtree(folder, ignore_errors=True)
    return 0 if newcomer.report() else 1


if __name__ == "__main__":
    sys.exit(main())
