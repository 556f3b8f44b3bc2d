"""Rank 1 fails first, and ends after rank 0, which fails because of it."""
import atexit
import os
import pathlib
import time


def wait_for(is_so):
    deadline = time.monotonic() + 20
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)


pid, error = pathlib.Path("pid"), pathlib.Path("error")
if os.environ["RANK"] == "1":
    wait_for(pid.exists)
    error.symlink_to(os.environ["TORCHELASTIC_ERROR_FILE"])
    stat = pathlib.Path("/proc", pid.read_text(), "stat")
    atexit.register(wait_for, lambda: not stat.exists() or ") Z" in stat.read_text())
    raise ValueError("the first fault")
pathlib.Path("new").write_text(str(os.getpid()))
os.rename("new", pid)
wait_for(error.exists)
raise RuntimeError("Connection closed by peer")
