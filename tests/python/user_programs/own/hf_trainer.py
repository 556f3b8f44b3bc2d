"""A tiny GPT-2 of random weights under the Trainer of transformers: dropout, accumulation, masks that the collator draws, logs, evaluations,
checkpoints. It knows nothing of Lockstep, unless --package says so. Each rank writes what it has computed, with all digits, into losses-RANK.txt
(each batch), logs-RANK.txt (each log and evaluation) and end-RANK.txt of --folder."""
import argparse
import collections
import hashlib
import os
import pathlib
import signal

import torch
import transformers
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from cases import Killer, hash_of, moment

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--case", default="epochs", choices=["epochs", "steps", "workers", "own loader"])
parser.add_argument("--kill", action="append", default=[], type=moment)
parser.add_argument("--package", action="store_true", help="import the Trainer of lockstep.hf")
options = parser.parse_args()
torch.set_num_threads(1)
if options.package:
    from lockstep.hf import Trainer
else:
    Trainer = transformers.Trainer
killer = Killer(options.folder, options.kill, signal.SIGKILL, os.getpid())
rank = int(os.environ.get("RANK", "0"))
EPOCHS = int(os.environ.get("EPOCHS", "3"))
CHANGING = ("runtime", "per_second")  # parts of the names of figures that are times
with open(options.folder / f"processes-{rank}.txt", "a") as processes:
    print(os.getpid(), file=processes)


class Recorded(Trainer):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.masked, self.seen = collections.defaultdict(list), 0  # of this rank, for its next log, as trl's trainers have them

    def log(self, logs, *args, **named):
        figures = self.masked["train" if self.model.training else "eval"]
        super().log({**logs, "seen": self.seen, **({"masked": sum(figures) / len(figures)} if figures else {})}, *args, **named)
        figures.clear()

    def training_step(self, model, inputs, *more, **named):
        self.masked["train"].append((inputs["labels"] >= 0).sum().item())
        self.seen += inputs["labels"].numel()
        killer.at(rank, self.state.global_step, "forward")
        self.parameters[-1].register_hook(lambda _: killer.at(rank, self.state.global_step, "backward")) if options.kill else None
        loss = super().training_step(model, inputs, *more, **named)
        with open(options.folder / f"losses-{rank}.txt", "a") as losses:
            print(self.batch_number(inputs), loss.item().hex(), file=losses)
        killer.at(rank, self.state.global_step, "reduced")
        return loss

    def get_train_dataloader(self):
        if options.case != "own loader":
            return super().get_train_dataloader()
        return DataLoader(self.train_dataset, batch_size=2, sampler=DistributedSampler(self.train_dataset), collate_fn=self.data_collator)

    def batch_number(self, inputs):
        """Batches are counted by step and place in it."""
        at = self.state.global_step
        self.in_step = self.in_step + 1 if getattr(self, "at", None) == at else 0
        self.at = at
        return at * 2 + self.in_step


class Moments(TrainerCallback):
    def __getattribute__(self, name):
        if not name.startswith("on_") or name in ("on_log", "on_evaluate"):
            return super().__getattribute__(name)

        def call(args, state, control, **_):
            killer.at(rank, state.global_step, name.removeprefix("on_"))
        return call

    def on_log(self, args, state, control, logs, **_):
        killer.at(rank, state.global_step, "log")
        with open(options.folder / f"logs-{rank}.txt", "a") as file:
            print(state.global_step, sorted((name, float(value).hex()) for name, value in logs.items()
                                            if not any(part in name for part in CHANGING)), file=file)

    def on_evaluate(self, args, state, control, metrics, **_):
        killer.at(rank, state.global_step, "evaluate")


def collate(rows):
    """As one for masked language models: what it masks, it draws."""
    ids = torch.stack([row["input_ids"] for row in rows])
    masked = torch.rand(ids.shape) < 0.3
    return {"input_ids": ids.masked_fill(masked, 1), "labels": ids.masked_fill(~masked, -100)}


transformers.set_seed(7)
rows = [{"input_ids": row} for row in torch.randint(2, 64, (46, 9))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
by_epoch = options.case != "steps"
arguments = TrainingArguments(
    output_dir=str(options.folder / "out"), per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2, warmup_steps=3,
    seed=7, logging_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, load_best_model_at_end=True, save_total_limit=2,
    metric_for_best_model="loss", dataloader_num_workers=2 if options.case == "workers" else 0,
    **({"num_train_epochs": EPOCHS, "eval_strategy": "epoch", "save_strategy": "epoch"} if by_epoch else
       {"max_steps": 10, "eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 5, "save_steps": 5, "eval_on_start": True, "ignore_data_skip": True}))
trainer = Recorded(model=model, args=arguments, train_dataset=rows[:38], eval_dataset=rows[38:], data_collator=collate,
                   callbacks=[EarlyStoppingCallback(EPOCHS), Moments()])
trainer.parameters = list(model.parameters())
trainer.train()
into = hashlib.sha256()
for part in (model, trainer.optimizer, trainer.lr_scheduler):
    hash_of(part.state_dict(), into)
hash_of(torch.get_rng_state(), into)
history = [{name: value for name, value in entry.items() if not any(part in name for part in CHANGING)} for entry in trainer.state.log_history]
into.update(repr((history, trainer.state.total_flos, trainer.state.global_step, trainer.state.epoch, trainer.state.best_metric)).encode())
(options.folder / f"end-{rank}.txt").write_text(into.hexdigest())
