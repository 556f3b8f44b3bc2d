"""Lightning's Trainer in a run that recovers: when a rank is lost, the others wait inside trainer.fit() and make no step again.

    from lockstep.lightning import Strategy
    trainer = lightning.Trainer(strategy=Strategy(), ...)

`lockstep launch --recover` does the same for a program with strategy="ddp" or a DDPStrategy. Under torchrun and alone it is Lightning's DDPStrategy.

What a new rank gets: model, optimizers, schedules, GradScaler, the modules that callbacks hold (averages of the weights), what the loops have
counted; of its own, from the process before: random states, what has been logged since the epoch began, the states of torchmetrics, callbacks'
state_dict(), and what callbacks and the module count in attributes (_attributes.py). It begins after the newest optimizer step, and makes again what the Trainer does after that step (on_train_batch_end, a
checkpoint, a validation, the end of the epoch), because the others may be in the middle of it: they have kept its collectives' results.
"""
from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import importlib
import json
import math
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics import Metric

from . import _random, _recover
from ._attributes import Attributes, pack, unpack
from ._current import exchange, is_begun
from ._data import batches_from
from ._ddp import DistributedDataParallel
from ._errors import LockstepError
from ._session import Session
from ._tensors import copy_of, extract_tensors, to_bytes

__all__ = ["Strategy"]

_NAMES = ("lightning.pytorch", "pytorch_lightning")
_OUTPUT_BYTES_MAX = 64 << 10  # of what a training_step returns; of more only the loss is kept for on_train_batch_end
_ROOM_FOR_NAMES = 1 << 10     # of the parts of a metric
_VERSIONS_BYTES = 1024        # of the versions of all loggers
# Callbacks that change or repeat the training, or end it by a clock.
_NOT_RECOVERED = ("StochasticWeightAveraging", "LearningRateFinder", "BatchSizeFinder", "Timer")
_METRIC_PARTS = ("_update_count", "_computed", "_forward_cache")


def _name_of_package() -> str:
    """Lightning has two names; the program's is the one that it has imported."""
    for name in _NAMES:
        if name in sys.modules:
            return name
    return next((name for name in _NAMES if importlib.util.find_spec(name.split(".")[0])), _NAMES[0])


def _counters(loop: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(loop).items() if type(value).__module__.endswith("loops.progress")}


def _step_back(progress: Any, *names: str) -> None:
    for part in (progress.total, progress.current):
        for name in names:
            setattr(part, name, getattr(part, name) - 1)


