"""A program that knows nothing of Lockstep, written with the Trainer of Hugging Face's transformers: a tiny GPT-2 of random weights on
random bytes. Each rank writes its losses with all digits into losses-RANK.txt of --folder."""
import argparse
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()


class Recorded(Trainer):
    def training_step(self, *inputs, **named):
        loss = super().training_step(*inputs, **named)
        with open(options.folder / f"losses-{self.args.process_index}.txt", "a") as losses:
            print(self.state.global_step, repr(loss.item()), file=losses)
        return loss


torch.manual_seed(7)
rows = torch.randint(256, (128, 17))
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=str(options.folder / "out"), max_steps=options.steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    learning_rate=1e-3, warmup_steps=3, seed=7, logging_steps=1, save_steps=5, use_cpu=True, report_to=[], disable_tqdm=True)
trainer = Recorded(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.train()
