"""What objects of the program have counted: attributes that are numbers, texts, tensors of one element, and lists and dictionaries of these. In
a rank that is started again they are what they were, or, where its node is lost, what they are in another rank."""
from __future__ import annotations

import functools
import inspect
import os
import pickle
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ._tensors import as_bytes, copy_of, description_of, empty_as, extract_tensors, fill_from_bytes, insert_tensors

_PLAIN = (bool, int, float, str, type(None))
_SINGLE = (*_PLAIN, torch.Tensor)
_ITEMS_MAX = 1000  # of one attribute: each collective of a step waits until they are copied


class _NotPlain(Exception):
    """Something else is in it."""


class _TooMany(Exception):
    """More than _ITEMS_MAX."""


def pack(value: Any) -> bytes:
    tensors: list[torch.Tensor] = []
    rest = extract_tensors(value, tensors)
    return pickle.dumps((rest, description_of(tensors), b"".join(as_bytes(tensor).numpy().tobytes() for tensor in tensors)))


def unpack(data: bytes) -> Any:
    rest, description, content = pickle.loads(data)
    tensors = empty_as(description)
    fill_from_bytes(tensors, content)
    return insert_tensors(rest, tensors)


def _is_numpy_number(value: Any) -> bool:
    """One of numpy's numbers, which become Python's."""
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and value.dtype.kind in "biuf"


def _plain_copy(value: Any, room: list[int]) -> Any:
    """Dictionaries of any kind become dictionaries, and a deque a list. `room`: items that there may still be."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if _is_numpy_number(value):
        return value.item()
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or (value.requires_grad and value.is_leaf):
            raise _NotPlain
        return value.detach()
    if not isinstance(value, (dict, list, tuple, deque)) or kind.__module__ not in ("builtins", "collections"):
        raise _NotPlain
    room[0] -= len(value)
    if room[0] < 0:
        raise _TooMany
    if isinstance(value, dict):
        if not all(type(key) in _PLAIN for key in value):
            raise _NotPlain
        return {key: _plain_copy(item, room) for key, item in value.items()}
    items = [_plain_copy(item, room) for item in value]
    return tuple(items) if kind is tuple else items


def _put(own: Any, kept: Any) -> Any:
    """`kept`, in the dictionaries and lists that there are: they may be of other kinds, a defaultdict has its factory, and others may hold them."""
    if isinstance(own, dict) and isinstance(kept, dict):
        for key in [key for key in own if key not in kept]:
            del own[key]
        for key, item in kept.items():
            there = own[key] if key in own or isinstance(own, defaultdict) and own.default_factory else None
            own[key] = _put(there, item)
        return own
    if isinstance(own, (list, deque)) and isinstance(kept, list):
        own.clear()
        own.extend(kept)
        return own
    return kept


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


@functools.cache
def _names_of_packages(kind: type, packages: tuple[str, ...]) -> frozenset[str]:
    """The attributes that these packages' own classes use, of which `kind` is derived."""
    names: set[str] = set()
    for one in kind.__mro__:
        if one.__module__.partition(".")[0] not in packages:
            continue
        for member in vars(one).values():
            method = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if callable(method) and isinstance(function := inspect.unwrap(method), types.FunctionType):
                names.update(_names_in(function.__code__))
    return frozenset(names)


class Attributes:
    """Of the objects that `parts` returns, by name. What the classes of `packages` use belongs to whoever knows them; `of_packages` are numbers,
    texts and tensors of these kept all the same."""

    def __init__(self, parts: Callable[[], dict[str, Any]], packages: tuple[str, ...], of_packages: bool) -> None:
        self._parts = parts
        self._packages = packages
        self._of_packages = of_packages
        self._too_many: set[tuple[str, str]] = set()  # said
        self._first: dict[str, dict[str, Any]] = {}

    def begin(self) -> None:
        """The program has set what it begins with."""
        self._first = copy_of(self.values())

    def changed(self) -> dict[str, dict[str, Any]]:
        """For another rank, whose own rank or file name may be among those that have not changed since the beginning."""
        unset = object()
        return {part: {name: value for name, value in values.items() if not (value == self._first.get(part, {}).get(name, unset))}
                for part, values in self.values().items()}

    def values(self) -> dict[str, dict[str, Any]]:
        """Copies, but for tensors. Rank 0 says once what is too much to be kept."""
        found: dict[str, dict[str, Any]] = {}
        for part, object_ in self._parts().items():
            found[part] = {}
            ignored = _names_of_packages(type(object_), self._packages)  # type: ignore[arg-type]  # mypy: a type is no Hashable
            for name, value in vars(object_).items():
                if (part, name) in self._too_many or (name in ignored and not (self._of_packages and isinstance(value, _SINGLE))):
                    continue
                try:
                    found[part][name] = _plain_copy(value, [_ITEMS_MAX])
                except _NotPlain:
                    pass
                except _TooMany:
                    self._too_many.add((part, name))
                    if os.environ.get("RANK", "0") == "0":
                        print(f"lockstep: {type(object_).__name__}.{name} has more than {_ITEMS_MAX} items, and is not kept for a rank that is "
                              "started again: there it is what the program sets at its beginning. What changes later and is needed belongs into "
                              "the state_dict() of a callback", file=sys.stderr)
        return found

    def put(self, kept: dict[str, dict[str, Any]]) -> None:
        """Not in the place of an object that this process has there (a file that rank 0 has open)."""
        for part, object_ in self._parts().items():
            own = vars(object_)
            for name, value in kept.get(part, {}).items():
                there = own.get(name)
                if isinstance(there, (*_SINGLE, dict, list, tuple, deque)) or _is_numpy_number(there):
                    own[name] = _put(there, value)
