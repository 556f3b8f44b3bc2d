"""`lockstep launch`: torchrun's flags and variables, and where the output of the ranks goes."""
import os
import pathlib
import signal
import sys

import pytest

from programs import ROOT, text
from test_launch import WITHOUT_TORCH, Launch, environment, launch  # noqa: F401 (a fixture)

PROGRAMS = ROOT / "tests/python/user_programs"
TALK = "echo out of $RANK; echo err of $RANK >&2"


def torchrun_actions():
    from torch.distributed.run import get_args_parser
    return [action for action in get_args_parser()._actions if action.option_strings and action.dest != "help"]


def test_every_flag_of_torchrun_is_known(launch):
    """Each is accepted up to the missing program, or refused with what to do in its place."""
    values = {"nproc_per_node": "1", "nnodes": "1", "node_rank": "0", "master_port": "29500", "max_restarts": "0", "redirects": "0",
              "tee": "0", "local_ranks_filter": "0", "signals_to_handle": "SIGTERM", "rdzv_endpoint": "localhost:0"}
    for action in torchrun_actions():
        for flag in action.option_strings:
            words = [flag] if action.nargs == 0 else [flag, values.get(action.dest, "x")]
            said = launch(*words).stderr
            assert "no program given" in said or f"--{action.dest} is not known here: " in said, f"{flag}: {said}"


def test_every_variable_of_torchrun_is_read(launch, tmp_path):
    """torchrun's own class reads PET_ variables for these flags; each is either used or named as having no effect."""
    from torch.distributed.argparse_util import check_env, env
    without_effect = {"rdzv_backend", "rdzv_conf", "monitor_interval", "start_method", "event_log_handler"}
    wrong = {"nnodes", "nproc_per_node", "node_rank", "master_port", "max_restarts", "standalone", "module", "no_python", "run_path",
             "redirects", "tee", "local_ranks_filter", "signals_to_handle", "virtual_local_rank", "rdzv_endpoint"}
    used = {"master_addr", "rdzv_id", "role", "log_dir", "local_addr", "duplicate_stdout_filters", "duplicate_stderr_filters"}
    read = {action.dest for action in torchrun_actions() if isinstance(action, (env, check_env))}
    assert read == without_effect | wrong | used
    for name in sorted(wrong):
        variable = f"PET_{name.upper()}"
        done = launch("--", "true", **{variable: "no:such:thing"})
        assert done.returncode == 2 and f"{variable}: found" in done.stderr, text(done)
    done = launch("--", "true", **{f"PET_{name.upper()}": "x" for name in without_effect})
    assert done.returncode == 0, text(done)
    assert all(f"PET_{name.upper()}" in done.stderr for name in without_effect), text(done)


def test_variables_of_torchrun_reach_the_ranks(launch):
    script = "echo $RANK of $WORLD_SIZE, role $ROLE_NAME, run $TORCHELASTIC_RUN_ID, at $MASTER_ADDR, restarts $TORCHELASTIC_MAX_RESTARTS"
    done = launch("--", "sh", "-c", script, PET_NPROC_PER_NODE="2", PET_ROLE="trainer", PET_RDZV_ID="seven", PET_MASTER_ADDR="localhost",
                  PET_MAX_RESTARTS="3")
    assert done.returncode == 0, text(done)
    for rank in (0, 1):
        assert f"{rank} of 2, role trainer, run seven, at localhost, restarts 3" in done.stdout, text(done)


def test_one_rank_is_the_default(launch):
    assert "of 1" in launch("--", "sh", "-c", "echo of $WORLD_SIZE").stdout


