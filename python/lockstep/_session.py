"""The life of a rank that outlives its groups: it has a place in a group, loses it, gets another one, and its state with it or for it.

One object per process, used by the thread that trains. What is decided, and why all ranks decide the same, is in _claims.py; this file
carries it out.
"""
from __future__ import annotations

import atexit
import dataclasses
import datetime
import hashlib
import json
import math
import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import _buckets
from ._claims import Claim, Plan, plan_of
from ._errors import GroupBroken, LockstepError
from ._gloo import Abandoned, broadcast, make_group, wait_for
from ._link import Activity, AgentLink, Phase
from ._store import LinkStore
from ._tensors import (PieceReader, description_of, empty_as, from_bytes, pieces_of, put_together, take_apart, to_bytes)
from ._tracked import Tracked, TrackedOptimizer, Undo, track


@dataclasses.dataclass
class Result:
    """What a collective has come to. `label`: what it was, the same in all ranks."""
    label: str
    tensors: list[torch.Tensor]


class StartLog:
    """Results of the program's own collectives before lockstep.restore."""
    BYTES_MAX = 1 << 20

    def __init__(self) -> None:
        self._results: list[tuple[str, list[torch.Tensor]]] = []
        self._nbytes = 0

    def add(self, label: str, tensors: list[torch.Tensor]) -> None:
        self._nbytes += sum(tensor.nbytes for tensor in tensors)
        self._results.append((label, tensors if self._nbytes <= self.BYTES_MAX else []))

    def result(self, number: int, label: str) -> list[torch.Tensor]:
        """LockstepError when there is no such collective, or its result was too large to be kept."""
        said = self._results[number][0] if number < len(self._results) else "none"
        if said != label:
            raise LockstepError(f"collective {number} of the program's start is {label} in this rank, which was started again, and was {said} "
                                "in the others: make the same ones in all ranks before lockstep.restore")
        tensors = self._results[number][1]
        if not tensors and not label.endswith("()"):
            raise LockstepError(f"{label} before lockstep.restore: a rank that is started again gets the results of such collectives from the "
                                f"others, who keep {self.BYTES_MAX} bytes of them: make it after lockstep.restore")
        return tensors

    def to_bytes(self) -> bytes:
        return to_bytes(self._results, "the program's start")

    @classmethod
    def from_bytes(cls, data: bytes) -> StartLog:
        log = cls()
        log._results = from_bytes(data)
        return log


