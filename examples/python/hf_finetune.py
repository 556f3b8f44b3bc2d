"""Trains a small classifier of texts with the Trainer of Hugging Face's transformers: a program that knows nothing of Lockstep.

    lockstep launch --nproc 2 examples/python/hf_finetune.py --steps 60
    torchrun --nproc_per_node 2 examples/python/hf_finetune.py --steps 60

The texts are generated: bytes, of which `a` is more frequent in one class and `b` in the other. The model has random weights, unless
--model names the folder of one that save_pretrained has written. Nothing is downloaded. The Trainer writes a checkpoint every
--save_steps steps, from which the program goes on when it is started again.
"""
import argparse
import pathlib

import torch
from transformers import AutoModelForSequenceClassification, BertConfig, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Texts(torch.utils.data.Dataset):
    def __init__(self, size, length, seed):
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (size,), generator=draw)
        self.bytes = torch.randint(ord("a"), ord("z") + 1, (size, length), generator=draw)
        is_marked = torch.rand(size, length, generator=draw) < 0.2
        self.bytes = torch.where(is_marked, ord("a") + self.labels[:, None], self.bytes)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return {"input_ids": self.bytes[number], "labels": self.labels[number]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a saved model; without it: random weights")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("hf_finetune"), help="for the checkpoints")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=16, help="of each rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def right_answers(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def main():
    options = parse()
    set_seed(options.seed)
    if options.model:
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    else:
        model = AutoModelForSequenceClassification.from_config(
            BertConfig(vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                       max_position_embeddings=64, num_labels=2))
    arguments = TrainingArguments(
        output_dir=str(options.folder), max_steps=options.steps, save_steps=options.save_steps, save_total_limit=2,
        per_device_train_batch_size=options.batch_size, learning_rate=options.lr, warmup_steps=options.steps // 10, logging_steps=10,
        eval_strategy="steps", eval_steps=options.save_steps, seed=options.seed, report_to=[], disable_tqdm=True,
        use_cpu=not torch.cuda.is_available())
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts(2048, 32, options.seed),
                      eval_dataset=Texts(256, 32, options.seed + 1), compute_metrics=right_answers)
    newest = get_last_checkpoint(str(options.folder)) if options.folder.exists() else None
    if newest and trainer.is_world_process_zero():
        print(f"going on from {newest}", flush=True)
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
