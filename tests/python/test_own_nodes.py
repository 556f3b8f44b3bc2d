"""Programs that use the package `lockstep` on several nodes: agents of one machine, of which one is lost with its ranks."""
import pytest

from programs import clean_environment, text
from test_own_program import CASES, PACKAGE, VENV, assert_equal, launch, own, result_of  # noqa: F401  (launch and own are fixtures)


@pytest.fixture
def nodes(lockstep, run, tmp_path):
    """nodes("--case", …) → CompletedProcess of a launch of three nodes with one rank each."""
    def call(*words):
        return run([lockstep, "launch", "--status_port", "0", "--local_nodes", "3", "--nproc", "1", "--max_restarts", "20", CASES, "--folder",
                    tmp_path, *words], cwd=tmp_path,
                   **clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1",
                                       XDG_CACHE_HOME=str(tmp_path.parent / "cache"), LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints")))
    return call


@pytest.mark.parametrize("moment", ["0:4:backward", pytest.param("1:5:last gradient", marks=pytest.mark.long)])
def test_a_lost_node_changes_no_bit(own, nodes, tmp_path, moment):  # noqa: F811
    done = nodes("--case", "Transformer", "--kill-agent", moment)
    assert done.returncode == 0 and (tmp_path / "agent-killed-0").exists(), text(done)
    assert_equal(result_of(tmp_path), result_of(own("Transformer")))


@pytest.mark.long
def test_random_states_that_are_lost_with_a_node_are_said(nodes, tmp_path):
    done = nodes("--case", "Unseeded", "--kill-agent", "1:5:backward")
    assert done.returncode == 0, text(done)
    assert text(done).count("lockstep: the random states of rank 1 are lost with its node: it goes on with others, seeded by the step") == 1
    results = result_of(tmp_path)
    assert len({end for _, end in results}) == 1, "the ranks do not hold the same"
    assert all(len(losses) >= 11 for losses, _ in results)


@pytest.mark.long
def test_all_nodes_end_together_and_go_on_later(own, nodes, tmp_path):  # noqa: F811
    stopped = nodes("--case", "Transformer", "--checkpoint", "5", "--stop", "0:6:backward")
    assert stopped.returncode == 143, text(stopped)
    assert "step-00000007" in {path.name for path in (tmp_path / "checkpoints").iterdir()}, text(stopped)
    done = nodes("--case", "Transformer", "--checkpoint", "5")
    assert done.returncode == 0, text(done)
    assert_equal(result_of(tmp_path), result_of(own("Transformer")))
