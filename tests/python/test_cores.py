"""How many threads a rank takes: a share of the cores that the affinity and the cgroup's CPU quota leave."""
import contextlib
import os
import pathlib
import re
import subprocess

import pytest

from programs import clean_environment
from runs import SMALL_MODEL

CGROUPS = pathlib.Path("/sys/fs/cgroup")
ENOUGH = len(os.sched_getaffinity(0)) >= 2
pytestmark = pytest.mark.skipif(not ENOUGH, reason="one core: nothing can be taken away")


@pytest.fixture(autouse=True)
def _without_a_quota(lockstep):
    said = subprocess.run([lockstep, "doctor"], capture_output=True, text=True, check=False, timeout=120,
                          env=clean_environment()).stdout
    if "by the cgroup" in said:
        pytest.skip("this machine's own CPU limit is in the way")


@contextlib.contextmanager
def group_with_quota(cores):
    """A cgroup of version 1 or 2 with a CPU quota; skips where none may be made."""
    unified = (CGROUPS / "cgroup.controllers").exists()
    folder = (CGROUPS if unified else CGROUPS / "cpu") / f"lockstep-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            if unified:
                (folder / "cpu.max").write_text(f"{int(cores * 100000)} 100000", encoding="ascii")
            else:
                (folder / "cpu.cfs_quota_us").write_text(str(int(cores * 100000)), encoding="ascii")
        except OSError as error:
            pytest.skip(f"no CPU quota can be set here: {error}")
        yield folder
    finally:
        folder.rmdir()


def threads_of(lockstep, folder, before_exec, *extra):
    done = subprocess.run([lockstep, "run", "sasrec", "--dataset", "generated", "--max_steps", "1", "--eval_every", "0",
                           "--train_dir", str(folder), *SMALL_MODEL, *extra], capture_output=True, text=True,
                          check=False, timeout=120, env=clean_environment(), preexec_fn=before_exec)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(\d+) threads? per rank", done.stdout)
    assert len(found) == 1, done.stdout
    return int(found[0])


def test_a_quota_counts_before_the_machine(lockstep, tmp_path):
    with group_with_quota(1.5) as group:
        def join():
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        assert threads_of(lockstep, tmp_path / "one", join, "--nproc", "1") == 1
        assert threads_of(lockstep, tmp_path / "two", join, "--local_nodes", "1", "--nproc", "1") == 1
        assert threads_of(lockstep, tmp_path / "asked", join, "--nproc", "1", "--threads", "2") == 2
        said = subprocess.run([lockstep, "doctor"], capture_output=True, text=True, check=False, timeout=120,
                              env=clean_environment(), preexec_fn=join).stdout
    assert re.search(r"CPU .*cores, 1\.5 by the cgroup", said), said


def test_the_affinity_counts_before_the_machine(lockstep, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    assert threads_of(lockstep, tmp_path / "one", lambda: os.sched_setaffinity(0, {cores[0]}), "--nproc", "1") == 1
    assert threads_of(lockstep, tmp_path / "all", None, "--nproc", "1") == len(cores)
