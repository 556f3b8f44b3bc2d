"""`lockstep launch`: programs that know nothing of Lockstep, beside torchrun."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from jobs import free_port, read_status
from programs import ROOT, clean_environment, text
from runs import Running

PROGRAMS = ROOT / "tests/python/user_programs"
VENV = pathlib.Path(sys.executable).parent
TORCHRUN = VENV / "torchrun"
# Starts scripts with a Python that has no torch, and parks in a moment: for what does not need it.
WITHOUT_TORCH = {"PYTHON_EXEC": sys._base_executable}


def environment(**extra):
    """`python3` is the tests' own, which has torch."""
    return clean_environment(PATH=f"{VENV}:{os.environ['PATH']}", **extra)


@pytest.fixture
def launch(lockstep, run, tmp_path):
    """Runs `lockstep launch` to its end."""
    def call(*words, **variables):
        return run([lockstep, "launch", "--status_port", "0", *map(str, words)], cwd=tmp_path,
                   **environment(XDG_CACHE_HOME=str(tmp_path / "cache"), **variables))
    return call


class Launch(Running):
    """One that runs beside the test, with a page."""

    def __init__(self, lockstep, base, *words, **variables):
        self.port = free_port()
        super().__init__([lockstep, "launch", "--status_port", self.port, *words], base, **environment(**variables))

    def status(self):
        return read_status(self.port)

    def pid_of(self, rank):
        """The zygote may tell the agent of a rank that it has forked after that rank's first step."""
        def pid(status):
            return next((worker["pid"] for worker in status["workers"] if worker["rank"] == rank), None)
        return pid(self.wait_for_status(pid, f"the pid of rank {rank}"))

    def wait_for_step(self, step):
        def is_there(status):
            return status["workers"] and all(worker["step"] >= step for worker in status["workers"])
        return self.wait_for_status(is_there, f"step {step}")


def losses_of(folder):
    """step → the loss that was written for it; the same each time."""
    found = {}
    for line in (folder / "losses.txt").read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"step {step} was made again, with another loss"
    return found


def variables_of(output):
    """By rank. (Torchrun's ranks write to one terminal: two of them may share a line.)"""
    found = [json.loads(text) for text in re.findall(r"\{[^{}]*\}", output)]
    return {int(variables["RANK"]): variables for variables in found}


@pytest.fixture(scope="module")
def under_torchrun(tmp_path_factory):
    """The losses of ddp.py under torchrun."""
    folder = tmp_path_factory.mktemp("torchrun")
    subprocess.run([TORCHRUN, "--standalone", "--nproc_per_node", "2", PROGRAMS / "ddp.py", "--folder", folder], check=True,
                   capture_output=True, env=environment(), timeout=300)
    return losses_of(folder)


def test_ranks_get_the_variables_of_torchrun(run, launch):
    ours = variables_of(launch("--nproc_per_node", 2, PROGRAMS / "environment.py", **WITHOUT_TORCH).stdout)
    theirs = variables_of(text(run([TORCHRUN, "--standalone", "--nproc_per_node", "2", PROGRAMS / "environment.py"], **environment())))
    assert ours.keys() == theirs.keys() == {0, 1}
    # Rank 0 serves the store itself, because the agent has none; a lost rank is started again without being asked to.
    differ = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS",
              "TORCHELASTIC_ERROR_FILE"}
    for rank in (0, 1):
        assert ours[rank].keys() == theirs[rank].keys()
        assert {name for name in ours[rank] if ours[rank][name] != theirs[rank][name]} <= differ
    assert ours[0]["TORCHELASTIC_USE_AGENT_STORE"] == "False" and ours[0]["MASTER_PORT"] == ours[1]["MASTER_PORT"]


