"""lockstep.DistributedDataParallel: torch's wrapper, with the reduction of _reducer.py."""
from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook

from ._buckets import describe
from ._current import exchange
from ._ddp_names import refused
from ._errors import LockstepError
from ._reducer import Reducer

_Torchs = torch.nn.parallel.DistributedDataParallel
_REFUSED_ARGUMENTS, _REFUSED_ATTRIBUTES = refused("argument"), refused("attribute")
_MIB = 1 << 20


class _NotHere(LockstepError, AttributeError):
    """So that hasattr() and getattr() with a default work."""


class _Registrations:
    """Counts the parameters and modules that are registered anywhere in this process: a model may have changed when `count` has."""

    def __init__(self) -> None:
        self.count = 0
        register_module_parameter_registration_hook(self._add)
        register_module_module_registration_hook(self._add)

    def _add(self, *_: Any) -> None:
        self.count += 1


_registrations = _Registrations()


class DistributedDataParallel(_Torchs):
    """`module` in data-parallel training: torch's arguments, attributes and state_dict, and isinstance() holds. When a rank is lost,
    backward() of the others waits until there is a new one, and then gives what it would have given. docs/your-own-program.md says of each
    argument, attribute and method what it is here.

    module: its parameters may have any shapes and dtypes; they must be the same, in the same order, in all ranks (LockstepError names the
        first that is not). It must not change any more.
    bucket_cap_mb: a reduction begins with each this many MiB of gradients.
    broadcast_buffers: all ranks get rank 0's buffers, at the end of each backward that is reduced (torch: before the next forward). False:
        each rank keeps its own.
    find_unused_parameters, gradient_as_bucket_view, static_graph: accepted, and not needed: unused parameters are always found.
    """

    def __init__(self, module: torch.nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
                 broadcast_buffers: bool | None = True, init_sync: bool = True, process_group: Any = None,
                 bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
                 gradient_as_bucket_view: bool = False, static_graph: bool = False, *, skip_all_reduce_unused_params: bool = False,
                 batched_grad_copy: bool = False, lazy_bucket_allocation: bool = False, forward_sync_buffers: bool | None = None,
                 **others: Any) -> None:
        for name, value in others.items():
            if name not in _REFUSED_ARGUMENTS:
                raise LockstepError(f"DistributedDataParallel got {name}, which it does not know: leave it out")
            if value:
                raise LockstepError(f"DistributedDataParallel got {name}: {_REFUSED_ARGUMENTS[name]}")
        session = exchange()
        if process_group is not None and process_group is not dist.group.WORLD:
            raise LockstepError("DistributedDataParallel got a process_group: gradients are reduced over all ranks here, leave it out")
        torch.nn.Module.__init__(self)  # not torch's wrapper, which would make its own reducer
        starts_with_rank_0s = broadcast_buffers is not False
        self.module = module
        self.dim = dim
        self.broadcast_buffers = broadcast_buffers is not False if forward_sync_buffers is None else forward_sync_buffers
        self.forward_sync_buffers = self.broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self.batched_grad_copy = batched_grad_copy
        self.lazy_bucket_allocation = lazy_bucket_allocation
        self.gradient_as_bucket_view = False
        self.mixed_precision = None
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.broadcast_bucket_size = 250 * _MIB
        self.bucket_bytes_cap_default = bucket_cap_mb is None
        self.bucket_bytes_cap = int((25 if bucket_cap_mb is None else bucket_cap_mb) * _MIB)
        self.bucket_bytes_cap_list: list[int] = []
        self.use_side_stream_for_tensor_copies = os.environ.get("PYTORCH_DDP_USE_SIDE_STREAM", "1") == "1"
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._assign_modules_buffers()
        all_named = self._named_parameters()
        _refuse_what_cannot_be_recovered(module, all_named)
        named = [(name, param) for name, param in all_named if param.requires_grad]
        if not named:
            raise LockstepError("DistributedDataParallel got a module without a parameter that requires a gradient: it needs no wrapper")
        self._set_devices([param for _, param in all_named], device_ids, output_device)
        self._frozen = [(name, param) for name, param in all_named if not param.requires_grad]
        self._reduced = named
        self._checked_at = _registrations.count
        names, params = zip(*named)
        buffers = list(self.named_module_buffers.items()) if starts_with_rank_0s else []
        tensors = {"parameter": named, "frozen parameter": self._frozen, "buffer": buffers}
        layout = describe(tensors, {"bucket_cap_mb": self.bucket_bytes_cap / _MIB, "broadcast_buffers": self.broadcast_buffers,
                                    "init_sync": init_sync, "torch": torch.__version__.partition("+")[0]})
        number = session.models.add(module, names, params, not self.broadcast_buffers and len(self.modules_buffers) > 0, layout)
        if init_sync:
            session.broadcast_at_start(number, [tensor for _, tensor in (*all_named, *buffers)])
        self._reducer = Reducer(session, number, names, params, self._current_buffers if self.broadcast_buffers else None,
                                self.bucket_bytes_cap)

    def _named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, param) for name, param in self.module.named_parameters() if name not in self.parameters_to_ignore]

    def _current_buffers(self) -> list[torch.Tensor]:
        if self.modules_buffers:  # as in torch: a model without buffers when it is wrapped has none
            self._assign_modules_buffers()  # a module may put another tensor in a buffer's place
        return self.modules_buffers

    def _set_devices(self, params: list[torch.nn.Parameter], device_ids: Any, output_device: Any) -> None:
        devices = {param.device for param in params}
        types = sorted({device.type for device in devices})
        if len(types) > 1:
            raise LockstepError(f"DistributedDataParallel got a module with parameters on {' and '.join(types)}: move it to one of them")
        self.device, self.device_type, self.is_multi_device_module = params[0].device, types[0], len(devices) > 1
        self.device_ids = self.output_device = None
        if not device_ids and not output_device:
            return
        if self.device_type == "cpu" or self.is_multi_device_module or len(device_ids or ()) != 1:
            raise LockstepError(f"DistributedDataParallel got device_ids={device_ids} and output_device={output_device}, for a module on "
                                f"{', '.join(sorted(map(str, devices)))}: give one GPU to a module on that GPU, and else nothing")
        self.device_ids = [torch._utils._get_device_index(device_ids[0], True)]
        self.output_device = torch._utils._get_device_index(device_ids[0] if output_device is None else output_device, True)

    def _check_unchanged(self) -> None:
        """LockstepError where a gradient would be left out of the reduction: the ranks would go apart, without a word."""
        for name, param in self._frozen:
            if param.requires_grad:
                raise LockstepError(f"{name} requires a gradient since the model was wrapped: wrap it when all that is ever trained does")
        if self._checked_at == _registrations.count:
            return
        self._checked_at = _registrations.count
        known = {param for _, param in (*self._reduced, *self._frozen)}
        for name, param in self._named_parameters():
            if param not in known:
                raise LockstepError(f"{name} was added to the model, or replaced, since it was wrapped: change it before "
                                    "lockstep.DistributedDataParallel")

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._check_unchanged()
        is_training = torch.is_grad_enabled()
        self.require_forward_param_sync = is_training and self.require_backward_grad_sync
        self._reducer.begin_forward(is_training, self.require_forward_param_sync)
        if self.device_ids:
            moved = self.to_kwargs(inputs, kwargs, self.device_ids[0])
            inputs, kwargs = moved[0][0], moved[1][0]
        return self.module(*inputs, **kwargs)

    def train(self, mode: bool = True) -> DistributedDataParallel:
        torch.nn.Module.train(self, mode)
        return self

    def _set_static_graph(self) -> None:
        self.static_graph = True

    def __getattr__(self, name: str) -> Any:
        if name == "process_group":  # not kept: a model that lives until Python's end would keep the group's threads, which may abort it
            return dist.group.WORLD
        if name in _REFUSED_ATTRIBUTES:
            raise _NotHere(f"DistributedDataParallel.{name} is not supported: {_REFUSED_ATTRIBUTES[name]}")
        return super().__getattr__(name)


