"""What may come to the agent's port, from anywhere, while it trains: nothing crashes, scrapes are answered."""
import re
import signal

import pytest

from raw_http import (HOSTILE, assert_refused_at_no_cost, assert_scrapes_at_once_are_answered,
                      assert_slow_peers_keep_no_probe_waiting, get)
from runs import SMALL_MODEL, Running


def steps_of(port):
    return int(re.search(rb'"step": (\d+)', get(port, "/status")).group(1))


@pytest.fixture
def training(lockstep, small_dataset, tmp_path, free_port):
    """A run of two ranks that can be told something by its operator; ends as it should, whatever was done to it."""
    port = free_port()
    folder = tmp_path / "run"
    running = Running([lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", folder, "--nproc", "2",
                       "--log_every", "1", *SMALL_MODEL, "--num_epochs", "1000000", "--status_port", port,
                       "--nnodes", "1:3", "--node_rank", "0", "--rejoin_timeout_seconds", "1",
                       "--coordinator", f"127.0.0.1:{free_port()}"], tmp_path, LOCKSTEP_TOKEN="secret")
    running.wait_for_step(folder, 5)
    running.wait_for(lambda: b"lockstep_steps_total" in get(port, "/metrics"), "metrics")
    running.port = port
    workers = running.worker_pids()
    yield running
    before = steps_of(port)
    running.wait_for(lambda: steps_of(port) > before, "a step after all that")
    assert running.worker_pids() == workers, running.output()
    running.signal(signal.SIGTERM)
    assert running.end() == 143, running.output()


def test_five_hundred_scrapes_at_once_are_all_answered(training):
    assert_scrapes_at_once_are_answered(training.port, 500, b"lockstep_steps_total")


def test_peers_that_never_end_their_request_keep_no_probe_waiting(training):
    assert_slow_peers_keep_no_probe_waiting(training.port, 400)


# Of what the agent takes in besides.
HOSTILE_TO_AGENT = (
    (b"DELETE /nodes HTTP/1.1\r\n\r\n", 405),
    (b"PUT /coordinator HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405),
    (b"TRACE / HTTP/1.1\r\n\r\n", 405),
    (b"POST /nodes HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5_000_000, 413),
    (b"POST /coordinator HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, 413),
    (b"POST /nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n" + b"x" * 1_048_575 + b"\r\n0\r\n\r\n", 413),
    (b"GET /outputs/../args.txt HTTP/1.1\r\n\r\n", 404),
    (b"GET /outputs/step-00000001/../../args.txt HTTP/1.1\r\n\r\n", 404),
    (b"GET /outputs/%2e%2e/args.txt HTTP/1.1\r\n\r\n", 404),
    (b"GET /outputs/" + b"a/" * 3000 + b" HTTP/1.1\r\n\r\n", 404),
    (b"POST /history HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405),
    (b"POST /nodes HTTP/1.1\r\nContent-Length: 12\r\n\r\n{\"nodes\": 1}", 401),
    (b"POST /nodes HTTP/1.1\r\nAuthorization: Bearer " + b"s" * 7000 + b"\r\nContent-Length: 12\r\n\r\n{\"nodes\": 1}",
     401),
    (b"POST /nodes HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 1000\r\n\r\n" + b"[" * 1000, 400),
    (b"POST /nodes HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 11\r\n\r\n{\"nodes\":1e9", 400),
)


def test_hostile_requests_are_refused_and_cost_no_memory(training):
    assert_refused_at_no_cost(training.port, training.process.pid, (*HOSTILE, *HOSTILE_TO_AGENT))
