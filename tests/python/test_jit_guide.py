"""The JiT guide's own command lines, on CPUs: its scripts and flags, its weight files, its figures for Weights & Biases."""
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys

import pytest
import torch

from jit_twin import JiT
from programs import ROOT, bin_folder, clean_environment, program, text
from runs import Running, losses, records, weights

ONE, MANY, SYNC = (ROOT / "scripts" / name for name in ("train.sh", "train_multi_gpu.sh", "wandb_sync.py"))
SMALL = ["--model", "3x64/4", "--img_size", "16", "--sample_images", "0", "--threads", "1", "--status_port", "0", "--log_every", "1"]
TWIN = (16, 4, 3, 3, 64, 1, 32, 1)  # of SMALL, with three classes


def start(argv, folder, **environment):
    program(bin_folder() / "lockstep-worker")
    environment = clean_environment(**environment)
    environment["PATH"] = f"{bin_folder()}:{os.path.dirname(sys.executable)}:{environment['PATH']}"
    return subprocess.run([str(word) for word in argv], cwd=folder, capture_output=True, text=True, check=False, timeout=300,
                          env=environment)


def train(folder, *flags):
    done = start(["lockstep", "run", "jit", "--data_path", "generated:60:3", "--output_dir", "run", "--batch_size", "12",
                  "--batch_scope", "total", "--warmup_epochs", "1", *SMALL, *flags], folder)
    assert done.returncode == 0, text(done)
    return folder / "run"


def args_of(folder):
    return dict(line.split(",", 1) for line in (folder / "args.txt").read_text().splitlines())


@pytest.fixture
def at_home(tmp_path):
    """A folder as the guide has it: pictures in ./data/train."""
    from PIL import Image
    draw = random.Random(4)
    for label in ("cat", "dog"):
        folder = tmp_path / "data" / "train" / label
        folder.mkdir(parents=True)
        for i in range(6):
            Image.frombytes("RGB", (20, 16), draw.randbytes(20 * 16 * 3)).save(folder / f"{i}.png")
    return tmp_path


# --- the scripts


def test_the_script_for_several_gpus_trains_the_guides_recipe_into_its_folder(at_home):
    done = start([MANY, "2", *SMALL, "--max_steps", "2"], at_home, BATCH_SIZE="2", GRADIENT_ACCUMULATION_STEPS="3", USE_AMP="false")
    assert done.returncode == 0, text(done)
    assert "effective batch: 2 x 2 ranks x 3 = 12" in done.stdout
    args = args_of(at_home / "output")
    wanted = {"preset": "guide", "nproc": "2", "batch_size": "2", "grad_accum_steps": "3", "batch_scope": "per_device",
              "use_amp": "false", "lr": "1e-04", "lr_schedule": "cosine", "warmup_epochs": "5", "weight_decay": "0.01",
              "clip_grad_norm": "1", "adam_beta2": "0.999", "ema_decay": "0", "num_epochs": "100"}
    assert {name: args[name] for name in wanted} == wanted
    assert sorted(losses(at_home / "output")) == [1, 2]


def test_the_script_for_one_gpu_takes_the_guides_flags(at_home):
    done = start([ONE, *SMALL, "--max_steps", "2", "--lr", "5e-5", "--use_amp", "--gradient_accumulation_steps", "2",
                  "--max_grad_norm", "0.5", "--log_interval", "1", "--save_interval", "10", "--output_dir", "./run/jit_v1",
                  "--use_wandb", "--wandb_project", "mine", "--wandb_name", "first", "--wandb_entity", "me"], at_home, BATCH_SIZE="3")
    assert done.returncode == 0, text(done)
    args = args_of(at_home / "run" / "jit_v1")
    wanted = {"nproc": "1", "lr": "5e-05", "grad_accum_steps": "2", "clip_grad_norm": "0.5", "use_amp": "true", "batch_size": "3"}
    assert {name: args[name] for name in wanted} == wanted
    run = json.loads((at_home / "run" / "jit_v1" / "wandb" / "run.json").read_text())
    assert (run["project"], run["name"], run["entity"]) == ("mine", "first", "me")


