"""Waiting for a condition that can be observed, never only for time to pass."""
import select
import time


def pause(seconds=0.02):
    """One poll interval."""
    select.select([], [], [], seconds)


def wait_until(condition, what, timeout=60, on_timeout=None):
    """Polls until condition() is true, and returns what it returned. `what` completes "no … within 60 s";
    on_timeout() gives text that explains why. An AssertionError of the condition means "not yet", told at the end."""
    deadline = time.monotonic() + timeout
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
        except AssertionError as error:
            last = error
        if time.monotonic() >= deadline:
            details = [str(last)] if last else []
            details += [on_timeout()] if on_timeout else []
            raise AssertionError("\n".join([f"no {what} within {timeout} s"] + details))
        pause()
