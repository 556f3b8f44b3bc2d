"""Training programs that use the package `lockstep`, one for each --case, and can end themselves at a given moment.

Writes to the folder: losses-RANK.txt, "step loss" for each step of this process (hexadecimal: every bit), and end-RANK.txt, a hash of all
that was given to lockstep.restore, at the end. --kill RANK:STEP:WHERE: this rank sends itself SIGKILL, once, at this moment of that step:
"forward" (its beginning), "backward", "last gradient", "reduced", "optimizer" (after it); with STEP -1 "restore", before that in its first
process, with -2 in its second one. --stop: the same, but `lockstep launch` gets SIGTERM, or what --stop-signal names;
--kill-agent: the rank's agent SIGKILL.
--checkpoint N: checkpoints after every N steps.
--comparable: with torch's own wrapper. Random numbers are torch's, from a seed of each rank, and end-RANK.pt holds what end-RANK.txt is a hash of.
"""
import argparse
import hashlib
import os
import pathlib
import random
import signal

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import lockstep

STEPS = 12


class Case:
    """`models`, `optimizers` and `others` by name; step() is one iteration of the loop, and returns the loss that is written."""
    seed = 1  # of run.steps
    first_gradient = last_gradient = None  # parameters at which a kill in backward happens

    def iterations(self, run):
        return run.steps(STEPS, seed=self.seed)

    def objects(self):
        return {**self.models, **self.optimizers, **self.others}


class Transformer(Case):
    """Dropout, accumulation with no_sync, clipping, a schedule, several buckets."""

    class Net(nn.Module):
        def __init__(self, width=32, length=16, letters=64):
            super().__init__()
            self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
            layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(width, letters)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            hidden = self.letter(x) + self.place(torch.arange(x.shape[1]))
            return self.head(self.body(hidden, mask=mask, is_causal=True))

    def __init__(self):
        self.net = self.Net()
        self.first_gradient, self.last_gradient = self.net.head.weight, self.net.letter.weight
        self.model = lockstep.DistributedDataParallel(self.net, bucket_cap_mb=0.02)
        # eps: a gradient that is zero but for rounding moves nothing (the keys' bias has one).
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, eps=1e-4)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1, (step + 1) / 10))
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {"schedule": self.schedule}

    def loss(self, x):
        return F.cross_entropy(self.model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    def step(self, step, run, at):
        x = torch.randint(0, 64, (4 * run.world, 17), generator=torch.Generator().manual_seed(1000 + step))[run.rank::run.world]
        self.optimizer.zero_grad()
        with self.model.no_sync():
            self.loss(x[:1]).backward()
        loss = self.loss(x[1:])
        loss.backward()
        at("reduced")
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss


class Pictures(Case):
    """BatchNorm, and a part that only one rank uses, and one that none does, and an average of the weights."""
    broadcast_buffers = True

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
            self.sometimes, self.never, self.last = nn.Linear(8 * 36, 16), nn.Linear(4, 4), nn.Linear(8 * 36, 16)

        def forward(self, x, uses_sometimes):
            hidden = self.first(x)
            return self.last(hidden) + (self.sometimes(hidden) if uses_sometimes else 0)

    def __init__(self):
        self.net = self.Net()
        self.first_gradient, self.last_gradient = self.net.last.weight, self.net.first[0].weight
        self.model = lockstep.DistributedDataParallel(self.net, broadcast_buffers=self.broadcast_buffers, bucket_cap_mb=0.01)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        self.average = torch.optim.swa_utils.AveragedModel(self.net, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new, use_buffers=True)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {"average": self.average}

    def step(self, step, run, at):
        draw = torch.Generator().manual_seed(1000 * step + run.rank)
        x, y = torch.randn(4, 1, 8, 8, generator=draw), torch.randint(0, 16, (4,), generator=draw)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x, uses_sometimes=(run.rank + step) % 3 == 0 and step % 4 != 3), y)
        loss.backward()
        assert self.net.never.weight.grad is None, "torch leaves the gradient of what nobody uses as it was"
        at("reduced")
        self.optimizer.step()
        self.average.update_parameters(self.net)
        return loss


