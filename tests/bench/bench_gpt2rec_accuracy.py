#!/usr/bin/env python3
"""The GPT-2 recommender beside matrix factorisation with the same loss (BPR-MF; Rendle et al., 2009) and the same width.

Each seed has a split of its own, the same on both sides, and both are ranked by the guide's test; of each run counts the
evaluation with the best valid NDCG@10, where a user's training films are no candidates (--valid_seen false); all stop early.
The factorisation runs as published, with one negative for each rating: this is the one to compare with. Where ours has
several, it also runs with our batch, negatives, their weights and the moving average of the weights. It gets the best of a
grid of rates and decays, chosen by the validation of the first seed; the grid grows until the best lies inside.
  MovieLens-100K   test NDCG@10
  generated        films that nobody is trained on (cold), ranked among themselves: only their texts say anything
Prints a table with the ratios; with --write it goes into docs/benchmarks.md.
"""
import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import gpt2rec_twin as twin
import numpy
import torch
import torch.nn.functional as F
from bench_sasrec import BIN, CACHE, machine, publish, say
from programs import fetched, program, tools_folder
from safetensors.torch import load_file
from verdicts import Verdicts

RATIO = (0.8, 0.1, 0.1)
WIDTH = 64
BATCH = 1024
# BPR-MF's, at first; the next ones are half of the least and twice the greatest.
RATES = (1.5e-3, 3e-3, 6e-3)
DECAYS = (1e-2, 2e-2, 4e-2)
EVAL_EVERY = 4  # epochs
PATIENCE = 5  # evaluations without a better one, after which a run ends
# The best settings found for each data set (by hand; seed 1).
OURS = {"movielens": {"--use_attention": "false", "--lr": 0.002, "--lr_schedule": "constant", "--dropout": 0.3,
                      "--weight_decay": 3e-4, "--batch_size": 256, "--ema_decay": 0.9995, "--num_negatives": 8},
        "generated": {"--lr": 0.001, "--dropout": 0.4, "--batch_size": BATCH}}
PUBLISHED, STRENGTHENED = "BPR-MF", "BPR-MF with our batch, negatives and averaging"


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


def factorise(films, flags, seed, rate, decay, epochs):
    """BPR-MF's figures of the best of its evaluations, and its epoch. `flags`: the batch, the number of negatives (each weighted
    by its score, as ours are) and the decay of the moving average; without them one negative and no average."""
    torch.manual_seed(seed)
    negatives, average_decay = flags.get("--num_negatives", 1), flags.get("--ema_decay", 0.0)
    users = torch.empty(films.num_users, WIDTH).normal_(std=0.1)
    items = torch.empty(films.num_films, WIDTH).normal_(std=0.1)
    bias = torch.zeros(films.num_films, 1)
    tables = [users, items, bias]
    averages = [table.clone() for table in tables]
    optimizer = torch.optim.Adam([table.requires_grad_() for table in tables], lr=rate, fused=True)
    train_users, train_films = torch.tensor(films.train).T
    seen = torch.zeros(films.num_users, films.num_films, dtype=torch.bool)
    seen[train_users, train_films] = True
    warm = train_films.unique()
    best = None
    for epoch in range(1, epochs + 1):
        others = warm[torch.randint(len(warm), (len(train_users), negatives))]
        while (known := seen[train_users[:, None], others]).any():
            others[known] = warm[torch.randint(len(warm), (int(known.sum()),))]
        pairs = torch.cat([train_films[:, None], others], 1)  # the rated film and its negatives
        for rows in torch.randperm(len(pairs)).split(flags["--batch_size"]):
            p, q = F.embedding(train_users[rows], users), F.embedding(pairs[rows], items)
            scores = (q @ p[:, :, None] + F.embedding(pairs[rows], bias)).squeeze(2)
            losses = -F.logsigmoid(scores[:, :1] - scores[:, 1:])
            weights = scores[:, 1:].detach().softmax(1)
            squares = q.square().sum(2)
            penalty = p.square().sum(1).mean() + squares[:, 0].mean() + squares[:, 1:].mean()
            optimizer.zero_grad()
            ((weights * losses).sum(1).mean() + decay * penalty).backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(averages, tables, 1 - average_decay)
        if epoch % EVAL_EVERY == 0:
            of_users, of_items, of_bias = averages
            scores = (of_users @ of_items.T + of_bias.T).numpy()
            valid = twin.evaluate(scores, films.train, [], films.valid)["test_ndcg@10"]
            if best is None or valid > best["valid_ndcg@10"]:
                best = {"valid_ndcg@10": valid, "epoch": epoch, "scores": scores}
            elif epoch >= best["epoch"] + PATIENCE * EVAL_EVERY:
                break
    scores = best.pop("scores")
    test = twin.evaluate(scores, films.train, films.valid, films.test + films.cold_test)
    return best | {"test_ndcg@10": test["test_ndcg@10"], "test_cold_ndcg@10": cold_ndcg(scores, films)}


