"""A control group with a limit of memory, as a pod has one: who needs more in it is killed by the kernel."""
import contextlib
import pathlib

from waiting import wait_until

ROOT = pathlib.Path("/sys/fs/cgroup")


def own_groups():
    """controllers → the folder of this process's group; "" is the unified hierarchy of version 2."""
    found = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        found[controllers] = path.lstrip("/")
    return found


def candidates(name):
    """(folder to make, its file of the limit), of the hierarchies that this machine may have."""
    for controllers, path in own_groups().items():
        if "memory" in controllers.split(","):
            for place in (path, ""):
                yield ROOT / "memory" / place / name, "memory.limit_in_bytes"
        if controllers == "" and (ROOT / "cgroup.controllers").exists():
            # A group of version 2 that has processes cannot limit its children, so that a sibling is tried, too.
            for place in (path, str(pathlib.PurePosixPath(path).parent), ""):
                yield ROOT / place / name, "memory.max"


def make_group(name, limit_bytes):
    """Its folder; None where this user cannot make one."""
    for folder, limit in candidates(name):
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(limit_bytes))
            return folder
        except OSError:
            folder.rmdir()
    return None


@contextlib.contextmanager
def memory_group(name, limit_bytes):
    """Yields the file that a process writes its PID into to join; None where this user cannot make such a group."""
    folder = make_group(name, limit_bytes)
    yield folder and folder / "cgroup.procs"
    if folder is not None:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), f"end of the processes in {folder}")
        folder.rmdir()