class Several(Case):
    """Several reductions in a step: accumulation without no_sync, two losses of one forward, two wrapped models in one backward; and
    ranks that begin with other weights."""

    def __init__(self):
        torch.manual_seed(int(os.environ.get("RANK", "0")))
        self.one, self.two = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 4))
        self.first_gradient, self.last_gradient = self.two[2].weight, self.one.weight
        self.wrapped_one = lockstep.DistributedDataParallel(self.one)
        self.wrapped_two = lockstep.DistributedDataParallel(self.two)
        self.optimizer = torch.optim.Adam([*self.one.parameters(), *self.two.parameters()], lr=0.01)
        self.models, self.optimizers = {"one": self.wrapped_one, "two": self.wrapped_two}, {"optimizer": self.optimizer}
        self.others = {}

    def for_second(self, hidden, x):
        return hidden

    def step(self, step, run, at):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        self.optimizer.zero_grad()
        self.wrapped_two(self.wrapped_one(x[:2])).square().mean().backward()  # both models
        hidden = self.wrapped_one(x[2:])
        hidden.square().mean().backward(retain_graph=True)                    # one of them, twice
        at("reduced")
        loss = self.wrapped_two(self.for_second(hidden, x)).abs().mean()
        loss.backward()
        self.optimizer.step()
        return loss


class SeveralForwards(Several):
    """Several, with a forward for each backward: torch's own wrapper reduces one backward of each forward."""

    def for_second(self, hidden, x):
        return self.wrapped_one(x[2:])


class AcrossIterations(Case):
    """The optimizer steps in every third iteration only, and a GradScaler leaves out some of its steps."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.first_gradient, self.last_gradient = self.net[2].weight, self.net[0].weight
        self.model = lockstep.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        self.optimizer.zero_grad()
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {"scaler": self.scaler}

    def step(self, step, run, at):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        loss = self.model(x).square().mean()
        self.scaler.scale(loss * (float("inf") if step == 5 and run.rank == 1 else 1.0)).backward()
        at("reduced")
        if step % 3 == 2:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return loss


class Gan(Case):
    """Two optimizers, each after a backward of its own: the second reduction comes after the first optimizer has stepped."""

    def __init__(self):
        self.generator, self.critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
        self.first_gradient, self.last_gradient = self.critic[2].weight, self.generator.weight
        self.wrapped = [lockstep.DistributedDataParallel(self.generator), lockstep.DistributedDataParallel(self.critic)]
        self.steps = [torch.optim.Adam(self.generator.parameters(), lr=0.01), torch.optim.Adam(self.critic.parameters(), lr=0.02)]
        self.models = {"generator": self.wrapped[0], "critic": self.wrapped[1]}
        self.optimizers, self.others = {"generator_step": self.steps[0], "critic_step": self.steps[1]}, {}

    def step(self, step, run, at):
        draw = torch.Generator().manual_seed(1000 * step + run.rank)
        noise, real = torch.randn(4, 4, generator=draw), torch.randn(4, 8, generator=draw)
        generator, critic = self.wrapped
        self.steps[1].zero_grad()
        loss = critic(generator(noise).detach()).mean() - critic(real).mean() + critic(real).square().mean()
        loss.backward()
        self.steps[1].step()
        at("reduced")
        self.steps[0].zero_grad()
        (-critic(generator(noise)).mean()).backward()
        self.steps[0].step()
        return loss


class Collectives(Case):
    """Collectives of the program's own: before restore, in a step before and after the optimizer has stepped."""

    def __init__(self):
        self.net = nn.Linear(8, 4)
        self.first_gradient = self.last_gradient = self.net.weight
        start = [{"scale": 0.5 + dist.get_rank()} if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(start, 0)
        dist.barrier()
        self.scale = start[0]["scale"]
        self.model = lockstep.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {}

    def step(self, step, run, at):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        tokens = torch.tensor(4.0 + run.rank)
        dist.all_reduce(tokens)
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean() * self.scale / tokens
        loss.backward()
        at("reduced")
        self.optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.MAX)
        everybody = [None] * run.world
        dist.all_gather_object(everybody, step)
        assert everybody == [step] * run.world
        return shown