def ours(data, flags, seed, epochs):
    tokenizer = fetched("get_gpt2_tokenizer")
    with tempfile.TemporaryDirectory() as folder:
        command = [BIN / "lockstep", "run", "gpt2rec", "--data_path", data, "--train_dir", f"{folder}/run", "--seed", seed,
                   "--num_epochs", epochs, "--batch_scope", "total", "--neg", "resample", "--valid_seen", "false",
                   "--tokenizer_path", tokenizer, *itertools.chain(*flags.items()),
                   "--eval_every", EVAL_EVERY, "--early_stopping_patience", PATIENCE, "--checkpoint_every", 0, "--nproc", 2,
                   "--status_port", 0]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        records = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    return max((record for record in records if "valid_ndcg@10" in record), key=lambda record: record["valid_ndcg@10"])


def listed(values):
    return ", ".join(f"{value:g}" for value in values)


def best_of_grid(side, films, flags, epochs):
    """The rate and decay with the best valid NDCG@10 of a grid, and the grid, which grows until they lie inside."""
    rates, decays = list(RATES), list(DECAYS)
    found = {}
    while True:
        for rate, decay in itertools.product(rates, decays):
            if (rate, decay) in found:
                continue
            ended = factorise(films, flags, 1, rate, decay, epochs)
            found[rate, decay] = ended["valid_ndcg@10"]
            say(f"  {side}, rate {rate:g}, decay {decay:g}: valid NDCG@10 {ended['valid_ndcg@10']:.4f} at epoch {ended['epoch']}")
        best = max(found, key=found.get)
        at_edge = [(values, value) for values, value in zip((rates, decays), best) if value in (values[0], values[-1])]
        if not at_edge:
            return *best, rates, decays
        for values, value in at_edge:
            values.insert(*((0, value / 2) if value == values[0] else (len(values), 2 * value)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100, help="of each side, at most")
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
        ours_flags = OURS[name]
        flags_of = {PUBLISHED: {"--batch_size": BATCH}}
        if "--num_negatives" in ours_flags:  # else both would be the same
            flags_of[STRENGTHENED] = ours_flags
        grids = {side: best_of_grid(side, make(1), flags, options.epochs) for side, flags in flags_of.items()}
        found = {"Lockstep gpt2rec": [], **{side: [] for side in flags_of}}
        for seed in range(1, options.seeds + 1):
            found["Lockstep gpt2rec"].append(ours(data, ours_flags, seed, options.epochs)[figure])
            for side, flags in flags_of.items():
                rate, decay = grids[side][:2]
                found[side].append(factorise(make(seed), flags, seed, rate, decay, options.epochs)[figure])
            say(f"  seed {seed}: " + ", ".join(f"{side} {values[-1]:.4f}" for side, values in found.items()))
        means = {side: statistics.mean(values) for side, values in found.items()}
        for side, values in found.items():
            setting = " ".join(f"{flag} {value}" for flag, value in ours_flags.items())
            if side in grids:
                rate, decay, rates, decays = grids[side]
                setting = f"rate {rate:g} of {listed(rates)}, decay {decay:g} of {listed(decays)}"
            table.append(f"| {name}, {figure} | {side}, {setting} | {means[side]:.4f} | {min(values):.4f} | {max(values):.4f} "
                         f"| {means['Lockstep gpt2rec'] / means[side]:.3f} |")
        ratio = means["Lockstep gpt2rec"] / means[PUBLISHED]
        verdicts.judge(f"{name}: {figure} at least {target:g} times that of {PUBLISHED}", ratio >= target, f"{ratio:.3f}")
    text = [f"{machine()}. {options.seeds} seeds, each with a split of its own, width {WIDTH}. All end after {PATIENCE} "
            f"evaluations, one each {EVAL_EVERY} epochs, without a better one, at the latest after {options.epochs} epochs. "
            f"Lockstep: a random GPT-2 of 2x64 with GPT-2's tokenizer. BPR-MF: Adam, batch {BATCH}, one negative.", "",
            "| data, figure | side | mean | least | most | Lockstep's as a multiple |", "|---|---|---|---|---|---|", *table, "", *verdicts.table()]
    publish("gpt2rec accuracy", text, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
