#!/usr/bin/env python3
"""Seconds until the next committed step when node 0 dies, when a node or a worker falls silent, and when a node joins.
Writes its part of docs/benchmarks.md, with a verdict for each target, and ends with 1 when one was missed.

Node 0 lost: SIGKILL of node 0's agent in a job of 2 nodes x 1 rank; `lockstep run --local_nodes` starts it again, as the
operator would. Its survivor keeps its state. A node falls silent: SIGSTOP of node 1's agent, SIGCONT as soon as it is
taken for lost. A worker falls silent: SIGSTOP; its agent kills it. A node joins: a job of --nnodes 1:2 runs on one node;
the second one starts. On a cluster the start of the pod comes on top, and for node 0 the life of its DNS record.
"""
import argparse
import datetime
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "tests/bench")]
from bench_recovery import BIN, DATA, row, write_report  # noqa: E402
from jobs import Job, free_port, max_step, read_status, sasrec_flags  # noqa: E402
from runs import Running  # noqa: E402
from verdicts import Verdicts  # noqa: E402

MODEL = ["--maxlen", "50", "--hidden_units", "50", "--batch_size", "128", "--checkpoint_every", "0"]
ENDLESS = 10_000_000
HEARTBEAT_TIMEOUT = 5.0  # the default
# What may have been on its way when the node fell silent, and the machine's other work.
HEARTBEAT_SLACK = 0.5


def lose_node_0(draw, folder):
    """The recovery as the new node 0 tells it, with its seconds since the kill. In a job of its own: a node 0 that is
    lost again and again within seconds ends a job, as it should."""
    job = Job(BIN / "lockstep", DATA, folder / "run", folder, *MODEL, nodes=2, nproc=1, steps=ENDLESS)
    try:
        job.wait_for_progress(draw.randint(50, 100))
        killed_ns = time.monotonic_ns()
        os.kill(job.agents()[0], signal.SIGKILL)
        recovery = job.wait_for_recovery(1)["recoveries"][0]
        recovery["secondsFromKill"] = (recovery["committedNanoseconds"] - killed_ns) / 1e9
        recovery["detectionSecondsFromKill"] = (recovery["brokenNanoseconds"] - killed_ns) / 1e9
        print("node 0 lost", recovery, flush=True)
        return recovery
    finally:
        job.signal(signal.SIGKILL)
        job.end()


def silence_a_worker(times, draw, folder):
    """[seconds from SIGSTOP of a worker until its group was cut]"""
    job = Job(BIN / "lockstep", DATA, folder / "run", folder, *MODEL[:-1], "20", nodes=2, nproc=1, steps=ENDLESS)
    found = []
    try:
        for number in range(1, times + 1):
            reached = job.wait_for_status(lambda s: s["phase"] == "Running" and max_step(s) > 0, "steps")
            job.wait_for_progress(max_step(reached) + draw.randint(50, 100))
            victim = job.all_workers()[draw.choice([0, 1])]
            stopped_ns = time.monotonic_ns()
            os.kill(victim, signal.SIGSTOP)
            recovery = job.wait_for_recovery(number)["recoveries"][-1]
            found.append((recovery["brokenNanoseconds"] - stopped_ns) / 1e9)
            print(f"silent worker: noticed after {found[-1]:.3f} s", flush=True)
    finally:
        job.signal(signal.SIGKILL)
        job.end()
    return found


def silence_a_node(times, draw, folder):
    """[(seconds from SIGSTOP until the group was cut, from SIGCONT to the next step)]. The cut is node 0's own figure:
    /status shows it only with the next look."""
    job = Job(BIN / "lockstep", DATA, folder / "run", folder, *MODEL, nodes=2, nproc=1, steps=ENDLESS)
    found = []
    try:
        for number in range(1, times + 1):
            reached = job.wait_for_status(lambda s: s["phase"] == "Running" and max_step(s) > 0, "steps")
            job.wait_for_progress(max_step(reached) + draw.randint(50, 100))
            agent = job.agents()[1]
            stopped_ns = time.monotonic_ns()
            os.kill(agent, signal.SIGSTOP)
            job.wait_for_status(lambda s: s["phase"] == "Recovering", "the silence to be noticed")
            continued = time.monotonic()
            os.kill(agent, signal.SIGCONT)
            recovery = job.wait_for_recovery(number)["recoveries"][-1]
            found.append(((recovery["brokenNanoseconds"] - stopped_ns) / 1e9, time.monotonic() - continued))
            print(f"silent: noticed after {found[-1][0]:.3f} s, {found[-1][1]:.3f} s to the next step", flush=True)
    finally:
        job.signal(signal.SIGKILL)
        job.end()
    return found


