"""A Hugging Face Trainer with a tiny random model: nothing here knows of Lockstep."""
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Slow(TrainerCallback):
    def on_step_begin(self, *arguments, **more):
        time.sleep(0.1)


if __name__ == "__main__":
    torch.manual_seed(1)
    data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 50, (640, 8))]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    arguments = TrainingArguments(output_dir="out", max_steps=600, per_device_train_batch_size=1, logging_steps=1, use_cpu=True,
                                  save_strategy="no", disable_tqdm=True)
    Trainer(model, arguments, train_dataset=data, callbacks=[Slow()]).train()
