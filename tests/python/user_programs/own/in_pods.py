"""A small model with dropout and the five lines of the package `lockstep`: `in_pods.py FOLDER STEPS SLEEP`.

Appends to FOLDER/losses-RANK.txt a line "step loss pid" for each step that this process makes; the loss with every bit."""
import os
import pathlib
import sys
import time

import torch
from torch import nn

import lockstep

folder, steps, sleep = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
lockstep.init_process_group()
torch.manual_seed(7)
model = lockstep.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = lockstep.restore(model=model, optimizer=optimizer)
if "LOCKSTEP_CHECKPOINT_DIR" in os.environ:
    run.checkpoint(every=1000)
with open(folder / f"losses-{run.rank}.txt", "a", buffering=1) as file:
    for step in run.steps(steps, seed=3):
        draw = torch.Generator().manual_seed(1000 * step + run.rank)
        loss = (model(torch.randn(8, 8, generator=draw)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        file.write(f"{step} {loss.item().hex()} {os.getpid()}\n")
        time.sleep(sleep)
