"""This rank's link to its node's agent: the messages of docs/worker-protocol.md as Python calls.

Threads: any, but for watch, formed and retire, which belong to the thread that forms groups.
"""
from __future__ import annotations

import enum
import json
import math
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._errors import GroupBroken, LockstepError
from ._library import Library
from ._memory import RankMemory

PROTOCOL = 1
MEMORY_OFFSET, MEMORY_BYTES = 4096, 2 << 20  # behind the beat page (contract/beat_page.h)
KIND = "python"
SLICE_MS = 100  # of a wait; between slices Python's signal handlers run
FOREVER_MS = 365 * 24 * 3600 * 1000  # a cut ends every wait


class Activity(enum.IntEnum):
    """What the rank does, as the agent shows it (contract/phase.h)."""
    LOADING = 0
    AWAITING = 1
    FORMING = 2
    RESTORING = 3
    TRAINING = 4
    EVALUATING = 5
    CHECKPOINTING = 6


class Phase(enum.IntEnum):
    """Where its time goes. A rank in GRAD_SYNC or WAITING waits for a peer, and is not blamed for making no progress."""
    STARTUP = 0
    GRAD_SYNC = 4
    VALIDATION = 7
    CHECKPOINT_STALL = 8
    WAITING = 9
    OTHER = 10


@dataclass(frozen=True)
class Handover:
    """From one rank to some others, in a group of these ranks, in which the sender has rank 0."""
    rank: int = -1  # this rank's in that group; -1: it is not in it
    size: int = 0   # ranks of that group; 0: nothing is sent


@dataclass(frozen=True)
class Plan:
    """What this rank does before its group goes on. The coordinator has computed it from what all ranks hold
    (runner/recovery/state_source.h)."""
    source: int = -1                # the group goes on from the state of this rank; -1: no rank has one
    state: Handover = Handover()    # from the source
    results: Handover = Handover()  # of collectives, from a rank that has kept them
    first_result: int = 0           # the results that are sent are those of first_result … complete - 1
    complete: int = 0
    behind: int = -1                # a rank, perhaps this one, that lacks what nobody can send: it must be replaced; -1: none
    is_lost: bool = False           # there is a state, and ranks that need it, and nobody can hand it over: all must start again


@dataclass(frozen=True)
class Assignment:
    """This rank's place in the group of one generation, and what it does there first."""
    generation: int
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    address: str = ""  # of this node, as its peers reach it; empty: the ranks of all nodes are on this machine, or nobody knows
    plan: Plan = Plan()

    @property
    def listens_on(self) -> str:
        """Where this rank's groups listen; empty: the address of this machine's name."""
        return self.address or ("127.0.0.1" if self.world_size == self.local_world_size else "")


