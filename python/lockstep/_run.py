"""lockstep.restore and what it returns: the steps of a run."""
from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from . import _random
from ._checkpoint import LOOP
from ._current import exchange
from ._data import DistributedSampler, batches_from, divide
from ._errors import Interrupted, LockstepError
from ._left import is_by_break
from ._plain import Plain
from ._session import Session


LOG_SECONDS = 1.0  # at most so often is a figure sent


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


class _Loop:
    """Where the program's loop is: part of the state."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks  # at the start of the run: a batch of all ranks has always the size that it had then
        self.epoch = 0
        self.began = 0     # position at the beginning of the epoch
        self.left_at = -1  # position at which a `break` has ended the batches of the epoch; -1: none has
        self.left = 0      # a `break` has ended the loop over steps() with this number, from 1; 0: none
        self.ended = 0     # all ranks have been at the end of the loop with this number

    def state_dict(self) -> dict[str, int]:
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


class Run:
    """A training run, as this rank sees it."""

    def __init__(self, session: Session | Plain, objects: dict[str, Any]) -> None:
        self._session = session
        self._saving = session.saving
        self._loop = _Loop(session.world)
        self._total = 0
        self._seed: int | None = None
        self._logged_at: dict[str, float] = {}  # when a figure was sent, by name
        self._is_interrupted = False
        self._is_in_epoch = False
        self._has_batches = False  # run.batches has been called in this epoch
        self._is_in_iteration = False
        self._loops = 0  # that this process has begun over steps() and epochs()
        self._pid = os.getpid()
        session.begin({**objects, LOOP: self._loop}, can_resize=True)
        self._iteration = session.position  # iterations that this process has begun or skipped
        self._goes_on = True                # this process has not made one yet
        self._note = session.note_random() if session.position > 0 else None  # of the process before this one

    @property
    def rank(self) -> int:
        return self._session.rank

    @property
    def world(self) -> int:
        """Number of ranks. It changes between two steps where the number of nodes may."""
        return self._session.world

    @property
    def iteration(self) -> int:
        """The number of this iteration, from 0, over all epochs."""
        return self._iteration

    @property
    def batch(self) -> int:
        """The number of this batch in its epoch, from 0. (enumerate() would begin at 0 in a process that begins inside an epoch.)"""
        return self._iteration - self._loop.began

    def steps(self, total: int, seed: int | None = None) -> Iterator[int]:
        """For `range(total)`: the numbers of the iterations that are left. An iteration in which every optimizer has stepped is committed
        at its end, and is never made again; when a rank is lost, its successor begins after the newest such iteration, with the random
        states that this rank had there.

        seed: random numbers of torch, numpy and Python follow from (seed, iteration, rank), in each iteration: also in another number of
            ranks, and when a node is lost."""
        self._total, self._seed = total, seed
        self._begin_loop()
        self._go_on()
        if self._loops <= self._loop.ended:
            return
        if self._iteration >= total > 0:
            self._say(f"all {total} steps are made already")
        while self._iteration < total and self._loops > self._loop.left:
            self._begin_iteration()
            try:
                yield self._iteration
            except GeneratorExit:
                if self._is_left(sys._getframe().f_back):
                    self._commit_decided(left=self._loops)
                    self._end_after_break()
                raise
            self._end_iteration()
        self._end()

    def epochs(self, total: int, seed: int | None = None) -> Iterator[int]:
        """For `range(total)` around a loop over `batches`: the numbers of the epochs that are left, the first one perhaps in part. What the
        program does after the last batch of an epoch is made again by the successor of a rank that is lost there.

        seed: as in steps()."""
        self._seed = seed
        self._begin_loop()
        if self._loops <= self._loop.ended:
            return
        if self._loop.epoch >= total > 0:
            self._say(f"all {total} epochs are made already")
        while self._loop.epoch < total:
            self._is_in_epoch, self._has_batches = True, False
            try:
                yield self._loop.epoch
            except GeneratorExit:
                if self._is_left(sys._getframe().f_back):
                    self._commit_decided(left_at=self._iteration + 1)  # as below
                    self._end_after_break()
                raise
            self._is_in_epoch = False
            self._loop.epoch += 1
            self._loop.began, self._loop.left_at = self._iteration, -1
            self._commit_decided(began=self._iteration + 1)  # a `break` has ended the batches, whose iterator is kept in a variable
        self._end()

    def batches(self, loader: Any) -> Iterator[Any]:
        """For `loader`, inside epochs(): its batches that are left in this epoch, each with a commit at its end as in steps(). Batches that
        were made before are not read where the data can be indexed. A sampler with set_epoch() gets the epoch. Once in each epoch.

        Random numbers that a DataLoader's worker processes draw follow from the seed that the loader draws for the epoch, and the batch.

        LockstepError: not inside epochs(), or called again in the same epoch."""
        epoch, first = self._loop.epoch, self.batch
        if not self._is_in_epoch:
            raise LockstepError("run.batches is called outside of run.epochs: write `for batch in run.batches(loader):` inside "
                                "`for epoch in run.epochs(total):`")
        if self._has_batches:
            raise LockstepError(f"run.batches is called again in epoch {epoch}: call it once in each epoch, and go through other data without it")
        self._has_batches = True
        if first == 0:
            self._go_on()
        sampler: Any = getattr(loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        if isinstance(sampler, DistributedSampler):
            sampler.check_batch_size(loader.batch_size)
        if self._seed is not None:
            _random.seed_all(self._seed, self._loop.began, self.rank)
        elif first == 0:
            self._session.leave_epoch_note(epoch)
        elif (note := self._session.epoch_note(epoch)) is not None:
            _random.apply(note)
        else:
            self._session.leave_epoch_note(epoch)
        left, place = self._batches_left(loader), (self.rank, self.world)
        self._go_on()
        while self._loop.left_at != self._iteration:
            if place != (place := (self.rank, self.world)):
                left = self._batches_left(loader)
            self._begin_iteration()
            try:
                batch, weight = next(left)
            except StopIteration:
                self._is_in_iteration = False
                return
            self._session.set_weight(weight)
            try:
                yield batch
            except GeneratorExit:
                if self._is_left(sys._getframe().f_back):
                    self._commit_decided(left_at=self._iteration + 1)
                raise
            self._end_iteration()

    def _batches_left(self, loader: Any) -> Iterator[tuple[Any, float | None]]:
        """Of this rank in this epoch, as the group is now, with the weight of each."""
        sampler, ranks = getattr(loader, "sampler", None), self._loop.ranks
        if isinstance(sampler, DistributedSampler) and sampler.is_of_all_ranks:
            if (sampler.num_replicas, sampler.rank) != (ranks, self.rank):
                sampler.move_to(ranks, self.rank % ranks)
            if self.world != ranks and isinstance(loader, DataLoader) and loader.batch_size:
                parts = list(divide(sampler.order(), loader.batch_size, ranks, self.rank, self.world, loader.drop_last))
                batches = batches_from(loader, self.batch, batches=[indices for indices, _ in parts])
                return zip(batches, [weight for _, weight in parts[self.batch:]])
        if self.world != ranks:
            raise LockstepError(f"the group has {self.world} ranks, and the run began with {ranks}: run.batches divides the batches anew only of a "
                                "DataLoader with batch_size and a lockstep.DistributedSampler of all ranks: use these, or start the program with "
                                f"{ranks} ranks")
        return ((batch, None) for batch in batches_from(loader, self.batch))

    def _is_left(self, frame: Any) -> bool:
        """Whether a `break` or `return` of this process has ended the loop in `frame`."""
        return is_by_break(frame) and os.getpid() == self._pid

    def _commit_decided(self, **loop: int) -> None:
        """At a `break` in an iteration, with these values of the loop. Where not all optimizers have stepped in it, a new rank makes it again,
        and leaves the loop by itself."""
        if self._is_in_iteration and self._session.is_decided() and not self._is_interrupted:
            self._loop.load_state_dict(loop)
            self._iteration += 1
            self._session.commit(self._iteration)
        self._is_in_iteration = False

    def _end(self) -> None:
        """The last checkpoint is durable and all ranks are here when it returns."""
        self._saving.finish()
        self._session.await_end()
        self._loop.ended = self._loops

    def _end_after_break(self) -> None:
        """While Python closes the iterator, when it swallows what is raised: an error ends the process here."""
        try:
            self._end()
        except SystemExit as end:  # the run was asked to end
            code = end.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
        else:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)

    def _say(self, words: str) -> None:
        if self.rank == 0:
            print(f"lockstep: {words}", file=sys.stderr)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around the body of the loop, where it may be, but need not: what the optimizers change in it can be undone wherever a rank is lost,
        also in a collective that follows a step in some iterations only. A rank that a break finds a step behind the others, whose results
        nobody has kept, goes on with theirs, in place of being started again: then the block ends early, by lockstep.Interrupted, and the
        loop with the next iteration. So nothing after the block may use what was computed in it."""
        self._session.begin_step()
        try:
            yield
        except Interrupted:
            self._is_interrupted = True
        finally:
            self._session.end_step()

    def checkpoint(self, every: int, keep: int = 3) -> None:
        """From now on: rank 0 writes a checkpoint after `every` iterations, in a thread, at the end of the run, and when the run is asked
        to end (SIGTERM, Ctrl-C), to the folder that the variable LOCKSTEP_CHECKPOINT_DIR names; lockstep.restore goes on from the newest
        one when no rank is left that has a state. The newest `keep` stay. To be called on all ranks, before the loop. A write that
        fails is said, and training goes on.

        LockstepError: no folder is named, or nothing can be written there."""
        self._saving.begin(every, keep)

    def log(self, **figures: Any) -> None:
        """Figures of this iteration, numbers or tensors with one element, for the page, /status and the metrics: loss, lr, grad_norm, epoch
        and samples_per_second are shown as such, others by their names; the page has a curve of each. Only rank 0 sends, each figure at
        most once a second, and a tensor is read only then, so it may be called in each iteration, also several times."""
        if self.rank != 0:
            return
        now = time.monotonic()
        is_last = self._iteration + 1 == self._total
        due = {name: _number(value) for name, value in figures.items()
               if is_last or now - self._logged_at.get(name, float("-inf")) >= LOG_SECONDS}
        if due:
            self._logged_at.update(dict.fromkeys(due, now))
            self._session.say_progress(self._iteration + 1, self._total, due)

    def _begin_iteration(self) -> None:
        self._is_in_iteration = True
        if self._seed is not None:
            _random.seed_all(self._seed, self._iteration, self.rank)

    def _end_iteration(self) -> None:
        self._is_in_iteration = False
        if self._is_interrupted:
            self._is_interrupted = False
            self._iteration = self._session.position
            return self._apply_random_states(self._session.note_random())
        self._iteration += 1
        if self._session.is_decided():
            self._session.commit(self._iteration)
            self._session.rejoin_if_cut()
            self._saving.after_commit()
        else:
            self._session.state.note_iteration_without_commit()

    def _begin_loop(self) -> None:
        self._loops += 1
        self._saving.begin_loop()
        self._session.leave_notes(_random.capture if self._seed is None else None)

    def _go_on(self) -> None:
        """Once, before the first iteration of this process: with the random states of the process before it."""
        if self._goes_on:
            self._goes_on = False
            self._apply_random_states(self._note)

    def _apply_random_states(self, note: bytes | None) -> None:
        if self._seed is not None or self._session.position == 0:
            return
        if note is not None:
            _random.apply(note)
        else:
            _random.seed_all(0, self._session.position, self.rank)
            print(f"lockstep: the random states of rank {self.rank} are lost with its node: it goes on with others, seeded by the step",
                  file=sys.stderr)


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
