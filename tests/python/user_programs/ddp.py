"""A program that knows nothing of Lockstep: torch's DDP, a DistributedSampler, checkpoints of its own. It writes each step's loss
into losses.jsonl of --folder, as "step loss" with all digits. For the tests: --fail_at, --wait_at and --sleep."""
import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--wait_at", type=int, default=-1, help="before this step, in the first attempt, the ranks wait to be killed")
parser.add_argument("--fail_at", type=int, default=-1, help="rank 1 raises before this step, in the first attempt")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpoint = options.folder / "checkpoint.pt"
first_epoch = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first_epoch = saved["epoch"]
    print(f"from epoch {first_epoch}", flush=True)
for epoch in range(first_epoch, options.epochs):
    sampler.set_epoch(epoch)
    for batch, (x, y) in enumerate(loader):
        step = epoch * len(loader) + batch
        if step == options.wait_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(1000)
        if step == options.fail_at and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a fault of this program")
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open(options.folder / "losses.txt", "a") as file:
                file.write(f"{step} {loss.item()!r}\n")
        time.sleep(options.sleep)
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
dist.barrier()
dist.destroy_process_group()
