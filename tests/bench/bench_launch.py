#!/usr/bin/env python3
"""`lockstep launch` beside torchrun: start, restart and memory of examples/python/nano_gpt.py.  (make bench-launch)

The sides in turn, with 2 and with 4 ranks, each started afresh. A rank writes the times of its optimizer steps (launched/stamped.py,
the same on both sides); all are seen from outside:

  cold     from exec to the end of the first step, in the last rank. Lockstep knows nothing of the program, and has no zygote.
  restart  from SIGKILL of a rank to the end of the first step after it, in the last rank. The program loads its checkpoint.
  loading  of that, from the program's first line on, in the last rank: its imports, data, group, checkpoint and a step.
  warm     of that, from the request to the parked zygote on.
  memory   PSS of the launcher and of all processes below it, after twenty steps.

And the cost of a step's hook, in a rank. Prints medians and targets, and ends with 1 when a target was missed.
"""
import argparse
import contextlib
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_sasrec import BIN, ROOT, machine, publish, say  # noqa: E402
from jobs import children, free_port, read_status  # noqa: E402
from programs import clean_environment  # noqa: E402
from verdicts import Verdicts  # noqa: E402

LAUNCHED = pathlib.Path(__file__).parent / "launched"
VENV = pathlib.Path(sys.executable).parent
SIDES = ("lockstep", "torchrun")
RANKS = (2, 4)
STEPS_BEFORE = 20  # before memory is read and a rank is killed; a checkpoint is written by then
CHECKPOINT_EVERY = 10
SECONDS_MAX = 300
# The targets: ratios to torchrun, by the medians, by the number of ranks.
COLD = {2: 0.8, 4: 0.5}
WARM = 0.05
MEMORY = {4: 0.6}
RESTART_SECONDS = 0.5  # and the program's own loading
HOOK_MICROSECONDS = 5.0


class Launched:
    """A run of the example in its own process group and folder, and the times of its steps."""

    def __init__(self, side, ranks, folder):
        self.side, self.ranks, self.stamps = side, ranks, folder / "stamps"
        self.port = free_port()
        launcher = {"lockstep": [BIN / "lockstep", "launch", "--status_port", self.port],
                    "torchrun": [VENV / "torchrun", "--standalone", "--max_restarts", "1000"]}[side]
        words = [*launcher, "--nproc_per_node", ranks, LAUNCHED / "stamped.py", self.stamps, ROOT / "examples/python/nano_gpt.py",
                 "--folder", folder / "checkpoints", "--steps", 10**9, "--checkpoint_every", CHECKPOINT_EVERY]
        self.output = open(folder / "output", "wb")
        self.began = time.monotonic_ns()
        self.process = subprocess.Popen([str(word) for word in words], stdout=self.output, stderr=subprocess.STDOUT,
                                        start_new_session=True, env=program_environment(folder))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pids = [self.process.pid, *self.processes()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()

    def processes(self):
        """Below the launcher."""
        found, unread = [], [self.process.pid]
        while unread:
            below = children(unread.pop())
            found += below
            unread += below
        return found

    def steps(self):
        """(rank, pid) → the times of its steps; the first is that of its first line."""
        found = {}
        for line in self.stamps.read_text().splitlines() if self.stamps.exists() else []:
            rank, pid, _, at = map(int, line.split())
            found.setdefault((rank, pid), []).append(at)
        return found

    def wait_for(self, number, since=0):
        """Until all ranks that began after `since` have made so many steps: [their times]"""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            times = [times for times in self.steps().values() if times[0] > since and len(times) > number]
            if len(times) == self.ranks:
                return times
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.side} made no {number} steps with {self.ranks} ranks:\n"
                                 f"{pathlib.Path(self.output.name).read_text()[-4000:]}")
            time.sleep(0.01)

    def pss_mib(self):
        """Of the launcher and all below it, zygote included."""
        rollups = [pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in (self.process.pid, *self.processes())]
        return sum(int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) for text in rollups) / 1024

    def request(self, number):
        """When the agent asked the zygote for the ranks of a restart, counted from 1. It tells a moment after the first step."""
        while len(recoveries := read_status(self.port)["recoveries"]) < number:
            time.sleep(0.05)
        newest = recoveries[number - 1]
        return newest["brokenNanoseconds"] + 1e9 * (newest["respawnSeconds"] + newest["formingSeconds"])


