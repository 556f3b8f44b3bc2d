"""`lockstep protein score` and `lockstep protein design` with the published weights: what they write is what the public package
finds, the same seed gives the same designs, and what they cannot use they refuse with the way out."""
import json
import re
import shlex
import shutil
import subprocess

import pytest
import torch

import protein_reference as reference
from programs import clean_environment, fetched

COMMON = ("--device", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def ubiquitin(tmp_path_factory):
    """(path, what the public package reads of it)"""
    files = reference.pdb_files(fetched("get_structures"), tmp_path_factory.mktemp("plain"))
    path = next(path for path in files if "1ubi" in path.name.lower())
    return path, reference.parse(path)


@pytest.fixture(scope="module")
def two_chains(tmp_path_factory):
    """(a file of the chains A and B of 2BEG, what the public package reads of it)"""
    files = reference.pdb_files(fetched("get_structures"), tmp_path_factory.mktemp("plain"))
    source = next(path for path in files if "2beg" in path.name.lower())
    path = tmp_path_factory.mktemp("two") / "2beg.pdb"
    path.write_text("".join(f"{line}\n" for line in reference.atom_lines(source) if line[21] in "AB"))
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


# --- several chains, several structures


@pytest.mark.long
def test_scores_of_a_chain_beside_another_are_those_of_the_public_package(task, two_chains):
    path, protein = two_chains
    line = json.loads(task("score", "--pdb_path", path, "--design_chains", "A", "--num_orders", 48).stdout)
    score, global_score = reference_score(protein, 48, designed=["A"])
    assert line["score"] == pytest.approx(score, abs=0.03)
    assert line["global_score"] == pytest.approx(global_score, abs=0.03)
    assert (line["designed_chains"], line["fixed_chains"]) == (["A"], ["B"])
    assert line["sequence"] == protein["seq_chain_A"]


@pytest.mark.parametrize("chains,designed,fixed", [("B A", "AB", ""), ("B", "B", "A")])
def test_chains_that_are_designed_stand_in_the_fasta_and_the_others_are_named_and_kept(task, two_chains, tmp_path, chains,
                                                                                     designed, fixed):
    path, protein = two_chains
    natives = [protein[f"seq_chain_{letter}"] for letter in designed]
    out = tmp_path / "designs.fa"
    task("design", "--pdb_path", path, "--design_chains", chains, "--num_sequences", 2, "--temperature", 1, "--out", out)
    (header, native), *designs = records(out.read_text())
    assert f"fixed_chains={list(fixed)}, designed_chains={list(designed)}, " in header
    assert native == "/".join(natives) and len(designs) == 2
    for _, sequence in designs:
        assert [len(part) for part in sequence.split("/")] == [len(one) for one in natives] and sequence != native
    # The first order of both tasks is the same: with the file's own amino acids in the other chain the scores are, too.
    _, again, first, _ = [json.loads(line) for line in task("score", "--pdb_path", path, "--design_chains", chains, "--fasta",
                                                            out).stdout.splitlines()]
    for line, text in ((again, header), (first, designs[0][0])):
        for name in ("score", "global_score"):
            assert line[name] == pytest.approx(float(re.search(rf"\b{name}=([\d.]+)", text)[1]), abs=1e-3), text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five structures: of 70, 24, 46 and 76 residues, and one of five chains. Not in the order of their lengths."""
    made = tmp_path_factory.mktemp("structures")
    for name in ("1a8o.pdb.gz", "1as5.cif.gz", "1ejg.pdb", "1ubi.pdb", "2beg.pdb.gz"):
        shutil.copy(fetched("get_structures") / name, made / name)
    return made


def lines_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def said_of_structures(done):
    """[(name, whether it shared a batch)] by the log, which counts them."""
    found = re.findall(r"^(\S+): .* in [\d.]+ s( with \d+ others?)? \((\d+) of (\d+)\)$", done.stderr, re.M)
    assert [(int(number), int(total)) for *_, number, total in found] == [(i + 1, len(found)) for i in range(len(found))]
    return [(name, bool(others)) for name, others, *_ in found]


def assert_same(found, expected):
    """Sequences and all other words are equal. Numbers are printed with four digits, and rounding may turn the last one."""
    assert [line.keys() for line in found] == [line.keys() for line in expected]
    for line, other in zip(found, expected):
        for key, value in other.items():
            assert line[key] == (pytest.approx(value, abs=1.1e-4) if isinstance(value, float) else value), (key, line, other)


FOLDER_FLAGS = {"score": ["--num_orders", 2], "design": ["--num_sequences", 2, "--temperature", "0.1 1", "--format", "jsonl"]}


@pytest.fixture(scope="module")
def alone(lockstep, folder):
    """Of each task, what it writes for each structure of the folder when that is all that it is given."""
    found = {}
    for name, flags in FOLDER_FLAGS.items():
        found[name] = []
        for path in sorted(folder.iterdir()):
            words = [lockstep, "protein", name, "--checkpoint", reference.weights_file(), *COMMON, "--pdb_path", path, *flags]
            found[name] += lines_of(subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True,
                                                   env=clean_environment()))
    return found


@pytest.mark.parametrize("name", ["score", "design"])
@pytest.mark.parametrize("flags,shared", [
    ([], ["1a8o", "1as5", "1ejg", "1ubi"]),
    (["--batch_tokens", 200], ["1as5", "1ejg"]),
    (["--batch_tokens", 30], []),  # a structure of more residues is done alone
], ids=["default", "few tokens", "fewer tokens than residues"])
def test_structures_of_a_folder_share_batches_and_each_gets_what_it_gets_alone(task, folder, alone, name, flags, shared):
    done = task(name, "--pdb_path", folder, *FOLDER_FLAGS[name], *flags)
    assert_same(lines_of(done), alone[name])
    said = said_of_structures(done)
    assert [structure for structure, _ in said] == ["1a8o", "1as5", "1ejg", "1ubi", "2beg"]
    assert {structure for structure, is_shared in said if is_shared} >= set(shared), done.stderr
    assert bool(shared) == any(is_shared for _, is_shared in said), done.stderr


@pytest.mark.long
def test_more_structures_than_are_read_ahead_come_in_their_order(task):
    together, alone = [task("score", "--pdb_path", "generated:300:8", "--batch_tokens", tokens) for tokens in (10000, 1)]
    assert len(said_of_structures(together)) == 300 and all(is_shared for _, is_shared in said_of_structures(together))
    assert not any(is_shared for _, is_shared in said_of_structures(alone))
    assert_same(lines_of(together), lines_of(alone))


def test_broken_files_of_a_folder_are_named_and_nothing_is_left_there(task, ubiquitin, two_chains, tmp_path):
    for path, _ in (ubiquitin, two_chains):
        shutil.copy(path, tmp_path)
    (tmp_path / "broken.pdb").write_text("ATOM      1  N   ALA A   1      nonsense\n")
    done = task("score", "--pdb_path", tmp_path)
    assert [line["name"] for line in lines_of(done)] == ["1ubi", "2beg"]
    assert "skipped broken.pdb: " in done.stderr and len(said_of_structures(done)) == 2, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1ubi.pdb", "2beg.pdb", "broken.pdb"]


@pytest.fixture
def three(ubiquitin, tmp_path):
    """A folder of a and c, which are ubiquitin, and b, which is crambin."""
    made = tmp_path / "three"
    made.mkdir()
    for name, path in (("a", ubiquitin[0]), ("b", fetched("get_structures") / "1ejg.pdb"), ("c", ubiquitin[0])):
        shutil.copy(path, made / f"{name}.pdb")
    return made


def test_only_some_structures_of_a_folder_are_taken_in_its_order(task, three, tmp_path):
    names = tmp_path / "names.txt"
    names.write_bytes(b"c\r\na\nz")  # lines end as on Windows or not at all, too
    done = task("score", "--pdb_path", three, "--only", names)
    assert [line["name"] for line in lines_of(done)] == ["a", "c"]
    assert said_of_structures(done) == [("a", True), ("c", True)]
    names.write_text("z\n")
    assert "names no structure of" in refusal(task("score", "--pdb_path", three, "--only", names, expect=2))


@pytest.mark.parametrize("name", ["score", "design"])
def test_what_a_structure_of_a_folder_lacks_is_named_and_those_before_it_are_done(task, three, name):
    done = task(name, "--pdb_path", three, "--fixed_positions", "A:60", expect=2)
    assert done.stdout == task(name, "--pdb_path", three / "a.pdb", "--fixed_positions", "A:60").stdout
    *_, last, error = done.stderr.splitlines()
    assert last.startswith("a: ") and last.endswith("(1 of 3)"), done.stderr
    assert "--fixed_positions: chain A of b has no residue 60; its residues are numbered from 1" in error


def test_what_is_fixed_tied_omitted_or_preferred_in_a_structure_is_not_in_the_others_of_its_batch(task, ubiquitin, three,
                                                                                               tmp_path):
    bias = [[0.0] * 21 for _ in ubiquitin[1]["seq"]]
    bias[29][reference.AMINO_ACIDS.index("W")] = 50.0
    flags = ["--num_sequences", 2, "--temperature", 1, "--format", "jsonl",
             "--fixed_positions_jsonl", write_json(tmp_path / "fixed.jsonl", {"a": {"A": [1, 2, 3]}, "b": {"A": [5]}, "c": {}}),
             "--tied_positions_jsonl", write_json(tmp_path / "tied.jsonl", {"a": [], "b": [{"A": [20, 30]}], "c": []}),
             "--omit_AA_jsonl", write_json(tmp_path / "omit.jsonl",
                                           {"a": {}, "b": {}, "c": {"A": [[[50, 51], "ACDEFGHIKMNPQRSTVWYX"]]}}),
             "--bias_by_res_jsonl", write_json(tmp_path / "residues.jsonl", {"a": {"A": bias}, "b": {}, "c": {}})]
    done = task("design", "--pdb_path", three, *flags)
    assert said_of_structures(done) == [("a", True), ("b", False), ("c", True)], "b has tied residues"
    found = lines_of(done)
    assert_same(found, [line for name in "abc" for line in lines_of(task("design", "--pdb_path", three / f"{name}.pdb", *flags))])
    native = found[0]["sequence"]
    of = {name: [line["sequence"] for line in found if line["name"] == name and line["sample"] > 0] for name in "abc"}
    assert all(sequence[:3] == native[:3] and sequence[29] == "W" for sequence in of["a"])
    assert all(sequence[19] == sequence[29] for sequence in of["b"])
    assert all(sequence[49:51] == "LL" and sequence[29] != "W" for sequence in of["c"])


@pytest.mark.parametrize("name", ["score", "design"])
def test_help_ends_with_examples_that_work(lockstep, run, ubiquitin, two_chains, three, tmp_path, name):
    done = run([lockstep, "protein", name, "--help"])
    assert done.returncode == 0, done.stderr
    examples = re.search(r"^Examples:\n((?:  lockstep protein .*\n)+)", done.stdout, re.M)[1].splitlines()
    assert len(examples) == 4
    paths = {"v_48_020.pt": reference.weights_file(), "1ubi.pdb": ubiquitin[0], "complex.pdb": two_chains[0], "structures": three}
    for example in examples:
        words = [paths.get(word, word) for word in shlex.split(example)]
        done = run([lockstep, *words[1:], *COMMON], cwd=tmp_path)
        assert done.returncode == 0, f"{example}: {done.stderr}"
        result = (tmp_path / words[words.index("--out") + 1]).read_text() if "--out" in words else done.stdout
        assert result.startswith((">", "{")), example


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


# --- the files of the public helper scripts


def write_json(path, content):
    path.write_text(json.dumps(content) + "\n")
    return path


def test_the_files_of_the_helper_scripts_say_what_is_designed(task, ubiquitin, tmp_path):
    path, protein = ubiquitin
    name = path.stem
    bias = [[0.0] * 21 for _ in protein["seq"]]
    bias[29][reference.AMINO_ACIDS.index("W")] = 50.0
    done = task(
        "design", "--pdb_path", path, "--num_sequences", 3, "--temperature", 1, "--format", "jsonl",
        "--fixed_positions_jsonl", write_json(tmp_path / "fixed.jsonl", {"other": {"A": [9]}, name: {"A": [1, 2, 3, 10]}}),
        "--tied_positions_jsonl", write_json(tmp_path / "tied.jsonl", {name: [{"A": [20, 40]}, {"A": [21, 41]}]}),
        "--omit_AA_jsonl", write_json(tmp_path / "omit.jsonl", {name: {"A": [[[50, 51], "ACDEFGHIKMNPQRSTVWYX"]]}}),
        "--bias_AA_jsonl", write_json(tmp_path / "bias.jsonl", {"A": 3.0, "L": -3}),
        "--bias_by_res_jsonl", write_json(tmp_path / "residues.jsonl", {name: {"A": bias}}),
        "--chain_id_jsonl", write_json(tmp_path / "chains.jsonl", {name: [["A"], []]}))
    native, *designs = [json.loads(line) for line in done.stdout.splitlines()]
    assert native["designed_chains"] == ["A"]
    for design in designs:
        sequence = design["sequence"]
        assert sequence[:3] == protein["seq"][:3] and sequence[9] == protein["seq"][9]
        assert sequence[19:21] == sequence[39:41]
        assert sequence[49:51] == "LL" and sequence[29] == "W"
        assert sequence.count("A") > 10


@pytest.fixture(scope="module")
def dimer(ubiquitin, tmp_path_factory):
    """(a file of ubiquitin as chain A, as chain B without residue 30, and an RNA as chain R, the sequence of A)"""
    lines = [line for line in reference.atom_lines(ubiquitin[0]) if line[21] == "A"]
    copy = [f"{line[:21]}B{line[22:30]}{float(line[30:38]) + 40:8.3f}{line[38:]}" for line in lines if int(line[22:26]) != 30]
    rna = [f"ATOM   {9000 + 3 * i + j:4d}  {atom:<4}{base:>3} R{i + 1:4d}    {9.0 * i + j:8.3f} -40.000   0.000  1.00 10.00           {atom[0]}"
           for i, base in enumerate("AGU") for j, atom in enumerate(("P", "C4'", "N1"))]
    path = tmp_path_factory.mktemp("dimer") / "dimer.pdb"
    path.write_text("".join(f"{line}\n" for line in [*lines, *copy, *rna]))
    return path, ubiquitin[1]["seq"].replace("-", "X")


def designs_of(task, path, *flags):
    """The sequences of chains A and B of three designs."""
    done = task("design", "--pdb_path", path, "--num_sequences", 3, "--temperature", 1, "--format", "jsonl", *flags)
    return [line["sequence"].split("/") for line in lines_of(done)[1:]]


def test_a_homodimer_is_tied_over_its_whole_length(task, dimer, tmp_path):
    """As make_tied_positions_dict.py --homooligomer 1 writes it: with gaps, and with fixed positions."""
    path, native = dimer
    tied = write_json(tmp_path / "tied.jsonl", {"dimer": [{"A": [i], "B": [i]} for i in range(1, len(native) + 1)]})
    free = designs_of(task, path, "--design_chains", "A B", "--tied_positions_jsonl", tied)
    for a, b in free:
        assert (a[:29], a[30:]) == (b[:29], b[30:]) and a != native
        assert a[29] != "X" and b[29] == "X", "a gap has nobody to be tied to"
    fixed = write_json(tmp_path / "fixed.jsonl", {"dimer": {"A": list(range(1, 21)), "B": []}})
    for a, b in designs_of(task, path, "--design_chains", "A B", "--tied_positions_jsonl", tied, "--fixed_positions_jsonl", fixed):
        assert a[:20] == b[:20] == native[:20]
        assert a[30:] == b[30:] != native[30:]
    every = write_json(tmp_path / "every.jsonl", {"dimer": {"A": list(range(1, len(native) + 1)), "B": [30]}})
    said = refusal(task("design", "--pdb_path", path, "--design_chains", "A B", "--tied_positions_jsonl", tied,
                        "--fixed_positions_jsonl", every, expect=2))
    assert "no residue is left" in said and "--tied_positions_jsonl" in said


def test_what_the_helper_files_say_of_a_nucleic_acid_is_left_out(task, dimer, tmp_path):
    path, native = dimer
    none = [[0.0] * 21 for _ in native]
    done = designs_of(
        task, path,
        "--chain_id_jsonl", write_json(tmp_path / "chains.jsonl", {"dimer": [["A", "R"], ["B"]]}),
        "--fixed_positions_jsonl", write_json(tmp_path / "fixed.jsonl", {"dimer": {"A": [1, 2], "B": [], "R": [1, 900]}}),
        "--tied_positions_jsonl", write_json(tmp_path / "tied.jsonl", {"dimer": [{"A": [10, 20], "R": [1]}, {"R": [2]}]}),
        "--omit_AA_jsonl", write_json(tmp_path / "omit.jsonl", {"dimer": {"A": [], "B": [], "R": [[[1], "G"]]}}),
        "--bias_by_res_jsonl", write_json(tmp_path / "bias.jsonl", {"dimer": {"A": none, "B": none, "R": none}}))
    for (a,) in done:
        assert a[:2] == native[:2] and a[9] == a[19] and a != native
    chains = write_json(tmp_path / "rna.jsonl", {"dimer": [["R"], ["A", "B"]]})
    said = refusal(task("design", "--pdb_path", path, "--chain_id_jsonl", chains, expect=2))
    assert 'none of the designed chains of dimer, ["R"], is a protein' in said, said


@pytest.mark.parametrize("flag,content,expected", [
    ("fixed_positions_jsonl", {"9xyz": {}}, "names no structure 1ubi; it names 9xyz"),
    ("fixed_positions_jsonl", {"1ubi": {"Q": [1]}}, 'has no chain "Q"; it has A'),
    ("fixed_positions_jsonl", {"1ubi": {"A": [900]}}, "position 900 of chain A of 1ubi; expected a whole number from 1 to"),
    ("tied_positions_jsonl", {"1ubi": [{"A": [5]}, {"A": [5, 6]}]}, "position 5 of chain A of 1ubi is tied twice"),
    ("omit_AA_jsonl", {"1ubi": {"A": [[[3], "ACDEFGHIKLMNPQRSTVWYX"]]}}, "leaves nothing to draw at residue 3 of 1ubi"),
    ("omit_AA_jsonl", {"1ubi": {"A": [[3, "A"]]}}, r"expected \[positions, amino acids\]"),
    ("bias_AA_jsonl", {"AB": 1}, 'found "AB": 1'),
    ("bias_by_res_jsonl", {"1ubi": {"A": [[0.0] * 21]}}, "positions, and the file 1"),
    ("chain_id_jsonl", {"1ubi": "A"}, r"expected \[designed chains, fixed chains\] for 1ubi"),
    ("chain_id_jsonl", ["A"], "a line is no JSON object"),
])
def test_what_is_wrong_in_a_helper_file_is_named(task, ubiquitin, tmp_path, flag, content, expected):
    path = write_json(tmp_path / "file.jsonl", content)
    message = refusal(task("design", "--pdb_path", ubiquitin[0], f"--{flag}", path, expect=2))
    assert re.search(expected, message.replace(ubiquitin[0].stem, "1ubi")), message


# --- sequences of a FASTA file


def test_sequences_of_a_fasta_file_are_scored_beside_the_structures_own(task, ubiquitin, tmp_path):
    path, protein = ubiquitin
    own = protein["seq"].replace("-", "X")
    fasta = tmp_path / "some.fa"
    fasta.write_text(f">the same, sample=1\n{own[:30]}\n{own[30:]}\n>all alanine\n{'A' * len(own)}\n")
    native, same, alanine = [json.loads(line) for line in
                             task("score", "--pdb_path", path, "--fasta", fasta, "--num_orders", 3).stdout.splitlines()]
    assert "fasta" not in native and same["fasta"] == "the same, sample=1" and alanine["fasta"] == "all alanine"
    assert same["score"] == native["score"] and same["sequence"] == native["sequence"]
    assert alanine["sequence"] == "A" * len(own)
    assert alanine["score"] > native["score"] + 0.5


def test_designs_are_scored_again_as_they_were_written(task, ubiquitin, tmp_path):
    designs = tmp_path / "designs.fa"
    task("design", "--pdb_path", ubiquitin[0], "--num_sequences", 2, "--out", designs)
    lines = [json.loads(line) for line in task("score", "--pdb_path", ubiquitin[0], "--fasta", designs).stdout.splitlines()]
    assert [line["sequence"] for line in lines[1:]] == [sequence for _, sequence in records(designs.read_text())]
    assert all(line["score"] < lines[0]["score"] for line in lines[2:])


@pytest.mark.parametrize("content,expected", [
    (">a\nACD\n", 'sequence "a" has 3 letters in part 1; .* has the designed chains A of'),
    ("ACD\n", "first line begins with >"), ("", "holds no sequence"),
    (">a\nACD/AC\n", "3 letters in part 1"), (">a\n" + "J" * 76 + "\n", 'has the letter "J"'),
])
def test_a_fasta_file_that_does_not_fit_is_refused(task, ubiquitin, tmp_path, content, expected):
    fasta = tmp_path / "bad.fa"
    fasta.write_text(content)
    done = task("score", "--pdb_path", ubiquitin[0], "--fasta", fasta, expect=2)
    assert re.search(expected, done.stderr), done.stderr


def test_weights_of_another_model_are_refused(task, ubiquitin):
    path, _ = ubiquitin
    alpha_carbons = reference.weights_file("v_48_020", "ca")
    assert "is of another model" in refusal(task("design", "--pdb_path", path, weights=alpha_carbons, expect=2))


def test_without_structures_it_says_what_to_give(task, tmp_path):
    assert "--pdb_path is required" in refusal(task("score", expect=2))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(empty) in refusal(task("score", "--pdb_path", empty, expect=3))
