"""Hugging Face's Trainer in a run that recovers: when a rank is lost, the others wait inside trainer.train() and make no step again.

    from lockstep.hf import Trainer

`lockstep launch --recover` does the same for a program that imports transformers' own Trainer. Under torchrun and alone it is that one.

What a new rank gets: model, optimizer, schedule, GradScaler, TrainerState, TrainerControl, and the callbacks that have a state (transformers'
ExportableState, or state_dict and load_state_dict); of its own, from the process before: random states, the losses since the last log, and what a
derived Trainer counts in attributes (_attributes.py). It begins after the newest optimizer step, and makes again what the Trainer does after that
step (a log, an evaluation, its checkpoint), because the others may be in the middle of it: they have kept its collectives' results.
"""
from __future__ import annotations

import contextlib
import dataclasses
import functools
import marshal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from accelerate.data_loader import DataLoaderDispatcher  # type: ignore[import-untyped]
from accelerate.utils import synchronize_rng_states  # type: ignore[import-untyped]
from transformers.trainer import Trainer as TransformersTrainer
from transformers.trainer_callback import ExportableState, TrainerCallback

from . import _random
from ._attributes import Attributes, pack, unpack
from ._current import exchange, is_begun
from ._data import batches_from
from ._errors import LockstepError
from ._recover import go_around, replace_init_process_group
from ._session import Session
from ._tensors import copy_of

__all__ = ["Trainer"]

GOES_ON = "lockstep: a rank goes on"  # in the place of a checkpoint's folder: here is what a Trainer would read from there
# Of a TrainerState: what differs between the ranks, and what is made at each start.
_OWN_FIELDS = {"is_local_process_zero", "is_world_process_zero", "log_history", "stateful_callbacks"}
# Of a Trainer: what has been summed up, since when.
_SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "_initial_num_input_tokens_seen")


class _Progress:
    """What a Trainer holds beside model, optimizer and schedule, as of the last commit (_tracked.Tracked). What another rank hands over
    waits until the Trainer has set its own beginning."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._kept: dict[str, Any] = {}
        self._history: list[Any] = []
        self._history_length = 0
        self.attributes = Attributes(lambda: {"trainer": trainer}, ("transformers",), of_packages=False)
        self.is_waiting = False
        self.commits = 0
        self.last: dict[str, Any] = {"grad_norm": None, "learning_rate": None}  # what the next log says of the newest step
        self.generator: torch.Tensor | None = None  # the state at the epoch's beginning of the loader's generator, which all ranks share

    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks
                if isinstance(one, ExportableState) or (hasattr(one, "state_dict") and hasattr(one, "load_state_dict"))]

    def commit(self) -> None:
        if self.is_waiting:
            return
        trainer = self._trainer
        state = {field.name: getattr(trainer.state, field.name) for field in dataclasses.fields(trainer.state)
                 if field.name not in _OWN_FIELDS}
        self._kept = copy_of({
            "state": state, "control": vars(trainer.control),
            "callbacks": [one.state()["attributes"] if isinstance(one, ExportableState) else one.state_dict() for one in self._callbacks()],
            "sums": {name: getattr(trainer, name) for name in _SUMS if hasattr(trainer, name)},
            "last": self.last, "generator": self.generator, "commits": self.commits, "attributes": self.attributes.changed()})
        self._history, self._history_length = trainer.state.log_history, len(trainer.state.log_history)

    def state(self) -> Any:
        return {**self._kept, "log_history": self._history[:self._history_length]}

    def is_whole(self) -> bool:
        return True

    def load(self, state: Any) -> None:
        self._kept = copy_of(state)
        self._history = self._kept.pop("log_history")
        self._history_length = len(self._history)
        self.commits, self.last, self.generator = self._kept["commits"], self._kept["last"], self._kept["generator"]
        self.is_waiting = True
        self._apply_state()

    def _apply_state(self) -> None:
        state = self._trainer.state
        vars(state).update(copy_of(self._kept["state"]))
        state.log_history = list(self._history)

    def apply(self) -> None:
        """The Trainer's own beginning is over."""
        trainer = self._trainer
        self._apply_state()
        vars(trainer.control).update(self._kept["control"])
        for one, kept in zip(self._callbacks(), self._kept["callbacks"], strict=True):
            if isinstance(one, ExportableState):
                vars(one).update(kept)
            else:
                one.load_state_dict(kept)
        vars(trainer).update(self._kept["sums"])
        self.attributes.put(copy_of(self._kept["attributes"]))
        self.is_waiting = False


