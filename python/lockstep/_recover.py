"""Programs that do not call lockstep.init_process_group themselves: `lockstep launch --recover`, and those that import lockstep.hf. Imports
no torch: it may be imported in the middle of torch's own import."""
from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

_NAMES = ("torch.distributed.distributed_c10d", "torch.distributed")
_TRUE = ("1", "true", "yes", "on")  # as Accelerate reads its variables
known_sharding = ""  # said by the adapter of a framework


def _sharding() -> str:
    """What this program uses that keeps a part of the state in each rank alone; empty: nothing that is known."""
    if known_sharding:
        return known_sharding
    for variable, name in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(variable, "").lower() in _TRUE:
            return name
    if "deepspeed" in sys.modules:
        return "DeepSpeed"
    # What the program's first file has imported. Other values than these may do anything when they are asked for an attribute.
    values = list(vars(sys.modules["__main__"]).values())
    names = [value.__module__ for value in values if issubclass(type(value), (type, types.FunctionType))]
    names += [value.__name__ for value in values if issubclass(type(value), types.ModuleType)]
    return "FSDP" if any(str(name).startswith("torch.distributed.fsdp") for name in names) else ""


def go_around(kind: Any, name: str, around: Callable[..., Any]) -> None:
    """From now on calls of this method call `around`, with the method itself before its arguments."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return around(original, self, *args, **named)
    setattr(kind, name, method)


def replace_init_process_group(is_asked_for: bool = True) -> None:
    """From now on torch.distributed.init_process_group is Lockstep's, where an agent recovers this process. To be called when
    torch.distributed.distributed_c10d has been imported. `is_asked_for`: see Session."""
    if getattr(sys, "_lockstep_rank", None) is None:
        return
    module: Any = sys.modules[_NAMES[0]]
    torchs = module.init_process_group
    if getattr(torchs, "is_lockstep", False):
        return

    def init_process_group(*args: Any, **named: Any) -> None:
        from . import _current, _start
        if _current.is_begun():  # the package's own call
            torchs(*args, **named)
            return
        backend = named.get("backend", args[0] if args else None)
        words = ""
        if sharding := _sharding():
            words = f"a rank of {sharding} has a part of the state that no other has, so"
        elif not is_asked_for and "nccl" in str(backend):
            words = "groups over NCCL are not recovered yet, so"
        if words and os.environ.get("RANK") == "0":
            print(f"lockstep: {words} a lost rank costs a start of all ranks, from the program's own checkpoint", file=sys.stderr)
        if words:
            torchs(*args, **named)
        else:
            _start.start(is_asked_for, *args, **named)
    init_process_group.is_lockstep = True  # type: ignore[attr-defined]
    for name in _NAMES:
        if name in sys.modules and getattr(sys.modules[name], "init_process_group", None) is torchs:
            setattr(sys.modules[name], "init_process_group", init_process_group)
