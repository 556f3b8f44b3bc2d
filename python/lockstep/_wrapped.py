"""The models of this process that are wrapped in lockstep.DistributedDataParallel."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from . import _buckets
from ._errors import LockstepError


class Models:
    """In the order in which they were wrapped. `check_buffers` refuses models whose buffers cannot be kept for each rank."""

    def __init__(self, check_buffers: Callable[[Sequence[torch.nn.Module]], None] = lambda modules: None) -> None:
        self._check_buffers = check_buffers
        self.layouts: list[dict[str, str]] = []  # _buckets.describe of each
        self._params: dict[torch.nn.Parameter, str] = {}  # → the class of its model
        self.keep_buffers: list[torch.nn.Module] = []  # those whose buffers the ranks do not share
        self._is_closed = False

    def add(self, model: torch.nn.Module, names: Sequence[str], params: Sequence[torch.nn.Parameter], keeps_buffers: bool,
            layout: dict[str, str]) -> int:
        """Its number. `names` and `params`: those that require a gradient. `layout`: what must be the same in all ranks."""
        kind = type(model).__name__
        if self._is_closed:
            raise LockstepError(f"{kind} is wrapped in lockstep.DistributedDataParallel after lockstep.restore: wrap all models before")
        if twice := next((name for name, param in zip(names, params) if param in self._params), None):
            raise LockstepError(f"{twice} of {kind} is part of a model that is wrapped already: wrap the whole model once")
        if keeps_buffers:
            self.keep_buffers.append(model)
            self._check_buffers(self.keep_buffers)
        self._params |= dict.fromkeys(params, kind)
        self.layouts.append(layout)
        return len(self.layouts) - 1

    def close(self, given: Iterable[Any]) -> None:
        """lockstep.restore was called with these. LockstepError where the parameters of a wrapped model are not in them: a rank that comes
        later would begin with other ones."""
        self._is_closed = True
        covered = {param for one in given if isinstance(one, torch.nn.Module) for param in one.parameters()}
        for param, kind in self._params.items():
            if param not in covered:
                raise LockstepError(f"{kind} is wrapped in lockstep.DistributedDataParallel, and lockstep.restore did not get it: give it all "
                                    "models that are trained")

    def are_stepped_by(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(param in self._params for group in optimizer.param_groups for param in group["params"])

    def gradient_bytes(self) -> int:
        return sum(param.nbytes for param in self._params)

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.layouts).encode()).hexdigest()

    def refuse_others(self, theirs: list[dict[str, str]], their_rank: int) -> None:
        """LockstepError in words, where the models of a rank with another digest are not these."""
        if len(theirs) != len(self.layouts):
            raise LockstepError(f"this rank has wrapped {len(self.layouts)} models in lockstep.DistributedDataParallel before "
                                f"lockstep.restore, and rank {their_rank} {len(theirs)}: wrap the same models in all ranks")
        for ours, other in zip(self.layouts, theirs):
            if words := _buckets.difference(ours, other, their_rank):
                raise LockstepError(f"{words}: {_buckets.REMEDY}")