class _Progress:
    """What a Trainer holds beside model, optimizers and schedules, as of the last commit (_tracked.Tracked)."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._kept: dict[str, Any] = {}
        self.is_waiting = False  # what another rank has handed over waits until the Trainer is where that rank was
        self.callbacks = [one for one in trainer.callbacks if _is_handed_over(one)]
        self.attributes = Attributes(functools.partial(_parts_with_attributes, trainer), ("lightning", "pytorch_lightning", "torch", "torchmetrics"),
                                     of_packages=True)
        self.commits = 0
        self.unread = 0  # batches of this epoch that a checkpoint of the Trainer's own has counted, and nobody has read

    def _loops(self) -> dict[str, Any]:
        epoch = self._trainer.fit_loop.epoch_loop
        return {"fit": self._trainer.fit_loop, "epoch": epoch, "automatic": epoch.automatic_optimization, "manual": epoch.manual_optimization,
                "validation": epoch.val_loop}

    def commit(self) -> None:
        if self.is_waiting:
            return
        trainer = self._trainer
        self._kept = copy_of({
            "counters": {name: {field: value.state_dict() for field, value in _counters(loop).items()} for name, loop in self._loops().items()},
            "steps": trainer.fit_loop.epoch_loop._batches_that_stepped, "should_stop": trainer.should_stop, "commits": self.commits,
            "unread": self.unread, "is_restarting": trainer.fit_loop._restarting, "attributes": self.attributes.changed(),
            "validated": dict(trainer.fit_loop.epoch_loop.val_loop._seen_batches_per_dataloader), "callbacks": _states_of(self.callbacks)})

    def state(self) -> Any:
        return self._kept

    def is_whole(self) -> bool:
        return True

    def load(self, state: Any) -> None:
        self._kept = copy_of(state)
        self.is_waiting = True
        self.commits, self.unread = self._kept["commits"], self._kept["unread"]
        for name, loop in self._loops().items():
            for field, value in _counters(loop).items():
                value.load_state_dict(self._kept["counters"][name][field])
        self._trainer.fit_loop.epoch_loop._batches_that_stepped = self._kept["steps"]
        self._trainer.fit_loop._restarting = self._kept["is_restarting"]
        self._trainer.fit_loop.epoch_loop.val_loop._seen_batches_per_dataloader.update(self._kept["validated"])
        _load_states(self.callbacks, self._kept["callbacks"])

    def apply(self) -> None:
        """The Trainer is where the rank was that handed this over."""
        self.is_waiting = False
        self._trainer.should_stop = self._kept["should_stop"]

    def apply_attributes(self) -> None:
        """Those of another rank: for one that has none of its own any more."""
        self.attributes.put(copy_of(self._kept["attributes"]))


def _is_handed_over(callback: Any) -> bool:
    """Its state may hold what another rank cannot read."""
    try:
        to_bytes(extract_tensors(callback.state_dict(), []), type(callback).__name__)
    except LockstepError as error:
        if dist.get_rank() == 0:
            print(f"lockstep: a rank that is started again begins without the state of this callback: {error}", file=sys.stderr)
        return False
    return True


def _parts_with_attributes(trainer: Any) -> dict[str, Any]:
    """Module, data module and callbacks, by name: what they have counted decides what they do next, and much of it is in no state_dict()."""
    parts = {"module": trainer.lightning_module, "datamodule": trainer.datamodule}
    parts |= {f"callback {number}": one for number, one in enumerate(trainer.callbacks) if one is not trainer.progress_bar_callback}
    return {name: part for name, part in parts.items() if part is not None}


def _states_of(callbacks: Iterable[Any]) -> dict[str, Any]:
    states = {callback.state_key: callback.state_dict() for callback in callbacks}
    return {key: state for key, state in states.items() if state}


def _load_states(callbacks: Iterable[Any], kept: dict[str, Any]) -> None:
    for callback in callbacks:
        if callback.state_key in kept:
            callback.load_state_dict(copy_of(kept[callback.state_key]))


class _BatchesFrom:
    """A loader without its first batches."""

    def __init__(self, loader: Any, first: int) -> None:
        self._loader = loader
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        return batches_from(self._loader, self._first, are_seeded=True)

    def __len__(self) -> int:
        return len(self._loader)


class _Training:
    """One call of trainer.fit()."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer = trainer
        self._session = session
        self._progress = _Progress(trainer)
        self._fit = trainer.fit_loop
        self._epoch = trainer.fit_loop.epoch_loop
        self._has_begun = self._is_off = False
        self._goes_on = False        # in the place of a rank that had committed
        self._max_steps = -1
        self._total_steps = 0        # unknown
        self._note: bytes | None = None  # of the process before this one
        self._output: Any = None     # of the training_step of this batch
        self._has_said_too_large = False
        self._has_said_large_output = False
        self._has_averages = False   # a callback holds a module
        self._metrics: dict[str, Any] = {}  # torchmetrics of the module
        # Lightning's, whose states are small, and differ where what they monitor does. Others are the same in all ranks, or should be.
        self._own_callbacks = [one for one in self._progress.callbacks if type(one).__module__.startswith(type(self._fit).__module__.split(".")[0])]
        self._around(trainer, "_run_sanity_check", self._check_sanity)
        self._around(self._epoch.val_loop, "setup_data", self._set_up_validation)
        self._around(self._fit, "run", self._run)
        self._around(self._fit, "on_advance_start", self._begin_epoch)
        self._around(self._fit, "on_run_end", self._end)
        self._around(self._epoch, "run", self._run_epoch)
        self._around(self._epoch, "on_run_start", self._begin_reading)
        self._around(self._epoch.automatic_optimization, "_training_step", self._training_step)
        self._around(self._epoch.manual_optimization, "run", self._run_manually)
        self._around(trainer.strategy, "save_checkpoint", self._save)
        self._around(trainer._logger_connector, "log_metrics", self._log)
        trainer.callbacks.insert(0, self._callback())

    @staticmethod
    def _around(object_: Any, name: str, around: Callable[..., Any]) -> None:
        setattr(object_, name, functools.partial(around, getattr(object_, name)))

    def _part(self, name: str) -> Any:
        """A module of the Lightning whose Trainer this is."""
        return importlib.import_module(f"{type(self._fit).__module__.removesuffix('.loops.fit_loop')}.{name}")

    def _callback(self) -> Any:
        training, session = self, self._session

        class Recovery(self._part("callbacks").Callback):  # type: ignore[misc]
            """Called before the callbacks of the program."""

            def on_train_batch_end(self, *_: Any) -> None:
                training.end_step()

            def on_validation_start(self, *_: Any) -> None:
                training.begin_validation()

            def on_validation_batch_end(self, *_: Any) -> None:
                session.note_forward(is_training=False)
        return Recovery()

    # ---- the beginning ----

    def _without_log(self, original: Callable[[], None]) -> None:
        """Its collectives are made by the ranks that start first, and not by one that is started again: what they come to is of no use."""
        if self._session.has_state:
            return original()
        self._session.is_start_logged = False
        try:
            original()
        finally:
            self._session.is_start_logged = True

    def _check_sanity(self, original: Callable[[], None]) -> None:
        if self._session.is_first_start:
            self._without_log(original)

    def _set_up_validation(self, original: Callable[[], None]) -> None:
        if not self._session.is_start_logged:  # within the check of sanity
            return original()
        self._without_log(original)

    def _run(self, original: Callable[[], None]) -> None:
        """A checkpoint of the Trainer's own may be that of the end. A rank that is started again has not read it."""
        fit = self._fit
        is_over = (0 <= fit.max_epochs <= fit.epoch_progress.current.processed) or (0 <= fit.max_steps <= self._epoch.global_step)
        verdict = torch.tensor([int(is_over)])
        dist.broadcast(verdict, 0)
        if verdict.item() == 0:
            original()

    def _what_does_not_recover(self) -> str:
        trainer = self._trainer
        if trainer.reload_dataloaders_every_n_epochs:
            return f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}"
        if getattr(trainer.strategy, "_ddp_comm_state", None) is not None or getattr(trainer.strategy, "_ddp_comm_hook", None) is not None:
            return "a hook of the strategy for communication"
        if trainer._val_check_time_interval is not None or any(getattr(one, "_train_time_interval", None) is not None for one in trainer.callbacks):
            return "a clock that says when to validate or to write a checkpoint (val_check_interval, train_time_interval)"
        if any(hasattr(loader, "state_dict") for loader in self._fit._combined_loader.flattened):
            return "a loader that has a state of its own"
        if type(self._fit._data_fetcher).__name__ == "_DataLoaderIterDataFetcher":
            return "a training_step that reads the loader itself (dataloader_iter)"
        return next((type(one).__name__ for one in trainer.callbacks if type(one).__name__ in _NOT_RECOVERED), "")

    def _begin(self) -> None:
        """The Trainer's objects exist, and on_train_start is over."""
        trainer, session = self._trainer, self._session
        self._has_begun = True
        if what := self._what_does_not_recover():
            if session.is_asked_for:
                raise LockstepError(f"{what} cannot be recovered when a rank is lost: leave it out, or use Lightning's own strategy without --recover")
            session.why_stateless = f"{what} cannot be recovered, so a lost rank costs a start of all ranks"
            self._is_off = True
            return
        self._metrics = {name: part for name, part in trainer.lightning_module.named_modules() if isinstance(part, Metric)}
        objects: dict[str, Any] = {"model": trainer.strategy.model, "trainer": self._progress}
        objects |= {f"optimizer {number}": one for number, one in enumerate(trainer.optimizers)}
        objects |= {f"schedule {number}": config.scheduler for number, config in enumerate(trainer.lr_scheduler_configs)}
        averages = {f"{type(callback).__name__} {number}.{name}": value for number, callback in enumerate(trainer.callbacks)
                    for name, value in vars(callback).items() if isinstance(value, torch.nn.Module) and value is not trainer.lightning_module}
        self._has_averages = len(averages) > 0
        # No optimizer steps them, and they change after the commit: so they are copied at each.
        objects |= {name: types.SimpleNamespace(state_dict=module.state_dict, load_state_dict=module.load_state_dict)
                    for name, module in averages.items()}
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            objects["scaler"] = scaler
        if self._epoch.max_steps > 0:
            self._total_steps = self._epoch.max_steps
        elif self._fit.max_epochs > 0 and math.isfinite(self._fit.max_batches):
            self._total_steps = self._fit.max_epochs * math.ceil(self._fit.max_batches / trainer.accumulate_grad_batches)
        self._progress.attributes.begin()
        if session.is_first_start:
            session.position = self._epoch._batches_that_stepped
        session.begin(objects, has_checkpoints=False)
        self._goes_on = self._progress.is_waiting = self._progress.commits > 0
        self._note = None if session.is_first_start else session.note_random()
        session.leave_notes(self._capture)

    # ---- what this rank alone holds ----

    def _capture(self) -> bytes:
        """Random states; what is logged of this epoch; the states of metrics and callbacks; the output of the training_step, for
        on_train_batch_end."""
        connector, results = self._trainer._logger_connector, self._epoch._results
        own = {
            "results": [(key, self._arguments_of(one.meta), self._state_of(one) | {"has_reset": one.has_reset}, one.is_tensor)
                        for key, one in results.items()],
            "said": {name: getattr(connector, name) for name in ("_first_loop_iter", "_current_fx", "_callback_metrics", "_logged_metrics",
                                                                 "_progress_bar_metrics")},
            "attributes": self._progress.attributes.values(), "callbacks": _states_of(self._own_callbacks)}
        metrics = {name: self._state_of(one) for name, one in self._metrics.items()}
        parts = [_random.capture(), pack(own), self._packed_output()]
        nbytes = sum(one.nbytes for state in metrics.values() for values in state.values() for one in (values if isinstance(values, list) else [values])
                     if isinstance(one, torch.Tensor))
        if nbytes > self._session.notes.room() - sum(map(len, parts)) - _ROOM_FOR_NAMES * (1 + len(metrics)):
            if not self._has_said_too_large:
                print(f"lockstep: what the metrics of rank {self._session.rank} hold ({nbytes} bytes) is too large to be kept for the process that "
                      "takes its place, which would begin with none", file=sys.stderr)
            self._has_said_too_large, metrics = True, {}
        return pickle.dumps((*parts, pack(metrics)))

    def _packed_output(self) -> bytes:
        if self._output is None:
            return b""
        with contextlib.suppress(Exception):  # whatever a training_step returns
            if len(packed := pack(self._output)) <= _OUTPUT_BYTES_MAX:
                return packed
        if not self._has_said_large_output and self._session.rank == 0:
            print("lockstep: what training_step returns is too large to be kept, or cannot be: in a rank that is started again on_train_batch_end gets "
                  "the loss alone, once", file=sys.stderr)
        self._has_said_large_output = True
        return pack({name: value for name, value in self._output.items() if name == "loss"})

    @staticmethod
    def _arguments_of(meta: Any) -> tuple[dict[str, Any], bool, bool]:
        fields = {field.name: getattr(meta, field.name) for field in dataclasses.fields(meta) if field.init and field.name != "_sync"}
        return fields, meta.sync.should, meta.sync.rank_zero_only

    @staticmethod
    def _state_of(metric: Any) -> dict[str, Any]:
        return {name: getattr(metric, name) for name in (*metric._defaults, *_METRIC_PARTS)}

    def _apply_note(self) -> Any:
        """Its output."""
        trainer = self._trainer
        if self._note is None:
            self._progress.apply_attributes()
            _random.seed_all(0, self._session.position, self._session.rank)
            print(f"lockstep: the random states of rank {self._session.rank} are lost with its node: it goes on with others, seeded by the step, "
                  "and what it has logged and measured in this epoch is left out", file=sys.stderr)
            return {"loss": torch.tensor(math.nan)}
        random, packed, output, metrics = pickle.loads(self._note)
        own = unpack(packed)
        self._put_results(own["results"])
        vars(trainer._logger_connector).update(own["said"])
        self._progress.attributes.put(own["attributes"])
        _load_states(self._own_callbacks, own["callbacks"])
        for name, state in unpack(metrics).items():
            vars(self._metrics[name]).update(state)
        _random.apply(random)
        return unpack(output) if output else {"loss": torch.tensor(math.nan)}

    def _put_results(self, kept: list[Any]) -> None:
        parts, results = self._part("trainer.connectors.logger_connector.result"), self._epoch._results
        results.clear()
        for key, (fields, should, rank_zero_only), state, is_tensor in kept:
            meta = parts._Metadata(**fields)
            meta.sync = parts._Sync(_should=should, fn=self._trainer.strategy.reduce, rank_zero_only=rank_zero_only)
            results[key] = metric = parts._ResultMetric(meta, is_tensor)
            if not is_tensor:
                metric.value = operator.attrgetter(meta.metric_attribute)(self._trainer.lightning_module)
            for name, value in state.items():
                setattr(metric, name, value)

    # ---- an epoch ----

    def _begin_epoch(self, original: Callable[[], None]) -> None:
        """In the place of a rank, the Trainer begins the epoch of the newest commit: its hooks are called, and must not communicate, because
        the others have done so before that commit."""
        if not self._has_begun:
            self._begin()
        if not self._goes_on:
            return original()
        _step_back(self._fit.epoch_progress, "ready", "started")
        self._session.alone_in = "on_train_epoch_start or on_train_batch_start"
        original()

    def _run_epoch(self, original: Callable[[Any], None], fetcher: Any) -> None:
        """The first batch of a rank that goes on is that of the newest commit, without its training_step."""
        if self._goes_on:
            loop, progress = self._epoch, self._epoch.batch_progress
            _step_back(progress, "ready", "started", "processed")
            progress.is_last_batch = False
            self._max_steps, loop.max_steps = loop.max_steps, -1  # they may have been made
            nothing = lambda *_, **__: None  # noqa: E731
            loop.reset = loop._broadcast_sigterm_tensor = loop.update_lr_schedulers = nothing
            self._optimization = loop.automatic_optimization if self._trainer.lightning_module.automatic_optimization else loop.manual_optimization
            self._run_of_optimization = self._optimization.run
            self._optimization.run = self._after_training_step
        original(fetcher)

    def _begin_reading(self, original: Callable[[Any], None], fetcher: Any) -> None:
        loop, session = self._epoch, self._session
        if self._is_off:
            return original(fetcher)
        epoch, first = self._trainer.current_epoch, 0
        if self._goes_on:
            first = loop.batch_progress.current.ready - self._progress.unread
            if note := session.epoch_note(epoch):
                _random.apply(pickle.loads(note)[0])
        else:
            if not session.is_first_start and self._note is not None and self._progress.commits == 0:
                _random.apply(pickle.loads(self._note)[0])
                self._note = None
            self._progress.unread = loop.batch_progress.current.ready
            session.leave_epoch_note(epoch)
        self._open(fetcher, first)
        loop._restarting, is_restarting = True, loop._restarting  # the loader's iterator has been made
        original(fetcher)
        loop._restarting = is_restarting

    def _open(self, fetcher: Any, first: int) -> None:
        """Begins to read, at batch `first`."""
        combined = fetcher.combined_loader
        loaders = combined.flattened
        if len(loaders) == 1:
            combined.flattened = [_BatchesFrom(loaders[0], first)]
            iter(fetcher)
            combined.flattened = loaders
            return
        iter(fetcher)
        if first > 0:
            print(f"lockstep: reading {first} batches again to go on where the epoch was, because the Trainer reads {len(loaders)} loaders",
                  file=sys.stderr)
        for _ in range(first):
            next(fetcher)
        fetcher.fetched -= first

    # ---- a batch ----

    def _training_step(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        self._output = result.asdict()
        return result

    def _run_manually(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._output = None
        self._output = result = original(*args, **named)
        return result

    def _after_training_step(self, *_: Any) -> Any:
        """In the place of a training_step and an optimizer step that the process before this one has made."""
        for name in ("reset", "_broadcast_sigterm_tensor"):
            vars(self._epoch).pop(name)
        self._optimization.run = self._run_of_optimization
        self._session.alone_in = ""
        self._goes_on = False
        self._epoch.max_steps = self._max_steps
        self._progress.apply()
        return self._apply_note()

    def end_step(self) -> None:
        """The optimizers and schedules have stepped."""
        session = self._session
        vars(self._epoch).pop("update_lr_schedulers", None)
        if self._is_off or not session.is_decided():
            return
        self._progress.commits += 1
        session.commit(self._epoch._batches_that_stepped + 1)
        self._output = None
        session.rejoin_if_cut()

    def begin_validation(self) -> None:
        """Averages may take the place of the weights for it."""
        if self._has_averages and self._session.has_state:
            self._session.state.save_undo()

    def _save(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._session.note_saving(True)
        result = original(*args, **named)
        self._session.note_saving(False)
        return result

    def _log(self, original: Callable[..., Any], metrics: dict[str, Any], step: int | None = None) -> None:
        figures = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float)) or
                   (isinstance(value, torch.Tensor) and value.numel() == 1)}
        if self._session.rank == 0 and figures:
            figures.pop("step", None)
            self._session.say_progress(self._epoch._batches_that_stepped, self._total_steps, figures)
        original(metrics, step)

    def _end(self, original: Callable[[], None]) -> None:
        if not self._is_off and self._has_begun:
            self._session.state.save_undo()  # a test that follows may read other weights
        original()
        if not self._is_off and self._has_begun:
            self._session.await_end()


