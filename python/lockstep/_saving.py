"""When checkpoints are written and read, and how a run ends that was asked to (SIGTERM, Ctrl-C).

Rank 0 writes: the state of its last commit, and the random states that all ranks have left at that commit. It decides where a run
ends, too: at its first commit after the signal, when it has written a checkpoint of it. No rank can be further then, because the next
step needs rank 0. The others go on until they learn that, at that commit or while they wait for rank 0 in the next step.

When the group has ended meanwhile, there may be no rank 0 any more, and none comes: then each rank that holds a commit writes it, if no
other does.
"""
from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ._checkpoint import LOOP, CheckpointFolder, Content, Notes, folder
from ._errors import GroupBroken, LockstepError
from ._link import Activity, AgentLink, Phase
from ._memory import RankMemory

NOTES_MS = 10_000  # rank 0 waits so long for those of a rank that may be gone
STOP_KEY = "lockstep/stop"


class StopSignals:
    """Which signal has asked for an end, as an exit code; 0: none."""

    def __init__(self) -> None:
        self.code = 0
        self._pid = os.getpid()

    def install(self) -> None:
        """Where the program has no handlers of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) == default:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        is_again = self.code == 128 + number == 130  # a second Ctrl-C: somebody does not want to wait
        if is_again or os.getpid() != self._pid:     # or a child that the program has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.code = max(self.code, 128 + number)


class Saving:
    """Of one rank. `session`: Session or Plain, whose position and states() are those of the last commit."""

    def __init__(self, session: Any, memory: RankMemory) -> None:
        self._session = session
        self._memory = memory
        self._folder: CheckpointFolder | None = None
        self._every = 0  # 0: no checkpoints are written
        self._keep = 0
        self._written = 0  # position of the newest one

    def open(self) -> None:
        """Once all objects are there."""
        if (path := folder()) is not None:
            self._folder = CheckpointFolder(path, self._session.states())

    def newest(self) -> tuple[str, Content] | None:
        """On rank 0, at a start of all ranks."""
        found = self._folder.newest(self._session.generation) if self._folder else None
        if found:
            found[1].state[LOOP]["left"] = 0  # at another start the loop may go on, unless all were past its end
            print(f"lockstep: going on from the checkpoint {found[0]}", file=sys.stderr)
        elif self._folder:
            print(f"lockstep: no checkpoint in {self._folder.path}, the run begins at step 0", file=sys.stderr)
        return found

    def begin(self, every: int, keep: int) -> None:
        """LockstepError: no folder, or one that cannot be written to."""
        for name, value in (("every", every), ("keep", keep)):
            if type(value) is not int or value < 1:
                raise LockstepError(f"run.checkpoint got {name}={value!r}, expected a whole number of at least 1")
        if self._folder is None:
            raise LockstepError("run.checkpoint needs a folder for the checkpoints: set the variable LOCKSTEP_CHECKPOINT_DIR to one, the same "
                                "for every start of this program")
        if self._session.rank == 0:
            self._folder.prepare(self._session.generation)
        self._every, self._keep, self._written = every, keep, self._session.position

    def begin_loop(self) -> None:
        """run.checkpoint should have been called."""
        if self._folder and not self._every and self._session.rank == 0:
            print("lockstep: LOCKSTEP_CHECKPOINT_DIR is set, and nothing will be written there, because the program does not call "
                  "run.checkpoint before its loop", file=sys.stderr)

    def after_commit(self) -> None:
        """All ranks, after each commit."""
        if self._every and self._session.position // self._every > self._written // self._every:
            self._write()

    def finish(self) -> None:
        """All ranks, after the last commit. Returns when the last checkpoint is durable."""
        if self._every and self._session.position > self._written:
            self._write()
        self.wait()

    def wait(self) -> None:
        if self._folder is not None:
            self._folder.wait(self._say_waiting)

    def _say_waiting(self) -> None:
        pass

    def _write(self) -> None:
        self._written = self._session.position
        collect = self.collect_notes()
        if self._session.rank == 0:
            self._start_write(collect)

    def _start_write(self, collect: Callable[[], dict[int, Notes]]) -> None:
        session, step = self._session, self._session.position
        assert self._folder is not None  # begin() has asked for it
        self.wait()
        self._folder.start_write(session.states(), collect, lambda path: self._say_written(step, path), for_rank_0=session.rank != 0,
                                 step=step, generation=session.generation, lineage=session.lineage, world_size=session.world,
                                 keep=self._keep)

    def _say_written(self, step: int, path: str) -> None:
        pass

    def collect_notes(self) -> Callable[[], dict[int, Notes]]:
        """All ranks, at a commit. What rank 0 gets may be called in another thread, and waits for the notes of all ranks."""
        raise NotImplementedError

    def _own_notes(self) -> Notes | None:
        """None where the program keeps none."""
        rank = self._session.rank
        commit = self._memory.read("commit", self._session.position, rank)
        return Notes(commit, self._memory.read("epoch", self._session.states()[LOOP]["epoch"], rank) or b"") if commit else None

    def _put_notes(self, notes: Notes | None, step: int, epoch: int) -> None:
        """This rank goes on from what the rank with its number held."""
        if notes is not None:
            self._memory.write("commit", step, self._session.rank, notes.commit)
            if notes.epoch:
                self._memory.write("epoch", epoch, self._session.rank, notes.epoch)


class PlainSaving(Saving):
    """Under torchrun, or alone."""

    def load(self) -> str | None:
        """All ranks: the newest checkpoint into their objects. Its path."""
        found: list[Any] = [self.newest() if self._session.rank == 0 else None]
        if self._session.world > 1:
            dist.broadcast_object_list(found)
        if found[0] is None:
            return None
        path, content = found[0]
        self._session.load_states(content.state, content.step)
        self._put_notes(content.notes.get(self._session.rank), content.step, content.state[LOOP]["epoch"])
        return str(path)

    def collect_notes(self) -> Callable[[], dict[int, Notes]]:
        self._session.leave_commit_note()
        notes: list[Any] = [self._own_notes()]
        if self._session.world > 1:
            own, notes = notes[0], [None] * self._session.world
            dist.all_gather_object(notes, own)
        return lambda: {rank: note for rank, note in enumerate(notes) if note is not None}


class AgentSaving(Saving):
    """Where an agent recovers."""

    def __init__(self, session: Any, link: AgentLink) -> None:
        super().__init__(session, link.memory)
        self._link = link
        self._stop = StopSignals()
        self._is_ending = False
        self._operations_said = 0

    def begin(self, every: int, keep: int) -> None:
        super().begin(every, keep)
        self._stop.install()

    def load(self) -> str | None:
        """All ranks of a start of all: rank 0 reads the newest checkpoint into its objects, and the others learn of it; each keeps what
        the rank with its number held there. Its path."""
        session, generation = self._session, self._session.generation
        if session.rank == 0:
            self._link.beat(Activity.RESTORING)  # for as long as it takes
            path, content = self.newest() or ("", Content(0, {}, {}))
            if path:
                session.load_states(content.state, content.step)
            resumed: dict[str, Any] = {"path": path, "step": content.step, "epoch": content.state[LOOP]["epoch"] if path else 0}
            notes = {rank: note.to_bytes() for rank, note in content.notes.items()}
            for rank in range(1, session.world):
                self._link.ask_store(generation, "set", [f"lockstep/notes/{rank}"], [notes.get(rank, b"")])
            self._link.ask_store(generation, "set", ["lockstep/checkpoint"], [json.dumps(resumed).encode()])
            data = notes.get(0, b"")
        else:
            values = self._link.ask_store(generation, "get", ["lockstep/checkpoint", f"lockstep/notes/{session.rank}"])["values"]
            resumed, data = json.loads(values[0]), values[1]
        self._put_notes(Notes.from_bytes(data) if data else None, resumed["step"], resumed["epoch"])
        return str(resumed["path"]) or None

    def after_commit(self) -> None:
        if self._stop.code and self._session.rank == 0:
            self._say_stop()
            self.finish()
            self._end()
        super().after_commit()
        self.poll_in_group()

    def poll_in_group(self) -> None:
        """Often, while this rank waits for a collective, and at each commit: ends it when rank 0 has said that the run ends here."""
        session = self._session
        if not self._stop.code or session.rank == 0 or not session.has_state or self._is_ending:
            return
        try:
            if not self._link.ask_store(session.generation, "check", [STOP_KEY])["number"]:
                return
            if int(self._link.ask_store(session.generation, "get", [STOP_KEY])["values"][0]) != session.position:
                return
        except GroupBroken:
            return
        self.finish()
        self._end()

    def poll_without_group(self) -> None:
        """Often, while this rank waits for a place in a group, which there may be none any more: when asked to end, it does."""
        session = self._session
        if not self._stop.code or not session.has_state or self._is_ending:
            return
        self._is_ending = True
        is_written = session.rank == 0 and session.position == self._written
        if self._every and session.position > 0 and session.is_whole() and not is_written:
            own = self._own_notes()  # the other ranks' have no way here
            self._start_write(lambda: {session.rank: own} if own else {})
        self.wait()
        self._end()

    def poll_while_forming(self) -> None:
        """Often, while this rank forms a group: GroupBroken when it is asked to end, because the others may do so before."""
        if self._stop.code and self._session.has_state:
            raise GroupBroken("the run is asked to end")

    def _say_stop(self) -> None:
        try:
            self._link.ask_store(self._session.generation, "set", [STOP_KEY], [str(self._session.position).encode()])
        except GroupBroken:
            pass  # the others see that their group has ended, and end, too

    def _end(self) -> None:
        self._is_ending = True
        self._session.end_here()
        raise SystemExit(self._stop.code)

    def wait(self) -> None:
        self._link.beat(Activity.CHECKPOINTING, Phase.CHECKPOINT_STALL)
        super().wait()
        self._link.beat(Activity.TRAINING)

    def _say_waiting(self) -> None:
        """Progress is when the volume answers."""
        assert self._folder is not None
        if (ended := self._folder.file_operations()) != self._operations_said:
            self._operations_said = ended
            self._link.beat(Activity.CHECKPOINTING, Phase.CHECKPOINT_STALL)

    def _say_written(self, step: int, path: str) -> None:
        if (rank := self._session.rank) != 0:
            print(f"lockstep: rank {rank} has written the checkpoint {path}, because there is no rank 0", file=sys.stderr)
        self._link.say("checkpoint", step=step, path=path)

    def collect_notes(self) -> Callable[[], dict[int, Notes]]:
        session = self._session
        own, position, generation = self._own_notes(), session.position, session.generation
        if own is None:
            return dict
        keys = [f"lockstep/notes/{position}/{rank}" for rank in range(1, session.world)]
        if session.rank != 0:
            try:
                self._link.ask_store(generation, "set", [keys[session.rank - 1]], [own.to_bytes()])
            except GroupBroken:
                pass
            return dict

        def collect() -> dict[int, Notes]:
            """Without those of ranks that are lost meanwhile."""
            notes = {0: own}
            try:
                for rank, key in enumerate(keys, 1):
                    notes[rank] = Notes.from_bytes(self._link.ask_store(generation, "get", [key], timeout_ms=NOTES_MS)["values"][0])
                    self._link.ask_store(generation, "delete", [key])
            except (GroupBroken, TimeoutError):
                pass
            return notes
        return collect
