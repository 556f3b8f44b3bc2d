"""`lockstep run protein --variant mdm`, the guide's masked side-chain model: beside a twin in PyTorch, over world sizes,
by the guide's own command lines, and the files that it leaves."""
import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import mdm_twin
import protein_reference
from programs import program, tools_folder
from runs import losses, records

TOLERANCE = 1e-4
QUICK = ["--log_every", "1", "--status_port", "0", "--threads", "1"]
SMALL = ["--hidden_dim", "32", "--num_heads", "4"]


def text(done):
    return done.stdout + done.stderr


def made_protein(length, seed):
    """A chain of residues 3.8 Å apart and its side chains."""
    draw = torch.Generator().manual_seed(seed)
    steps = F.normalize(torch.randn(length, 3, generator=draw), dim=-1) * 3.8
    backbone = steps.cumsum(0)[:, None] + torch.randn(length, 4, 3, generator=draw)
    letters = "".join(list(mdm_twin.SIDE_CHAINS)[i] for i in torch.randint(20, [length], generator=draw))
    return backbone, letters


def made_batch(lengths):
    """Our tensors by the names of MdmInput, and the backbones one by one."""
    proteins = [made_protein(length, seed) for seed, length in enumerate(lengths)]
    tokens = [torch.tensor([token for letter in letters for token in mdm_twin.SIDE_CHAINS[letter]])
              for _, letters in proteins]
    fragments = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    draw = torch.Generator().manual_seed(9)
    is_masked = (torch.rand(fragments.shape, generator=draw) < 0.15) & (fragments != mdm_twin.PAD)
    masked = is_masked.flatten().nonzero().flatten()
    torsions = []
    for number, (_, letters) in enumerate(proteins):
        at = number * fragments.shape[1]
        for letter in letters:
            if letter not in "AG":
                torsions.append(at)
            at += len(mdm_twin.SIDE_CHAINS[letter])
    longest = max(lengths)
    batch = {"X_BL4C": torch.nn.utils.rnn.pad_sequence([backbone for backbone, _ in proteins], batch_first=True),
             "is_residue_BL": torch.arange(longest) < torch.tensor(lengths)[:, None],
             "fragments_BM": fragments.masked_fill(is_masked, mdm_twin.MASK), "masked_N": masked,
             "kinds_N": fragments.flatten()[masked], "torsions_T": torch.tensor(torsions),
             "bins_T": torch.randint(mdm_twin.BINS, [len(torsions)], generator=draw)}
    return batch, [backbone for backbone, _ in proteins]


