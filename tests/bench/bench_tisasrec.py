#!/usr/bin/env python3
"""A training step of TiSASRec: Lockstep beside its PyTorch twin and beside the way of the public implementation.

Three sides, each in a process of its own and in turn, one rank with all cores, MovieLens-100K's size:
  lockstep   bucketed time attention
  twin       tests/python/tisasrec_twin.py: a row of the time tables for each pair of positions, [B, T, T, D]; relations as
             tensors
  public     the public implementation's way: the same gathers, heads copied apart; the relation matrix of each sample by
             loops in Python, which that implementation keeps in a cache: what the loops take is printed beside it

Seconds are the median of the steps after the first two; memory is the most that was resident. Prints a table; with --write it
goes into docs/benchmarks.md (an idle machine!).
"""
import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from bench_sasrec import BIN, DATA, Run, is_our_rank, machine, publish, say

ITEMS, SPAN = 1349, 256  # of MovieLens-100K after --min_count 5; --time_span's default
WARM_UP = 2
# Rows of a time table for each pair of positions that a side without buckets holds at once, at the least.
PAIR_TENSORS = 12
TARGETS = {"twin": 3.0, "public": 5.0}
MEMORY_TARGET = 0.2


def relation_matrix(times, span):
    """By loops, as the public implementation makes it."""
    matrix = [[0] * len(times) for _ in times]
    for i, first in enumerate(times):
        for j, second in enumerate(times):
            distance = abs(first - second)
            matrix[i][j] = span if distance > span else distance
    return matrix


