#!/usr/bin/env python3
"""The GPT-2 recommender beside matrix factorisation with the same loss (BPR-MF; Rendle et al., 2009) and the same width.

Each seed has a split of its own, the same on both sides, and both are ranked by the guide's test; of each run counts the
evaluation with the best valid NDCG@10, where a user's training films are no candidates (--valid_seen false). The
factorisation gets the best of a grid of rates and decays, chosen by the validation of the first seed.
  MovieLens-100K   test NDCG@10
  generated        films that nobody is trained on (cold), ranked among themselves: only their texts say anything
Prints a table with the ratios; with --write it goes into docs/benchmarks.md.
"""
import argparse
import copy
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import bench_sasrec
import gpt2rec_twin as twin
import numpy
import torch
from bench_sasrec import BIN, CACHE, ROOT, machine, say
from programs import program, tools_folder
from safetensors.torch import load_file
from verdicts import Verdicts

RATIO = (0.8, 0.1, 0.1)
WIDTH = 64
BATCH = 1024
RATES = (3e-3, 1e-3, 3e-4)
DECAYS = (1e-2, 1e-3, 1e-4)
EVAL_EVERY = 4
# The best settings found for each data set (by hand; seed 1).
OURS = {"movielens": {"--use_attention": "false", "--lr": 0.002, "--lr_schedule": "constant", "--dropout": 0.3,
                      "--weight_decay": 5e-5, "--batch_size": 256, "--ema_decay": 0.9995, "--num_negatives": 8},
        "generated": {"--lr": 0.001, "--dropout": 0.4, "--batch_size": BATCH}}


class Films:
    """Ratings as (user, film), split as ours are."""

    def __init__(self, pairs, kept_back, num_users, num_films, seed):
        self.num_users, self.num_films = num_users, num_films
        order = [pairs[row] for row in twin.epoch_order(seed, -1, len(pairs))]
        others = [pair for pair in order if not kept_back[pair[1]]]
        train_end = int(RATIO[0] * len(others))
        valid_end = train_end + int(RATIO[1] * len(others)) + 1
        self.train = others[:train_end]
        users = {user for user, _ in self.train}
        self.valid = [pair for pair in others[train_end:valid_end] if pair[0] in users]
        self.test = [pair for pair in others[valid_end:] if pair[0] in users]
        self.cold_test = [pair for pair in order if kept_back[pair[1]] and pair[0] in users]
        warm = {film for _, film in self.train + self.valid}
        self.cold = sorted({film for _, film in self.test + self.cold_test} - warm)


def movielens(seed):
    lines = (CACHE / "data/ml-100k.inter").read_text().splitlines()[1:]
    pairs = [tuple(map(int, line.split("\t")[:2])) for line in lines]
    films = 1 + max(film for _, film in pairs)
    return Films(pairs, [False] * films, 1 + max(user for user, _ in pairs), films, seed)


def generated(seed):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program(tools_folder() / "gpt2_dump"), "movies", "--out", f"{folder}/movies"], check=True)
        tensors = load_file(f"{folder}/movies")
    kept_back = [bool(value) for value in tensors["kept_back"]]
    pairs = [tuple(pair) for pair in tensors["ratings"].tolist()]
    return Films(pairs, kept_back, int(tensors["num_users"]), len(kept_back), seed)


def cold_ndcg(scores, films):
    wanted = {}
    for user, film in films.test + films.cold_test:
        if film in set(films.cold):
            wanted.setdefault(user, set()).add(films.cold.index(film))
    if not wanted:
        return None
    return numpy.mean([twin.ndcg(list(numpy.argsort(-scores[user, films.cold], kind="stable")), of_user, 10)
                       for user, of_user in wanted.items()])


