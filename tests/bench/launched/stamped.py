"""Runs a program as it stands, and writes when each of its optimizer steps ends: `stamped.py STAMPS PROGRAM [arguments]`.

A line of the file STAMPS is `RANK PID NUMBER NANOSECONDS`: of CLOCK_MONOTONIC, which all processes share. Number 0 is the first
line of this file, so the time from 0 to 1 is what the program itself needs for its imports, its data, its group and a step.
"""
import os
import runpy
import sys
import time

BEGAN = time.monotonic_ns()
stamps = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
numbers = iter(range(1 << 62))


def stamp(at):
    os.write(stamps, f"{os.environ['RANK']} {os.getpid()} {next(numbers)} {at}\n".encode())


stamp(BEGAN)
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402
register_optimizer_step_post_hook(lambda *_: stamp(time.monotonic_ns()))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
