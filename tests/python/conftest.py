"""What the Python tests share: programs, free ports, data sets."""
import subprocess

import pytest

import jobs
from programs import bin_folder, clean_environment, fetched, program, tools_folder, write_interactions
from runs import Running


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    """A test that fails leaves its run unfinished: it is killed here."""
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
    """free_port() is a TCP port that nobody listens on or is given (jobs.free_port)."""
    return jobs.free_port


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
    """MovieLens-100K."""
    return fetched("get_ml100k")


@pytest.fixture(scope="module")
def small_1m(tmp_path_factory):
    from gpt2rec_runs import write_1m  # which needs torch
    folder = tmp_path_factory.mktemp("data") / "ml-1m"
    write_1m(folder, users=30, films=30)
    return folder


@pytest.fixture(scope="session")
def structures():
    """A folder of real protein structures."""
    return fetched("get_structures")


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Where Lockstep's headers and its package for CMake are installed."""
    from plugin_build import install_headers  # the tests for a GPU are packed without it
    return install_headers(tmp_path_factory.mktemp("installed"))
