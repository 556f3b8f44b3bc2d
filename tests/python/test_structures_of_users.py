"""Structures, pictures and weights as users have them: they are read as they are meant, or something is said."""
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


def helix(sequence):
    """A helix as PDB."""
    from math import cos, radians, sin
    lines = []
    for i, letter in enumerate(sequence):
        turn = radians(100 * i)
        for name, (a, b, c) in ATOMS.items():
            at = (a * cos(turn) - b * sin(turn), a * sin(turn) + b * cos(turn), c + 1.5 * i)
            lines.append(f"ATOM  {len(lines) + 1:5d}  {name:<3} {THREE_LETTERS[letter]} A{i + 1:4d}    "
                         f"{at[0]:8.3f}{at[1]:8.3f}{at[2]:8.3f}  1.00 10.00          {name[0]:>2}\n")
    return "".join(lines)


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
