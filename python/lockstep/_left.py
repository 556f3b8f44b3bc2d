"""How a for loop over a generator was left. Torch-free.

Python closes a generator when the loop that holds it ends early, and does not tell it why. Only the instruction at which the loop's frame
stands says so: `break` and `return` drop the iterator by an instruction of their own, and an exception drops it wherever it was raised.
"""
from __future__ import annotations

import inspect
import opcode
from types import FrameType

_DROPS = {opcode.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opcode.opmap}  # up to Python 3.13, and from 3.14 on
_YIELDS = {opcode.opmap[name] for name in ("YIELD_VALUE", "RESUME") if name in opcode.opmap}


def is_by_break(frame: FrameType | None) -> bool:
    """`frame`: the one that closes the generator. False where an exception has ended the loop, and where the program has kept the iterator in
    a variable and drops it later. Generators around it (tqdm, for example) are closed first, and stand at their `yield`."""
    while frame is not None:
        instruction = frame.f_code.co_code[frame.f_lasti]
        if not (frame.f_code.co_flags & inspect.CO_GENERATOR and instruction in _YIELDS):
            return instruction in _DROPS
        frame = frame.f_back
    return False