# ---- Lightning's strategy ----


def _session() -> Session | None:
    session = exchange() if is_begun() else None
    return session if isinstance(session, Session) else None


def _is_fitting(trainer: Any) -> bool:
    return str(getattr(trainer.state.fn, "value", "")) == "fit"


def _setup_environment(original: Any, self: Any) -> None:
    """Loggers choose a version by the folders that they find. A rank 0 that is started again writes into those of the one before it."""
    original(self)
    session, trainer = _session(), getattr(self.lightning_module, "_trainer", None)
    if session is None or session.has_state or trainer is None:
        return
    if not session.is_first_start and _is_fitting(trainer):
        # It gets its state from the others; and the newest checkpoint is not the one, or none, from which they began.
        trainer._checkpoint_connector.resume_start = lambda *_, **__: None
    loggers = [one for one in trainer.loggers if hasattr(one, "_version")]
    packed = json.dumps([one.version for one in loggers]) if session.rank == 0 else ""
    if len(packed) > _VERSIONS_BYTES:
        return
    versions = torch.tensor(list(packed.ljust(_VERSIONS_BYTES).encode()), dtype=torch.uint8)
    dist.broadcast(versions, 0)
    for logger, version in zip(loggers, json.loads(bytes(versions.tolist()))):
        logger._version = version
        if not session.is_first_start and (writer := getattr(sys.modules[type(logger).__module__], "ExperimentWriter", None)) is not None:
            writer._check_log_dir_exists = _go_on_with_lines  # in the place of what deletes them


