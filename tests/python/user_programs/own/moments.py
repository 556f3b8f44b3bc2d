"""Cases of cases.py whose ranks end themselves inside the package, and programs in which something goes on beside the training.

--moment RANK:PROCESS:WHERE: the process of this rank with that number, from 1, sends itself SIGKILL, once, there:
"waiting", "placed": before and after it has waited for a place in a group; "joining", "joined": before and after the group forms and the states
are made equal, and on the way "said" (its address), "half formed" (the gradients' groups are there), "handed over"; "sending N", "receiving N":
before part N of a state; "restoring": in lockstep.restore; "last bucket N": when it sums the last bucket of step N, or of a later one.
In a rank's first process they are called "first …" until it has a state.
--threads: what is in a thread of its own, beside the main one: "all" of the program, the "training" without lockstep.init_process_group, or an
"other" thing, which computes all the time; else the main thread does that.
"""
import argparse
import ctypes
import functools
import os
import pathlib
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

import lockstep
from cases import STEPS, Case, Killer, Transformer, main, moment
from lockstep import _session, _tensors
from lockstep._errors import GroupBroken
from lockstep._handover import Channel
from lockstep._reducer import Reducer
from lockstep._session import Session
from lockstep._state import State
from lockstep._store import LinkStore
from more_cases import Small


class TwoOptimizers(Transformer):
    """Both step after the same backward."""

    def __init__(self):
        super().__init__()
        body = set(self.net.body.parameters())
        others = [param for param in self.net.parameters() if param not in body]
        self.optimizers = {"body": torch.optim.AdamW(self.net.body.parameters(), lr=1e-3), "rest": torch.optim.SGD(others, lr=0.1, momentum=0.9)}
        self.others = {}

    def step(self, step, run, at):
        x = torch.randint(0, 64, (2 * run.world, 17), generator=torch.Generator().manual_seed(1000 + step))[run.rank::run.world]
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        at("reduced")
        self.optimizers["body"].step()
        at("between")
        self.optimizers["rest"].step()
        return loss


class Unconnected(TwoOptimizers):
    """At the first start, what rank 0 sends does not reach rank 1, although no rank is lost."""

    def __init__(self):
        if process == 1 and dist.get_rank() == 1:
            def lose(*_):
                raise GroupBroken("the cable is cut")
            Channel.receive_tensors = lose
        super().__init__()


class Locked(Small):
    """With --trouble rank 1 holds Python's lock for longer than the heartbeat timeout. Rank 2 can be killed "beside" that."""

    def step(self, step, run, at):
        if self.trouble and step == 4 and run.rank == 1 and self.once("locked"):
            assert ctypes.PyDLL(None).sleep(4) == 0
        if self.trouble and step == 4 and run.rank == 2:
            wait_until(lambda: (self.folder / "locked").exists())
            at("beside")
        return super().step(step, run, at)


class OwnHandler(Small):
    """The program has a handler for SIGTERM: all ranks leave the loop when one has got it. With --trouble they wait for it."""

    def __init__(self):
        super().__init__()
        self.is_asked = torch.zeros(1)
        signal.signal(signal.SIGTERM, self.note)

    def note(self, number, frame):
        self.is_asked += 1
        (self.folder / f"asked-{dist.get_rank()}").touch()

    def iterations(self, run):
        for step in run.steps(STEPS, seed=1):
            yield step
            if self.trouble and step == 5:
                wait_until(self.is_asked.item)
            are_asked = self.is_asked.clone()
            dist.all_reduce(are_asked)
            if are_asked:
                break
        assert signal.getsignal(signal.SIGTERM) == self.note


