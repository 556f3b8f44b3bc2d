"""A small GPT on the bytes of a text, trained by PyTorch's DistributedDataParallel: a program that knows nothing of Lockstep.

    lockstep launch --nproc 2 examples/python/nano_gpt.py --steps 200
    torchrun --nproc_per_node 2 examples/python/nano_gpt.py --steps 200

It writes a checkpoint every --checkpoint_every steps and goes on from it when it is started again, so a lost rank costs the steps
since then. The same seed gives the same losses, whatever starts it.
"""
import argparse
import os
import pathlib
import sysconfig

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTD):
        batch, length, width = x_BTD.shape
        q, k, v = self.qkv(self.norm_attention(x_BTD)).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        attended = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x_BTD + self.mlp(self.norm_mlp(x_BTD))


class GPT(nn.Module):
    def __init__(self, context, width, heads, layers):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, bytes_BT):
        x_BTD = self.bytes(bytes_BT) + self.places(torch.arange(bytes_BT.shape[1], device=bytes_BT.device))
        return self.head(self.norm(self.blocks(x_BTD)))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, help="a file; without one: Python's own library")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("nano_gpt"), help="for the checkpoint")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint_every", type=int, default=50)
    parser.add_argument("--batch_size", type=int, default=8, help="of each rank")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def read_text(path):
    paths = [path] if path else sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("a*.py"))
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in paths)), dtype=torch.uint8)


def batch_of(text_N, step, rank, options, device):
    """Its places follow from the seed, the step and the rank, so that a step is the same whenever it is made."""
    draw = torch.Generator().manual_seed(options.seed * 1_000_003 + step * 1009 + rank)
    starts = torch.randint(len(text_N) - options.context - 1, (options.batch_size,), generator=draw)
    rows = torch.stack([text_N[start:start + options.context + 1] for start in starts]).long().to(device)
    return rows[:, :-1], rows[:, 1:]


def main():
    options = parse()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(options.seed)
    model = nn.parallel.DistributedDataParallel(GPT(options.context, options.width, options.heads, options.layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text_N = read_text(options.text)

    checkpoint = options.folder / "checkpoint.pt"
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["steps"]
        if rank == 0:
            print(f"going on from step {first}", flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)

    for step in range(first, options.steps):
        inputs_BT, targets_BT = batch_of(text_N, step, rank, options, device)
        loss = F.cross_entropy(model(inputs_BT).flatten(0, 1), targets_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done = step + 1
        if rank == 0 and (done % 20 == 0 or done == options.steps):
            print(f"step {done}  loss {loss.item():.4f}", flush=True)
        if rank == 0 and (done % options.checkpoint_every == 0 or done == options.steps):
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "steps": done}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
