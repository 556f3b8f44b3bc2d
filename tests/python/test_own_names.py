"""Each argument, attribute and public method of torch's DistributedDataParallel is in the package's table, which is that of the docs, and each
is what the table says."""
import json
import subprocess
import sys

import pytest

from own_runs import OWN, PACKAGE, launch  # noqa: F401
from programs import ROOT, clean_environment, python_with_torch, text

sys.path.insert(0, str(PACKAGE))
from lockstep._ddp_names import NAMES  # noqa: E402

# What only newer versions of torch have than the one of these tests.
NEWER = {"argument": {"batched_grad_copy", "forward_sync_buffers", "lazy_bucket_allocation"},
         "attribute": {"batched_grad_copy", "forward_sync_buffers", "lazy_bucket_allocation", "require_manual_backward_finalization",
                       "should_finalize_after_backward"},
         "method": {"finalize_backward"}}
# Attributes that a wrapper has when it was given something.
RARE = {"device_mesh", "buffer_hook"}


def names_of_torchs(python):
    """kind → names, of the torch of this Python."""
    done = subprocess.run([python, OWN / "names.py"], capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, text(done)
    return {kind: set(names) for kind, names in json.loads(done.stdout).items()}


def names_of_table(kind):
    return {row.name for row in NAMES if row.kind == kind}


def test_the_table_has_all_names_of_torch():
    found = names_of_torchs(sys.executable)
    for kind, names in found.items():
        assert names_of_table(kind) - NEWER[kind] - (RARE if kind == "attribute" else set()) == names, kind


@pytest.mark.long
@pytest.mark.parametrize("version", ["2.4.0", "2.15.0"])
def test_the_table_has_all_names_of_other_versions_of_torch(version):
    for kind, names in names_of_torchs(python_with_torch(version)).items():
        assert names <= names_of_table(kind), kind


def test_the_docs_have_the_same_table():
    page = (ROOT / "docs/your-own-program.md").read_text()
    part = page.split("## DistributedDataParallel, argument by argument")[1].split("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in part.splitlines() if line.startswith("| `")]
    assert rows == [(f"`{row.name}`", row.kind, f"refused: {row.words}" if row.is_refused else row.words) for row in NAMES]


def test_each_name_is_what_the_table_says(launch):  # noqa: F811
    done = launch(OWN / "walk.py", max_restarts=0)
    assert done.returncode == 0, text(done)
    assert all(f"rank {rank}: all as it is written" in text(done) for rank in range(3)), text(done)
