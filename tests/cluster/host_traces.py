"""What a cluster with real nodes leaves on the machine beside its own processes: network namespaces, a bridge, cgroups,
mounts, containers. Needs root.

Everything is recorded in the run's folder before it is made, so that the next run can remove what a killed one left
(processes.end_leftovers). Names are the run's own: nothing of other programs is touched.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess

from waiting import wait_until

CGROUPS = pathlib.Path("/sys/fs/cgroup")


def run(*argv, check=True):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, argv))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def cgroup_roots():
    """Of each controller with cgroups v1, the one with v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


class HostTraces:
    """The record of one run's folder."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "host_traces.json"
        self.kept = {"namespaces": [], "links": [], "cgroups": []}
        if self.path.exists():
            self.kept = json.loads(self.path.read_text(encoding="utf-8"))

    def keep(self, kind, name):
        self.kept[kind].append(name)
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text(json.dumps(self.kept), encoding="utf-8")
        fresh.rename(self.path)

    # What carries one of our names already was left by a run whose record is lost, because /tmp was emptied for example:
    # a run that is alive would hold the lock (processes.one_at_a_time), which whoever calls these two has.

    def make_namespace(self, name):
        self.keep("namespaces", name)
        run("ip", "netns", "delete", name, check=False)
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def make_link(self, name, *words):
        """`ip link add NAME words…`."""
        self.keep("links", name)
        run("ip", "link", "delete", name, check=False)
        run("ip", "link", "add", name, *words)
        return name

    def make_cgroup(self, name):
        """In every hierarchy, with all CPUs and memory. All pods of a node together have several times the weight of a
        terminal's session: a test run with compilers beside them would else leave them a fraction of the machine."""
        self.keep("cgroups", name)
        for root in cgroup_roots():
            path = root / name
            path.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # of v1: empty in a new group
                if (path / file).exists() and not (path / file).read_text().strip():
                    (path / file).write_text((root / file).read_text())
            for file, weight in (("cpu.shares", 8192), ("cpu.weight", 800)):  # eight times the default, in v1 and in v2
                if (path / file).exists():
                    (path / file).write_text(str(weight))
            if (path / "cgroup.subtree_control").exists():
                for controller in (path / "cgroup.controllers").read_text().split():
                    (path / "cgroup.subtree_control").write_text(f"+{controller}")
        return f"/{name}"

    # --- the end

    def remove(self):
        """Ends containers and their shims, then removes what was recorded. Safe to call twice."""
        self.kill_shims()
        for name in self.kept["cgroups"]:
            wait_until(lambda name=name: kill_cgroup(name), f"end of the processes of cgroup {name}")
        unmount_below(self.folder)
        for name in self.kept["namespaces"]:
            run("ip", "netns", "delete", name, check=False)
        for name in self.kept["links"]:
            run("ip", "link", "delete", name, check=False)
        for name in self.kept["cgroups"]:
            remove_cgroup(name)

    def kill_shims(self, folder=None):
        """containerd's shims outlive it; their command line names the socket in our folder (or in a part of it)."""
        word = f"{folder or self.folder}/".encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                argv = (process / "cmdline").read_bytes()
                if argv.split(b"\0")[0].rsplit(b"/", 1)[-1].startswith(b"containerd-shim") and word in argv:
                    os.kill(int(process.name), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                continue


def cgroup_folders(name):
    """Deepest first."""
    found = [path for root in cgroup_roots() for path in (root / name).glob("**/") if path.is_dir()]
    return sorted(found, key=lambda path: -len(path.parts))


def kill_cgroup(name):
    """True when none is left."""
    none_left = True
    for path in cgroup_folders(name):
        try:
            pids = (path / "cgroup.procs").read_text().split()
        except OSError:
            continue
        for pid in pids:
            none_left = False
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
    return none_left


def remove_cgroup(name):
    for path in cgroup_folders(name):
        try:
            path.rmdir()
        except OSError:
            pass


def unmount_below(folder):
    """Lazily, so that what a dying process holds does not matter."""
    def mounts():
        lines = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        return [line.split()[4].replace("\\040", " ") for line in lines]
    for mount in sorted({one for one in mounts() if one.startswith(f"{folder}/")}, key=len, reverse=True):
        run("umount", "--lazy", mount, check=False)
    left = [one for one in mounts() if one.startswith(f"{folder}/")]
    if left:
        raise RuntimeError(f"still mounted: {', '.join(left)}")


def remove_traces_of(folder):
    """Of a run whose own process is gone."""
    if (folder / "host_traces.json").exists():
        HostTraces(folder).remove()


def missing_for_nodes():
    """Why no real node can run here; "" when one can."""
    if os.geteuid() != 0:
        return "real nodes need root: containerd, cgroups and network namespaces"
    programs = ("containerd", "ctr", "runc", "podman", "ip", "nsenter", "nft", "gcc")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed: scripts/setup test installs it"
    return ""