def _finite(value: float) -> float | str:
    """As messages have it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


class Session:
    """`version`: the package's. `timeout`: of each collective."""

    def __init__(self, link: AgentLink, version: str, timeout: datetime.timedelta) -> None:
        self._link = link
        self._timeout = timeout
        self._tracked: dict[str, Tracked] = {}
        self._optimizers: list[TrackedOptimizer] = []
        self._undo = Undo()
        self._layouts: list[list[str]] = []  # of each wrapped model: _buckets.describe
        self._groups: list[dist.ProcessGroupGloo] = []  # for the gradients of each wrapped model
        self._is_broken = False  # the group has ended, and this rank has not left it yet
        self.abandoned = Abandoned()
        self.has_state = False
        self.position = 0
        self._at_commit = 0
        self._complete = 0
        self._kept: dict[int, Result] = {}
        self._replays: dict[int, Result] = {}
        self._resumed: dict[str, Any] | None = None  # to be said at the next commit
        self._default_group: Any = None  # for the program's own collectives
        self._start_log = StartLog()
        self._start_made = 0
        self._make_note: Callable[[], bytes] | None = None
        atexit.register(self._close)
        link.say_hello(version)
        try:
            self._enter()
            if self._plan.source is None:
                self._link.watch(self.generation)
                self._default_group = make_group("start", self.store, self.rank, self.world, timeout)
                self._link.formed()
            else:
                self._link.say("outlives")
        except GroupBroken as error:
            self.ask_for_replacement(f"the group ended before it had begun: {error}")
        self.is_first_start = self._plan.source is None
        self._link.beat(Activity.LOADING, Phase.STARTUP)

    def _close(self) -> None:
        """Before Python's own end, which destroys groups in any order with torch's threads, and may then abort the process."""
        self._link.retire()
        self._groups, self._default_group = [], None
        self.abandoned.free()
        self.abandoned.leak()

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

    def is_cut(self) -> bool:
        return self._is_broken or self._link.is_cut(self.generation)

    def note_broken(self) -> None:
        """A collective could not even begin."""
        self._is_broken = True

    def _enter(self) -> None:
        """Waits for a place in a group, and learns what its ranks hold."""
        self._link.beat(Activity.AWAITING, Phase.WAITING)
        self._assignment = self._link.await_assignment()
        self._is_broken = False
        self._link.beat(Activity.FORMING, Phase.WAITING)
        self.store = LinkStore(self._link, self.generation, self._timeout)
        claim = Claim(self.has_state, self.position, self._at_commit, self._complete, min(self._kept, default=self._complete),
                      all(one.is_whole() for one in self._optimizers))
        claims = [Claim(**said) for said in self._exchange("claim", dataclasses.asdict(claim))]
        self._plan = plan_of(claims)
        if self._plan.source is not None and self._plan.receivers and not self._plan.is_lost:
            self._pass_on_the_start()

    def _pass_on_the_start(self) -> None:
        """What the program's own collectives before lockstep.restore came to, for ranks that make them now."""
        if self.rank == self._plan.source:
            self._link.ask_store(self.generation, "set", ["lockstep/start"], [self._start_log.to_bytes()])
        elif not self.has_state and self._start_made == 0:
            self._start_log = StartLog.from_bytes(self._link.ask_store(self.generation, "get", ["lockstep/start"])["values"][0])

    def _exchange(self, topic: str, own: Any) -> list[Any]:
        """What each rank has said of this topic, by rank. Blocks until all have."""
        self._link.ask_store(self.generation, "set", [f"lockstep/{topic}/{self.rank}"], [json.dumps(own).encode()])
        reply = self._link.ask_store(self.generation, "get", [f"lockstep/{topic}/{rank}" for rank in range(self.world)])
        return [json.loads(value) for value in reply["values"]]

    def _join(self) -> None:
        """Forms the groups and makes the states equal. All ranks of the generation call it; a rank that is being started does when its
        objects exist, and the others wait for it here."""
        plan = self._plan
        if plan.source is None and not self.is_first_start:
            self.ask_for_replacement("all ranks that held the state are gone")
        if plan.is_lost:
            self.ask_for_replacement("a rank was lost after an optimizer step, where no collective had been before, so nobody can hand the "
                                     "state before that step over")
        if self.rank in plan.behind:
            self.ask_for_replacement("the others are a step ahead, and nobody has kept what it lacks")
        if plan.behind:
            raise GroupBroken(f"rank {plan.behind[0]} is a step behind and is started again")
        self._compare_layouts(plan.source or 0)
        formed_ns = self._link.now_ns()
        self._link.watch(self.generation)
        try:
            self._groups = [make_group(f"gradients/{i}", self.store, self.rank, self.world, self._timeout)
                            for i in range(len(self._layouts))]
            self._default_group = make_group("default", self.store, self.rank, self.world, self._timeout)
            self._link.beat(Activity.RESTORING, Phase.WAITING)
            self._hand_over(plan)
            self._send_results(plan)
        except (RuntimeError, dist.DistError) as error:
            if isinstance(error, LockstepError):
                raise
            raise GroupBroken(str(error)) from None
        self._link.formed()
        self._resumed = {"formed_ns": formed_ns, "synced_ns": self._link.now_ns(), "resumed_step": self.position,
                         "origin": "as the program began" if plan.source is None else f"from rank {plan.source}"}

    def _compare_layouts(self, of_rank: int) -> None:
        said = self._exchange("layout", hashlib.sha256(json.dumps(self._layouts).encode()).hexdigest())
        if len(set(said)) == 1:
            return
        if self.rank == of_rank:
            self._link.ask_store(self.generation, "set", ["lockstep/layout"], [json.dumps(self._layouts).encode()])
        if said[self.rank] != said[of_rank]:
            theirs = json.loads(self._link.ask_store(self.generation, "get", ["lockstep/layout"])["values"][0])
            if len(theirs) != len(self._layouts):
                raise LockstepError(f"this rank has wrapped {len(self._layouts)} models in lockstep.DistributedDataParallel before "
                                    f"lockstep.restore, and rank {of_rank} {len(theirs)}: wrap the same models in all ranks")
            words = next(filter(None, (_buckets.difference(*pair, of_rank) for pair in zip(self._layouts, theirs))))
            raise LockstepError(f"{words}: build the same model in all ranks")
        raise GroupBroken("the ranks have different models")

    def rejoin(self, why: str) -> None:
        """Leaves the group, which is broken, and goes on in the next one. Returns when this rank and all others have one state."""
        if not self.has_state and self.is_first_start:
            self.ask_for_replacement(f"the group ended before lockstep.restore: {why}")
        while True:
            self._leave(why)
            try:
                self._enter()
                self._join()
                return
            except GroupBroken as error:
                why = str(error)

    def _leave(self, why: str) -> None:
        was_cut = self._link.is_cut(self.generation)
        self._link.shut()  # so that the peers notice, and what is still running here ends
        self._link.retire()
        self._groups, self._default_group = [], None
        self.abandoned.free()
        self._link.say("left", generation=self.generation, cause="Cut" if was_cut else "PeerLost", message=why, step=self.position)

    def ask_for_replacement(self, why: str) -> None:
        """Ends this process: the agent starts the rank again, and counts no failure."""
        self._link.say("replace", generation=self.generation, message=why)
        while True:
            signal.pause()  # until SIGKILL

    # ---- start-up ----

    def add_layout(self, layout: list[str]) -> int:
        """The number of a model that is being wrapped."""
        self._layouts.append(layout)
        return len(self._layouts) - 1

    def broadcast_at_start(self, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """At the first start of all ranks: gives them rank 0's tensors, after their layouts have been compared."""
        if not self.is_first_start or self.world == 1:
            return
        try:
            said = self._exchange(f"start/{number}", self._layouts[number])
            if None in said:
                raise LockstepError(f"this rank has wrapped more than {number} models in lockstep.DistributedDataParallel before "
                                    f"lockstep.restore, and rank {said.index(None)} has wrapped {number}: wrap the same models in all ranks")
            if words := _buckets.difference(self._layouts[number], said[0], 0):
                raise LockstepError(f"{words}: build the same model in all ranks")
            self._broadcast(self._default_group, tensors, 0, is_source=self.rank == 0)
        except GroupBroken as error:
            self.ask_for_replacement(f"a rank was lost while rank 0's parameters were sent: {error}")

    def begin(self, objects: dict[str, Any]) -> None:
        """From now on this rank has a state: its own at the first start of all ranks, else that of a rank that has one."""
        self._tracked = {name: track(name, object_, self._undo) for name, object_ in objects.items()}
        self._optimizers = [one for one in self._tracked.values() if isinstance(one, TrackedOptimizer)]
        for object_ in objects.values():
            if isinstance(object_, torch.amp.GradScaler):
                self._watch_scaler(object_)
        if self.is_first_start:  # for a rank that wraps more models than this one
            self._link.ask_store(self.generation, "set", [f"lockstep/start/{len(self._layouts)}/{self.rank}"], [b"null"])
        for name, one in self._tracked.items():
            one.commit()
            to_bytes(take_apart(one.state(), []), name)
        try:
            self._join()
        except GroupBroken as error:
            self.rejoin(str(error))
        if self.is_first_start:
            self._link.say("outlives")
        self.has_state = True
        self._link.beat(Activity.TRAINING)
        self._link.commit(self.position)

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

    # ---- state ----

    def _hand_over(self, plan: Plan) -> None:
        """From the source to those that have no state."""
        if plan.source is None or self.rank not in (plan.source, *plan.receivers) or not plan.receivers:
            return
        members = sorted((plan.source, *plan.receivers))
        group = make_group("state", self.store, members.index(self.rank), len(members), self._timeout)
        root = members.index(plan.source)
        if self.rank == plan.source:
            tensors: list[torch.Tensor] = []
            rest = take_apart({name: one.state() for name, one in self._tracked.items()}, tensors)
            self._send_header(group, root, (rest, description_of(tensors), self.position, self._at_commit))
            self._broadcast(group, tensors, root, is_source=True)
            return
        rest, description, self.position, self._at_commit = self._receive_header(group, root)
        tensors = empty_as(description)
        self._broadcast(group, tensors, root, is_source=False)
        state = put_together(rest, tensors)
        if state.keys() != self._tracked.keys():
            raise LockstepError(f"lockstep.restore got {', '.join(self._tracked)} in this rank and {', '.join(state)} in rank {plan.source}: "
                                "give it the same objects by the same names in all ranks")
        for name, one in self._tracked.items():
            one.load(state[name])
            one.commit()
        self._complete = self._at_commit
        self.has_state = True

    def _send_results(self, plan: Plan) -> None:
        """From the keeper to those that lack results."""
        lacking = plan.results_from or {}
        self._replays = {}
        if not lacking or self.rank not in (plan.keeper, *lacking):
            return
        members = sorted({plan.keeper, *lacking})
        group = make_group("results", self.store, members.index(self.rank), len(members), self._timeout)
        root = members.index(plan.keeper)
        numbers = range(min(lacking.values()), plan.complete)
        if self.rank == plan.keeper:
            results = [self._kept[number] for number in numbers]
            self._send_header(group, root, [(result.label, description_of(result.tensors)) for result in results])
        else:
            results = [Result(label, empty_as(description)) for label, description in self._receive_header(group, root)]
        self._broadcast(group, [tensor for result in results for tensor in result.tensors], root, is_source=self.rank == plan.keeper)
        if self.rank != plan.keeper:
            self._replays = {number: result for number, result in zip(numbers, results) if number >= lacking[self.rank]}

    def _send_header(self, group: Any, root: int, value: Any) -> None:
        data = torch.frombuffer(bytearray(to_bytes(value, "this rank")), dtype=torch.uint8)
        self.wait(broadcast(group, torch.tensor([data.numel()]), root))
        self.wait(broadcast(group, data, root))

    def _receive_header(self, group: Any, root: int) -> Any:
        size = torch.empty(1, dtype=torch.int64)
        self.wait(broadcast(group, size, root))
        data = torch.empty(int(size), dtype=torch.uint8)
        self.wait(broadcast(group, data, root))
        return from_bytes(data.numpy().tobytes())

    def _broadcast(self, group: Any, tensors: Sequence[torch.Tensor], root: int, is_source: bool) -> None:
        """The bytes of the tensors, in pieces."""
        if is_source:
            for piece in pieces_of(tensors):
                self.wait(broadcast(group, piece, root))
            return
        reader = PieceReader(tensors)
        while size := reader.next_size():
            piece = torch.empty(size, dtype=torch.uint8)
            self.wait(broadcast(group, piece, root))
            reader.take(piece)

    # ---- collectives ----

    def wait(self, work: Any) -> None:
        """GroupBroken when the group ends first."""
        wait_for(work, self.is_cut)

    def gradient_group(self, number: int) -> dist.ProcessGroupGloo:
        return self._groups[number]

    def has_replay(self) -> bool:
        """The next collective of this rank is complete in others: its result is here, and it is not made again."""
        return self._complete in self._replays

    def replay(self, label: str) -> list[torch.Tensor]:
        result = self._replays.pop(self._complete)
        if result.label != label:
            raise LockstepError(f"collective {self._complete} of the run is \"{label}\" in this rank, and was \"{result.label}\" in others: the "
                                "program must make the same collectives in the same order in all ranks")
        self._done(result)
        return result.tensors

    def done(self, label: str, tensors: list[torch.Tensor]) -> None:
        """A collective is complete. Its result is kept for ranks that lack it."""
        self._done(Result(label, tensors))

    def _done(self, result: Result) -> None:
        self._kept[self._complete] = result
        self._complete += 1

    def memory_of_old_result(self, label: str) -> list[torch.Tensor] | None:
        """The tensors of the oldest such result that a new rank would not need; it is not kept any more, nor is any before it."""
        for number, result in self._kept.items():
            if number < self._at_commit and result.label == label:
                self._kept = {later: kept for later, kept in self._kept.items() if later > number}
                return result.tensors
        return None

    def collective(self, label: str, targets: Sequence[torch.Tensor], attempt: Callable[[Any, list[torch.Tensor]], Any]) -> None:
        """One of the program's own. `attempt` begins it in a group, on copies of `targets` that hold its result when it is complete: a try
        that fails may write to its memory later. The result is copied to `targets`."""
        def make() -> None:
            if self.has_replay():
                result = self.replay(label)
            else:
                result = [target.detach().clone() for target in targets]
                try:
                    work = attempt(self._default_group, result)
                except RuntimeError as error:
                    raise GroupBroken(str(error)) from None
                try:
                    self.wait(work)
                except GroupBroken:
                    self.abandoned.add(work, result, self._default_group)
                    raise
                if self.has_state:
                    self.done(label, result)
                else:
                    self._start_log.add(label, result)
            copy_all(targets, result)

        if not self.has_state and not self.is_first_start:
            copy_all(targets, self._start_log.result(self._start_made, label))
            self._start_made += 1
        else:
            self.with_group(make)

    def with_group(self, attempt: Callable[[], None]) -> None:
        """Calls `attempt` until it has not raised GroupBroken, in a new group each time."""
        self._link.beat(Activity.TRAINING, Phase.GRAD_SYNC)
        for one in self._optimizers:
            one.note_collective()
        self._leave_note("collective", self._complete)
        while True:
            try:
                if self.is_cut():
                    raise GroupBroken(f"the group was cut ({self._link.cut_cause()})")
                attempt()
                break
            except GroupBroken as error:
                self._is_broken = True
                self.rejoin(str(error))
                self._link.beat(Activity.TRAINING, Phase.GRAD_SYNC)
        self._link.beat(Activity.TRAINING)

    # ---- commits ----

    def is_decided(self) -> bool:
        """Every optimizer has stepped since the last commit, or a GradScaler has left its step out."""
        return bool(self._optimizers) and all(one.has_decided for one in self._optimizers)

    def commit(self, position: int) -> None:
        """The iteration is over: what new ranks get from now on is this."""
        self._leave_note("commit", position)  # first: when others have committed it is there
        self._undo.clear()
        for one in self._tracked.values():
            one.commit()
        self.position = position
        self._at_commit = self._complete
        self._link.commit(position)
        if self._resumed:
            now = self._link.now_ns()
            self._link.say("resumed", generation=self.generation, step=position, committed_ns=now, **self._resumed)
            self._resumed = None
        if self.is_cut():
            self._is_broken = True
            self.rejoin(f"the group was cut ({self._link.cut_cause()})")
            self._link.beat(Activity.TRAINING)

    def leave_notes(self, make: Callable[[], bytes]) -> None:
        """From now on this rank leaves a note to a successor at each commit; and before each collective, because the others may commit
        after this rank's last part in one, when it is lost before it commits itself."""
        self._make_note = make
        # What the process before this one has left stands, for the next one, until this one has committed.
        self._link.memory.write("commit", self.position, self.rank, self.note() or make())

    def _leave_note(self, kind: str, number: int) -> None:
        if self._make_note:
            self._link.memory.write(kind, number, self.rank, self._make_note())

    def note(self) -> bytes | None:
        """What the process before this one has left at the commit that this rank goes on from, or before the last collective until then."""
        memory = self._link.memory
        return memory.read("commit", self.position, self.rank) or memory.read("collective", self._at_commit - 1, self.rank)

    def leave_epoch_note(self, epoch: int) -> None:
        """At the beginning of an epoch, before its data is shuffled."""
        self._leave_note("epoch", epoch)

    def epoch_note(self, epoch: int) -> bytes | None:
        return self._link.memory.read("epoch", epoch, self.rank)

    def say_progress(self, step: int, total: int, figures: dict[str, float]) -> None:
        """For the page, /status and the metrics. Figures that have a place there, and any others."""
        places = {name: figures.pop(name, float("nan")) for name in ("loss", "lr", "grad_norm", "samples_per_second")}
        epoch = int(figures.pop("epoch", 0))
        self._link.say("progress", step=step, total_steps=total, epoch=epoch, num_epochs=0, eta_seconds=-1.0, data_wait_ratio="NaN",
                       device_memory_bytes=-1, steps_per_second=-1.0, **{name: _finite(value) for name, value in places.items()})
        if figures:
            self._link.say("evaluation", epoch=epoch, metrics={name: _finite(value) for name, value in figures.items()})

    def await_end(self) -> None:
        """Returns when all ranks are here: one that is lost before gets its state from the others."""
        self.with_group(lambda: [] if self._exchange(f"end/{self.position}", True) else None)