def _go_on_with_lines(writer: Any) -> None:
    """A CSVLogger's, behind the lines of the rank 0 before this one."""
    with contextlib.suppress(OSError), open(writer.metrics_file_path, encoding="utf-8", newline="") as file:
        writer.metrics_keys = next(csv.reader(file), [])


def _setup(original: Any, self: Any, trainer: Any) -> None:
    session = _session()
    is_fitting = _is_fitting(trainer)
    if session is not None and is_fitting and session.models.layouts:
        raise LockstepError("a Trainer fits a second time in one run, whose state belongs to the first one: fit once in each start of the program, "
                            "or start it without --recover and lockstep.lightning")
    if session is None or session.has_state or is_fitting:
        original(self, trainer)
    else:  # a validation before the training: all ranks get rank 0's weights
        session.is_start_logged = False
        original(self, trainer)
        session.is_start_logged = True
    if session is not None and is_fitting:
        _Training(trainer, session)


def _backward(original: Any, self: Any, *args: Any, **named: Any) -> None:
    """What torch's reducer needs before and after a backward that the program itself calls."""
    if not isinstance(self.model, DistributedDataParallel):
        original(self, *args, **named)


def _teardown(original: Any, self: Any) -> None:
    if isinstance(self.model, DistributedDataParallel):
        self.model = self.lightning_module  # Lightning would ask the wrapper for advice
    original(self)


