"""lockstep.DistributedDataParallel: torch's wrapper, with the reduction of _reducer.py."""
from __future__ import annotations

from typing import Any

import torch

from . import _buckets
from ._errors import LockstepError
from ._reducer import Reducer
from ._start import exchange


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """`module` in data-parallel training: the same arguments, attributes and state_dict as torch's, and isinstance() holds. When a rank is
    lost, backward() of the others waits until there is a new one, and then gives what it would have given.

    module: its parameters may have any shapes and dtypes; they must be the same, in the same order, in all ranks (LockstepError names the
        first that is not).
    bucket_cap_mb: a reduction begins with each this many MiB of gradients.
    broadcast_buffers: all ranks get rank 0's buffers, at the end of each backward that is reduced (torch: before the next forward).
    find_unused_parameters, gradient_as_bucket_view, static_graph: accepted, and not needed: unused parameters are always found.
    """

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
                 broadcast_buffers: bool = True, init_sync: bool = True, process_group: Any = None, bucket_cap_mb: float | None = None,
                 find_unused_parameters: bool = False, check_reduction: bool = False, gradient_as_bucket_view: bool = False,
                 static_graph: bool = False, **others: Any) -> None:
        if process_group is not None:
            raise LockstepError("DistributedDataParallel got a process_group: gradients are reduced over all ranks here, leave it out")
        if wanted := [name for name, value in others.items() if value]:
            raise LockstepError(f"DistributedDataParallel does not support {wanted[0]}: leave it out")
        torch.nn.Module.__init__(self)  # not torch's wrapper, which would make its own reducer
        self.module = module
        self.dim = dim
        self.device_ids = device_ids
        self.output_device = output_device
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.gradient_as_bucket_view = False
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.parameters_to_ignore = ignored
        named = [(name, param) for name, param in module.named_parameters() if param.requires_grad and name not in ignored]
        buffers = [buffer for name, buffer in module.named_buffers() if name not in ignored]
        if not named:
            raise LockstepError("DistributedDataParallel got a module without a parameter that requires a gradient: it needs no wrapper")
        session = exchange()
        names, params = zip(*named)
        number = session.add_layout(_buckets.describe(names, params))
        if init_sync:
            session.broadcast_at_start(number, [*(param for name, param in module.named_parameters() if name not in ignored), *buffers])
        self._reducer = Reducer(session, number, names, params, buffers if broadcast_buffers else [],
                                int((bucket_cap_mb or 25) * (1 << 20)))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._reducer.begin_forward(is_reduced=torch.is_grad_enabled() and self.require_backward_grad_sync)
        return self.module(*inputs, **kwargs)

    def train(self, mode: bool = True) -> DistributedDataParallel:
        torch.nn.Module.train(self, mode)
        return self


def _refuse(name: str, why: str) -> None:
    def refused(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        raise LockstepError(f"DistributedDataParallel.{name} is not supported: {why}")
    setattr(DistributedDataParallel, name, refused)


# What torch's has and this has not. Everything else is inherited, or above.
for _name, _why in {
        "join": "give all ranks the same number of batches (DistributedSampler does)",
        "join_hook": "give all ranks the same number of batches (DistributedSampler does)",
        "register_comm_hook": "gradients are reduced in the dtype that they have",
        "_register_builtin_comm_hook": "gradients are reduced in the dtype that they have",
        "_register_fused_optim": "call the optimizer after backward",
        "_set_static_graph": "unused parameters are always found, leave it out",
        "__getstate__": "copy its .module",
        "scatter": "move the batch to the model's device",
        "gather": "use torch.distributed.all_gather",
        "_get_ddp_logging_data": "there is no logger",
}.items():
    _refuse(_name, _why)
