"""`lockstep launch`: programs that misbehave, and what is in their way."""
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys

import pytest

from jobs import free_port
from programs import ROOT, text
from test_launch import WITHOUT_TORCH, Launch, environment, launch, losses_of, under_torchrun  # noqa: F401 (fixtures)

PROGRAMS = ROOT / "tests/python/user_programs"


def test_a_file_that_cannot_be_executed_is_named(launch, tmp_path):
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho runs\n")
    done = launch("./run.sh")
    assert done.returncode == 2 and "./run.sh cannot be executed" in done.stderr and "chmod +x" in done.stderr, text(done)
    (tmp_path / "run.sh").chmod(0o755)
    assert "runs" in launch("./run.sh").stdout


def test_a_folder_and_a_zip_file_are_started_as_python_does_it(launch, tmp_path):
    (tmp_path / "program").mkdir()
    done = launch("program")
    assert done.returncode == 2 and "program is a folder without a __main__.py: name the script in it" in done.stderr, text(done)
    (tmp_path / "program/__main__.py").write_text("import sys; print('the main of', sys.argv)\n")
    assert "the main of ['program', 'x']" in launch("program", "x").stdout
    subprocess.run([sys.executable, "-m", "zipapp", "program"], cwd=tmp_path, check=True)
    done = launch("program.pyz", "x")
    assert "the main of ['program.pyz', 'x']" in done.stdout, text(done)


def test_a_syntax_error_is_told_with_its_line(launch, tmp_path):
    (tmp_path / "train.py").write_text("import sys\nif True\n    pass\n")
    for how in ([], ["--no_zygote"]):
        done = launch("--max_restarts", 0, *how, "train.py", **WITHOUT_TORCH)
        assert done.returncode == 1, text(done)
        assert re.search(r"SyntaxError: .*\(train\.py:2", done.stderr), text(done)


def test_max_restarts_that_is_given_is_a_total(launch):
    """Without it the run ends after four starts that made no step (a crash loop)."""
    done = launch("--max_restarts", 4, "--", "sh", "-c", "echo start $TORCHELASTIC_RESTART_COUNT; exit 1")
    assert done.returncode == 1 and "start 4" in done.stdout and "start 5" not in done.stdout, text(done)
    assert "giving up after 4 restarts (--max_restarts 4)" in done.stderr, text(done)


def test_steps_that_a_restart_has_kept_clear_the_count_of_restarts(launch, tmp_path):
    """Each start goes on from a later step."""
    (tmp_path / "train.py").write_text("""
import os, pathlib, torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.Adam([weight], lr=0.1)
saved = pathlib.Path("saved.pt")
if saved.exists():
    optimizer.load_state_dict(torch.load(saved))
for step in range(3):
    weight.grad = torch.ones(1)
    optimizer.step()
torch.save(optimizer.state_dict(), saved)
os._exit(0 if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 3 else 1)
""")
    done = launch("train.py")
    assert done.returncode == 0, text(done)
    assert done.stderr.count("(restart 1 of 10)") == 3, text(done)


def test_a_port_that_is_taken_is_named_with_what_to_do(launch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = launch("--master_port", port, "--", "true")
    assert done.returncode == 2 and f"port {port} (--master_port) is taken on this machine" in done.stderr, text(done)


def test_a_program_that_never_joins_a_group_runs_to_its_end(launch):
    assert launch("--nproc", 2, "--", "sleep", "0.1").returncode == 0


def test_a_program_that_forks_and_leaves_a_daemon(launch, tmp_path):
    """A child of a rank is gone at its end; a daemon has left its process group on purpose, and holds up nothing."""
    script = f"sleep 1000 & echo $! > {tmp_path}/child; setsid sh -c 'echo $$ > {tmp_path}/daemon; exec sleep 1000' & sleep 0.3; exit 0"
    done = launch("--", "sh", "-c", script)
    assert done.returncode == 0, text(done)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)
    try:
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_a_program_that_changes_its_variables(launch, tmp_path):
    """They are its own: the next start has those of the launcher."""
    (tmp_path / "train.py").write_text("""
import os, sys
print("RANK", os.environ["RANK"], "MINE", os.environ.get("MINE"))
os.environ.update(MINE="1", RANK="7")
sys.exit(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 1)
""")
    done = launch("train.py", **WITHOUT_TORCH)
    assert done.returncode == 0 and done.stdout.count("RANK 0 MINE None") == 2, text(done)


def test_ranks_of_different_versions_are_not_compared(launch, tmp_path):
    """As under torchrun: which program a rank runs is its own affair."""
    script = "if [ $RANK = 0 ]; then exec python3 -c 'print(\"python\")'; else exec echo shell; fi"
    done = launch("--nproc", 2, "--", "sh", "-c", script)
    assert done.returncode == 0 and "python" in done.stdout and "shell" in done.stdout, text(done)


