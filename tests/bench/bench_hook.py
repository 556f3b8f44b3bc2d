"""What the hook costs that counts a program's steps (runner/agent/python/rank_start.py), in µs a step."""
import mmap
import pathlib
import runpy
import statistics
import timeit
import types

RANK_START = pathlib.Path(__file__).resolve().parents[2] / "runner/agent/python/rank_start.py"
CALLS = 100_000


class Optimizer:
    """As torch's after its first step."""

    def __init__(self):
        self.state = {object(): {"step": 1.0}}


def hook_microseconds():
    """Median of seven measurements of one call, with one optimizer and with two."""
    step_counter = runpy.run_path(str(RANK_START))["step_counter"]
    page = memoryview(mmap.mmap(-1, 64)).cast("q")
    found = []
    for count in (1, 2):
        hook, optimizers = step_counter(types.SimpleNamespace(counts=True), page, lambda: None), [Optimizer() for _ in range(count)]

        def call():
            for optimizer in optimizers:
                hook(optimizer, (), {})
        call()
        times = timeit.repeat(call, number=CALLS, repeat=7)
        found.append(statistics.median(times) / CALLS / count * 1e6)
    return tuple(found)


if __name__ == "__main__":
    print("hook: %.2f µs a step (one optimizer), %.2f µs (two)" % hook_microseconds())
