#!/usr/bin/env python3
"""What a lost worker costs: Lockstep against the PyTorch twin under torchrun (elastic, c10d).  (make bench-recovery)

Both sides train SASRec on MovieLens-100K with 2 nodes of 1 rank each on this machine; a rank is killed (SIGKILL) in the
middle of the run, again and again, the sides in turn. Both are seen from outside: the time of the kill, and the time at
which the next step is done that had not been done before (a line of the side's own). The twin goes on from its newest
checkpoint. Then rank 1 is killed in turn while rank 0 writes nothing and while a write of it takes WRITE_SECONDS. Writes its tables into docs/benchmarks.md, with a verdict for each target, and ends with 1 when one was missed.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "tests/bench")]
from verdicts import Verdicts  # noqa: E402
from jobs import Job, children, command_line, free_port, read_metrics  # noqa: E402
BIN = pathlib.Path(os.environ.get("LOCKSTEP_BIN", ROOT / "build/release/bin"))
CACHE = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep"))
DATA = CACHE / "data/ml-100k.inter"
TWIN = ROOT / "tests/python/sasrec_twin.py"
REPORT = ROOT / "docs/benchmarks.md"
CHECKPOINT_EVERY = 50
RECOVERY_SECONDS_MAX = 90
# The targets; each is for every kill.
SECONDS_TARGET = 1.0
DETECTION_TARGET = 0.1
REDONE_TARGET = 1
# Of the medians with and without a checkpoint write of so many seconds in flight.
WRITE_SECONDS = 10
WRITE_RATIO_TARGET = 1.5


class Lines:
    """A process group whose lines are kept with the time at which they came."""

    def __init__(self, commands, **environment):
        self.seen = []
        self.processes = []
        for command in commands:
            process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True,
                                       env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
            self.processes.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process):
        for line in process.stdout:
            self.seen.append((time.monotonic(), line))

    def stop(self):
        # torchrun's ranks have sessions of their own and outlive it. They are looked up while torchrun is stopped and
        # starts no others.
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)
        ranks = twin_ranks(self.processes)
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)

    def steps(self):
        """(time, step) of the twin's lines."""
        return [(at, int(m[1])) for at, line in list(self.seen) if (m := re.match(r"step (\d+) loss", line))]

    def wait(self, condition, what, timeout=180):
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {timeout} s:\n" + "".join(line for _, line in self.seen[-40:]))
            time.sleep(0.005)
        return found


def twin_ranks(launchers):
    return [pid for launcher in launchers for pid in children(launcher.pid) if str(TWIN) in command_line(pid)]


def measure_twin(kills, draw, folder):
    """([(seconds to the next new step, steps redone)], how many recoveries did not end)"""
    port = free_port()
    commands = [[sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
                 "--max_restarts=1000", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=bench",
                 "--local_addr=127.0.0.1", TWIN, "--dataset", DATA, "--maxlen", 50, "--num_epochs", 100000,
                 "--print_losses", "--no_evaluation", "--checkpoint", folder / "twin.pt", "--checkpoint_every",
                 CHECKPOINT_EVERY] for _ in range(2)]
    side = Lines(commands)
    results = []
    try:
        side.wait(lambda: len(side.steps()) > 20, "step 20 of the twin")
        for _ in range(kills):
            reached = side.steps()[-1][1]
            side.wait(lambda: side.steps()[-1][1] > reached + draw.randint(CHECKPOINT_EVERY, 2 * CHECKPOINT_EVERY),
                      "progress of the twin")
            victim = draw.choice(side.wait(lambda: (r := twin_ranks(side.processes)) if len(r := twin_ranks(
                side.processes)) == 2 else None, "two ranks of the twin"))
            before = len(side.steps())
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            furthest = max(step for at, step in side.steps() if at <= killed + 0.05)
            try:
                side.wait(lambda: side.steps()[-1][1] > furthest and side.steps()[-1][0] > killed + 0.5,
                          "recovery of the twin", RECOVERY_SECONDS_MAX)
            except TimeoutError as stuck:
                print(stuck, flush=True)
                return results, 1  # it does not recover by itself: this turn is over
            after = [(at, step) for at, step in side.steps()[before:] if at > killed + 0.05]
            fresh = next(at for at, step in after if step > furthest)
            results.append((fresh - killed, sum(1 for _, step in after if step <= furthest)))
            print(f"torchrun  {results[-1][0]:7.3f} s  {results[-1][1]:4d} steps redone", flush=True)
    finally:
        side.stop()
    return results, 0


