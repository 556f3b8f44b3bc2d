"""Structures, pictures, texts and weights as users have them: they are read as they are meant, or something is said."""
import json
import re
import shutil

import pytest

from programs import text

WEIGHTS = ["--hidden_dim", "32", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--num_neighbors", "16"]
MDM = ["--variant", "mdm", "--num_epochs", "1", "--hidden_dim", "32", "--num_heads", "2", "--num_encoder_layers", "1",
       "--num_decoder_layers", "1", "--device", "cpu"]
MARK = b"\xef\xbb\xbf"
THREE_LETTERS = dict(zip("ACDEFGHIKLMNPQRSTVWY", "ALA CYS ASP GLU PHE GLY HIS ILE LYS LEU MET ASN PRO GLN ARG SER THR VAL "
                                                "TRP TYR".split()))
# A helix' residue at the origin; the next ones are turned by 100 degrees and 1.5 Å up.
ATOMS = {"N": (1.37, -0.72, -0.87), "CA": (2.29, 0.0, 0.0), "C": (1.51, 0.74, 1.08), "O": (1.79, 0.78, 2.30)}


def helix(sequence, chain="A", numbers=None, x=0.0, segment="    ", serial=1):
    """A helix as PDB; numbers: of its residues, with insertion codes ("112B")."""
    from math import cos, radians, sin
    lines = []
    for i, letter in enumerate(sequence):
        number = str(i + 1) if numbers is None else numbers[i]
        code = number[-1] if number[-1].isalpha() else " "
        turn = radians(100 * i)
        for name, (a, b, c) in ATOMS.items():
            at = (a * cos(turn) - b * sin(turn) + x, a * sin(turn) + b * cos(turn), c + 1.5 * i)
            lines.append(f"ATOM  {serial:5d}  {name:<3} {THREE_LETTERS[letter]} {chain}{number.rstrip(code):>4}{code}   "
                         f"{at[0]:8.3f}{at[1]:8.3f}{at[2]:8.3f}  1.00 10.00      {segment}{name[0]:>2}\n")
            serial += 1
    return "".join(lines)


def mmcif(pdb, without):
    """The same atoms as mmCIF without some columns."""
    columns = {"group_PDB": "ATOM", "id": "1", "type_symbol": "C", "label_atom_id": "", "label_alt_id": ".", "label_comp_id": "",
               "label_asym_id": ".", "label_seq_id": "", "Cartn_x": "", "Cartn_y": "", "Cartn_z": "", "occupancy": "1.0",
               "B_iso_or_equiv": "10.0", "auth_seq_id": "", "auth_asym_id": "", "pdbx_PDB_model_num": "1"}
    rows = []
    for line in pdb.splitlines():
        number = line[22:26].strip()
        row = dict(columns, label_atom_id=line[12:16].strip(), label_comp_id=line[17:20], label_seq_id=number, auth_seq_id=number,
                   auth_asym_id=line[21], Cartn_x=line[30:38].strip(), Cartn_y=line[38:46].strip(), Cartn_z=line[46:54].strip())
        rows.append(" ".join(value for name, value in row.items() if name not in without))
    tags = [f"_atom_site.{name}" for name in columns if name not in without]
    return "\n".join(["data_test", "loop_", *tags, *rows]) + "\n"


@pytest.fixture(scope="module")
def mpnn(lockstep, tmp_path_factory):
    import subprocess
    folder = tmp_path_factory.mktemp("mpnn") / "run"
    done = subprocess.run([str(lockstep), "run", "protein", "--pdb_path", "generated:12:60", "--train_dir", f"{folder}/",
                           "--num_epochs", "1", "--batch_tokens", "400", "--device", "cpu", *WEIGHTS],
                          capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, text(done)
    assert "--lr is 0.0055901699437494" in done.stderr + done.stdout, "the peak for this width"
    return folder


@pytest.fixture
def design(lockstep, run, mpnn):
    """design(PATH, flags) → (the native sequences by name, standard error)"""
    def call(path, *flags, expect=0):
        done = run([lockstep, "protein", "design", "--checkpoint", f"{mpnn}/", "--pdb_path", path, "--format", "jsonl",
                    "--device", "cpu", *flags])
        assert done.returncode == expect, text(done)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {line["name"]: line["sequence"] for line in lines if line["sample"] == 0}, done.stderr
    return call


IMGT = "105 106 107 108 109 110 111 111A 112B 112A 112 113 117 118".split()


def test_imgt_numbers_are_read_in_the_order_of_the_file(design, tmp_path):
    (tmp_path / "imgt.pdb").write_text(helix("CARDGYPTNSVWQG", "H", IMGT))
    found, said = design(tmp_path / "imgt.pdb")
    assert found["imgt"] == "CARDGYPTNSVW" + "XXX" + "QG"
    (tmp_path / "turned.pdb").write_text(helix("AAAAWWWWCCCC", numbers=[str(n) for n in [*range(1, 5), *range(11, 15), *range(5, 9)]]))
    found, said = design(tmp_path / "turned.pdb")
    assert found["turned"] == "AAAACCCC" + "XX" + "WWWW"
    assert "turned: chain A goes from residue 14 to 5; its residues are read in the order of their numbers" in said


@pytest.mark.parametrize("chain, segments", [("A", ("    ", "    ")), (" ", ("PROA", "PROB"))])
def test_two_helices_with_the_same_numbers_are_two_chains(design, tmp_path, chain, segments):
    first, second = (helix(sequence, chain, x=x, segment=segment) for sequence, x, segment in
                     zip(("MKTAYIAKQRLL", "GDVPLERTIKSA"), (0, 25), segments))
    (tmp_path / "both.pdb").write_text(f"{first}TER\n{second}TER\nEND\n")
    found, said = design(tmp_path / "both.pdb")
    assert found["both"] == "MKTAYIAKQRLL/GDVPLERTIKSA"
    assert re.search(r"both: residue 1 of the chain (A|without an id) is there again, 25.0 Å away: .* is read as chain B", said), said


@pytest.mark.parametrize("without", ["auth_seq_id", "id", "type_symbol", "label_alt_id", "label_asym_id", "occupancy",
                                     "B_iso_or_equiv"])
def test_mmcif_may_lack_columns_that_are_not_needed(design, tmp_path, without):
    pdb = helix("MKTAYIAKQRLL", "A") + helix("GDVPLERTIKSA", "B", x=25)
    (tmp_path / "some.cif").write_text(mmcif(pdb, {without}))
    assert design(tmp_path / "some.cif")[0]["some"] == "MKTAYIAKQRLL/GDVPLERTIKSA"


def test_mmcif_without_coordinates_names_the_column(design, tmp_path):
    (tmp_path / "some.cif").write_text(mmcif(helix("MKTAYIAKQRLL"), {"Cartn_y"}))
    assert "_atom_site has no column Cartn_y" in design(tmp_path / "some.cif", expect=3)[1]


@pytest.fixture
def three(tmp_path):
    folder = tmp_path / "three"
    folder.mkdir()
    for name, sequence in (("one", "MKTAYIAKQRLL"), ("two", "GDVPLERTIKSA"), ("three", "CARDGYPTNSVW")):
        (folder / f"{name}.pdb").write_text(helix(sequence))
    return folder


@pytest.mark.parametrize("names, designed, unknown", [
    (b"one\ntow\n", ["one"], "1 name in it fits no structure: tow"),
    (b"one.pdb\ntwo\n", ["one", "two"], None),
    (MARK + b"one\r\ntwo\r\n", ["one", "two"], None),
])
def test_only_names_what_it_does_not_find(design, three, tmp_path, names, designed, unknown):
    only = tmp_path / "only.txt"
    only.write_bytes(names)
    found, said = design(three, "--only", only)
    assert sorted(found) == sorted(designed)
    assert unknown in said if unknown else "fits no structure" not in said


def test_a_byte_order_mark_changes_nothing(design, lockstep, run, mpnn, tmp_path):
    pdb = helix("MKTAYIAKQRLL").encode()
    (tmp_path / "plain.pdb").write_bytes(pdb)
    (tmp_path / "bom.pdb").write_bytes(MARK + pdb)
    (tmp_path / "bom.cif").write_bytes(MARK + mmcif(pdb.decode(), set()).encode())
    (tmp_path / "seq.fa").write_bytes(MARK + b">a\r\nMKTAYIAKQRLW\r\n")
    lines = []
    for name in ("plain.pdb", "bom.pdb", "bom.cif"):
        done = run([lockstep, "protein", "score", "--checkpoint", f"{mpnn}/", "--pdb_path", tmp_path / name, "--device", "cpu",
                    "--fasta", tmp_path / "seq.fa"])
        assert done.returncode == 0, text(done)
        lines.append([json.loads(line) | {"name": ""} for line in done.stdout.splitlines()])
    assert lines[0] == lines[1] == lines[2] and [line.get("fasta") for line in lines[0]] == [None, "a"]


def test_names_in_lists_may_have_spaces_and_those_that_fit_nothing_are_named(lockstep, run, tmp_path):
    for name, sequence in (("alpha one", "MKTAYIAKQRLL"), ("beta two", "GDVPLERTIKSA"), ("gamma", "CARDGYPTNSVW")):
        (tmp_path / f"{name}.pdb").write_text(helix(sequence))
    (tmp_path / "train.txt").write_bytes(MARK + b"alpha one\r\ngamma\r\nomega\r\n")
    (tmp_path / "val.txt").write_text("beta two.pdb\n")
    done = run([lockstep, "run", "protein", "--pdb_path", tmp_path, "--use_predefined_split", "--train_dir", f"{tmp_path}/.out/", *MDM])
    assert done.returncode == 0, text(done)
    said = " ".join(text(done).split())
    assert "trained on 2" in said and "validated on 1" in said, said
    assert "left out train.txt: 1 name in it fits no structure here: omega" in said, said


def test_held_out_structures_that_are_similar_to_trained_ones_are_told(lockstep, run, tmp_path):
    for name, sequence in (("a", "MKTAYIAKQRLLGDVPLERTIKSA"), ("b", "MKTAYIAKQRLLGDVPLERTIKSA"), ("c", "CARDGYPTNSVW")):
        (tmp_path / f"{name}.pdb").write_text(helix(sequence))
    (tmp_path / "train.txt").write_text("a\nc\n")
    (tmp_path / "val.txt").write_text("b\n")
    train = [lockstep, "run", "protein", "--pdb_path", tmp_path, "--train_dir", f"{tmp_path}/.out/", *MDM]
    done = run([*train, "--use_predefined_split"])
    assert "validated on 1, of which 1 is similar to structures that are trained on: b" in " ".join(text(done).split()), text(done)
    shutil.rmtree(tmp_path / ".out")
    done = run([*train, "--val_split", "0.3"])
    assert "held out by 2 groups of similar sequences" in " ".join(text(done).split()), text(done)


def test_a_link_that_leads_nowhere_is_named(design, lockstep, run, tmp_path):
    proteins = tmp_path / "proteins"
    proteins.mkdir()
    (proteins / "one.pdb").write_text(helix("MKTAYIAKQRLL"))
    (proteins / "two.pdb").symlink_to("/store/two.pdb")
    found, said = design(proteins)
    assert list(found) == ["one"]
    assert "left out two.pdb: is a link to /store/two.pdb, which does not exist" in said


def write_png(path, shade):
    """A picture of 16 x 16 pixels of one grey."""
    import struct
    import zlib
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    rows = (b"\0" + bytes([shade]) * 48) * 16
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


JIT = ["--model", "1x64/8", "--img_size", "16", "--batch_size", "4", "--warmup_epochs", "0", "--device", "cpu"]


def test_pictures_behind_links(lockstep, run, tmp_path):
    for i in range(4):
        write_png(tmp_path / f"store/{i}.png", 60 * i)
    pictures = tmp_path / "pictures"
    for name in ("cat", "dog"):
        (pictures / name).mkdir(parents=True)
        for i in range(4):
            (pictures / name / f"{i}.png").symlink_to(tmp_path / "store" / f"{i if i < 2 else i + 100}.png")
    (pictures / "bird").symlink_to(tmp_path / "birds")
    (tmp_path / "more").mkdir()
    for i in range(2):
        write_png(tmp_path / f"more/{i}.png", 200)
    (pictures / "cat/more").symlink_to(tmp_path / "more")
    train = [lockstep, "run", "jit", "--data_path", pictures, "--num_epochs", "1", "--sample_images", "0", *JIT]
    done = run([*train, "--train_dir", f"{tmp_path}/a/"])
    assert done.returncode == 0, text(done)
    said = " ".join(text(done).split())
    assert "6 files in 2 classes" in said, said
    assert "left out bird: is a link to " in said and "(and 3 more: --verbose)" in said, said
    done = run([*train, "--train_dir", f"{tmp_path}/b/", "--verbose"])
    assert text(done).count(", which does not exist") >= 5 or " ".join(text(done).split()).count("which does not exist") == 5, text(done)
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "more")
    done = run([*train, "--train_dir", f"{tmp_path}/c/"])
    assert done.returncode == 3 and "left out" in text(done) and "which does not exist" in text(done), text(done)


def test_classes_that_are_named_by_numbers_are_taken_by_name(lockstep, run, tmp_path):
    for name in ("1", "2", "4"):
        for i in range(4):
            write_png(tmp_path / "pictures" / name / f"{i}.png", 60 * int(name))
    done = run([lockstep, "run", "jit", "--data_path", tmp_path / "pictures", "--train_dir", f"{tmp_path}/cn/", "--num_epochs", "1",
                "--sample_images", "0", *JIT])
    assert done.returncode == 0, text(done)
    sample = [lockstep, "jit", "sample", "--checkpoint", f"{tmp_path}/cn/", "--count", "1", "--steps", "2", "--device", "cpu"]
    done = run([*sample, "--classes", "0", "--folder", tmp_path / "c0"])
    assert done.returncode == 2 and 'found "0", expected the name of a class: 1, 2, 4' in text(done), text(done)
    assert run([*sample, "--classes", "4", "--folder", tmp_path / "c4"]).returncode == 0


def test_json_lines_of_texts_are_read(lockstep, run, tmp_path):
    lines = "".join(json.dumps({"text": f"text {i} " + "word " * 60}) + "\n" for i in range(12))
    (tmp_path / "lines.json").write_text(lines)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/lines.jsonl").write_bytes(MARK + lines.replace("\n", "\r\n").encode())
    for path in ("lines.json", "folder"):
        done = run([lockstep, "run", "jit", "--data_path", tmp_path / path, "--preset", "guide", "--model", "1x64/4", "--img_size", "32",
                    "--batch_size", "4", "--max_steps", "2", "--train_dir", f"{tmp_path}/{path}.out/", "--device", "cpu"])
        assert done.returncode == 0, text(done)
        assert "11 train, 1 validate" in " ".join(text(done).split()), text(done)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_with_the_prefixes_of_wrappers_are_those_without(lockstep, run, small_dataset, tmp_path, prefix):
    from safetensors.torch import load_file, save_file
    flags = ["--dataset", small_dataset, "--maxlen", "10", "--hidden_units", "8", "--num_blocks", "1", "--device", "cpu"]
    done = run([lockstep, "run", "sasrec", *flags, "--train_dir", f"{tmp_path}/run/", "--max_steps", "2"])
    assert done.returncode == 0, text(done)
    plain = next((tmp_path / "run").rglob("model.safetensors"))
    shutil.copy(plain, tmp_path / "plain.safetensors")
    save_file({prefix + name: tensor for name, tensor in load_file(plain).items()}, tmp_path / "wrapped.safetensors")
    figures = []
    for name in ("plain", "wrapped"):
        done = run([lockstep, "run", "sasrec", *flags, "--inference_only", "--state_dict_path", tmp_path / f"{name}.safetensors",
                    "--train_dir", f"{tmp_path}/{name}/"])
        assert done.returncode == 0, text(done)
        figures.append(re.findall(r"NDCG@10[^\d]*([\d.]+)", text(done)))
    assert figures[0] and figures[0] == figures[1]


@pytest.mark.parametrize("content, words", [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "is a Git LFS pointer"),
    (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n", "is a web page"),
])
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_in_the_place_of_weights_is_named(lockstep, run, small_dataset, tmp_path, content, words, name):
    (tmp_path / name).write_bytes(content)
    done = run([lockstep, "run", "sasrec", "--dataset", small_dataset, "--maxlen", "10", "--inference_only", "--state_dict_path",
                tmp_path / name, "--train_dir", f"{tmp_path}/out/", "--device", "cpu"])
    assert done.returncode != 0 and words in text(done) and "claims a header" not in text(done), text(done)
