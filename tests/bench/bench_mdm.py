#!/usr/bin/env python3
"""The masked side-chain model's features beside the twin of the code that the guide came with: dihedrals and the graph of
the nearest residues, from the same made backbones. That code makes the dihedrals residue by residue and a graph for each
protein, and so does tests/python/mdm_twin.py; ours makes them of the whole batch. One thread each, each side in processes of
its own, in turn: a process makes a batch that does not count, for what is loaded at the first call, and gives the median of the
next ones; the table has the medians over the processes. Memory is the most that was resident in a process, with what its
libraries take. Prints a table; with --write it goes into docs/benchmarks.md (an idle machine!).
"""
import argparse
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import torch
from safetensors.torch import load_file, save_file

import mdm_twin
from bench_sasrec import machine, publish, say
from measured import run
from programs import program, tools_folder
from verdicts import Verdicts

TARGET = 10.0
BATCHES = 4  # that a process makes; the first does not count


def backbones(samples, length, seed=1):
    draw = torch.Generator().manual_seed(seed)
    steps = torch.nn.functional.normalize(torch.randn(samples, length, 3, generator=draw), dim=-1) * 3.8
    return steps.cumsum(1)[:, :, None] + torch.randn(samples, length, 4, 3, generator=draw)


def write_input(folder, options):
    torch.manual_seed(0)
    twin = mdm_twin.Mdm()
    coordinates = backbones(options.samples, options.length)
    save_file({name: tensor.contiguous() for name, tensor in twin.state_dict().items()}, folder / "weights.safetensors")
    save_file({"X_BL4C": coordinates, "is_residue_BL": torch.ones(coordinates.shape[:2], dtype=torch.bool)},
              folder / "input.safetensors")


def ours(folder):
    """(seconds, MiB, dihedrals)"""
    _, mib = run([program(tools_folder() / "mdm_dump"), "features", "--weights", folder / "weights.safetensors", "--input",
                  folder / "input.safetensors", "--out", folder / "lockstep.safetensors", "--repeats", BATCHES],
                 OMP_NUM_THREADS="1")
    found = load_file(folder / "lockstep.safetensors")
    return statistics.median(found["seconds"][1:].tolist()), mib, found["dihedrals"]


def theirs(folder):
    _, mib = run([sys.executable, __file__, "--twin_in", folder], OMP_NUM_THREADS="1")
    found = load_file(folder / "twin.safetensors")
    return statistics.median(found["seconds"][1:].tolist()), mib, found["dihedrals"]


def twin_side(folder):
    """In a child process."""
    torch.set_num_threads(1)
    coordinates = load_file(folder / "input.safetensors")["X_BL4C"]

    def features(samples):
        return [(mdm_twin.dihedral_features(one), mdm_twin.graph(one[:, 1])[1]) for one in samples]
    seconds = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        made = features(coordinates)
        seconds.append(time.perf_counter() - began)
    save_file({"seconds": torch.tensor(seconds, dtype=torch.float64), "dihedrals": torch.stack([one for one, _ in made])},
              folder / "twin.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=250, help="residues of a backbone")
    parser.add_argument("--samples", type=int, default=8, help="backbones of a batch")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--twin_in", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.twin_in:
        twin_side(options.twin_in)
        return
    sides = {"lockstep": ours, "twin": theirs}
    found = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_input(folder, options)
        for repetition in range(options.repetitions):
            for side, measure in sides.items():
                say(f"features: {repetition + 1}/{options.repetitions} {side}")
                found[side].append(measure(folder))
    torch.testing.assert_close(*(found[side][-1][2][:, 1:-1] for side in sides), rtol=1e-3, atol=1e-3)
    seconds = {side: statistics.median(one[0] for one in found[side]) for side in sides}
    ratio = seconds["twin"] / seconds["lockstep"]
    lines = [f"{machine()}. Batches of {options.samples} backbones of {options.length} residues, one thread, medians of "
             f"{options.repetitions} processes, each of them the median of {BATCHES - 1} batches.", "",
             "| side | ms a batch | peak resident MiB | times the twin's speed |", "|---|---|---|---|"]
    for side, of_side in seconds.items():
        lines.append(f"| {side} | {1e3 * of_side:.1f} | {max(one[1] for one in found[side]):.0f} | {seconds['twin'] / of_side:.1f} |")
    verdicts = Verdicts()
    verdicts.judge(f"features: at least {TARGET:g} times as fast", ratio >= TARGET, f"{ratio:.1f}")
    lines += ["", *verdicts.table()]
    publish("mdm", lines, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