def start_of_rank_0(job):
    """Of its newest process, from node 0's page: seconds until it ran (process), and until it had its data (load)."""
    found = {}

    def is_told():
        found.update({phase: float(seconds) for phase, seconds in re.findall(
            r'^lockstep_startup_seconds\{phase="(\w+)",rank="0"\} (\S+)$', read_metrics(job.port), re.M)})
        return "load" in found
    job.wait_for(is_told, "the start of the new worker to be told")
    return found


def measure_ours(kills, draw, folder):
    """[recovery of /status, with secondsFromKill and detectionSecondsFromKill; of rank 0 with start, too]"""
    job = Job(BIN / "lockstep", DATA, folder / "ours", folder, "--maxlen", "50", "--hidden_units", "50",
              "--batch_size", "128", "--checkpoint_every", str(CHECKPOINT_EVERY), nodes=2, nproc=1,
              steps=10_000_000)
    results = []
    try:
        job.wait_for_progress(20)
        for number in range(1, kills + 1):
            at = max(worker["step"] for worker in job.status()["workers"])
            job.wait_for_progress(at + draw.randint(CHECKPOINT_EVERY, 2 * CHECKPOINT_EVERY))
            rank = draw.choice([0, 1])
            recovery = kill_and_recover(job, folder, rank, number)
            if rank == 0:
                recovery["start"] = start_of_rank_0(job)
            results.append(recovery)
            print(f"lockstep  {recovery['secondsFromKill']:7.3f} s  {recovery['redoneSteps']:4d} steps redone  {recovery}",
                  flush=True)
    finally:
        job.signal(signal.SIGKILL)
        job.end()
    return results


def kill_and_recover(job, folder, rank, number):
    """The `number`-th recovery of the job, as /status tells it, with secondsFromKill and detectionSecondsFromKill."""
    victim = job.all_workers()[rank]
    killed, killed_ns = time.time(), time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    recovery = job.wait_for_recovery(number)["recoveries"][-1]
    times = []

    def are_recorded():  # the line of a step may be written after the agents know of it
        with open(folder / "ours/metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        times.extend(line["time"] for line in lines if "loss" in line and line["time"] > killed + 0.02 and line["step"] >= recovery["step"])
        return times
    job.wait_for(are_recorded, f"the line of step {recovery['step']} in metrics.jsonl")
    recovery["secondsFromKill"] = min(times) - killed
    # detectionSeconds begins with the last sign of life: up to a step of it is work.
    recovery["detectionSecondsFromKill"] = (recovery["brokenNanoseconds"] - killed_ns) / 1e9
    return recovery


def build_slow_fsync(folder):
    """A library that makes each fsync of a checkpoint's model wait for as long as the file in HOLD_FSYNC exists."""
    library = folder / "slow_fsync.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/bench/slow_fsync.c"], check=True)
    return library


def measure_during_writes(kills, folder):
    """Seconds from the kill of rank 1 to the next new step: ([nothing is being written], [a write of 10 s is])"""
    hold = folder / "hold"
    job = Job(BIN / "lockstep", DATA, folder / "ours", folder, "--maxlen", "50", "--hidden_units", "50",
              "--batch_size", "128", "--checkpoint_every", str(CHECKPOINT_EVERY * 4), nodes=2, nproc=1,
              steps=10_000_000, LD_PRELOAD=str(build_slow_fsync(folder)), HOLD_FSYNC=str(hold))
    idle, writing = [], []
    is_writing = lambda: any((folder / "ours").glob(".tmp-*step-*"))  # noqa: E731
    try:
        job.wait_for_progress(20)
        for number in range(1, kills + 1):
            job.wait_for(lambda: not is_writing(), "the end of a write")
            idle.append(kill_and_recover(job, folder, 1, 2 * number - 1)["secondsFromKill"])
            hold.touch()
            job.wait_for(is_writing, "a checkpoint to be written")
            timer = threading.Timer(WRITE_SECONDS, hold.unlink)
            timer.start()
            writing.append(kill_and_recover(job, folder, 1, 2 * number)["secondsFromKill"])
            timer.join()
            print(f"lockstep  {idle[-1]:7.3f} s, and {writing[-1]:7.3f} s during a write of {WRITE_SECONDS} s", flush=True)
    finally:
        job.signal(signal.SIGKILL)
        job.end()
    return idle, writing


