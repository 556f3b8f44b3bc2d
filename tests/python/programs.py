"""Where the programs are, the environment that they get, and a small generated data set."""
import ctypes
import os
import pathlib
import random
import subprocess
import sys

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


CLONE_NEWNET = 0x40000000


def leave_the_network():
    """As root: moves this process into a new network namespace, in which no other program runs."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def text(done):
    """All that a finished program printed."""
    return done.stdout + done.stderr


def clean_environment(**extra):
    """The environment without launchers' variables: ranks see only those that the test gives them."""
    prefixes = ("LOCKSTEP_", "SLURM_", "OMPI_", "PET_", "TORCHELASTIC_", "PMI_", "PMIX_", "PALS_", "MV2_", "LWS_",
                "VC_", "SKYPILOT_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK",
             "NNODES", "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"}
    kept = {k: v for k, v in os.environ.items() if k not in names and not k.startswith(prefixes)}
    return {**kept, "CI": "1", **extra}


def fetched(script):
    """The path that a script of scripts/ prints: it fetches data at run time, once (LOCKSTEP_CACHE)."""
    done = subprocess.run([ROOT / "scripts" / script], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip().splitlines()[-1])


def python_with_torch(version):
    """The Python of a virtual environment with this PyTorch: gigabytes, fetched once (LOCKSTEP_CACHE)."""
    venv = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep")) / f"py-torch-{version}"
    if not (venv / "complete").exists():
        subprocess.run([sys._base_executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin/python", "-m", "pip", "install", "-q", f"torch=={version}", "numpy<3"], check=True)
        (venv / "complete").touch()
    return venv / "bin/python"


def write_interactions(path, users=60, items=40, seed=1):
    """`user item` lines, 5 to 15 per user, in order of time; the same file for the same arguments."""
    draw = random.Random(seed)
    lines = [f"{user} {draw.randint(1, items)}\n" for user in range(1, users + 1)
             for _ in range(draw.randint(5, 15))]
    path.write_text("".join(lines), encoding="utf-8")
    return path