@pytest.mark.parametrize("how", [[], pytest.param(["--no_zygote"], marks=pytest.mark.long)], ids=["zygote", "exec"])
def test_the_losses_are_those_under_torchrun(launch, tmp_path, under_torchrun, how):
    done = launch("--standalone", "--nproc_per_node", 2, *how, PROGRAMS / "ddp.py", "--folder", tmp_path)
    assert done.returncode == 0, text(done)
    assert losses_of(tmp_path) == under_torchrun


def test_a_rank_that_raises_is_named_with_its_line_and_all_start_again_from_the_programs_checkpoint(launch, tmp_path, under_torchrun):
    done = launch("--nproc", 2, PROGRAMS / "ddp.py", "--folder", tmp_path, "--fail_at", 8)
    assert done.returncode == 0, text(done)
    line = (PROGRAMS / "ddp.py").read_text().splitlines().index('            raise ValueError("a fault of this program")') + 1
    assert re.search(rf"rank 1 .* ended with exit code 1 .*: ValueError: a fault of this program \(ddp\.py:{line}, in <module>\)",
                     done.stderr), text(done)
    assert "starting all ranks again, from the program's own checkpoint if it has one" in done.stderr
    assert "from epoch 1" in done.stdout
    assert losses_of(tmp_path) == under_torchrun


def test_the_first_that_failed_is_named_also_when_another_ends_before_it(launch, tmp_path):
    done = launch("--nproc", 2, "--max_restarts", 0, PROGRAMS / "two_faults.py", **WITHOUT_TORCH)
    assert done.returncode == 1, text(done)
    assert re.search(r"rank 1 .*: ValueError: the first fault \(two_faults\.py:\d+", done.stderr), text(done)


@pytest.mark.parametrize("how", [[], ["--local_nodes", "2"]], ids=["one node", "two nodes"])
def test_a_killed_rank_costs_a_restart_of_all_ranks(lockstep, tmp_path, under_torchrun, how):
    per_node = 1 if how else 2
    job = Launch(lockstep, tmp_path, *how, "--nproc", per_node, PROGRAMS / "ddp.py", "--folder", tmp_path, "--wait_at", "8")
    job.wait_for_step(7)
    before = job.pid_of(0)
    os.kill(job.pid_of(0 if how else 1), signal.SIGKILL)  # node 0's page knows the pids of its own ranks
    status = job.wait_for_status(lambda status: status["recoveriesTotal"] == 1, "a recovery")
    assert status["recoveries"][0]["cause"] == "SignalKILL"
    assert job.pid_of(0) != before
    assert job.end() == 0, job.output()
    assert losses_of(tmp_path) == under_torchrun


def test_the_zygote_dies_and_its_ranks_live_on(lockstep, tmp_path, under_torchrun):
    job = Launch(lockstep, tmp_path, "--nproc", "2", PROGRAMS / "ddp.py", "--folder", tmp_path, "--wait_at", "8")
    job.wait_for_step(3)
    agent = job.process.pid
    children = {int(pid) for pid in pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()}
    ranks = {job.pid_of(0), job.pid_of(1)}
    (zygote,) = children - ranks
    os.kill(zygote, signal.SIGKILL)
    job.wait_for(lambda: "no rank is forked any more" in job.output(), "a line about the zygote")
    assert {job.pid_of(0), job.pid_of(1)} == ranks
    os.kill(job.pid_of(1), signal.SIGKILL)  # its successors are started by exec
    assert job.end() == 0, job.output()
    assert losses_of(tmp_path) == under_torchrun


def test_a_rank_that_ends_early_waits_for_the_others(launch):
    done = launch("--nproc", 2, "--", "sh", "-c", "[ $RANK = 0 ] || sleep 1; echo rank $RANK ends")
    assert done.returncode == 0, text(done)
    assert "rank 1 ends" in done.stdout and "rank 0 ends" in done.stdout