def test_the_last_lines_of_ranks_that_are_not_shown_are_told_when_one_fails(launch):
    script = "for i in $(seq 20); do echo line $i of $RANK >&2; done; [ $RANK = 0 ] || sleep 0.3; exit $RANK"
    done = launch("--nproc", 2, "--max_restarts", 0, "--redirects", "0:3", "--log_dir", "logs", "--", "sh", "-c", script)
    assert done.returncode == 1, text(done)
    assert "the last lines of rank 0:" in done.stderr and "line 20 of 0" in done.stderr and "line 10 of 0" not in done.stderr, text(done)


@pytest.mark.parametrize("mebibytes", [64, pytest.param(1024, marks=pytest.mark.long)])
def test_a_program_that_floods_stderr(lockstep, tmp_path, mebibytes):
    """The agent's memory stays small, and so does what a page shows."""
    port = free_port()
    script = f"yes $(head -c 2000 /dev/zero | tr '\\0' x) | head -c {mebibytes << 20} >&2; echo done; read line < {tmp_path}/go || true"
    os.mkfifo(tmp_path / "go")
    with open(tmp_path / "out", "w") as out:
        process = subprocess.Popen([lockstep, "launch", "--status_port", str(port), "--", "sh", "-c", script], stdout=out,
                                   stderr=subprocess.DEVNULL, env=environment())
        go = os.open(tmp_path / "go", os.O_WRONLY)  # when the program has come so far
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        os.close(go)
        assert process.wait() == 0
    assert "done" in (tmp_path / "out").read_text()
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) < 100_000, status


def test_files_that_may_not_grow_are_said_once_and_training_goes_on(lockstep, tmp_path):
    """As `ulimit -f` and a batch system set it: the kernel ends a program that does not expect this."""
    script = (f"ulimit -f 64; exec {lockstep} launch --status_port 0 --log_dir logs -- "
              "sh -c 'for i in $(seq 3000); do echo $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done; echo the end'")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0 and "the end" in done.stdout, text(done)
    assert done.stderr.count("the output of the ranks is not written to its files") == 1 and "File too large" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a small disk")
def test_a_full_disk_is_said_once_and_training_goes_on(lockstep, tmp_path):
    (tmp_path / "logs").mkdir()
    script = (f"mount -t tmpfs -o size=64k none {tmp_path}/logs && exec {lockstep} launch --status_port 0 --log_dir {tmp_path}/logs -- "
              "sh -c 'for i in $(seq 3000); do echo $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done; echo the end'")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0 and "the end" in done.stdout, text(done)
    assert done.stderr.count("the output of the ranks is not written to its files") == 1 and "No space left on device" in done.stderr


# Runs before the zygote's own code, and in no rank.
IN_THE_ZYGOTE = "import os, sys\nif '-c' in sys.orig_argv:\n"


@pytest.mark.parametrize("forks, missing", [(0, [0, 1]), (1, [0, 1]), (2, [1])])
def test_a_rank_that_the_zygote_cannot_fork_is_started_from_the_beginning(launch, tmp_path, forks, missing):
    """For lack of memory, or of processes: when the zygote itself cannot fork, or the process between it and the ranks."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/sitecustomize.py").write_text(IN_THE_ZYGOTE + f"""
    fork, left = os.fork, list(range({forks}))
    def fork_while_there_is_memory():
        if not left:
            raise OSError(12, "Cannot allocate memory")
        left.pop()
        return fork()
    os.fork = fork_while_there_is_memory
""")
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'runs')\n")
    done = launch("--nproc", 2, "train.py", PYTHONPATH=str(tmp_path / "packages"), **WITHOUT_TORCH)
    assert done.returncode == 0 and "rank 0 runs" in done.stdout and "rank 1 runs" in done.stdout, text(done)
    said = re.findall(r"rank (\d) is started from the beginning: the zygote could not fork it, for lack of memory", done.stderr)
    assert [int(rank) for rank in said] == missing and "(Crash)" not in done.stderr, text(done)


def test_a_zygote_that_is_killed_while_it_imports_costs_no_rank(launch, tmp_path):
    """When memory is short, the kernel ends it first."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/sitecustomize.py").write_text(IN_THE_ZYGOTE + "    os.kill(os.getpid(), 9)\n")
    (tmp_path / "train.py").write_text("print('it runs')\n")
    done = launch("--nproc", 2, "train.py", PYTHONPATH=str(tmp_path / "packages"), **WITHOUT_TORCH)
    assert done.returncode == 0 and done.stdout.count("it runs") == 2, text(done)
    assert "no rank is forked any more, each is started from the beginning" in done.stderr and "(Crash)" not in done.stderr


