"""What this rank alone holds, kept for the process that takes its place: random states, and buffers that the ranks do not share."""
from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ._errors import LockstepError
from ._memory import RankMemory
from ._tensors import as_bytes, fill_from_bytes

RANDOM_BYTES_MAX = 20 << 10  # of _random.capture


class Note(NamedTuple):
    """Empty where the program keeps none."""
    random: bytes
    buffers: bytes


class Notes:
    """At each commit; and before each collective, because the others may commit after this rank's last part in one, when it is lost before
    it commits itself."""

    def __init__(self, memory: RankMemory) -> None:
        self._memory = memory
        self._capture: Callable[[], bytes] | None = None
        self._modules: Sequence[torch.nn.Module] = ()

    def keep_buffers(self, modules: Sequence[torch.nn.Module]) -> None:
        """Those of these modules, too: what a forward changes, before the collective that follows it."""
        self._modules = modules

    def check_buffers(self, modules: Sequence[torch.nn.Module]) -> None:
        """LockstepError when they are too large to be kept."""
        nbytes, most = sum(buffer.nbytes for module in modules for buffer in module.buffers()), self._memory.note_bytes_max - RANDOM_BYTES_MAX
        if nbytes > most:
            raise LockstepError(f"broadcast_buffers=False: each rank keeps its own buffers for the process that takes its place, at most {most} "
                                f"bytes, and {', '.join(type(module).__name__ for module in modules)} has {nbytes}: leave "
                                "broadcast_buffers=False out")

    def room(self) -> int:
        """Bytes that `capture` may come to."""
        return self._memory.note_bytes_max - sum(buffer.nbytes for buffer in self._buffers())

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self._modules for buffer in module.buffers()]

    def _make(self, kind: str) -> bytes:
        return marshal.dumps((self._capture() if self._capture else b"", b"" if kind == "epoch" else self.own_buffers()))

    def begin(self, capture: Callable[[], bytes] | None, position: int, at_commit: int, rank: int) -> None:
        """From now on notes are left. What the process before this one has left stands, for the next one, until this one has committed."""
        self._capture = capture
        if self._is_kept():
            self._memory.write("commit", position, rank, self._read(position, at_commit, rank) or self._make("commit"))

    def _is_kept(self) -> bool:
        return self._capture is not None or len(self._modules) > 0

    def leave(self, kind: str, number: int, rank: int) -> None:
        if self._is_kept():
            self._memory.write(kind, number, rank, self._make(kind))

    def _read(self, position: int, at_commit: int, rank: int) -> bytes | None:
        return self._memory.read("commit", position, rank) or self._memory.read("collective", at_commit - 1, rank)

    def read(self, position: int, at_commit: int, rank: int) -> Note | None:
        """Left at this commit, or before the last collective until then."""
        data = self._read(position, at_commit, rank)
        return Note(*marshal.loads(data)) if data else None

    def read_epoch(self, epoch: int, rank: int) -> bytes | None:
        """The random states at the beginning of this epoch."""
        data = self._memory.read("epoch", epoch, rank)
        return marshal.loads(data)[0] or None if data else None

    def own_buffers(self) -> bytes:
        return b"".join(as_bytes(buffer).numpy().tobytes() for buffer in self._buffers())

    def put_buffers(self, data: bytes) -> None:
        fill_from_bytes(self._buffers(), data)
