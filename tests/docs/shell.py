"""One bash for the commands of a page: variables, folders and jobs in the background last from command to command."""
import os
import pathlib
import re
import select
import signal
import subprocess
import time

TRY_AGAIN_SECONDS = 90
WATCH_SECONDS = 4
# What only looks, at something that an earlier command may just have started: a person would look again.
LOOKS = re.compile(r"^(curl|tail|lockstep chaos|lockstep ckpt|kubectl (get|describe|wait|lockstep))\b")
# Goes on until Ctrl-C: it gets one, and must have shown something by then.
WATCHES = re.compile(r"^(kubectl (get\b.* (-w|--watch)|logs\b.* (-f|--follow))\b|tensorboard\b|watch\b)")


class Shell:
    """folder: where it starts and writes its log; environment: all that it gets; argv: bash, if not this machine's;
    watches: which commands get a Ctrl-C."""

    def __init__(self, folder, environment, argv=("bash", "--noprofile", "--norc"), watches=WATCHES):
        self.watches = watches
        self.log_path = pathlib.Path(folder) / ".shell.log"
        self.log = open(self.log_path, "w", encoding="utf-8")
        self.results, write_end = os.pipe()
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, cwd=folder, text=True,
            env={**environment, "RESULT_FD": str(write_end)}, pass_fds=[write_end], start_new_session=True)
        os.close(write_end)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends the shell and whatever it left in the background, by its session."""
        self.process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.session():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 20
            while self.session() and time.monotonic() < deadline:
                select.select([], [], [], 0.05)
        self.process.wait()
        os.close(self.results)
        self.log.close()

    def session(self):
        """Processes of this shell's session that have not ended."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, _, _, session = text.rpartition(") ")[2].split()[:4]  # pid (name) state parent group session …
            if int(session) == self.process.pid and state != "Z":
                found.append(int(path.parent.name))
        return found

    def run(self, command, timeout):
        """(exit code, output). A command that looks at something may look again for a while."""
        deadline = time.monotonic() + TRY_AGAIN_SECONDS
        while True:
            code, output = self.run_once(command, timeout)
            if code == 0 or not LOOKS.match(command) or time.monotonic() > deadline:
                return code, output
            select.select([], [], [], 0.5)

    def run_once(self, command, timeout):
        before = self.log_path.stat().st_size
        watching = self.watches.match(command)
        line = f"timeout --signal=INT --kill-after=10 {WATCH_SECONDS} {command}" if watching else command
        self.process.stdin.write(f"{{\n{line}\n}} </dev/null\nprintf '%d\\n' $? >&$RESULT_FD\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.results], [], [], timeout)
        output = self.output_since(before)
        if not ready:
            raise AssertionError(f"$ {command}\nhas not ended after {timeout} s\n{output}")
        code = int(os.read(self.results, 64).split()[0])
        if watching:
            # timeout says 124 for "was ended in time", and so does Ctrl-C mean no failure.
            code = 0 if code in (124, 130) and output.strip() else code or 1
        return code, output

    def output_since(self, position):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            log.seek(position)
            return log.read()
