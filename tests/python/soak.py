"""Random kills for a long time: nothing leaks, nothing is lost.

`python soak.py SECONDS` (make soak) runs it alone; test_soak.py is its short form. Every few seconds a worker is killed or
stopped, or an agent is killed; after each recovery the processes that lived through it are looked at. What must hold:
  - each recovery ends, and redoes at most one step when only workers were hurt;
  - descriptors, threads and sockets of the survivors are the same as after the first recoveries;
  - their memory does not grow from one half of the run to the other by more than SLACK_KIB;
  - in the end every step is in metrics.jsonl once, and the job stops with 143.
"""
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

from programs import bin_folder, program, write_interactions
from jobs import Job, max_step
from runs import losses

SLACK_KIB = 24 * 1024
SETTLED_AFTER = 3  # recoveries; allocators and thread pools have their size by then


def figures(pid):
    """What could leak, of a process that lives; None when it has gone meanwhile."""
    here = pathlib.Path(f"/proc/{pid}")
    try:
        links = [os.readlink(fd) for fd in (here / "fd").iterdir()]
        status = (here / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return {"descriptors": len(links), "sockets": sum(link.startswith("socket:") for link in links),
            "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
            "resident_kib": int(re.search(r"VmRSS:\s+(\d+)", status)[1])}


def hurt(job, draw):
    """(what was done, whether only workers were hurt)"""
    kind = draw.choices(["kill-rank", "stop-rank", "kill-two", "kill-agent"], [6, 1, 2, 1])[0]
    workers, agents = job.all_workers(), job.agents()
    if kind == "kill-agent":
        node = draw.choice(sorted(agents))
        os.kill(agents[node], signal.SIGKILL)
        return f"agent {node} killed", False
    ranks = draw.sample(sorted(workers), 2 if kind == "kill-two" else 1)
    for rank in ranks:
        os.kill(workers[rank], signal.SIGSTOP if kind == "stop-rank" else signal.SIGKILL)
    return f"{kind} {ranks}", True


def is_over(status, before):
    """All train again in a new generation. A new node 0 counts its recoveries from its own start: for it that is one."""
    if status["phase"] != "Running" or status["worldSize"] != 4 or status["generation"] <= before["generation"]:
        return False
    if status["generation"] >> 32 > before["generation"] >> 32 and not status["recoveries"]:
        return max_step(status) > max_step(before)
    return bool(status["recoveries"]) and status["recoveries"][-1]["generation"] == status["generation"]


def soak(folder, seconds, seed=1, say=print):
    folder = pathlib.Path(folder)
    dataset = write_interactions(folder / "small.txt")
    job = Job(program(bin_folder() / "lockstep"), dataset, folder / "run", folder, "--heartbeat_timeout_seconds", "2",
              "--max_restarts", "1000000", "--checkpoint_every", "20", steps=10_000_000)
    try:
        return hurt_again_and_again(job, folder, seconds, random.Random(seed), say)
    finally:
        if job.process.poll() is None:
            job.signal(signal.SIGKILL)
            job.end()


def hurt_again_and_again(job, folder, seconds, draw, say):
    job.wait_for_progress(20)
    began = time.monotonic()
    seen = {}  # pid → [figures after each recovery that it lived through]
    recoveries = 0

    def followed():
        return {pid: history for pid, history in seen.items() if len(history) > SETTLED_AFTER + 2}
    while time.monotonic() - began < seconds or not followed():
        assert time.monotonic() - began < 5 * seconds + 60, "nobody lives long enough to be followed"
        job.all_workers()
        before = job.status()
        done, only_workers = hurt(job, draw)
        hurt_at = time.monotonic()
        after = job.wait_for_status(lambda s, old=before: is_over(s, old), f"recovery from: {done}")
        recoveries += 1
        if after["recoveries"]:
            last = after["recoveries"][-1]
            cost = f"{last['totalSeconds']:6.3f} s, {last['redoneSteps']} redone"
            assert not only_workers or last["redoneSteps"] <= 1, last
        else:
            cost = f"{time.monotonic() - hurt_at:6.3f} s, with a new node 0"
        say(f"{time.monotonic() - began:7.1f} s  {done:24}  going on after {cost}", flush=True)
        job.wait_for_progress(max_step(after) + draw.randint(20, 150))
        for pid in [*job.agents().values(), *job.workers().values()]:
            if (found := figures(pid)) is not None:
                seen.setdefault(pid, []).append(found)
    lived = followed()
    for pid, history in lived.items():
        settled = history[SETTLED_AFTER:]
        for what in ("descriptors", "sockets", "threads"):
            spread = [found[what] for found in settled]
            # A connection may be on its way out at the moment of a look.
            assert spread[-1] <= spread[0] + 2, (pid, what, spread)
        middle = len(settled) // 2
        growth = (max(f["resident_kib"] for f in settled[middle:]) - max(f["resident_kib"] for f in settled[:middle]))
        assert growth < SLACK_KIB, (pid, [found["resident_kib"] for found in history])
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()[-3000:]
    steps = losses(folder / "run")
    assert sorted(steps) == list(range(1, max(steps) + 1))
    say(f"{recoveries} recoveries in {time.monotonic() - began:.0f} s, {max(steps)} steps, {len(lived)} processes "
        f"followed through more than {SETTLED_AFTER + 2} of them: no growth", flush=True)
    return recoveries


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as base:
        soak(base, float(sys.argv[1]) if len(sys.argv) > 1 else 1800.0)
