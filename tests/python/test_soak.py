"""The short forms of soak.py and soak_own.py."""
import pathlib
import subprocess
import sys

import pytest

from soak import soak

SECONDS = 14


def test_random_kills_lose_and_leak_nothing(tmp_path):
    assert soak(tmp_path, SECONDS, seed=3) >= 3


@pytest.mark.long
def test_random_kills_change_no_loss_of_a_program():
    subprocess.run([sys.executable, pathlib.Path(__file__).parent / "soak_own.py", "60"], check=True)
