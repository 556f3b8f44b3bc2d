"""torch's key-value store over the link: the coordinator keeps it, so no rank's end takes it along, and a cut ends every wait."""
from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ._link import AgentLink


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class LinkStore(dist.Store):
    """The store of one generation. After the end of that generation every call raises GroupBroken. `poll` is called several times a second
    in each call that waits, and may raise it, too."""

    def __init__(self, link: AgentLink, generation: int, timeout: datetime.timedelta, poll: Callable[[], None]) -> None:
        super().__init__()
        self._link = link
        self._generation = generation
        self._timeout = timeout
        self._poll = poll

    def _ask(self, op: str, keys: list[str], values: list[bytes] = (), amount: int = 0,  # type: ignore[assignment]
             timeout: datetime.timedelta | None = None) -> dict[str, Any]:
        timeout_ms = int((timeout or self._timeout).total_seconds() * 1000)
        try:
            return self._link.ask_store(self._generation, op, keys, values, amount, timeout_ms, self._poll)
        except TimeoutError as error:
            raise dist.DistStoreError(str(error)) from None

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], [_bytes_of(value)])

    def _values(self, op: str, keys: list[str], values: list[bytes] = ()) -> list[bytes]:  # type: ignore[assignment]
        found: list[bytes] = self._ask(op, keys, values)["values"]
        return found

    def get(self, key: str) -> bytes:
        return self._values("get", [key])[0]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", [key], amount=amount)["number"])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._values("compare_set", [key], [_bytes_of(expected), _bytes_of(desired)])[0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key])["number"])

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", list(keys))["number"])

    def num_keys(self) -> int:
        return int(self._ask("num_keys", [])["number"])

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Gloo's `timeout` is how long a connection may take, and is not used: a peer may come much later, and the end of the generation
        ends the wait."""
        self._ask("wait", list(keys))

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], [_bytes_of(value)])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._values("get", list(keys))

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        self._ask("set", list(keys), [_bytes_of(value) for value in values])

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout
