"""The same program without an agent that recovers: under torchrun, or alone. What _session.py does, once and without a retry."""
from __future__ import annotations

import atexit
import datetime
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
# Its functions have the default group of the moment when it is imported as a default argument, for ever (torch._dynamo imports it when the first
# optimizer is made). Imported before there is a group, it keeps none alive after _close().
import torch.distributed.nn.functional  # noqa: F401

from . import _buckets
from ._errors import GroupBroken, LockstepError
from ._gloo import Abandoned
from ._link import MEMORY_BYTES
from ._memory import RankMemory
from ._notes import Notes
from ._saving import PlainSaving
from ._state import State
from ._wrapped import Models


class _Done:
    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: Any = None) -> bool:
        return True


class _Alone:
    """The group of a single rank."""

    def allreduce(self, tensors: list[torch.Tensor]) -> _Done:
        return _Done()

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> _Done:
        return _Done()


class _LastResults:
    """Of a run whose results nobody else may lack: their memory is used again."""

    def __init__(self) -> None:
        self._last: dict[str, list[torch.Tensor]] = {}

    def has_replay(self) -> bool:
        return False

    def replay(self, label: str) -> list[torch.Tensor]:
        raise AssertionError(label)

    def add(self, label: str, tensors: list[torch.Tensor]) -> None:
        self._last[label] = tensors

    def memory_of_old(self, label: str) -> list[torch.Tensor] | None:
        return self._last.pop(label, None)


class Plain:
    """See Session for what each function means."""
    is_first_start = True
    has_state = True

    def __init__(self, backend: str | None, timeout: datetime.timedelta | None, **arguments: Any) -> None:
        is_alone = "RANK" not in os.environ and not any(arguments.get(name) for name in ("init_method", "store"))
        if is_alone:
            arguments.update(store=dist.HashStore(), rank=0, world_size=1)
        dist.init_process_group(backend or ("gloo" if is_alone else None), timeout=timeout, **arguments)
        self.models = Models()
        self.results = _LastResults()
        self._groups: list[Any] = []
        self.abandoned = Abandoned()
        self.position = 0
        self._weight: float | None = None
        # As an agent's that a person starts (contract/generation.h); rank 0's is used.
        self.generation = self.lineage = int(time.time()) << 32 | 1
        memory = RankMemory(bytearray(MEMORY_BYTES))
        self._notes = Notes(memory)
        self.state = State(self.models, self._notes, hands_over=False)
        self.saving = PlainSaving(self, memory)
        atexit.register(self._close)

    def _close(self) -> None:
        """A Gloo group that Python's own end destroys, in any order with torch's threads, may abort the process."""
        self._groups = []
        if dist.is_initialized() and dist.get_backend() != "nccl":  # without a backend's name torch says "undefined", and takes Gloo
            dist.destroy_process_group()

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def world(self) -> int:
        return dist.get_world_size()

    def is_cut(self) -> bool:
        return False

    def is_to_leave(self) -> bool:
        return False

    def note_leaving(self) -> None:
        raise AssertionError("nobody is to leave")

    def weight(self) -> float | None:
        return self._weight

    def set_weight(self, weight: float | None) -> None:
        self._weight = weight

    def note_broken(self) -> None:
        pass

    def broadcast_at_start(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        layouts: list[Any] = [None] * self.world
        dist.all_gather_object(layouts, self.models.layouts[number])
        if words := _buckets.difference(self.models.layouts[number], layouts[0], 0):
            raise LockstepError(f"{words}: {_buckets.REMEDY}")
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)

    def begin(self, objects: dict[str, Any], can_resize: bool = False) -> None:
        self.state.begin(objects)
        self._groups = [dist.new_group() if self.world > 1 else _Alone() for _ in self.models.layouts]
        self.saving.open()
        self.saving.load()

    def states(self) -> dict[str, Any]:
        return self.state.states()

    def load_states(self, states: dict[str, Any], position: int) -> None:
        self.state.load(states)
        self.position = position

    def wait(self, work: Any) -> None:
        work.wait()

    def gradient_group(self, number: int) -> Any:
        if number >= len(self._groups):
            raise LockstepError("a backward before lockstep.restore: call that first, when all models are wrapped")
        return self._groups[number]

    def note_forward(self, is_training: bool) -> None:
        pass

    def begin_step(self) -> None:
        pass

    def end_step(self) -> None:
        pass

    def with_group(self, attempt: Callable[[], None]) -> None:
        try:
            attempt()
        except GroupBroken as error:
            raise RuntimeError(f"the reduction of the gradients has failed: {error}") from error

    def rejoin(self, why: str) -> None:
        if self.world > 1:
            raise RuntimeError(f"{why}, and without `lockstep launch` the group cannot be formed again")

    def is_decided(self) -> bool:
        return self.state.is_decided()

    def commit(self, position: int) -> None:
        self.state.commit()
        self.position = position

    def rejoin_if_cut(self) -> None:
        pass

    def leave_notes(self, capture: Callable[[], bytes] | None) -> None:
        self.state.is_looping = True
        self._notes.begin(capture, self.position, 0, self.rank)

    def leave_commit_note(self) -> None:
        self._notes.leave("commit", self.position, self.rank)

    def note_random(self) -> bytes | None:
        note = self._notes.read(self.position, 0, self.rank)
        return note.random if note and note.random else None

    def leave_epoch_note(self, epoch: int) -> None:
        self._notes.leave("epoch", epoch, self.rank)

    def epoch_note(self, epoch: int) -> bytes | None:
        return self._notes.read_epoch(epoch, self.rank)

    def say_progress(self, step: int, total: int, figures: dict[str, float]) -> None:
        pass

    def await_end(self) -> None:
        pass

