"""Checkpoints in the format of Lockstep's own runs (docs/checkpoints.md), which `lockstep ckpt` lists, verifies and exports.

model.safetensors has the parameters and buffers of the models by their own names (with several models: "OBJECT.NAME"),
optimizer.safetensors the tensors of everything else by their place in its state_dict(), and the random states of all ranks. What is
no tensor stands in state.json under `progress.python`, where JSON can hold it, else in a tensor of bytes that torch.load reads with
weights_only.

The library (runner/formats/c_api.h) writes, chooses and verifies; this file turns state into tensors and back.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ._errors import LockstepError
from ._library import Library
from ._tensors import from_bytes, marked, to_bytes, unmarked

LOOP = "the loop of lockstep"  # among the objects: where the program's loop is
MODEL, REST = "model.safetensors", "optimizer.safetensors"
_MARK = "lockstep: tensor"
_PICKLE = f"{REST}/python.pkl"
_DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
           torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}


def folder() -> str | None:
    """Where this run's checkpoints lie; None: it is not said. Jobs that share a volume have folders of their own."""
    at, job = os.environ.get("LOCKSTEP_CHECKPOINT_DIR"), os.environ.get("LOCKSTEP_JOB")
    return os.path.join(at, job) if at and job else at or None


# ---- state as named tensors and a rest ----

class _NoJson(Exception):
    """The rest holds something that JSON cannot."""


def _as_json(value: Any) -> Any:
    if value is None or type(value) in (bool, str):
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _NoJson from None
        return value
    if type(value) is int and -2**63 <= value < 2**63:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) is list:
        return [_as_json(item) for item in value]
    if type(value) is tuple:
        return {"tuple": [_as_json(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[_as_json(key), _as_json(item)] for key, item in value.items()]}
    raise _NoJson


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict):
        (kind, inner), = value.items()
        if kind == "float":
            return float(inner)
        if kind == "tuple":
            return tuple(_from_json(item) for item in inner)
        return {_from_json(key): _from_json(item) for key, item in inner}
    return value