def test_the_scripts_defaults_do_not_overrule_a_configuration_file(at_home):
    (at_home / "run.yaml").write_text("data_path: data/train\noutput_dir: mine\nbatch_size: 3\nuse_amp: false\nnproc: 1\n")
    done = start([MANY, "--config", "run.yaml", *SMALL, "--max_steps", "2"], at_home, GRADIENT_ACCUMULATION_STEPS="2")
    assert done.returncode == 0, text(done)
    args = args_of(at_home / "mine")
    wanted = {"preset": "paper", "nproc": "1", "batch_size": "3", "grad_accum_steps": "2", "use_amp": "false"}
    assert {name: args[name] for name in wanted} == wanted
    done = start([ONE, "--config=run.yaml", *SMALL, "--max_steps", "4", "--batch_size", "2"], at_home, BATCH_SIZE="5")
    assert done.returncode == 2 and "batch_size" in text(done), text(done)  # another run's folder: given flags count


def test_the_torchrun_line_and_the_script_train_the_same(at_home, free_port):
    assert start([MANY, *SMALL, "--max_steps", "2"], at_home, BATCH_SIZE="4").returncode == 0
    line = ["--preset", "guide", "--data_path", "./data/train", "--batch_size", "4", "--epochs", "100", "--use_amp", "--use_wandb",
            "--output_dir", "torchrun", *SMALL, "--max_steps", "2"]
    done = start(["torchrun", "--no-python", "--nproc_per_node=2", f"--master_port={free_port()}", "lockstep-worker", "jit", *line],
                 at_home)
    assert done.returncode == 0, text(done)
    assert losses(at_home / "torchrun") == losses(at_home / "output")
    done = start([sys.executable, "-m", "torch.distributed.launch", "--use_env", "--no_python", "--nproc_per_node=2",
                  f"--master_port={free_port()}", "lockstep-worker", "jit", *line, "--output_dir", "launch"], at_home)
    assert done.returncode == 0, text(done)
    assert losses(at_home / "launch") == losses(at_home / "output")


@pytest.mark.long  # 130 million parameters
def test_the_guides_line_trains_the_published_model(at_home):
    done = start([MANY, "2", "--model", "JiT-B/4", "--img_size", "64", "--epochs", "100", "--lr", "1e-4", "--sample_images", "0",
                  "--max_steps", "2", "--status_port", "0"], at_home, BATCH_SIZE="1")
    assert done.returncode == 0, text(done)
    assert sorted(losses(at_home / "output")) == [1, 2]
    shutil.rmtree(at_home / "output")  # gigabytes, which pytest would keep


@pytest.mark.parametrize("argv, environment, words", [
    ([MANY, "all"], {}, ['NUM_GPUS: found "all"', "a number of ranks from 1"]),
    ([MANY, "0"], {}, ['NUM_GPUS: found "0"']),
    ([ONE], {"BATCH_SIZE": "many"}, ['BATCH_SIZE: found "many"', "unset it for 64"]),
    ([ONE], {"GRADIENT_ACCUMULATION_STEPS": "-1"}, ['GRADIENT_ACCUMULATION_STEPS: found "-1"']),
    ([ONE], {"USE_AMP": "maybe"}, ['USE_AMP: found "maybe"', "true or false"]),
    ([ONE], {"LOCKSTEP_BIN": "/nowhere"}, ["/nowhere/lockstep is not there", "LOCKSTEP_BIN"]),
    ([ONE, "--nonsense"], {}, ["--nonsense"]),
], ids=["a word", "none", "batch", "accumulation", "amp", "no programs", "flag"])
def test_the_scripts_say_what_they_expect(tmp_path, argv, environment, words):
    done = start(argv, tmp_path, **environment)
    assert done.returncode == 2, text(done)
    for word in words:
        assert word in text(done), f"{word!r} is not in: {text(done)}"


# --- weight files


