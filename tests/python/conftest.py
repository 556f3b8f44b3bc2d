"""What the Python tests share: programs, free ports, data sets."""
import pathlib
import socket
import subprocess

import pytest

from programs import ROOT, bin_folder, clean_environment, program, tools_folder, write_interactions
from runs import Running


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    """One that fails does not come to the end of its run."""
    Running.started.clear()
    yield
    for running in Running.started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


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


@pytest.fixture
def run():
    """run(argv, timeout=…, **environment) → CompletedProcess with text output; never raises on an exit code."""
    def call(argv, timeout=300, cwd=None, **environment):
        return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False,
                              timeout=timeout, cwd=cwd, env=clean_environment(**environment))
    return call


@pytest.fixture
def small_dataset(tmp_path):
    return write_interactions(tmp_path / "small.txt")


@pytest.fixture(scope="session")
def ml100k():
    """MovieLens-100K, fetched at run time (scripts/get_ml100k)."""
    done = subprocess.run([ROOT / "scripts/get_ml100k"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def structures():
    """A folder of real protein structures, fetched at run time (scripts/get_structures)."""
    done = subprocess.run([ROOT / "scripts/get_structures"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Where Lockstep's headers and its package for CMake are installed."""
    from plugin_build import install_headers  # the tests for a GPU are packed without it
    return install_headers(tmp_path_factory.mktemp("installed"))
