"""`lockstep run protein --variant mdm`, the guide's masked side-chain model: beside a twin in PyTorch, over world sizes,
by the guide's own command lines, and the files that it leaves."""
import collections
import json
import math
import re
import shutil
import subprocess

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import mdm_twin
from programs import clean_environment, program, text, tools_folder
from runs import losses, records

TOLERANCE = 1e-4
QUICK = ["--log_every", "1", "--status_port", "0", "--threads", "1"]
SMALL = ["--hidden_dim", "32", "--num_heads", "4"]


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


def test_the_guides_files_load_into_the_twin_and_the_run_goes_on_from_a_checkpoint(run, lockstep, tmp_path):
    flags = ["--pdb_path", "generated:13:16", "--batch_scope", "total", "--batch_size", "13", "--lr", "0.001", "--val_split", "0"]
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


def test_the_first_loss_on_real_structures_is_near_that_of_a_guess(run, lockstep, structures, tmp_path):
    done = run([lockstep, "run", "protein", "--pdb_path", structures, "--cache_dir", tmp_path / "cache", "--save_dir",
                tmp_path / "run", "--batch_size", "2", "--max_steps", "1", *QUICK], timeout=600)
    assert done.returncode == 0, text(done)
    assert re.search(r"parameters\W+4420120: encoder 1034688, decoder 3385432", text(done)), text(done)
    assert 6.0 < losses(tmp_path / "run")[1] < 8.5
    assert (tmp_path / "run/best_model.pt").exists()


# --- the guide's lines

FLAGS = ["--epochs", "50", "--batch_size", "8", "--learning_rate", "1e-4", "--hidden_dim", "256", "--num_encoder_layers", "3",
         "--num_decoder_layers", "3", "--mask_ratio", "0.15", "--save_dir", "checkpoints"]
CACHE = ["--pdb_path", "data/cache", "--cache_dir", "data/cache"]
TWO_STEPS = ["--max_steps", "2"]
NAMES = {"A": "ALA", "R": "ARG", "N": "ASN", "D": "ASP", "C": "CYS", "Q": "GLN", "E": "GLU", "G": "GLY", "H": "HIS", "I": "ILE",
         "L": "LEU", "K": "LYS", "M": "MET", "F": "PHE", "P": "PRO", "S": "SER", "T": "THR", "W": "TRP", "Y": "TYR", "V": "VAL"}


def write_guides_cache(folder, count=20, length=30):
    """The guide's preprocessed `{pdb_id}.pt`."""
    folder.mkdir(parents=True)
    for number in range(count):
        backbone, letters = made_protein(length, number)
        with_chi = sum(letter not in "AG" for letter in letters)
        torch.save({"backbone_coords": backbone, "residue_types": [NAMES[letter] for letter in letters],
                    "fragment_token_ids": torch.tensor([token for letter in letters for token in mdm_twin.SIDE_CHAINS[letter]]),
                    "torsion_bins": torch.arange(with_chi) % mdm_twin.BINS, "sequence_length": length,
                    "pdb_path": f"data/{number}.pdb"}, folder / f"p{number:02}.pt")
    return folder


@pytest.fixture
def at_home(tmp_path):
    """A folder as the guide has it."""
    write_guides_cache(tmp_path / "data/cache")
    return tmp_path


# The guide's lines beside what stands for them here, as in docs/workloads/protein.md.
LINES = {
    "train.py --pdb_path data/cache --cache_dir data/cache … --batch_size 4": [*CACHE, *FLAGS, "--batch_size", "4"],
    "train.py --pdb_path data/pdbs": ["--pdb_path", "data/cache", *FLAGS],
    "torchrun --nproc_per_node=8": [*CACHE, *FLAGS, "--ddp", "--nproc_per_node=2"],
    "torchrun --nproc_per_node=8 --master_port=12356": [*CACHE, *FLAGS, "--ddp", "--nproc", "2", "--master_port", "12356"],
    "--learning_rate 8e-4 (8 x 1e-4)": [*CACHE, *FLAGS, "--learning_rate", "8e-4", "--ddp", "--nproc", "2"],
    "--learning_rate 2.83e-4": [*CACHE, *FLAGS, "--learning_rate", "2.83e-4", "--ddp", "--nproc", "2"],
    "--masking_strategy block --val_split 0.2 --num_heads 4 --weight_decay 1e-4": [
        *CACHE, *FLAGS, "--masking_strategy", "block", "--val_split", "0.2", "--num_heads", "4", "--weight_decay", "1e-4"],
    "--early_stopping_patience 5 --early_stopping_min_delta .01 --dropout 0.2": [
        *CACHE, *FLAGS, "--early_stopping_patience", "5", "--early_stopping_min_delta", ".01", "--dropout", "0.2"],
    "--ddp --local_rank -1 --world_size -1 --num_diffusion_steps 1000": [
        *CACHE, *FLAGS, "--ddp", "--nproc", "2", "--local_rank", "-1", "--world_size", "-1", "--num_diffusion_steps", "1000"]}