class Unseeded(Transformer):
    """Dropout and batches from generators that nobody seeds in each step: torch's, numpy's and Python's."""
    seed = None

    def __init__(self):
        super().__init__()
        torch.manual_seed(100 + dist.get_rank())
        numpy.random.seed(dist.get_rank())
        random.seed(dist.get_rank())

    def step(self, step, run, at):
        letters = [random.randrange(64) for _ in range(17)] + numpy.random.randint(0, 64, 17).tolist()
        x = torch.tensor(letters).view(2, 17)
        self.optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        at("reduced")
        self.optimizer.step()
        return loss


class Epochs(Case):
    """Epochs of a shuffled loader whose two workers augment at random; a schedule that steps once an epoch."""
    seed = None
    epochs = 3

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 48

        def __getitem__(self, index):
            x = torch.randn(8, generator=torch.Generator().manual_seed(index))
            return x + 0.1 * torch.randn(8) + 0.1 * random.random(), index % 4

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
        self.first_gradient, self.last_gradient = self.net[2].weight, self.net[0].weight
        self.model = lockstep.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        data = self.Data()
        part = torch.utils.data.Subset(data, range(dist.get_rank(), 48, 3))  # RandomSampler draws its order from torch's generator
        self.loader = torch.utils.data.DataLoader(part, batch_size=4, shuffle=True, num_workers=2)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {"schedule": self.schedule}
        torch.manual_seed(dist.get_rank())

    def iterations(self, run):
        for _ in run.epochs(self.epochs):
            for self.batch in run.batches(self.loader):
                yield run.iteration
            self.schedule.step()

    def step(self, step, run, at):
        x, y = self.batch
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        at("reduced")
        self.optimizer.step()
        run.log(loss=loss, accuracy=0.5)
        return loss


class OutOfMemory(Case):
    """With --trouble, one backward of rank 1 fails half way; the program catches that and makes it again, as one does that has run out of
    memory."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
        self.first_gradient, self.last_gradient = self.net[2].weight, self.net[0].weight
        self.model = lockstep.DistributedDataParallel(self.net, bucket_cap_mb=0.0001)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {}
        self.fails = False
        self.net[1].register_full_backward_hook(lambda *_: self.fail())

    def fail(self):
        if self.fails:
            self.fails = False
            raise torch.OutOfMemoryError("no memory")

    def step(self, step, run, at):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        self.fails = self.trouble and step in (3, 7) and run.rank == 1
        while True:
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            try:
                loss.backward()
                break
            except torch.OutOfMemoryError:
                pass
        at("reduced")
        self.optimizer.step()
        return loss


class SyncFlag(Case):
    """require_backward_grad_sync is set by hand, and no_sync ends between a forward and its backward: the forward decides."""

    def __init__(self):
        self.net = nn.Linear(8, 4)
        self.first_gradient = self.last_gradient = self.net.weight
        self.model = lockstep.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {}

    def step(self, step, run, at):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        self.optimizer.zero_grad()
        with self.model.no_sync():
            loss = self.model(x[:2]).square().mean()
        loss.backward()
        own = self.net.weight.grad.clone()
        self.model.require_backward_grad_sync = False
        self.model(x[2:4]).square().mean().backward()
        self.model.require_backward_grad_sync = True
        everybody = [torch.empty_like(own) for _ in range(run.world)]
        dist.all_gather(everybody, own)
        assert run.world == 1 or not everybody[0].equal(everybody[1]), "reduced, although the forward was in no_sync"
        loss = self.model(x[4:]).square().mean()
        with self.model.no_sync():
            loss.backward()
        at("reduced")
        self.optimizer.step()
        return loss


class Killer:
    """Ends this process once at each moment that was asked for. `after`: so many other kills must have been before, in whichever rank."""

    def __init__(self, folder, wanted, number, pid, name="killed", after=0):
        self.folder, self.wanted, self.signal, self.pid, self.name, self.after = folder, wanted, number, pid, name, after

    def at(self, *now):
        for number, moment in enumerate(self.wanted):
            if now != moment:
                continue
            try:
                (self.folder / f"{self.name}-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            while not all((self.folder / f"killed-{kill}").exists() for kill in range(self.after)):
                os.sched_yield()
            os.kill(self.pid, self.signal)


def launcher():
    """The process that started all agents: this rank's agent, or its parent where there are several."""
    agent = os.getppid()
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{agent}/status").read_text().splitlines())
    parent = int(status["PPid"])
    return parent if pathlib.Path(f"/proc/{parent}/comm").read_text().strip() == "lockstep" else agent