def test_the_output_of_python_is_not_held_back(launch, tmp_path):
    """As under torchrun, which starts `python -u`: a rank that is killed has printed what it printed."""
    (tmp_path / "train.py").write_text("import os, signal\nprint('before the end')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    for how in ([], ["--no_zygote"]):
        assert "before the end" in launch("--max_restarts", 0, *how, "train.py", **WITHOUT_TORCH).stdout


def test_files_by_rank_where_torchrun_puts_them(launch, tmp_path):
    done = launch("--nproc", 2, "--rdzv_id", "job", "--log_dir", "logs", "--tee", "3", "--", "sh", "-c", TALK)
    assert done.returncode == 0, text(done)
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("job_") and str(folder) in done.stdout
    for rank in ("0", "1"):
        assert (folder / "attempt_0" / rank / "stdout.log").read_text() == f"out of {rank}\n"
        assert (folder / "attempt_0" / rank / "stderr.log").read_text() == f"err of {rank}\n"
        assert f"out of {rank}" in done.stdout and f"err of {rank}" in done.stderr


def test_redirected_streams_are_not_shown_and_filtered_ranks_neither(launch, tmp_path):
    done = launch("--nproc", 2, "--log_dir", "logs", "--redirects", "0:3", "--", "sh", "-c", TALK)
    (folder,) = (tmp_path / "logs").iterdir()
    assert "out of 0" not in done.stdout and "out of 1" in done.stdout
    assert (folder / "attempt_0/0/stderr.log").read_text() == "err of 0\n"
    assert not (folder / "attempt_0/1/stdout.log").exists()
    done = launch("--nproc", 2, "--local_ranks_filter", "1", "--log_line_prefix_template", "<${role_name}${rank}> ", "--", "sh", "-c", TALK)
    assert "of 0" not in done.stdout + done.stderr and "<default1> out of 1" in done.stdout, text(done)


def test_each_start_has_its_own_files_and_the_lines_that_are_looked_for_have_one(launch, tmp_path):
    script = "echo loss of $TORCHELASTIC_RESTART_COUNT; echo other; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"
    done = launch("--log_dir", "logs", "--tee", "1", "--duplicate_stdout_filters", "loss", "--", "sh", "-c", script)
    assert done.returncode == 0, text(done)
    (folder,) = (tmp_path / "logs").iterdir()
    for attempt in (0, 1):
        assert (folder / f"attempt_{attempt}/0/stdout.log").read_text() == f"loss of {attempt}\nother\n"
        assert (folder / f"attempt_{attempt}/filtered_stdout.log").read_text() == f"loss of {attempt}\n"


def test_a_log_folder_that_cannot_be_made_is_named(launch, tmp_path):
    (tmp_path / "file").write_text("")
    done = launch("--log_dir", "file", "--", "true")
    assert done.returncode == 2 and "--log_dir file is a file, expected a folder" in done.stderr, text(done)


def test_a_signal_of_ones_own_is_passed_on_and_ends_the_run(lockstep, tmp_path):
    job = Launch(lockstep, tmp_path, "--signals-to-handle", "SIGTERM,SIGUSR1", "--", "sh", "-c",
                 'trap "echo saved at USR1; exit 0" USR1; trap "echo saved at TERM; exit 1" TERM; echo waits; while true; do sleep 0.1; done')
    job.wait_for(lambda: "waits" in job.output(), "the rank")
    job.signal(signal.SIGUSR1)
    assert job.end() == 143, job.output()
    assert "saved at USR1" in job.output() and "saved at TERM" not in job.output()


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_program_that_swallows_sigterm_is_killed_after_the_time_it_has(lockstep, tmp_path, monkeypatch, how):
    if how == "variable":
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    job = Launch(lockstep, tmp_path, *(["--shutdown-timeout", "1"] if how == "flag" else []), "--", sys.executable, "-c",
                 "import signal; signal.signal(signal.SIGTERM, lambda *_: print('swallowed', flush=True)); print('waits', flush=True)\n"
                 "while True: signal.pause()")
    job.wait_for(lambda: "waits" in job.output(), "the rank")
    job.signal(signal.SIGTERM)
    assert job.end() == 11, job.output()
    assert "swallowed" in job.output() and "it had not stopped 1 s after it was asked to" in job.output()
