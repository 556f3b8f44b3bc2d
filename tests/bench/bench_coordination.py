#!/usr/bin/env python3
"""What the agent costs while nothing fails: system calls and instructions per step, and steps per second beside torchrun.

System calls: one rank, so that none belongs to a collective; strace -f sees all threads for some seconds (log_every and
checkpoints out of the way), and those of the training thread and of the link's thread are counted apart. The training
thread must make none that waits: this ends with 1 when it does. Steps per second: 2 ranks of the same lockstep-worker,
under the agent and under torchrun, in turn; the ratio of each pair. Instructions: callgrind over what a step does for
its agent (tests/tools/coordination_cost.cc). The small all-reduce of a step's flags, which any launcher pays for: alone,
by tests/tools/flags_cost.cc. A big job's connections on one coordinator, with all requests of a forming, Gloo's one by one (as
it asks any store) and 128 keys at a time (as it asks ours): tests/tools/coordinator_load.cc, the two in turn. Writes its part of
docs/benchmarks.md. Needs strace and valgrind.
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from bench_recovery import BIN, DATA, ROOT, free_port, write_report  # noqa: E402
from jobs import environment_of, max_step, read_status, workers_of  # noqa: E402
from runs import Running  # noqa: E402
from verdicts import Verdicts  # noqa: E402

TOOLS = pathlib.Path(os.environ.get("LOCKSTEP_TEST_TOOLS", ROOT / "build/dev/tools"))
SECONDS = 6
STEPS = 1500
WARM_STEPS = 300
MODEL = ["--dataset", DATA, "--maxlen", 20, "--hidden_units", 16, "--batch_size", 64, "--eval_every", 0,
         "--checkpoint_every", 0, "--num_epochs", 1_000_000, "--threads", 1,
         # The training thread fetches its batches itself: handing them over between threads is no cost of the agent.
         "--num_workers", 0]


# Calls in which a thread waits for another thread or process: a futex only if it is waited for, a read only if it is
# not of a file.
WAITS = {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "recvfrom", "recvmsg",
         "recvmmsg", "accept", "accept4", "connect", "nanosleep", "clock_nanosleep", "wait4", "waitid", "pause",
         "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall", "flock"}
# A message to the agent is a store into the socket's buffer; one that takes this long has waited for room in it.
SEND_SECONDS_MAX = 0.1
CALL = re.compile(r"^(\d+) +(\w+)\((.*)$")  # the first half of a call that strace shows in two
SENT = re.compile(r"^(\d+) +(?:<\.\.\. )?(?:sendto|sendmsg|write)\b.*<(\d+\.\d+)>$")


def waits(call, arguments):
    if call == "futex":
        return "FUTEX_WAIT" in arguments or "FUTEX_LOCK" in arguments
    if call in ("read", "readv"):
        return not re.match(r"\d+</", arguments)  # strace -y: a file has a path there
    return call in WAITS


class Counted:
    """What strace -f -y -T has written about a worker: pid's own thread trains, the one that reads from descriptor
    `link` is the link's."""

    def __init__(self, text, pid, link):
        calls = [(int(m[1]), m[2], m[3]) for line in text.splitlines() if (m := CALL.match(line))]
        from_agent = re.compile(rf"{link}<|\[{{fd={link}<")
        readers = {thread for thread, call, arguments in calls
                   if call in ("read", "poll", "restart_syscall") and from_agent.match(arguments)} - {pid}
        self.training = collections.Counter(call for thread, call, _ in calls if thread == pid)
        self.link = collections.Counter(call for thread, call, _ in calls if thread in readers)
        self.others = collections.Counter(call for thread, call, _ in calls if thread not in {pid, *readers})
        self.waiting = [f"{call}({arguments}" for thread, call, arguments in calls
                        if thread == pid and waits(call, arguments)]
        self.longest_send = max((float(m[2]) for line in text.splitlines()
                                 if (m := SENT.match(line)) and int(m[1]) == pid), default=0.0)


def named(calls):
    return ", ".join(f"{name} {count}" for name, count in calls.most_common()) or "none"


def system_calls(folder):
    """(steps, what was counted) of a rank that has an agent."""
    port = free_port()
    run = Running([BIN / "lockstep", "run", "sasrec", *MODEL, "--train_dir", folder / "run", "--nproc", 1,
                   "--status_port", port, "--log_every", 1_000_000], folder)
    try:
        run.wait_for(lambda: (s := read_status(port)) and max_step(s) > WARM_STEPS, "steps")
        pid = workers_of(run.process.pid)[0]
        link = int(environment_of(pid)["LOCKSTEP_AGENT_FD"])
        before = max_step(read_status(port))
        subprocess.run(["timeout", "-s", "INT", str(SECONDS), "strace", "-f", "-y", "-T", "-o", folder / "calls", "-p",
                        str(pid)], capture_output=True, text=True, check=False)
        steps = max_step(read_status(port)) - before
    finally:
        run.signal(9)
        run.end()
    counted = Counted((folder / "calls").read_text(), pid, link)
    # If strace saw nothing, nothing would be proven: the training thread must read its memory's size, the link's thread
    # must wait for its agent.
    assert steps > 0 and counted.training and counted.link, (steps, counted.training, counted.link)
    return steps, counted


def instructions_per_step(folder):
    """Of the calls that a step makes for its agent: beats, phases, the question whether all leave together."""
    def count(steps):
        out = folder / f"callgrind.{steps}"
        subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
                        "--toggle-collect=lockstep::steps_for_the_agent*", TOOLS / "coordination_cost", str(steps)],
                       check=True, capture_output=True, text=True)
        return int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.M).group(1))
    few, many = 1000, 2000
    return (count(many) - count(few)) / (many - few)


