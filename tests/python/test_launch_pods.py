"""`lockstep launch` with the variables that the operator gives its pods: their number changes, and the program is told to stop."""
import signal

import pytest

from jobs import free_port
from runs import Running

PROGRAM = "echo world $WORLD_SIZE rank $RANK; trap 'echo rank $RANK has saved; exit 0' TERM; while true; do sleep 0.1; done"


@pytest.fixture
def pod(lockstep, tmp_path):
    coordinator = f"127.0.0.1:{free_port()}"

    def start(node, attempt=0):
        return Running([lockstep, "launch", "--", "sh", "-c", PROGRAM], tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1",
                       LOCKSTEP_JOB="job", LOCKSTEP_NAMESPACE="team", LOCKSTEP_JOB_UID="uid", LOCKSTEP_RUN="1",
                       LOCKSTEP_NODE_RANK=str(node), LOCKSTEP_NUM_NODES="2", LOCKSTEP_MIN_NODES="1",
                       LOCKSTEP_MAX_NODES="2", LOCKSTEP_NPROC_PER_NODE="1", LOCKSTEP_COORDINATOR=coordinator,
                       LOCKSTEP_POD_ATTEMPT=str(attempt), LOCKSTEP_TOKEN="t" * 32, LOCKSTEP_REJOIN_TIMEOUT_SECONDS="1",
                       LOCKSTEP_STALL_TIMEOUT_SECONDS="600", LOCKSTEP_STATUS_PORT=str(free_port()),
                       LOCKSTEP_STOP_TIMEOUT_SECONDS="30",
                       LOCKSTEP_TERMINATION_LOG=str(tmp_path / f"termination-{node}-{attempt}"))
    return start


def test_an_elastic_program_goes_on_with_another_number_of_ranks(pod, tmp_path):
    first, second = pod(0), pod(1)
    first.wait_for(lambda: "world 2 rank 0" in first.output(), "two ranks")
    second.wait_for(lambda: "world 2 rank 1" in second.output(), "two ranks")
    second.process.kill()
    first.wait_for(lambda: "world 1 rank 0" in first.output(), "one rank")
    third = pod(1, attempt=1)
    third.wait_for(lambda: "world 2 rank 1" in third.output(), "two ranks again")
    first.wait_for(lambda: first.output().count("world 2 rank 0") == 2, "two ranks again")
    for one in (first, third):
        one.signal(signal.SIGTERM)
    assert (first.end(), third.end()) == (143, 143), first.output() + third.output()
    assert "rank 0 has saved" in first.output() and "rank 1 has saved" in third.output()
    assert '"exitCode":143' in (tmp_path / "termination-0-0").read_text(encoding="utf-8")
