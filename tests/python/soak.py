"""Random kills for a long time: nothing leaks, nothing is lost, nothing is left behind.

`python soak.py SECONDS` (make soak) hurts a job for that long, and lets an undisturbed one come as far, which takes
about half as long again; test_soak.py is the short form. Every few seconds a worker is killed or stopped, or an agent is
killed; after each recovery the processes that lived through it are looked at, the launcher among them, which lives through
all. What must hold:
  - each recovery ends, and redoes at most one step, whoever was hurt: somebody who holds the state is always left;
  - descriptors, sockets, memfds and threads of the survivors are the same as after the first recoveries;
  - their memory does not grow from one half of the run to the other by more than SLACK_KIB of their kind, nor, where
    there were enough looks to tell it from noise, by more than SLOPE_KIB with each recovery;
  - in the end every step is in metrics.jsonl once, with the loss that an undisturbed run has, bit for bit; the job stops
    with 143 and leaves no process, and no socket in its folder.
"""
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from programs import bin_folder, clean_environment, program, write_interactions
from jobs import Job, is_alive, max_step, sasrec_flags, wait_until
from runs import losses

# The launcher and the agents hold about 1 MiB of their own and link no torch: theirs would drown in a worker's slack. An
# agent's lists of the newest failures and recoveries are full after ten recoveries. In a worker c10d's flight recorder
# fills with each collective, up to 2 MiB in the first thousand steps.
SLACK_KIB = {"launcher": 256, "agent": 512, "worker": 8 * 1024}
SLOPE_KIB = {"launcher": 2, "agent": 16, "worker": 256}  # per recovery
LOOKS_FOR_A_SLOPE = 100  # of one kind of process: the long form has them
SETTLED_AFTER = 3  # recoveries; allocators and thread pools have their size by then
REDONE_MAX = 1
# What a group of four holds: a connection to each peer, and the thread that serves them with its epoll. One that Gloo
# does not let a worker out of (dist/abandonable_backend) stays until the collective's timeout, with a thread that waits;
# and no longer.
OF_A_GROUP = {"descriptors": 4, "sockets": 3, "threads": 2, "memfds": 0}
COLLECTIVE_TIMEOUT_SECONDS = 60
GIVEN_UP_FOR_SECONDS = COLLECTIVE_TIMEOUT_SECONDS + 15
STEPS_BETWEEN = (20, 60)  # from one recovery to the next wound


def figures(pid):
    """What could leak, of a process that lives; None when it has gone meanwhile."""
    here = pathlib.Path(f"/proc/{pid}")
    try:
        links = [os.readlink(fd) for fd in (here / "fd").iterdir()]
        status = (here / "status").read_text()
        return {"is_writer": any(link.endswith("/metrics.jsonl") for link in links),
                "descriptors": len(links), "sockets": sum(link.startswith("socket:") for link in links),
                "memfds": sum(link.startswith("/memfd:") for link in links),
                "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
                # A program's own pages come in when its code first runs: no growth.
                "own_kib": sum(int(re.search(rf"{part}:\s+(\d+)", status)[1]) for part in ("RssAnon", "RssShmem"))}
    except (FileNotFoundError, ProcessLookupError, TypeError):  # TypeError: a zombie has no memory
        return None


def hurt(job, draw):
    """What was done, in a word and in full."""
    kind = draw.choices(["kill-rank", "stop-rank", "kill-two", "kill-agent"], [6, 1, 2, 1])[0]
    workers, agents = job.all_workers(), job.agents()
    if kind == "kill-agent":
        node = draw.choice(sorted(agents))
        os.kill(agents[node], signal.SIGKILL)
        return kind, f"{kind} {node}"
    ranks = draw.sample(sorted(workers), 2 if kind == "kill-two" else 1)
    for rank in ranks:
        os.kill(workers[rank], signal.SIGSTOP if kind == "stop-rank" else signal.SIGKILL)
    return kind, f"{kind} {ranks}"


