"""The session of this process: one, from init_process_group to its end."""
from __future__ import annotations

from ._errors import LockstepError
from ._plain import Plain
from ._session import Session

_session: Session | Plain | None = None


def exchange() -> Session | Plain:
    """LockstepError before init_process_group."""
    if _session is None:
        raise LockstepError("lockstep.init_process_group has not been called yet: call it first")
    return _session


def is_begun() -> bool:
    return _session is not None


def begin(session: Session | Plain) -> None:
    global _session
    _session = session