def moment(text):
    rank, step, where = text.split(":")
    return int(rank), int(step), where


def hash_of(value, into):
    """Of nested state, each bit of it."""
    if isinstance(value, torch.Tensor):
        into.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            into.update(str(key).encode())
            hash_of(item, into)
    elif isinstance(value, (list, tuple)):
        for item in value:
            hash_of(item, into)
    else:
        into.update(repr(value).encode())


def kinds_of(kind):
    return {name: one for sub in kind.__subclasses__() for name, one in {sub.__name__: sub, **kinds_of(sub)}.items()}


def main():
    cases = kinds_of(Case)
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--case", choices=cases, default="Transformer")
    parser.add_argument("--kill", action="append", default=[], type=moment)
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--stop", action="append", default=[], type=moment)
    parser.add_argument("--stop-signal", default="SIGTERM")
    parser.add_argument("--kill-agent", action="append", default=[], type=moment)
    parser.add_argument("--checkpoint", type=int)
    parser.add_argument("--trouble", action="store_true")
    parser.add_argument("--comparable", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)

    lockstep.init_process_group()
    with open(args.folder / f"processes-{os.environ.get('RANK', '0')}.txt", "a+") as processes:
        processes.write(f"{os.getpid()}\n")
        processes.seek(0)
        process = len(processes.readlines())  # 1: this is the rank's first one
    torch.manual_seed(0)
    case = cases[args.case]()
    case.trouble, case.folder = args.trouble, args.folder
    if args.comparable:
        case.seed = None
        torch.manual_seed(100 + dist.get_rank())
    killers = [Killer(args.folder, args.kill, signal.Signals[args.signal], os.getpid()),
               Killer(args.folder, args.stop, signal.Signals[args.stop_signal], launcher(), "stopped", after=len(args.kill)),
               Killer(args.folder, args.kill_agent, signal.SIGKILL, os.getppid(), "agent-killed")]

    def at(*now):
        for killer in killers:
            killer.at(*now)
    at(int(os.environ.get("RANK", "0")), -process, "restore")
    run = lockstep.restore(**case.objects())
    case.at = lambda where: at(run.rank, STEPS, where)  # after the loop
    if args.checkpoint:
        run.checkpoint(every=args.checkpoint, keep=2)
    step = 0
    case.first_gradient.register_hook(lambda _: at(run.rank, step, "backward"))
    case.last_gradient.register_post_accumulate_grad_hook(lambda _: at(run.rank, step, "last gradient"))
    with open(args.folder / f"losses-{run.rank}.txt", "a", buffering=1) as losses:
        for step in case.iterations(run):
            at(run.rank, step, "forward")
            loss = case.step(step, run, lambda where: at(run.rank, step, where))
            at(run.rank, step, "optimizer")
            if loss is not None:
                losses.write(f"{step} {loss.item().hex()}\n")
    states, into = {name: object_.state_dict() for name, object_ in case.objects().items()}, hashlib.sha256()
    if args.comparable:
        torch.save(states, args.folder / f"end-{run.rank}.pt")
    hash_of(states, into)
    (args.folder / f"end-{run.rank}.txt").write_text(into.hexdigest())


if __name__ == "__main__":
    main()
