#!/usr/bin/env python3
"""Lockstep against the PyTorch twin under torchrun: bench_sasrec.py speed|accuracy  (make bench)

The two sides take turns, so that whatever else the machine does hits both. Everything is seen from outside: the wall
clock from exec, the lines a side prints, metrics.jsonl, the twin's report of its speed, /proc for memory. Writes its table into
docs/benchmarks.md, between that part's markers. speed --before FOLDER measures the programs of another build in turn, too:
whether a change made the step slower.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("LOCKSTEP_BIN", ROOT / "build/release/bin"))
CACHE = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep"))
DATA = CACHE / "data/ml-100k.inter"
TWIN = ROOT / "tests/python/sasrec_twin.py"
REPORT = ROOT / "docs/benchmarks.md"
BATCH = 128
MEMORY_SAMPLE_SECONDS = 0.02


def threads(ranks):
    return max(1, (os.cpu_count() or 1) // ranks)


def ours(ranks, folder, *flags, programs=BIN):
    return [programs / "lockstep", "run", "sasrec", "--dataset", DATA, "--train_dir", folder, "--nproc", ranks,
            "--threads", threads(ranks), "--maxlen", 50, "--status_port", 0, "--eval_every", 0, *flags]


def twin(ranks, *flags):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", TWIN,
            "--dataset", DATA, "--maxlen", 50, "--threads", threads(ranks), *flags]


class Run:
    """One process tree, run to its end: its lines and its ranks' resident memory, with seconds since exec."""

    def __init__(self, command, rank_marker):
        self.lines, self.resident_kib = [], {}  # (seconds, line); process id → [(seconds, KiB)]
        began = time.monotonic()
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=environment) as process:
            ended = threading.Event()
            watcher = threading.Thread(target=self._watch_memory, args=(process.pid, rank_marker, ended, began))
            watcher.start()
            for line in process.stdout:
                self.lines.append((time.monotonic() - began, line.rstrip("\n")))
            code = process.wait()
            ended.set()
            watcher.join()
        if code != 0:
            raise SystemExit(f"exit code {code} from: {' '.join(map(str, command))}\n"
                             + "\n".join(line for _, line in self.lines[-30:]))

    def _watch_memory(self, root, marker, ended, began):
        while not ended.wait(MEMORY_SAMPLE_SECONDS):
            for pid in descendants(root):
                try:
                    arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
                    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                except OSError:
                    continue
                resident = re.search(r"VmRSS:\s+(\d+) kB", status)
                if resident and marker(arguments):
                    self.resident_kib.setdefault(pid, []).append((time.monotonic() - began, int(resident.group(1))))

    def seconds_until(self, pattern):
        for seconds, line in self.lines:
            if re.search(pattern, line):
                return seconds
        raise SystemExit(f"no line with '{pattern}' in:\n" + "\n".join(line for _, line in self.lines))

    def mib_per_rank(self, after):
        """While training: the median of what was seen after so many seconds, a mean over the ranks."""
        medians = [statistics.median(kib for seconds, kib in seen if seconds >= after)
                   for seen in self.resident_kib.values()]
        return statistics.mean(medians) / 1024