class _Callback(TrainerCallback):
    """Tells the agent what the Trainer does."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        self._session.note_forward(is_training=False)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        names = {"learning_rate": "lr"}
        figures = {names.get(name, name): float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if state.is_world_process_zero and figures:
            self._session.say_progress(state.global_step, state.max_steps, figures)


class _Loader:
    """A loader whose batches are read by batches_from()."""

    def __init__(self, loader: Any, training: _Training) -> None:
        self._loader = loader
        self.lockstep_training = training

    def __iter__(self) -> Iterator[Any]:
        # Nothing is drawn before the first batch is asked for, as with Accelerate's: at the end of an epoch a new rank asks for none.
        yield from self.lockstep_training.batches(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Training:
    """One call of trainer.train()."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer = trainer
        self._session = session
        self._progress = _Progress(trainer)
        self._trainers_beginning = (0, 0)  # epoch and batches in it at which the Trainer itself begins, from a checkpoint of its own
        self._goes_on = False        # in the place of a rank that had committed
        self._note: bytes | None = None  # of the process before this one
        self._first = 0              # batches of this epoch that are not read
        self._after_first_batches: bytes | None = None  # random states
        self._inputs: Any = None     # of the training step that is being made
        self._loss: torch.Tensor | None = None
        self._flos: dict[int, float] = {}

    # ---- the beginning ----

    def init_training_state(self, beginning: tuple[int, int]) -> tuple[int, int]:
        """A new rank learns where it goes on when it has its objects: until then it begins with the first epoch."""
        self._trainers_beginning = beginning
        return beginning if self._session.is_first_start else (0, 0)

    def begin(self) -> None:
        """The Trainer's objects exist."""
        trainer, session = self._trainer, self._session
        if not isinstance(trainer.model_wrapped, torch.nn.Module) or len(session.models.layouts) == 0:
            raise LockstepError(f"{type(trainer).__name__} has not wrapped its model in DistributedDataParallel, and nothing else recovers: start "
                                "the program without --recover and lockstep.hf")
        scaler = trainer.accelerator.scaler
        objects = {"model": trainer.model_wrapped, "optimizer": trainer.optimizer, "scheduler": trainer.lr_scheduler,
                   **({"scaler": scaler} if scaler is not None else {}), "trainer": self._progress}
        self._progress.attributes.begin()
        if session.is_first_start:
            session.position = trainer.state.global_step
        session.begin(objects, has_checkpoints=False)
        self._goes_on = self._progress.commits > 0
        self._note = session.note_random() if self._goes_on else None
        session.leave_notes(self._capture)
        trainer.add_callback(_Callback(session))
        backward = trainer.accelerator.backward

        def backward_and_note(loss: torch.Tensor, **named: Any) -> None:
            self._loss = loss.detach()
            backward(loss, **named)
        trainer.accelerator.backward = backward_and_note

    # ---- what this rank alone holds ----

    def _capture(self) -> bytes:
        """Random states, and the sums of this rank for the next log, which inside a training step become what that step makes of them."""
        trainer = self._trainer
        loss, flos = getattr(trainer, "_tr_loss", None), float(trainer.current_flos)
        if loss is not None and self._loss is not None:
            flos += self._flos_of(self._inputs)
            if trainer.args.logging_nan_inf_filter and not torch.isfinite(self._loss):
                loss = loss + loss / (1 + trainer.state.global_step - trainer._globalstep_last_logged)
            else:
                loss = loss + self._loss
        own = pack(self._progress.attributes.values())
        return marshal.dumps((_random.capture(), float(loss) if loss is not None else 0.0, flos, own))

    def _flos_of(self, inputs: Any) -> float:
        """The model counts its parameters for it, so it is asked once for each size of a batch."""
        trainer = self._trainer
        name = getattr(trainer.model, "main_input_name", "input_ids")
        size = inputs[name].numel() if name in inputs else 0
        if size not in self._flos:
            self._flos[size] = float(trainer.floating_point_ops(inputs))
        return self._flos[size]

    def _apply_note(self) -> None:
        if self._note is None:
            _random.seed_all(0, self._session.position, self._session.rank)
            print(f"lockstep: the random states of rank {self._session.rank} are lost with its node: it goes on with others, seeded by the step, "
                  "and its losses since the last log are left out of the next one", file=sys.stderr)
            return
        states, loss, flos, own = marshal.loads(self._note)
        self._progress.attributes.put(unpack(own))
        _random.apply(states)
        self._trainer._tr_loss.fill_(loss)
        self._trainer.current_flos = flos

    # ---- an epoch ----

    def run_epoch(self, run: Callable[..., None], named: dict[str, Any]) -> None:
        """`named`: the arguments of Trainer._run_epoch."""
        epoch, loader = named["epoch"], named["train_dataloader"]
        if isinstance(loader, DataLoaderDispatcher):
            raise LockstepError("rank 0 reads the data of all ranks here (dispatch_batches of Accelerate), which a new rank cannot take up in the "
                                "middle: give the Trainer a data set that can be indexed, or dispatch_batches=False in accelerator_config")
        state = self._trainer.state
        if self._goes_on:
            if epoch < max(0, state.global_step - 1) // named["num_update_steps_per_epoch"]:
                return
            self._go_on(named)
        elif epoch < self._trainers_beginning[0]:
            return
        elif not self._session.is_first_start and epoch == self._trainers_beginning[0]:
            self._progress.is_waiting = False
            named.update(epochs_trained=epoch, steps_trained_in_current_epoch=self._trainers_beginning[1])
        args, goes_on = self._trainer.args, named["resume_from_checkpoint"] == GOES_ON
        if not goes_on:
            self._begin_epoch(loader, epoch)
        self._first = 0
        ignores_data_skip, args.ignore_data_skip = args.ignore_data_skip, args.ignore_data_skip and not goes_on
        try:
            with self._reading(loader) as named["train_dataloader"]:
                run(**named)
        finally:
            args.ignore_data_skip = ignores_data_skip

    @contextlib.contextmanager
    def _reading(self, loader: Any) -> Iterator[Any]:
        """The loader, reading by batches_from. One of Accelerate's does more than read, so what it reads from is changed; another one, of a
        Trainer with a get_train_dataloader() of its own, is wrapped."""
        if not hasattr(loader, "base_dataloader"):
            yield _Loader(loader, self)
            return
        rng_types, loader.rng_types = loader.rng_types, None
        loader.base_dataloader.__iter__ = functools.partial(self.batches, loader.base_dataloader)
        loader.lockstep_training = self
        try:
            yield loader
        finally:
            loader.rng_types = rng_types
            del loader.base_dataloader.__iter__

    def _begin_epoch(self, loader: Any, epoch: int) -> None:
        """Accelerate gives all ranks rank 0's random states at the beginning of each pass through a loader. A rank that goes on inside an
        epoch must not, so it is done here."""
        generator = getattr(loader, "synchronized_generator", None)
        if getattr(loader, "rng_types", None) is not None:
            synchronize_rng_states(loader.rng_types, generator)
        if generator is not None:
            self._progress.generator = generator.get_state()
        self._session.leave_epoch_note(epoch)

    def batches(self, loader: Any) -> Iterator[Any]:
        first, self._first = self._first, 0
        return batches_from(loader, first, are_seeded=True)

    def skip_first_batches(self, loader: Any, batches: int) -> Any:
        self._first = batches
        return loader

    def _go_on(self, named: dict[str, Any]) -> None:
        """At the newest commit: changes the arguments to those of an epoch that goes on there."""
        trainer, epoch, loader, last = self._trainer, named["epoch"], named["train_dataloader"], self._progress.last
        self._goes_on = False
        self._progress.apply()
        self._apply_note()
        control, args = trainer.control, trainer.args
        named["model"].train()  # as a training step leaves it
        if control.should_log or control.should_evaluate or control.should_save:
            trainer._maybe_log_save_evaluate(trainer._tr_loss, last["grad_norm"], named["model"], named["trial"], epoch,
                                             named["ignore_keys_for_eval"], named["start_time"], learning_rate=last["learning_rate"])
        updates = trainer.state.global_step - epoch * named["num_update_steps_per_epoch"]
        batches = min(updates * args.gradient_accumulation_steps, named["steps_in_epoch"])
        named.update(resume_from_checkpoint=GOES_ON, epochs_trained=epoch, steps_trained_in_current_epoch=batches)
        if updates == named["num_update_steps_per_epoch"] or control.should_training_stop or control.should_epoch_stop:
            # Nothing is left but the end of the epoch. The Trainer counts its steps from the batches, of which the last step may have fewer.
            named["num_update_steps_per_epoch"] = batches // args.gradient_accumulation_steps
            return
        if (generator := getattr(loader, "synchronized_generator", None)) is not None:
            generator.set_state(self._progress.generator)
        self._after_first_batches = _random.capture()
        note = self._session.epoch_note(epoch)
        if note is not None:
            _random.apply(marshal.loads(note)[0])

    def load_rng_state(self) -> None:
        """The first batches have been read, with the random states of the epoch's beginning."""
        if self._after_first_batches is not None:
            _random.apply(self._after_first_batches)
            self._after_first_batches = None

    # ---- steps ----

    def training_step(self, step: Callable[[], torch.Tensor], inputs: Any) -> torch.Tensor:
        self._inputs = inputs
        try:
            return step()
        finally:
            self._inputs = self._loss = None

    def commit(self, grad_norm: Any, learning_rate: float | None) -> None:
        """Once for each optimizer step, when the schedule has stepped and the callbacks have said what is to come: a log, an evaluation."""
        session, step = self._session, self._trainer.state.global_step
        if session.position == step:
            return
        if not session.is_decided():
            raise LockstepError(f"{type(self._trainer.optimizer).__name__} has not stepped in step {step}: only optimizers that step by "
                                "torch.optim.Optimizer.step recover")
        self._progress.last = {"grad_norm": grad_norm, "learning_rate": learning_rate}
        self._progress.commits += 1
        session.commit(step)
        session.rejoin_if_cut()

    def evaluates(self) -> bool:
        """False: at the beginning, in the place of a rank that has done so."""
        return not self._goes_on

    def save(self, write: Callable[[], None]) -> None:
        self._session.note_saving(True)
        write()
        self._session.note_saving(False)

    def finish(self, finish: Callable[[], Any]) -> Any:
        if self._trainer.args.load_best_model_at_end:  # other weights than those of the last commit
            self._session.state.save_undo()
        result = finish()
        self._session.await_end()
        return result


