#!/usr/bin/env python3
"""The masked side-chain model's features beside the twin of the code that the guide came with: dihedrals and the graph of
the nearest residues, from the same made backbones. That code makes the dihedrals residue by residue and a graph for each
protein, and so does tests/python/mdm_twin.py; ours makes them of the whole batch. One thread each, in turn; medians.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import torch
from safetensors.torch import load_file, save_file

import mdm_twin
from bench_sasrec import machine, say
from programs import program, tools_folder
from verdicts import Verdicts

TARGET = 10.0


def backbones(samples, length, seed=1):
    draw = torch.Generator().manual_seed(seed)
    steps = torch.nn.functional.normalize(torch.randn(samples, length, 3, generator=draw), dim=-1) * 3.8
    return steps.cumsum(1)[:, :, None] + torch.randn(samples, length, 4, 3, generator=draw)


def ours(folder, coordinates, repetitions):
    torch.manual_seed(0)
    twin = mdm_twin.Mdm()
    save_file({name: tensor.contiguous() for name, tensor in twin.state_dict().items()}, folder / "weights.safetensors")
    save_file({"X_BL4C": coordinates, "is_residue_BL": torch.ones(coordinates.shape[:2], dtype=torch.bool)},
              folder / "input.safetensors")
    subprocess.run([program(tools_folder() / "mdm_dump"), "features", "--weights", folder / "weights.safetensors", "--input",
                    folder / "input.safetensors", "--out", folder / "out.safetensors", "--repeats", str(repetitions)],
                   check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return load_file(folder / "out.safetensors")


def theirs(coordinates):
    torch.set_num_threads(1)
    began = time.perf_counter()
    features = [(mdm_twin.dihedral_features(one), mdm_twin.graph(one[:, 1])[1]) for one in coordinates]
    return time.perf_counter() - began, features


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=250, help="residues of a backbone")
    parser.add_argument("--samples", type=int, default=8, help="backbones of a batch")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    coordinates = backbones(options.samples, options.length)
    seconds = {"lockstep": [], "twin": []}
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(options.repetitions):
            say(f"features: {repetition + 1}/{options.repetitions}")
            found = ours(pathlib.Path(folder), coordinates, 3)
            seconds["lockstep"].append(found["seconds"][1:].min().item())
            taken, features = theirs(coordinates)
            seconds["twin"].append(taken)
    dihedrals = torch.stack([one for one, _ in features])
    torch.testing.assert_close(found["dihedrals"][:, 1:-1], dihedrals[:, 1:-1], rtol=1e-3, atol=1e-3)
    own, other = (statistics.median(seconds[side]) for side in ("lockstep", "twin"))
    print(f"{machine()}. Batches of {options.samples} backbones of {options.length} residues, one thread, medians of "
          f"{options.repetitions}.\n\n| side | ms a batch | times the twin's speed |\n|---|---|---|\n"
          f"| lockstep | {1e3 * own:.1f} | {other / own:.1f} |\n| twin | {1e3 * other:.1f} | 1.0 |\n")
    verdicts = Verdicts()
    verdicts.judge(f"features: at least {TARGET:g} times as fast", other / own >= TARGET, f"{other / own:.1f}")
    print("\n".join(verdicts.table()))
    verdicts.end()


if __name__ == "__main__":
    main()
