"""`lockstep run` where somebody else has its ports."""
import contextlib
import socket

import pytest

from jobs import wait_until

DEFAULT_PORT = 8080
SMALL_MODEL = ["--hidden_units", "8", "--maxlen", "10", "--batch_size", "16"]  # and no word of a port


@pytest.fixture
def taken_port():
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        yield holder.getsockname()[1]


@contextlib.contextmanager
def default_port_taken():
    """Port 8080, by us or by whoever has it for good; who looks whether it is free lets go of it soon."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def is_ours():
            try:
                holder.bind(("0.0.0.0", DEFAULT_PORT))
                holder.listen()
            except OSError:
                return False
            return True
        with contextlib.suppress(AssertionError):
            wait_until(is_ours, "free port", timeout=5)
        yield


@pytest.fixture
def train(run, lockstep, small_dataset, tmp_path):
    def call(*flags, **environment):
        return run([lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", tmp_path / "run",
                    "--max_steps", "3", *SMALL_MODEL, *flags], **environment)
    return call


def test_a_status_port_that_was_asked_for_must_be_free(train, taken_port, tmp_path):
    done = train("--status_port", taken_port)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr == (f"lockstep: port {taken_port} for the status page is taken: choose another one with "
                           "--status_port N, or go without with --status_port 0\n")
    assert not (tmp_path / "run" / "metrics.jsonl").exists(), "nothing may start"


def test_the_default_status_port_may_be_somebody_elses(train):
    with default_port_taken():
        done = train()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"warning: no status page: port {DEFAULT_PORT} for the status page is taken" in done.stderr, done.stderr


def test_in_a_pod_the_default_status_port_must_be_free(train):
    with default_port_taken():
        done = train(KUBERNETES_SERVICE_HOST="10.96.0.1")
    assert done.returncode == 2 and f"port {DEFAULT_PORT} for the status page is taken" in done.stderr, done.stderr


def test_in_a_trainjob_s_pod_the_field_of_the_port_is_named(train, taken_port):
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "LOCKSTEP_JOB": "films", "LOCKSTEP_NAMESPACE": "team-a"}
    done = train(LOCKSTEP_STATUS_PORT=str(taken_port), **pod)
    assert done.returncode == 2 and f"port {taken_port} for the status page is taken" in done.stderr, done.stderr
    assert "set spec.trainer.statusPort of TrainJob films" in done.stderr and "--status_port" not in done.stderr
    done = train(LOCKSTEP_NODE_RANK="0", LOCKSTEP_NUM_NODES="2", LOCKSTEP_COORDINATOR=f"127.0.0.1:{taken_port}",
                 LOCKSTEP_TOKEN="secret", **pod)
    assert f"port {taken_port} for the other nodes" in done.stderr, done.stderr
    assert "set spec.trainer.coordinatorPort of TrainJob films" in done.stderr and "--coordinator" not in done.stderr


def test_a_taken_coordinator_port_ends_node_0_with_its_name(train, taken_port):
    done = train("--status_port", "0", "--nnodes", "2", "--node_rank", "0", "--coordinator", f"127.0.0.1:{taken_port}",
                 LOCKSTEP_TOKEN="secret")
    assert done.returncode != 0, done.stdout
    assert f"port {taken_port}" in done.stderr, done.stderr
    assert "--coordinator" in done.stderr, done.stderr


def test_the_port_of_a_run_that_has_just_ended_is_free(train, free_port):
    port = free_port()
    for _ in range(2):
        done = train("--status_port", port, "--no_tensorboard")
        assert done.returncode == 0, done.stderr