def test_exit_codes_of_a_program_have_no_meaning_of_ours(launch):
    """2, 3 and 5 end a run of Lockstep's own models at once, and 130 and 143 say that it was asked to end."""
    for code in (2, 3, 5, 130, 143):
        done = launch("--nproc", 1, "--max_restarts", 1, "--", "sh", "-c", f"echo attempt $TORCHELASTIC_RESTART_COUNT; exit {code}")
        assert done.returncode == 1, text(done)
        assert "attempt 0" in done.stdout and "attempt 1" in done.stdout
        assert f"its exit code was {code}" in done.stderr, text(done)


def test_sigterm_reaches_the_ranks_which_may_save(lockstep, tmp_path):
    job = Launch(lockstep, tmp_path, "--nproc", "2", "--", "sh", "-c",
                 'trap "echo rank $RANK has saved; exit 0" TERM; echo waits; while true; do sleep 0.1; done')
    job.wait_for(lambda: job.output().count("waits") == 2, "both ranks")
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()
    assert "rank 0 has saved" in job.output() and "rank 1 has saved" in job.output()


def test_processes_that_a_dead_rank_has_left_are_gone_before_the_next_start(launch, tmp_path):
    script = f'''if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then sleep 1000 & echo $! > {tmp_path}/orphan; exit 1; fi
kill -0 $(cat {tmp_path}/orphan) 2>/dev/null && echo "it lives" || echo "it is gone"'''
    done = launch("--nproc", 1, "--", "sh", "-c", script)
    assert done.returncode == 0 and "it is gone" in done.stdout, text(done)


def test_a_script_that_was_edited_between_restarts_is_read_again(launch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import pathlib, sys\npathlib.Path(__file__).write_text('print(\"the new code\")')\nsys.exit('not yet')\n")
    done = launch("--nproc", 1, script, **WITHOUT_TORCH)
    assert done.returncode == 0 and "the new code" in done.stdout, text(done)


def test_main_is_the_programs_own(launch, tmp_path):
    (tmp_path / "train.py").write_text("""
import atexit, pickle, sys, multiprocessing
class Thing:
    pass
def square(x):
    return x * x
if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
    assert sys.argv[1:] == ["--flag", "a b"], sys.argv
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(square, [3]) == [9]
    atexit.register(lambda: print("at its end", flush=True))
    sys.exit(0)
""")
    done = launch("--nproc", 1, "train.py", "--flag", "a b", **WITHOUT_TORCH)
    assert done.returncode == 0 and "at its end" in done.stdout, text(done)


def test_what_the_program_imported_the_last_time_is_there_before_it_asks(launch, tmp_path):
    (tmp_path / "train.py").write_text("""
import sys
print("sqlite3 is there" if "sqlite3" in sys.modules else "sqlite3 is not there")
import sqlite3, torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
""")
    for expected in ("sqlite3 is not there", "sqlite3 is there"):
        done = launch("--nproc", 1, "train.py")
        assert done.returncode == 0 and expected in done.stdout, text(done)


@pytest.mark.long  # a minute: seventy ranks on two cores
def test_more_ranks_than_one_request_holds(launch):
    done = launch("--nproc", 70, PROGRAMS / "environment.py", **WITHOUT_TORCH)
    assert done.returncode == 0 and variables_of(done.stdout).keys() == set(range(70)), text(done)


def test_a_module_is_started_by_its_name(launch, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/train.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    done = launch("--nproc", 1, "-m", "pkg.train", "x", **WITHOUT_TORCH)
    assert done.returncode == 0 and "__main__ pkg ['x']" in done.stdout, text(done)


@pytest.mark.parametrize("words, said", [
    (["train.py"], "no program train.py here"),
    ([], "no program given"),
    (["--", "no-such-program"], "no program no-such-program on PATH"),
    (["torchrun", "train.py"], "torchrun starts ranks itself"),
    (["--nproc_per_nod", "2", "x.py"], "did you mean --nproc_per_node"),
    (["--nproc_per_node", "many", "x.py"], "many"),
    (["--", "/"], "is a folder"),
])
def test_a_command_line_that_is_wrong(launch, words, said):
    done = launch(*words)
    assert done.returncode == 2 and said in done.stderr, text(done)
