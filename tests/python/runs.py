"""Starting runs and reading what they leave behind."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from programs import clean_environment

SMALL_MODEL = ["--maxlen", "12", "--hidden_units", "16", "--num_blocks", "2", "--batch_size", "12",
               "--status_port", "0"]


def records(folder):
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    """step → loss, from the lines of training steps. No step may be there twice."""
    found = {}
    for record in records(folder):
        if "loss" not in record:
            continue
        assert record["step"] not in found, f"step {record['step']} is in metrics.jsonl twice"
        found[record["step"]] = record["loss"]
    return found


def evaluations(folder):
    """What metrics.jsonl says of each evaluation."""
    return [{key: value for key, value in record.items() if key != "time"} for record in records(folder)
            if record.get("evaluation")]


def checkpoints(folder):
    """Names of complete checkpoints, oldest first."""
    return sorted(path.name for path in pathlib.Path(folder).glob("step-*") if (path / "state.json").exists())


def weights(folder, name=None):
    """name → tensor of a checkpoint (the newest one)."""
    from safetensors.torch import load_file
    return load_file(pathlib.Path(folder) / (name or checkpoints(folder)[-1]) / "model.safetensors")


def equal_weights(first, second):
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


class Running:
    """A program that runs while a test looks at it. Its output goes to a file, so that nothing blocks."""

    started = []  # since the test began

    def __init__(self, argv, folder, **environment):
        self.output_path = pathlib.Path(folder) / f"output-{time.monotonic_ns()}.txt"
        self.output_file = open(self.output_path, "w", encoding="utf-8")
        self.process = subprocess.Popen([str(word) for word in argv], stdout=self.output_file,
                                        stderr=subprocess.STDOUT, env=clean_environment(**environment),
                                        start_new_session=True)
        Running.started.append(self)

    def output(self):
        return self.output_path.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, condition, what, timeout=120):
        """Polls until condition() holds; the program must not end meanwhile."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}:\n{self.output()}"
            assert time.monotonic() < deadline, f"no {what} within {timeout} s:\n{self.output()}"
            select_pause()

    def wait_for_status(self, condition, what, timeout=120):
        """The first status() for which condition(status) holds. Subclasses have status(); None: not served yet."""
        seen = []

        def holds():
            status = self.status()
            if status is None or not condition(status):
                return False
            seen.append(status)
            return True
        self.wait_for(holds, what, timeout)
        return seen[-1]

    def wait_for_step(self, folder, step):
        def reached():
            path = pathlib.Path(folder) / "metrics.jsonl"
            return path.exists() and any(int(found) >= step
                                         for found in re.findall(r'"step":(\d+)', path.read_text()))
        self.wait_for(reached, f"step {step}")

    def worker_pids(self):
        """Children of the process whose program is lockstep-worker, in the order in which they were started."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if "lockstep-worker" in command_line(pid)]

    def kill_worker(self, index):
        """Kills one of worker_pids(). After the loss of a worker it may be missing there, until it is started again."""
        self.wait_for(lambda: len(self.worker_pids()) > max(index, 0), f"worker {index}")
        os.kill(self.worker_pids()[index], signal.SIGKILL)

    def signal(self, number):
        self.process.send_signal(number)

    def ends_within(self, seconds):
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, timeout=180):
        """The exit code."""
        try:
            return self.process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise AssertionError(f"still running after {timeout} s:\n{self.output()}") from None
        finally:
            self.output_file.close()


def command_line(pid):
    """Empty when the process has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def select_pause():
    """One poll interval of wait_for: conditions are looked at, never waited for by time alone."""
    import select
    select.select([], [], [], 0.02)
