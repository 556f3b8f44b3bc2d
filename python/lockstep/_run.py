"""lockstep.restore and what it returns: the steps of a run."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from . import _random
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
        at its end, and is never made again; when a rank is lost, its successor begins after the newest such iteration, with the random
        states that this rank had there.

        seed: random numbers of torch, numpy and Python follow from (seed, iteration, rank), in each iteration: also in another number of
            ranks, and when a node is lost."""
        iteration = self._session.position
        if seed is None:
            self._go_on_with_random_states()
        while iteration < total:
            if seed is not None:
                _random.seed_all(seed, iteration, self.rank)
            yield iteration
            iteration += 1
            if self._session.is_decided():
                self._session.commit(iteration)
        self._session.await_end()

    def _go_on_with_random_states(self) -> None:
        position = self._session.position
        if (note := self._session.note()) is not None:
            _random.apply(note)
        elif position > 0:
            _random.seed_all(0, position, self.rank)
            print(f"lockstep: the random states of rank {self.rank} are lost with its node: it goes on with others, seeded by the step",
                  file=sys.stderr)
        self._session.leave_notes(_random.capture)


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
