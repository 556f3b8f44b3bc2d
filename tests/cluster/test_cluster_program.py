"""`make cluster`: a control plane with the operator to play with, started, used as its words say, and ended."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from waiting import wait_until

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture
def cluster(tmp_path):
    """cluster(words…) → CompletedProcess; in a registry of its own, and ended whatever happens."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def call(*words):
        return subprocess.run([sys.executable, HERE / "cluster.py", *words], capture_output=True, text=True, check=False,
                              timeout=240, env=environment)
    yield call
    call("stop")


def test_it_starts_runs_what_it_says_and_ends(cluster):
    assert cluster("status").returncode == 1 and "none runs" in cluster("stop").stdout
    started = cluster("run", "--detach")
    assert started.returncode == 0, started.stdout + started.stderr
    assert "with 4 fake nodes and the operator" in started.stdout
    assert cluster("status").stdout.strip() in started.stdout and cluster("status").returncode == 0
    again = cluster("run", "--detach")
    assert again.returncode == 1 and "One runs already" in again.stdout

    def said(command):
        """The output of this command, after the export that the greeting shows."""
        export = re.search(r"^export .*$", started.stdout, re.M)[0]
        return subprocess.run(["bash", "-c", f"{export}\n{command}"], capture_output=True, text=True, check=False,
                              cwd=ROOT, timeout=60)
    tried = [line.strip() for line in started.stdout.splitlines() if line.startswith("  kubectl")]
    assert tried[0].startswith("kubectl apply") and said(tried[0]).returncode == 0
    wait_until(lambda: re.search(r"sasrec-0-0 .*Running(.|\n)*sasrec-1-0 .*Running", said(tried[1]).stdout), "two pods", 90,
               lambda: said(tried[1]).stdout)
    assert said(tried[2]).returncode == 0 and "trainer" in said(tried[2]).stdout
    assert said(tried[3].replace("NAME", "sasrec-1-0")).returncode == 0
    wait_until(lambda: "sasrec-1-1" in said(tried[1]).stdout, "a replacement on another node", 60,
               lambda: said(tried[1]).stdout)

    assert "ended" in cluster("stop").stdout
    assert cluster("status").returncode == 1 and said(tried[1]).returncode != 0
