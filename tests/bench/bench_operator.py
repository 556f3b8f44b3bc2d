#!/usr/bin/env python3
"""The operator beside Indexed Jobs and raw pods, on a real control plane with KWOK nodes.  (make bench-operator)

Two shapes: one job of 1,000 pods, and 200 jobs of 4. The sides alternate on one control plane, after a round that warms it
up; what is judged are ratios of medians of one sitting, because everything shares the machine's cores. With --growth instead:
what the operator takes for up to 10,000 pods of one job and up to 2,000 jobs. Writes its tables into docs/benchmarks.md.
"""
import argparse
import os
import pathlib
import platform
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("LOCKSTEP_BIN", str(ROOT / "build/release/bin"))
sys.path += [str(ROOT / "tests/cluster"), str(ROOT / "tests/python")]
from bench_recovery import write_report  # noqa: E402
from control_plane import kubernetes_version  # noqa: E402
from many_jobs import THREADS  # noqa: E402
from operator_sides import PODS_PER_NODE, IndexedJobs, Plane, RawPods, TrainJobs, run_life, run_replacements, run_side  # noqa: E402
from verdicts import Verdicts  # noqa: E402

RAW, OURS, OURS_NONE = RawPods(), TrainJobs("Lockstep"), TrainJobs("None")
INDEXED, INDEXED_SERVICE = IndexedJobs(False), IndexedJobs(True)
SIDES = [OURS, RAW, INDEXED, INDEXED_SERVICE, OURS_NONE]
COLUMNS = [("all pods exist", "exist"), ("all Running", "running"), ("and said so", "said"), ("all Complete", "complete"),
           ("after the last pod", "after_last_done"), ("controller's CPU", "cpu")]


def measure_shape(plane, jobs, nodes, words):
    """side → its Times, one for each run."""
    found = {side: [] for side in SIDES}
    for number in range(words.runs + 1):
        for side in SIDES:
            times, sample = run_side(plane, side, jobs, nodes, words.run_seconds, words.timeout)
            if side is OURS:
                RAW.sample = sample
            print(f"{jobs} x {nodes}, {'warm-up' if number == 0 else f'run {number}'}, {side.name}: {times}", flush=True)
            if number:
                found[side].append(times)
    return found


def median(found, side, what):
    values = [getattr(times, what) for times in found[side]]
    return None if None in values else statistics.median(values)