def is_over(status, before):
    """All train again in a new generation, and node 0, a new one too, has counted what that cost."""
    if status["phase"] != "Running" or status["worldSize"] != 4 or status["generation"] <= before["generation"]:
        return False
    return bool(status["recoveries"]) and status["recoveries"][-1]["generation"] == status["generation"]


def steps_done_again(folder, furthest, since):
    """Steps up to `furthest`, which were committed before `since` (Unix seconds), whose lines are of later: seen from
    outside, since a new node 0 knows nothing of what was redone for its own coming."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    again = 0
    for line in reversed([line for line in lines if line.endswith("\n")]):
        record = json.loads(line)
        if record["time"] <= since:
            break
        again += "loss" in record and record["step"] <= furthest
    return again


def growth_per_recovery(histories):
    """KiB: the slope of a process's own memory over recoveries, with a level of its own for each process (least squares)."""
    covariance = variance = 0.0
    for history in histories:
        sizes = [found["own_kib"] for found in history]
        middle, mean = (len(sizes) - 1) / 2, sum(sizes) / len(sizes)
        covariance += sum((number - middle) * (size - mean) for number, size in enumerate(sizes))
        variance += sum((number - middle) ** 2 for number in range(len(sizes)))
    return covariance / variance if variance else 0.0


def check_growth(lived, groups_given_up):
    """lived: (kind, pid, …) → figures after each recovery. What was found, in words."""
    told = [f"{groups_given_up} groups given up"]
    for kind in SLACK_KIB:
        settled = {who: history[SETTLED_AFTER:] for who, history in lived.items() if who[0] == kind}
        if not settled:
            continue  # the short form may have hurt them all
        most = 0
        for who, history in settled.items():
            for what, spare in [("descriptors", 2), ("sockets", 2), ("threads", 2), ("memfds", 0)]:
                # Without what groups that were given up hold still.
                counts = [found[what] - OF_A_GROUP[what] * found["given_up"] for found in history]
                # A connection may be on its way out at the moment of a look.
                assert counts[-1] <= counts[0] + spare, (who, what, history)
            sizes = [found["own_kib"] for found in history]
            middle = len(sizes) // 2
            growth = max(sizes[middle:]) - max(sizes[:middle])
            assert growth < SLACK_KIB[kind], (who, sizes)
            most = max(most, growth)
        looks = sum(map(len, settled.values()))
        slope = growth_per_recovery(settled.values())
        assert looks < LOOKS_FOR_A_SLOPE or slope < SLOPE_KIB[kind], (kind, slope, looks)
        told.append(f"{len(settled)} of {kind} ({looks} looks): at most {most} KiB, {slope:.1f} KiB per recovery")
    return "; ".join(told)


def note_groups_given_up(given_up, output, now):
    # The line is of AbandonableBackend (runner/dist).
    for pid, count in collections.Counter(map(int, re.findall(r"worker \(pid (\d+)\): abandoned", output))).items():
        known = given_up.setdefault(pid, [])
        known += [now] * (count - len(known))


