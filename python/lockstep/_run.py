"""lockstep.restore and what it returns: the steps of a run."""
from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ._errors import LockstepError
from ._plain import Plain
from ._session import Session
from ._start import exchange


class Run:
    """A training run, as this rank sees it."""

    def __init__(self, session: Session | Plain, objects: dict[str, Any]) -> None:
        self._session = session
        session.begin(objects)

    @property
    def rank(self) -> int:
        return self._session.rank

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self._session.world

    def steps(self, total: int, seed: int | None = None) -> Iterator[int]:
        """For `range(total)`: the numbers of the iterations that are left. An iteration in which every optimizer has stepped is committed
        at its end, and is never made again; when a rank is lost, its successor begins after the newest such iteration.

        seed: random numbers of torch, numpy and Python follow from (seed, iteration, rank), in each iteration."""
        iteration = self._session.position
        while iteration < total:
            if seed is not None:
                seed_all(seed, iteration, self.rank)
            yield iteration
            iteration += 1
            if self._session.is_decided():
                self._session.commit(iteration)
        self._session.await_end()


def seed_all(seed: int, step: int, rank: int) -> None:
    """torch (CPU and devices), random and, where it is imported, numpy."""
    number = hash((seed, step, rank)) & (1 << 63) - 1  # of integers: the same in every process
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number & (1 << 32) - 1)


_run: Run | None = None


def restore(**objects: Any) -> Run:
    """The newest state of any rank, or else what the objects hold, into the objects: models, optimizers, schedules, whatever has state_dict
    and load_state_dict, by names of yours. To be called once, when all of them exist and the models are wrapped.

    LockstepError: called twice; an object without both functions; other objects than in the other ranks."""
    global _run
    if _run is not None:
        raise LockstepError("lockstep.restore is called twice: call it once, with all objects")
    _run = Run(exchange(), objects)
    return _run
