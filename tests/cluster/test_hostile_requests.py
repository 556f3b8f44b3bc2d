"""What may come to the operator's port, from anywhere, while it works: nothing crashes, probes and scrapes are answered."""
import concurrent.futures
import contextlib
import pathlib
import socket
import sys

import pytest

from train_jobs import Jobs

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from raw_http import ask, code_of, get, resident_bytes  # noqa: E402

SCRAPES = 300
SLOW_PEERS = 300
PROBE_SECONDS = 10  # a busy machine; the kubelet would give a probe so long at the most
HOSTILE = (
    (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", 431),
    (b"GET /../../../etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET /metrics\0 HTTP/1.1\r\n\r\n", 400),
    (b"\0" * 1000 + b"\r\n\r\n", 400),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5_000_000, 413),
)


@pytest.fixture
def process(api, kubelet, operator):
    """An operator that works: it sees a job to its first pods after whatever was done to it."""
    running = operator()
    pid = running.pid
    yield running
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    assert running.is_running() and running.pid == pid


def test_hundreds_of_scrapes_at_once_are_all_answered(process):
    with concurrent.futures.ThreadPoolExecutor(SCRAPES) as pool:
        answers = list(pool.map(lambda _: get(process.port, "/metrics"), range(SCRAPES)))
    assert {code_of(answer) for answer in answers} == {200}
    assert all(b"workqueue_depth" in answer for answer in answers)


def test_peers_that_never_end_their_request_keep_no_probe_waiting(process):
    with contextlib.ExitStack() as open_connections:
        for _ in range(SLOW_PEERS):
            peer = open_connections.enter_context(socket.create_connection(("127.0.0.1", process.port), timeout=60))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert code_of(get(process.port, path, PROBE_SECONDS)) == 200, path


def test_hostile_requests_are_refused_and_cost_no_memory(process):
    def one_round():
        for request, expected in HOSTILE:
            answer = ask(process.port, request)
            assert code_of(answer) == expected, (request[:80], answer[:200])
            assert b"root:" not in answer
    one_round()
    before = resident_bytes(process.pid)
    for _ in range(10):
        one_round()
    grown = resident_bytes(process.pid) - before
    assert grown < 16 << 20, f"the operator grew by {grown >> 20} MiB"