def ours(what, twin, batch, folder):
    save_file({name: tensor.contiguous() for name, tensor in twin.state_dict().items()}, folder / "weights.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in batch.items()}, folder / "input.safetensors")
    done = subprocess.run([program(tools_folder() / "mdm_dump"), what, "--weights", folder / "weights.safetensors", "--input",
                           folder / "input.safetensors", "--out", folder / "out.safetensors"], capture_output=True,
                          text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "out.safetensors")


@pytest.fixture
def twin():
    torch.manual_seed(3)
    made = mdm_twin.Mdm(dropout=0.0)
    for parameter in made.parameters():  # biases and norms that are not 0 and 1, too
        parameter.data += 0.05 * torch.randn_like(parameter)
    return made


# --- the model beside its twin


def test_the_twin_has_the_published_number_of_parameters(twin):
    count = {part: sum(p.numel() for p in getattr(twin, part).parameters()) for part in ("encoder", "decoder")}
    assert count == {"encoder": 1_034_688, "decoder": 3_385_432}


def test_logits_of_a_padded_batch_agree_with_the_twin(twin, tmp_path):
    batch, backbones = made_batch([70, 12, 41])
    twin.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        fragments, bins = twin(backbones, batch["fragments_BM"])
    found = ours("logits", twin, batch, tmp_path)
    torch.testing.assert_close(found["fragments_NV"], fragments.flatten(0, 1)[batch["masked_N"]], rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(found["bins_TV"], bins.flatten(0, 1)[batch["torsions_T"]], rtol=TOLERANCE, atol=TOLERANCE)


def test_gradients_of_a_training_step_agree_with_the_twin(twin, tmp_path):
    batch, backbones = made_batch([55, 33])
    twin.train()
    fragments, bins = twin(backbones, batch["fragments_BM"])
    sums = [F.cross_entropy(fragments.flatten(0, 1)[batch["masked_N"]], batch["kinds_N"], reduction="sum"),
            F.cross_entropy(bins.flatten(0, 1)[batch["torsions_T"]], batch["bins_T"], reduction="sum")]
    (sums[0] / len(batch["kinds_N"]) + sums[1] / len(batch["bins_T"])).backward()
    found = ours("gradients", twin, batch, tmp_path)
    torch.testing.assert_close(found["sums"], torch.stack(sums).detach(), rtol=TOLERANCE, atol=TOLERANCE)
    wanted = dict(twin.named_parameters())
    assert {name.removeprefix("grad/") for name in found if name != "sums"} == set(wanted)
    # A bias of keys moves no softmax: rounding is all there is of its gradient.
    whole = max(parameter.grad.norm() for parameter in wanted.values())
    errors = {name: ((found["grad/" + name] - p.grad).norm() / torch.maximum(p.grad.norm(), 1e-3 * whole)).item()
              for name, p in wanted.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < TOLERANCE, f"{worst}: {errors[worst]:.1e} of its norm"


# --- runs


def train(run, lockstep, folder, *flags):
    done = run([lockstep, "run", "protein", "--pdb_path", "generated:13:40", "--variant", "mdm", "--train_dir", folder, *QUICK,
                *flags])
    assert done.returncode == 0, text(done)
    return done


def test_every_steps_loss_is_the_same_for_every_world_size(run, lockstep, tmp_path):
    curves, evaluations = {}, {}
    for ranks in (1, 2, 3):
        folder = tmp_path / f"w{ranks}"
        train(run, lockstep, folder, *SMALL, "--nproc", ranks, "--batch_scope", "total", "--batch_size", "5",
              "--num_epochs", "3", "--val_split", "0.3")
        curves[ranks] = losses(folder)
        evaluations[ranks] = [one["metrics"]["valid_loss"] if "metrics" in one else one["valid_loss"]
                              for one in records(folder) if "valid_loss" in str(one)]
    assert len(curves[1]) >= 6 and len(evaluations[1]) == 3
    for ranks in (2, 3):
        assert curves[ranks] == pytest.approx(curves[1], rel=1e-4)
        assert evaluations[ranks] == pytest.approx(evaluations[1], rel=1e-4)


def test_the_guides_files_load_into_the_twin_and_the_run_goes_on_from_a_checkpoint(run, lockstep, tmp_path):
    flags = ["--batch_scope", "total", "--batch_size", "13", "--lr", "0.001", "--val_split", "0"]
    done = train(run, lockstep, tmp_path / "run", "--num_epochs", "10", *flags)
    found = [float(value) for value in re.findall(r"Val Loss: ([0-9.]+) \(Fragment: [0-9.]+, Torsion: [0-9.]+\)", text(done))]
    assert len(found) == 10, text(done)
    saved = torch.load(tmp_path / "run/checkpoint_epoch_10.pt", weights_only=True)
    best = torch.load(tmp_path / "run/best_model.pt", weights_only=True)
    assert saved["epoch"] == 10
    assert saved["val_losses"] == pytest.approx(found, abs=1e-4)
    assert best["loss"] == min(saved["val_losses"]) < saved["val_losses"][0] - 0.3
    twin = mdm_twin.Mdm()
    for file in (saved, best):
        twin.encoder.load_state_dict(file["encoder_state_dict"])
        twin.decoder.load_state_dict(file["decoder_state_dict"])
    optimizer = torch.optim.AdamW(twin.parameters())
    optimizer.load_state_dict(saved["optimizer_state_dict"])
    parameters = list(twin.parameters())
    assert len(optimizer.state) == len(parameters)
    for parameter in parameters:
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape
        assert optimizer.state[parameter]["step"] == 10
    assert optimizer.param_groups[0]["lr"] == 0.001 and optimizer.param_groups[0]["weight_decay"] == 1e-5
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).load_state_dict(saved["scheduler_state_dict"])

    train(run, lockstep, tmp_path / "run", "--num_epochs", "20", *flags)
    again = torch.load(tmp_path / "run/checkpoint_epoch_20.pt", weights_only=True)
    assert len(again["val_losses"]) == 20 and again["val_losses"][:10] == saved["val_losses"]


@pytest.fixture(scope="module")
def structures():
    return protein_reference.structures_folder()


def test_the_first_loss_on_real_structures_is_near_that_of_a_guess(run, lockstep, structures, tmp_path):
    done = run([lockstep, "run", "protein", "--pdb_path", structures, "--cache_dir", tmp_path / "cache", "--save_dir",
                tmp_path / "run", "--batch_size", "2", "--max_steps", "1", *QUICK], timeout=600)
    assert done.returncode == 0, text(done)
    assert re.search(r"parameters\W+4420120: encoder 1034688, decoder 3385432", text(done)), text(done)
    assert 6.0 < losses(tmp_path / "run")[1] < 8.5
    assert (tmp_path / "run/best_model.pt").exists()


# --- the guide's lines

LINE = ["--epochs", "50", "--batch_size", "8", "--learning_rate", "1e-4", "--hidden_dim", "256", "--num_encoder_layers", "3",
        "--num_decoder_layers", "3", "--mask_ratio", "0.15", "--save_dir", "checkpoints", "--max_steps", "2"]


@pytest.mark.parametrize("ranks", [[], ["--nproc", "2"]], ids=["alone", "two ranks"])
def test_the_guides_flags_mean_mdm_and_train(run, lockstep, tmp_path, ranks):
    done = run([lockstep, "run", "protein", "--pdb_path", "generated:20:30", *LINE, *QUICK, *ranks], cwd=tmp_path)
    assert done.returncode == 0, text(done)
    args = dict(line.split(",", 1) for line in (tmp_path / "checkpoints/args.txt").read_text().splitlines())
    wanted = {"variant": "mdm", "optimizer": "adamw", "lr": "0.0001", "batch_size": "8", "batch_scope": "per_device",
              "lr_schedule": "plateau", "clip_grad_norm": "1", "weight_decay": "1e-05", "num_epochs": "50"}
    assert {name: args[name] for name in wanted} == wanted


@pytest.mark.parametrize("flags,message", [
    (["--variant", "mdm", "--num_neighbors", "30"], "--num_neighbors is a flag of --variant mpnn"),
    (["--mask_ratio", "0.2", "--backbone_noise", "0"], "--backbone_noise is a flag of --variant mpnn"),
    (["--variant", "mpnn", "--mask_ratio", "0.2"], "--mask_ratio is a flag of --variant mdm"),
    (["--num_heads", "4"], "--num_heads is a flag of --variant mdm"),
    (["--variant", "mdm", "--batch_tokens", "100"], "give --batch_size"),
    (["--variant", "mpnn", "--batch_size", "8"], "--batch_tokens"),
    (["--variant", "mdm", "--hidden_dim", "100"], "--hidden_dim 100: expected an even number that is divisible by --num_heads 8"),
    (["--save_dir", "a", "--train_dir", "b"], "--save_dir and --train_dir are one thing")])
def test_a_flag_of_the_other_variant_is_an_error_that_names_it(run, lockstep, flags, message):
    done = run([lockstep, "run", "protein", "--pdb_path", "generated", *flags])
    assert done.returncode == 2, text(done)
    assert message in text(done)
