"""Where a program begins: with an agent that recovers it, or without."""
from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

from ._current import begin, is_begun
from ._ddp import replace_torchs
from ._default_group import install
from ._errors import LockstepError
from ._link import open_link
from ._plain import Plain
from ._session import Session
from ._version import __version__


def init_process_group(backend: str | None = None, init_method: str | None = None, timeout: datetime.timedelta | None = None,
                       world_size: int = -1, rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None,
                       device_id: Any = None) -> None:
    """For torch.distributed.init_process_group, with its arguments. Under `lockstep launch` rank, size and store are the agent's.
    LockstepError: called twice; a backend that does not recover; a process that a rank has forked."""
    start(True, backend, init_method, timeout, world_size, rank, store, group_name, pg_options, device_id)


def start(is_asked_for: bool, backend: str | None = None, init_method: str | None = None, timeout: datetime.timedelta | None = None,
          world_size: int = -1, rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None) -> None:
    """`is_asked_for`: see Session."""
    if is_begun():
        raise LockstepError("lockstep.init_process_group is called twice: call it once")
    link = open_link()
    if link is None:
        begin(Plain(backend, timeout, init_method=init_method, world_size=world_size, rank=rank, store=store, group_name=group_name,
                    pg_options=pg_options, device_id=device_id))
        return
    if backend not in (None, "gloo", "cpu:gloo"):
        raise LockstepError(f"backend={backend!r}: only gloo recovers, so far: leave backend out")
    session = Session(link, __version__, timeout or dist.default_pg_timeout, is_asked_for)
    begin(session)
    install(session)
    replace_torchs()
