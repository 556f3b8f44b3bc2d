#!/usr/bin/env python3
"""The package `lockstep` under `lockstep launch` beside torch's DDP under torchrun.  (make bench-own)

  overhead  a step of a model of 20 and of 200 small parameter tensors, two ranks: both programs are there at the same time, and make blocks of
            steps in turn; the median of the differences between neighbouring blocks.
  memory    what rank 0 has written since before it made a model of 20 large tensors, in multiples of the parameters.
  lost      from SIGKILL of a rank to the end of the first step that its successor makes, in the last rank, with three ranks; and of it what
            the program needs in the successor before it restores its state. torchrun starts all ranks again, from the program's checkpoint.
  redone    steps that a rank makes again, for each kill.
  trainers  the same of programs of Hugging Face's Trainer and of Lightning's, which know nothing of Lockstep (lockstep launch --recover).

Prints medians, ratios and targets, and ends with 1 when a target was missed.
"""
import argparse
import contextlib
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_launch import LAUNCHED, SIDES, VENV, program_environment  # noqa: E402
from bench_sasrec import BIN, machine, publish, say  # noqa: E402
from jobs import children  # noqa: E402
from verdicts import Verdicts  # noqa: E402

TENSORS = (20, 200)
SMALL, LARGE = 64, 1 << 20  # elements of a tensor, for the overhead and for the memory
BLOCK = 200  # steps
RANKS_LOST = 3
STEPS_BEFORE = 20  # before a rank is killed
SECONDS_MAX = 300
# The targets.
OVERHEAD_MICROSECONDS, OVERHEAD_PER_TENSOR = 100, 3
LOST_SECONDS = 0.35  # and the program's own loading
MEMORY = 1.05


