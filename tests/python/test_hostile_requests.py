"""What may come to the agent's port, from anywhere, while it trains: nothing crashes, scrapes are answered."""
import concurrent.futures
import contextlib
import re
import signal
import socket
import time

import pytest

from raw_http import ask, code_of, get, resident_bytes
from runs import SMALL_MODEL, Running

SCRAPES = 500
SLOW_PEERS = 400
PROBE_SECONDS = 10  # a busy machine; the kubelet would give a probe so long at the most


def steps_of(port):
    return int(re.search(rb'"step": (\d+)', get(port, "/status")).group(1))


@pytest.fixture
def training(lockstep, small_dataset, tmp_path, free_port):
    """A run of two ranks that can be told something by its operator; ends as it should, whatever was done to it."""
    port = free_port()
    folder = tmp_path / "run"
    running = Running([lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", folder, "--nproc", "2",
                       "--log_every", "1", *SMALL_MODEL, "--max_steps", "1000000", "--status_port", port,
                       "--nnodes", "1:3", "--node_rank", "0", "--rejoin_timeout_seconds", "1",
                       "--coordinator", f"127.0.0.1:{free_port()}"], tmp_path, LOCKSTEP_TOKEN="secret")
    running.wait_for_step(folder, 5)
    running.port = port
    workers = running.worker_pids()
    yield running
    before = steps_of(port)
    running.wait_for(lambda: steps_of(port) > before, "a step after all that")
    assert running.worker_pids() == workers, running.output()
    running.signal(signal.SIGTERM)
    assert running.end() == 143, running.output()


def test_five_hundred_scrapes_at_once_are_all_answered(training):
    with concurrent.futures.ThreadPoolExecutor(SCRAPES) as pool:
        answers = list(pool.map(lambda _: get(training.port, "/metrics"), range(SCRAPES)))
    assert {code_of(answer) for answer in answers} == {200}
    assert all(b"lockstep_steps_total" in answer for answer in answers)


def test_peers_that_never_end_their_request_keep_no_probe_waiting(training):
    with contextlib.ExitStack() as open_connections:
        for _ in range(SLOW_PEERS):
            peer = open_connections.enter_context(socket.create_connection(("127.0.0.1", training.port), timeout=60))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        for path in ("/healthz", "/readyz", "/metrics"):
            begin = time.monotonic()
            assert code_of(get(training.port, path, PROBE_SECONDS)) == 200, path
            assert time.monotonic() - begin < PROBE_SECONDS, path


HOSTILE = (
    (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 5_000_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", 431),
    (b"GET /../../../etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET //etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", 404),
    (b"GET /metrics%00.html HTTP/1.1\r\n\r\n", 404),
    (b"GET /metrics\0 HTTP/1.1\r\n\r\n", 400),
    (b"\0" * 1000 + b"\r\n\r\n", 400),
    (b"\xff\xfe\r\n\r\n", 400),
    (b"DELETE /nodes HTTP/1.1\r\n\r\n", 405),
    (b"PUT /coordinator HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405),
    (b"TRACE / HTTP/1.1\r\n\r\n", 405),
    (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
    (b"POST /nodes HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 5_000_000, 413),
    (b"POST /coordinator HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, 413),
    (b"POST /nodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n" + b"x" * 1_048_575 + b"\r\n0\r\n\r\n", 413),
    (b"POST /nodes HTTP/1.1\r\nContent-Length: 12\r\n\r\n{\"nodes\": 1}", 401),
    (b"POST /nodes HTTP/1.1\r\nAuthorization: Bearer " + b"s" * 7000 + b"\r\nContent-Length: 12\r\n\r\n{\"nodes\": 1}",
     401),
    (b"POST /nodes HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 1000\r\n\r\n" + b"[" * 1000, 400),
    (b"POST /nodes HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 11\r\n\r\n{\"nodes\":1e9", 400),
)


def test_hostile_requests_are_refused_and_cost_no_memory(training):
    def one_round():
        for request, expected in HOSTILE:
            answer = ask(training.port, request)
            assert code_of(answer) == expected, (request[:80], answer[:200])
            assert b"root:" not in answer
    one_round()
    before = resident_bytes(training.process.pid)
    for _ in range(10):
        one_round()
    grown = resident_bytes(training.process.pid) - before
    assert grown < 16 << 20, f"the agent grew by {grown >> 20} MiB"