_AROUND: dict[str, Callable[..., Any]] = {
    "setup_environment": _setup_environment, "setup": _setup, "pre_backward": _backward, "post_backward": _backward, "teardown": _teardown}


def recover(package: str) -> None:
    """Strategies of Lightning under this name ("lightning.pytorch") recover from now on. LockstepError for a release that is made of other
    parts."""
    strategies = importlib.import_module(f"{package}.strategies")
    kind = strategies.DDPStrategy
    if getattr(kind, "_lockstep_recovers", False):
        return
    loop = importlib.import_module(f"{package}.loops.training_epoch_loop")._TrainingEpochLoop
    if missing := [name for name in _AROUND if not hasattr(kind, name)] + [name for name in ("on_run_start", "update_lr_schedulers")
                                                                           if not hasattr(loop, name)]:
        raise LockstepError(f"Lightning under the name {package} has no {missing[0]}, on which lockstep.lightning builds: it was made for 2.6")
    for name, around in _AROUND.items():
        _recover.go_around(kind, name, around)
    kind._lockstep_recovers = True
    fabric = "lightning.fabric" if package.startswith("lightning.") else "lightning_fabric"
    _recover.go_around(importlib.import_module(f"{fabric}.utilities.distributed")._InfiniteBarrier, "__enter__", _enter_barrier)
    for name, what in (("FSDPStrategy", "FSDP"), ("ModelParallelStrategy", "a ModelParallelStrategy"), ("DeepSpeedStrategy", "DeepSpeed")):
        if (sharded := getattr(strategies, name, None)) is not None:
            _recover.go_around(sharded, "setup_environment", functools.partial(_note_sharding, what))


def _enter_barrier(original: Any, self: Any) -> Any:
    """Around a prepare_data that one rank makes: it would make a group of its own."""
    if _session() is None:
        return original(self)
    self.barrier = dist.barrier
    return self


def _note_sharding(what: str, original: Any, self: Any) -> None:
    _recover.known_sharding = what
    original(self)


_recover.replace_init_process_group()
recover(_name_of_package())


class Strategy(importlib.import_module(f"{_name_of_package()}.strategies").DDPStrategy):  # type: ignore[misc]
    """Lightning's DDPStrategy, with its arguments. LockstepError when its Trainer fits twice in one start of the program, or with something that
    cannot be recovered, by name."""
