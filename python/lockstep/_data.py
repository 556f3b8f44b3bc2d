"""Batches of a loader from any place of an epoch on, without reading those before."""
from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from . import _random
from ._errors import LockstepError


def divide(order: list[Any], batch_size: int, ranks: int, rank: int, world: int, drop_last: bool) -> Iterator[tuple[list[Any], float | None]]:
    """A rank's part of each batch of `ranks` ranks with `batch_size` items each, divided among `world` ranks; and the weight of its gradient in
    the sum over all, None where all parts have one size. A rank for which there is no item gets one with weight 0."""
    whole = batch_size * ranks
    for first in range(0, len(order), whole):
        batch = order[first:first + whole]
        if drop_last and len(batch) < whole:
            return
        own = batch[rank::world]
        yield own or batch[:1], None if len(batch) % world == 0 else len(own) / len(batch)


class DistributedSampler(torch.utils.data.DistributedSampler[Any]):
    """torch's, with its arguments and its order of the data: this rank's part of each epoch. Where the number of ranks changes, run.batches()
    divides each batch of all ranks anew; len() and what follows from it (batches of an epoch, a schedule) are those of a rank at the start.

    batch_size: of the loader, which run.batches() compares with it."""

    def __init__(self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False, *, batch_size: int | None = None) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        if batch_size is not None and batch_size < 1:
            raise LockstepError(f"DistributedSampler got batch_size={batch_size}, expected 1 or more")
        self.batch_size = batch_size
        # Else it is of a part of the ranks, and no matter of run.batches().
        self.is_of_all_ranks = dist.is_initialized() and (self.num_replicas, self.rank) == (dist.get_world_size(), dist.get_rank())

    def move_to(self, ranks: int, rank: int) -> None:
        """From now on it is that of another rank, among `ranks`."""
        epoch = self.epoch
        super().__init__(self.dataset, ranks, rank, self.shuffle, self.seed, self.drop_last)
        self.epoch = epoch

    def order(self) -> list[Any]:
        """Of all ranks together, in this epoch."""
        whole = copy.copy(self)
        whole.num_replicas, whole.rank, whole.num_samples = 1, 0, self.total_size
        return list(whole)

    def check_batch_size(self, found: int | None) -> None:
        """LockstepError when the loader has another one."""
        if self.batch_size is not None and found != self.batch_size:
            raise LockstepError(f"the loader has batch_size={found}, and its DistributedSampler {self.batch_size}: give both the same")


class _Batch(list[Any]):
    """The indices of a batch. A worker process gets them seeded: what it draws for this batch follows from `seed` and the batch's number in
    the epoch, and not from what it has read before."""

    def __init__(self, indices: list[Any], seed: int, number: int) -> None:
        super().__init__(indices)
        self._numbers = (seed, number)

    def __reduce__(self) -> Any:
        return (_arrive_in_worker, (list(self), *self._numbers))


def _arrive_in_worker(indices: list[Any], seed: int, number: int) -> list[Any]:
    """A worker takes a batch's indices from its queue just before it reads the items."""
    if torch.utils.data.get_worker_info() is not None:
        _random.seed_all(seed, number, 0)
    return indices


class _BatchesFrom:
    """A batch sampler without its first batches, which are not read."""

    def __init__(self, batches: Any, first: int, seed: int) -> None:
        self._batches = batches
        self._first = first
        self._seed = seed

    def __iter__(self) -> Iterator[_Batch]:
        for number, indices in enumerate(itertools.islice(iter(self._batches), self._first, None), self._first):
            yield _Batch(indices, self._seed, number)

    def __len__(self) -> int:
        return max(0, len(self._batches) - self._first)


def _each_seeded(loader: DataLoader[Any], part: Any, first: int, seed: int) -> Iterator[Any]:
    """The batches of a loader that reads in this process. What is drawn for a batch follows from `seed` and its number, and changes no
    random state: so it does not matter how far ahead batches are read. `part`: a copy of the loader, which gets its indices here."""
    indices: list[Any] = []
    part.__dict__["batch_sampler"] = iter(indices.pop, None)
    batches = iter(part)
    for number, batch_indices in enumerate(itertools.islice(iter(loader.batch_sampler), first, None), first):  # type: ignore[arg-type]
        indices.append(batch_indices)
        before = _random.capture()
        _random.seed_all(seed, number, 0)
        try:
            batch = next(batches)
        finally:
            _random.apply(before)
        yield batch


def batches_from(loader: Any, first: int, are_seeded: bool = False, batches: Any = None) -> Iterator[Any]:
    """An iterator over the batches first, first + 1, … of the loader. It draws from torch's generator what the loader itself draws when it
    begins (the order of a shuffle, the seed of its workers), whatever `first` is.

    A loader of a map-style data set skips the batches before; any other iterable is read up to there, which is said.

    are_seeded: also what is drawn for a batch in this process follows from its number, as in workers.

    batches: indices of each batch, in place of the loader's batch_sampler."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None or isinstance(loader.dataset, torch.utils.data.IterableDataset):
        if first > 0:
            print(f"lockstep: reading {first} batches again to go on where the epoch was, because the loader's data cannot be indexed",
                  file=sys.stderr)
        return itertools.islice(iter(loader), first, None)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()) if loader.num_workers > 0 or are_seeded else 0
    part = copy.copy(loader)
    # DataLoader forbids to set these after it was made, because its own iterator may be running. This copy has none.
    part.__dict__["_iterator"] = None
    if loader.num_workers == 0 and are_seeded:
        return _each_seeded(loader, part, first, seed)
    part.__dict__["batch_sampler"] = _BatchesFrom(batches or loader.batch_sampler, first, seed)
    return iter(part)
