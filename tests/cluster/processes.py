"""Programs started beside a test, none of which outlives it.

Each is recorded in a file, with its start time, before anything is asked of it. When a test run was itself killed, the
next one reads the records and ends what is left: a pid counts only together with its start time, because pids return.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

from host_traces import remove_traces_of
from waiting import wait_until


def stat_of(process):
    """The fields of the stat file in a folder of /proc, from the state's letter on; None when the process is gone."""
    try:
        return (pathlib.Path(process) / "stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_time(pid):
    """The kernel's start time of a process that runs, in ticks since boot; None when there is none (or a zombie)."""
    fields = stat_of(f"/proc/{pid}")
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def runs_still(record):
    return record["start_time"] is not None and start_time(record["pid"]) == record["start_time"]


def registry(temporary=None):
    """Where the runs of this user keep their folders."""
    return pathlib.Path(temporary or tempfile.gettempdir()) / f"lockstep-cluster-{os.getuid()}"


def end_leftovers(root=None):
    """Ends the processes of runs whose own process is gone, removes their folders, returns the records of what was
    still running. Runs that are alive are left alone."""
    ended = []
    root = registry() if root is None else root
    for folder in sorted(root.glob("run-*")):
        try:
            owner = json.loads((folder / "owner.json").read_text())
        except (FileNotFoundError, ValueError):
            continue  # being made at this moment, or being removed
        if runs_still(owner):
            continue
        for path in sorted(folder.glob("processes/*.json")):
            try:
                record = json.loads(path.read_text())
            except (FileNotFoundError, ValueError):
                continue
            if runs_still(record):
                end_group(record["pid"])
                wait_until(lambda record=record: not runs_still(record), f"end of {record['name']}")
                ended.append(record)
        remove_traces_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return ended


def write_whole(path, text):
    """A reader sees all of it or nothing."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text, encoding="utf-8")
    fresh.rename(path)


def end_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def make_run_folder():
    """A folder of this process in the registry, private to the user."""
    registry().mkdir(mode=0o700, exist_ok=True)
    if registry().stat().st_uid != os.getuid():
        raise RuntimeError(f"{registry()} belongs to somebody else: set TMPDIR to a folder of yours")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="run-", dir=registry()))
    write_whole(folder / "owner.json", json.dumps({"pid": os.getpid(), "start_time": start_time(os.getpid())}))
    return folder


def one_at_a_time():
    """A lock, held until it is closed: real nodes have fixed addresses, so that runs wait for each other. The name of an
    abstract socket, because that belongs to the network namespace, as the addresses do."""
    lock = socket.socket(socket.AF_UNIX)

    def is_ours():
        try:
            lock.bind("\0lockstep-cluster-nodes")
            return True
        except OSError:
            return False
    wait_until(is_ours, "end of another run with real nodes", timeout=2400)
    return lock


class Process:
    """A program with a process group, a log file and a record of its own. start() after stop() starts it again with the
    same arguments."""

    def __init__(self, name, argv, folder, environment=None):
        self.name = name
        self.argv = [str(word) for word in argv]
        self.environment = environment
        self.log_path = folder / "logs" / f"{name}.log"
        self.record_path = folder / "processes" / f"{name}.json"
        self.popen = None

    def start(self):
        assert not self.is_running(), f"{self.name} runs already"
        for path in (self.log_path, self.record_path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                          env=self.environment, process_group=0)
        write_whole(self.record_path, json.dumps({"name": self.name, "pid": self.popen.pid,
                                                  "start_time": start_time(self.popen.pid)}))

    def is_running(self):
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self):
        return self.popen.pid

    def send_signal(self, number):
        self.popen.send_signal(number)

    def pause(self):
        """SIGSTOP; returns when every thread has stopped, which kill() does not wait for."""
        self.send_signal(signal.SIGSTOP)
        threads = pathlib.Path(f"/proc/{self.pid}/task")
        wait_until(lambda: all((stat_of(thread) or "T")[0] == "T" for thread in threads.iterdir()),
                   f"stop of {self.name}")

    def go_on(self):
        self.send_signal(signal.SIGCONT)

    def stop(self, number=signal.SIGKILL, timeout=60):
        """Sends the signal, waits for the end, and returns the exit code (negative: the signal that ended it)."""
        if self.popen is None:
            return None
        if self.popen.poll() is None:
            if number == signal.SIGKILL:
                end_group(self.popen.pid)
            else:
                self.popen.send_signal(number)
        code = self.wait(timeout)
        self.record_path.unlink(missing_ok=True)
        return code

    def wait(self, timeout=60):
        """The exit code, once it ends by itself."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout} s:\n{self.log_tail()}") from None

    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines=40):
        return f"--- the end of {self.log_path}\n" + "\n".join(self.log().splitlines()[-lines:])

    def wait_until(self, condition, what, timeout=60):
        """As waiting.wait_until; fails at once when the program ends instead."""
        def holds():
            if not self.is_running():
                raise RuntimeError(f"{self.name} ended with {self.popen.poll()} before {what}\n{self.log_tail()}")
            return condition()
        return wait_until(holds, f"{what} ({self.name})", timeout, self.log_tail)
