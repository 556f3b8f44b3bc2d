"""The objects whose state is handed over: as it was at the last commit.

Parameters and the optimizer's tensors do not change between a commit and the next optimizer step, so they are not copied then. Everything
else may have been changed since by the forward of the step that is being made (BatchNorm, spectral norm, a schedule that the program
steps first), so commit() copies it.

A parameter that no optimizer steps but something else changes (an average of the weights, a second network that follows the first one) is
copied at each commit once it has been seen to change. As long as anything else has changed a parameter, the state is not whole.

A program whose collectives all come before its optimizer steps needs no more: a rank that waits in one has not stepped. Where one comes
after a step (a GAN, a metric that is reduced, LBFGS), what that step changes is copied just before it (Undo). Whether a program is of
this kind shows its first iteration, in which everything is copied.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from ._errors import LockstepError
from ._tensors import copy_of


@runtime_checkable
class Tracked(Protocol):
    """One object."""

    def commit(self) -> None:
        """Keeps what the program may change before the next optimizer step."""

    def state(self) -> Any:
        """As of the last commit. Its tensors may be the object's own."""

    def is_whole(self) -> bool:
        """state() is that of the last commit."""

    def load(self, state: Any) -> None:
        """Makes the object what state() of the same object in another rank has said, bit for bit."""


class Undo:
    """Parameters as they were at the last commit, where an optimizer has changed them since."""

    def __init__(self) -> None:
        self._copies: dict[torch.Tensor, torch.Tensor] = {}
        self._versions: dict[torch.Tensor, int] = {}

    def keep(self, params: Sequence[torch.Tensor]) -> None:
        for param in params:
            if param not in self._copies:
                self._copies[param] = param.detach().clone()
                self._versions[param] = param._version

    def at_commit(self, param: torch.Tensor) -> torch.Tensor:
        return self._copies.get(param, param)

    def has(self, param: torch.Tensor) -> bool:
        return param in self._copies

    def version(self, param: torch.Tensor) -> int:
        """Of what at_commit() gives: how often it had been changed (Tensor._version)."""
        return self._versions.get(param, param._version)

    def clear(self) -> None:
        self._copies.clear()
        self._versions.clear()


class Samples:
    """One number from the middle of each parameter: by it a change shows that a version does not count, through .data (weights that are
    swapped with their averages for an evaluation)."""

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        self._params = [param for param in params if param.numel() > 0 and param.layout is torch.strided]
        self._addresses: list[int] = []
        self._views: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        self._members: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        self._taken: list[torch.Tensor] = []

    @staticmethod
    def _middle(param: torch.Tensor) -> torch.Tensor:
        data = param.detach()
        at, left = data.storage_offset(), data.numel() // 2
        for size, stride in zip(reversed(data.shape), reversed(data.stride())):
            at, left = at + left % size * stride, left // size
        return data.as_strided((1,), (1,), at)

    def _current(self) -> list[torch.Tensor]:
        return [torch.cat(views).view(torch.uint8) for views in self._views.values()]

    def take(self) -> None:
        addresses = [param.data_ptr() for param in self._params]
        if addresses != self._addresses:
            self._addresses, self._views, self._members = addresses, {}, {}
            for param in self._params:
                self._views.setdefault((param.dtype, param.device), []).append(self._middle(param))
                self._members.setdefault((param.dtype, param.device), []).append(param)
        self._taken = self._current()

    def changed(self) -> list[torch.Tensor]:
        """The parameters that are not what they were when take() was called."""
        found = [param for param, address in zip(self._params, self._addresses) if param.data_ptr() != address]
        for members, before, now in zip(self._members.values(), self._taken, self._current()):
            if not torch.equal(before, now):
                differ = (before != now).view(len(members), -1).any(1).tolist()
                found += [param for param, differs in zip(members, differ) if differs]
        return found


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


