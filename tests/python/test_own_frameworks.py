"""Programs of frameworks under `lockstep launch --recover`: a lost rank costs one new rank where the framework knows its place in training, and
a start of all ranks, which is said, where nobody does."""
import subprocess
import sys

import pytest

from own_runs import OWN, PACKAGE, VENV, launch, losses_of, own  # noqa: F401
from programs import ROOT, clean_environment, text
from test_launch import PROGRAMS

TRAINER, LIGHTNING = OWN / "hf_trainer.py", OWN / "lightning_trainer.py"
# Steps that are logged, evaluated and saved are among them, the first one and the last one of an epoch, and what comes after the last epoch.
KILLS = {
    "epochs": ["0:1:forward", "1:2:backward", "2:3:log", "0:4:optimizer_step", "1:5:reduced", "2:7:step_begin", "0:8:prediction_step",
               "1:12:train_end"],
    "own loader": ["0:1:backward", "1:3:log", "2:6:forward", "0:7:reduced"],
    "steps": ["0:0:prediction_step", "1:2:backward", "2:3:log", "0:5:prediction_step", "1:5:optimizer_step", "2:7:reduced", "0:9:step_end"],
    "workers": ["1:1:backward", "2:3:reduced", "0:4:save", "1:8:epoch_begin", "0:10:forward"],
}

# Batches are counted from 0; 7 are an epoch.
LIGHTNING_KILLS = {
    "epochs": ["0:1:forward", "1:3:backward", "2:5:reduced", "0:5:batch end", "1:6:validation", "2:6:epoch end", "0:13:save", "1:13:epoch begin",
               "0:20:validated", "2:20:train end"],
    "steps": ["2:0:forward", "1:1:reduced", "0:3:validation", "1:4:backward", "2:5:save", "0:6:batch end", "1:9:forward", "2:12:train end"],
    "workers": ["1:1:backward", "2:5:reduced", "0:8:forward", "1:13:save", "2:15:batch end"],
    "manual": ["0:1:forward", "1:2:reduced", "2:4:backward", "0:5:batch end", "1:6:validation", "2:9:forward"],
    "two loaders": ["0:1:backward", "2:5:reduced", "1:10:forward"],
    "stream": ["1:1:backward", "0:5:reduced", "2:8:forward"],
}


def made_by(folder, ranks=3):
    """Of each rank: each batch's loss, what it has logged, and a digest of what it holds at the end."""
    return [(losses_of(folder, rank), set((folder / f"logs-{rank}.txt").read_text().splitlines()), (folder / f"end-{rank}.txt").read_text())
            for rank in range(ranks)]


def assert_same(disturbed, expected, batches=16):
    """`batches`: at least so many were made."""
    for (losses, logs, end), (all_losses, all_logs, expected_end) in zip(disturbed, expected, strict=True):
        assert len(all_losses) >= batches and losses.items() <= all_losses.items()
        assert (logs, end) == (all_logs, expected_end)


@pytest.fixture
def train(own):  # noqa: F811
    """Runs the program of transformers' Trainer, or another, to its end; its folder."""
    def call(case, *kills, program=TRAINER, flags=("--recover",), more=(), **how):
        return own(case, *kills, program=program, flags=flags, more=more, HF_HUB_OFFLINE="1", **how)
    return call


@pytest.mark.parametrize("case", ["own loader", *(pytest.param(case, marks=pytest.mark.long) for case in KILLS if case != "own loader")])
def test_a_lost_rank_changes_no_bit_of_what_a_trainer_computes(train, case):
    """Dropout, accumulation, masks that the collator draws, logs, evaluations, checkpoints, the best model at the end: unchanged code."""
    disturbed = train(case, *KILLS[case])
    said = (disturbed / "output").read_text()
    assert said.count("the others keep their state") == len(KILLS[case]) and "starting all ranks again" not in said, said
    assert_same(made_by(disturbed), made_by(train(case)))


@pytest.mark.parametrize("case", ["two loaders", *(pytest.param(case, marks=pytest.mark.long) for case in LIGHTNING_KILLS if case != "two loaders")])
def test_a_lost_rank_changes_no_bit_of_what_lightning_computes(train, case):
    """Dropout, BatchNorm, accumulation, sync_dist, torchmetrics, validations in mid-epoch, checkpoints, an average of the weights."""
    disturbed = train(case, *LIGHTNING_KILLS[case], program=LIGHTNING)
    said = (disturbed / "output").read_text()
    assert said.count("the others keep their state") == len(LIGHTNING_KILLS[case]) and "starting all ranks again" not in said, said
    assert_same(made_by(disturbed), made_by(train(case, program=LIGHTNING)), batches=13)


