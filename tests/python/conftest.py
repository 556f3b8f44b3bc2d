"""What the Python tests share: where the programs are, free ports, and a small data set made here."""
import os
import pathlib
import random
import socket
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def bin_folder():
    """LOCKSTEP_BIN (ctest sets it), else the preset dev's."""
    return pathlib.Path(os.environ.get("LOCKSTEP_BIN", ROOT / "build/dev/bin"))


def tools_folder():
    """The test programs of tests/tools: LOCKSTEP_TEST_TOOLS (ctest sets it), else the preset dev's."""
    return pathlib.Path(os.environ.get("LOCKSTEP_TEST_TOOLS", ROOT / "build/dev/tools"))


def program(path):
    if not path.exists():
        pytest.fail(f"{path} is not built: build it, or set LOCKSTEP_BIN and LOCKSTEP_TEST_TOOLS")
    return path


@pytest.fixture(scope="session")
def lockstep():
    return program(bin_folder() / "lockstep")


@pytest.fixture(scope="session")
def worker():
    return program(bin_folder() / "lockstep-worker")


@pytest.fixture(scope="session")
def tool():
    """tool("name") is the path of a program of tests/tools."""
    return lambda name: program(tools_folder() / name)


@pytest.fixture
def free_port():
    """free_port() is a TCP port that nobody listens on at this moment."""
    def find():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]
    return find


def clean_environment(**extra):
    """The environment without launchers' variables, so that a test says all that its ranks see."""
    prefixes = ("LOCKSTEP_", "SLURM_", "OMPI_", "PET_", "TORCHELASTIC_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK",
             "NNODES", "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"}
    kept = {k: v for k, v in os.environ.items() if k not in names and not k.startswith(prefixes)}
    return {**kept, "CI": "1", **extra}


@pytest.fixture
def run():
    """run(argv, timeout=…, **environment) → CompletedProcess with text output; never raises on an exit code."""
    def call(argv, timeout=300, cwd=None, **environment):
        return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False,
                              timeout=timeout, cwd=cwd, env=clean_environment(**environment))
    return call


def write_interactions(path, users=60, items=40, seed=1):
    """`user item` lines, 5 to 15 per user, in order of time; the same file for the same arguments."""
    draw = random.Random(seed)
    lines = [f"{user} {draw.randint(1, items)}\n" for user in range(1, users + 1)
             for _ in range(draw.randint(5, 15))]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def small_dataset(tmp_path):
    return write_interactions(tmp_path / "small.txt")


@pytest.fixture(scope="session")
def ml100k():
    """MovieLens-100K, fetched at run time (scripts/get_ml100k)."""
    done = subprocess.run([ROOT / "scripts/get_ml100k"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())