def table(jobs, nodes, found):
    lines = [f"\n{jobs} {'job' if jobs == 1 else 'jobs'} of {nodes} pods:\n",
             "| | " + " | ".join(head for head, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for side in SIDES:
        values = [median(found, side, what) for _, what in COLUMNS]
        lines.append(f"| {side.name} | " + " | ".join("–" if v is None else f"{v:.2f} s" for v in values) + " |")
    return lines


def judge_ratio(verdicts, target, found, what, side, limit):
    ratio = median(found, OURS, what) / median(found, side, what)
    verdicts.judge(f"{target} ≤ {limit}× {side.name}", ratio <= limit, f"{ratio:.2f}×")


GROWTH = [(1, 2500), (1, 5000), (1, 10000), (500, 4), (1000, 4), (2000, 4)]


def measure_growth(verdicts, timeout):
    """The operator's CPU and memory as jobs and pods grow fourfold; one run each, on one control plane."""
    lines = [f"## The operator with 10,000 pods and with 2,000 jobs\n\nKubernetes {kubernetes_version()} and KWOK on the same "
             f"machine ({platform.machine()}, {os.cpu_count()} cores); one run each, a fresh operator in each.\n",
             "| jobs | pods of each | all pods exist | all Complete | after the last pod, at most | operator's CPU | CPU per pod | "
             "resident, at most |", "|---" * 8 + "|"]
    found = {}
    with Plane(kwok_nodes=10000 // PODS_PER_NODE + 1) as plane:
        plane.apply_base()
        for jobs, nodes in GROWTH:
            times, _ = run_side(plane, OURS, jobs, nodes, 2 if jobs > 1 else 60, timeout)
            found[jobs, nodes] = times
            print(f"{jobs} x {nodes}: {times}", flush=True)
            lines.append(f"| {jobs:,} | {nodes:,} | {times.exist:.1f} s | {times.complete:.1f} s | "
                         f"{times.after_last_done:.2f} s | {times.cpu:.1f} s | {1000 * times.cpu / (jobs * nodes):.2f} ms | "
                         f"{times.resident / 2**20:.0f} MiB |")
    for words, small, large in (("pods", GROWTH[0], GROWTH[2]), ("jobs", GROWTH[3], GROWTH[5])):
        for what in ("cpu", "resident"):
            ratio = getattr(found[large], what) / getattr(found[small], what)
            verdicts.judge(f"four times the {words}: {what} at most 4.8 times (linear)", ratio <= 4.8, f"{ratio:.1f}")
    return lines


def report(verdicts, lines, part):
    text = "\n".join(lines + ["", *verdicts.table()])
    if part is None:
        print(text)
    else:
        write_report(text, part)
    verdicts.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=1000, help="pods of the one large job")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=4, help="of each of the many jobs")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--run_seconds", type=int, default=40, help="of each pod, once it runs")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each wait")
    parser.add_argument("--no_report", action="store_true", help="only print")
    parser.add_argument("--growth", action="store_true", help="measure only how CPU and memory grow")
    words = parser.parse_args()
    verdicts = Verdicts()
    if words.growth:
        report(verdicts, measure_growth(verdicts, max(words.timeout, 3600)), None if words.no_report else "operator growth")
        return
    pods = max(words.large, words.jobs * words.nodes)
    with Plane(kwok_nodes=pods // PODS_PER_NODE + 1) as plane:
        plane.apply_base()
        large = measure_shape(plane, 1, words.large, words) if words.large else {}
        lives = [run_life(plane, words.large, words.timeout) for _ in range(words.runs)] if words.large else []
        replaced = run_replacements(plane, words.large, words.timeout) if words.large else []
        words.run_seconds = min(words.run_seconds, 2)
        many = measure_shape(plane, words.jobs, words.nodes, words) if words.jobs else {}
    lines = [
        f"## The operator beside Indexed Jobs and raw pods\n\nKubernetes {kubernetes_version()} with etcd, scheduler, "
        f"controller-manager (QPS raised) and KWOK on the same machine ({platform.machine()}, {os.cpu_count()} cores); "
        f"medians of {words.runs} alternating runs after one that warms up. Raw pods: copies of a TrainJob's, made by "
        f"{THREADS} threads of plain HTTP (Python)."]
    if large:
        resident = max(times.resident for times in large[OURS]) / 2**20
        lines += table(1, words.large, large)
        judge_ratio(verdicts, "large job: all exist", large, "exist", RAW, 1.3)
        for side in (INDEXED, INDEXED_SERVICE):
            judge_ratio(verdicts, "large job: all Running, and said so", large, "said", side, 1.05)
            judge_ratio(verdicts, "large job: operator's CPU", large, "cpu", side, 1.2)
        verdicts.at_most("large job: Complete ≤ 0.15 s after its last pod",
                         [times.after_last_done for times in large[OURS]], 0.15, "s", 2)
        verdicts.at_most("large job: a deleted pod is replaced ≤ 0.05 s after the request", replaced, 0.05, "s", 3)
        verdicts.judge("large job: resident ≤ 64 MiB", resident <= 64, f"{resident:.0f} MiB")
        for what in ("suspended", "resumed", "restarted"):
            ratio = statistics.median(getattr(life, what) / life.made for life in lives)
            verdicts.judge(f"large job: {what} ≤ 2× made", ratio <= 2, f"{ratio:.2f}×")
    if many:
        lines += table(words.jobs, words.nodes, many)
        judge_ratio(verdicts, "many jobs: all exist", many, "exist", RAW, 2)
        for side in (INDEXED, INDEXED_SERVICE):
            judge_ratio(verdicts, "many jobs: all Complete", many, "complete", side, 0.8)
        verdicts.at_most("many jobs: Complete ≤ 0.15 s after a job's last pod", [times.after_last_done for times in many[OURS]],
                         0.15, "s", 2)
    report(verdicts, lines, None if words.no_report else "operator")


if __name__ == "__main__":
    main()
