"""The reduction of a model's gradients, inside backward(), with a retry when a rank is lost meanwhile.

p.grad keeps this rank's own gradient until the sums of all ranks are complete: then it becomes their mean. So nothing is lost when the
group breaks, and the program sees nothing of it but a backward() that takes longer.
"""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from ._buckets import layout
from ._errors import GroupBroken, LockstepError
from ._gloo import broadcast, first_line
from ._plain import Plain
from ._session import Session

NO_TASK = -1


def _is_nested() -> bool:
    """The gradient that has come is of a backward that was called within another one. (Autograd runs it on the thread that called, or on the
    device's, where the outer one has no frame.)"""
    backwards, frame = 0, sys._getframe().f_back
    while frame:
        backwards += frame.f_code.co_name == "_engine_run_backward"
        if backwards > 1 or frame.f_code is torch.utils.checkpoint.CheckpointFunction.backward.__code__:
            return True
        frame = frame.f_back
    return False


class Memory(list[torch.Tensor]):
    """Of one reduction: a flat tensor for each bucket, then the buffers'. It is used again for later reductions, and so are the views of
    each parameter's part, because making them takes longer than copying."""

    def __init__(self, flats: Sequence[torch.Tensor]) -> None:
        super().__init__(flats)
        self.views: dict[int, list[torch.Tensor]] = {}  # by bucket