class TrackedModule:
    """A model: parameters and buffers, also those that state_dict() leaves out, what its parts' get_extra_state() say, and which parameters
    have a gradient. The gradients themselves are none of its state: they are made again."""

    def __init__(self, name: str, module: torch.nn.Module, undo: Undo) -> None:
        self._name = name
        self._undo = undo
        self._module = module
        self._params = dict(module.named_parameters())
        self._unstepped = self._params
        self._versions: dict[str, int] = {}        # of the parameters at the last commit
        self._samples = Samples(list(self._params.values()))
        self._copies: dict[str, torch.Tensor] = {}  # of those that no optimizer steps, and that change
        self._buffers: dict[str, torch.Tensor] = {}
        self._with_extra = {name: part for name, part in module.named_modules()
                            if type(part).get_extra_state is not torch.nn.Module.get_extra_state}
        self._extra: dict[str, Any] = {}
        self._with_gradient: list[str] = []

    def leave_to_optimizers(self, stepped: set[torch.Tensor]) -> None:
        """These parameters are stepped by optimizers that lockstep.restore got."""
        self._unstepped = {name: param for name, param in self._params.items() if param not in stepped}

    def save_undo(self) -> None:
        """Whatever changes parameters until the next commit can be undone."""
        self._undo.keep([param for name, param in self._params.items() if param.requires_grad and name not in self._copies])

    def is_whole(self) -> bool:
        copied = {self._params[name] for name in self._copies}
        return (all(name in self._copies or self._undo.version(param) == self._versions[name] for name, param in self._params.items()) and
                all(param in copied or self._undo.has(param) for param in self._samples.changed()))

    def commit(self) -> None:
        for name, param in self._unstepped.items():
            if name in self._copies or param._version != self._versions.get(name, param._version):
                self._copies[name] = param.detach().clone()
        self._versions = {name: param._version for name, param in self._params.items()}
        self._samples.take()
        self._extra = {name: copy_of(part.get_extra_state()) for name, part in self._with_extra.items()}
        self._with_gradient = [name for name, param in self._params.items() if param.grad is not None]
        buffers = dict(self._module.named_buffers())
        kept = self._buffers
        are_alike = kept.keys() == buffers.keys() and all(_is_alike(kept[name], buffer) for name, buffer in buffers.items())
        if not are_alike:
            self._buffers = {name: buffer.detach().clone() for name, buffer in buffers.items()}
        elif buffers:
            with torch.no_grad():
                torch._foreach_copy_(list(self._buffers.values()), list(buffers.values()))

    def state(self) -> Any:
        return {"parameters": {name: self._copies.get(name, self._undo.at_commit(param)) for name, param in self._params.items()},
                "buffers": self._buffers, "extra": self._extra, "with_gradient": self._with_gradient}

    def load(self, state: Any) -> None:
        with torch.no_grad():
            for kind, own in (("parameters", self._params), ("buffers", dict(self._module.named_buffers()))):
                if own.keys() != state[kind].keys():
                    differ = sorted(own.keys() ^ state[kind].keys())
                    raise LockstepError(f"{self._name} has other {kind} in this rank than in the one that hands its state over: "
                                        f"{', '.join(differ[:5])}: build the same model in all ranks before lockstep.restore")
                for name, tensor in own.items():
                    value = state[kind][name]
                    if kind == "buffers" and not _is_alike(value, tensor):  # a cache that grows, for example
                        owner, _, leaf = name.rpartition(".")
                        self._module.get_submodule(owner)._buffers[leaf] = value.to(tensor.device, copy=True)
                    else:
                        tensor.copy_(value)
        self._versions = {}  # what was loaded has not changed since a commit: a frozen model is not to be copied from now on
        for name, part in self._with_extra.items():
            part.set_extra_state(copy_of(state["extra"][name]))
        # An optimizer also steps a parameter that nobody uses any more, if it has a gradient of zeros, by its momentum or weight decay.
        for name, param in self._params.items():
            param.grad = torch.zeros_like(param) if name in state["with_gradient"] else None


