"""What a person, Prometheus and the operator see of a real run: lines, HTTP, files."""
import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from jobs import http_get
from programs import ROOT
from runs import SMALL_MODEL, Running, records


def command(lockstep, dataset, folder, *flags):
    return [lockstep, "run", "sasrec", "--dataset", dataset, "--train_dir", folder, "--nproc", "2", "--log_every", "1",
            "--num_epochs", "1000000", *SMALL_MODEL, *flags]


def get_status(port):
    try:
        return json.loads(http_get(port, "/status")[2])
    except OSError:
        return {}  # not there yet


def test_the_http_server_tells_what_the_run_does(lockstep, small_dataset, tmp_path, free_port):
    port = free_port()
    folder = tmp_path / "run"
    running = Running(command(lockstep, small_dataset, folder, "--max_steps", "100000000", "--status_port", port), tmp_path)
    running.wait_for_step(folder, 20)
    running.wait_for(lambda: all(re.search(rf'^lockstep_steps_total\{{[^}}]*rank="{rank}"', http_get(port, "/metrics")[2], re.M)
                                 for rank in (0, 1)), "the workers' metrics")
    running.wait_for(lambda: (get_status(port).get("progress") or {}).get("step", 0) >= 1, "progress")
    assert http_get(port, "/healthz")[0] == 200
    assert http_get(port, "/readyz")[0] == 200
    status = json.loads(http_get(port, "/status")[2])
    assert len(status["workers"]) == 2 and status["progress"]["step"] >= 1
    page = http_get(port, "/")[2]
    assert "<html" in page and "http://" not in page.replace("http://www.w3.org", ""), "the page must need no other host"
    text = http_get(port, "/metrics")[2]
    assert 'rank="0"' in text and 'rank="1"' in text
    promtool = shutil.which("promtool")
    assert promtool, "promtool is not on PATH: run scripts/setup test"
    linted = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert linted.returncode == 0 and not linted.stderr, linted.stderr
    assert http_get(port, "/nothing")[0] == 404
    running.signal(signal.SIGTERM)
    assert running.end() == 143, running.output()


def post(port, path, body, token=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body.encode(), method="POST")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_each_part_of_the_start_is_timed_and_so_is_reading_a_checkpoint(lockstep, small_dataset, tmp_path, free_port):
    port = free_port()
    folder = tmp_path / "run"
    words = [lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", folder, *SMALL_MODEL,
             "--num_epochs", "1000000", "--status_port", port, "--checkpoint_every", "5"]

    def seconds():
        """phase → seconds since the process began; nothing while nobody answers."""
        try:
            text = http_get(port, "/metrics")[2]
        except OSError:
            return {}
        found = re.findall(r'^lockstep_startup_seconds\{.*phase="(\w+)".*\} (\S+)$', text, re.M)
        return {phase: float(value) for phase, value in found}

    def parts(restored):
        running = Running([*words, "--max_steps", "100000000"], tmp_path)
        running.wait_for(lambda: "first_step" in seconds(), "the first step's time")
        found = seconds()
        assert list(sorted(found, key=found.get)) == ["process", "load", "rendezvous", "restore", "first_step"]
        text = http_get(port, "/metrics")[2]
        read = re.search(r'^lockstep_checkpoint_duration_seconds_count\{.*phase="restore".*\} 1$', text, re.M)
        assert bool(read) == restored
        running.wait_for_step(folder, 10)
        running.signal(signal.SIGTERM)
        assert running.end() == 143, running.output()
    parts(restored=False)
    parts(restored=True)