def factorise(films, seed, rate, decay, epochs):
    """BPR-MF's figures of the best of its evaluations."""
    torch.manual_seed(seed)
    users = torch.nn.Embedding(films.num_users, WIDTH)
    items = torch.nn.Embedding(films.num_films, WIDTH)
    bias = torch.nn.Embedding(films.num_films, 1)
    for table in (users, items):
        torch.nn.init.normal_(table.weight, std=0.1)
    torch.nn.init.zeros_(bias.weight)
    optimizer = torch.optim.Adam([table.weight for table in (users, items, bias)], lr=rate)
    train = torch.tensor(films.train)
    seen = torch.zeros(films.num_users, films.num_films, dtype=torch.bool)
    seen[train[:, 0], train[:, 1]] = True
    warm = train[:, 1].unique()
    best = None
    for epoch in range(1, epochs + 1):
        for rows in torch.randperm(len(train)).split(BATCH):
            user, film = train[rows].T
            other = warm[torch.randint(len(warm), film.shape)]
            while (known := seen[user, other]).any():
                other[known] = warm[torch.randint(len(warm), (int(known.sum()),))]
            p, q, r = users(user), items(film), items(other)
            margin = ((p * (q - r)).sum(1) + (bias(film) - bias(other)).squeeze(1))
            penalty = (p.square().sum(1) + q.square().sum(1) + r.square().sum(1)).mean()
            loss = -torch.nn.functional.logsigmoid(margin).mean() + decay * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % EVAL_EVERY == 0:
            with torch.no_grad():
                scores = (users.weight @ items.weight.T + bias.weight.T).numpy()
            found = twin.evaluate(scores, films.train, films.valid, films.test + films.cold_test)
            found["valid_ndcg@10"] = twin.evaluate(scores, films.train, [], films.valid)["test_ndcg@10"]
            found["test_cold_ndcg@10"] = cold_ndcg(scores, films)
            if best is None or found["valid_ndcg@10"] > best["valid_ndcg@10"]:
                best = found
    return best


def ours(data, flags, seed, epochs):
    tokenizer = subprocess.run([ROOT / "scripts/get_gpt2_tokenizer"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        command = [BIN / "lockstep", "run", "gpt2rec", "--data_path", data, "--train_dir", f"{folder}/run", "--seed", seed,
                   "--num_epochs", epochs, "--batch_scope", "total", "--neg", "resample", "--valid_seen", "false",
                   "--tokenizer_path", tokenizer, *itertools.chain(*flags.items()),
                   "--eval_every", EVAL_EVERY, "--early_stopping_patience", 0, "--checkpoint_every", 0, "--nproc", 2,
                   "--status_port", 0]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        records = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    return max((record for record in records if "valid_ndcg@10" in record), key=lambda record: record["valid_ndcg@10"])


def best_of_grid(films, epochs):
    found = {}
    for rate, decay in itertools.product(RATES, DECAYS):
        found[rate, decay] = factorise(copy.copy(films), 1, rate, decay, epochs)
        say(f"  BPR-MF, rate {rate:g}, decay {decay:g}: valid NDCG@10 {found[rate, decay]['valid_ndcg@10']:.4f}")
    return max(found, key=lambda setting: found[setting]["valid_ndcg@10"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60, help="of each side")
    parser.add_argument("--only", choices=("movielens", "generated"))
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    verdicts, table = Verdicts(), []
    for name, data, make, figure, target in (
            ("movielens", CACHE / "data/ml-100k.item", movielens, "test_ndcg@10", 1.0),
            ("generated", "generated", generated, "test_cold_ndcg@10", 1.5)):
        if options.only not in (None, name):
            continue
        say(name)
        rate, decay = best_of_grid(make(1), options.epochs)
        sides = {"Lockstep gpt2rec": [], "BPR-MF": []}
        for seed in range(1, options.seeds + 1):
            sides["Lockstep gpt2rec"].append(ours(data, OURS[name], seed, options.epochs)[figure])
            sides["BPR-MF"].append(factorise(make(seed), seed, rate, decay, options.epochs)[figure])
            say(f"  seed {seed}: " + ", ".join(f"{side} {values[-1]:.4f}" for side, values in sides.items()))
        means = {side: statistics.mean(values) for side, values in sides.items()}
        for side, values in sides.items():
            setting = (f", rate {rate:g}, decay {decay:g}" if side == "BPR-MF" else
                       ", " + " ".join(f"{flag} {value}" for flag, value in OURS[name].items()))
            table.append(f"| {name}, {figure} | {side}{setting} | {means[side]:.4f} | {min(values):.4f} | {max(values):.4f} |")
        ratio = means["Lockstep gpt2rec"] / means["BPR-MF"]
        verdicts.judge(f"{name}: {figure} at least {target:g} times BPR-MF's", ratio >= target, f"{ratio:.2f}")
    text = [f"{machine()}. {options.seeds} seeds, each with a split of its own, {options.epochs} epochs, width {WIDTH}. "
            f"Lockstep: a random GPT-2 of 2x64 with GPT-2's tokenizer. BPR-MF: batch {BATCH}, Adam, the best of rates "
            f"{', '.join(f'{r:g}' for r in RATES)} and decays {', '.join(f'{d:g}' for d in DECAYS)}.", "",
            "| data, figure | side | mean | least | most |", "|---|---|---|---|---|", *table, "", *verdicts.table()]
    if options.write:
        bench_sasrec.write_part("gpt2rec accuracy", text)
    else:
        print("\n".join(text))
    verdicts.end()


if __name__ == "__main__":
    main()
