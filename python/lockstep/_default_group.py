"""torch's default group in a run that recovers: the same object for ever, whatever group of ranks is behind it.

The program's own collectives (a metric that is reduced, a barrier around a download) go through it. Each is complete when its call
returns. When a rank is lost meanwhile it is made again in the next group, and a rank that comes later gets its result (_session.py).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._errors import LockstepError
from ._session import Session, copy_all

BACKEND = "lockstep"


class _Complete(dist._Work):
    """The Work of a collective that is complete."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._result = result

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def wait(self, timeout: Any = None) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


class DefaultGroup(dist.ProcessGroup):
    """Of all ranks. A collective that is not here is refused by name."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.rank, session.world)  # type: ignore[call-arg]  # torch's types do not know of it
        self._session = session

    def getBackendName(self) -> str:
        return BACKEND

    def rank(self) -> int:
        return self._session.rank

    def size(self) -> int:
        return self._session.world

    def _run(self, name: str, targets: Sequence[torch.Tensor], attempt: Callable[[Any, list[torch.Tensor]], Any]) -> _Complete:
        """`attempt` begins the collective in a group, on copies of the targets, which hold its result afterwards."""
        what = ", ".join(f"{str(target.dtype).removeprefix('torch.')} {list(target.shape)}" for target in targets)
        self._session.collective(f"{name}({what})", targets, attempt)
        return _Complete(list(targets))

    def allreduce(self, tensors: Any, opts: Any = None) -> _Complete:  # type: ignore[override]
        tensors = tensors if isinstance(tensors, list) else [tensors]
        return self._run("all_reduce", tensors, lambda group, copies: group.allreduce(copies, opts or dist.AllreduceOptions()))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _Complete:  # type: ignore[override]
        return self._run("broadcast", tensors, lambda group, copies: group.broadcast(copies, opts or dist.BroadcastOptions()))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> _Complete:  # type: ignore[override]
        if len(inputs) != 1:
            raise LockstepError(f"all_gather got {len(inputs)} tensors, expected one")
        return self._run("all_gather", outputs[0], lambda group, copies: group.allgather([copies], inputs))

    def _allgather_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> _Complete:
        return self._run("all_gather_into_tensor", [output], lambda group, copies: group._allgather_base(copies[0], input_))

    all_gather_single = _allgather_base  # its name from torch 2.15 on

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Complete:  # type: ignore[override]
        """Every rank gets the sum, because any may have to hand it over, and only the destination shows it."""
        sums = [tensor.detach().clone() for tensor in tensors]
        options = dist.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        self._run("reduce", sums, lambda group, copies: group.allreduce(copies, options))
        if self.rank() == (opts.rootRank if opts is not None else 0):
            copy_all(tensors, sums)
        return _Complete(list(tensors))

    def barrier(self, opts: Any = None) -> _Complete:
        return self._run("barrier", [], lambda group, copies: group.barrier())


def _refuse(name: str, public: str) -> None:
    def refused(self: DefaultGroup, *args: Any, **kwargs: Any) -> Any:
        raise LockstepError(f"torch.distributed.{public} cannot be recovered when a rank is lost: use all_reduce, broadcast, all_gather, "
                            "reduce or barrier, or start the program without --recover and lockstep.init_process_group")
    setattr(DefaultGroup, name, refused)


for _name, _public in (("allgather_coalesced", "all_gather_coalesced"), ("allreduce_coalesced", "all_reduce_coalesced"),
                       ("alltoall", "all_to_all"), ("alltoall_base", "all_to_all_single"), ("gather", "gather"), ("scatter", "scatter"),
                       ("reduce_scatter", "reduce_scatter"), ("_reduce_scatter_base", "reduce_scatter_tensor"), ("send", "send"),
                       ("recv", "recv"), ("recv_anysource", "recv"), ("_start_coalescing", "_coalescing_manager"),
                       # From torch 2.15 on.
                       ("all_to_all_single", "all_to_all_single"), ("gather_single", "gather_single"),
                       ("gather_into_tensor", "gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_single")):
    _refuse(_name, _public)


def install(session: Session) -> None:
    """Makes it torch's default group. Another group (torch.distributed.new_group) is refused, of whatever backend."""
    def make(store: Any, rank: int, size: int, timeout: Any) -> DefaultGroup:
        return DefaultGroup(session)
    dist.Backend.register_backend(BACKEND, make, devices=["cpu", "cuda"])
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=session.rank, world_size=session.world)
    module: Any = dist.distributed_c10d
    # Lightning divides a sum itself where get_backend() says gloo, which has no average. Torch asks the function in distributed_c10d.
    public: Any = dist
    public.get_backend = lambda group=None: "gloo"

    def refuse(*args: Any, **named: Any) -> Any:
        raise LockstepError("torch.distributed.new_group cannot be recovered when a rank is lost: use the default group, or start the "
                            "program without --recover and lockstep.init_process_group")
    module._new_process_group_helper = refuse  # by which every group is made