def descendants(root):
    """Process ids below `root`, itself included."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found, grew = {root}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return found


def is_our_rank(arguments):
    return pathlib.Path(arguments[0]).name == "lockstep-worker"


def is_twin_rank(arguments):
    return str(TWIN) in arguments and "torch.distributed.run" not in arguments


def run_ours(ranks, *flags, programs=BIN):
    """(the run, metrics.jsonl as a list)"""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(ours(ranks, f"{folder}/run", *flags, programs=programs), is_our_rank)
        records = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    return run, records


def run_twin(ranks, *flags):
    """(the run, its report)"""
    run = Run(twin(ranks, *flags), is_twin_rank)
    report = next(json.loads(line) for _, line in reversed(run.lines) if line.startswith("{"))
    return run, report


def steps_of(records):
    return [record for record in records if "loss" in record]


def our_rate(records, users):
    """Samples per second after the first step, as the twin counts its own."""
    steps = steps_of(records)
    per_epoch = -(-users // BATCH)
    first, last = steps[0], steps[-1]
    epochs = last["step"] / per_epoch
    return (epochs * users - min(BATCH, users)) / (last["time"] - first["time"])


def stall(records, every):
    """(seconds that the training loop lost per checkpoint, seconds per step): steps that followed one against the rest."""
    steps = steps_of(records)
    gaps = {b["step"]: b["time"] - a["time"] for a, b in zip(steps, steps[1:]) if b["step"] == a["step"] + 1}
    # A step's line is written up to two steps after it (the fixed lag): the loss shows in one of the next three.
    near = [[gaps[s] for s in range(k, k + 4) if s in gaps] for k in range(every, max(gaps), every)]
    usual = statistics.median(gaps.values())
    return statistics.median(sum(group) - usual * len(group) for group in near), usual


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def row(name, our_values, twin_values, digits, target):
    ratio = statistics.median(a / b for a, b in zip(our_values, twin_values))
    return f"| {name} | {spread(our_values, digits)} | {spread(twin_values, digits)} | {ratio:.3f} | {target(ratio)} |"


def at_most(limit):
    return lambda ratio: f"≤ {limit:g}: {'met' if ratio <= limit else 'missed'}"


def no_target(_):
    return "–"


def machine(device="cpu"):
    gpu = "no GPU used"
    if device == "cuda":
        import torch  # not every benchmark needs it
        gpu = torch.cuda.get_device_name()
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return (f"{datetime.date.today().isoformat()}, {os.cpu_count()} cores "
            f"({model.group(1) if model else platform.machine()}), {gpu}")


def publish(name, lines, write=True):
    """Prints the lines. With `write`, they also replace the part `name` of docs/benchmarks.md."""
    if write:
        text = REPORT.read_text(encoding="utf-8")
        begin = re.search(rf"<!-- {name}:.*-->\n", text)
        end = text.index(f"<!-- /{name} -->")
        REPORT.write_text(text[:begin.end()] + "\n" + "\n".join(lines) + "\n\n" + text[end:], encoding="utf-8")
    print("\n".join(lines))


def say(text):
    print(text, file=sys.stderr, flush=True)


def measure_start(ranks, repetitions):
    starts, memory = ([], []), ([], [])
    run_ours(ranks, "--max_steps", 1)  # once each, to fill the page cache
    run_twin(ranks, "--max_steps", 1, "--no_evaluation")
    for i in range(repetitions):
        say(f"start, {ranks} ranks: {i + 1}/{repetitions}")
        run, _ = run_ours(ranks, "--max_steps", 200, "--num_epochs", 200)
        starts[0].append(run.seconds_until("first step done"))
        memory[0].append(run.mib_per_rank(after=starts[0][-1]))
        run, _ = run_twin(ranks, "--max_steps", 200, "--num_epochs", 200, "--no_evaluation", "--print_losses")
        starts[1].append(run.seconds_until("^step 0 loss"))
        memory[1].append(run.mib_per_rank(after=starts[1][-1]))
    return starts, memory


def measure_rate(ranks, options):
    """Samples per second: ours, the twin's, those of the programs in --before."""
    rates = ([], [], [])
    flags = ("--num_epochs", options.epochs, "--checkpoint_every", 0)
    for i in range(options.repetitions):
        say(f"samples/s, {ranks} ranks: {i + 1}/{options.repetitions}")
        _, report = run_twin(ranks, "--num_epochs", options.epochs, "--no_evaluation")
        rates[1].append(report["samples_per_second"])
        for rate, programs in ((rates[0], BIN), (rates[2], options.before)):
            if programs:
                rate.append(our_rate(run_ours(ranks, *flags, programs=programs)[1], report["users"]))
    return rates


def before_rows(ranks, rates):
    if not rates[2]:
        return []
    return [row(f"samples/s, {ranks} rank{'s' * (ranks > 1)}, beside an earlier build (--before)", rates[0], rates[2], 0,
                lambda ratio: f"≥ 0.98: {'met' if ratio >= 0.98 else 'missed'}")]


