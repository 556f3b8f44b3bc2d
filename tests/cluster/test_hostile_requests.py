"""Hostile requests to the operator's port while it works: nothing crashes, probes and scrapes are answered."""
import pathlib
import sys

import pytest

from train_jobs import Jobs

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from raw_http import (HOSTILE, assert_refused_at_no_cost, assert_scrapes_at_once_are_answered,  # noqa: E402
                      assert_slow_peers_keep_no_probe_waiting)

TOO_LARGE = (b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5_000_000, 413)


@pytest.fixture
def process(api, kubelet, operator):
    """An operator that still works after the test: it must then create the pods of a job."""
    running = operator()
    pid = running.pid
    yield running
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    assert running.is_running() and running.pid == pid


def test_hundreds_of_scrapes_at_once_are_all_answered(process):
    assert_scrapes_at_once_are_answered(process.port, 300, b"workqueue_depth")


def test_peers_that_never_end_their_request_keep_no_probe_waiting(process):
    assert_slow_peers_keep_no_probe_waiting(process.port, 300)


def test_hostile_requests_are_refused_and_cost_no_memory(process):
    assert_refused_at_no_cost(process.port, process.pid, (*HOSTILE, TOO_LARGE))