def _extract_tensors(value: Any, file: str, path: str, found: dict[str, torch.Tensor]) -> Any:
    """`value` with each tensor moved to `found`, under FILE/PATH, and a mark in its place."""
    if isinstance(value, torch.Tensor):
        name = f"{file}/{path}"
        while name in found:  # {"a": {"b": …}, "a.b": …}
            name += "'"
        found[name] = value.detach()
        return (_MARK, name)
    if isinstance(value, dict):
        return marked(value, {key: _extract_tensors(item, file, f"{path}.{key}", found) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_extract_tensors(item, file, f"{path}.{i}", found) for i, item in enumerate(value))
    return value


def _insert_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if type(value) is tuple and len(value) == 2 and value[0] == _MARK:
        return tensors[value[1]]
    if isinstance(value, dict):
        return {key: _insert_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return unmarked(type(value)(_insert_tensors(item, tensors) for item in value))
    return value


def _is_model(state: Any) -> bool:
    return isinstance(state, dict) and state.keys() == {"parameters", "buffers", "extra", "with_gradient"}


class Notes(NamedTuple):
    """What a rank alone holds (random states, its own buffers), as _memory.py keeps it: of the commit, and of the beginning of its
    epoch. Empty where there is none."""
    commit: bytes
    epoch: bytes = b""

    def to_bytes(self) -> bytes:
        return len(self.commit).to_bytes(8, "little") + self.commit + self.epoch

    @classmethod
    def from_bytes(cls, data: bytes) -> Notes:
        size = int.from_bytes(data[:8], "little")
        return cls(data[8:8 + size], data[8 + size:])


class Content(NamedTuple):
    """What a checkpoint holds. `state`: of each object by its name, as Tracked.state() has it. `notes`: by rank."""
    step: int
    state: dict[str, Any]
    notes: dict[int, Notes]


def _tensor_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _named_tensors(state: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """The rest, and all tensors by FILE/NAME."""
    found: dict[str, torch.Tensor] = {}
    models = [name for name, one in state.items() if _is_model(one)]
    rest: dict[str, Any] = {}
    for name, one in state.items():
        if name in models:
            prefix = f"{name}." if len(models) > 1 else ""
            rest[name] = {kind: {key: _extract_tensors(tensor, MODEL, prefix + key, found) for key, tensor in tensors.items()}
                          for kind, tensors in one.items() if kind != "with_gradient"} | {"with_gradient": one["with_gradient"]}
        else:
            rest[name] = _extract_tensors(one, REST, name, found)
    return rest, found


def _config_of(state: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for a checkpoint to be this program's: the objects' names, and the models' parameters."""
    tensors = [(name, key, str(tensor.dtype), list(tensor.shape)) for name, one in state.items() if _is_model(one)
               for key, tensor in one["parameters"].items()]
    return {"objects": list(state), "models": hashlib.sha256(json.dumps(tensors).encode()).hexdigest()}


def _read_header(data: bytes | bytearray) -> tuple[dict[str, Any], int]:
    """Of a safetensors file: what is said of each tensor, and where their bytes begin."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return header, 8 + size


def _read_tensors(path: str, file: str) -> dict[str, torch.Tensor]:
    """By FILE/NAME, on the CPU. The library has verified the file."""
    with open(os.path.join(path, file), "rb") as opened:
        data = bytearray(opened.read())
    header, start = _read_header(data)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = _BY_NAME[entry["dtype"]]
        flat = torch.frombuffer(data, dtype=dtype, offset=start + begin, count=(end - begin) // dtype.itemsize) \
            if end > begin else torch.empty(0, dtype=dtype)
        found[f"{file}/{name}"] = flat.clone().view(entry["shape"])
    return found


# ---- the folder ----

def _acquire_lock(path: str) -> int:
    """Waits for a lock on the file at `path`, which it makes. The descriptor that holds it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.stat(path), os.fstat(file)):
                return file
        except FileNotFoundError:  # its last holder has removed it
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


@contextlib.contextmanager
def _alone(path: str, is_needed: bool) -> Iterator[None]:
    """No other process is inside at the same time, with the file at `path` as the lock. OSError where the volume has no locks and it
    `is_needed`."""
    try:
        file = _acquire_lock(path)
    except OSError:
        if is_needed:
            raise
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(file)


def _words(layout: tuple[str, list[int]] | None) -> str:
    return f"{layout[0]} {layout[1]}" if layout else "none"


class CheckpointFolder:
    """The checkpoints of this program. Of rank 0 alone, until a run ends without it. `state`: of each object by its name."""

    def __init__(self, path: str, state: dict[str, Any]) -> None:
        self.path = path
        config = _config_of(state)
        self._objects = [name for name in state if name != LOOP]
        self._layout = {name.partition("/")[2]: (_DTYPES.get(tensor.dtype, "U8"), list(tensor.shape))
                        for name, tensor in _named_tensors(state)[1].items() if name.startswith(f"{MODEL}/")}
        self._library = Library()
        self._common = {"folder": path, "config": config,
                        "environment": {name: value for name, value in os.environ.items() if name.startswith("LOCKSTEP_")}}
        self._host: dict[str, torch.Tensor] = {}  # memory of the copies, used again
        self._writing: threading.Thread | None = None

    def _ask(self, function: Any, **fields: Any) -> dict[str, Any]:
        text = self._library.text(function(json.dumps({**self._common, **fields}).encode()))
        answer: dict[str, Any] = json.loads(text or "{}")
        if "error" in answer:
            raise LockstepError(answer["error"])
        return answer

    def newest(self, generation: int) -> tuple[str, Content] | None:
        """Path and content of the newest complete one of this program; those that are passed over are named.
        LockstepError: there are only damaged ones, or other programs'."""
        try:
            answer = self._ask(self._library.find_checkpoint, generation=generation)
        except LockstepError as error:
            raise LockstepError(f"{error}{self._what_differs()}") from None
        for one in answer["passed_over"]:
            print(f"lockstep: the checkpoint {one['path']} is passed over: {one['reason']}", file=sys.stderr)
        if not answer["path"]:
            return None
        progress = answer["state"]["progress"]["python"]
        tensors = {name: tensor for file in answer["state"]["files"] for name, tensor in _read_tensors(answer["path"], file).items()}
        for name, (dtype, shape) in progress["dtypes"].items():
            tensors[name] = tensors[name].view(getattr(torch, dtype)).view(shape)
        rest = from_bytes(tensors[_PICKLE].numpy().tobytes()) if progress["rest"] is None else _from_json(progress["rest"])
        notes = {rank: Notes.from_bytes(tensors[f"{REST}/random.{rank}"].numpy().tobytes()) for rank in progress["random"]}
        return answer["path"], Content(answer["state"]["step"], _insert_tensors(rest, tensors), notes)

    def _what_differs(self) -> str:
        """Between the newest checkpoint, which is of other objects or models, and this program; "" where it is not known."""
        try:
            newest = max(name for name in os.listdir(self.path) if name.startswith("step-"))
            with open(os.path.join(self.path, newest, "state.json"), "rb") as opened:
                objects = [name for name in json.load(opened)["config"]["objects"] if name != LOOP]
            if objects != self._objects:
                return f". lockstep.restore got {', '.join(objects)} there, and {', '.join(self._objects)} here"
            with open(os.path.join(self.path, newest, MODEL), "rb") as opened:
                header = _read_header(opened.read(8 + int.from_bytes(os.pread(opened.fileno(), 8, 0), "little")))[0]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError):
            return ""
        layout = {name: (one["dtype"], one["shape"]) for name, one in header.items()}
        for name in {**layout, **self._layout}:
            there, here = layout.get(name), self._layout.get(name)
            if there != here and not (there and here and "U8" in (there[0], here[0])):  # bytes: of a dtype that the format lacks
                return f". {name} is {_words(there)} there, and {_words(here)} here"
        return ""

    def prepare(self, generation: int) -> None:
        """LockstepError when it cannot be written to."""
        self._ask(self._library.prepare_checkpoints, generation=generation)

    def has(self, step: int, lineage: int) -> bool:
        """Of this state, or a later one that came from it. Not whether it is undamaged."""
        for name in os.listdir(self.path):
            number = name.removeprefix("step-")
            if number == name or not number.isdigit() or int(number) < step:
                continue
            try:
                with open(os.path.join(self.path, name, "state.json"), "rb") as opened:
                    if json.load(opened)["lineage"] == lineage:
                        return True
            except (OSError, ValueError, KeyError):  # none of ours
                pass
        return False

    def start_write(self, state: dict[str, Any], collect_notes: Callable[[], dict[int, Notes]], on_written: Callable[[str], None],
                    for_rank_0: bool = False, **fields: Any) -> None:
        """Copies the state and returns; a thread writes it. `fields`: see lockstep_write_checkpoint. `collect_notes` and `on_written`
        are called in that thread. A write that fails is said, and the older checkpoints stay. Waits for the write before.

        for_rank_0: by another rank, whose state does not change until wait() returns. Nothing is written when rank 0 or another one has done
            so."""
        self.wait()
        rest, tensors = _named_tensors(state)
        if not for_rank_0:
            tensors = self._copies(tensors)
        self._writing = threading.Thread(target=self._write, args=(rest, tensors, collect_notes, on_written, for_rank_0, fields),
                                         name="ckpt-write", daemon=True)
        self._writing.start()

    def file_operations(self) -> int:
        """How many have ended. A number that stands still while this process writes or reads is a volume that hangs."""
        return int(self._library.file_operations())

    def wait(self, poll: Callable[[], None] = lambda: None) -> None:
        """Until nothing is being written. `poll` is called several times a second."""
        while self._writing is not None:
            self._writing.join(0.2)
            if not self._writing.is_alive():
                self._writing = None
            poll()

    def _copies(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self._host = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        return dict(self._host)

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._host.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return kept.copy_(tensor)

    def _write(self, rest: Any, tensors: dict[str, torch.Tensor], collect_notes: Callable[[], dict[int, Notes]],
               on_written: Callable[[str], None], for_rank_0: bool, fields: dict[str, Any]) -> None:
        try:
            # The ranks of one generation would write to the same temporary folder; those of an older one do not hold up this one.
            with _alone(os.path.join(self.path, f".tmp-r0-g{fields['generation']}-lock"), is_needed=for_rank_0):
                if for_rank_0:
                    if self.has(fields["step"], fields["lineage"]):
                        return
                    tensors = self._copies(tensors)  # of one rank of this machine at a time
                answer = self._ask_to_write(rest, tensors, collect_notes(), fields)
            if answer["warning"]:
                print(f"lockstep: {answer['warning']}", file=sys.stderr)
            on_written(answer["path"])
        except Exception as error:  # whatever it is, training goes on
            print(f"lockstep: no checkpoint of step {fields['step']}, training goes on: {error}", file=sys.stderr)

    def _ask_to_write(self, rest: Any, tensors: dict[str, torch.Tensor], notes: dict[int, Notes], fields: dict[str, Any]) -> dict[str, Any]:
        for rank, note in notes.items():
            tensors[f"{REST}/random.{rank}"] = _tensor_of(note.to_bytes())
        try:
            as_json = _as_json(rest)
        except _NoJson:
            as_json = None
            tensors[_PICKLE] = _tensor_of(to_bytes(rest, "this program"))
        dtypes = {}
        for name, tensor in tensors.items():
            if tensor.dtype not in _DTYPES:  # float8, complex numbers: as bytes
                dtypes[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                tensors[name] = tensor.reshape(-1).view(torch.uint8)
        described = [{"file": name.partition("/")[0], "name": name.partition("/")[2], "dtype": _DTYPES[tensor.dtype],
                      "shape": list(tensor.shape), "address": tensor.data_ptr(), "bytes": tensor.nbytes} for name, tensor in tensors.items()]
        return self._ask(self._library.write_checkpoint, tensors=described,
                         python={"rest": as_json, "dtypes": dtypes, "random": sorted(notes)}, **fields)