class TrackedOptimizer:
    """An optimizer. `has_decided`: since the last commit it has stepped, or a GradScaler has left its step out."""

    def __init__(self, optimizer: torch.optim.Optimizer, undo: Undo) -> None:
        self._optimizer = optimizer
        self._undo = undo
        self._groups: list[dict[str, Any]] = []
        self._state_before: Any = None  # that of the last commit, where a step has changed it since
        self._has_begun_step = False    # since the last commit
        self._before_closure: list[int] | None = None  # the parameters' versions, while the step that has begun may be in its closure
        self._needs_undo = False        # a collective has come after a step
        self.saves_undo = True
        self.has_decided = False
        # Others may change parameters through .data before they call it, which no version counts.
        is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        optimizer.register_step_pre_hook(lambda _, args, kwargs: self._before_step(is_torchs and bool(args or kwargs)))
        optimizer.register_step_post_hook(lambda *_: self.decide())

    def owns(self, optimizer: Any) -> bool:
        return self._optimizer is optimizer

    def decide(self) -> None:
        self.has_decided = True
        self._before_closure = None

    def params(self) -> list[torch.Tensor]:
        return [param for group in self._optimizer.param_groups for param in group["params"]]

    def _is_changed(self) -> bool:
        """A step has changed something since the last commit, or is about to. Most optimizers call a closure (forward and backward, with their
        collectives) before they do."""
        if self._before_closure is not None and self._before_closure == [param._version for param in self.params()]:
            return False
        return self._has_begun_step

    def _before_step(self, may_call_closure: bool) -> None:
        if not self._is_changed():
            if self.saves_undo:
                self._undo.keep(self.params())
                self._state_before = copy_of(self._optimizer.state_dict()["state"])
            self._before_closure = [param._version for param in self.params()] if may_call_closure else None
        self._has_begun_step = True

    def save_undo(self) -> None:
        """What its steps change until the next commit can be undone."""
        self.saves_undo = True

    def note_collective(self) -> None:
        """A collective of this rank has begun."""
        self._needs_undo = self._needs_undo or self._is_changed()

    def is_whole(self) -> bool:
        return not self._is_changed() or self._state_before is not None

    def commit(self) -> None:
        if self._is_changed():
            self.saves_undo = self._needs_undo
        self._has_begun_step = self.has_decided = False
        self._before_closure = None
        self._state_before = None
        self._groups = [{key: copy_of(value) for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups]

    def state(self) -> Any:
        state = self._optimizer.state_dict()
        if self._state_before is not None:
            state["state"] = self._state_before
        state["param_groups"] = [{**group, **kept} for group, kept in zip(state["param_groups"], self._groups, strict=True)]
        return state

    def load(self, state: Any) -> None:
        self._optimizer.load_state_dict(state)
        # load_state_dict casts floating-point state to the parameter's dtype, which loses bits where the state has more of them.
        params = self.params()
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        for number, param in zip(numbers, params, strict=True):
            own = self._optimizer.state.get(param, {})
            for key, value in state["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and own[key].dtype != value.dtype:
                    own[key] = value.to(own[key].device)


class TrackedOther:
    """A schedule, a GradScaler, an average of the weights: whatever has state_dict and load_state_dict."""

    def __init__(self, object_: Any) -> None:
        self._object = object_
        self._state: Any = None

    def commit(self) -> None:
        self._state = copy_of(self._object.state_dict())

    def state(self) -> Any:
        return self._state

    def is_whole(self) -> bool:
        return True

    def load(self, state: Any) -> None:
        self._object.load_state_dict(copy_of(state))


def without_wrapper(object_: Any) -> Any:
    """The optimizer that one of Accelerate's holds; anything else as it is."""
    inner = getattr(object_, "optimizer", None)
    return inner if isinstance(object_, torch.optim.Optimizer) and isinstance(inner, torch.optim.Optimizer) else object_


def track(name: str, object_: Any, undo: Undo) -> Tracked:
    """LockstepError for what has no state_dict and load_state_dict."""
    if isinstance(object_, Tracked):
        return object_
    object_ = without_wrapper(object_)
    if isinstance(object_, torch.nn.parallel.DistributedDataParallel):
        object_ = object_.module
    if isinstance(object_, torch.nn.Module):
        return TrackedModule(name, object_, undo)
    if isinstance(object_, torch.optim.Optimizer):
        return TrackedOptimizer(object_, undo)
    if hasattr(object_, "state_dict") and hasattr(object_, "load_state_dict"):
        return TrackedOther(object_)
    raise LockstepError(f"lockstep.restore got {name}={type(object_).__name__}, which has no state_dict and load_state_dict: give it models, "
                        "optimizers, schedules and what else changes during training and has both")