class AgentLink:
    """One per process, opened once."""

    def __init__(self, link_fd: int, page_fd: int, local_rank: int) -> None:
        self._library = Library()
        is_kept = os.fstat(page_fd).st_size > MEMORY_OFFSET  # not under a small `ulimit -f`
        self.memory = RankMemory(mmap.mmap(page_fd, MEMORY_BYTES, offset=MEMORY_OFFSET) if is_kept else mmap.mmap(-1, MEMORY_BYTES))
        self._link = self._library.open(link_fd, page_fd, local_rank)
        if not self._link:
            raise LockstepError(self._library.last_error())
        self.local_rank = local_rank

    # ---- messages ----

    def say(self, message: str, /, **fields: Any) -> None:
        line = json.dumps({"type": message, **fields})
        if self._library.send(self._link, line.encode()) != 0:
            raise AssertionError(f"{self._library.last_error()}, in {line}")

    def say_hello(self, version: str) -> None:
        self.say("hello", local_rank=self.local_rank, pid=os.getpid(), terms="{}", protocol=PROTOCOL, kind=KIND, package=version)

    def say_progress(self, step: int, total: int, figures: dict[str, float]) -> None:
        """For the page, /status and the metrics. Figures that have a place there, and any others."""
        others = dict(figures)
        places = {name: others.pop(name, math.nan) for name in ("loss", "lr", "grad_norm", "samples_per_second")}
        epoch = int(others.pop("epoch", 0))
        self.say("progress", step=step, total_steps=total, epoch=epoch, num_epochs=0, eta_seconds=-1.0, data_wait_ratio="NaN",
                 device_memory_bytes=-1, steps_per_second=-1.0, **{name: _finite(value) for name, value in places.items()})
        if others:
            self.say("evaluation", epoch=epoch, metrics={name: _finite(value) for name, value in others.items()})

    def say_gauge(self, name: str, help_: str, value: float, rank: int) -> None:
        """A metric of this rank. It replaces all that the rank has said before."""
        sample = {"labels": {"rank": str(rank)}, "value": value, "count": 0, "sum": 0.0, "buckets": []}
        self.say("metrics", families=[{"name": name, "help": help_, "type": "gauge", "metrics": [sample]}])

    def await_assignment(self, poll: Callable[[], None]) -> Assignment:
        """Blocks until the agent has placed this rank in a new group. `poll` is called several times a second."""
        while (line := self._library.text(self._library.assignment(self._link, SLICE_MS))) is None:
            poll()
        fields = json.loads(line)
        for plan in fields.get("plans", []):  # one, or none
            fields["plan"] = _known(Plan, plan | {name: _known(Handover, plan[name]) for name in ("state", "results")})
        assignment: Assignment = _known(Assignment, fields)
        return assignment

    def ask_store(self, generation: int, op: str, keys: list[str], values: list[bytes] = (), amount: int = 0,  # type: ignore[assignment]
                  timeout_ms: int = FOREVER_MS, poll: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The reply of the group's store (contract/messages.h, StoreReply), with `values` as bytes. GroupBroken when the group has ended;
        TimeoutError when the keys did not come within `timeout_ms`. `poll` is called several times a second."""
        request = {"type": "store", "id": 0, "generation": generation, "op": op, "keys": keys,
                   "values": [value.hex() for value in values], "amount": amount, "timeout_ms": timeout_ms}
        number = self._library.ask(self._link, json.dumps(request).encode())
        if number == 0:
            raise GroupBroken(self._library.last_error())
        while (line := self._library.text(self._library.reply(self._link, number, SLICE_MS))) is None:
            poll()
        reply: dict[str, Any] = json.loads(line)
        if reply["status"] == "timeout":
            raise TimeoutError(f"the store has no {', '.join(keys)} after {timeout_ms} ms")
        if reply["status"] == "stale":
            raise GroupBroken(reply["message"])
        if reply["status"] != "ok":
            raise LockstepError(f"the store refused {op} of {', '.join(keys)}: {reply['message']}")
        reply["values"] = [bytes.fromhex(value) for value in reply["values"]]
        return reply

    # ---- the group's sockets ----

    def watch(self, generation: int) -> None:
        """From now on a cut of this generation shuts down the sockets that are opened until formed()."""
        self._library.watch(self._link, generation)

    def formed(self) -> None:
        self._library.formed(self._link)

    def retire(self) -> None:
        self._library.retire(self._link)

    def shut(self) -> None:
        """Ends all collectives of the watched group now, here and in the peers."""
        self._library.shut(self._link)

    def is_cut(self, generation: int) -> bool:
        return bool(self._library.cut_generation(self._link) >= generation)

    def leave_together(self, generation: int) -> int | None:
        """Set when the ranks of this generation are to leave the group together, at the end of a step: the exit code with which this process
        then ends, 0 when it goes on in the next group."""
        code = int(self._library.leave_together(self._link, generation))
        return code if code >= 0 else None

    def cut_cause(self) -> str:
        return self._library.text(self._library.cut_cause(self._link)) or ""

    # ---- the beat page ----

    def beat(self, activity: Activity, phase: Phase = Phase.OTHER) -> None:
        self._library.beat(self._link, activity, phase)

    def commit(self, step: int) -> None:
        """Shows that `step` steps are committed."""
        self._library.commit(self._link, step)

    def now_ns(self) -> int:
        return int(self._library.now_ns())


def _known(kind: Any, fields: dict[str, Any]) -> Any:
    """A dataclass of what was said: without what it does not know, and with its defaults for what was not said."""
    return kind(**{name: fields[name] for name in kind.__dataclass_fields__ if name in fields})


def _finite(value: float) -> float | str:
    """As messages have it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def count_optimizer_steps() -> None:
    """The page shows the steps of the program's optimizers, as in a program without this package, and not its commits."""
    rank = getattr(sys, "_lockstep_rank", None)
    if rank is not None:
        rank.counts = True


def open_link() -> AgentLink | None:
    """The link that `lockstep launch` has given this process; None under torchrun or plain Python. To be called once."""
    rank = getattr(sys, "_lockstep_rank", None)
    if rank is None or not rank.counts:
        return None
    if rank.pid != os.getpid():
        raise LockstepError("this process was forked by a rank, and is none itself: call lockstep.init_process_group in the rank's own "
                            "process, before it starts others")
    rank.counts = False  # the package writes the page from now on
    link = AgentLink(rank.link_fd, rank.page_fd, int(os.environ.get("LOCAL_RANK", "0")))
    # A child must neither speak for this rank nor keep its link open.
    os.register_at_fork(after_in_child=lambda: os.close(rank.link_fd))
    return link
