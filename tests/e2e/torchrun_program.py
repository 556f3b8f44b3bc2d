"""What test_ranks.py runs under torchrun in pods: 60 steps of an all-reduce, a checkpoint of rank 0 after each; rank 1 ends
with 7 after step 30, once."""
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
state = {"step": 0, "w": torch.zeros(4)}
path = "/checkpoints/state.pt" if rank == 0 else None
found = [torch.load(path) if path and os.path.exists(path) else None]
dist.broadcast_object_list(found, src=0)
state = found[0] or state
print(f"rank {rank} of {world} starts at step {state['step']}", flush=True)
while state["step"] < 60:
    part = torch.full((4,), float(rank + state["step"]))
    dist.all_reduce(part)
    state["w"] += part
    state["step"] += 1
    if rank == 0:
        torch.save(state, path + ".part")
        os.replace(path + ".part", path)
    if state["step"] == 30 and rank == 1 and not os.path.exists("/data/crashed"):
        open("/data/crashed", "w").close()
        sys.exit(7)
    time.sleep(0.02)
if rank == 0:
    print("sum", state["w"].tolist(), flush=True)
dist.destroy_process_group()
