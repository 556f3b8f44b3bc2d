"""The operator as a process beside a test: started with given flags, asked, killed, and its log read."""
import json
import os
import pathlib
import re
import signal
import urllib.error
import urllib.request

from kube_api import NO_ANSWER
from processes import Process

ROOT = pathlib.Path(__file__).resolve().parents[2]
SANITIZER_REPORT = re.compile(r"(WARNING|ERROR): \w+Sanitizer|: runtime error: ")
OPERATOR = ("lockstep-system", "lockstep-operator")  # its ServiceAccount, and its Lease


def operator_binary():
    """LOCKSTEP_BIN (ctest sets it), else the preset dev's."""
    return pathlib.Path(os.environ.get("LOCKSTEP_BIN", ROOT / "build/dev/bin")) / "lockstep-operator"


class OperatorProcess(Process):
    """start() … stop(); `with` does both. A second start() is a new process with the same flags and port.

    namespace: None for all; group: the file of a memory_group() that it joins; flags: name → value, given as --name=value (True: --name=true). Its kubeconfig is the
    administrator's unless one is given: what RBAC allows is tested with kubeconfig_of_service_account()."""

    def __init__(self, control_plane, namespace=None, kubeconfig=None, name="operator", token_key=bytes(range(32)),
                 leader_elect=False, group=None, **flags):
        self.port = control_plane.ports.take()
        key_file = control_plane.folder / f"{name}.key"
        key_file.write_bytes(token_key)
        flags = {"kubeconfig": kubeconfig or control_plane.kubeconfig, "token_key_file": key_file,
                 "metrics_port": self.port, "leader_elect": leader_elect, **flags}
        if namespace:
            flags["namespace"] = namespace
        # Nothing of the environment of the tests reaches it.
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(control_plane.folder)}

        def text(value):
            return str(value).lower() if isinstance(value, bool) else str(value)
        argv = [operator_binary(), *(f"--{flag}={text(value)}" for flag, value in flags.items())]
        if group is not None:
            argv = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', group, *argv]
        super().__init__(name, argv, control_plane.folder, environment)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def start(self, wait=True):
        """wait: until /readyz answers 200."""
        super().start()
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout=60):
        self.wait_until(lambda: self.answers("readyz"), "answer to /readyz", timeout)

    def wait_until_alive(self):
        """/healthz answers; fails at once when the operator has ended."""
        self.wait_until(lambda: self.answers("healthz"), "answer to /healthz")

    def answers(self, path):
        """Is the answer to this path a 200?"""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=2) as answer:
                return answer.status == 200
        except NO_ANSWER:
            return False

    def readyz(self):
        """The answer's text, also that of a 503; "" if there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.read().decode()
        except OSError:
            return ""

    def metrics(self):
        """name{labels} → value of /metrics, as soon as it answers."""
        lines = self.wait_until(self.lines_of_metrics, "answer to /metrics")
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def lines_of_metrics(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                return answer.read().decode().splitlines()
        except NO_ANSWER as error:
            raise AssertionError(f"/metrics: {error!r}") from error

    # --- faults

    def kill(self):
        """SIGKILL. An operator that was built with a sanitizer must have had nothing to report."""
        code = self.stop(signal.SIGKILL)
        report = SANITIZER_REPORT.search(self.log())
        assert report is None, self.log()[report.start():][:4000]
        return code

    def terminate(self, timeout=60):
        """SIGTERM; the exit code."""
        return self.stop(signal.SIGTERM, timeout)

    # --- its log

    def records(self):
        """The lines of its log, which are JSON objects, as long as the last one is whole. Lines of sanitizers and the
        like are left out: log() has them."""
        found = []
        for line in self.log().splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue
        return found
