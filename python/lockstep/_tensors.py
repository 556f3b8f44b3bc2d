"""Nested state as a small rest and a list of tensors, and tensors as a stream of bytes."""
from __future__ import annotations

import io
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ._errors import LockstepError

PIECE_BYTES = 16 << 20
_MARK = "lockstep: tensor"
_DICT_MARK = "lockstep: dictionary"
_DICTS: dict[str, type[dict[Any, Any]]] = {"Counter": Counter, "OrderedDict": OrderedDict}


def marked(value: dict[Any, Any], items: dict[Any, Any]) -> Any:
    """`items` with a mark where `value` is a Counter (as in a MultiStepLR) or an OrderedDict, which are written as dictionaries."""
    return (_DICT_MARK, type(value).__name__, items) if type(value) in _DICTS.values() else items


def unmarked(value: Any) -> Any:
    """The inverse: the dictionary of its kind."""
    if type(value) is tuple and len(value) == 3 and value[0] == _DICT_MARK:
        return _DICTS[value[1]](value[2])
    return value


def extract_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with each of its tensors moved to the end of `tensors` and a mark in its place. Lists, tuples and dictionaries are
    followed; anything else stays as it is."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return (_MARK, len(tensors) - 1)
    if isinstance(value, dict):
        return marked(value, {key: extract_tensors(item, tensors) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(extract_tensors(item, tensors) for item in value)
    return value


def insert_tensors(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of extract_tensors."""
    if type(value) is tuple and len(value) == 2 and value[0] == _MARK:
        return tensors[value[1]]
    if isinstance(value, dict):
        return {key: insert_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return unmarked(type(value)(insert_tensors(item, tensors) for item in value))
    return value


def copy_of(value: Any) -> Any:
    """`value` with tensors, lists, tuples and dictionaries of its own."""
    if isinstance(value, (int, float, str, type(None))):
        return value
    tensors: list[torch.Tensor] = []
    rest = extract_tensors(value, tensors)
    return insert_tensors(rest, [tensor.clone() for tensor in tensors])


def description_of(tensors: Sequence[torch.Tensor]) -> list[tuple[str, list[int], str]]:
    """Of each: dtype, shape and kind of device, from which empty_as() makes another."""
    return [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type) for tensor in tensors]


def empty_as(description: Sequence[tuple[str, list[int], str]]) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=getattr(torch, dtype), device=device) for dtype, shape, device in description]


def to_bytes(value: Any, what: str) -> bytes:
    """What is left when tensors are taken out. LockstepError names `what` when it holds a type that from_bytes() does not read."""
    file = io.BytesIO()
    torch.save(value, file)
    data = file.getvalue()
    try:
        from_bytes(data)
    except Exception as error:
        raise LockstepError(f"the state of {what} cannot be handed to another rank: {str(error).splitlines()[0]}. A state_dict() may hold "
                            "tensors, numbers, texts, lists, tuples and dictionaries") from None
    return data


def from_bytes(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes as a flat uint8 tensor on the CPU; a view where it is contiguous there."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def fill_from_bytes(tensors: Sequence[torch.Tensor], data: bytes) -> None:
    """The inverse of as_bytes() of all of them, one after the other."""
    reader = PieceReader(tensors)
    whole = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    reader.take(whole)


def pieces_of(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The bytes of all tensors, one after the other, in flat uint8 tensors of at most PIECE_BYTES. The memory of a piece is used again
    for the next one."""
    room = torch.empty(min(PIECE_BYTES, sum(tensor.nbytes for tensor in tensors)), dtype=torch.uint8)
    used = 0
    for tensor in tensors:
        data = as_bytes(tensor)
        while data.numel() > 0:
            size = min(data.numel(), room.numel() - used)
            room[used:used + size] = data[:size]
            data, used = data[size:], used + size
            if used == room.numel():
                yield room
                used = 0
    if used > 0:
        yield room[:used]


class PieceReader:
    """Fills tensors from what pieces_of() has made of others with the same dtypes and shapes."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.nbytes > 0]
        self._left = sum(tensor.nbytes for tensor in self._tensors)
        self._whole = torch.empty(0, dtype=torch.uint8)  # of the tensor that is being filled
        self._filled = 0
        self._next()

    def _next(self) -> None:
        self._filled = 0
        if self._tensors:
            self._whole = torch.empty(self._tensors[0].nbytes, dtype=torch.uint8)

    def next_size(self) -> int:
        """Bytes of the next piece; 0: there is none."""
        return min(PIECE_BYTES, self._left)

    def take(self, piece: torch.Tensor) -> None:
        self._left -= piece.numel()
        while piece.numel() > 0:
            size = min(piece.numel(), self._whole.numel() - self._filled)
            self._whole[self._filled:self._filled + size] = piece[:size]
            piece, self._filled = piece[size:], self._filled + size
            if self._filled == self._whole.numel():
                tensor = self._tensors.pop(0)
                with torch.no_grad():
                    tensor.copy_(self._whole.view(tensor.dtype).view(tensor.shape))
                self._next()
