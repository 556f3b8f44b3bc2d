"""What a program printed, and the memory that it took."""
import os
import pathlib
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from jobs import free_port, read_metrics


def run(command, **environment):
    """(its standard output, the most MiB that were resident in it or in one of the processes that it waited for)"""
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"exit code {child.returncode} from: {' '.join(map(str, command))}\n{output[-2000:]}")
    return output, usage.ru_maxrss / 1024


class GpuMemory:
    """The most MiB of a GPU that a run's allocator has reserved, read from its metrics (--status_port) while the block lasts.
    For a run on a CPU the port is 0 and nothing is read: it would take time from the run."""

    def __init__(self, device):
        self.port, self.mib, self.ended = free_port() if device == "cuda" else 0, 0.0, threading.Event()
        self.reader = threading.Thread(target=self._read)

    def __enter__(self):
        if self.port:
            self.reader.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        if self.port:
            self.reader.join()

    def _read(self):
        while not self.ended.wait(0.2):
            try:
                found = re.search(r'^lockstep_device_memory_bytes\{[^}]*kind="peak".*\} (\S+)', read_metrics(self.port), re.M)
            except OSError:  # the run is not listening yet, or has ended
                continue
            self.mib = max(self.mib, float(found[1]) / 2**20 if found else 0.0)
