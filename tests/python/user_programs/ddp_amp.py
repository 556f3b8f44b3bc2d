"""A program that knows nothing of Lockstep: torch's DDP with argparse, a DistributedSampler, worker processes that load, automatic mixed
precision, a schedule and TensorBoard. Each rank writes its losses with all digits into losses-RANK.txt of --folder."""
import argparse
import pathlib
import random

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter


class Augmented(Dataset):
    """Adds noise from each of the random generators that people use."""

    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(64, 16, generator=draw), torch.randint(4, (64,), generator=draw)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = random.gauss(0, 0.1) + 0.1 * numpy.random.standard_normal() + 0.1 * torch.randn(()).item()
        return self.x[index] + noise, self.y[index]


def seed_worker(_):
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    numpy.random.seed(seed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(options.seed + rank)
    data = Augmented()
    sampler = DistributedSampler(data, shuffle=True, seed=options.seed)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=options.workers, worker_init_fn=seed_worker)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(), torch.nn.Dropout(0.1),
                                torch.nn.Linear(32, 4))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    scaler = torch.amp.GradScaler("cpu")
    board = SummaryWriter(options.folder / "board") if rank == 0 else None
    with open(options.folder / f"losses-{rank}.txt", "w") as losses:
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            for batch, (x, y) in enumerate(loader):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                schedule.step()
                step = epoch * len(loader) + batch
                print(step, repr(loss.item()), file=losses)
                if board:
                    board.add_scalar("loss", loss.item(), step)
    if board:
        board.close()
        torch.save(model.module.state_dict(), options.folder / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
