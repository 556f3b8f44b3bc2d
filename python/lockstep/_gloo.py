"""Groups of one generation, made by hand, and the wait for a collective that may never end."""
from __future__ import annotations

import ctypes
import datetime
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._errors import GroupBroken, LockstepError

SLICE = datetime.timedelta(milliseconds=200)
# A collective whose connection was shut down in the middle of a transfer may never end (1 of 60 tries). It is left alone after this.
ABANDON_SECONDS = 0.2
# For one connection. Gloo waits about five times as long for a peer that has said its address and does not connect. If that peer is lost, nothing
# ends the wait earlier: the side that listens has no socket yet that a cut could shut.
CONNECTING = datetime.timedelta(seconds=2)


def _options(address: str, connecting: datetime.timedelta) -> Any:
    """What a group is made with. The address of a machine's name may be 127.0.1.1, where no other machine reaches it."""
    if not address or os.environ.get("GLOO_SOCKET_IFNAME"):
        return connecting  # PyTorch finds the interface
    made: Any = dist.ProcessGroupGloo
    options = made._Options()
    options._timeout = connecting
    try:
        options._devices = [made.create_device(hostname=address)]
    except RuntimeError as error:
        raise LockstepError(f"gloo cannot listen on the address {address} of this node: {first_line(error)}; set GLOO_SOCKET_IFNAME to an interface "
                            "of this machine that the other nodes reach (lockstep doctor names them)") from None
    return options


def make_group(name: str, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, address: str) -> dist.ProcessGroupGloo:
    """Blocks until all `size` ranks have called it with this name. GroupBroken when the group of the generation ends first. `timeout`: of each
    collective. `address`: Assignment.listens_on. LockstepError when this machine has no such address."""
    can_change = hasattr(dist.ProcessGroupGloo, "set_timeout")  # torch 2.4 cannot: its connections keep the timeout that they are made with
    options = _options(address, CONNECTING if can_change else timeout)
    try:
        group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, options)
        if can_change:
            group.set_timeout(timeout)
        return group
    except (RuntimeError, dist.DistError) as error:
        raise GroupBroken(f"the group {name} could not be formed: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def broadcast(group: dist.ProcessGroupGloo, tensor: torch.Tensor, root: int) -> Any:
    """The Work of a broadcast from the rank `root` of this group."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return group.broadcast([tensor], options)  # type: ignore[attr-defined]  # torch's types leave it out


def leak(value: Any) -> None:
    """At the end of a process: groups and works that are never destroyed, because that would wait for threads that do not end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class Abandoned:
    """Works that may still write to their tensors: these and their groups are kept alive until they are done."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Sequence[torch.Tensor], Any]] = []

    def add(self, work: Any, tensors: Sequence[torch.Tensor], group: Any) -> None:
        self._kept.append((work, tensors, group))

    def free(self) -> None:
        """Drops those that are done."""
        self._kept = [kept for kept in self._kept if not kept[0].is_completed()]

    def leak(self) -> None:
        for kept in self._kept:
            leak(kept)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for _, tensors, _ in self._kept for tensor in tensors)


def wait_for(work: Any, is_cut: Callable[[], bool]) -> None:
    """Returns when the collective is complete. GroupBroken when it has failed, or its group was cut and it does not end. The thread is
    woken by the end of the collective; without one it looks at `is_cut` between slices."""
    give_up_at = float("inf")
    while not work.is_completed():
        if is_cut():
            give_up_at = min(give_up_at, time.monotonic() + ABANDON_SECONDS)
            if time.monotonic() >= give_up_at:
                raise GroupBroken("a collective did not end when its group was cut")
        try:
            work.wait(SLICE)
        except RuntimeError as error:
            if work.is_completed():
                raise GroupBroken(first_line(error)) from None
    try:
        work.wait()
    except RuntimeError as error:
        raise GroupBroken(first_line(error)) from None