def _training_of(trainer: Any) -> _Training | None:
    training: _Training | None = trainer.__dict__.get("_lockstep")
    return training


def _init_training_state(original: Any, self: Any, *args: Any, **named: Any) -> tuple[int, int]:
    if not is_begun() or not isinstance(session := exchange(), Session):
        beginning: tuple[int, int] = original(self, *args, **named)
        return beginning
    if session.has_state:
        raise LockstepError("a Trainer trains a second time in one run, whose state belongs to the first one: train once in each start of the "
                            "program, or start it without --recover and lockstep.hf")
    self._lockstep = _Training(self, session)
    return self._lockstep.init_training_state(original(self, *args, **named))  # type: ignore[no-any-return]


def _prepare_for_training(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    prepared = original(self, *args, **named)
    if training := _training_of(self):
        training.begin()
    return prepared


def _run_epoch(original: Any, self: Any, **named: Any) -> None:
    run = functools.partial(original, self)
    training = _training_of(self)
    training.run_epoch(run, named) if training else run(**named)


def _training_step(original: Any, self: Any, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
    step = functools.partial(original, self, model, inputs, *args, **named)
    training = _training_of(self)
    return training.training_step(step, inputs) if training else step()


def _maybe_log_save_evaluate(original: Any, self: Any, tr_loss: Any, grad_norm: Any, *args: Any, learning_rate: Any = None, **named: Any) -> None:
    if training := _training_of(self):
        training.commit(grad_norm, learning_rate)
    original(self, tr_loss, grad_norm, *args, learning_rate=learning_rate, **named)


def _evaluate(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    training = _training_of(self)
    return original(self, *args, **named) if training is None or training.evaluates() else {}


def _save_checkpoint(original: Any, self: Any, *args: Any, **named: Any) -> None:
    write = functools.partial(original, self, *args, **named)
    training = _training_of(self)
    training.save(write) if training else write()


def _load_rng_state(original: Any, self: Any, checkpoint: Any) -> None:
    training = _training_of(self)
    training.load_rng_state() if training and checkpoint == GOES_ON else original(self, checkpoint)


def _finalize_training(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    finish = functools.partial(original, self, *args, **named)
    training = _training_of(self)
    return training.finish(finish) if training else finish()


def _skip_first_batches(original: Any, loader: Any, num_batches: int = 0) -> Any:
    training: _Training | None = getattr(loader, "lockstep_training", None)
    return training.skip_first_batches(loader, num_batches) if training else original(loader, num_batches)


_AROUND: dict[str, Callable[..., Any]] = {
    "_init_training_state": _init_training_state, "_prepare_for_training": _prepare_for_training, "_run_epoch": _run_epoch,
    "training_step": _training_step, "_maybe_log_save_evaluate": _maybe_log_save_evaluate, "_evaluate": _evaluate,
    "_save_checkpoint": _save_checkpoint, "_load_rng_state": _load_rng_state, "_finalize_training": _finalize_training}


def recover(kind: type) -> None:
    """Trainers of this class, and of those derived from it, recover from now on. LockstepError for a release of transformers whose Trainer is
    made of other parts."""
    if getattr(kind, "_lockstep_recovers", False):
        return
    if missing := [name for name in _AROUND if not hasattr(kind, name)]:
        raise LockstepError(f"the Trainer of transformers {transformers.__version__} has no {missing[0]}, on which lockstep.hf builds: it was made "
                            "for 5.23")
    for name, around in _AROUND.items():
        go_around(kind, name, around)
    kind._lockstep_recovers = True  # type: ignore[attr-defined]
    module: Any = sys.modules["transformers.trainer"]
    if not isinstance(module.skip_first_batches, functools.partial):
        module.skip_first_batches = functools.partial(_skip_first_batches, module.skip_first_batches)


class Trainer(TransformersTrainer):
    """transformers' Trainer, with its arguments. LockstepError when it trains twice in one start of the program."""


replace_init_process_group()
recover(Trainer)
