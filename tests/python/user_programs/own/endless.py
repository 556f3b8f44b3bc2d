"""Trains a small model with the package `lockstep`: `endless.py STEPS`."""
import sys

import torch

import lockstep

torch.set_num_threads(1)
lockstep.init_process_group()
torch.manual_seed(0)
model = lockstep.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = lockstep.restore(model=model, optimizer=optimizer)
for step in run.steps(int(sys.argv[1])):
    loss = model(torch.full((2, 8), 1.0 + run.rank)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(loss=loss)
