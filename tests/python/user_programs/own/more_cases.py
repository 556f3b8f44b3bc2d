"""More cases, as in cases.py: what is rarer, or breaks at moments that a kill alone does not hit."""
import os
import socket
import sys
import threading
import time
import urllib.request

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import lockstep
from cases import STEPS, Case, Epochs, Pictures, main
from lockstep._current import exchange
from lockstep._errors import GroupBroken


class OwnBuffers(Pictures):
    """BatchNorm whose running figures the ranks do not share. (An average of the weights copies them, and a rank that is lost has those of
    the others' average.)"""
    broadcast_buffers = False

    def __init__(self):
        super().__init__()
        self.others = {}


class Small(Case):
    """A base: one small model."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))
        self.first_gradient, self.last_gradient = self.net[3].weight, self.net[0].weight
        self.model = lockstep.DistributedDataParallel(self.wrap(self.net))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {}

    def wrap(self, net):
        return net

    def batch(self, step, run):
        return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))

    def step(self, step, run, at):
        self.optimizer.zero_grad()
        loss = self.model(self.batch(step, run)).square().mean()
        self.backward(loss)
        at("reduced")
        self.optimizer.step()
        return loss

    def backward(self, loss):
        loss.backward()

    def once(self, name):
        """True the first time that any process asks."""
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Behind(Small):
    """With --trouble, rank 1 does not get the sum of step 5, and the others have it, and have begun step 6 when they hear of it: nobody has
    kept it."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.last_gradient.register_post_accumulate_grad_hook(lambda _: self.note_ahead())

    def note_ahead(self):
        if self.trouble and self.now == 6:
            (self.folder / f"ahead-{dist.get_rank()}").touch()

    def step(self, step, run, at):
        self.now = step
        if self.trouble and step == 5 and run.rank == 1 and self.once("lost"):
            session, wait = exchange(), exchange().wait

            def lose(work):
                session.wait = wait
                wait(work)
                while not all((self.folder / f"ahead-{rank}").exists() for rank in (0, 2)):
                    time.sleep(0.01)
                raise GroupBroken("this sum is lost")
            session.wait = lose
        return super().step(step, run, at)


class InBlock(Small):
    """The body of the loop is in `with run.step()`."""
    seed = None

    def __init__(self):
        super().__init__()
        torch.manual_seed(100 + dist.get_rank())

    def step(self, step, run, at):
        loss = None
        with run.step():
            loss = super().step(step, run, at)
            self.after_step(step, loss, at)
        return loss

    def after_step(self, step, loss, at):
        pass


class BehindInBlock(InBlock, Behind):
    """As Behind."""


class Sometimes(InBlock):
    """A metric is reduced after the optimizer's step, in one iteration only: nobody knew before that what the step changes must be undone."""

    def after_step(self, step, loss, at):
        if step == 6:
            at("metric")
            dist.all_reduce(loss.detach().clone())


class Rare(Small):
    """Activations are computed again in backward, with dropout; gradients are clipped, by norm and by value; whatever happens in backward, the
    program goes on; and in each step it forks a child, which ends as Python ends."""

    def wrap(self, net):
        class Again(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x):
                hidden = torch.utils.checkpoint.checkpoint(self.net[:3], x, use_reentrant=False)
                return torch.utils.checkpoint.checkpoint(self.net[3], hidden, use_reentrant=False)
        return Again()

    def backward(self, loss):
        try:
            loss.backward()
        except Exception:
            pass
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.1, error_if_nonfinite=True)
        nn.utils.clip_grad_value_(self.net.parameters(), 0.01)

    def step(self, step, run, at):
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return super().step(step, run, at)


class Compiled(Small):
    """The model is compiled, and then wrapped. (aot_eager: compiled graphs, also that of backward, without a C++ compiler.)"""

    def wrap(self, net):
        return torch.compile(net, backend="aot_eager")


