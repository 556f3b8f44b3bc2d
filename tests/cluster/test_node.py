"""What a killed run with real nodes has left behind is found and removed by the next one."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

import processes
from host_traces import missing_for_nodes, run
from node import BRIDGE
from waiting import wait_until

pytestmark = pytest.mark.skipif(bool(missing_for_nodes()), reason=missing_for_nodes())

# A run that is killed in the middle: a network, a node with containerd, a cgroup, a mount.
VICTIM = """
import sys, pathlib, types
sys.path.insert(0, {here!r})
import processes
from certificates import Certificates
from host_traces import HostTraces, run
from node import Network, Node
from waiting import pause
lock = processes.one_at_a_time()
folder = processes.make_run_folder()
traces = HostTraces(folder)
node = Node(types.SimpleNamespace(folder=folder), Network(traces, "victim"), traces, 0).start()
(folder / "mounted").mkdir()
run("mount", "-t", "tmpfs", "none", folder / "mounted")
print(folder, node.processes["containerd"].pid, flush=True)
while True: pause(1)
"""


def cgroups():
    return list(pathlib.Path("/sys/fs/cgroup").glob("**/lockstep-victim-0"))


def test_a_killed_run_s_nodes_are_removed(tmp_path):
    script = tmp_path / "victim.py"
    script.write_text(VICTIM.format(here=str(pathlib.Path(__file__).parent)), encoding="utf-8")
    # A registry of its own: other tests end what they find in the common one. Short, for the sockets' paths.
    root = pathlib.Path(tempfile.mkdtemp(prefix="ls-"))
    victim = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "TMPDIR": str(root)})
    folder, containerd = victim.stdout.readline().split()
    assert "lockstep-victim-0" in run("ip", "netns") and BRIDGE in run("ip", "link") and cgroups()
    assert f"{folder}/mounted" in pathlib.Path("/proc/mounts").read_text(encoding="utf-8")
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert processes.start_time(int(containerd)) is not None

    ended = processes.end_leftovers(processes.registry(root))
    assert "node-0.containerd" in [record["name"] for record in ended]
    wait_until(lambda: processes.start_time(int(containerd)) is None, "end of containerd")
    assert "lockstep-victim-0" not in run("ip", "netns") and BRIDGE not in run("ip", "link")
    assert not cgroups() and not pathlib.Path(folder).exists()
    assert folder not in pathlib.Path("/proc/mounts").read_text(encoding="utf-8")
    shutil.rmtree(root)
