"""The state of a run: the objects that lockstep.restore got, as they were at the last commit, and what this rank alone holds."""
from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ._errors import GroupBroken, LockstepError
from ._handover import Channel, compare_digests, digests_of
from ._notes import Notes
from ._tensors import description_of, empty_as, extract_tensors, insert_tensors, to_bytes
from ._tracked import Tracked, TrackedModule, TrackedOptimizer, TrackedOther, Undo, track, without_wrapper
from ._wrapped import Models


MANY = 100  # steps or iterations without a commit, that a lost rank makes again: more than a program that accumulates has


class State:
    """Of one rank. `hands_over`: to other ranks, which may need it at any time. Without that nothing is copied at a commit, and states() is
    what the objects hold when it is called."""

    def __init__(self, models: Models, notes: Notes, hands_over: bool = True) -> None:
        self._models = models
        self._notes = notes
        self._hands_over = hands_over
        self._undo = Undo()
        self._tracked: dict[str, Tracked] = {}
        self._optimizers: list[TrackedOptimizer] = []
        self._scheduled: list[Any] = []  # optimizers whose schedules lockstep.restore got
        self._may_hold_schedules = False  # it got an object that may have some inside
        self.is_looping = False  # the program goes through run.steps or run.batches
        self._steps = 0       # of all optimizers in this iteration
        self._iterations = 0  # since the last commit
        self._has_advised = False

    def begin(self, objects: dict[str, Any]) -> None:
        """LockstepError names an object whose state could not be handed over."""
        self._models.close(objects.values())
        self._tracked = {name: track(name, object_, self._undo) for name, object_ in objects.items()}
        self._optimizers = [one for one in self._tracked.values() if isinstance(one, TrackedOptimizer)]
        self._note_schedules([object_ for object_, one in zip(objects.values(), self._tracked.values()) if isinstance(one, TrackedOther)])
        stepped = {param for optimizer in self._optimizers for param in optimizer.params()}
        for one in self._tracked.values():
            if isinstance(one, TrackedModule):
                one.leave_to_optimizers(stepped)
        self._notes.keep_buffers(self._models.keep_buffers)
        for object_ in objects.values():
            if isinstance(object_, torch.amp.GradScaler):
                self._watch_scaler(object_)
        register_optimizer_step_pre_hook(self._before_step)
        for name, one in self._tracked.items():
            one.commit()
            to_bytes(extract_tensors(one.state(), []), name)
        for optimizer in self._optimizers:
            optimizer.saves_undo = self._hands_over

    def _note_schedules(self, others: list[Any]) -> None:
        """`others`: what is no model and no optimizer."""
        self._scheduled = [without_wrapper(object_.optimizer) for object_ in others if hasattr(object_, "optimizer")]
        self._may_hold_schedules = any(not hasattr(object_, "optimizer") and not isinstance(object_, torch.amp.GradScaler) and
                                       not type(object_).__module__.startswith(f"{__package__}.")  # ours hold none
                                       for object_ in others)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """LockstepError where a step would not become part of the state that ranks hand over."""
        if torch._C._current_graph_task_id() != -1:
            raise LockstepError("an optimizer steps inside backward, before the gradients are reduced: call step() when backward() has returned")
        is_tracked = any(one.owns(optimizer) for one in self._optimizers)
        if is_tracked and not self.is_looping:
            raise LockstepError("an optimizer steps outside of the loop: write `for step in run.steps(total):`, or `for batch in "
                                "run.batches(loader):` inside `for epoch in run.epochs(total):`")
        if not is_tracked and self._models.are_stepped_by(optimizer):
            raise LockstepError(f"lockstep.restore did not get the {type(optimizer).__name__} that steps parameters of a wrapped model: give it "
                                "all optimizers")
        follows_a_schedule = any("initial_lr" in group for group in optimizer.param_groups)  # a schedule puts it there
        if is_tracked and follows_a_schedule and not self._may_hold_schedules and not any(one is optimizer for one in self._scheduled):
            raise LockstepError(f"the learning rate of the {type(optimizer).__name__} follows a schedule of torch.optim.lr_scheduler that "
                                "lockstep.restore did not get, and that a new rank would begin anew: give it the schedule, too")

        self._steps += is_tracked
        if is_tracked and self._steps == MANY * len(self._optimizers):
            self._advise(f"one iteration of the loop has {self._steps} optimizer steps, and a rank that is lost makes them all again: let run.steps "
                         "count the optimizer's steps, or write `for batch in run.batches(loader):` inside `for epoch in run.epochs(total):`")

    def note_iteration_without_commit(self) -> None:
        self._iterations += 1
        self._steps = 0
        if self._iterations == MANY:
            waiting = [name for name, one in self._tracked.items() if isinstance(one, TrackedOptimizer) and not one.has_decided]
            self._advise(f"in {MANY} iterations {', '.join(waiting) or 'no optimizer'} has not stepped, so nothing is committed: a rank that is lost "
                         "makes them all again, and all ranks keep the gradients of each. Let an iteration of the loop be a step of every "
                         "optimizer")

    def _advise(self, words: str) -> None:
        if not self._has_advised and dist.get_rank() == 0:
            print(f"lockstep: {words}", file=sys.stderr)
        self._has_advised = True

    def _watch_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """A step that it leaves out, because a gradient is not finite, is a decision, too."""
        step = scaler.step

        def step_and_note(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(optimizer, *args, **kwargs)
            for one in self._optimizers:
                if one.owns(optimizer):
                    one.decide()
            return result
        scaler.step = step_and_note  # type: ignore[method-assign]

    # ---- commits ----

    def note_collective(self) -> None:
        """A collective of this rank begins."""
        for one in self._optimizers:
            one.note_collective()

    def save_undo(self) -> None:
        """What changes until the next commit can be undone."""
        for one in self._tracked.values():
            if isinstance(one, (TrackedModule, TrackedOptimizer)):
                one.save_undo()

    def is_whole(self) -> bool:
        """It can be handed over: what has changed since the last commit can be undone."""
        return all(one.is_whole() for one in self._tracked.values())

    def is_decided(self) -> bool:  # see Session
        return bool(self._optimizers) and all(one.has_decided for one in self._optimizers)

    def commit(self) -> None:
        self._steps = self._iterations = 0
        if self._hands_over:
            return self._copy()
        for one in self._optimizers:
            one.has_decided = False

    def _copy(self) -> None:
        self._undo.clear()
        for one in self._tracked.values():
            one.commit()

    def load(self, states: dict[str, Any]) -> None:
        """What states() has said in another process. LockstepError where an object does not take its state."""
        self._undo.clear()
        for name, one in self._tracked.items():
            try:
                one.load(states[name])
            except (LockstepError, GroupBroken):
                raise
            except Exception as error:
                raise LockstepError(f"{name} does not take the state that it is given ({type(error).__name__}: {error}): make it with the same "
                                    "sizes and arguments in all ranks and at each start") from error
            one.commit()

    # ---- to another rank ----

    def send(self, channel: Channel, position: int, at_commit: int) -> None:
        state = self.states()
        tensors: list[torch.Tensor] = []
        rest = extract_tensors(state, tensors)
        channel.send((rest, description_of(tensors), position, at_commit))
        channel.send_tensors(tensors)
        channel.send(digests_of(state))

    def receive(self, channel: Channel, source: int, rank: int) -> tuple[int, int]:
        """From the rank `source`: position and number of collectives at its commit, whose state this rank now has. LockstepError when it is
        not the same, bit for bit."""
        rest, description, position, at_commit = channel.receive()
        tensors = empty_as(description)
        channel.receive_tensors(tensors)
        digests = channel.receive()
        state = insert_tensors(rest, tensors)
        if state.keys() != self._tracked.keys():
            raise LockstepError(f"lockstep.restore got {', '.join(self._tracked)} in this rank and {', '.join(state)} in rank {source}: "
                                "give it the same objects by the same names in all ranks")
        buffers_before = self._notes.own_buffers()
        self.load(state)
        compare_digests(digests_of(self.states()), digests, source)
        if self._models.keep_buffers:
            note = self._notes.read(position, at_commit, rank)
            if note is None and position > 0:
                print(f"lockstep: the buffers of rank {rank} are lost with its node: it goes on with those of rank {source}", file=sys.stderr)
            else:
                self._notes.put_buffers(note.buffers if note else buffers_before)
                self.commit()
        return position, at_commit

    def states(self) -> dict[str, Any]:
        if not self._hands_over:
            self._copy()
        return {name: one.state() for name, one in self._tracked.items()}