def row(name, values, unit="s"):
    return f"| {name} | {statistics.median(values):.3f} {unit} | {min(values):.3f} | {max(values):.3f} |"


def verdicts(ours, ratio):
    found = Verdicts()
    found.at_most(f"SIGKILL of a worker to the next new step: within {SECONDS_TARGET:g} s, its start and its data included",
                  [r["secondsFromKill"] for r in ours], SECONDS_TARGET, "s")
    found.at_most(f"SIGKILL of a worker until the death was known: within {DETECTION_TARGET:g} s",
                  [r["detectionSecondsFromKill"] for r in ours], DETECTION_TARGET, "s")
    found.at_most(f"steps redone: at most {REDONE_TARGET}", [r["redoneSteps"] for r in ours], REDONE_TARGET, "", 0)
    found.at_most(f"the same during a write of {WRITE_SECONDS} s, by the medians: at most {WRITE_RATIO_TARGET:g} times",
                  [ratio], WRITE_RATIO_TARGET, "")
    return found


def write_report(text, part):
    print(text)
    begin, end = f"<!-- {part}: written by tests/bench -->", f"<!-- /{part} -->"
    report = REPORT.read_text(encoding="utf-8")
    if begin not in report:
        report += f"\n{begin}\n{end}\n"
    report = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{text}\n{end}", report, flags=re.S)
    REPORT.write_text(report, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="of each side in each turn")
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        idle, writing = measure_during_writes(args.kills, pathlib.Path(folder))
    ratio = statistics.median(writing) / statistics.median(idle)
    ours, twins, stuck = [], [], 0
    for _ in range(args.turns):
        with tempfile.TemporaryDirectory() as folder:
            ours += measure_ours(args.kills, draw, pathlib.Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            measured, gave_up = measure_twin(args.kills, draw, pathlib.Path(folder))
            twins += measured
            stuck += gave_up
    mine, theirs = [r["secondsFromKill"] for r in ours], [seconds for seconds, _ in twins]
    theirs_rows = [row("torchrun: SIGKILL to the next new step", theirs),
                   row("torchrun: steps redone", [float(steps) for _, steps in twins], "")] if twins else []
    starts = [r["start"] for r in ours if "start" in r]
    start_rows = [row(f"lockstep: of that, start of the new worker's process ({len(starts)} times, rank 0's)",
                      [start["process"] for start in starts]),
                  row("lockstep: of that, loading of its data",
                      [start["load"] - start["process"] for start in starts])] if starts else []
    lines = [f"## A lost worker\n\nSIGKILL of one of 2 ranks (2 nodes x 1), SASRec on ML-100K, {len(ours)} and "
             f"{len(twins)} kills, the sides in turn; {platform.processor() or platform.machine()}, {os.cpu_count()} "
             f"cores, no GPU, {datetime.date.today()}. torchrun: elastic, c10d rendezvous, the twin resumes from its newest checkpoint (every "
             f"{CHECKPOINT_EVERY} steps).\n", "| | median | least | most |", "|---|---|---|---|",
             *theirs_rows,
             row("lockstep: SIGKILL to the next new step", mine),
             row("lockstep: steps redone", [float(r["redoneSteps"]) for r in ours], ""),
             row("lockstep: of it, until the death was known", [r["detectionSecondsFromKill"] for r in ours]),
             row("lockstep: of it, until all ranks were ready (start and data of the new worker)",
                 [r["respawnSeconds"] for r in ours]),
             *start_rows,
             row("lockstep: of it, forming the group", [r["formingSeconds"] for r in ours]),
             row("lockstep: of it, state from a live rank", [r["syncSeconds"] for r in ours]),
             row("lockstep: SIGKILL of rank 1 to the next new step, nothing being written", idle),
             row(f"lockstep: the same during a checkpoint write of {WRITE_SECONDS} s", writing),
             "", f"Ratio of the medians during a write and without one: {ratio:.3f}.", ""]
    if twins:
        lines += [f"Ratio of the medians: {statistics.median(mine) / statistics.median(theirs):.4f}.", ""]
    found = verdicts(ours, ratio)
    lines += found.table()
    if stuck:
        lines.append(f"\n{stuck} of torchrun's {len(twins) + stuck} recoveries did not end within "
                     f"{RECOVERY_SECONDS_MAX} s and are not in the figures.")
    write_report("\n".join(lines), "recovery")
    found.end()


if __name__ == "__main__":
    main()