def speed(options):
    starts, memory = measure_start(2, options.repetitions)
    rates = {ranks: measure_rate(ranks, options) for ranks in (1, 2)}
    stalls = []
    for i in range(options.repetitions):
        say(f"checkpoint stall: {i + 1}/{options.repetitions}")
        _, records = run_ours(2, "--max_steps", 1000, "--num_epochs", 1000, "--checkpoint_every", 100, "--log_every", 1)
        stalls.append(stall(records, 100))
    share = [100 * lost / (100 * step) for lost, step in stalls]
    publish("speed", [
        f"{machine()}. {options.repetitions} repetitions.", "",
        "| | Lockstep | PyTorch, torchrun | ratio | target |", "|---|---|---|---|---|",
        row("seconds from exec to the first step done, 2 ranks", *starts, 2, at_most(0.25)),
        row("resident MiB per rank, 2 ranks", *memory, 0, at_most(0.5)),
        row("samples/s, 1 rank", *rates[1][:2], 0, no_target),
        row("samples/s, 2 ranks", *rates[2][:2], 0, no_target),
        *before_rows(1, rates[1]), *before_rows(2, rates[2]), "",
        f"A checkpoint every 100 steps, 2 ranks: the loop loses {spread([1e3 * lost for lost, _ in stalls], 2)} ms per "
        f"checkpoint, {spread(share, 2)} % of the time of those 100 steps (target: under 1 %: "
        f"{'met' if statistics.median(share) < 1 else 'missed'}).", "",
        "What the figures contain: *exec to first step*: the launcher (`lockstep run`, torchrun), loading programs and "
        "data, forming the group, one step. *Resident*: VmRSS of each rank's process while it trains (median over 200 "
        "steps), shared libraries' pages included on both sides. *Samples/s*: training alone after the first step, "
        f"{options.epochs} epochs, no evaluation, no checkpoint. Each rank has cores/ranks threads on both sides."])


def accuracy(options):
    names = ("test_ndcg@10", "test_hr@10")
    lines = [f"{machine()}. {options.seeds} seeds, {options.accuracy_epochs} epochs, dropout 0.2, 2 ranks; mean [min, "
             "max]; 100 negatives.", "", "| | Lockstep | PyTorch twin | difference | allowed | |", "|---|---|---|---|---|---|"]
    agree = True
    for variant in ("sasrec", "tisasrec"):
        results = {name: ([], []) for name in names}
        for seed in range(1, options.seeds + 1):
            say(f"accuracy of {variant}: seed {seed} of {options.seeds}")
            flags = ("--variant", variant, "--num_epochs", options.accuracy_epochs, "--dropout_rate", 0.2, "--seed", seed)
            our_metrics = [record for record in run_ours(2, *flags)[1] if "test_ndcg@10" in record][-1]
            twin_metrics = run_twin(2, *flags)[1]["metrics"]
            for name in names:
                results[name][0].append(our_metrics[name])
                results[name][1].append(twin_metrics[name])
        for name, (mine, other) in results.items():
            difference = abs(statistics.mean(mine) - statistics.mean(other))
            allowed = max(max(mine) - min(mine), max(other) - min(other))
            agree &= difference <= allowed
            cells = [f"{statistics.mean(v):.4f} [{min(v):.4f}, {max(v):.4f}]" for v in (mine, other)]
            lines.append(f"| {variant} {name} | {cells[0]} | {cells[1]} | {difference:.4f} | {allowed:.4f} | "
                         f"{'agree' if difference <= allowed else 'DIFFER'} |")
    publish("accuracy", lines + ["", "Allowed: the larger of the two sides' ranges over the seeds."])
    if not agree:
        raise SystemExit("the two sides' metrics differ by more than their seeds do")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "accuracy"))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40, help="of each samples/s run")
    parser.add_argument("--before", type=pathlib.Path, help="folder of the programs of another build")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--accuracy_epochs", type=int, default=60)
    options = parser.parse_args()
    if not DATA.exists():
        raise SystemExit(f"{DATA} is missing: run scripts/get_ml100k")
    {"speed": speed, "accuracy": accuracy}[options.part](options)


if __name__ == "__main__":
    main()
