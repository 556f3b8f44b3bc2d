"""The C library (runner/link/c_api.h, runner/formats/c_api.h) by ctypes: thin, and nothing else in this package calls it.

ctypes releases Python's lock during each call. Every wait is cut into slices, so that Python's signal handlers run meanwhile.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any

ABI = 1
_PATH = pathlib.Path(__file__).with_name("liblockstep.so")
# name: result, arguments. A text that the caller must free is void*, so that ctypes does not lose its address.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "abi": (ctypes.c_int, []),
    "open": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_int, ctypes.c_int]),
    "send": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
    "assignment": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
    "ask": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_char_p]),
    "reply": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]),
    "watch": (None, [ctypes.c_void_p, ctypes.c_uint64]),
    "formed": (None, [ctypes.c_void_p]),
    "retire": (None, [ctypes.c_void_p]),
    "shut": (None, [ctypes.c_void_p]),
    "cut_generation": (ctypes.c_uint64, [ctypes.c_void_p]),
    "leave_together": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
    "cut_cause": (ctypes.c_void_p, [ctypes.c_void_p]),
    "beat": (None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
    "commit": (None, [ctypes.c_void_p, ctypes.c_int64]),
    "find_checkpoint": (ctypes.c_void_p, [ctypes.c_char_p]),
    "prepare_checkpoints": (ctypes.c_void_p, [ctypes.c_char_p]),
    "write_checkpoint": (ctypes.c_void_p, [ctypes.c_char_p]),
    "file_operations": (ctypes.c_uint64, []),
    "now_ns": (ctypes.c_int64, []),
    "error": (ctypes.c_char_p, []),
    "free": (None, [ctypes.c_void_p]),
}


def _load(path: pathlib.Path) -> ctypes.CDLL:
    """ImportError names the file and why."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        # `lockstep launch` puts the package into a temporary folder, whose volume may allow no code (noexec); memory does.
        memory = os.memfd_create("liblockstep")
        try:
            os.write(memory, path.read_bytes())
            return ctypes.CDLL(f"/proc/self/fd/{memory}")
        except OSError:
            raise ImportError(f"the library of the package lockstep cannot be loaded: {error}") from None
        finally:
            os.close(memory)


class Library:
    """The functions of c_api.h without their prefix: `library.commit(link, 7)`."""

    def __init__(self, path: pathlib.Path = _PATH) -> None:
        self._loaded = _load(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._loaded, f"lockstep_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if self.abi() != ABI:
            raise ImportError(f"{path} has ABI {self.abi()}, and this package needs {ABI}: install the package again")

    def __getattr__(self, name: str) -> Any:  # for type checkers: __init__ has set them all
        raise AttributeError(name)

    def text(self, address: int | None) -> str | None:
        """The text at the address of a function's result, which is freed; None for NULL."""
        if not address:
            return None
        try:
            return ctypes.string_at(address).decode()
        finally:
            self.free(address)

    def last_error(self) -> str:
        """Why this thread's last call that failed did."""
        message: bytes = self.error()
        return message.decode()
