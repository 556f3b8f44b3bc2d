"""Lockstep for PyTorch programs: a lost rank costs one new rank, and nothing else. See docs/your-own-program.md.

    import lockstep
    lockstep.init_process_group()
    model = lockstep.DistributedDataParallel(model)
    run = lockstep.restore(model=model, optimizer=optimizer)
    for step in run.steps(total):
        ...
"""
from ._report import report
from ._version import __version__

TYPE_CHECKING = False  # typing's own costs its import
if TYPE_CHECKING:
    from ._data import DistributedSampler
    from ._ddp import DistributedDataParallel
    from ._errors import Interrupted, LockstepError
    from ._run import Run, restore
    from ._start import init_process_group

__all__ = ["DistributedDataParallel", "DistributedSampler", "Interrupted", "LockstepError", "Run", "__version__", "init_process_group",
           "report", "restore"]

# What is imported when it is used first, because it imports torch, which lockstep.report does not need.
_MODULES = {"DistributedDataParallel": "_ddp", "DistributedSampler": "_data", "Interrupted": "_errors", "LockstepError": "_errors", "Run": "_run",
            "init_process_group": "_start", "restore": "_run"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    import importlib
    import sys
    if sys.version_info < (3, 10):
        raise ImportError(f"lockstep.{name} needs Python 3.10 or later, and this is {sys.version.split()[0]}")
    value = globals()[name] = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    return value