def program_environment(folder):
    """Python is the tests' own; what programs import is remembered in the folder alone.

    Without the last variable, torchrun 2.11 gives the ranks of a restart the store of those before, whose addresses they then
    connect to in vain: with Gloo, it then often hangs after a SIGKILL.
    """
    return clean_environment(PATH=f"{VENV}:{os.environ['PATH']}", XDG_CACHE_HOME=str(folder / "cache"),
                             TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def measure(side, ranks, kills, draw):
    """name → [values]"""
    found = {"cold": [], "restart": [], "loading": [], "warm": [], "memory": []}
    with tempfile.TemporaryDirectory() as folder, Launched(side, ranks, pathlib.Path(folder)) as run:
        found["cold"].append((max(times[1] for times in run.wait_for(1)) - run.began) / 1e9)
        run.wait_for(STEPS_BEFORE)
        found["memory"].append(run.pss_mib())
        since = 0
        for number in range(1, kills + 1):
            run.wait_for(STEPS_BEFORE, since)
            victim = draw.choice([pid for (_, pid), times in run.steps().items() if times[0] > since])
            since = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
            times = run.wait_for(1, since)
            found["restart"].append((max(one[1] for one in times) - since) / 1e9)
            found["loading"].append(max(one[1] - one[0] for one in times) / 1e9)
            if side == "lockstep":
                found["warm"].append((max(one[1] for one in times) - run.request(number)) / 1e9)
    say(f"{side}, {ranks} ranks: " + ", ".join(f"{name} {' '.join(f'{value:.3f}' for value in values)}"
                                               for name, values in found.items() if values))
    return found


def hook_microseconds():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([BIN / "lockstep", "launch", "--status_port", "0", LAUNCHED / "hook_cost.py"], capture_output=True,
                              text=True, check=True, env=program_environment(pathlib.Path(folder)))
    count, cost = re.search(r"(\d+) hooks, ([\d.]+) us a step", done.stdout).groups()
    if count == "0":
        raise SystemExit("no hook was there: the ranks were not forked by a zygote?\n" + done.stderr)
    return float(cost)


def table(medians, ratio):
    lines = ["| | ranks | lockstep | torchrun | ratio |", "|---|---|---|---|---|"]
    for name, text, unit in (("cold", "exec to the end of the first step, cold", "s"),
                             ("warm", "request to the parked zygote to the end of the first step; torchrun: cold", "s"),
                             ("restart", "SIGKILL of a rank to the end of the next step", "s"),
                             ("loading", "of it, the program's own loading", "s"),
                             ("memory", "PSS of all processes", "MiB")):
        for ranks in RANKS:
            ours = medians["lockstep", ranks][name]
            theirs = medians["torchrun", ranks]["cold" if name == "warm" else name]
            digits = 0 if unit == "MiB" else 3
            lines.append(f"| {text} | {ranks} | {ours:.{digits}f} {unit} | {theirs:.{digits}f} {unit} | {ratio(name, ranks):.3f} |")
    return lines


def verdicts(medians, ratio, hook):
    found = Verdicts()
    for ranks, limit in COLD.items():
        found.judge(f"cold start with {ranks} ranks: at most {limit:g} of torchrun's", ratio("cold", ranks) <= limit,
                    f"{ratio('cold', ranks):.3f}")
    for ranks in RANKS:
        found.judge(f"start by a warm zygote with {ranks} ranks: at most {WARM:g} of torchrun's", ratio("warm", ranks) <= WARM,
                    f"{ratio('warm', ranks):.3f}")
        ours = medians["lockstep", ranks]
        beside = ours["restart"] - ours["loading"]
        found.judge(f"SIGKILL to the next step with {ranks} ranks: at most {RESTART_SECONDS:g} s and the program's own loading",
                    beside <= RESTART_SECONDS, f"{beside:.3f} s and {ours['loading']:.3f} s of loading")
    for ranks, limit in MEMORY.items():
        found.judge(f"memory with {ranks} ranks: at most {limit:g} of torchrun's", ratio("memory", ranks) <= limit,
                    f"{ratio('memory', ranks):.3f}")
    found.judge(f"the hook of a step: at most {HOOK_MICROSECONDS:g} µs", hook <= HOOK_MICROSECONDS, f"{hook:.2f} µs")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=2, help="in each run")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    draw = random.Random(1)
    subprocess.run([sys.executable, "-c", "import torch, torch._dynamo"], check=True)  # fills the page cache
    values = {}
    for number in range(options.rounds):
        say(f"round {number + 1}/{options.rounds}")
        for ranks in RANKS:
            for side in SIDES:
                for name, found in measure(side, ranks, options.kills, draw).items():
                    values.setdefault((side, ranks), {}).setdefault(name, []).extend(found)
    medians = {key: {name: statistics.median(found) for name, found in row.items() if found} for key, row in values.items()}

    def ratio(name, ranks):
        return medians["lockstep", ranks][name] / medians["torchrun", ranks]["cold" if name == "warm" else name]
    hook = hook_microseconds()
    found = verdicts(medians, ratio, hook)
    lines = [f"{machine()}. `examples/python/nano_gpt.py`, {options.rounds} starts of each side in turn, {options.kills} kills in each; "
             "medians; the last rank counts.", "", *table(medians, ratio), "", f"The hook behind each step takes {hook:.2f} µs.", "",
             *found.table()]
    publish("launch", lines, options.write)
    found.end()


if __name__ == "__main__":
    main()