def test_the_weight_files_are_those_of_the_guides_python(tmp_path):
    folder = train(tmp_path, "--num_epochs", "4", "--eval_every", "2", "--save_interval", "2", "--preset", "guide", "--lr", "0.002",
                   "--nproc", "4")
    assert sorted(path.name for path in folder.glob("*.pth")) == ["best_model.pth", "checkpoint_epoch_2.pth", "checkpoint_epoch_4.pth"]
    file = torch.load(folder / "checkpoint_epoch_4.pth", weights_only=True)
    assert set(file) == {"epoch", "model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "loss"}
    model = JiT(*TWIN)
    # The published code's module has its fixed positions as a parameter.
    torch.testing.assert_close(file["model_state_dict"].pop("net.pos_embed"), model.net.positions()[None])
    model.load_state_dict(file["model_state_dict"], strict=True)
    assert all(model.state_dict()[name].equal(tensor) for name, tensor in weights(folder).items())
    assert file["epoch"] == 3  # the guide begins again with epoch + 1
    found = [record["valid_loss"] for record in records(folder) if "valid_loss" in record]
    assert file["loss"] == found[-1]
    assert torch.load(folder / "best_model.pth", weights_only=True)["loss"] == min(found)


def test_the_guides_optimizer_and_schedule_go_on_from_the_file(tmp_path):
    folder = train(tmp_path, "--num_epochs", "4", "--eval_every", "2", "--save_interval", "2", "--preset", "guide", "--lr", "0.002")
    file = torch.load(folder / "checkpoint_epoch_2.pth", weights_only=True)
    model = JiT(*TWIN)
    named = dict(model.named_parameters())
    ours = file["optimizer_state_dict"]
    names = ours["param_groups"][0]["params"]
    assert sorted(names) == sorted(named)
    optimizer = torch.optim.AdamW([named[name] for name in names], lr=0.002, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    optimizer.load_state_dict(ours)
    schedule.load_state_dict(file["scheduler_state_dict"])
    assert schedule.last_epoch == 8 and optimizer.param_groups[0]["weight_decay"] == 0.01
    for name in names:
        state = optimizer.state[named[name]]
        assert state["exp_avg"].shape == named[name].shape and state["step"] == 8 and state["exp_avg_sq"].max() > 0
    # The rate of the step after it: 4 steps of warm-up, then half a cosine over 12.
    assert ours["param_groups"][0]["lr"] == pytest.approx(0.002 * (1 + math.cos(math.pi * 4 / 12)) / 2)


def test_training_goes_on_from_a_file_of_the_guide(tmp_path):
    folder = train(tmp_path, "--num_epochs", "2", "--eval_every", "2", "--lr", "0.002", "--ema_decay", "0")
    saved = torch.load(folder / "best_model.pth", weights_only=True)
    # As DistributedDataParallel names them.
    wrapped = {f"module.{name}": tensor for name, tensor in saved["model_state_dict"].items()}
    torch.save({**saved, "model_state_dict": wrapped}, tmp_path / "wrapped.pth")
    done = start(["lockstep", "run", "jit", "--data_path", "generated:60:3", "--output_dir", "next", "--batch_size", "12", *SMALL,
                  "--max_steps", "1", "--state_dict_path", "wrapped.pth"], tmp_path)
    assert done.returncode == 0, text(done)
    assert losses(tmp_path / "next")[1] < 0.9 * losses(folder)[1]


def as_the_guides_python_writes_it(path, target):
    """Of TWIN: the optimizer numbers the parameters in the module's order, its fixed positions among them."""
    saved = torch.load(path, weights_only=True)
    model, ours = saved["model_state_dict"], saved["optimizer_state_dict"]
    names = ["net.pos_embed", *dict(JiT(*TWIN).named_parameters())]
    optimizer = torch.optim.AdamW([torch.nn.Parameter(model[name], name in ours["state"]) for name in names])
    state = {number: ours["state"][name] for number, name in enumerate(names) if name in ours["state"]}
    optimizer.load_state_dict({"state": state, "param_groups": [{**ours["param_groups"][0], "params": list(range(len(names)))}]})
    torch.save({**saved, "model_state_dict": {name: model[name] for name in names},
                "optimizer_state_dict": optimizer.state_dict()}, target)
    assert len(state) == len(names) - 1


def test_resume_from_a_file_is_the_run_that_made_it(tmp_path):
    flags = ["--num_epochs", "4", "--eval_every", "2", "--save_interval", "2", "--preset", "guide", "--lr", "0.002"]
    folder = train(tmp_path, *flags)
    as_the_guides_python_writes_it(folder / "checkpoint_epoch_2.pth", tmp_path / "guide.pth")
    wanted = losses(folder)
    for name, file in (("ours", "run/checkpoint_epoch_2.pth"), ("guide", "guide.pth")):
        done = start(["lockstep", "run", "jit", "--data_path", "generated:60:3", "--batch_size", "12", "--batch_scope", "total",
                      "--warmup_epochs", "1", *SMALL, *flags, "--output_dir", name, "--resume", file], tmp_path)
        assert done.returncode == 0, text(done)
        assert losses(tmp_path / name) == {step: wanted[step] for step in range(9, 17)} and len(wanted) == 16
        ours, other = weights(tmp_path / name), weights(folder)
        assert all(ours[name].equal(other[name]) for name in other)


def test_the_best_file_of_a_resumed_run_is_the_best_of_both(tmp_path):
    folder = train(tmp_path, "--num_epochs", "2", "--eval_every", "1", "--lr", "0.002")
    best = torch.load(folder / "best_model.pth", weights_only=True)["loss"]
    # A rate that spoils what was learnt: nothing gets better.
    done = start(["lockstep", "run", "jit", "--data_path", "generated:60:3", "--resume", sorted(folder.glob("step-*"))[-1],
                  "--output_dir", "run", "--batch_size", "12", "--batch_scope", "total", "--warmup_epochs", "1", *SMALL,
                  "--num_epochs", "4", "--eval_every", "1", "--lr", "0.002"], tmp_path)
    assert done.returncode == 0, text(done)
    found = [record["valid_loss"] for record in records(folder) if "valid_loss" in record]
    assert len(found) == 4 and torch.load(folder / "best_model.pth", weights_only=True)["loss"] == min(found) <= best


@pytest.mark.parametrize("flags, said", [
    (["--save_interval", "5"], "--save_interval 5: checkpoint files are written only at evaluations, which run every 10 epochs"),
    (["--save_interval", "5", "--eval_every", "0"], "at the end alone (--eval_every 0)"),
    (["--output_dir", "a", "--train_dir", "b"], "--output_dir and --train_dir set the same folder"),
    (["--save_interval", "0"], "--save_interval"),
])
def test_flags_that_contradict_each_other_are_refused(tmp_path, flags, said):
    done = start(["lockstep", "run", "jit", "--data_path", "generated:60:3", *SMALL, *flags], tmp_path)
    assert done.returncode == 2 and said in text(done), text(done)


# --- Weights & Biases


def wandb_lines(folder):
    return [json.loads(line) for line in (folder / "wandb" / "metrics.jsonl").read_text().splitlines()]


def test_the_figures_have_the_guides_names(tmp_path):
    folder = train(tmp_path, "--num_epochs", "2", "--eval_every", "1", "--use_wandb", "--nproc", "2")
    lines = wandb_lines(folder)
    steps = [line for line in lines if "train/loss" in line]
    assert [line["train/step"] for line in steps] == list(range(1, 9))
    assert {line["step"]: line["train/loss"] for line in steps} == losses(folder)
    assert all({"train/learning_rate", "train/grad_norm", "train/samples_per_second", "train/epoch"} <= set(line) for line in steps)
    epochs = [line for line in lines if "train/epoch_loss" in line]
    assert [line["train/epoch"] for line in epochs] == [1, 2]
    means = [sum(losses(folder)[step] for step in range(first, first + 4)) / 4 for first in (1, 5)]
    assert [line["train/epoch_loss"] for line in epochs] == pytest.approx(means, rel=1e-5)
    assert epochs[1]["train/best_loss"] == min(line["train/epoch_loss"] for line in epochs)
    assert all(line["train/epoch_time"] > 0 and line["eval/valid_loss"] > 0 for line in epochs)
    run = json.loads((folder / "wandb" / "run.json").read_text())
    assert (run["project"], run["name"], run["entity"]) == ("jit-diffusion", "run", "")
    assert run["config"]["batch_size"] == "12" and run["config"]["model"] == "3x64/4"


def test_a_resumed_run_keeps_its_name_and_its_lines_once(tmp_path):
    folder = train(tmp_path, "--max_steps", "6", "--eval_every", "1", "--use_wandb")
    before = json.loads((folder / "wandb" / "run.json").read_text())["id"], wandb_lines(folder)[-1]["train/best_loss"]
    train(tmp_path, "--max_steps", "12", "--eval_every", "1", "--use_wandb")
    lines = wandb_lines(folder)
    assert json.loads((folder / "wandb" / "run.json").read_text())["id"] == before[0]
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 13))
    assert lines[-1]["train/best_loss"] <= before[1]


