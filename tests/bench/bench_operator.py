#!/usr/bin/env python3
"""The operator with many jobs at once on a real control plane with KWOK nodes.  (make bench-operator)

All jobs are there before the operator starts. It is measured against the machine's own ceiling in the same run: the
same pods, made by plain HTTP from 32 threads. Writes its table into docs/benchmarks.md.
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
from control_plane import ControlPlane, kubernetes_version  # noqa: E402
from many_jobs import PODS_PER_KWOK_NODE, THREADS, run_through  # noqa: E402


def measure(jobs, nodes, timeout):
    with ControlPlane(kwok_nodes=2 * jobs * nodes // PODS_PER_KWOK_NODE + 1) as plane:
        plane.apply_base()
        figures = run_through(plane, jobs, nodes, timeout)
    print(figures, flush=True)
    return figures


def row(name, values, form="{:.0f}"):
    return "| " + " | ".join([name, *(form.format(f(values)) for f in (statistics.median, min, max))]) + " |"


def report(all_figures, nodes):
    def values(get):
        return [get(figures) for figures in all_figures]
    jobs, pods = all_figures[0].jobs, all_figures[0].pods
    return "\n".join([
        f"## Many jobs at once\n\n{jobs} TrainJobs of {nodes} nodes, all there before the operator starts; Kubernetes "
        f"{kubernetes_version()} with etcd, scheduler and KWOK on the same machine ({platform.machine()}, "
        f"{os.cpu_count()} cores), {len(all_figures)} runs, a fresh control plane for each. Ceiling: the same {pods} "
        f"pods made by {THREADS} threads of plain HTTP (Python) afterwards, nothing else.\n",
        "| | median | least | most |", "|---|---|---|---|",
        row("operator: pods made per second, from the first to the last", values(lambda f: f.pods_per_second)),
        row("ceiling: pods made per second", values(lambda f: f.ceiling_per_second)),
        row("ratio of the two", values(lambda f: f.ratio), "{:.2f}"),
        row("operator: from its start to the last pod", values(lambda f: f.pods_made_after), "{:.1f} s"),
        row("operator: from its start until all jobs are complete", values(lambda f: f.complete_after), "{:.1f} s"),
        row("operator: CPU until then", values(lambda f: f.cpu_seconds), "{:.2f} s"),
        row("operator: resident, at most", values(lambda f: f.resident_bytes / 2**20), "{:.0f} MiB"),
        row("operator: requests per pod", values(lambda f: f.requests / f.pods), "{:.1f}")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=4, help="of each job")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each wait")
    parser.add_argument("--no_report", action="store_true", help="only print")
    words = parser.parse_args()
    text = report([measure(words.jobs, words.nodes, words.timeout) for _ in range(words.runs)], words.nodes)
    if words.no_report:
        print(text)
    else:
        write_report(text, "operator")


if __name__ == "__main__":
    main()
