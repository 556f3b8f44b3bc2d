"""A small transformer that uses the package `lockstep`, and can end itself at a given moment.

Writes to the folder: losses-RANK.txt, "step loss" for each step of this process (hexadecimal: every bit), and weights-RANK.txt, a hash of
the weights at the end. --kill RANK:STEP:WHERE: this rank sends itself SIGKILL, once, at this moment of that step.
"""
import argparse
import hashlib
import os
import pathlib
import signal

import torch
import torch.nn.functional as F
from torch import nn

import lockstep


class Net(nn.Module):
    def __init__(self, width=32, length=16, letters=64, dropout=0.1):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=dropout, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.letter(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.body(hidden, mask=mask, is_causal=True))


def batch_of(step, rank, world, letters=64):
    draw = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, letters, (4 * world, 17), generator=draw)[rank::world]


class Killer:
    """Ends this process once at the moment that was asked for."""

    def __init__(self, folder, wanted):
        self.folder, self.wanted = folder, wanted

    def at(self, rank, step, where):
        for number, (kill_rank, kill_step, kill_where) in enumerate(self.wanted):
            if (rank, step, where) != (kill_rank, kill_step, kill_where):
                continue
            try:
                (self.folder / f"killed-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--kill", action="append", default=[], type=lambda text: (int(text.split(":")[0]), int(text.split(":")[1]), text.split(":")[2]))
    args = parser.parse_args()
    torch.set_num_threads(1)

    lockstep.init_process_group()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))
    model = lockstep.DistributedDataParallel(net, bucket_cap_mb=0.02)
    killer = Killer(args.folder, args.kill)
    run = lockstep.restore(model=model, optimizer=optimizer, schedule=schedule)
    step = 0
    net.head.weight.register_hook(lambda _: killer.at(run.rank, step, "backward"))
    net.letter.weight.register_post_accumulate_grad_hook(lambda _: killer.at(run.rank, step, "last gradient"))
    with open(args.folder / f"losses-{run.rank}.txt", "a", buffering=1) as losses:
        for step in run.steps(args.steps, seed=1):
            killer.at(run.rank, step, "forward")
            x = batch_of(step, run.rank, run.world)
            optimizer.zero_grad()
            with model.no_sync():
                F.cross_entropy(model(x[:1, :-1]).flatten(0, 1), x[:1, 1:].flatten()).backward()
            loss = F.cross_entropy(model(x[1:, :-1]).flatten(0, 1), x[1:, 1:].flatten())
            loss.backward()
            killer.at(run.rank, step, "reduced")
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            killer.at(run.rank, step, "optimizer")
            losses.write(f"{step} {loss.item().hex()}\n")
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.state_dict().values())).hexdigest()
    (args.folder / f"weights-{run.rank}.txt").write_text(weights)


main()
