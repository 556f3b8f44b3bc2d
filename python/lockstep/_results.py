"""What the collectives of a run have come to, as long as a rank may lack it. Pure."""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from ._errors import LockstepError
from ._tensors import from_bytes, to_bytes


@dataclasses.dataclass
class Result:
    """`label`: what the collective was, the same in all ranks."""
    label: str
    tensors: list[torch.Tensor]


class Results:
    """Of one rank, since lockstep.restore. Collectives are counted from 0."""

    def __init__(self) -> None:
        self.complete = 0   # collectives that are
        self.at_commit = 0  # that were at the last commit
        self._kept: dict[int, Result] = {}
        self._replays: dict[int, Result] = {}

    def kept_from(self) -> int:
        """The results of this one and all later ones are here."""
        return min(self._kept, default=self.complete)

    def kept(self, numbers: Iterable[int]) -> list[Result]:
        return [self._kept[number] for number in numbers]

    def commit(self) -> None:
        self.at_commit = self.complete

    def go_on_from(self, at_commit: int) -> None:
        """With the state of another rank's commit."""
        self.complete = self.at_commit = at_commit
        self._kept = {}

    def set_replays(self, replays: dict[int, Result]) -> None:
        """Results, by number, of collectives that are complete in other ranks. They replace earlier ones."""
        self._replays = replays

    def has_replay(self) -> bool:
        """The next collective of this rank is complete in others: it is not made again."""
        return self.complete in self._replays

    def replay(self, label: str) -> list[torch.Tensor]:
        """The result of the next collective, which is now complete here, too."""
        result = self._replays.pop(self.complete)
        if result.label != label:
            raise LockstepError(f"collective {self.complete} of the run is \"{label}\" in this rank, and was \"{result.label}\" in others: the "
                                "program must make the same collectives in the same order in all ranks")
        self.add(label, result.tensors)
        return result.tensors

    def add(self, label: str, tensors: list[torch.Tensor]) -> None:
        """A collective is complete. Its result is kept for ranks that lack it."""
        self._kept[self.complete] = Result(label, tensors)
        self.complete += 1

    def memory_of_old(self, label: str) -> list[torch.Tensor] | None:
        """The tensors of the oldest such result that a new rank would not need; it is not kept any more, nor is any before it."""
        for number, result in self._kept.items():
            if number < self.at_commit and result.label == label:
                self._kept = {later: kept for later, kept in self._kept.items() if later > number}
                return result.tensors
        return None


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
        recorded = self._results[number][0] if number < len(self._results) else "none"
        if recorded != label:
            raise LockstepError(f"collective {number} of the program's start is {label} in this rank, which was started again, and was {recorded} "
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