class Between(Small):
    """A forward without gradients comes between the forward and its backward."""

    def step(self, step, run, at):
        self.optimizer.zero_grad()
        out = self.model(self.batch(step, run))
        with torch.no_grad():
            target = self.model(0.9 * self.batch(step, run))
        loss = (out - target - 1).square().mean()
        loss.backward()
        at("reduced")
        self.optimizer.step()
        return loss


class Branching(Small):
    """A branch that only a micro-batch without a reduction uses."""

    class Net(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net, self.branch = net, nn.Linear(8, 4)

        def forward(self, x, is_branching=False):
            return self.net(x) + self.branch(x) if is_branching else self.net(x)

    def wrap(self, net):
        self.net = nn.Sequential(*net, self.Net(net))  # all parameters, for the optimizer
        return self.net[-1]

    def step(self, step, run, at):
        self.optimizer.zero_grad()
        with self.model.no_sync():
            self.model(self.batch(step, run), True).square().mean().backward()
        loss = self.model(0.9 * self.batch(step, run)).square().mean()
        loss.backward()
        at("reduced")
        self.optimizer.step()
        return loss


class Reduced(Small):
    """Rank 0 alone gets a sum, and decides by it."""

    def step(self, step, run, at):
        loss = super().step(step, run, at)
        total = loss.detach().clone()
        dist.reduce(total, 0)
        at("metric")
        dist.broadcast(total, 0)
        self.optimizer.param_groups[0]["lr"] = 0.01 / (1 + total.item())
        return loss


class Warmup(Small):
    """Schedules of schedules; the state of one has a Counter."""

    def __init__(self):
        super().__init__()
        lr = torch.optim.lr_scheduler
        warmup, later = lr.LinearLR(self.optimizer, total_iters=5), lr.MultiStepLR(self.optimizer, [2, 4])
        self.others = {"schedule": lr.SequentialLR(self.optimizer, [warmup, later], milestones=[6])}

    def step(self, step, run, at):
        loss = super().step(step, run, at)
        self.others["schedule"].step()
        return loss


class Growing(Small):
    """A buffer that forward makes larger, and a value of the model's that is in its state_dict alone."""

    class Net(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net, self.temperature = net, 2.0
            self.register_buffer("offsets", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.temperature *= 0.9
            if len(x) > len(self.offsets):
                self.offsets = torch.arange(len(x)) / 100
            return self.net(x) / self.temperature + self.offsets[:len(x), None]

        def get_extra_state(self):
            return {"temperature": self.temperature}

        def set_extra_state(self, state):
            self.temperature = state["temperature"]

    def wrap(self, net):
        return self.Net(net)

    def batch(self, step, run):
        return torch.randn(4 + step // 2, 8, generator=torch.Generator().manual_seed(1000 * step + run.rank))


class Averaged(Small):
    """An average of the weights is updated after the optimizer's step, and then a metric is reduced."""

    def __init__(self):
        super().__init__()
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.others = {"average": torch.optim.swa_utils.AveragedModel(self.net, multi_avg_fn=average)}

    def step(self, step, run, at):
        loss = super().step(step, run, at)
        self.others["average"].update_parameters(self.net)
        total = loss.detach().clone()
        at("metric")
        dist.all_reduce(total)
        return loss


class Sharpness(Small):
    """The gradient is taken at weights that are moved there for it, and moved back."""

    def step(self, step, run, at):
        self.optimizer.zero_grad()
        self.model(self.batch(step, run)).square().mean().backward()
        with torch.no_grad():
            before = [param.clone() for param in self.net.parameters()]
            for param in self.net.parameters():
                param.add_(param.grad, alpha=0.1)
        self.optimizer.zero_grad()
        loss = self.model(self.batch(step, run)).square().mean()
        at("second")
        loss.backward()
        with torch.no_grad():
            for param, value in zip(self.net.parameters(), before):
                param.copy_(value)
        self.optimizer.step()
        return loss


class SharpnessInBlock(InBlock, Sharpness):
    """As Sharpness."""


class Unused(Small):
    """A part that is used in the first steps only, and then has gradients of zeros, with which its weights decay."""

    class Net(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net, self.part = net, nn.Linear(8, 4)

        def forward(self, x, is_used):
            return self.net(x) + self.part(x) if is_used else self.net(x)

    def wrap(self, net):
        self.whole = self.Net(net)
        return self.whole

    def __init__(self):
        super().__init__()
        self.optimizer = self.optimizers["optimizer"] = torch.optim.SGD(self.whole.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def step(self, step, run, at):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(self.batch(step, run), step < 4).square().mean()
        loss.backward()
        at("reduced")
        self.optimizer.step()
        return loss


class Left(Small):
    """The program leaves its loop by itself, and goes on with another one."""

    def iterations(self, run):
        for end in (5, STEPS):
            for step in run.steps(100, seed=1):
                yield step
                if step + 1 == end:
                    break


class LeftEpochs(Epochs):
    """Of each epoch the last batch is left out, and then the other epochs are."""

    def iterations(self, run):
        for _ in run.epochs(100):
            for self.batch in run.batches(self.loader):
                yield run.iteration
                if run.batch == 2:
                    break
            self.schedule.step()
            if run.iteration == STEPS:
                break


class HangingTwice(Small):
    """Rank 0 takes the port of the rendezvous, which the agents do not need any more; rank 1 hangs, and later rank 2."""

    def step(self, step, run, at):
        if (step, run.rank) == (2, 0):
            self.taken = socket.create_server(("", int(os.environ["MASTER_PORT"])))
        if (step, run.rank) in ((3, 1), (7, 2)) and self.once(f"hung-{run.rank}"):
            threading.Event().wait()
        return super().step(step, run, at)


class Kept(LeftEpochs):
    """The iterator is kept in a variable, as that of a progress bar is."""

    def iterations(self, run):
        for _ in run.epochs(4):
            batches = run.batches(self.loader)
            for self.batch in batches:
                yield run.iteration
                if run.batch == 2:
                    break
            self.schedule.step()


class After(Small):
    """After the loop a metric is reduced."""

    def iterations(self, run):
        yield from run.steps(STEPS, seed=1)
        self.at("after")
        total = torch.ones(())
        dist.all_reduce(total)
        assert total == run.world


class Uneven(Small):
    """Rank 1 makes a step less than the others."""

    def iterations(self, run):
        return run.steps(STEPS - (run.rank == 1))


class Leaving(Small):
    """Rank 1 ends its program in the middle of the loop, and calls that a success."""

    def iterations(self, run):
        for step in run.steps(STEPS):
            if run.rank == 1 and step == 7:
                sys.exit(0)
            yield step


class Saving(Small):
    """Rank 0 takes its time after the loop, for longer than any timeout, and the others end."""

    def iterations(self, run):
        yield from run.steps(STEPS, seed=1)
        if run.rank == 0:
            threading.Event().wait(5)


class Unloadable(Small):
    """An object that does not take its state."""

    class Odd:
        def state_dict(self):
            return {"x": torch.zeros(3)}

        def load_state_dict(self, state):
            raise RuntimeError("size mismatch for x")

    def __init__(self):
        super().__init__()
        self.others = {"odd": self.Odd()}


class Evaluating(Small):
    """Rank 1 loads its data, then rank 0 evaluates, and later rank 1, each for longer than any timeout, while the others wait for it."""
    SECONDS = 5

    def __init__(self):
        super().__init__()
        if dist.get_rank() == 1:
            time.sleep(self.SECONDS)

    def step(self, step, run, at):
        if (step, run.rank) in ((3, 0), (6, 1)):
            self.net.eval()
            end = time.monotonic() + self.SECONDS
            while time.monotonic() < end:
                with torch.no_grad():
                    self.model(torch.ones(2, 8))
                time.sleep(0.01)
            self.net.train()
        return super().step(step, run, at)


class WithoutTheOthers(Small):
    """Rank 1 begins a collective before lockstep.restore that the others do not begin."""

    def __init__(self):
        super().__init__()
        if dist.get_rank() == 1:
            dist.all_reduce(torch.zeros(1))


class HangingVolume(Small):
    """The volume does not answer when rank 0's first process writes a checkpoint."""

    def step(self, step, run, at):
        if (step, run.rank) == (0, 0):
            lockstep._checkpoint.CheckpointFolder._ask_to_write = lambda *_: threading.Event().wait()
        return super().step(step, run, at)


class Sampled(Epochs):
    """A DistributedSampler, which shuffles, and workers that are forked while the group's connections are open."""

    def __init__(self):
        super().__init__()
        data = torch.utils.data.Subset(self.Data(), range(16 * dist.get_world_size()))
        sampler = lockstep.DistributedSampler(data, shuffle=True, seed=5, batch_size=4)
        self.loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True,
                                                  worker_init_fn=self.begin_worker)

    def begin_worker(self, number):
        """A worker sees the program's own data set."""
        assert torch.utils.data.get_worker_info().dataset is self.loader.dataset


class Abandoned(Small):
    """With --trouble, rank 1 holds more memory of collectives that never end than its gradients have, which the metrics show."""

    class Never:
        def is_completed(self):
            return False

    def step(self, step, run, at):
        if self.trouble and step == 3 and run.rank == 1 and self.once("abandoned"):
            exchange().abandoned.add(self.Never(), [torch.empty(10_000)], None)
        if self.trouble and step == 5 and run.rank == 1 and self.once("seen"):
            # Beside what the agent counts for this rank, and not instead of it.
            while not all(name in self.metrics() for name in ('lockstep_abandoned_bytes{rank="1"} 40000', 'lockstep_steps_total{rank="1"}')):
                time.sleep(0.1)
        return super().step(step, run, at)

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['STATUS_PORT']}/metrics") as page:
            return page.read().decode()


class Casting(Small):
    """An object whose load_state_dict loses bits."""

    class Average:
        def __init__(self):
            self.x = torch.rand(3, dtype=torch.float64)

        def state_dict(self):
            return {"x": self.x}

        def load_state_dict(self, state):
            self.x = state["x"].float()

    def __init__(self):
        super().__init__()
        self.others = {"average": self.Average()}


class Large(Small):
    """State above 2 GiB, most of it in one tensor."""

    def wrap(self, net):
        net.table = nn.Parameter(torch.empty((2 << 30) // 4 + 1000).fill_(0.5), requires_grad=False)
        return net


class EveryThing(Pictures):
    """For the soak: BatchNorm, accumulation with and without no_sync, dropout, a shuffled loader whose workers augment at random."""
    seed = None
    epochs = int(os.environ.get("EPOCHS", "3"))

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, index):
            x = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
            return x + 0.1 * torch.randn(1, 8, 8), index % 16

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.others["schedule"] = self.schedule
        sampler = lockstep.DistributedSampler(self.Data(), seed=3, batch_size=8)
        self.loader = torch.utils.data.DataLoader(self.Data(), batch_size=8, sampler=sampler, num_workers=2)
        torch.manual_seed(dist.get_rank())

    def iterations(self, run):
        for _ in run.epochs(self.epochs):
            for self.batch in run.batches(self.loader):
                yield run.iteration
            self.schedule.step()

    def loss(self, x, y, step, run):
        return F.cross_entropy(self.model(self.dropout(x), uses_sometimes=(run.rank + step) % 3 == 0), y)

    def step(self, step, run, at):
        x, y = self.batch
        self.optimizer.zero_grad()
        with self.model.no_sync():
            self.loss(x[:2], y[:2], step, run).backward()
        self.loss(x[2:5], y[2:5], step, run).backward()
        loss = self.loss(x[5:], y[5:], step, run)
        loss.backward()
        at("reduced")
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.average.update_parameters(self.net)
        return loss


if __name__ == "__main__":
    main()
