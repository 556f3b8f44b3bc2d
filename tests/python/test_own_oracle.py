"""The package's reduction against torch's own: the same programs with torch's DistributedDataParallel, without the package, under torchrun."""
import functools
import subprocess

import pytest
import torch

from own_runs import CASES, STEPS, VENV, launch, losses_of, own  # noqa: F401
from programs import clean_environment

# In the place of the package.
STAND_IN = """
import atexit, functools, torch
import torch.distributed as dist

DistributedDataParallel = functools.partial(torch.nn.parallel.DistributedDataParallel, find_unused_parameters=True)

def init_process_group():
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)

class Run:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def steps(self, total, seed):
        return range(total)

def restore(**objects):
    return Run()
"""
assert_close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(("case", "torchs_case"), [("Transformer", "Transformer"), ("Pictures", "Pictures"), ("Several", "SeveralForwards")])
def test_losses_and_all_that_is_held_at_the_end_are_those_of_torchs_own_wrapper(own, tmp_path, case, torchs_case, ranks):  # noqa: F811
    (tmp_path / "lockstep.py").write_text(STAND_IN)
    subprocess.run([VENV / "torchrun", "--standalone", "--nproc_per_node", str(ranks), CASES, "--folder", tmp_path, "--case", torchs_case,
                    "--comparable"], check=True, env=clean_environment(PYTHONPATH=str(tmp_path), OMP_NUM_THREADS="1"), timeout=300)
    folder, states = own(case, ranks=ranks, more=["--comparable"]), torch.load(tmp_path / "end-0.pt")
    for rank in range(ranks):
        losses, torchs = ([float.fromhex(loss) for loss in losses_of(where, rank).values()] for where in (folder, tmp_path))
        assert len(losses) == STEPS
        assert_close(losses, torchs)
        # Torch's rank 0: its buffers are what the others have from the next forward on.
        assert_close(torch.load(folder / f"end-{rank}.pt"), states)
