"""`lockstep chaos` where there is no group to break: it says what happened, and does not wait for its time to be up."""
import subprocess
import sys

import pytest

from jobs import wait_until
from programs import clean_environment, text, write_interactions
from runs import SMALL_MODEL


@pytest.fixture
def loading_run(lockstep, tmp_path):
    """A run of two ranks that reads its data for a second or more: its workers are there, but no group is."""
    data = write_interactions(tmp_path / "data.txt", users=20_000, items=2_000)
    line = [lockstep, "run", "sasrec", "--dataset", data, "--train_dir", tmp_path / "run", "--nproc", "2",
            "--max_steps", "60", "--eval_every", "0", "--threads", "1", "--status_port", "0", *SMALL_MODEL]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=clean_environment()) as process:
        yield process
        process.kill()


def chaos(lockstep, *words):
    return subprocess.run([lockstep, "chaos", *map(str, words)], capture_output=True, text=True, check=False, timeout=120,
                          env=clean_environment())


def test_a_kill_before_the_first_step_is_judged_by_the_run_that_trains_then(lockstep, loading_run, tmp_path):
    attempts = []

    def is_killed():  # its workers are there
        attempts.append(chaos(lockstep, "kill-rank", tmp_path / "run", "--rank", 1, "--patience", 90))
        done = attempts[-1]
        assert "killed rank 1" in done.stdout or loading_run.poll() is None and done.returncode == 2, text(done)
        return "killed rank 1" in done.stdout
    wait_until(is_killed, "a rank to kill")
    done = attempts[-1]
    assert done.returncode == 0, text(done)
    # Where the machine was slow, the first group had formed.
    assert "no group had formed yet; the run trains" in done.stdout or "next committed step" in done.stdout, text(done)
    assert loading_run.wait(timeout=120) == 0, loading_run.stdout.read()


def test_a_program_without_a_process_has_no_rank_to_kill(lockstep, tmp_path):
    """Its zygote still imports torch."""
    (tmp_path / "program.py").write_text("input()")
    environment = clean_environment(TMPDIR=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    words = []
    with subprocess.Popen([lockstep, "launch", "--status_port", "0", "--max_restarts", "0", "--", sys.executable, "program.py"], cwd=tmp_path,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            def is_answered():
                done = subprocess.run([lockstep, "chaos", "kill-rank", "--patience", "0"], capture_output=True, text=True, check=False, cwd=tmp_path,
                                      env=environment)
                words.append(text(done))
                return "no ranks yet" in words[-1] or process.poll() is not None
            wait_until(is_answered, "answer of the agent")
        finally:
            process.kill()
    assert "no ranks yet" in words[-1] and not any("cannot be understood" in one for one in words), words
