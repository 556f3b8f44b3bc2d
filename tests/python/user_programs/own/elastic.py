"""A program with the package `lockstep` whose number of ranks changes: elastic.py FOLDER BATCH_SIZE [--block] [--steps] [--gate STEP…].

Appends to FOLDER/steps-PID.txt a line for each step: "step rank world loss ids…" of this rank's part of the batch; rank 0 writes its weights
to FOLDER/end.pt. At a gate, before the step, the ranks wait until FOLDER/gate-STEP is there. --block: with `with run.step()`. --steps: by
run.steps in place of run.batches."""
import argparse
import contextlib
import os
import pathlib
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lockstep

ITEMS, EPOCHS, BATCH = 90, 3, 9


class Items(Dataset):
    def __len__(self):
        return ITEMS

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(number)
        return number, torch.randn(8, generator=draw), torch.randn(1, generator=draw)


def batches(run, options):
    data = Items()
    if options.steps:  # the program divides a batch by itself
        for step in run.steps(EPOCHS * ITEMS // BATCH, seed=3):
            order = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(step * BATCH // ITEMS)).tolist()
            first = step * BATCH % ITEMS
            yield torch.utils.data.default_collate([data[number] for number in order[first:first + BATCH][run.rank::run.world]])
        return
    sampler = lockstep.DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler, num_workers=options.workers)
    for _ in run.epochs(EPOCHS, seed=3):
        yield from run.batches(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("--block", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--gate", type=int, nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    lockstep.init_process_group()
    torch.manual_seed(7)
    model = lockstep.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = lockstep.restore(model=model, optimizer=optimizer)
    if options.checkpoint:
        run.checkpoint(every=5)
    with open(options.folder / f"steps-{os.getpid()}.txt", "a", buffering=1, encoding="utf-8") as file:
        for ids, x, y in batches(run, options):
            step = run.iteration
            while step in options.gate and not (options.folder / f"gate-{step}").exists():
                threading.Event().wait(0.02)
            with run.step() if options.block else contextlib.nullcontext():
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                # By run.steps each rank counts the same, whatever the size of its part.
                (loss * len(ids) * run.world / BATCH if options.steps else loss).backward()
                optimizer.step()
                file.write(f"{step} {run.rank} {run.world} {loss.item().hex()} {' '.join(map(str, ids.tolist()))}\n")
    if run.rank == 0:
        torch.save(model.module.state_dict(), options.folder / "end.pt")


if __name__ == "__main__":
    main()
