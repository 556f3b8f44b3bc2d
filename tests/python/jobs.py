"""Jobs of several agents on one machine: to start them, to look at them, to make them fail."""
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import socket
import tempfile
import time
import urllib.error
import urllib.request

from programs import program, tools_folder
from runs import SMALL_MODEL, Running, select_pause


_PORT_LOCKS = []  # held until this process ends


def free_port():
    """A TCP port that nobody listens on, that the kernel gives to no connection (it is below ip_local_port_range), and
    that no other process of the tests gets from here as long as this one lives."""
    folder = pathlib.Path(tempfile.gettempdir(), f"lockstep-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(range(10_000, 32_000), 1000):
        lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("0.0.0.0", port))
        except OSError:
            os.close(lock)
            continue
        _PORT_LOCKS.append(lock)
        return port
    raise RuntimeError("no free port between 10000 and 32000")


def children(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def environment_of(pid):
    try:
        pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_of(agent_pid):
    """local rank → pid of an agent's workers that are alive."""
    found = {}
    for pid in children(agent_pid):
        words = command_line(pid)
        local_rank = environment_of(pid).get("LOCAL_RANK")  # None: it has just ended, or has not become a worker yet
        if words and words[0].endswith("lockstep-worker") and local_rank is not None:
            found[int(local_rank)] = pid
    return found


def http_get(port, path):
    """(code, headers, text), also of an error."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def read_status(port, host="127.0.0.1", timeout=5):
    """None when there is no whole answer."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/status", timeout=timeout) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def read_metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def sasrec_flags(dataset, steps, *flags):
    """Dropout on, every step logged, a checkpoint now and then."""
    return ["--dataset", dataset, "--threads", 1, "--dropout_rate", "0.2", "--num_epochs", 10_000_000, "--max_steps", steps, "--log_every",
            "1", "--eval_every", "0", "--checkpoint_every", "50", "--ema_decay", "0.9", "--rejoin_timeout_seconds",
            "20", *SMALL_MODEL[:-2], *flags]


class WorkloadJob(Running):
    """`lockstep run WORKLOAD --local_nodes N --nproc M`; node 0's status page is on self.port. faulty: its workers are
    tests/tools/faulty_worker.cc, for inject()."""

    def __init__(self, lockstep, workload, folder, base, *flags, nodes=2, nproc=2, faulty=False, **environment):
        self.port = free_port()
        self.nproc = nproc
        self.ranks = nodes * nproc
        self.folder = pathlib.Path(folder)
        self.faults = None
        if faulty:
            self.faults = pathlib.Path(base) / f"faults-{self.port}"
            self.faults.mkdir()
            environment |= {"LOCKSTEP_WORKER": str(program(tools_folder() / "faulty-lockstep-worker")),
                            "LOCKSTEP_FAULTS": str(self.faults)}
        super().__init__([lockstep, "run", workload, "--local_nodes", nodes, "--nproc", nproc, "--status_port", self.port,
                          "--train_dir", folder, *flags], base, **environment)

    def status(self):
        return read_status(self.port)

    def agents(self):
        """node rank → pid of the agents that are alive."""
        found = {}
        for pid in children(self.process.pid):
            for word in command_line(pid):
                if word.startswith("--node_rank="):
                    found[int(word.split("=")[1])] = pid
        return found

    def workers(self):
        """global rank of a full job → pid."""
        return {node * self.nproc + local: pid for node, agent in self.agents().items()
                for local, pid in workers_of(agent).items()}

    def all_workers(self, other_than=None):
        """The same, once all are there, and not equal to `other_than`. The kernel's list of a process's children may
        lack some while others start and end, so one look proves nothing."""
        found = {}

        def are_all_there():
            found.clear()
            found.update(self.workers())
            return len(found) == self.ranks and found != other_than
        self.wait_for(are_all_there, f"all {self.ranks} workers")
        return dict(found)

    def wait_for_progress(self, step):
        return self.wait_for_status(lambda s: max_step(s) >= step, f"step {step}")

    def wait_for_recovery(self, number, timeout=120):
        """The number-th recovery is over (counted from 1)."""
        return self.wait_for_status(lambda s: s["recoveriesTotal"] >= number, f"recovery {number}", timeout)

    def wait_for_text(self, text, timeout=120):
        self.wait_for(lambda: re.search(text, self.output()), f"the line /{text}/", timeout)

    def control(self, request, node=0):
        """One request to an agent's Unix socket; the answer."""
        name = "agent.sock" if node == 0 else f"agent-{node}.sock"
        with socket.socket(socket.AF_UNIX) as link:
            here = os.open(self.folder, os.O_RDONLY)
            try:
                link.connect(f"/proc/self/fd/{here}/{name}")
            finally:
                os.close(here)
            link.settimeout(60)
            link.sendall((json.dumps(request) + "\n").encode())
            answer = link.makefile().readline()
        return json.loads(answer)

    def pid_of(self, rank):
        found = {}

        def is_there():
            found.update(self.workers())
            return rank in found
        self.wait_for(is_there, f"a worker of rank {rank}")
        return found[rank]

    def inject(self, rank, fault, seconds=0.0):
        """The worker of this rank has the fault when it comes to the fault's place. disk_full lasts until mend_disk()."""
        path = self.faults / f"{self.pid_of(rank)}.{fault}"
        path.with_suffix(".tmp").write_text(str(seconds))
        path.with_suffix(".tmp").rename(path)

    def mend_disk(self):
        for path in self.faults.glob("*.disk_full"):
            path.unlink()

    def kill_rank(self, rank, number=signal.SIGKILL):
        pid = self.pid_of(rank)
        os.kill(pid, number)
        return pid


class Job(WorkloadJob):
    """One that trains SASRec."""

    def __init__(self, lockstep, dataset, folder, base, *flags, steps=400, **keywords):
        super().__init__(lockstep, "sasrec", folder, base, *sasrec_flags(dataset, steps, *flags), **keywords)


def max_step(status):
    return max((worker["step"] for worker in status["workers"]), default=0)


def fresh_starts(output):
    """How often nobody had a state, so that it came from the seed or a checkpoint (the start table says which)."""
    return len(re.findall(r"^.*\bstate +(?:initialised|resumed from|weights from)", output, re.M))


def wait_until(condition, what, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {timeout} s"
        select_pause()
