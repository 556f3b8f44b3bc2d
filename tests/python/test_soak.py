"""The short form of soak.py."""
from soak import soak

SECONDS = 14


def test_random_kills_lose_and_leak_nothing(tmp_path):
    assert soak(tmp_path, SECONDS, seed=3) >= 3
