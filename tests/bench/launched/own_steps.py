"""Steps of a model of many parameter tensors, in blocks, when they are asked for: `own_steps.py lockstep|torchrun TENSORS NUMEL FOLDER`.

Rank 0 waits for a line in FOLDER/go, makes so many steps, and writes a line to FOLDER/done: the median time of one in µs, and the memory that
this process has written since before it made the model, in multiples of the parameters' bytes. The other ranks wait for it in the reduction.
"""
import pathlib
import re
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

side, tensors, numel, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4])
ENDLESS = 10**9


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.ones(numel)) for _ in range(tensors)])

    def forward(self, x):
        return torch.stack([part.mul(x).sum() for part in self.parts]).sum()


def dirty_bytes():
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"^Private_Dirty:\s+(\d+)", text, re.M)[1])


torch.set_num_threads(1)
if side == "lockstep":
    import lockstep
    lockstep.init_process_group()
else:
    dist.init_process_group("gloo")
before = dirty_bytes()
model = Model()
model = lockstep.DistributedDataParallel(model) if side == "lockstep" else nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
steps = lockstep.restore(model=model, optimizer=optimizer).steps(ENDLESS) if side == "lockstep" else range(ENDLESS)
is_first = dist.get_rank() == 0
if is_first:
    go, done = open(folder / "go"), open(folder / "done", "w", buffering=1)
left, times = 0, []
for _ in steps:
    if is_first and left == 0:
        if times:
            print(statistics.median(times[1:]) * 1e6, (dirty_bytes() - before) / (4 * tensors * numel), file=done)
        left, times = int(go.readline() or sys.exit(0)), []
    began = time.perf_counter()
    loss = model(1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
    left -= 1