def public_model(maxlen):
    """The twin with the public implementation's attention: heads are copied one below the other into the batch."""
    import torch
    from tisasrec_twin import TiSASRec, TimeAwareAttention

    class HeadsInTheBatch(TimeAwareAttention):
        def forward(self, queries, memory, abs_k, abs_v, time_k, time_v, causal_mask):
            def apart(x):
                return torch.cat(x.split(x.size(-1) // self.num_heads, dim=-1), dim=0)
            q, k, v = apart(self.Q_w(queries)), apart(self.K_w(memory)), apart(self.V_w(memory))
            scores = q @ k.transpose(1, 2) + q @ apart(abs_k).transpose(1, 2)
            scores = scores + (apart(time_k) @ q.unsqueeze(-1)).squeeze(-1)
            scores = scores / q.size(-1) ** 0.5
            mask = causal_mask.unsqueeze(0).expand(len(scores), -1, -1)
            attention = self.dropout(torch.where(mask, torch.full_like(scores, -2**32 + 1), scores).softmax(-1))
            out = attention @ v + attention @ apart(abs_v)
            out = out + (attention.unsqueeze(2) @ apart(time_v)).reshape(out.shape)
            return torch.cat(out.split(len(queries), dim=0), dim=2)

    class Public(TiSASRec):
        def __init__(self):
            super().__init__(ITEMS, maxlen=maxlen, time_span=SPAN)
            self.attention_layers = torch.nn.ModuleList(HeadsInTheBatch(50, 1, 0.2) for _ in self.attention_layers)

        def encode(self, seq, times):
            relations = times  # given as they are
            used = (seq != 0).unsqueeze(-1)
            drop = self.emb_dropout
            abs_k = drop(self.abs_pos_K_emb.weight.expand(len(seq), -1, -1))
            abs_v = drop(self.abs_pos_V_emb.weight.expand(len(seq), -1, -1))
            time_k, time_v = drop(self.time_matrix_K_emb(relations)), drop(self.time_matrix_V_emb(relations))
            x = drop(self.item_emb(seq) * self.scale) * used
            for norm1, attention, norm2, forward in zip(self.attention_layernorms, self.attention_layers,
                                                        self.forward_layernorms, self.forward_layers):
                query = norm1(x)
                x = norm2(query + attention(query, x, abs_k, abs_v, time_k, time_v, self.causal_mask))
                x = (x + forward(x)) * used
            return self.last_layernorm(x)

    return Public()


def python_side(side, maxlen, batch, steps, threads):
    """In a child process: prints seconds of each step, seconds of the loops in each, and the peak memory."""
    import torch
    torch.set_num_threads(threads)
    from sasrec_twin import bce_loss
    from tisasrec_twin import TiSASRec
    torch.manual_seed(1)
    draw = random.Random(1)
    model = TiSASRec(ITEMS, maxlen=maxlen, time_span=SPAN) if side == "twin" else public_model(maxlen)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    seconds, loops = [], []
    for _ in range(steps):
        ids = torch.randint(1, ITEMS + 1, (3, batch, maxlen))
        times = [sorted(draw.randrange(1, 4 * SPAN) for _ in range(maxlen)) for _ in range(batch)]
        began = time.perf_counter()
        relations = [relation_matrix(row, SPAN) for row in times] if side == "public" else times
        loops.append(time.perf_counter() - began)
        optimizer.zero_grad()
        pos, neg = model(ids[0], ids[1], ids[2], torch.tensor(relations))
        (bce_loss(pos, neg, ids[1]) + model.penalty()).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "loops": loops,
                      "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def measure_python(side, maxlen, batch, steps, threads):
    done = subprocess.run([sys.executable, __file__, "--side", side, "--maxlen", str(maxlen), "--batch_size", str(batch),
                           "--steps", str(steps), "--threads", str(threads)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return {"seconds": statistics.median(found["seconds"][WARM_UP:]), "loops": statistics.median(found["loops"]),
            "mib": found["mib"]}


def measure_ours(maxlen, batch, steps, threads):
    with tempfile.TemporaryDirectory() as folder:
        run = Run([BIN / "lockstep", "run", "sasrec", "--variant", "tisasrec", "--dataset", DATA, "--train_dir",
                   f"{folder}/run", "--maxlen", maxlen, "--batch_size", batch, "--max_steps", steps, "--log_every", 1,
                   "--eval_every", 0, "--eval_users", 1, "--checkpoint_every", 0, "--status_port", 0, "--threads", threads],
                  is_our_rank)
        records = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    times = [record["time"] for record in records if "loss" in record]
    gaps = [after - before for before, after in zip(times, times[1:])]
    return {"seconds": statistics.median(gaps[WARM_UP:]), "loops": 0.0,
            "mib": max(kib for seen in run.resident_kib.values() for _, kib in seen) / 1024}


def batch_that_fits(maxlen, batch):
    """Halves the batch until the sides without buckets fit into the free memory."""
    free = int(next(line for line in open("/proc/meminfo", encoding="utf-8") if line.startswith("MemAvailable")).split()[1])
    while batch > 1 and PAIR_TENSORS * 4 * batch * maxlen * maxlen * 50 > 0.6 * 1024 * free:
        batch //= 2
    return batch


def measure(maxlen, options):
    batch = batch_that_fits(maxlen, options.batch_size)
    found = {"lockstep": [], "twin": [], "public": []}
    for repetition in range(options.repetitions):
        for side, results in found.items():
            say(f"maxlen {maxlen}, batch {batch}, {side}: {repetition + 1}/{options.repetitions}")
            results.append(measure_ours(maxlen, batch, 4 * options.steps, options.threads) if side == "lockstep"
                           else measure_python(side, maxlen, batch, options.steps, options.threads))
    medians = {side: {key: statistics.median(result[key] for result in results) for key in results[0]}
               for side, results in found.items()}
    lines, missed = [], []
    ours = medians["lockstep"]
    for side, theirs in medians.items():
        ratio, share = theirs["seconds"] / ours["seconds"], ours["mib"] / theirs["mib"]
        cells = [f"{1e3 * theirs['seconds']:.0f}", f"{1e3 * theirs['loops']:.0f}" if side == "public" else "–",
                 f"{theirs['mib']:.0f}"]
        if side != "lockstep":
            cells += [f"{ratio:.2f}", f"{share:.3f}"]
            if ratio < TARGETS[side]:
                missed.append(f"maxlen {maxlen}: {ratio:.2f} times the speed of {side}, {TARGETS[side]:g} were expected")
            if maxlen == 200 and share > MEMORY_TARGET:
                missed.append(f"maxlen {maxlen}: {share:.3f} of the memory of {side}, {MEMORY_TARGET:g} were expected")
        else:
            cells += ["1", "1"]
        lines.append(f"| {maxlen} | {batch} | {side} | " + " | ".join(cells) + " |")
    return lines, missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maxlen", type=int, action="append", help="50 and 200 unless given")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6, help="of the sides in Python; ours does four times as many")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each side")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--side", choices=("twin", "public"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        python_side(options.side, options.maxlen[0], options.batch_size, options.steps, options.threads)
        return
    if not DATA.exists():
        raise SystemExit(f"{DATA} is missing: run scripts/get_ml100k")
    table, missed = [], []
    for maxlen in options.maxlen or (50, 200):
        lines, below = measure(maxlen, options)
        table += lines
        missed += below
    text = [f"{machine()}. One rank, {options.threads} threads, {options.repetitions} repetitions; medians.", "",
            "| maxlen | batch | | ms a step | of it loops in Python | peak resident MiB | times ours | our share of its memory |",
            "|---|---|---|---|---|---|---|---|", *table]
    publish("tisasrec", text, options.write)
    if missed:
        raise SystemExit("MISSED: " + "\nMISSED: ".join(missed))


if __name__ == "__main__":
    main()