class Node(Running):
    def __init__(self, node, attempt, coordinator, folder, base):
        self.port = free_port()
        super().__init__([BIN / "lockstep", "run", "sasrec", "--nnodes", "1:2", "--nproc", 1, "--node_rank", node,
                          "--coordinator", coordinator, "--status_port", self.port, "--train_dir", folder,
                          *sasrec_flags(DATA, ENDLESS, *MODEL),
                          "--rejoin_timeout_seconds", "1"], base, LOCKSTEP_TOKEN="bench", LOCKSTEP_JOB="bench",
                         LOCKSTEP_POD_ATTEMPT=str(attempt))

    def status(self):
        return read_status(self.port)


def let_a_node_join(times, draw, folder):
    coordinator = f"127.0.0.1:{free_port()}"
    first = Node(0, 0, coordinator, folder / "run", folder)
    found = []
    try:
        for attempt in range(times):
            alone = first.wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 1, "one node at work")
            first.wait_for_status(lambda s: max_step(s) > max_step(alone) + draw.randint(50, 100), "steps")
            second = Node(1, attempt, coordinator, folder / "run", folder)
            # The group stands a moment before its first step, with which the recovery is told.
            status = first.wait_for_status(lambda s: s["worldSize"] == 2 and any(
                r["generation"] == s["generation"] for r in s["recoveries"]), "two nodes at work")
            found.append(status["recoveries"][-1])
            print("a node joins", found[-1], flush=True)
            second.signal(signal.SIGTERM)
            second.end()
    finally:
        first.signal(signal.SIGKILL)
        first.end()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=8)
    args = parser.parse_args()
    draw = random.Random(1)
    lost = []
    for _ in range(args.times):
        with tempfile.TemporaryDirectory() as folder:
            lost.append(lose_node_0(draw, pathlib.Path(folder)))
    with tempfile.TemporaryDirectory() as folder:
        joins = let_a_node_join(args.times, draw, pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        silent = silence_a_node(args.times, draw, pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        stopped = silence_a_worker(args.times, draw, pathlib.Path(folder))
    lines = [f"## Node 0 lost, a node silent, a worker silent, a node joins\n\n2 nodes x 1 rank on one machine, "
             f"{args.times} times each; {os.cpu_count()} cores, no GPU, {datetime.date.today()}. On a cluster the pod's start comes on top.\n",
             "| | median | least | most |", "|---|---|---|---|",
             row("node 0 lost: SIGKILL of its agent to the next step", [r["secondsFromKill"] for r in lost]),
             row("node 0 lost: of it, until the others knew", [r["detectionSecondsFromKill"] for r in lost]),
             row("node 0 lost: of it, until all ranks were ready (start of a new agent and worker, data, finding it)",
                 [r["respawnSeconds"] for r in lost]),
             row("node 0 lost: of it, forming the group", [r["formingSeconds"] for r in lost]),
             row("node 0 lost: of it, state from a live rank", [r["syncSeconds"] for r in lost]),
             row("node 0 lost: steps redone", [float(r["redoneSteps"]) for r in lost], ""),
             row("a node silent: SIGSTOP of its agent until the others were cut (the heartbeat timeout is "
                 f"{HEARTBEAT_TIMEOUT:g} s)",
                 [cut for cut, _ in silent]),
             row("a node silent: SIGCONT to the next step", [step for _, step in silent]),
             row(f"a worker silent: SIGSTOP until its group was cut (the heartbeat timeout is {HEARTBEAT_TIMEOUT:g} s)",
                 stopped),
             row("a node joins: end of the last step without it to the first with it", [r["totalSeconds"] for r in joins]),
             row("a node joins: steps redone", [float(r["redoneSteps"]) for r in joins], ""), ""]
    verdicts = Verdicts()
    verdicts.at_most("SIGKILL of node 0's agent to the next new step: within 1 s, its start and its data included",
                     [r["secondsFromKill"] for r in lost], 1.0, "s")
    verdicts.at_most("SIGKILL of node 0's agent until the others knew: within 0.1 s",
                     [r["detectionSecondsFromKill"] for r in lost], 0.1, "s")
    verdicts.at_most("steps redone for a lost node 0: at most 1", [r["redoneSteps"] for r in lost], 1, "", 0)
    verdicts.at_most("a silent node is taken for lost after the heartbeat timeout, and what was on its way: within "
                     f"{HEARTBEAT_TIMEOUT + HEARTBEAT_SLACK:g} s", [cut for cut, _ in silent],
                     HEARTBEAT_TIMEOUT + HEARTBEAT_SLACK, "s")
    verdicts.at_most("a silent worker is taken for lost after the heartbeat timeout, and the next look: within "
                     f"{HEARTBEAT_TIMEOUT + HEARTBEAT_SLACK:g} s", stopped, HEARTBEAT_TIMEOUT + HEARTBEAT_SLACK, "s")
    verdicts.at_most("steps redone for a node that joins: at most 1", [r["redoneSteps"] for r in joins], 1, "", 0)
    write_report("\n".join(lines + verdicts.table()), "nodes")
    verdicts.end()


if __name__ == "__main__":
    main()
