"""The folder that brings the agent into images that hold nothing of Lockstep (runner/agent_folder_main.cc), in a root
without a shell, without a C library and without users, and beside a program that the image gives libraries of its own."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from programs import ROOT, bin_folder, clean_environment, program, text

PLACE = "opt/lockstep-agent"
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char* named(const char* name) { const char* value = getenv(name); return value ? value : "-"; }
int main(int argc, char** argv) {
  printf("rank %s of %s, user %s, home %s, preload %s\n", named("RANK"), named("WORLD_SIZE"), named("USER"), named("HOME"),
         named("LD_PRELOAD"));
  if (argc > 1) fprintf(stderr, "no such data set\n");
  return argc > 1 ? 3 : 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As the operator's image has it."""
    made = tmp_path_factory.mktemp("agent")
    (made / "bin").mkdir()
    start = bin_folder() / "lockstep-agent-folder"
    if not start.exists():
        pytest.skip("a build with a sanitizer makes no static programs")
    shutil.copy(start, made / "lockstep")
    subprocess.run(["strip", "-o", made / "bin/lockstep", program(bin_folder() / "lockstep")], check=True)
    subprocess.run([ROOT / "scripts/image_root", "agent", tmp_path_factory.mktemp("licences"), made], check=True)
    return made


@pytest.fixture(scope="module")
def bare_root(folder, tmp_path_factory):
    """What a container has without anything of an image but one program: /proc comes with `inside`."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    root = tmp_path_factory.mktemp("root")
    for name in ("dev/shm", "proc", PLACE):
        (root / name).mkdir(parents=True)
    (root / "dev/null").touch(mode=0o666)
    (root / "dev/shm").chmod(0o1777)
    (root / "dev/termination-log").touch()
    (root / "dev/termination-log").chmod(0o666)
    source = tmp_path_factory.mktemp("source") / "program.c"
    source.write_text(PROGRAM, encoding="utf-8")
    subprocess.run(["cc", "-static", "-o", root / "program", source], check=True)
    subprocess.run([folder / "lockstep", "--copy_to", root / PLACE], check=True)
    for path in [root, *root.parents]:
        path.chmod(path.stat().st_mode | 0o055)
    return root


def inside(root, *words, user="12345:12345", **variables):
    """Runs `lockstep launch` in the root, as a user that it does not know."""
    argv = ["unshare", "--mount", "--pid", "--fork", f"--root={root}", "--mount-proc", f"--setuid={user.split(':')[0]}",
            f"--setgid={user.split(':')[1]}", f"/{PLACE}/lockstep", "launch", "--status_port", "0", *words]
    return subprocess.run(argv, env={"HOME": "/", "CI": "1", **variables}, capture_output=True, text=True, timeout=120,
                          check=False)


def test_a_static_program_runs_in_a_root_that_holds_nothing_else(bare_root):
    done = inside(bare_root, "--nproc", "2", "--", "/program", LD_PRELOAD="/usr/lib/libjemalloc.so.2")
    assert done.returncode == 0, text(done)
    for rank in (0, 1):
        assert (f"rank {rank} of 2, user user-12345, home /dev/shm, preload /usr/lib/libjemalloc.so.2") in done.stdout
    assert done.stderr.count("cannot be preloaded") <= 1, done.stderr  # for unshare, which is this machine's


def test_its_failure_is_in_the_termination_message(bare_root):
    done = inside(bare_root, "--nproc", "1", "--max_restarts", "0", "--", "/program", "fail")
    assert done.returncode == 1, text(done)
    message = (bare_root / "dev/termination-log").read_text(encoding="utf-8")
    assert '"Crash"' in message and "its exit code was 3: no such data set" in message, message


def test_python_programs_are_forked_and_have_the_image_s_own_libraries(folder, tmp_path):
    """LD_LIBRARY_PATH and LD_PRELOAD are the program's, and never name ours."""
    script = tmp_path / "show.py"
    script.write_text("import os, sys\n"
                      "maps = open('/proc/self/maps').read()\n"
                      "print(os.environ['RANK'], os.environ['LD_LIBRARY_PATH'], os.environ['LD_PRELOAD'],\n"
                      f"      {str(folder)!r} in maps, 'lockstep' in open('/proc/1/comm').read(), sys.argv[1])\n",
                      encoding="utf-8")
    done = subprocess.run([folder / "lockstep", "launch", "--status_port", "0", "--nproc", "2", script, "argument"],
                          env=clean_environment(LD_LIBRARY_PATH="/opt/theirs", LD_PRELOAD="libm.so.6",
                                                PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"),
                          cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, text(done)
    for rank in (0, 1):
        assert f"{rank} /opt/theirs libm.so.6 False" in done.stdout, text(done)
    assert "without a zygote" not in text(done)


def test_a_folder_that_is_not_complete_says_so(folder, tmp_path):
    shutil.copy(folder / "lockstep", tmp_path)
    done = subprocess.run([tmp_path / "lockstep", "launch"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and f"cannot run {tmp_path}/loader/lockstep: No such file" in done.stderr
    done = subprocess.run([folder / "lockstep", "--copy_to", "/proc/nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "/proc/nowhere" in done.stderr
