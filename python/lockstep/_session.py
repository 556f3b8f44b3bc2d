"""The life of a rank that outlives its groups: it has a place in a group, loses it, gets another one, and its state with it or for it.

One object per process, used by the thread that trains. Who hands a state over to whom, and which collectives are not made again, the
coordinator decides (runner/recovery/state_source.h), from what the ranks say when they leave a group; this file carries it out.
"""
from __future__ import annotations

import atexit
import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import _buckets
from ._errors import GroupBroken, Interrupted, LockstepError
from ._gloo import Abandoned, first_line, leak, make_group, wait_for
from ._handover import Channel
from ._link import Activity, AgentLink, Handover, Phase, Plan, count_optimizer_steps
from ._notes import Notes
from ._results import Result, Results, StartLog
from ._saving import AgentSaving
from ._state import State
from ._store import LinkStore
from ._tensors import copy_of, description_of, empty_as
from ._wrapped import Models

CUT_SECONDS = 5.0  # a collective that has failed is seen at once, and why a moment later
POLL_SECONDS = 2.0  # a rank that waits so long for the others asks whether one of them is at its end
END_KEY = "lockstep/end"


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


class Session:
    """`version`: the package's. `timeout`: of each collective. `is_asked_for`: the program calls lockstep.init_process_group; else
    `lockstep launch --recover` does, and a program that says nothing of its state is started again as a whole when a rank is lost."""

    def __init__(self, link: AgentLink, version: str, timeout: datetime.timedelta, is_asked_for: bool = True) -> None:
        self._link = link
        self._timeout = timeout
        self.is_asked_for = is_asked_for
        self._is_stateless = False  # see _without_state
        self.why_stateless = ("--recover cannot know where this program's loop is, so a lost rank costs a start of all ranks: with run = "
                              "lockstep.restore(…) and run.steps or run.batches it costs one new rank (docs/keep-state.md)")
        self._is_forked = False  # this process is a child of the rank's
        self.notes = Notes(link.memory)
        self.models = Models(self.notes.check_buffers)
        self.results = Results()
        self.state = State(self.models, self.notes)
        self.abandoned = Abandoned()
        self._abandoned_bytes = 0  # of works that have not ended since their group did
        self._groups: list[dist.ProcessGroupGloo] = []  # for the gradients of each wrapped model
        self._default_group: Any = None  # for the program's own collectives
        self._is_broken = False   # the group has ended, and this rank has not left it yet
        self._leaves = False      # all ranks leave the group at their next commit
        self._can_resize = False  # the program goes on in another number of ranks
        self._weight: tuple[float | None, int] = (None, 0)  # see set_weight; for this number of ranks
        self._before: dict[str, Any] | None = None  # what this rank held when it last left a group with a state
        self._makes_step_again = False  # the one that was in flight when it did
        self._drops_replays = False     # at the next commit: the others make the step after it again
        self.has_state = False
        self.is_first_start = True
        self._is_training = True
        self._is_in_step = False  # in a block of `with run.step()`
        self._is_at_end = False   # of its loop, once
        self._is_asked_to_end = False
        self.alone_in = ""  # a part of the program that only a rank that is started again makes once more: it must not communicate there
        self.position = 0
        self._resumed: dict[str, Any] | None = None  # to be said at the next commit
        self.lineage = 0  # generation in which the state began: as the program does, or from a checkpoint
        self.saving = AgentSaving(self, link)
        self._start_log = StartLog()
        self.is_start_logged = True  # else collectives before lockstep.restore are not made by a rank that is started again
        self._start_made = 0
        atexit.register(self._close)
        os.register_at_fork(after_in_child=self._note_fork)
        link.say_hello(version)
        try:
            self._enter()
            self.is_first_start = self._plan.source < 0
            if self.is_first_start:
                self._link.watch(self.generation)
                self._default_group = self._make_group("start", self.rank, self.world)
                self._link.formed()
            else:
                self._link.say("outlives")
        except GroupBroken as error:
            self.ask_for_replacement(f"the group ended before it had begun: {error}")
        self._link.beat(Activity.LOADING, Phase.STARTUP)

    def _close(self) -> None:
        """Before Python's own end, which destroys groups in any order with torch's threads, and may then abort the process."""
        if self._is_forked:
            return leak(self)  # it has none of the threads that the groups' end waits for
        if self.has_state and not self._is_at_end and not self._is_asked_to_end:
            self._say_end()
        self._link.retire()
        self._groups, self._default_group = [], None
        self.abandoned.free()
        self.abandoned.leak()

    def _note_fork(self) -> None:
        self._is_forked = True

    # ---- the place ----

    @property
    def rank(self) -> int:
        return self._assignment.rank

    @property
    def world(self) -> int:
        return self._assignment.world_size

    @property
    def generation(self) -> int:
        return self._assignment.generation

    @property
    def _plan(self) -> Plan:
        return self._assignment.plan

    def weight(self) -> float | None:
        """See set_weight. A step that is in flight while the number of ranks changes is averaged over those that are left."""
        weight, world = self._weight
        return weight if world == self.world else None

    def set_weight(self, weight: float | None) -> None:
        """Of this rank's gradients in their sum, from now on, when the ranks' parts of a batch differ in size; None: all are the same."""
        self._weight = (weight, self.world)

    def is_to_leave(self) -> bool:
        """The ranks are to leave the group together, as far as this one knows. All learn of it by a reduction (note_leaving)."""
        return self._can_resize and self._link.leave_together(self.generation) is not None

    def note_leaving(self) -> None:
        self._leaves = True

    def is_cut(self) -> bool:
        return self._is_broken or self._link.is_cut(self.generation)

    def note_broken(self) -> None:
        """A collective could not even begin."""
        self._is_broken = True

    def _enter(self) -> None:
        """Waits for a place in a group, whose ranks hold what the plan of this rank presumes."""
        self._link.beat(Activity.AWAITING, Phase.WAITING)
        self._assignment = self._link.await_assignment(self.saving.poll_without_group)
        self._is_broken = self._leaves = False
        self._link.beat(Activity.FORMING, Phase.WAITING)
        self.store = LinkStore(self._link, self.generation, self._timeout, self.saving.poll_while_forming)
        if self.has_state and self._plan.source < 0:
            raise LockstepError("the agent has not said which rank hands its state over, although this one has a state: it is older than "
                                "the package lockstep; install the one that has the agent's version")
        self._pass_on_the_start()

    def _pass_on_the_start(self) -> None:
        """What the program's own collectives before lockstep.restore came to, for ranks that make them now."""
        if self._plan.state.rank == 0:
            self._link.ask_store(self.generation, "set", ["lockstep/start"], [self._start_log.to_bytes()])
        elif self._plan.state.rank > 0 and not self.has_state and self._start_made == 0:
            self._start_log = StartLog.from_bytes(self._link.ask_store(self.generation, "get", ["lockstep/start"])["values"][0])

    def _exchange(self, topic: str, own: Any) -> list[Any]:
        """What each rank has said of this topic, by rank. Blocks until all have."""
        self._link.ask_store(self.generation, "set", [f"lockstep/{topic}/{self.rank}"], [json.dumps(own).encode()])
        reply = self._link.ask_store(self.generation, "get", [f"lockstep/{topic}/{rank}" for rank in range(self.world)],
                                     poll=self.saving.poll_without_group)
        return [json.loads(value) for value in reply["values"]]

    def _join(self) -> None:
        """Forms the groups and makes the states equal. All ranks of the generation call it; a rank that is being started does when its
        objects exist, and the others wait for it here."""
        self._link.beat(Activity.FORMING, Phase.WAITING)
        plan = self._plan
        if plan.source < 0 and not self.is_first_start:
            self.ask_for_replacement("all ranks that held the state are gone")
        if plan.is_lost:
            self.ask_for_replacement("a rank was lost while the parameters were no longer those of the newest commit: an optimizer had stepped "
                                     "without a collective before it, or the program had moved them. Nobody can hand that commit's over: put "
                                     "the body of the loop in `with run.step()`")
        if plan.behind == self.rank:
            self.ask_for_replacement("the others are a step ahead, and nobody has kept what it lacks")
        if plan.behind >= 0:
            raise GroupBroken(f"rank {plan.behind} is a step behind and is started again")
        said = self._exchange("ranks", {"models": self.models.digest(), "before": self._before})
        self._compare_models([one["models"] for one in said], max(plan.source, 0))
        befores = [one["before"] for one in said if one["before"]]
        newest = max((before["position"] for before in befores), default=0)
        self._is_first_survivor = next((rank for rank, one in enumerate(said) if one["before"]), -1) == self.rank
        is_resized = any(before["world"] != self.world for before in befores)
        formed_ns = self._link.now_ns()
        self._link.watch(self.generation)
        try:
            self._groups = [self._make_group(f"gradients/{i}", self.rank, self.world)
                            for i in range(len(self.models.layouts))]
            self._default_group = self._make_group("default", self.rank, self.world)
            self._link.beat(Activity.RESTORING, Phase.WAITING)
            origin = "as the program began" if plan.source < 0 else f"from rank {plan.source}"
            if plan.source < 0:
                self.lineage = self.generation
                if checkpoint := self.saving.load():
                    origin = f"from {checkpoint}"
                    plan = Plan(source=0, state=Handover(rank=self.rank, size=self.world))
            self._hand_over(plan)
            self._send_results(plan)
        except (RuntimeError, dist.DistError) as error:
            if isinstance(error, LockstepError):
                raise
            raise GroupBroken(first_line(error)) from None
        self._link.formed()
        # Nobody can make this rank's part of a batch that was divided among another number of ranks.
        if is_resized and any(before["is_in_block"] for before in befores):
            self._makes_step_again = self.position == newest
            self._drops_replays = not self._makes_step_again
            if self._makes_step_again:
                self.results.set_replays({})
                self.results.go_on_from(self.results.at_commit)
        self._resumed = {"formed_ns": formed_ns, "synced_ns": self._link.now_ns(), "resumed_step": self.position,
                         "origin": origin, "redone_steps": -1 if self._plan.source < 0 else 0}  # -1: the agent counts them

    def _compare_models(self, digests: list[str], of_rank: int) -> None:
        if len(set(digests)) == 1:
            return
        if self.rank == of_rank:
            self._link.ask_store(self.generation, "set", ["lockstep/layouts"], [json.dumps(self.models.layouts).encode()])
        if digests[self.rank] != digests[of_rank]:
            theirs = self._link.ask_store(self.generation, "get", ["lockstep/layouts"])["values"][0]
            self.models.refuse_others(json.loads(theirs), of_rank)
        raise GroupBroken("the ranks have different models")

    def rejoin(self, why: str, in_flight: bool = True, cause: str = "") -> None:
        """Leaves the group, which is broken, and goes on in the next one. Returns when this rank and all others have one state. Interrupted
        when that is a later one than this rank's, or the step that is in flight is made again, because the number of ranks has changed.
        `cause`: as in contract/messages.h, Left; empty: a rank was lost."""
        if not self.has_state and self.is_first_start:
            self.ask_for_replacement(f"the group ended before lockstep.restore: {why}")
        if self._abandoned_bytes > self.models.gradient_bytes():
            self.ask_for_replacement(f"collectives of groups that have ended still hold {self._abandoned_bytes} bytes, more than all gradients")
        had_state, position, world = self.has_state, self.position, self.world
        self._before = {"position": position, "world": world, "is_in_block": self._is_in_step} if had_state else None
        self._makes_step_again = False
        while True:
            self._leave(why, cause)
            try:
                self._enter()
                if had_state and self.world != world and not self._can_resize:
                    self.ask_for_replacement(f"the group has {self.world} ranks and had {world}, and the program, which may have computed what "
                                             "follows from that number, begins again with the new one")
                self._join()
                break
            except GroupBroken as error:
                why, cause = str(error), ""
        if had_state and self.position != position:
            raise Interrupted(f"the others have committed step {self.position}, and this rank goes on from there")
        if self._makes_step_again and self._is_in_step:
            self.state.load(copy_of(self.state.states()))
            raise Interrupted(f"the group had {world} ranks and has {self.world}: the step is made again")
        if had_state and self.world != world and in_flight and not self._is_in_step and self._is_first_survivor:
            print(f"lockstep: the group had {world} ranks and has {self.world}: step {position} is averaged over those that are left. In a block "
                  "`with run.step()` it would be made again, with all its data", file=sys.stderr)

    def _leave(self, why: str, cause: str) -> None:
        was_cut = self._link.is_cut(self.generation)
        self._link.shut()  # so that the peers notice, and what is still running here ends
        self._link.retire()
        self._groups, self._default_group = [], None
        self.abandoned.free()
        self._link.say("left", generation=self.generation, cause=cause or ("Cut" if was_cut else "PeerLost"), message=why,
                       step=self.position, claim=self._claim())

    def _claim(self) -> dict[str, Any]:
        """What this rank holds. It stays so until the rank is in another group, because results count only in the thread that leaves."""
        return {"has_state": self.has_state, "lineage": self.lineage, "step": self.position, "at_commit": self.results.at_commit,
                "complete": self.results.complete, "kept_from": self.results.kept_from(), "is_whole": self.state.is_whole(),
                "can_take": self._is_in_step}

    def end_here(self) -> None:
        """This process is about to end as it was asked to, perhaps in the middle of a step."""
        self._is_asked_to_end = True
        self._link.shut()
        leak((self._groups, self._default_group))  # their end would wait for what still runs in them
        self._groups, self._default_group = [], None

    def ask_for_replacement(self, why: str) -> None:
        """Ends this process: the agent starts the rank again, and counts no failure."""
        if self.is_first_start and not self.has_state:
            self._is_cut_soon()  # the agent ends all ranks when one has failed, and counts that failure
        self._link.say("replace", generation=self.generation, message=why)
        while True:
            signal.pause()  # until SIGKILL

    # ---- start-up ----

    def broadcast_at_start(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """At the first start of all ranks: gives them rank 0's tensors, after their layouts have been compared."""
        if not self.is_first_start or self.world == 1:
            return
        self._link.beat(Activity.LOADING, Phase.WAITING)
        try:
            layouts = self._exchange(f"start/{number}", self.models.layouts[number])
            if None in layouts:
                raise LockstepError(f"this rank has wrapped more than {number} models in lockstep.DistributedDataParallel before "
                                    f"lockstep.restore, and rank {layouts.index(None)} has wrapped {number}: wrap the same models in all ranks")
            if words := _buckets.difference(self.models.layouts[number], layouts[0], 0):
                raise LockstepError(f"{words}: {_buckets.REMEDY}")
            channel = Channel(self._default_group, 0, self.wait)
            (channel.send_tensors if self.rank == 0 else channel.receive_tensors)(tensors)
        except GroupBroken as error:
            self.ask_for_replacement(f"a rank was lost while rank 0's parameters were sent: {error}")
        self._link.beat(Activity.LOADING, Phase.STARTUP)

    def begin(self, objects: dict[str, Any], has_checkpoints: bool = True, can_resize: bool = False) -> None:
        """From now on this rank has a state: its own or the newest checkpoint's at the first start of all ranks, else that of a rank that
        has one. `has_checkpoints`: the program's are Lockstep's. `can_resize`: it goes on in another number of ranks."""
        self._can_resize = can_resize
        self.state.begin(objects)
        if has_checkpoints:
            self.saving.open()
        if self.is_first_start:  # for a rank that wraps more models than this one
            self._link.ask_store(self.generation, "set", [f"lockstep/start/{len(self.models.layouts)}/{self.rank}"], [b"null"])
        try:
            self._join()
        except GroupBroken as error:
            self.rejoin(str(error))
        self._link.say("outlives", leaves_together=can_resize)
        self.has_state = True
        self._link.commit(self.position)  # first: the coordinator takes the step at which rank 0 begins to train for its first
        self._link.beat(Activity.TRAINING)

    def _hand_over(self, plan: Plan) -> None:
        """From the source to the receivers."""
        if plan.state.rank < 0 or plan.state.size < 2:
            return
        channel = self._channel("state", plan.state)
        if plan.state.rank == 0:
            channel.send(self.lineage)
            return self.state.send(channel, self.position, self.results.at_commit)
        self.lineage = channel.receive()
        self.position, at_commit = self.state.receive(channel, plan.source, self.rank)
        self.results.go_on_from(at_commit)
        self.has_state = True

    def _send_results(self, plan: Plan) -> None:
        """From the keeper to those that lack results."""
        self.results.set_replays({})
        if plan.results.rank < 0:
            return
        channel = self._channel("results", plan.results)
        numbers = range(plan.first_result, plan.complete)
        if plan.results.rank == 0:
            results = self.results.kept(numbers)
            channel.send([(result.label, description_of(result.tensors)) for result in results])
            channel.send_tensors([tensor for result in results for tensor in result.tensors])
            return
        results = [Result(label, empty_as(description)) for label, description in channel.receive()]
        channel.receive_tensors([tensor for result in results for tensor in result.tensors])
        self.results.set_replays({number: result for number, result in zip(numbers, results) if number >= self.results.complete})

    def _make_group(self, name: str, rank: int, size: int) -> dist.ProcessGroupGloo:
        return make_group(name, self.store, rank, size, self._timeout, self._assignment.listens_on)

    def _channel(self, name: str, handover: Handover) -> Channel:
        group = self._make_group(name, handover.rank, handover.size)

        def wait(work: Any) -> None:
            try:
                wait_for(work, self.is_cut)
            except GroupBroken:
                self.abandoned.add(work, (), group)
                raise
            self._link.beat(Activity.RESTORING, Phase.WAITING)  # each piece is progress
        return Channel(group, 0, wait)

    # ---- for checkpoints ----

    def states(self) -> dict[str, Any]:
        """Of each object by its name, as of the last commit. Tensors may be the objects' own."""
        return self.state.states()

    def load_states(self, states: dict[str, Any], position: int) -> None:
        self.state.load(states)
        self.position = position

    def is_whole(self) -> bool:
        """states() is that of the last commit."""
        return self.state.is_whole()

    # ---- collectives ----

    def wait(self, work: Any) -> None:
        """GroupBroken when the group ends first. LockstepError when a rank that it needs has ended."""
        poll_at = time.monotonic() + POLL_SECONDS

        def poll() -> bool:
            nonlocal poll_at
            self.saving.poll_in_group()
            if time.monotonic() >= poll_at:
                self._refuse_to_wait_for_an_end()
                poll_at = time.monotonic() + POLL_SECONDS
            return self.is_cut()
        wait_for(work, poll)

    def _refuse_to_wait_for_an_end(self, has_failed: bool = False) -> None:
        """LockstepError: a rank is at the end of its loop, and this collective needs it. `has_failed`: the collective has, and the agent does
        not end the group; so a rank whose process has ended before has ended as it wanted."""
        end = self._end_of_another()
        if end and (has_failed or end["is_at_loop_end"]):
            where = "is at the end of its loop" if end["is_at_loop_end"] else "has ended its program"
            raise LockstepError(f"rank {end['rank']} {where} after {end['step']} steps, and rank {self.rank} waits for it "
                                f"in a collective, in step {self.position}: make the same number of steps in all ranks (drop_last=True, or a "
                                "DistributedSampler), and the same collectives")

    def _end_of_another(self) -> dict[str, Any] | None:
        """What a rank has said when it was at its end, if the next collective of this one needs it."""
        if not self.has_state or self._is_at_end:
            return None
        try:
            if not self._link.ask_store(self.generation, "check", [END_KEY])["number"]:
                return None
            end: dict[str, Any] = json.loads(self._link.ask_store(self.generation, "get", [END_KEY])["values"][0])
        except GroupBroken:
            return None
        return end if self.results.complete >= end["complete"] else None

    def _say_end(self) -> None:
        """For ranks that will wait for this one."""
        end = {"rank": self.rank, "is_at_loop_end": self._is_at_end, "step": self.position, "complete": self.results.complete}
        try:
            self._link.ask_store(self.generation, "set", [END_KEY], [json.dumps(end).encode()])
        except GroupBroken:  # at the end of the loop it is formed again
            pass

    def gradient_group(self, number: int) -> dist.ProcessGroupGloo:
        if number >= len(self._groups) and not self.has_state and not self.is_asked_for:
            self._without_state()
        if number >= len(self._groups):
            raise LockstepError("a backward before lockstep.restore: call that first, when all models are wrapped")
        return self._groups[number]

    def _without_state(self) -> None:
        """The program trains, and nobody has said what its state is. Its gradients are reduced, and when a rank is lost all start again."""
        if not self._is_stateless and self.rank == 0:
            print(f"lockstep: {self.why_stateless}", file=sys.stderr)
        self._is_stateless = True
        self._link.watch(self.generation)
        for number in range(len(self._groups), len(self.models.layouts)):
            self._groups.append(self._make_group(f"gradients/{number}", self.rank, self.world))
        self._link.formed()
        count_optimizer_steps()

    def collective(self, label: str, targets: Sequence[torch.Tensor], attempt: Callable[[Any, list[torch.Tensor]], Any]) -> None:
        """One of the program's own. `attempt` begins it in a group, on copies of `targets` that hold its result when it is complete: a try
        that fails may write to its memory later. The result is copied to `targets`."""
        def make() -> None:
            if self.results.has_replay():
                result = self.results.replay(label)
            else:
                result = [target.detach().clone() for target in targets]
                try:
                    work = attempt(self._default_group, result)
                except RuntimeError as error:
                    raise GroupBroken(first_line(error)) from None
                try:
                    self.wait(work)
                except GroupBroken:
                    self.abandoned.add(work, result, self._default_group)
                    raise
                if self.has_state:
                    self.results.add(label, result)
                elif self.is_start_logged and not self._is_stateless:
                    self._start_log.add(label, result)
            copy_all(targets, result)

        if self.alone_in:
            raise LockstepError(f"{label} in {self.alone_in}, which a rank that is started again makes once more, alone: communicate elsewhere")
        if not self.has_state and not self.is_first_start:
            if self.is_start_logged:
                copy_all(targets, self._start_log.result(self._start_made, label))
                self._start_made += 1
        else:
            self.with_group(make)

    def with_group(self, attempt: Callable[[], None]) -> None:
        """Calls `attempt` until it has not raised GroupBroken, in a new group each time. LockstepError in a forked child."""
        if self._is_forked:
            raise LockstepError("this process was forked by a rank, and is none itself: train and communicate in the rank's own process")
        self._link.beat(Activity.TRAINING, Phase.GRAD_SYNC)
        self.state.note_collective()
        self.notes.leave("collective", self.results.complete, self.rank)
        last_error = ""
        while True:
            try:
                if self.is_cut():
                    raise GroupBroken(f"the group was cut ({self._link.cut_cause()})")
                attempt()
                break
            except GroupBroken as error:
                is_hopeless = str(error) == last_error or not self.has_state
                if (is_hopeless or (not self._link.is_cut(self.generation) and self._end_of_another())) and not self._is_cut_soon():
                    self._refuse_to_wait_for_an_end(has_failed=True)
                    raise LockstepError(f"a collective fails although no rank is lost: {error}") from None
                last_error, self._is_broken = str(error), True
                self.rejoin(last_error)
                self._link.beat(Activity.TRAINING, Phase.GRAD_SYNC)
        self._link.beat(Activity.TRAINING)
        if self._is_stateless:
            self.results.commit()  # nobody will ask for results

    def _is_cut_soon(self) -> bool:
        """The agent, which knows of a lost rank at once, ends the group."""
        return self._is_so_soon(lambda: self._link.is_cut(self.generation))

    def _is_so_soon(self, is_so: Callable[[], bool]) -> bool:
        until = time.monotonic() + CUT_SECONDS
        while not is_so() and time.monotonic() < until:
            time.sleep(0.01)
        return is_so()

    # ---- steps ----

    def note_forward(self, is_training: bool) -> None:
        """A wrapped model is called. Each call outside of training is a sign of progress: an evaluation may take any time."""
        if is_training != self._is_training:
            self._is_training = is_training
            self._link.beat(Activity.TRAINING)
        if not is_training:
            self._link.beat(Activity.EVALUATING, Phase.VALIDATION)

    def note_saving(self, is_saving: bool) -> None:
        """The program writes a checkpoint of its own."""
        self._link.beat(*((Activity.CHECKPOINTING, Phase.CHECKPOINT_STALL) if is_saving else (Activity.TRAINING,)))

    def begin_step(self) -> None:
        """A block of `with run.step()`: what an optimizer changes in it can always be undone."""
        self._is_in_step = True
        self.state.save_undo()

    def end_step(self) -> None:
        self._is_in_step = False

    def is_decided(self) -> bool:
        """Every optimizer has stepped since the last commit, or a GradScaler has left its step out."""
        return self.state.is_decided()

    def commit(self, position: int) -> None:
        """The iteration is over: what new ranks get from now on is this."""
        self.notes.leave("commit", position, self.rank)  # first: when others have committed it is there
        self.state.commit()
        self.position = position
        self.results.commit()
        if self._drops_replays:
            self.results.set_replays({})
            self._drops_replays = False
        self._link.commit(position)
        if self._resumed:
            now = self._link.now_ns()
            self._link.say("resumed", generation=self.generation, step=position, committed_ns=now, **self._resumed)
            self._resumed = None
        self._count_abandoned()

    def rejoin_if_cut(self) -> None:
        """At a commit, so that this rank is not the one that the others wait for. Also leaves the group together with them."""
        if self._leaves and not self.is_cut():
            self._leave_together()
        elif self.is_cut():
            self._is_broken = True
            self.rejoin(f"the group was cut ({self._link.cut_cause()})", in_flight=False)
            self._link.beat(Activity.TRAINING)

    def _leave_together(self) -> None:
        """SystemExit when this rank is to end with it."""
        if self._is_so_soon(self.is_to_leave) and (code := self._link.leave_together(self.generation)):
            self.saving.wait()
            self.end_here()
            raise SystemExit(code)
        self._is_broken = True
        self.rejoin("all ranks leave the group together", in_flight=False, cause="Regroup")
        self._link.beat(Activity.TRAINING)

    def _count_abandoned(self) -> None:
        self.abandoned.free()
        if (nbytes := self.abandoned.nbytes()) != self._abandoned_bytes:
            self._abandoned_bytes = nbytes
            self._link.say_gauge("lockstep_abandoned_bytes", "Memory of collectives that have not ended since their group did.", nbytes,
                                 rank=self.rank)

    def note_random(self) -> bytes | None:
        """The random states of this rank at the commit that it goes on from, of this process or the one before."""
        note = self.notes.read(self.position, self.results.at_commit, self.rank)
        return note.random if note and note.random else None

    def leave_notes(self, capture: Callable[[], bytes] | None) -> None:
        """From now on. `capture`: of the random states, where they are not seeded in each iteration."""
        self.state.is_looping = True
        self.notes.begin(capture, self.position, self.results.at_commit, self.rank)

    def leave_epoch_note(self, epoch: int) -> None:
        """At the beginning of an epoch, before its data is shuffled."""
        self.notes.leave("epoch", epoch, self.rank)

    def epoch_note(self, epoch: int) -> bytes | None:
        return self.notes.read_epoch(epoch, self.rank)

    def say_progress(self, step: int, total: int, figures: dict[str, float]) -> None:
        """For the page, /status and the metrics. Figures that have a place there, and any others."""
        self._link.say_progress(step, total, figures)

    def await_end(self) -> None:
        """Returns when all ranks are here: one that is lost before gets its state from the others, and one that is lost later does not wait
        for them here again."""
        self._is_at_end = True
        self._say_end()
        self.collective("the end of the loop", [], lambda group, _: group.barrier())
