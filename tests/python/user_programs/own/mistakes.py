"""What the package `lockstep` refuses. mistakes.py WHAT…: makes these mistakes one after the other, and prints of each "WHAT: the message"."""
import os
import sys
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def wrap(net, **arguments):
    return lockstep.DistributedDataParallel(net, **arguments)


def rank():
    return dist.get_rank()


class Odd:
    def state_dict(self):
        return {"x": object()}

    def load_state_dict(self, state):
        pass


class Again(nn.Module):
    """Its activations are computed again by a backward inside the backward."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=True)


class TwoTimes(Again):
    """Some of it."""

    def forward(self, x):
        return super().forward(x) + self.part(x)


class OwnWrapper(nn.parallel.DistributedDataParallel):
    pass


def with_table(size):
    net = nn.Linear(8, 4)
    net.register_buffer("table", torch.zeros(size))
    return net


def half_frozen(size):
    net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, size))
    net[1].requires_grad_(False)
    return net


def twice():
    net = nn.Linear(8, 4)
    wrap(net)
    wrap(nn.Sequential(net))


def several(number):
    nets = [wrap(nn.Linear(8, 4)) for _ in range(number)]
    lockstep.restore(model=nets[0])


# ---- before lockstep.restore ----

def step_without_restore():
    wrap(nn.Linear(8, 4))(torch.ones(2, 8)).sum().backward()


EARLY = {
    "begun twice": lambda: lockstep.init_process_group(),
    "new group": lambda: dist.new_group([0, 1]),
    "all to all": lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4)),
    "wrapped twice": twice,
    "sparse": lambda: wrap(nn.Embedding(8, 4, sparse=True)),
    "batches of all ranks": lambda: wrap(nn.Sequential(OrderedDict(part=nn.Linear(8, 4), norm=nn.SyncBatchNorm(4)))),
    "no shape yet": lambda: wrap(nn.LazyLinear(4)),
    "devices": lambda: wrap(nn.Linear(8, 4), device_ids=[0]),
    "another group": lambda: wrap(nn.Linear(8, 4), process_group=object()),
    "no parameter": lambda: wrap(nn.ReLU()),
    "subclass of torch's": lambda: OwnWrapper(nn.Linear(8, 4)),
    "own buffers too large": lambda: wrap(with_table(1 << 20), broadcast_buffers=False),
    "bad collective at the start": lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16)),
    "not restored": step_without_restore,
    "no state": lambda: lockstep.restore(data=[1, 2]),
    "unreadable state": lambda: lockstep.restore(odd=Odd()),
    "model not given": lambda: (wrap(nn.Linear(8, 4)), lockstep.restore()),
    # Of these only some ranks are refused, which ends them: each is a run of its own.
    "other shape": lambda: wrap(nn.Linear(8 if rank() == 0 else 9, 4)),
    "other dtype": lambda: wrap(nn.Linear(8, 4).to(torch.float32 if rank() == 0 else torch.bfloat16)),
    "other order": lambda: wrap(nn.ModuleDict({name: nn.Linear(4, 4) for name in (["one", "two"] if rank() == 0 else ["two", "one"])})),
    "other number": lambda: wrap(nn.Linear(8, 4, bias=rank() == 0)),
    "other buckets": lambda: wrap(nn.Linear(8, 4), bucket_cap_mb=25 if rank() == 0 else 1),
    "other buffers": lambda: wrap(with_table(2), broadcast_buffers=rank() == 0),
    "other frozen part": lambda: wrap(half_frozen(5 if rank() == 0 else 4)),
    "other buffer": lambda: wrap(with_table(2 if rank() == 0 else 3)),
    "other number of models": lambda: several(1 if rank() == 0 else 2),
}


# ---- after it ----

class Late:
    """A model, an optimizer and an optimizer that lockstep.restore does not get, for each of these mistakes."""

    def __init__(self):
        self.nets = {name[5:]: self.net(name) for name in dir(self) if name.startswith("make_")}
        self.models = {name: wrap(net) for name, net in self.nets.items()}
        self.optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in self.nets.items()}
        tracked = {f"optimizer of {name}": one for name, one in self.optimizers.items() if name != "optimizer_not_given"}
        self.run = lockstep.restore(**self.models, **tracked)

    def net(self, name):
        part = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        part[1].bias.requires_grad = False
        return Again(part) if name == "make_all_reentrant" else TwoTimes(part) if name == "make_reentrant" else part

    def train(self, name, is_stepped=True):
        self.models[name](torch.ones(2, 8, requires_grad=True)).sum().backward()
        if is_stepped:
            self.optimizers[name].step()

    def in_loop(self, name):
        for _ in self.run.steps(1):
            self.train(name)

    def make_restored_twice(self):
        lockstep.restore(model=self.nets["restored_twice"])

    def make_wrapped_late(self):
        wrap(nn.Linear(8, 4))

    def make_no_loop(self):
        self.train("no_loop")

    def make_optimizer_not_given(self):
        self.in_loop("optimizer_not_given")

    def make_schedule_not_given(self):
        torch.optim.lr_scheduler.StepLR(self.optimizers["schedule_not_given"], 10)
        self.in_loop("schedule_not_given")

    def make_step_in_backward(self):
        name = "step_in_backward"
        self.nets[name][0].bias.register_post_accumulate_grad_hook(lambda _: self.optimizers[name].step())
        self.in_loop(name)

    def make_reentrant(self):
        self.in_loop("reentrant")

    def make_all_reentrant(self):
        self.in_loop("all_reentrant")

    def make_parameter_added(self):
        self.nets["parameter_added"][0].scale = nn.Parameter(torch.ones(1))
        self.train("parameter_added")

    def make_part_added(self):
        self.nets["part_added"].append(nn.Linear(8, 8))
        self.train("part_added")

    def make_parameter_replaced(self):
        self.nets["parameter_replaced"][0].weight = nn.Parameter(torch.ones(8, 8))
        self.train("parameter_replaced")

    def make_unfrozen(self):
        self.nets["unfrozen"][1].bias.requires_grad = True
        self.train("unfrozen")

    def make_batch_size(self):
        data = TensorDataset(torch.ones(12, 8))
        loader = DataLoader(data, batch_size=4, sampler=lockstep.DistributedSampler(data, batch_size=2))
        for _ in self.run.epochs(1):
            for _ in self.run.batches(loader):
                pass

    def make_batches_twice(self):
        for _ in self.run.epochs(100):
            for _ in zip(self.run.batches([1, 2]), self.run.batches([3, 4])):
                pass

    def make_batches_alone(self):
        next(self.run.batches([1, 2]))

    def make_bad_collective(self):
        dist.all_reduce(torch.ones(2, dtype=torch.uint16))

    def make_forked_child(self):
        child = os.fork()
        if child == 0:
            say("forked child", dist.barrier)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def say(what, mistake):
    try:
        mistake()
    except lockstep.LockstepError as error:
        print(f"{what}: {error}", flush=True)
        if what.startswith("other"):
            raise


def main():
    wanted = sys.argv[1:]
    if wanted == ["not begun"]:
        return say(wanted[0], lambda: wrap(nn.Linear(8, 4)))
    lockstep.init_process_group()
    late = None if wanted[0] in EARLY else Late()
    for what in wanted:
        say(what, getattr(late, "make_" + what.replace(" ", "_")) if late else EARLY[what])
    os._exit(0)  # without an end that waits for the others


main()