def steps_per_second(command, folder, **environment):
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                   env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **environment})
    times = {record["step"]: record["time"] for record in
             map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "loss" in record}
    return (STEPS - WARM_STEPS) / (times[STEPS] - times[WARM_STEPS])


def pair(folder):
    flags = [*MODEL, "--max_steps", STEPS, "--log_every", WARM_STEPS]
    ours = steps_per_second([BIN / "lockstep", "run", "sasrec", *flags, "--nproc", 2, "--status_port", 0, "--train_dir",
                             folder / "agent"], folder / "agent")
    theirs = steps_per_second([sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
                               "--nproc_per_node=2", BIN / "lockstep-worker", "sasrec", *flags, "--train_dir",
                               folder / "torchrun"], folder / "torchrun")
    return ours, theirs


def microseconds_of_flags(ranks, calls=4000):
    return json.loads(subprocess.run([TOOLS / "flags_cost", str(ranks), str(calls)], check=True, capture_output=True,
                                     text=True).stdout)


def load(nodes, workers, asks):
    found = json.loads(subprocess.run([TOOLS / "coordinator_load", str(nodes), str(workers), asks], check=True,
                                      capture_output=True, text=True).stdout)
    print(asks, found, flush=True)
    return found


def load_table(times):
    """Rows: a forming group's store requests over real connections."""
    rows = []
    for nodes, workers in [(16, 2), (64, 2), (256, 2)]:
        pairs = [(load(nodes, workers, "pairs"), load(nodes, workers, "at_once")) for _ in range(times)]
        ratio = statistics.median(ours["store_seconds"] / theirs["store_seconds"] for theirs, ours in pairs)
        rows.append(f"| {nodes} x {workers} | {pairs[0][0]['requests']} | "
                    f"{statistics.median(p['store_seconds'] for p, _ in pairs):.3f} | {pairs[0][1]['requests']} | "
                    f"{statistics.median(o['store_seconds'] for _, o in pairs):.3f} | {ratio:.3f} |")
    big = load(1000, 8, "one_key")
    forming = load(512, 8, "at_once")
    return ["### Connections of a big job", "", "One coordinator, its nodes' connections over loopback, 2 cores for both "
            "sides; all that the ranks of a Gloo group ask the store when they form it, their meeting included.", "",
            "| nodes x ranks | requests, one by one | s | requests, 128 keys at a time | s | ratio |",
            "|---|---|---|---|---|---|", *rows, "",
            f"512 nodes x 8 ranks (4,096) form a Gloo group: {forming['store_seconds']:.2f} s, {forming['requests']} requests "
            "reach the coordinator, because the ranks of a node share what they ask. (The values are not decoded on the "
            "nodes' side, which in truth is 512 machines.)",
            f"1,000 nodes x 8 ranks that wait for one key, as NCCL's do: greeted in {big['greet_seconds']:.2f} s one after "
            f"the other, joined and placed in {big['place_seconds']:.3f} s, answered in {big['store_seconds']:.2f} s."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--loads", type=int, default=3, help="times that the coordinator is loaded in each way")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps, counted = system_calls(pathlib.Path(folder))
        instructions = instructions_per_step(pathlib.Path(folder))
        print(f"{sum(counted.training.values())} system calls in {steps} steps, {len(counted.waiting)} that wait: "
              f"{counted.waiting[:10]}, {instructions:.0f} instructions a step", flush=True)
    flags = {ranks: microseconds_of_flags(ranks) for ranks in (2, 4)}
    print(flags, flush=True)
    table = load_table(args.loads)
    pairs = []
    for _ in range(args.pairs):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append(pair(pathlib.Path(folder)))
            print(f"steps/s under the agent {pairs[-1][0]:.0f}, under torchrun {pairs[-1][1]:.0f}", flush=True)
    ratios = [mine / theirs for mine, theirs in pairs]
    total = sum(counted.training.values())
    verdicts = Verdicts()
    verdicts.judge("while nothing fails, no system call of the training thread that waits",
                   not counted.waiting and counted.longest_send < SEND_SECONDS_MAX,
                   f"{len(counted.waiting)} in {steps} steps; longest send {1000 * counted.longest_send:.2f} ms")
    write_report(
        f"## The agent, while nothing fails\n\n{datetime.date.today()}, {os.cpu_count()} cores. System calls of the training thread under the agent, 1 rank, {SECONDS} s: "
        f"{total} in {steps} steps, {total / max(steps, 1):.3f} per step ({named(counted.training)}): the progress message "
        f"five times a second and the memory figures in it; brk is malloc's. {len(counted.waiting) or 'None'} of them wait, which is: a "
        f"futex that is waited for, poll, select, epoll_wait, recv, a read of anything but a file, accept, connect, a sleep, "
        f"a wait for a process, and a send that takes {1000 * SEND_SECONDS_MAX:.0f} ms. Beside it the thread of the link to "
        f"the agent, which waits for it: {named(counted.link)}; other threads: {named(counted.others)}. A beat is a store to "
        f"memory: {instructions:.0f} instructions a step for beats, phases and the question whether all leave together "
        f"(callgrind).\n\n" + "\n".join(verdicts.table()) + f"\n\nApart, because it waits, under "
        f"any launcher: the all-reduce of a step's weight and flags, four numbers, back to back over loopback on "
        f"{os.cpu_count()} cores: " + ", ".join(f"{f['median']:.0f} us [{f['p10']:.0f}, {f['p90']:.0f}] with {r} ranks"
                                                for r, f in flags.items()) +
        f". In a step it runs while the forward pass does.\n\nSteps per second of 2 ranks under the agent over those under "
        f"torchrun, {len(pairs)} pairs: {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}].\n\n" +
        "\n".join(table), "coordination")
    verdicts.end()


if __name__ == "__main__":
    main()
