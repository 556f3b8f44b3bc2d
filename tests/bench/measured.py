"""What a program printed, and the memory that it took."""
import os
import subprocess


def run(command, **environment):
    """(its standard output, the most MiB that were resident in it or in one of the processes that it waited for)"""
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"exit code {child.returncode} from: {' '.join(map(str, command))}\n{output[-2000:]}")
    return output, usage.ru_maxrss / 1024
