"""Lockstep for PyTorch programs: a lost rank costs one new rank, and nothing else. See docs/your-own-program.md.

    import lockstep
    lockstep.init_process_group()
    model = lockstep.DistributedDataParallel(model)
    run = lockstep.restore(model=model, optimizer=optimizer)
    for step in run.steps(total):
        ...
"""
from ._ddp import DistributedDataParallel
from ._errors import LockstepError
from ._report import report
from ._run import Run, restore
from ._start import init_process_group
from ._version import __version__

__all__ = ["DistributedDataParallel", "LockstepError", "Run", "__version__", "init_process_group", "report", "restore"]
