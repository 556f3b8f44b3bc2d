"""Reports the progress of a training program to Lockstep. It does nothing where `lockstep launch` has not started the program.

    import lockstep
    lockstep.report(step=step, total=steps, loss=loss)
"""
from __future__ import annotations

import os
import time
from typing import Any

__all__ = ["report"]

_INTERVAL_SECONDS = 1.0
_TIMEOUT_SECONDS = 2.0
_sent = float("-inf")
_waiting: dict[str, Any] | None = None


def report(step: int | None = None, total: int | None = None, **metrics: Any) -> None:
    """Says how far this program is: `step` of `total`, and any figures by name (numbers, or tensors with one element). "loss",
    "lr", "grad_norm", "epoch" and "samples_per_second" are shown as such; the page has a curve of each. Only rank 0 sends, at most
    once a second, so it may be called in each step, also several times. It raises nothing."""
    global _waiting, _sent
    if os.environ.get("RANK", "0") != "0" or not _server():
        return
    if _waiting is None:
        import atexit
        atexit.register(_send_rest)
    # Over what waits: figures of several calls are sent together.
    figures = {"step": step, "total": total, **metrics}
    _waiting = {**(_waiting or {}), **{name: value for name, value in figures.items() if value is not None}}
    if time.monotonic() - _sent >= _INTERVAL_SECONDS or (total is not None and step == total):
        _send_rest()


def _server() -> str:
    url = os.environ.get("KUBEFLOW_TRAINER_SERVER_URL", "")
    return url.removeprefix("http://127.0.0.1:") if url.startswith("http://127.0.0.1:") else ""


def _send_rest() -> None:
    global _waiting, _sent
    if not _waiting:
        return
    figures, _waiting, _sent = _waiting, {}, time.monotonic()
    try:
        import http.client
        import json
        port, _, path = _server().partition("/")
        with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"], encoding="utf-8") as file:
            token = file.read().strip()
        values = [{"name": name, "value": repr(float(value))} for name, value in figures.items() if value is not None]
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_TIMEOUT_SECONDS)
        connection.request("POST", f"/{path}", json.dumps({"trainerStatus": {"metrics": values}}),
                           {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()
    except Exception:  # the training matters, its figures do not
        pass