@pytest.mark.parametrize("line", LINES)
def test_each_of_the_guides_lines_trains_mdm(run, lockstep, at_home, line):
    flags = LINES[line]
    if line.startswith("--masking"):
        flags = [flag for at, flag in enumerate(flags) if "--mask_ratio" not in (flag, flags[at - 1])]
    done = run([lockstep, "run", "protein", *flags, *TWO_STEPS, *QUICK], cwd=at_home, CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert done.returncode == 0, text(done)
    args = dict(entry.split(",", 1) for entry in (at_home / "checkpoints/args.txt").read_text().splitlines())
    wanted = {"variant": "mdm", "optimizer": "adamw", "batch_scope": "per_device", "lr_schedule": "plateau",
              "clip_grad_norm": "1", "num_epochs": "50"}
    assert {name: args[name] for name in wanted} == wanted
    early = args["early_stop_patience"], args["early_stop_min_delta"]
    assert early == (("5", "0.01") if "early" in line else ("30", "0.001"))
    assert ("--num_diffusion_steps: without effect" in text(done)) == ("diffusion" in line)
    for row in (r"parameters +\d+: encoder", r"structures +\d+ from \S+", r"masked +\S+", r"device +cpu", r"batch +\d+ in all = "):
        assert re.search(row, text(done)), f"{row} is not in: {text(done)}"
    assert sorted(losses(at_home / "checkpoints")) == [1, 2]


@pytest.mark.parametrize("program", ["lockstep run", "lockstep-worker"])
def test_the_bare_line_with_ddp_says_what_is_missing(run, lockstep, worker, at_home, program):
    start = [lockstep, "run"] if program == "lockstep run" else [worker]
    done = run([*start, "protein", *CACHE, *FLAGS, "--ddp", *TWO_STEPS], cwd=at_home)
    assert done.returncode == 2, text(done)
    for word in ("--ddp", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "--nproc"):
        assert word in text(done), f"{word} is not in: {text(done)}"
    assert not (at_home / "checkpoints").exists()


def test_ddp_with_a_launchers_environment_trains_as_ours_does(run, lockstep, worker, at_home, free_port):
    line = ["protein", *CACHE, *FLAGS, "--ddp", *TWO_STEPS, *QUICK]
    port = str(free_port())
    ranks = [subprocess.Popen([worker, *line], cwd=at_home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=clean_environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                                                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port)) for rank in (0, 1)]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "".join(outputs)
    ours = run([lockstep, "run", *line, "--nproc", "2", "--save_dir", "ours"], cwd=at_home)
    assert ours.returncode == 0, text(ours)
    assert losses(at_home / "checkpoints") == losses(at_home / "ours")


# --- who validates


def test_the_guides_lists_say_who_trains_and_who_validates(run, lockstep, at_home):
    cache = at_home / "data/cache"
    lists = {"train.txt": range(12), "val.txt": range(12, 15), "test.txt": range(15, 18)}  # and two in none of them
    for name, numbers in lists.items():
        (cache / name).write_text("".join(f"p{number:02}\n" for number in numbers))
    line = [lockstep, "run", "protein", *CACHE, *SMALL, "--mask_ratio", "0.15", *TWO_STEPS, *QUICK]
    done = run([*line, "--use_predefined_split", "--save_dir", "listed"], cwd=at_home)
    assert done.returncode == 0, text(done)
    assert re.search(r"trained on +12\b", text(done)) and re.search(r"validated on +3\b", text(done)), text(done)
    assert "divided by test.txt, train.txt, val.txt" in " ".join(text(done).split())
    done = run([*line, "--save_dir", "drawn"], cwd=at_home)
    assert re.search(r"trained on +18\b", text(done)) and re.search(r"validated on +2\b", text(done)), text(done)
    assert "without --use_predefined_split, test.txt, train.txt, val.txt are not used" in " ".join(text(done).split()), text(done)

    (cache / "test.txt").write_text("p00\n")
    done = run([*line, "--use_predefined_split", "--save_dir", "twice"], cwd=at_home)
    assert done.returncode == 3 and "lists p00" in text(done), text(done)
    done = run([*line, "--save_dir", "ignored"], cwd=at_home)
    assert done.returncode == 0, text(done)
    (cache / "test.txt").unlink()
    (cache / "val.txt").unlink()
    done = run([*line, "--use_predefined_split", "--save_dir", "none"], cwd=at_home)
    assert done.returncode == 3 and "expected train.txt, val.txt and test.txt" in text(done), text(done)


# --- structures without side chains


def write_chain(path, residue, length=12):
    """A chain of N, CA, C and O."""
    path.write_text("".join(f"ATOM  {4 * i + j + 1:5d}  {atom:<3} {residue} A{i + 1:4d}    {3.8 * i + j:8.3f}{j % 2:8.3f}{0.5 * j:8.3f}"
                            f"  1.00 10.00           {atom[0]}\n"
                            for i in range(length) for j, atom in enumerate(("N", "CA", "C", "O"))))


def test_structures_without_side_chains_are_counted_and_an_error_where_there_are_no_others(run, lockstep, tmp_path):
    folder = tmp_path / "structures"
    folder.mkdir()
    line = [lockstep, "run", "protein", "--variant", "mdm", "--pdb_path", folder, "--train_dir", tmp_path / "run", *SMALL, *TWO_STEPS,
            *QUICK]
    for name in "ab":
        write_chain(folder / f"{name}.pdb", "GLY")
    done = run(line)
    assert done.returncode == 3, text(done)
    assert ("no structure is left to train on: 2 were read, 2 of them have no side chain of a standard residue with N, CA, C and O in "
            "their first chain") in " ".join(text(done).split())
    for name in "cde":
        write_chain(folder / f"{name}.pdb", "LEU")
    done = run(line)
    assert done.returncode == 0, text(done)
    assert f"5 from {folder}, 2 without side chains" in " ".join(text(done).split())
    # Without CB there is no torsion angle either.
    assert re.search(r"Val Loss: (\d+\.\d+) \(Fragment: \1, Torsion: -?nan\)", text(done)), text(done)
    assert (tmp_path / "run/best_model.pt").exists()


# --- what the files say of the training


def test_the_files_hold_the_losses_and_the_rate_that_the_plateau_has_left(run, lockstep, tmp_path):
    # With such a rate nothing improves: the plateau halves it at every evaluation but the first.
    done = train(run, lockstep, tmp_path / "run", *SMALL, "--num_epochs", "10", "--lr", "1e-9", "--plateau_patience", "0",
                 "--dropout", "0")
    saved = torch.load(tmp_path / "run/checkpoint_epoch_10.pt", weights_only=True)
    printed = [float(value) for value in re.findall(r"Epoch \d+: Train Loss: ([0-9.]+) \(Fragment", text(done))]
    assert len(printed) == 10 and saved["train_losses"] == pytest.approx(printed, abs=1e-4)
    by_epoch = {}
    for record in records(tmp_path / "run"):
        if "loss" in record:
            by_epoch.setdefault(record["epoch"], []).append(record["loss"])
    means = [sum(values) / len(values) for _, values in sorted(by_epoch.items())]
    assert saved["train_losses"] == pytest.approx(means, rel=1e-5)
    rate = saved["optimizer_state_dict"]["param_groups"][0]["lr"]
    assert rate < 0.1e-9 and saved["scheduler_state_dict"]["_last_lr"] == [rate]


def test_both_ranks_stop_early_after_as_many_evaluations_without_gain(run, lockstep, tmp_path):
    done = train(run, lockstep, tmp_path / "run", *SMALL, "--lr", "0", "--early_stop_patience", "2", "--nproc", "2", "--num_epochs",
                 "50")
    assert "stopped early at step 3" in text(done), text(done)
    found = [record for record in records(tmp_path / "run") if "valid_loss" in record]
    assert [record["epoch"] for record in found] == [1, 2, 3]
    assert len({record["valid_loss"] for record in found}) == 1, found
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3]


def as_the_guides_python_writes_it(path, target):
    """Of SMALL: the optimizer numbers the parameters."""
    saved = torch.load(path, weights_only=True)
    parts = {"encoder": mdm_twin.Encoder(width=32), "decoder": mdm_twin.Decoder(width=32, heads=4)}
    for name, part in parts.items():
        part.load_state_dict(saved[f"{name}_state_dict"])
    optimizer = torch.optim.AdamW([parameter for part in parts.values() for parameter in part.parameters()])
    optimizer.load_state_dict(saved["optimizer_state_dict"])
    state = optimizer.state_dict()
    state["param_groups"][0]["params"] = list(state["state"])
    assert state["param_groups"][0]["params"] == list(range(len(optimizer.param_groups[0]["params"])))
    torch.save({**saved, **{f"{name}_state_dict": part.state_dict() for name, part in parts.items()}, "optimizer_state_dict": state},
               target)