def test_without_the_flag_there_is_no_folder_for_it(tmp_path):
    assert not (train(tmp_path, "--max_steps", "1") / "wandb").exists()


def sync(folder, *flags, **environment):
    return subprocess.run([sys.executable, SYNC, folder, *flags], capture_output=True, text=True, check=False, timeout=120,
                          env=clean_environment(HOME=str(folder.parent), **environment))


def sent_by(wandb_file):
    """step → figures in a file of the wandb package: a log of records in blocks of 32 KiB, behind seven bytes."""
    from wandb.proto import wandb_internal_pb2
    data, at, whole, steps, run = wandb_file.read_bytes(), 7, b"", {}, None
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at:at + 7])
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the end of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.HasField("run"):
                run = record.run
            if record.HasField("history"):
                figures = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                steps.setdefault(figures["train/step"], {}).update(figures)
    return run, steps


def test_the_package_takes_what_is_sent_each_line_once(tmp_path):
    folder = train(tmp_path, "--max_steps", "6", "--eval_every", "1", "--use_wandb", "--wandb_name", "mine")
    done = sync(folder, WANDB_MODE="offline")
    assert done.returncode == 0, text(done)
    first, = folder.glob("wandb/offline-run-*/*.wandb")
    run, steps = sent_by(first)
    assert (run.project, run.display_name) == ("jit-diffusion", "mine")
    assert {step: figures["train/loss"] for step, figures in steps.items()} == losses(folder)
    assert steps[4]["train/epoch_loss"] == steps[4]["train/best_loss"]  # the evaluation of that step
    again = sync(folder, WANDB_MODE="offline")
    assert again.returncode == 0 and "there is nothing new" in text(again)
    train(tmp_path, "--max_steps", "9", "--eval_every", "1", "--use_wandb", "--wandb_name", "mine")
    assert sync(folder, "--follow", "--idle", "0", WANDB_MODE="offline").returncode == 0
    others = [sent_by(path) for path in folder.glob("wandb/offline-run-*/*.wandb") if path != first]
    assert [(sorted(steps), other.run_id) for other, steps in others] == [([7, 8, 9], run.run_id)]


