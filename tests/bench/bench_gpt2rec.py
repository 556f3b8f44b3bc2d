#!/usr/bin/env python3
"""The GPT-2 recommender: Lockstep beside the guide's way in PyTorch and beside a vectorised one (gpt2rec_ways.py).

On ratings, users and films that are drawn here, of MovieLens-1M's form and numbers of users and films:
  cached      a training step of texts that were encoded once: batch 2048, all but GPT-2
  dynamic     a training step that encodes its texts and trains the adapters: GPT-2 4x256, batch 256
  evaluation  all films ranked for a user, per user
The sides take turns; seconds are medians over their steps after the first two. Memory is the most that was resident in the
process; on a GPU the most that its allocator reserved (ours is read once a second: give --cached_steps 3000). Prints a table with the ratios; with --write it goes into docs/benchmarks.md (an idle machine!).
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_sasrec import BIN, ROOT, Run, is_our_rank, machine, publish, say
from measured import GpuMemory
from programs import fetched
from verdicts import Verdicts

# Threads of both sides spin for some microseconds before they sleep, because nothing else uses the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

TWIN = ROOT / "tests/bench/gpt2rec_ways.py"
WAYS = ("guide", "vectorised")
# Times the speed of each way.
TARGETS = {"cached": {"guide": 10.0, "vectorised": 3.0}, "dynamic": {"guide": 5.0, "vectorised": 1.5},
           "evaluation": {"guide": 20.0, "vectorised": None}}
SHAPES = {"cached": ("2x64", 2048), "dynamic": ("4x256", 256)}
WORDS = ("the of a night day love war story house city man woman king last first lost red blue dark golden river mountain "
         "dance of secret garden return star island summer winter heart dream road letter").split()
GENRES = ("Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir Horror Musical Mystery "
          "Romance Sci-Fi Thriller War Western").split()
AGES = (1, 18, 25, 35, 45, 50, 56)


def write_movielens(folder, users, films, ratings):
    """Three files as MovieLens-1M has them."""
    draw = random.Random(5)
    folder = pathlib.Path(folder)
    folder.mkdir()

    def write(name, rows):
        (folder / name).write_text("".join("::".join(map(str, row)) + "\n" for row in rows), encoding="latin-1")
    write("users.dat", [(i, draw.choice("MF"), draw.choice(AGES), draw.randrange(21), "00000") for i in range(1, users + 1)])
    write("movies.dat", [(i, " ".join(draw.choices(WORDS, k=draw.randint(1, 6))).title() + f" ({draw.randint(1920, 2000)})",
                          "|".join(sorted(draw.sample(GENRES, draw.randint(1, 3))))) for i in range(1, films + 1)])
    pairs = {(draw.randint(1, users), min(films, 1 + int(draw.expovariate(4.0 / films)))) for _ in range(ratings)}
    write("ratings.dat", [(user, film, draw.randint(1, 5), 978300000 + i) for i, (user, film) in enumerate(sorted(pairs))])
    return folder


def our_run(mode, data, tokenizer, options, *flags):
    """(metrics.jsonl as a list, MiB)"""
    config, batch = SHAPES[mode]
    with tempfile.TemporaryDirectory() as folder, GpuMemory(options.device) as gpu:
        run = Run([BIN / "lockstep", "run", "gpt2rec", "--data_path", data, "--tokenizer_path", tokenizer, "--gpt2_config",
                   config, "--batch_size", batch, "--use_cache", str(mode == "cached").lower(), "--train_dir",
                   f"{folder}/run", "--nproc", 1, "--threads", options.threads, "--device", options.device, "--status_port", gpu.port,
                   "--checkpoint_every", 0, "--log_every", 1, *flags], is_our_rank)
        records = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    return records, gpu.mib or max(kib for seen in run.resident_kib.values() for _, kib in seen) / 1024


def our_steps(mode, data, tokenizer, options):
    """(seconds of a step, MiB)"""
    records, mib = our_run(mode, data, tokenizer, options, "--max_steps", options.steps[mode], "--eval_every", 0)
    times = [record["time"] for record in records if "loss" in record]
    return statistics.median(b - a for a, b in zip(times[2:], times[3:])), mib


def our_evaluation(data, tokenizer, users, options):
    """(seconds per user, MiB): of the whole evaluation, which makes the figures of validation and test from one ranking."""
    records, mib = our_run("cached", data, tokenizer, options, "--num_epochs", 1, "--eval_every", 1)
    at = next(i for i, record in enumerate(records) if "valid_ndcg@10" in record)
    return (records[at]["time"] - records[at - 1]["time"]) / users, mib  # since the epoch's last step


def twin(way, mode, data, tokenizer, options, eval_users):
    config, batch = SHAPES[mode]
    command = [sys.executable, TWIN, "--way", way, "--mode", mode, "--data_path", data, "--tokenizer", tokenizer,
               "--gpt2_config", config, "--batch_size", batch, "--threads", options.threads, "--eval_users", eval_users, "--drawn_cache",
               "--device", options.device,
               "--steps", options.steps_of_guide[mode] if way == "guide" else options.steps[mode]]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    return found, found["gpu_peak_mib"] or found["rss_peak_mib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--films", type=int, default=3883)
    parser.add_argument("--ratings", type=int, default=200_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cached_steps", type=int, default=60)
    parser.add_argument("--dynamic_steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=tuple(TARGETS), help="one of the three")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    if options.write and options.device != "cpu":
        parser.error("--write is for the table of the CPU")
    options.steps = {"cached": options.cached_steps, "dynamic": options.dynamic_steps}
    options.steps_of_guide = {"cached": min(60, options.cached_steps), "dynamic": 4}
    tokenizer = fetched("get_gpt2_tokenizer")
    seconds, mib = {}, {}

    def add(work, side, value, memory):
        seconds.setdefault((work, side), []).append(value)
        mib.setdefault((work, side), []).append(memory)
    with tempfile.TemporaryDirectory() as folder:
        data = write_movielens(f"{folder}/ml-1m", options.users, options.films, options.ratings)
        for i in range(options.repetitions):
            for mode in SHAPES:
                if options.only and mode != options.only and not (options.only == "evaluation" and mode == "cached"):
                    continue
                say(f"{mode}: {i + 1}/{options.repetitions}")
                if options.only != "evaluation":
                    add(mode, "lockstep", *our_steps(mode, data, tokenizer, options))
                for way in WAYS:
                    is_ranked = mode == "cached" and options.only != "cached"
                    users = (20 if way == "guide" else 1000) if is_ranked else 0
                    found, their_mib = twin(way, mode, data, tokenizer, options, users)
                    add(mode, way, statistics.median(found["step_seconds"][2:]), their_mib)
                    if is_ranked:
                        add("evaluation", way, found["user_seconds"], their_mib)
                if mode == "cached" and options.only != "cached":
                    add("evaluation", "lockstep", *our_evaluation(data, tokenizer, options.users, options))

    verdicts = Verdicts()
    table = []
    for work, targets in TARGETS.items():
        if (work, "lockstep") not in seconds:
            continue
        ours = statistics.median(seconds[work, "lockstep"])
        for side in ("lockstep", *WAYS):
            theirs = statistics.median(seconds[work, side])
            table.append(f"| {work} | {side} | {1e3 * theirs:.2f} | {statistics.median(mib[work, side]):.0f} | "
                         f"{theirs / ours:.2f} |")
            if targets.get(side):
                verdicts.judge(f"{work}: at least {targets[side]:g} times as fast as {side}", theirs / ours >= targets[side],
                               f"{theirs / ours:.2f}")
    memory = "peak resident MiB" if options.device == "cpu" else "peak MiB of the GPU"
    text = [f"{machine(options.device)}. {options.threads} threads; {options.users} users, {options.films} films, medians of "
            f"{options.repetitions} runs, GOMP_SPINCOUNT={os.environ['GOMP_SPINCOUNT']}. Cached: GPT-2 {SHAPES['cached'][0]}, batch {SHAPES['cached'][1]}; dynamic: GPT-2 "
            f"{SHAPES['dynamic'][0]}, batch {SHAPES['dynamic'][1]}; evaluation: per user.", "",
            f"| work | side | ms | {memory} | times as long as Lockstep |", "|---|---|---|---|---|", *table, "",
            *verdicts.table()]
    publish("gpt2rec", text, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
