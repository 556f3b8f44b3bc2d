"""What a rank leaves to its successor, in memory that its agent keeps when the process dies: notes, two of each kind. (Two, because the
others may go on from the newest commit or from the one before.)"""
from __future__ import annotations

import mmap
import struct
import zlib

KINDS = ("commit", "collective", "epoch")
_HEADER = struct.Struct("<qqqII")  # always 1, number, rank, bytes, checksum


class RankMemory:
    """`memory`: zero at first. A note that was being written when the process died is none."""

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._slot_bytes = len(memory) // (2 * len(KINDS)) // 8 * 8
        self.note_bytes_max = self._slot_bytes - _HEADER.size

    def _slot(self, kind: str, number: int) -> int:
        """Where the note with this number lies, in bytes. The one before it has the other slot of its kind."""
        return (2 * KINDS.index(kind) + number % 2) * self._slot_bytes

    def write(self, kind: str, number: int, rank: int, note: bytes) -> bool:
        """In the place of the last but one. `number`: of the commit or collective. False when it is too large."""
        if len(note) > self.note_bytes_max:
            return False
        at = self._slot(kind, number)
        _HEADER.pack_into(self._memory, at, 1, number, rank, 0, 1)  # none, until it is whole
        self._memory[at + _HEADER.size:at + _HEADER.size + len(note)] = note
        _HEADER.pack_into(self._memory, at, 1, number, rank, len(note), zlib.crc32(note))
        return True

    def read(self, kind: str, number: int, rank: int) -> bytes | None:
        """The note of this rank with this number; None when there is none, or it is damaged."""
        at = self._slot(kind, number)
        is_there, its_number, its_rank, size, checksum = _HEADER.unpack_from(self._memory, at)
        if is_there != 1 or (its_number, its_rank) != (number, rank) or size > self.note_bytes_max:
            return None
        note = bytes(self._memory[at + _HEADER.size:at + _HEADER.size + size])
        return note if zlib.crc32(note) == checksum else None
