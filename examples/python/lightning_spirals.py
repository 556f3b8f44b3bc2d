"""Trains a small classifier of points with Lightning's Trainer: a program that knows nothing of Lockstep.

    lockstep launch --recover --nproc 2 examples/python/lightning_spirals.py --epochs 20
    torchrun --nproc_per_node 2 examples/python/lightning_spirals.py --epochs 20

The points are generated: each lies on one of three arms of a spiral, with some noise, and the arm is to be told. The Trainer validates after
each epoch and writes a checkpoint, from which the program goes on when it is started again.
"""
import argparse
import math
import os
import pathlib

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ARMS = 3


def spirals(size, seed):
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(ARMS, (size,), generator=draw)
    radius = torch.rand(size, generator=draw)
    angle = 2 * math.pi * (arm / ARMS + radius) + 0.1 * torch.randn(size, generator=draw)
    return TensorDataset(radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1), arm)


class Classifier(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(),
                                 nn.Linear(64, ARMS))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=ARMS)

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.accuracy(self.net(x), y)
        self.log("accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("lightning_spirals"), help="for logs and checkpoints")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = parse()
    lightning.seed_everything(options.seed, workers=True)
    # The launcher says how many processes there are.
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        strategy="ddp", devices=per_node, num_nodes=int(os.environ.get("WORLD_SIZE", "1")) // per_node, max_epochs=options.epochs,
        default_root_dir=options.folder, log_every_n_steps=10, enable_progress_bar=False, enable_model_summary=False,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        callbacks=[ModelCheckpoint(options.folder, monitor="accuracy", mode="max", save_last=True)])
    newest = options.folder / "last.ckpt"
    if newest.exists() and trainer.is_global_zero:
        print(f"going on from {newest}", flush=True)
    trainer.fit(Classifier(options.lr), DataLoader(spirals(4096, options.seed), options.batch_size, shuffle=True),
                DataLoader(spirals(512, options.seed + 1), options.batch_size), ckpt_path=newest if newest.exists() else None)
    if trainer.is_global_zero:
        print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
