"""Random kills of a program with the Python package, for a long time: `python soak_own.py SECONDS [PROGRAM]` (make soak-own).

Three ranks train with BatchNorm, dropout, accumulation, a shuffled loader and its workers (EveryThing of user_programs/own/more_cases.py), or under
`--recover` with Hugging Face's Trainer (PROGRAM transformers) or Lightning's (lightning). Again and again one rank is killed or stopped, or two
are, at random moments, also while another one starts. What must hold: every loss of every rank, and what each rank holds at the end, are those
of the undisturbed run, bit for bit.
"""
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from own_runs import OWN, PACKAGE, VENV, assert_equal, result_of
from programs import bin_folder, clean_environment, program
from test_own_frameworks import LIGHTNING, TRAINER, assert_same, made_by

RANKS, EPOCHS = 3, int(os.environ.get("EPOCHS", "25"))
PROGRAMS = {"own": [OWN / "more_cases.py", "--case", "EveryThing"], "transformers": ["--recover", TRAINER], "lightning": ["--recover", LIGHTNING]}
BATCHES = {"own": 4, "transformers": 7, "lightning": 7}  # of an epoch
PATIENCE_SECONDS = 120  # from a start or a wound to the next step


def start(folder, name):
    environment = clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(folder.parent / "cache"),
                                    EPOCHS=str(EPOCHS), HF_HUB_OFFLINE="1")
    return subprocess.Popen([program(bin_folder() / "lockstep"), "launch", "--status_port", "0", "--nproc", str(RANKS), "--max_restarts", "100000",
                             "--heartbeat_timeout_seconds", "3", *PROGRAMS[name], "--folder", folder],
                            cwd=folder, env=environment, stdout=open(folder / "output", "w"), stderr=subprocess.STDOUT)


def is_below(pid, ancestor):
    """`pid` is a process of this run, and not another one that has got its number since."""
    while pid > 1:
        try:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
        if pid == ancestor:
            return True
    return False


def victims(folder, launcher):
    """The newest process of each rank that lives."""
    pids = [int(path.read_text().split()[-1]) for path in folder.glob("processes-*.txt") if path.read_text()]
    return [pid for pid in pids if is_below(pid, launcher)]


def lines_of(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("losses-*.txt"))


def wound(run, folder, draw, until):
    """Hurts ranks until the run ends or `until`; the number of wounds."""
    wounds = 0
    while run.poll() is None:
        lines, since = lines_of(folder), time.monotonic()
        wanted = lines + draw.randint(1, 20)
        while run.poll() is None and lines < wanted:
            if (now := lines_of(folder)) != lines:
                lines, since = now, time.monotonic()
            assert time.monotonic() - since < PATIENCE_SECONDS, f"no step for {PATIENCE_SECONDS} s: {(folder / 'output').read_text()[-5000:]}"
            time.sleep(draw.uniform(0, 0.05))
        if time.monotonic() > until:
            continue
        for _ in range(draw.choice([1, 1, 1, 2])):
            if alive := victims(folder, run.pid):
                os.kill(draw.choice(alive), draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
                wounds += 1
            time.sleep(draw.choice([0.0, draw.uniform(0, 1.0)]))
    return wounds


def main():
    seed = int(os.environ.get("SEED", time.time_ns() % 100_000))
    print(f"SEED={seed} draws these moments again", flush=True)
    draw, name = random.Random(seed), sys.argv[2] if len(sys.argv) > 2 else "own"
    batches = EPOCHS * BATCHES[name]
    with tempfile.TemporaryDirectory() as base:
        undisturbed = pathlib.Path(base) / "undisturbed"
        undisturbed.mkdir()
        assert start(undisturbed, name).wait() == 0, (undisturbed / "output").read_text()
        until = time.monotonic() + float(sys.argv[1])
        rounds, wounds = 0, 0
        while time.monotonic() < until:
            rounds += 1
            folder = pathlib.Path(base) / f"round-{rounds}"
            folder.mkdir()
            run = start(folder, name)
            try:
                wounds += wound(run, folder, draw, until)
            finally:
                run.kill()
            assert run.wait() == 0, (folder / "output").read_text()[-20_000:]
            if name == "own":
                assert_equal(result_of(folder), result_of(undisturbed), steps=batches)
            else:
                assert_same(made_by(folder), made_by(undisturbed), batches)
            assert wounds > 0
            print(f"round {rounds}: {wounds} wounds in all, every loss and the state at the end as without", flush=True)


if __name__ == "__main__":
    main()