@pytest.mark.long
@pytest.mark.parametrize("how", ["the package's own", "two ranks", "not forked", "its other name"])
@pytest.mark.parametrize("program", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_a_trainer_recovers_in_each_way_to_start_it(train, program, how):
    if program == TRAINER and how == "its other name":
        pytest.skip("transformers has one name")
    ways = {"the package's own": {"flags": (), "more": ["--package"]}, "two ranks": {"ranks": 2}, "not forked": {"flags": ("--recover", "--no_zygote")},
            "its other name": {"more": ["--name", "pytorch_lightning"]}}
    kills = (["0:1:forward", "1:3:reduced", "0:5:prediction_step", "1:7:backward"] if program == TRAINER else
             ["0:1:forward", "1:3:reduced", "0:5:validation", "1:7:backward"])
    folders = [train("steps", *these, program=program, **ways[how]) for these in (kills, [])]
    ranks = ways[how].get("ranks", 3)
    assert "starting all ranks again" not in (folders[0] / "output").read_text()
    assert_same(*[made_by(folder, ranks) for folder in folders], batches=16 if program == TRAINER else 13)


@pytest.mark.long
@pytest.mark.parametrize("program", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_under_torchrun_the_packages_own_is_that_of_the_framework(tmp_path, program):
    made = []
    for more in ([], ["--package"]):
        folder = tmp_path / ("package" if more else "plain")
        folder.mkdir()
        subprocess.run([VENV / "torchrun", "--standalone", "--nproc_per_node", "2", program, "--folder", folder, *more], check=program == TRAINER, timeout=300,
                       env=clean_environment(PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"))
        made.append(made_by(folder, ranks=2))  # also where at Python's end torch's threads of Gloo have aborted a program of Lightning's
    assert made[0] == made[1]


def test_a_loop_that_says_nothing_of_itself_is_started_again_as_a_whole(launch, tmp_path):  # noqa: F811
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder, more in ((undisturbed, []), (disturbed, ["--fail_at", "6"])):
        folder.mkdir()
        done = launch("--recover", PROGRAMS / "ddp.py", "--folder", folder, *more, ranks=2)
        assert done.returncode == 0, text(done)
        assert text(done).count("--recover cannot know where this program's loop is") == (2 if more else 1), text(done)
    assert "starting all ranks again" in text(done), text(done)
    assert set((undisturbed / "losses.txt").read_text().splitlines()) == set((disturbed / "losses.txt").read_text().splitlines())


TWICE = """
import torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def forward(self, x):
        return {"loss": self.net(x).sum()}
arguments = TrainingArguments(output_dir="out", max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")
trainer = Trainer(model=Model(), args=arguments, train_dataset=[{"x": torch.ones(2)}] * 64)
trainer.train()
"""
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([{"x": torch.ones(2)}] * 64)
trainer.train_dataset = Stream()
"""
# Its ranks have another loss each, so a lost one shows in what all compute.
LIGHT = """
import os, pathlib, signal, lightning, torch, torch.distributed as dist
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.many = torchmetrics.CatMetric() if MANY else None
        self.steps = 0
    def training_step(self, batch, number):
        self.steps += 1
        if MANY:
            self.many(torch.ones(MANY))
        if self.global_rank == 1 and self.global_step == 5 and not pathlib.Path("killed").exists():
            pathlib.Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(batch[0]).sum() * (1 + self.global_rank)
    def on_train_epoch_start(self):
        if HOOK:
            dist.barrier()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
import torchmetrics
torch.manual_seed(1)
model, data = Model(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 2)), batch_size=4)
def trainer():
    return lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
                             enable_progress_bar=False, enable_model_summary=False, **MORE)
made = trainer()
made.fit(model, data)
print("end", model.steps, model.net.weight.sum().item(), flush=True)
"""


def run_light(launch, folder, more="", hook=False, many=0, kills=True, rest="", flags=("--recover",)):  # noqa: F811
    (folder / "killed").unlink(missing_ok=True)
    if not kills:
        (folder / "killed").touch()
    (folder / "train.py").write_text(f"MORE, HOOK, MANY = dict({more}), {hook}, {many}\n" + LIGHT + rest)
    return launch(*flags, folder / "train.py", ranks=2, max_restarts=2)


def ends_of(done):
    return sorted(line.split("end ", 1)[1] for line in done.stdout.splitlines() if "end " in line)


@pytest.mark.long
def test_where_lightning_cannot_be_taken_up_all_start_again_which_is_said(launch, tmp_path):  # noqa: F811
    done = run_light(launch, tmp_path, more="reload_dataloaders_every_n_epochs=1")
    assert done.returncode == 0 and "starting all ranks again" in text(done) and "cannot know where" not in text(done), text(done)
    assert text(done).count("lockstep: reload_dataloaders_every_n_epochs=1 cannot be recovered, so a lost rank costs a start of all ranks\n") == 2, text(done)
    assert ends_of(done) == ends_of(run_light(launch, tmp_path, more="reload_dataloaders_every_n_epochs=1", kills=False)) != []


@pytest.mark.long
def test_what_lightning_cannot_recover_is_refused_by_name(launch, tmp_path):  # noqa: F811
    done = run_light(launch, tmp_path, more="reload_dataloaders_every_n_epochs=1", flags=(), rest="", kills=False)
    assert done.returncode == 0, text(done)
    done = run_light(launch, tmp_path, kills=False, rest="trainer().fit(model, data)")
    assert done.returncode != 0 and "LockstepError: a Trainer fits a second time in one run" in text(done), text(done)
    done = run_light(launch, tmp_path, hook=True)
    assert done.returncode != 0 and "LockstepError: barrier() in on_train_epoch_start or on_train_batch_start, which a rank that is started again " \
        "makes once more, alone: communicate elsewhere" in text(done), text(done)


def test_what_a_module_counts_is_kept_and_metrics_that_are_too_large_are_said(launch, tmp_path):  # noqa: F811
    done = run_light(launch, tmp_path, many=50_000)
    assert done.returncode == 0 and "starting all ranks again" not in text(done) and "the others keep their state" in text(done), text(done)
    assert "is too large to be kept for the process that takes its place, which would begin with none" in text(done), text(done)
    assert ends_of(done) == ends_of(run_light(launch, tmp_path, many=50_000, kills=False)) != []


SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
print("group", type(dist.group.WORLD).__name__, dist.get_backend(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("source", "words"), [
    (TWICE + "trainer.train()", "LockstepError: a Trainer trains a second time in one run"),
    (TWICE.replace("trainer.train()", STREAM + "trainer.args.accelerator_config.dispatch_batches = True\ntrainer.accelerator.dataloader_config.dispatch_batches = True\ntrainer.train()"),
     "LockstepError: rank 0 reads the data of all ranks here (dispatch_batches of Accelerate)"),
], ids=["twice", "dispatched"])
@pytest.mark.long  # ten seconds each
def test_what_a_trainer_cannot_recover_is_refused_by_name(launch, tmp_path, source, words):  # noqa: F811
    (tmp_path / "train.py").write_text(source)
    done = launch("--recover", tmp_path / "train.py", ranks=2, max_restarts=0)
    assert done.returncode != 0 and words in text(done), text(done)


def test_nccl_is_left_to_torch(launch, tmp_path):  # noqa: F811
    """Which says here that there is no GPU."""
    (tmp_path / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group(backend='nccl')\n")
    done = launch("--recover", tmp_path / "train.py", ranks=2, max_restarts=0)
    assert text(done).count("lockstep: groups over NCCL are not recovered yet, so a lost rank costs a start of all ranks") == 1, text(done)
    assert "ProcessGroupNCCL is only supported with GPUs" in text(done), text(done)


def test_shards_are_left_to_the_program(launch, tmp_path):  # noqa: F811
    """And to torch's own process group."""
    (tmp_path / "train.py").write_text(SHARDED)
    done = launch("--recover", tmp_path / "train.py", ranks=2)
    assert done.returncode == 0 and done.stdout.count("group ProcessGroup gloo") == 2, text(done)
    assert text(done).count("a rank of FSDP has a part of the state that no other has, so a lost rank costs a start of all ranks") == 1, text(done)


def test_a_trainer_that_is_made_of_other_parts_runs_as_without_the_flag(launch, tmp_path):  # noqa: F811
    """As one of another release of transformers."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers/__init__.py").write_text("__version__ = '4.0'\n")
    (tmp_path / "transformers/trainer.py").write_text("class Trainer:\n    def train(self):\n        print('trained')\n")
    (tmp_path / "train.py").write_text("from transformers.trainer import Trainer\nTrainer().train()\n")
    done = launch("--recover", tmp_path / "train.py", ranks=1)
    assert done.returncode == 0 and "trained" in done.stdout, text(done)
    assert "lockstep: --recover has no effect on transformers.trainer: " in text(done), text(done)


def test_a_python_that_the_package_does_not_know_is_named(monkeypatch, capsys):
    monkeypatch.setenv("LOCKSTEP_RECOVER", "1")
    names = {}
    exec((ROOT / "runner/agent/python/rank_start.py").read_text(), names)
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    finders = list(sys.meta_path)
    names["recover"]()
    assert "lockstep: --recover has no effect: the package lockstep needs Python 3.10 or later" in capsys.readouterr().err
    assert sys.meta_path == finders
