"""Programs of the frameworks that people use, and the examples, under `lockstep launch`: their losses are those under torchrun."""
import re
import subprocess

import pytest

from programs import ROOT, text
from test_launch import PROGRAMS, TORCHRUN, environment

EXAMPLES = ROOT / "examples/python"


@pytest.fixture
def launch(lockstep, run, tmp_path):
    """Runs `lockstep launch` with two ranks to its end, in the folder's own cache of what programs import."""
    def call(*words):
        done = run([lockstep, "launch", "--status_port", "0", "--nproc", "2", *map(str, words)], cwd=tmp_path,
                   **environment(XDG_CACHE_HOME=str(tmp_path / "cache")))
        assert done.returncode == 0 and "(Crash)" not in done.stderr, text(done)
        return done
    return call


def losses_of(folder):
    return [(folder / f"losses-{rank}.txt").read_text().splitlines() for rank in (0, 1)]


# Each of the long ones imports for 10 s and more, in each rank of torchrun.
@pytest.mark.parametrize("program", [
    "ddp_amp.py",
    pytest.param("with_accelerate.py", marks=pytest.mark.long),
    pytest.param("with_lightning.py", marks=pytest.mark.long),
    pytest.param("with_transformers.py", marks=pytest.mark.long),
])
def test_the_losses_of_all_steps_and_ranks_are_those_under_torchrun(launch, tmp_path, program):
    """Also when what the program has imported the last time is there already."""
    folders = {name: tmp_path / name for name in ("torchrun", "first", "second")}
    for folder in folders.values():
        folder.mkdir()
    subprocess.run([TORCHRUN, "--standalone", "--nproc_per_node", "2", PROGRAMS / program, "--folder", folders["torchrun"]],
                   check=True, capture_output=True, cwd=tmp_path, env=environment(), timeout=600)
    expected = losses_of(folders["torchrun"])
    assert all(len(losses) >= 8 for losses in expected) and expected[0] != expected[1]
    for name in ("first", "second"):
        launch(PROGRAMS / program, "--folder", folders[name])
        assert losses_of(folders[name]) == expected
    assert list((tmp_path / "cache/lockstep/imports").glob("*.json")), "nothing was remembered"


@pytest.mark.long  # half a minute each
@pytest.mark.parametrize("name, flag, short, long, said", [
    ("nano_gpt", "--steps", 20, 40, "going on from step 20"),
    ("resnet", "--epochs", 1, 2, "going on from epoch 1"),
    ("hf_finetune", "--steps", 20, 40, "going on from hf_finetune/checkpoint-20"),
    ("lightning_spirals", "--epochs", 1, 2, "going on from lightning_spirals/last.ckpt"),
])
def test_an_example_goes_on_from_its_own_checkpoint(launch, name, flag, short, long, said):
    assert "going on" not in launch(EXAMPLES / f"{name}.py", flag, short).stdout
    done = launch(EXAMPLES / f"{name}.py", flag, long)
    assert said in done.stdout and re.search(r"loss|accuracy", done.stdout), text(done)
