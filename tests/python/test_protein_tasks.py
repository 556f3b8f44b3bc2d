"""`lockstep protein score` and `lockstep protein design` with the published weights: what they write is what the public package
finds, the same seed gives the same designs, and what they cannot use they refuse with the way out."""
import json
import re

import pytest
import torch

import protein_reference as reference

COMMON = ("--device", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def ubiquitin(tmp_path_factory):
    """(path, what the public package reads of it)"""
    files = reference.pdb_files(reference.structures_folder(), tmp_path_factory.mktemp("plain"))
    path = next(path for path in files if "1ubi" in path.name.lower())
    return path, reference.parse(path)


@pytest.fixture
def task(lockstep, run):
    def call(name, *flags, weights=None, expect=0):
        done = run([lockstep, "protein", name, "--checkpoint", weights or reference.weights_file(), *COMMON, *flags])
        assert done.returncode == expect, done.stderr
        return done
    return call


def refusal(done):
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def records(fasta):
    lines = fasta.splitlines()
    assert len(lines) % 2 == 0
    return list(zip(lines[::2], lines[1::2]))


def reference_score(protein, orders, designed=None):
    """The public package's score and global score, the mean over some orders."""
    torch.set_num_threads(1)
    batch, _ = reference.featurize([protein], designed=designed)
    model = reference.model()
    scores = []
    for seed in range(orders):
        normals, _ = reference.random_order(batch, seed)
        with torch.no_grad():
            log_probs = model(*reference.arguments(batch), normals)
        scores.append([reference.public._scores(batch["S"], log_probs, weights).item()
                       for weights in (batch["mask"] * batch["chain_M"], batch["mask"])])
    return torch.tensor(scores).mean(0).tolist()


def test_scores_are_those_of_the_public_package(task, ubiquitin):
    path, protein = ubiquitin
    line = json.loads(task("score", "--pdb_path", path, "--num_orders", 24).stdout)
    score, global_score = reference_score(protein, 24)
    assert line["score"] == pytest.approx(score, abs=0.03)
    assert line["global_score"] == pytest.approx(global_score, abs=0.03)
    assert line["sequence"] == protein["seq"].replace("-", "X")
    assert (line["orders"], line["designed_chains"], line["fixed_chains"]) == (24, ["A"], [])


def test_scores_of_residues_are_log_probabilities(task, ubiquitin):
    path, protein = ubiquitin
    line = json.loads(task("score", "--pdb_path", path, "--residues").stdout)
    residues = line["residues"]
    assert "".join(residue["amino_acid"] for residue in residues) == protein["seq"].replace("-", "")
    assert line["amino_acids"] == reference.AMINO_ACIDS
    for residue in residues:
        own = residue["log_probs"][reference.AMINO_ACIDS.index(residue["amino_acid"])]
        assert residue["log_prob"] == own
        assert sum(2.718281828 ** value for value in residue["log_probs"]) == pytest.approx(1.0, abs=2e-3)
    assert -sum(residue["log_prob"] for residue in residues) / len(residues) == pytest.approx(line["score"], abs=1e-3)


def test_designs_come_as_fasta_with_the_headers_of_the_public_script(task, ubiquitin):
    path, protein = ubiquitin
    found = records(task("design", "--pdb_path", path, "--num_sequences", 3, "--temperature", "0.1 0.3", "--seed",
                         5).stdout)
    header, native = found[0]
    assert re.fullmatch(r">\S+, score=\d\.\d{4}, global_score=\d\.\d{4}, fixed_chains=\[\], designed_chains=\['A'\], "
                        r"model_name=v_48_020, git_hash=\w+, seed=5", header), header
    assert native == protein["seq"].replace("-", "X")
    assert len(found) == 1 + 2 * 3
    for number, (header, sequence) in enumerate(found[1:]):
        match = re.fullmatch(r">T=(\S+), sample=(\d), score=(\S+), global_score=(\S+), seq_recovery=(\S+)", header)
        assert match, header
        assert (match[1], match[2]) == (["0.1", "0.3"][number // 3], str(number % 3 + 1))
        same = sum(a == b for a, b in zip(sequence, native)) / len(native)
        assert float(match[5]) == pytest.approx(same, abs=1e-4)
        assert len(sequence) == len(native) and "X" not in sequence
        assert same > 0.25


def test_designs_depend_on_the_seed_alone(task, ubiquitin):
    path, _ = ubiquitin
    one = records(task("design", "--pdb_path", path, "--num_sequences", 5, "--batch", 5).stdout)
    parts = records(task("design", "--pdb_path", path, "--num_sequences", 5, "--batch", 2).stdout)
    assert [sequence for _, sequence in one] == [sequence for _, sequence in parts]
    other = records(task("design", "--pdb_path", path, "--num_sequences", 5, "--seed", 38).stdout)
    assert other[1:] != one[1:]
    assert len({sequence for _, sequence in one}) > 2


def test_a_design_keeps_what_is_fixed_and_ties_and_omits(task, ubiquitin):
    path, protein = ubiquitin
    done = task("design", "--pdb_path", path, "--num_sequences", 3, "--temperature", 1, "--fixed_positions", "A:1-4,10",
                "--tied_positions", "A:20-22=A:40-42", "--omit_aa", "CWX", "--bias", "A:3,L:-2", "--format", "jsonl")
    native, *designs = [json.loads(line) for line in done.stdout.splitlines()]
    assert native["sample"] == 0 and native["designed_chains"] == ["A"]
    for design in designs:
        sequence = design["sequence"]
        assert sequence[:4] == protein["seq"][:4] and sequence[9] == protein["seq"][9]
        assert sequence[19:22] == sequence[39:42]
        assert not set("CWX") & set(sequence)
        assert sequence.count("A") > 10
    assert "3 sequences" in done.stderr


def test_a_file_is_written_whole_to_out(task, ubiquitin, tmp_path):
    out = tmp_path / "designs.fa"
    assert task("design", "--pdb_path", ubiquitin[0], "--out", out).stdout == ""
    assert len(records(out.read_text())) == 2


@pytest.mark.parametrize("flags,expected", [
    (("--design_chains", "Q"), 'has no chain "Q"; it has A'),
    (("--fixed_positions", "A:900"), "--fixed_positions: chain A of .* has no residue 900; its residues are numbered from 1"),
    (("--fixed_positions", "Z:3"), 'has no chain "Z"'),
    (("--fixed_positions", "12"), "cannot be read; expected a chain and numbers"),
    (("--tied_positions", "A:5=A:500"), "--tied_positions: chain A of .* has no residue 500"),
    (("--tied_positions", "A:5=A:6", "--fixed_positions", "A:6"), "residue 6 of chain A of .* is not designed"),
    (("--temperature", "0"), '--temperature: "0" is no number of at least 1e-06'),
    (("--temperature", "1e-40"), '--temperature: "1e-40" is no number of at least'),
    (("--fixed_positions", "A:1-76"), "no residue is left"),
    (("--bias", "C:1e300"), '--bias: "C:1e300" is no bias'),
    (("--omit_aa", "AB"), '"B" is no amino acid'),
    (("--omit_aa", "ACDEFGHIKLMNPQRSTVWYX"), "leaves nothing to draw"),
    (("--bias", "A=3"), '--bias: "A=3" is no bias'),
])
def test_what_cannot_be_designed_is_named(task, ubiquitin, flags, expected):
    assert re.search(expected, refusal(task("design", "--pdb_path", ubiquitin[0], *flags, expect=2)))


def test_weights_of_another_model_are_refused(task, ubiquitin):
    path, _ = ubiquitin
    alpha_carbons = reference.weights_file("v_48_020", "ca")
    assert "is of another model" in refusal(task("design", "--pdb_path", path, weights=alpha_carbons, expect=2))


def test_without_structures_it_says_what_to_give(task, tmp_path):
    assert "--pdb_path is required" in refusal(task("score", expect=2))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(empty) in refusal(task("score", "--pdb_path", empty, expect=3))