def test_only_the_operator_says_how_many_nodes_are_wanted(lockstep, small_dataset, tmp_path, free_port):
    port = free_port()
    running = Running(command(lockstep, small_dataset, tmp_path / "run", "--max_steps", "100000000", "--status_port", port,
                              "--nnodes", "1:3", "--node_rank", 0, "--rejoin_timeout_seconds", "1", "--coordinator",
                              f"127.0.0.1:{free_port()}"), tmp_path, LOCKSTEP_TOKEN="secret")
    running.wait_for(lambda: get_status(port).get("wantedNodes") == 3, "the status page")
    for token in (None, "", "wrong", "secretly", "secre"):
        code, text = post(port, "/nodes", '{"nodes": 1}', token)
        assert code == 401 and "LOCKSTEP_TOKEN" in text, text
    for body, told in (("", "expected"), ("[]", "found []"), ('{"nodes": "2"}', 'found {"nodes":"2"}'),
                       ('{"nodes": 0}', "nodes is 0, expected"), ('{"nodes": 4}', "1 to 3"), ("{", "expected")):
        code, text = post(port, "/nodes", body, "secret")
        assert code == 400 and told in text, text
    assert post(port, "/nodes", " " * 2000, "secret")[0] == 413
    assert post(port, "/status", "{}", "secret")[0] == 405
    code, text = post(port, "/coordinator", '{"address": "10.0.0.7"}', "secret")
    assert code == 409 and "this is node 0" in text, text
    assert get_status(port)["wantedNodes"] == 3
    assert post(port, "/nodes", '{"nodes": 1}', "secret") == (202, '{"nodes":1}\n')
    running.wait_for(lambda: get_status(port)["wantedNodes"] == 1, "the wanted number")
    running.signal(signal.SIGTERM)
    assert running.end() == 143, running.output()


def test_gpus_that_a_build_for_cpus_cannot_use_are_warned_of(run, lockstep, worker, small_dataset, tmp_path):
    # The agent of a build for CPUs counts no GPUs: the worker is told of two on its way. (In a build with CUDA this is a
    # device fault: tests/runner/loop/device_test.cc.)
    told = tmp_path / "told.sh"
    told.write_text(f'#!/bin/sh\nLOCKSTEP_GPUS=2 exec "{worker}" "$@"\n')
    told.chmod(0o755)
    for program, warns in ((told, True), (worker, False)):
        done = run(command(lockstep, small_dataset, tmp_path / program.stem, "--max_steps", "2"), LOCKSTEP_WORKER=str(program))
        assert done.returncode == 0, done.stdout + done.stderr
        warning = "the driver shows 2 GPUs, but this build has no CUDA: training on the CPU with 2 ranks"
        assert ((done.stdout + done.stderr).count(warning) == 1) == warns, done.stdout + done.stderr


def test_the_lines_of_a_run(run, lockstep, small_dataset, tmp_path):
    done = run(command(lockstep, small_dataset, tmp_path / "run", "--max_steps", "30", "--lr_scaling", "linear",
                       "--use_amp"), NCCL_DEBUG="WARN", NO_COLOR="1")
    assert done.returncode == 0, done.stdout + done.stderr
    both = done.stdout + done.stderr
    assert "no GPU found, training on the CPU with 2 ranks" in both
    for row in (r"workload +sasrec", r"ranks +2", r"batch +12 in all = 2 ranks x 1 micro-batch of at most 6",
                r"learning rate +0\.002, constant \(--lr 0\.001 scaled linear for 2 ranks\)", r"precision +fp32",
                r"--use_amp does nothing on the CPU", r"NCCL variables +NCCL_DEBUG=WARN", r"device +cpu, \d+ threads? per rank, gloo",
                r"steps +30, as --max_steps says, of 5000000 = 1000000 epochs x 5", r"state +", r"output +",
                r"users +\d+", r"parameters +\d+", r"flags given +--", r"--maxlen=12", r"other flags +\d+ by default: in args.txt"):
        assert re.search(row, done.stdout), f"{row} is not in:\n{done.stdout}"
    assert "\x1b[" not in both, "colour or cursor movement in a pipe"
    # The end summary: the time split adds up to the wall clock that it names.
    wall = float(re.search(r"done at step 30 of 30 after ([0-9.]+) s", done.stdout).group(1))
    rows = re.findall(r"^ +(?:time +)?[a-z ]+? +([0-9.]+) s +([0-9.]+) %$", done.stdout, re.M)
    assert sum(float(seconds) for seconds, _ in rows) == pytest.approx(wall, abs=0.05 * len(rows) + 0.05)
    assert sum(float(percent) for _, percent in rows) == pytest.approx(100.0, abs=0.5)
    for label in ("bound by", "best", "files", "saved", "resume"):
        assert re.search(rf"^  {label} ", done.stdout, re.M), label


