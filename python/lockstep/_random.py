"""The states of the generators that programs use: torch's on the CPU and on this process's device, Python's, and numpy's."""
from __future__ import annotations

import marshal
import random
import sys

import torch


def capture() -> bytes:
    """About 8 KB."""
    numpy = sys.modules.get("numpy")
    numpys = None
    if numpy is not None:
        kind, keys, position, has_gauss, gauss = numpy.random.get_state()
        numpys = (str(kind), keys.tobytes(), int(position), int(has_gauss), float(gauss))
    device = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else None
    return marshal.dumps((torch.get_rng_state().numpy().tobytes(), random.getstate(), numpys, device))


def apply(data: bytes) -> None:
    """As they were at capture(), in another process of the same program."""
    torchs, pythons, numpys, device = marshal.loads(data)
    torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
    random.setstate(pythons)
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
