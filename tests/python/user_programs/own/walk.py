"""Meets every argument, attribute and method of lockstep.DistributedDataParallel, and fails where one is not what _ddp_names.py says."""
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as ImportedBefore

import lockstep
from lockstep._ddp_names import NAMES, PRIVATE

GIVEN = {"broadcast_buffers": False, "init_sync": False, "bucket_cap_mb": 1, "find_unused_parameters": True, "gradient_as_bucket_view": True,
         "static_graph": True, "skip_all_reduce_unused_params": True, "batched_grad_copy": True, "lazy_bucket_allocation": True,
         "forward_sync_buffers": False, "check_reduction": True, "dim": 1}


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def words_of(action):
    try:
        action()
    except lockstep.LockstepError as error:
        return str(error)
    raise AssertionError("it was not refused")


lockstep.init_process_group()
model = lockstep.DistributedDataParallel(net())
for name, kind, is_refused, words in (*NAMES, *PRIVATE):
    if kind == "argument" and name != "module":
        if is_refused:
            assert words_of(lambda: lockstep.DistributedDataParallel(net(), **{name: [1]})) == f"DistributedDataParallel got {name}: {words}", name
        value = dist.group.WORLD if name == "process_group" else None if is_refused or name not in GIVEN else GIVEN[name]
        lockstep.DistributedDataParallel(net(), **{name: value})
    elif is_refused:
        said = f"DistributedDataParallel.{name} is not supported: {words}"
        if kind == "attribute":
            assert not hasattr(model, name) and words_of(lambda: getattr(model, name)) == said, name
            assert words_of(lambda: setattr(model, name, 1)) == said, name
        else:
            assert words_of(getattr(model, name)) == said, name
    else:
        assert hasattr(model, name), name
assert words_of(lambda: lockstep.DistributedDataParallel(net(), never_heard_of=1)) == (
    "DistributedDataParallel got never_heard_of, which it does not know: leave it out")

assert isinstance(model, ImportedBefore) and model.process_group is dist.group.WORLD and model.device_type == "cpu"
assert list(model.state_dict())[0] == "module.0.weight" and model.will_sync_module_buffers() and len(model.modules_buffers) == 3
assert set(model.named_module_buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
assert model.train(False) is model and not model.module.training
with model.no_sync():
    assert not model.require_backward_grad_sync
model._set_static_graph()
assert model.static_graph and model.bucket_bytes_cap == 25 << 20 and model.mixed_precision is None
for torchs in (ImportedBefore, nn.parallel.DistributedDataParallel, nn.parallel.distributed.DistributedDataParallel):
    assert type(torchs(net(), broadcast_buffers=False)) is lockstep.DistributedDataParallel
print(f"rank {dist.get_rank()}: all as it is written")