def table_of(output):
    """The rows of the table at the start."""
    return output[output.index("  workload "):output.index("first step done")].splitlines()


def test_the_table_at_the_start_fits_a_terminal_and_shows_what_was_chosen(run, lockstep, small_dataset, tmp_path):
    line = [lockstep, "run", "sasrec", "--dataset", small_dataset.name, "--train_dir", "out/", "--max_steps", "2", *SMALL_MODEL]
    short = run(line, cwd=tmp_path)
    rows = table_of(short.stdout)
    assert all(len(row) <= 80 for row in rows), "\n".join(rows)
    summary = short.stdout[short.stdout.index("  bound by "):short.stdout.index("  saved ")]
    assert all(len(row) <= 80 for row in summary.splitlines()), summary
    names = [row.split(",")[0] for row in (tmp_path / "out/args.txt").read_text().splitlines()]
    shown = set(re.findall(r"--(\w+)=", "\n".join(rows)))
    assert shown == {"dataset", "train_dir", "max_steps", "maxlen", "hidden_units", "num_blocks", "batch_size", "status_port"}
    (tmp_path / "out").rename(tmp_path / "short")
    full = run([*line, "--verbose"], cwd=tmp_path)
    rows = table_of(full.stdout)
    assert all(len(row) <= 80 for row in rows), "\n".join(rows)
    hidden = set(names) - set(re.findall(r"--(\w+)=", "\n".join(rows)))
    values = dict(row.split(",", 1) for row in (tmp_path / "out/args.txt").read_text().splitlines())
    assert all(values[name] == "" for name in hidden), hidden
    assert values["verbose"] == "true"


def test_metrics_jsonl_has_the_fields_of_its_contract(run, lockstep, small_dataset, tmp_path):
    folder = tmp_path / "run"
    assert run(command(lockstep, small_dataset, folder, "--max_steps", "12")).returncode == 0
    steps = [record for record in records(folder) if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    for record in steps:
        assert set(record) == {"step", "epoch", "loss", "lr", "grad_norm", "samples_per_second", "samples", "time"}
    assert any("valid_ndcg@10" in record for record in records(folder))
    args = (folder / "args.txt").read_text().splitlines()
    assert args == sorted(args) and any(line.startswith("maxlen,12") for line in args)
    assert (folder / "log.txt").read_text().splitlines()[0] == "epoch (val_ndcg, val_hr) (test_ndcg, test_hr)"


@pytest.mark.parametrize("flags", [["--precision", "bf16"], ["--multi_gpu", "false"], ["--batch_scope", "per_device"]])
def test_these_flags_train(run, lockstep, small_dataset, tmp_path, flags):
    line = [w for w in command(lockstep, small_dataset, tmp_path / "run", "--max_steps", "20", *flags)]
    if "--multi_gpu" in flags:
        at = line.index("--nproc")
        del line[at:at + 2]
    done = run(line)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [record["loss"] for record in records(tmp_path / "run") if "loss" in record]
    assert 1.2 < found[0] < 1.9 and len(found) == 20
    expected = "with 1 rank" if "--multi_gpu" in flags else "with 2 ranks"
    assert expected in done.stdout + done.stderr


def test_the_data_sets_licence_is_printed():
    done = subprocess.run([ROOT / "scripts/get_ml100k"], capture_output=True, text=True, check=True)
    assert "GroupLens" in done.stdout + done.stderr
