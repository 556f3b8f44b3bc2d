"""Completion in real shells: keys go in at a terminal, the command line comes out."""
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import termios
import time

import pytest

from programs import clean_environment

TAB = "\t"
PATIENCE = 60  # seconds; a busy machine
# How each shell is started without anybody's settings, and what makes it complete lockstep.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(lockstep completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u -D && source <(lockstep completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "lockstep completion fish | source"),
}
ESCAPES = re.compile(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[=>()][0B]?|[\r\x07]")


def take_terminal():
    """Makes standard input the session's terminal: fish ends without one."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Shell:
    """A shell at a terminal of its own."""

    def __init__(self, name, lockstep, folder):
        argv, setup = SHELLS[name]
        self.ours, theirs = pty.openpty()
        path = f"{lockstep.parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
                                        start_new_session=True, preexec_fn=take_terminal,
                                        env=clean_environment(PATH=path, TERM="xterm", HOME=str(folder), PS1="$ ",
                                                              PROMPT="$ ", XDG_DATA_HOME=str(folder)))
        os.close(theirs)
        self.said = ""
        self.keys(f"{setup}; echo r''eady\n")
        self.wait_for("ready\n")

    def keys(self, text):
        os.write(self.ours, text.encode())

    def wait_for(self, text):
        deadline = time.monotonic() + PATIENCE
        while text not in ESCAPES.sub("", self.said):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.ours], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not come; said: {self.said!r}")
            chunk = os.read(self.ours, 65536).decode(errors="replace")
            if "\x1b[c" in chunk or "\x1b[0c" in chunk:
                os.write(self.ours, b"\x1b[?62c")  # a newer fish asks what terminal this is
            self.said += chunk

    def completed(self, typed, expected):
        """Types, presses TAB, and waits until the line holds what was expected; then throws the line away."""
        self.said = ""
        self.keys(typed + TAB)
        self.wait_for(expected)
        self.keys("\x15")  # Ctrl-U; an interrupt would take typed keys with it

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.ours)


@pytest.fixture(params=sorted(SHELLS))
def shell(request, lockstep, tmp_path):
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine: scripts/setup test brings it")
    (tmp_path / "checkpoint-folder").mkdir()
    (tmp_path / "data-file.inter").write_text("")
    opened = Shell(request.param, lockstep, tmp_path)
    yield opened
    opened.close()


def test_commands_workloads_flags_values_and_paths_complete(shell):
    shell.completed("lockstep doc", "lockstep doctor ")
    shell.completed("lockstep run sas", "lockstep run sasrec ")
    shell.completed("lockstep run sasrec --grad_acc", "--grad_accum_steps ")
    shell.completed("lockstep run sasrec --grad-acc", "--grad-accum-steps ")
    shell.completed("lockstep run sasrec --backend gl", "--backend gloo ")
    shell.completed("lockstep run sasrec --lr 0.1 --backend=gl", "--backend=gloo ")
    shell.completed("lockstep run sasrec --dataset data-f", "--dataset data-file.inter ")
    shell.completed("lockstep run sasrec --dataset=data-f", "--dataset=data-file.inter ")
    shell.completed("lockstep run sasrec --resume check", "--resume checkpoint-folder/")
    shell.completed("lockstep ckpt ver", "lockstep ckpt verify ")
    shell.completed("lockstep ckpt ls check", "lockstep ckpt ls checkpoint-folder/")
    shell.completed("lockstep chaos kill-a", "lockstep chaos kill-agent ")
