"""The states of the generators that programs use: torch's on the CPU and on this process's device, Python's, and numpy's."""
from __future__ import annotations

import ctypes
import marshal
import random
import sys
from typing import Any

import torch


# What the slow ones have said last, and what it was made from: in most steps of most programs only torch's changes.
_python: tuple[Any, bytes] = (None, b"")
_numpy: tuple[Any, tuple[Any, ...]] = (None, ())
_MT19937_BYTES = 625 * 4


def _python_state() -> bytes:
    global _python
    state = random.getstate()
    if state != _python[0]:
        _python = (state, marshal.dumps(state))
    return _python[1]


def _numpy_state(numpy: Any) -> tuple[Any, ...]:
    """numpy needs 20 µs for it, so it is asked only when the memory of its generator has changed, or when it holds a normal number for the
    next draw, which it gives away without a change there."""
    global _numpy
    generator: Any = numpy.random.get_bit_generator() if hasattr(numpy.random, "get_bit_generator") else None
    memory = None
    if type(generator) is getattr(numpy.random, "MT19937", None):
        memory = (id(generator), ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES))
    if memory is None or memory != _numpy[0] or _numpy[1][3]:
        kind, keys, position, has_gauss, gauss = numpy.random.get_state()
        _numpy = (memory, (str(kind), keys.tobytes(), int(position), int(has_gauss), float(gauss)))
    return _numpy[1]


def capture() -> bytes:
    """About 13 KB."""
    numpy = sys.modules.get("numpy")
    device = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else None
    return marshal.dumps((torch.get_rng_state().numpy().tobytes(), _python_state(), _numpy_state(numpy) if numpy else None, device))


def apply(data: bytes) -> None:
    """As they were at capture(), in another process of the same program."""
    torchs, pythons, numpys, device = marshal.loads(data)
    torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
    random.setstate(marshal.loads(pythons))
    if numpys is not None:
        import numpy
        kind, keys, position, has_gauss, gauss = numpys
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, gauss))
    if device is not None:
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(device), dtype=torch.uint8))


def seed_all(seed: int, step: int, rank: int) -> None:
    """Of all of them, from three numbers: the same in every process."""
    number = hash((seed, step, rank)) & (1 << 63) - 1
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number & (1 << 32) - 1)