def test_resume_from_a_file_is_the_run_that_made_it(run, lockstep, tmp_path):
    # Some evaluations improve and some do not: plateau and patience are in the middle of their counts.
    flags = [*SMALL, "--lr", "0.003", "--plateau_patience", "0", "--batch_scope", "total", "--batch_size", "5", "--early_stop_patience",
             "9", "--early_stop_min_delta", "0"]
    train(run, lockstep, tmp_path / "whole", "--num_epochs", "20", *flags)
    wanted, file = losses(tmp_path / "whole"), tmp_path / "whole/checkpoint_epoch_10.pt"
    as_the_guides_python_writes_it(file, tmp_path / "guide.pt")
    for name, path in (("ours", file), ("guide", tmp_path / "guide.pt")):
        folder = tmp_path / name
        done = train(run, lockstep, folder, "--num_epochs", "20", *flags, "--resume", path, "--nproc", "1" if name == "ours" else "2")
        assert f"resumed from {path}, trained for 10 epochs: begins with epoch 11" in " ".join(text(done).split())
        found = losses(folder)
        assert min(found) == len(wanted) // 2 + 1
        for step, loss in found.items():
            assert loss == (wanted[step] if name == "ours" else pytest.approx(wanted[step], rel=1e-4)), f"step {step}"
        last, whole = (torch.load(one / "checkpoint_epoch_20.pt", weights_only=True) for one in (folder, tmp_path / "whole"))
        for field in ("val_losses", "train_losses"):
            assert last[field] == pytest.approx(whole[field], rel=1e-4) and len(last[field]) == 20
        assert last["scheduler_state_dict"]["_last_lr"] == pytest.approx(whole["scheduler_state_dict"]["_last_lr"])
    assert whole["scheduler_state_dict"]["_last_lr"][0] < 0.003
    # The same line again goes on from its own checkpoint.
    done = train(run, lockstep, tmp_path / "ours", "--num_epochs", "21", *flags, "--resume", file)
    assert "resumed from" in text(done) and len(losses(tmp_path / "ours")) == len(wanted) // 2 + len(wanted) // 20


@pytest.mark.parametrize("spoil, message", [
    (lambda saved: saved["encoder_state_dict"], "is of weights alone: give it with --state_dict_path"),
    (lambda saved: {**saved, "optimizer_state_dict": {"state": {}, "param_groups": []}}, "the optimizer's state has no exp_avg.encoder."),
    (lambda saved: {**saved, "val_losses": "none"}, "field train_losses or val_losses is missing or no list"),
    (lambda saved: {name: value for name, value in saved.items() if name != "epoch"}, "field epoch is missing or no number"),
    (lambda saved: {**saved, "encoder_state_dict": {}}, "missing, the first is")], ids=["weights", "moments", "losses", "epoch", "part"])
def test_a_file_that_cannot_be_gone_on_from_is_refused_by_name(run, lockstep, tmp_path, spoil, message):
    train(run, lockstep, tmp_path / "run", *SMALL, "--num_epochs", "1")
    torch.save(spoil(torch.load(tmp_path / "run/best_model.pt", weights_only=True)), tmp_path / "spoilt.pt")
    done = run([lockstep, "run", "protein", "--pdb_path", "generated:13:40", "--variant", "mdm", "--train_dir", tmp_path / "next",
                *QUICK, *SMALL, "--resume", tmp_path / "spoilt.pt"])
    assert done.returncode == 2, text(done)
    assert f"--resume {tmp_path / 'spoilt.pt'}" in text(done) and message in text(done), text(done)


def test_a_run_begins_behind_the_guides_file(run, lockstep, tmp_path):
    train(run, lockstep, tmp_path / "first", *SMALL, "--num_epochs", "10", "--lr", "0.003")
    first = torch.load(tmp_path / "first/checkpoint_epoch_10.pt", weights_only=True)
    wrapped = {part: {f"module.{name}": tensor for name, tensor in first[part].items()}  # as DistributedDataParallel names them
               for part in ("encoder_state_dict", "decoder_state_dict")}
    (tmp_path / "ddp").mkdir()
    torch.save({**first, **wrapped}, tmp_path / "ddp/checkpoint_epoch_10.pt")
    begun = []
    for name in ("first", "ddp"):
        folder = tmp_path / f"after-{name}"
        done = train(run, lockstep, folder, *SMALL, "--num_epochs", "11", "--state_dict_path", tmp_path / name / "checkpoint_epoch_10.pt")
        assert "trained for 10 epochs: begins with epoch 11" in text(done), text(done)
        begun.append(next(record for record in records(folder) if "loss" in record)["loss"])
    assert begun[1] == begun[0] < first["train_losses"][0]
    done = run([lockstep, "run", "protein", "--pdb_path", "generated", "--variant", "mdm", "--state_dict_path",
                tmp_path / "checkpoint_epoch_ten.pt"])
    assert done.returncode == 2 and 'found "ten" in the file\'s name' in text(done), text(done)