def _refuse_what_cannot_be_recovered(module: torch.nn.Module, named: list[tuple[str, torch.nn.Parameter]]) -> None:
    for name, param in named:
        if torch.nn.parameter.is_lazy(param):
            raise LockstepError(f"DistributedDataParallel got a module whose parameter {name} has no shape yet: call the module once before")
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) and isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            raise LockstepError(f"DistributedDataParallel got {name or 'an embedding'} with sparse=True: its gradient cannot be recovered when a "
                                "rank is lost, leave sparse out")
        if isinstance(part, torch.nn.SyncBatchNorm):
            raise LockstepError(f"DistributedDataParallel got {name or 'a module'}, which is a SyncBatchNorm: what it sends in forward and backward "
                                "cannot be recovered when a rank is lost, use BatchNorm or GroupNorm")


def _refuse(name: str, words: str, is_attribute: bool = False) -> None:
    def refuse(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        raise (_NotHere if is_attribute else LockstepError)(f"DistributedDataParallel.{name} is not supported: {words}")
    setattr(DistributedDataParallel, name, property(refuse, refuse) if is_attribute else refuse)


for _name, _words in refused("method").items():
    _refuse(_name, _words)
for _name, _words in _REFUSED_ATTRIBUTES.items():
    _refuse(_name, _words, is_attribute=True)


def replace_torchs() -> None:
    """From now on torch's own wrapper is this one, by whatever name the program has imported it: torch's reducer does not recover."""
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is not _Torchs:
            raise LockstepError(f"{type(self).__name__} is a subclass of torch's DistributedDataParallel, which does not recover: derive it from "
                                "lockstep.DistributedDataParallel")
        made: Any = self
        made.__class__ = DistributedDataParallel
        DistributedDataParallel.__init__(made, *args, **kwargs)
    _Torchs.__init__ = init  # type: ignore[method-assign]
