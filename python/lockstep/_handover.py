"""Values and tensors from one rank of a group to the others, and whether they arrived."""
from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ._errors import LockstepError
from ._gloo import broadcast
from ._tensors import PieceReader, as_bytes, from_bytes, pieces_of, to_bytes


class Channel:
    """From the rank `root` of the group to its others. `wait` raises GroupBroken when the group ends first."""

    def __init__(self, group: dist.ProcessGroupGloo, root: int, wait: Callable[[Any], None]) -> None:
        self._group = group
        self._root = root
        self._wait = wait

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._wait(broadcast(self._group, tensor, self._root))
        return tensor

    def send(self, value: Any) -> None:
        data = torch.frombuffer(bytearray(to_bytes(value, "this rank")), dtype=torch.uint8)
        self._broadcast(torch.tensor([data.numel()]))
        self._broadcast(data)

    def receive(self) -> Any:
        size = self._broadcast(torch.empty(1, dtype=torch.int64))
        return from_bytes(self._broadcast(torch.empty(int(size), dtype=torch.uint8)).numpy().tobytes())

    def send_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Their bytes, in pieces."""
        for piece in pieces_of(tensors):
            self._broadcast(piece)

    def receive_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Into these, which have the dtypes and shapes of those that are sent."""
        reader = PieceReader(tensors)
        while size := reader.next_size():
            reader.take(self._broadcast(torch.empty(size, dtype=torch.uint8)))


def digests_of(value: Any, name: str = "") -> dict[str, str]:
    """Of each tensor in nested state, by its name ("optimizer.state.0.exp_avg"): dtype, shape and a checksum of its bytes."""
    if isinstance(value, torch.Tensor):
        return {name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} {zlib.crc32(as_bytes(value).numpy().data):08x}"}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found: dict[str, str] = {}
    for key, item in items:
        found |= digests_of(item, f"{name}.{key}" if name else str(key))
    return found


def compare_digests(ours: dict[str, str], theirs: dict[str, str], source: int) -> None:
    """LockstepError names the first tensor that is not what the rank `source` has handed over."""
    for name in {**theirs, **ours}:
        if ours.get(name) != theirs.get(name):
            raise LockstepError(f"{name} is {ours.get(name, 'not there')} after the state of rank {source} was loaded, and is "
                                f"{theirs.get(name, 'not there')} there (dtype, shape, checksum): load_state_dict() must restore what "
                                "state_dict() says, bit for bit")