# --- it learns


@pytest.mark.long
def test_the_loss_falls_from_a_guess_to_below_the_entropy_of_the_files_own_frequencies(run, lockstep, tool, structures,
                                                                                      tmp_path):
    """From ln 16 + ln 72 = 7.05 to below what knowing how frequent each token and each bin is would give."""
    folder = tmp_path / "structures"
    folder.mkdir()
    for name in ("1ubi.pdb", "1ejg.pdb", "1a8o.pdb.gz", "1as5.cif.gz", "2beg.pdb.gz", "7pbl.pdb"):
        shutil.copy(structures / name, folder / name)
    read = subprocess.run([tool("structures_tool"), folder], capture_output=True, text=True, check=True)
    tokens, bins = collections.Counter(), collections.Counter()
    for line in map(json.loads, read.stdout.splitlines()):
        chain = next(chain for chain in line["chains"])
        for letter, chi1, flags in zip(chain["sequence"], chain["chi1"], chain["flags"]):
            if flags != 3:
                continue
            tokens.update(mdm_twin.SIDE_CHAINS[letter])
            if chi1 is not None:
                bins[int((chi1 + math.pi) / (2 * math.pi / mdm_twin.BINS)) % mdm_twin.BINS] += 1
    entropy = sum(-count / sum(counts.values()) * math.log(count / sum(counts.values()))
                  for counts in (tokens, bins) for count in counts.values())
    assert 4 < entropy < 6.5
    done = run([lockstep, "run", "protein", "--variant", "mdm", "--pdb_path", folder, "--train_dir", tmp_path / "run", "--val_split",
                "0", "--batch_size", "6", "--num_epochs", "300", "--eval_every", "50", "--early_stop_patience", "0", "--lr", "3e-4",
                "--log_every", "1", "--status_port", "0"], timeout=3000)
    assert done.returncode == 0, text(done)
    curve = losses(tmp_path / "run")
    assert 6.0 < curve[1] < 8.5
    valid = [one for one in records(tmp_path / "run") if "valid_loss" in one]
    assert valid[-1]["valid_loss"] < entropy, (valid[-1], entropy)


def test_its_checkpoints_are_refused_by_the_tasks_of_proteinmpnn(run, lockstep, tmp_path):
    train(run, lockstep, tmp_path / "run", *SMALL, "--max_steps", "1")
    done = run([lockstep, "protein", "score", "--checkpoint", tmp_path / "run", "--pdb_path", tmp_path / "run"])
    assert done.returncode == 2, text(done)
    assert "was trained with --variant mdm: give one of --variant mpnn" in text(done)


@pytest.mark.parametrize("flags,message", [
    (["--variant", "mdm", "--num_neighbors", "30"], "--num_neighbors is a flag of --variant mpnn"),
    (["--mask_ratio", "0.2", "--backbone_noise", "0"], "--backbone_noise is a flag of --variant mpnn"),
    (["--variant", "mpnn", "--mask_ratio", "0.2"], "--mask_ratio is a flag of --variant mdm"),
    (["--num_heads", "4"], "--num_heads is a flag of --variant mdm"),
    (["--num_diffusion_steps", "1000"], "--num_diffusion_steps is a flag of --variant mdm"),
    (["--gpu_ids", "0,1"], "CUDA_VISIBLE_DEVICES=0,1 lockstep run protein"),
    (["--variant", "mdm", "--world_size", "8"], '--world_size: found "8", expected -1: the ranks are those of --nproc'),
    (["--variant", "mdm", "--batch_tokens", "100"], "give --batch_size"),
    (["--variant", "mpnn", "--batch_size", "8"], "--batch_tokens"),
    (["--variant", "mdm", "--hidden_dim", "100"], "--hidden_dim 100: expected an even number that is divisible by --num_heads 8"),
    (["--save_dir", "a", "--train_dir", "b"], "--save_dir and --train_dir set the same folder")])
def test_a_flag_of_the_other_variant_is_an_error_that_names_it(run, lockstep, flags, message):
    done = run([lockstep, "run", "protein", "--pdb_path", "generated", *flags])
    assert done.returncode == 2, text(done)
    assert message in text(done)