@pytest.mark.long  # it waits for silence
def test_what_is_written_while_the_script_follows_is_sent(tmp_path):
    folder = train(tmp_path, "--max_steps", "2", "--use_wandb")
    following = Running([sys.executable, SYNC, folder, "--follow", "--idle", "10"], tmp_path, HOME=str(tmp_path), WANDB_MODE="offline")
    following.wait_for((folder / "wandb" / "sent.json").exists, "the first lines")
    train(tmp_path, "--max_steps", "6", "--use_wandb")
    assert following.end() == 0, following.output()
    file, = folder.glob("wandb/offline-run-*/*.wandb")
    assert {step: figures["train/loss"] for step, figures in sent_by(file)[1].items()} == losses(folder)


def test_without_a_login_the_figures_stay(tmp_path):
    folder = train(tmp_path, "--max_steps", "2", "--use_wandb")
    done = sync(folder)
    assert done.returncode == 0, text(done)
    assert "knows no login" in text(done) and f"the figures stay in {folder}/wandb" in text(done)
    assert "Traceback" not in text(done)


@pytest.mark.long  # the package gives up after half a minute
def test_without_a_network_the_figures_stay_and_are_sent_later(tmp_path):
    folder = train(tmp_path, "--max_steps", "2", "--use_wandb")
    before = (folder / "wandb" / "metrics.jsonl").read_bytes()
    done = sync(folder, WANDB_BASE_URL="http://127.0.0.1:1", WANDB_API_KEY="0123456789" * 4)
    assert done.returncode == 0, text(done)
    assert "cannot be reached" in text(done) and f"the figures stay in {folder}/wandb" in text(done)
    assert "Traceback" not in text(done)
    assert (folder / "wandb" / "metrics.jsonl").read_bytes() == before
    assert sync(folder, WANDB_MODE="offline").returncode == 0
    steps = {}
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        steps.update(sent_by(path)[1])
    assert {step: figures["train/loss"] for step, figures in steps.items()} == losses(folder)


def test_without_the_package_the_figures_stay(tmp_path):
    folder = train(tmp_path, "--max_steps", "2", "--use_wandb")
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "wandb.py").write_text("raise ImportError('none is installed')\n")
    done = sync(folder, PYTHONPATH=str(tmp_path / "stand_in"))
    assert done.returncode == 0 and "pip install wandb" in text(done), text(done)


def test_a_folder_of_another_run_is_refused(tmp_path):
    done = sync(tmp_path)
    assert done.returncode == 2 and "run.json is not there" in text(done) and "--use_wandb" in text(done)