class Reducer:
    """Of one wrapped model. `names` and `params`: those that require a gradient, in order of registration; `find_buffers`: those of which
    all ranks get rank 0's at the end of each reduction."""

    def __init__(self, exchange: Session | Plain, number: int, names: Sequence[str], params: Sequence[torch.nn.Parameter],
                 find_buffers: Callable[[], Sequence[torch.Tensor]] | None, cap_bytes: int) -> None:
        self._exchange = exchange
        self._names = names
        self._params = params
        self._find_buffers = find_buffers
        self._buffers: Sequence[torch.Tensor] = ()  # of the reduction that has begun
        self._buckets = layout(params, cap_bytes)
        self._number = number
        self._label = f"the gradients of model {number}"
        self._bucket_of = {index: number for number, bucket in enumerate(self._buckets) for index in bucket.params}
        self._is_reduced = False  # set by each forward with gradients: whether backwards are reduced from now on
        self._was_used = [False] * len(params)  # since the last reduction, also in a backward that was not reduced
        self._reset()
        self._hooks = [param.register_post_accumulate_grad_hook(functools.partial(self._on_gradient, index)) for index, param in enumerate(params)]

    def _reset(self) -> None:
        self._task = NO_TASK
        self._left = [len(bucket.params) for bucket in self._buckets]
        self._is_used = [False] * len(self._params)
        self._works: list[tuple[Any, torch.Tensor]] = []
        self._group: Any = None  # of the works
        self._flats: list[torch.Tensor] | None = None  # of the reduction that has begun: one for each bucket, then the buffers'

    # ---- in forward ----

    def begin_forward(self, is_training: bool, is_reduced: bool) -> None:
        """As in torch, it is decided here, and not at the backward, whether that is reduced."""
        self._exchange.note_forward(is_training)
        if self._task != NO_TASK and torch._C._current_graph_task_id() == NO_TASK:
            # The last backward has ended with an error, which the program has caught. What it has begun with the others is void.
            self._abandon()
            self._reset()
            self._exchange.rejoin("a backward has failed in this rank")
        if is_training:  # one without gradients may come between a forward and its backward
            self._is_reduced = is_reduced

    # ---- in backward ----

    def _on_gradient(self, index: int, _param: torch.Tensor) -> None:
        self._was_used[index] = True
        if not self._is_reduced:
            return
        task = torch._C._current_graph_task_id()
        if task != self._task and (self._task != NO_TASK or _is_nested()):
            raise LockstepError(f"the gradient of {self._names[index]} came from a backward inside another one (torch.utils.checkpoint with "
                                "use_reentrant=True): use use_reentrant=False")
        if self._task == NO_TASK:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._begin()
        if self._is_used[index]:
            raise LockstepError(f"the gradient of {self._names[index]} came twice in one backward: a parameter must be used through one node "
                                "of the graph")
        self._is_used[index] = True
        bucket = self._bucket_of[index]
        self._left[bucket] -= 1
        if self._left[bucket] == 0 and self._flats is not None:
            self._launch_full()

    def _begin(self) -> None:
        """Reductions overlap with backward, but for those that must wait for another group or are not made at all."""
        self._buffers = self._find_buffers() if self._find_buffers else ()
        if not self._exchange.results.has_replay() and not self._exchange.is_cut():
            self._flats = self._memory()

    def _memory(self) -> list[torch.Tensor]:
        buffer_bytes = sum(buffer.nbytes for buffer in self._buffers)
        old = self._exchange.results.memory_of_old(self._label)
        if old is not None and old[-1].nbytes == buffer_bytes:
            return old
        # The last bucket also tells which parameters were used, and whether the ranks are to leave the group together.
        sizes = [bucket.numel for bucket in self._buckets]
        if sizes:
            sizes[-1] += len(self._params) + 1
        flats = [torch.empty(size, dtype=bucket.dtype, device=bucket.device) for size, bucket in zip(sizes, self._buckets)]
        return Memory([*flats, torch.empty(buffer_bytes, dtype=torch.uint8)])

    def _launch_full(self) -> None:
        """Buckets begin in their order, so that all ranks begin the same ones."""
        try:
            while len(self._works) < len(self._buckets) - 1 and self._left[len(self._works)] == 0:
                self._launch_next()
        except GroupBroken:  # what is left waits for the end of backward
            self._abandon()
            self._exchange.note_broken()

    def _launch_next(self) -> None:
        assert self._flats is not None
        number = len(self._works)
        flat = self._flats[number]
        group: Any = self._exchange.gradient_group(self._number)
        self._group = group
        if number < len(self._buckets):
            self._fill(number)
        elif self._exchange.rank == 0:
            self._pack_buffers(flat)
        try:
            work = group.allreduce([flat]) if number < len(self._buckets) else broadcast(group, flat, 0)
        except RuntimeError as error:
            raise GroupBroken(first_line(error)) from None
        self._works.append((work, flat))

    def _views(self, number: int, flats: list[torch.Tensor]) -> list[torch.Tensor]:
        known = flats.views if isinstance(flats, Memory) else {}
        if number not in known:
            bucket = self._buckets[number]
            params = [self._params[index] for index in bucket.params]
            parts = flats[number][:bucket.numel].split([param.numel() for param in params])
            known[number] = [part.view(param.shape) for part, param in zip(parts, params)]
        return known[number]

    @torch.no_grad()
    def _fill(self, number: int) -> None:
        assert self._flats is not None
        bucket, flat = self._buckets[number], self._flats[number]
        views = self._views(number, self._flats)
        gradients = [torch.zeros_like(view) if gradient is None else gradient
                     for view, gradient in zip(views, (self._params[index].grad for index in bucket.params))]
        torch._foreach_copy_(views, gradients)
        weight = self._exchange.weight()
        if weight is None:
            flat[:bucket.numel].div_(self._exchange.world)  # before the sum, as torch does
        else:
            flat[:bucket.numel].mul_(weight)
        if number == len(self._buckets) - 1:
            told = [*self._was_used, self._exchange.is_to_leave()]
            flat[bucket.numel:].copy_(torch.frombuffer(bytearray(told), dtype=torch.uint8))

    # ---- at the end of backward ----

    def _finish(self) -> None:
        try:
            self._exchange.with_group(self._reduce)
        finally:
            self._abandon()
            self._reset()

    def _reduce(self) -> None:
        if self._works and self._group is not self._exchange.gradient_group(self._number):
            self._abandon()  # the group was cut when nobody waited
        if self._exchange.results.has_replay():
            return self._take(self._exchange.results.replay(self._label), is_new=False)
        if self._flats is None:
            self._flats = self._memory()
        try:
            wanted = len(self._buckets) + (1 if self._buffers else 0)
            while len(self._works) < wanted:
                self._launch_next()
            for work, _ in self._works:
                self._exchange.wait(work)
        except GroupBroken:
            self._abandon()
            raise
        flats, self._flats = self._flats, None
        self._exchange.results.add(self._label, flats)
        self._take(flats, is_new=True)

    def _abandon(self) -> None:
        """What was begun may still write to its memory, so the next try has other memory."""
        for work, flat in self._works:
            if not work.is_completed():
                self._exchange.abandoned.add(work, [flat], self._group)
        self._works, self._flats, self._group = [], None, None

    @torch.no_grad()
    def _take(self, flats: list[torch.Tensor], is_new: bool) -> None:
        """The means become the gradients. A parameter that no rank has used since the last reduction keeps what it has. `is_new`: the
        reduction was made in this group."""
        self._was_used = [False] * len(self._params)
        if not self._buckets:
            return
        *used, is_leaving = flats[len(self._buckets) - 1][self._buckets[-1].numel:].ne(0).tolist()
        if is_leaving and is_new:
            self._exchange.note_leaving()
        for number, bucket in enumerate(self._buckets):
            params = [(self._params[index], view) for index, view in zip(bucket.params, self._views(number, flats)) if used[index]]
            gradients = []
            for param, _ in params:
                if param.grad is None:
                    param.grad = torch.empty_like(param)
                gradients.append(param.grad)
            if params:
                torch._foreach_copy_(gradients, [view for _, view in params])
        if self._buffers:
            self._unpack_buffers(flats[-1])

    def _pack_buffers(self, flat: torch.Tensor) -> None:
        at = 0
        for buffer in self._buffers:
            flat[at:at + buffer.nbytes] = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            at += buffer.nbytes

    def _unpack_buffers(self, flat: torch.Tensor) -> None:
        at = 0
        for buffer in self._buffers:
            # clone: a view of another dtype needs memory that is aligned for it
            buffer.copy_(flat[at:at + buffer.nbytes].clone().view(buffer.dtype).view(buffer.shape))
            at += buffer.nbytes