class Wide(Case):
    """A gradient of 32 MiB. With --trouble rank 2 is killed KILLS times, while it is summed. Before each step threads and descriptors are counted:
    held-RANK.txt, "process threads descriptors" in each line."""
    KILLS, STEPS = int(os.environ.get("KILLS", "0")), int(os.environ.get("STEPS", "12"))

    def __init__(self):
        self.net = nn.Linear(4096, 2048, bias=False)
        self.first_gradient = self.last_gradient = self.net.weight
        self.model = lockstep.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.models, self.optimizers, self.others = {"model": self.model}, {"optimizer": self.optimizer}, {}
        self.seconds = 0.0  # that the sum took

    def iterations(self, run):
        return run.steps(self.STEPS, seed=self.seed)

    def step(self, step, run, at):
        status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
        with open(self.folder / f"held-{run.rank}.txt", "a") as held:
            held.write(f"{os.getpid()} {int(status['Threads'])} {len(os.listdir('/proc/self/fd'))}\n")
        x = torch.randn(1, 4096, generator=torch.Generator().manual_seed(1000 * step + run.rank))
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        if self.trouble and run.rank == 2 and self.seconds:
            on_last_bucket.append(self.kill_at_random)
        began = time.monotonic()
        loss.backward()
        self.seconds = time.monotonic() - began
        self.optimizer.step()
        return loss

    def kill_at_random(self, work):
        """Somewhere in this sum, if that lasts until then."""
        kills = self.folder / "kills"
        number = len(kills.read_text()) if kills.exists() else 0

        def kill():
            if not work.is_completed():
                kills.write_text("x" * (number + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        if number < self.KILLS:
            threading.Timer(random.uniform(0, self.seconds), kill).start()


def wait_until(condition):
    while not condition():
        time.sleep(0.01)


# ---- moments inside the package ----

is_later = False  # this rank has a state, or had one in an earlier process
process = 0       # the number of this process of the rank
killer = None
on_last_bucket = []  # to be called once, with its work


def at(where):
    killer.at(int(os.environ["RANK"]), process, where if is_later else f"first {where}")


def around(owner, name, before="", after=""):
    """Moments before and after each call of owner.name."""
    made = getattr(owner, name)

    @functools.wraps(made)
    def call(*args, **kwargs):
        if before:
            at(before)
        result = made(*args, **kwargs)
        if after:
            at(after)
        return result
    setattr(owner, name, call)


def watch_groups():
    made, begin = _session.make_group, Session.begin

    def make_group(name, *args):
        if name == "default":
            at("half formed")
        return made(name, *args)

    def begin_and_note(*args, **kwargs):
        global is_later
        begin(*args, **kwargs)
        is_later = True
    _session.make_group, Session.begin = make_group, begin_and_note


def watch_channel():
    broadcast = Channel._broadcast

    def count_and_broadcast(self, tensor):
        self.parts = getattr(self, "parts", 0) + 1
        at(f"{'sending' if self._group.rank() == 0 else 'receiving'} {self.parts}")
        return broadcast(self, tensor)
    Channel._broadcast = count_and_broadcast


def watch_sums():
    launch = Reducer._launch_next

    def launch_and_look(self):
        launch(self)
        if len(self._works) == len(self._buckets):
            work = self._works[-1][0]
            for call in on_last_bucket:
                call(work)
            on_last_bucket.clear()
            for step in range(self._exchange.position + 1):
                if not work.is_completed():
                    at(f"last bucket {step}")
    Reducer._launch_next = launch_and_look


def watch(folder, wanted):
    global process, killer, is_later
    started = folder / f"processes-{os.environ['RANK']}.txt"
    process = 1 + (len(started.read_text().split()) if started.exists() else 0)
    is_later = process > 1
    killer = Killer(folder, wanted, signal.SIGKILL, os.getpid(), "moment")
    if wanted:
        _tensors.PIECE_BYTES = 4096  # so that a state has many parts
    around(Session, "_enter", before="waiting", after="placed")
    around(Session, "_join", before="joining", after="joined")
    around(Session, "_hand_over", after="handed over")
    around(State, "begin", after="restoring")
    around(LinkStore, "set", after="said")
    watch_groups()
    watch_channel()
    watch_sums()


# ---- beside the training ----

def compute(is_over):
    """All the time, and trains, too."""
    weight = torch.ones(8, 8, requires_grad=True)
    while not is_over():
        (torch.ones(4, 8) @ weight).sum().backward()
        sum(range(10_000))


def train(threads):
    if threads == "training":
        lockstep.init_process_group()
        lockstep.init_process_group = lambda: None
    if threads in ("all", "training"):
        training = threading.Thread(target=main)
        training.start()
        compute(lambda: not training.is_alive())
    elif threads == "other":
        is_over = threading.Event()
        other = threading.Thread(target=compute, args=[is_over.is_set])
        other.start()
        try:
            main()
        finally:
            is_over.set()
            other.join()
    else:
        main()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--moment", action="append", default=[], type=moment)
    parser.add_argument("--threads", choices=["all", "training", "other"])
    args, rest = parser.parse_known_args()
    sys.argv[1:] = [*rest, "--folder", str(args.folder)]
    watch(args.folder, args.moment)
    train(args.threads)