@pytest.mark.parametrize("name, source, said", [
    ("torch/__init__.py", "import types\ncuda = types.SimpleNamespace(is_initialized=lambda: True)\n",
     "torch: it initialises CUDA when it is imported"),
    ("torch/__init__.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
     "torch: it starts 1 threads when it is imported"),
    ("sitecustomize.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
     "Python itself, or a sitecustomize: it starts 1 threads"),
], ids=["CUDA", "a thread of torch", "a thread of sitecustomize"])
def test_what_cannot_be_forked_is_started_from_the_beginning_and_named(launch, tmp_path, name, source, said):
    (tmp_path / "packages/torch").mkdir(parents=True)
    (tmp_path / "packages" / name).write_text(source)
    (tmp_path / "train.py").write_text("import os\nprint('it runs')\nos._exit(0)\n")
    done = launch("--nproc", 2, "train.py", PYTHONPATH=str(tmp_path / "packages"), **WITHOUT_TORCH)
    assert done.returncode == 0 and done.stdout.count("it runs") == 2, text(done)
    assert "no rank is forked any more" in done.stderr and said in done.stderr, text(done)


def test_several_that_a_launcher_has_started_are_told_how_to_start_one_per_node(launch):
    done = launch("--", "true", SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_STEP_ID="0")
    assert done.returncode == 2 and "srun --ntasks-per-node=1 lockstep launch --nnodes N" in done.stderr, text(done)
    assert "lockstep-worker" not in done.stderr and "lockstep run" not in done.stderr


def test_chaos_finds_a_program_and_its_page_shows_the_recovery(lockstep, run, tmp_path, under_torchrun):
    job = Launch(lockstep, tmp_path, "--nproc", "2", PROGRAMS / "ddp.py", "--folder", tmp_path, "--wait_at", "8",
                 TMPDIR=str(tmp_path))
    job.wait_for_step(3)
    done = run([lockstep, "chaos", "kill-rank", "--rank", "1"], cwd=tmp_path, **environment(TMPDIR=str(tmp_path)))
    assert done.returncode == 0 and "killed rank 1" in done.stdout and "next committed step" in done.stdout, text(done)
    status = job.status()
    assert status["recoveriesTotal"] == 1 and status["recoveries"][0]["cause"] == "SignalKILL"
    assert job.end() == 0, job.output()
    assert losses_of(tmp_path) == under_torchrun


def test_nodes_without_a_number_get_one_from_the_coordinator(lockstep, tmp_path):
    """Three agents with the same command line, as torchrun's c10d backend has it."""
    words = [lockstep, "launch", "--status_port", "0", "--nnodes", "3", "--rdzv_endpoint", f"127.0.0.1:{free_port()}"]
    words += ["--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $GROUP_RANK"]
    nodes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=environment(LOCKSTEP_TOKEN="x", TMPDIR=str(tmp_path))) for _ in range(3)]
    output = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0], output
    assert sorted(re.findall(r"rank (\d) of 3 on (\d)", "".join(output))) == [("0", "0"), ("1", "1"), ("2", "2")], output


class OnATerminal:
    """`lockstep launch` with a terminal of its own."""

    def __init__(self, lockstep, folder, *words, **variables):
        self.seen = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(lockstep, [lockstep, "launch", "--status_port", "0", *words],
                      environment(**{"TERM": "xterm", "CI": "", **variables}))

    def wait_for(self, words):
        while words not in self.seen:
            self.seen += os.read(self.terminal, 4096)

    def write(self, text):
        os.write(self.terminal, text)

    def end(self):
        """The exit code."""
        try:
            while piece := os.read(self.terminal, 4096):
                self.seen += piece
        except OSError:
            pass  # the terminal is closed
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_progress_bar_of_the_program_is_drawn_while_its_line_has_not_ended(lockstep, tmp_path):
    """As tqdm does, with a carriage return and no newline."""
    (tmp_path / "train.py").write_text("""
import os, sys, threading
if os.environ["RANK"] == "1":
    os.mkfifo("go")
    print(" 10%|.  |", end="\\r", file=sys.stderr, flush=True)
    open("go").read()
    print("100%|...|", file=sys.stderr)
""")
    job = OnATerminal(lockstep, tmp_path, "--nproc", "2", "train.py", **WITHOUT_TORCH)
    job.wait_for(b"\r\x1b[K[rank 1]  10%|.  |")
    (tmp_path / "go").write_text("")
    assert job.end() == 0, job.seen
    assert b"\r\x1b[K[rank 1] 100%|...|\r\n" in job.seen, job.seen


def test_one_rank_has_the_terminal_for_a_debugger(lockstep, tmp_path):
    (tmp_path / "train.py").write_text("import os, sys\nx = 6\nbreakpoint()\nprint('the end', sys.stdin.isatty())\n")
    job = OnATerminal(lockstep, tmp_path, "--local_ranks_filter", "0", "train.py")
    job.wait_for(b"(Pdb)")
    job.write(b"p x * 7\n")
    job.wait_for(b"42")
    job.write(b"c\n")
    job.wait_for(b"the end True")
    assert job.end() == 0, job.seen


def test_the_cache_of_compiled_code_is_the_same_after_a_restart(launch):
    script = 'echo cache $TORCHINDUCTOR_CACHE_DIR; [ $TORCHELASTIC_RESTART_COUNT = 1 ]'
    done = launch("--", "sh", "-c", script, TORCHINDUCTOR_CACHE_DIR="/kept")
    assert done.returncode == 0 and done.stdout.count("cache /kept") == 2, text(done)
