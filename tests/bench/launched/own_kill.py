"""A small GPT that can lose a rank: `own_kill.py lockstep|torchrun STAMPS FOLDER`, without an end.

A line of the file STAMPS is `RANK PID WHAT NUMBER NANOSECONDS` (CLOCK_MONOTONIC): `begin` is the first line of this file, `loaded` what comes
before the state is restored, `step` the end of a step, with its number. With torchrun it writes a checkpoint every ten steps, and loads it.
"""
import time

BEGAN = time.monotonic_ns()
import os  # noqa: E402
import pathlib  # noqa: E402
import sys  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples/python"))
side, stamps, folder = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), pathlib.Path(sys.argv[3])
sys.argv[1:] = []


def stamp(what, number=0, at=None):
    os.write(stamps, f"{os.environ['RANK']} {os.getpid()} {what} {number} {at or time.monotonic_ns()}\n".encode())


stamp("begin", at=BEGAN)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from nano_gpt import GPT, batch_of, parse, read_text  # noqa: E402

CHECKPOINT_EVERY = 10
ENDLESS = 10**9
torch.set_num_threads(1)
options = parse()
if side == "lockstep":
    import lockstep
    lockstep.init_process_group()
    wrapper = lockstep.DistributedDataParallel
else:
    dist.init_process_group("gloo")
    wrapper = nn.parallel.DistributedDataParallel
rank = dist.get_rank()
torch.manual_seed(options.seed)
model = wrapper(GPT(options.context, options.width, options.heads, options.layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
text_N = read_text(options.text)
stamp("loaded")
first, path = 0, folder / "checkpoint.pt"
if side == "lockstep":
    steps = lockstep.restore(model=model, optimizer=optimizer).steps(ENDLESS)
else:
    if path.exists():
        saved = torch.load(path)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["steps"]
    steps = range(first, ENDLESS)
for step in steps:
    inputs_BT, targets_BT = batch_of(text_N, step, rank, options, "cpu")
    loss = F.cross_entropy(model(inputs_BT).flatten(0, 1), targets_BT.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stamp("step", step)
    if side == "torchrun" and rank == 0 and (step + 1) % CHECKPOINT_EVERY == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "steps": step + 1}, f"{path}.new")
        os.replace(f"{path}.new", path)