class Launched:
    """A program of `launched/` by one of the sides, in its own process group."""

    def __init__(self, side, ranks, folder, *words, flags=()):
        self.side, self.ranks, self.folder = side, ranks, folder
        launcher = {"lockstep": [BIN / "lockstep", "launch", "--status_port", "0", "--max_restarts", "1000"],
                    "torchrun": [VENV / "torchrun", "--standalone", "--max_restarts", "1000"]}[side]
        environment = {**program_environment(folder), "PYTHONPATH": str(BIN.parent / "python"), "OMP_NUM_THREADS": "1"}
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen([str(word) for word in (*launcher, *(flags if side == "lockstep" else ()), "--nproc_per_node", ranks, *words)], stdout=output,
                                            stderr=subprocess.STDOUT, start_new_session=True, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        unread, pids = [self.process.pid], [self.process.pid]
        while unread:
            below = children(unread.pop())
            pids += below
            unread += below
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_for(self, look, what):
        """What `look` gives as soon as it gives anything."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := look()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.side}: no {what}\n{(self.folder / 'output').read_text(errors='replace')[-4000:]}")
            time.sleep(0.005)
        return found


class Stepping(Launched):
    """own_steps.py, which makes a block of steps when it is asked to."""

    def __init__(self, side, folder, tensors, numel):
        folder.mkdir()
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        super().__init__(side, 2, folder, LAUNCHED / "own_steps.py", side, tensors, numel, folder)
        # Opened for both directions, so that neither side waits for the other to open it.
        self.go, self.done = open(folder / "go", "r+b", buffering=0), open(folder / "done", "r+b", buffering=0)
        os.set_blocking(self.done.fileno(), False)

    def __exit__(self, *details):
        super().__exit__(*details)
        self.go.close()
        self.done.close()

    def block(self, steps):
        """(µs of a step, multiples of the parameters' bytes)"""
        self.go.write(f"{steps}\n".encode())
        line = self.wait_for(lambda: self.done.read(4096), "block of steps")
        microseconds, memory = map(float, line.split())
        return microseconds, memory


def measure_overhead(tensors, blocks):
    """side → [µs of a step], block by block in turn."""
    found = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        running = {side: stack.enter_context(Stepping(side, pathlib.Path(folder) / side, tensors, SMALL)) for side in SIDES}
        for side in SIDES:
            running[side].block(BLOCK)  # the first one is for the caches
        for number in range(blocks):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                found[side].append(running[side].block(BLOCK)[0])
    say(f"{tensors} tensors: " + ", ".join(f"{side} {' '.join(f'{value:.0f}' for value in values)}" for side, values in found.items()))
    return found


def measure_memory(side):
    with tempfile.TemporaryDirectory() as folder, Stepping(side, pathlib.Path(folder) / side, 20, LARGE) as run:
        run.block(10)
        return run.block(10)[1]


class Losing(Launched):
    """own_kill.py, or own_trainer.py with this framework."""

    def __init__(self, side, folder, framework=None):
        self.stamps = folder / "stamps"
        words = [LAUNCHED / "own_trainer.py", framework] if framework else [LAUNCHED / "own_kill.py", side]
        super().__init__(side, RANKS_LOST, folder, *words, self.stamps, folder, flags=["--recover"] if framework else [])

    def read(self):
        """(rank, pid) → {"begin": time, "loaded": time, "steps": [(number, time)]}"""
        found = {}
        for line in self.stamps.read_text().splitlines() if self.stamps.exists() else []:
            rank, pid, what, number, at = line.split()
            process = found.setdefault((int(rank), int(pid)), {"steps": []})
            if what == "step":
                process["steps"].append((int(number), int(at)))
            else:
                process[what] = int(at)
        return found

    def have_stepped(self, count, since):
        """The newest process of each rank, when each has made so many steps since then; else None."""
        newest = {}
        for (rank, pid), process in self.read().items():
            if rank not in newest or process["begin"] > newest[rank][1]["begin"]:
                newest[rank] = (pid, process)
        is_so = len(newest) == self.ranks and all(sum(at > since for _, at in process["steps"]) >= count for _, process in newest.values())
        return newest if is_so else None


def measure_lost(side, kills, draw, framework=None):
    """name → [values]"""
    found = {"lost": [], "loading": [], "redone": []}
    with tempfile.TemporaryDirectory() as folder, Losing(side, pathlib.Path(folder), framework) as run:
        since = 0
        for _ in range(kills):
            before = run.wait_for(lambda since=since: run.have_stepped(STEPS_BEFORE, since), f"{STEPS_BEFORE} steps")
            victim = draw.randrange(run.ranks)
            pid = before[victim][0]
            since = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)

            def successors(before=before, victim=victim, since=since):
                after = run.have_stepped(1, since)
                return after if after and after[victim][0] != before[victim][0] else None
            after = run.wait_for(successors, "step after a kill")
            number = after[victim][1]["steps"][0][0]  # the first one that the successor makes, and others with it
            at = [dict(process["steps"]).get(number) for _, process in after.values()]
            found["lost"].append((max(filter(None, at)) - since) / 1e9)
            found["loading"].append((after[victim][1]["loaded"] - after[victim][1]["begin"]) / 1e9)
            made = [[number for (rank, _), process in run.read().items() if rank == one for number, _ in process["steps"]]
                    for one in range(run.ranks) if one != victim]
            found["redone"].append(max(len(numbers) - len(set(numbers)) for numbers in made) - sum(found["redone"]))
    say(f"{framework or 'own loop'}, {side}: " + ", ".join(f"{name} {' '.join(f'{value:.3f}' for value in values)}" for name, values in found.items()))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5, help="in each of the rounds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("overhead", "memory", "lost", "trainers"))
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    draw = random.Random(1)
    verdicts = Verdicts()
    rows = ["| | lockstep | torchrun | ratio |", "|---|---|---|---|"]

    def row(text, ours, theirs, unit, digits):
        ratio = f"{ours / theirs:.3f}" if theirs else ""
        rows.append(f"| {text} | {ours:.{digits}f} {unit} | {theirs:.{digits}f} {unit} | {ratio} |".replace("  ", " "))
    for tensors in TENSORS if options.only in (None, "overhead") else ():
        found = measure_overhead(tensors, options.blocks)
        row(f"a step, {tensors} tensors", *(statistics.median(found[side]) for side in SIDES), "µs", 0)
        overhead = statistics.median(ours - theirs for ours, theirs in zip(found["lockstep"], found["torchrun"], strict=True))
        limit = OVERHEAD_MICROSECONDS + OVERHEAD_PER_TENSOR * tensors
        verdicts.judge(f"a step with {tensors} tensors: at most {OVERHEAD_MICROSECONDS} µs and {OVERHEAD_PER_TENSOR} µs for each tensor more "
                       f"than torch's ({limit} µs)", overhead <= limit, f"{overhead:.0f} µs")
    if options.only in (None, "memory"):
        memory = {side: measure_memory(side) for side in SIDES}
        row("memory of a rank, in parameters", *(memory[side] for side in SIDES), "", 2)
        verdicts.judge(f"memory of a rank: at most {MEMORY:g} of torch's default", memory["lockstep"] <= MEMORY * memory["torchrun"],
                       f"{memory['lockstep'] / memory['torchrun']:.3f}")

    def rounds(framework=None):
        """side → name → [values]"""
        found = {side: {} for side in SIDES}
        for number in range(options.rounds):
            say(f"round {number + 1}/{options.rounds}")
            for side in SIDES:
                for name, values in measure_lost(side, options.kills, draw, framework).items():
                    found[side].setdefault(name, []).extend(values)
        return found
    if options.only in (None, "lost"):
        lost = rounds()
        for name, text, unit, digits in (("lost", "SIGKILL of a rank to the end of the next step", "s", 3),
                                         ("loading", "of it, the program's own loading before its state is restored", "s", 3),
                                         ("redone", "steps that a survivor makes again", "", 1)):
            row(text, *(statistics.median(lost[side][name]) for side in SIDES), unit, digits)
        beside = statistics.median(whole - part for whole, part in zip(lost["lockstep"]["lost"], lost["lockstep"]["loading"], strict=True))
        verdicts.judge(f"SIGKILL to the next step: at most {LOST_SECONDS:g} s and the program's own loading", beside <= LOST_SECONDS,
                       f"{beside:.3f} s")
        redone = max(lost["lockstep"]["redone"])
        verdicts.judge("steps that a survivor makes again: none", redone == 0, f"{redone}")
    for framework, whose in (("transformers", "Hugging Face's Trainer"), ("lightning", "Lightning's Trainer")) if options.only in (None, "trainers") else ():
        lost = rounds(framework)
        for name, text, unit, digits in (("lost", "SIGKILL of a rank to the end of the next step", "s", 3),
                                         ("loading", "of it, the program's own loading before its Trainer begins", "s", 3),
                                         ("redone", "steps that a survivor makes again", "", 1)):
            row(f"{whose}: {text}", *(statistics.median(lost[side][name]) for side in SIDES), unit, digits)
        redone = max(lost["lockstep"]["redone"])
        verdicts.judge(f"{whose}: steps that a survivor makes again: none", redone == 0, f"{redone}")
    publish("own", [f"{machine()}. {options.blocks} blocks of {BLOCK} steps of each side in turn, {options.rounds} × {options.kills} kills; medians.",
                    "", *rows, "", *verdicts.table()], options.write and options.only is None)
    verdicts.end()


if __name__ == "__main__":
    main()