def left_of(session, folder):
    """Processes of the job that are alive: of its session, or with its folder on their command line."""
    left = []
    for here in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (here / "stat").read_text().rsplit(")", 1)[1].split()
            words = (here / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        is_ours = int(fields[3]) == session or str(folder).encode() in words
        if is_ours and int(here.name) != os.getpid() and is_alive(int(here.name)):
            left.append(f"{here.name}: {words.decode(errors='replace')}")
    return left


def check_losses(dataset, found, folder):
    """Every step's loss is that of a run that nothing happened to. It may end where the other one was stopped: neither
    the constant learning rate nor the order of the samples knows how long a run is."""
    reference = folder / "undisturbed"
    done = subprocess.run([str(word) for word in [
        program(bin_folder() / "lockstep"), "run", "sasrec", "--nproc", 4, "--status_port", 0,
        "--train_dir", reference, *sasrec_flags(dataset, max(found), "--checkpoint_every", "0")]],
        env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    expected = losses(reference)
    assert expected.keys() == found.keys()
    wrong = [step for step in sorted(found) if found[step] != expected[step]]
    assert not wrong, f"{len(wrong)} losses differ from the undisturbed run's, the first one at step {wrong[0]}"


def soak(folder, seconds, seed=1, say=print):
    folder = pathlib.Path(folder)
    dataset = write_interactions(folder / "small.txt")
    job = Job(program(bin_folder() / "lockstep"), dataset, folder / "run", folder, "--heartbeat_timeout_seconds", "5",
              "--collective_timeout_seconds", COLLECTIVE_TIMEOUT_SECONDS, "--checkpoint_every", "20", steps=10_000_000)
    try:
        recoveries = hurt_again_and_again(job, folder, seconds, random.Random(seed), say)
    finally:
        if job.process.poll() is None:
            job.signal(signal.SIGKILL)
            job.end()
    # A process that was told to end needs a moment longer than the one that told it.
    wait_until(lambda: not left_of(job.process.pid, folder / "run"), "end of the job's last processes", timeout=60)
    assert [path.name for path in (folder / "run").glob("*.sock")] == []
    found = losses(folder / "run")
    assert sorted(found) == list(range(1, max(found) + 1))
    check_losses(dataset, found, folder)
    say(f"{max(found)} steps, each with the loss of an undisturbed run; no process and no socket is left", flush=True)
    return recoveries


def hurt_again_and_again(job, folder, seconds, draw, say):
    """How many recoveries there were; in the end the job is stopped."""
    job.wait_for_progress(20)
    began = time.monotonic()
    # (kind, pid, has it the run's files open?) → [figures after each recovery that it lived through]. A worker begins anew
    # when it first becomes rank 0, as it does when node 0 is away for long: it reads and opens the run's files, and starts
    # the thread that writes checkpoints.
    seen = {}
    given_up = {}  # pid → [when it was first seen to have given up a group, for each of them]
    recoveries = 0

    def followed():
        return {who: history for who, history in seen.items() if len(history) > SETTLED_AFTER + 2}
    while time.monotonic() - began < seconds or not followed():
        assert time.monotonic() - began < 5 * seconds + 60, "nobody lives long enough to be followed"
        job.all_workers()
        before = job.wait_for_status(lambda s: True, "a status")
        furthest, hurt_at, hurt_at_unix = max_step(before), time.monotonic(), time.time()
        kind, done = hurt(job, draw)
        after = job.wait_for_status(lambda s, old=before: is_over(s, old), f"recovery from: {done}")
        recoveries += 1
        again = steps_done_again(folder / "run", furthest, hurt_at_unix)
        last = after["recoveries"][-1]
        again = max(again, last["redoneSteps"])
        say(f"{time.monotonic() - began:7.1f} s  {done:24}  going on after {last['totalSeconds']:6.3f} s, {again} redone",
            flush=True)
        assert again <= REDONE_MAX, (done, last)
        job.wait_for_progress(max_step(after) + draw.randint(*STEPS_BETWEEN))
        lives = [("launcher", job.process.pid), *(("agent", pid) for pid in job.agents().values()),
                 *(("worker", pid) for pid in job.workers().values())]
        now = time.monotonic()
        note_groups_given_up(given_up, job.output(), now)
        for who in lives:
            if (found := figures(who[1])) is not None:
                found["given_up"] = sum(now - since < GIVEN_UP_FOR_SECONDS for since in given_up.get(who[1], []))
                seen.setdefault((*who, found.pop("is_writer")), []).append(found)
    told = check_growth(followed(), sum(map(len, given_up.values())))
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()[-3000:]
    say(f"{recoveries} recoveries in {time.monotonic() - began:.0f} s; processes followed through more than "
        f"{SETTLED_AFTER + 2} of them, growth: {told}", flush=True)
    return recoveries


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as base:
        soak(base, float(sys.argv[1] if len(sys.argv) > 1 else 1800))
