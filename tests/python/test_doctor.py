"""`lockstep doctor` on this machine, and on machines that a fake driver, fake workers and limits make of it."""
import json
import os
import pathlib
import pty
import re
import resource
import signal
import socket
import subprocess
import time

import pytest

from programs import clean_environment, tools_folder

CUDA_BUILD = {"version": "0.1.0", "torch": "2.11.0", "cuda": "13.0", "cudaArchitectures": "8.0,9.0+PTX",
              "nccl": "2.28.9"}


@pytest.fixture
def doctor(lockstep, run, tmp_path):
    """doctor(flags…, environment…) → (exit code, {name: check})."""
    def call(*flags, **environment):
        done = run([lockstep, "doctor", "--json", "--dir", tmp_path, *flags], **environment)
        assert not done.stderr, done.stderr
        return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    return call


@pytest.fixture
def fake_worker(tmp_path):
    """fake_worker(shell lines) is a program that stands for lockstep-worker."""
    def make(*lines):
        path = tmp_path / "worker"
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return path
    return make


@pytest.fixture
def cuda_worker(fake_worker):
    return fake_worker(f"echo '{json.dumps(CUDA_BUILD)}'")


@pytest.fixture
def fake_driver(tmp_path):
    """fake_driver(lines) is the environment of a machine with that driver (tests/runner/doctor/fake_driver.cc)."""
    def make(*lines):
        path = tmp_path / "driver"
        path.write_text("\n".join([*lines, ""]))
        return {"LD_LIBRARY_PATH": str(tools_folder() / "fake_driver"), "FAKE_DRIVER": str(path)}
    return make


def test_this_machine_can_train(lockstep, run, tmp_path):
    begin = time.monotonic()
    done = run([lockstep, "doctor", "--dir", tmp_path])
    seconds = time.monotonic() - begin
    assert done.returncode == 0, done.stdout + done.stderr
    # A warning when its libraries come slowly, as on a busy machine.
    assert re.search(r"(ok|warn) +worker +lockstep-worker 0\.1\.0 with LibTorch 2\.11\.0", done.stdout), done.stdout
    assert re.search(r"checkpoints +\S+: .* free, writes \d+ MB/s", done.stdout), done.stdout
    assert re.search(r"\n\d+ ok, \d+ warnings?, 0 failed\. Ready: lockstep run sasrec --dataset auto\n$", done.stdout)
    assert "\033" not in done.stdout
    assert seconds < 60, f"took {seconds:.1f} s; 2 s are normal, 20 s for the worker on a very busy machine"
    assert not [path for path in tmp_path.iterdir()], "the disk probe left something behind"


def test_a_terminal_gets_colours_unless_it_wants_none(lockstep, tmp_path):
    for environment, expected in (({}, True), ({"NO_COLOR": "1"}, False)):
        ours, theirs = pty.openpty()
        with subprocess.Popen([lockstep, "doctor", "--dir", str(tmp_path)], stdout=theirs,
                              env=clean_environment(**environment)) as process:
            os.close(theirs)
            text = b""
            while True:
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # the other side is closed
                    break
                if not chunk:
                    break
                text += chunk
            process.wait()
        os.close(ours)
        assert (b"\033[" in text) == expected, text


def test_bad_flags_are_a_usage_error(lockstep, run):
    for flags, told in ((["--coordinator", "node0"], "expected HOST:PORT"), (["--coordinator", ":1"], "HOST:PORT"),
                        (["--coordinator", "a:99999"], "HOST:PORT"), (["--nproc", "0"], "--nproc"),
                        (["--nnodes", "x"], "--nnodes"), (["--status_port", "65536"], "--status_port"),
                        (["--no-such"], "--no-such"), (["word"], "word")):
        done = run([lockstep, "doctor", *flags])
        assert done.returncode == 2 and told in done.stderr and not done.stdout, (flags, done.stdout, done.stderr)


def test_a_taken_port_is_named_with_its_holder(doctor, free_port):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, checks = doctor("--status_port", port)
        assert code == 0
        check = checks[f"port {port}"]
        assert check["verdict"] == "warn" and f"(pid {os.getpid()})" in check["found"], check
        assert "--status_port" in check["remedy"]
        code, checks = doctor("--nnodes", 2, "--coordinator", f"127.0.0.1:{port}")
        assert code == 1 and checks[f"port {port}"]["verdict"] == "fail", checks
    assert doctor("--status_port", port)[1][f"port {port}"]["verdict"] == "ok"


def test_a_coordinator_elsewhere_must_resolve_and_answer(doctor, free_port):
    code, checks = doctor("--nnodes", 2, "--coordinator", "no-such-host.invalid:29400")
    assert code == 1 and "resolves to nothing" in checks["coordinator"]["found"]
    code, checks = doctor("--nnodes", 2, "--coordinator", f"[::1]:{free_port()}")
    assert checks["coordinator"]["verdict"] == "ok" and "is this machine" in checks["coordinator"]["found"], checks


def test_interfaces_that_are_not_there_fail(doctor):
    code, checks = doctor(GLOO_SOCKET_IFNAME="nosuch0")
    assert code == 1 and "nosuch0" in checks["interface"]["found"] and "lo" in checks["interface"]["remedy"]
    code, checks = doctor(GLOO_SOCKET_IFNAME="nosuch0,lo")
    assert code == 0 and checks["interface"]["found"].startswith("lo, the first of"), checks["interface"]
    code, checks = doctor(NCCL_SOCKET_IFNAME="=lo")
    assert code == 0 and checks["interface"]["verdict"] == "ok"


def test_data_and_folder_are_looked_at(doctor, tmp_path, small_dataset):
    code, checks = doctor("--data", small_dataset)
    assert code == 0 and checks["data"]["verdict"] == "ok", checks["data"]
    code, checks = doctor("--data", tmp_path / "nothing")
    assert code == 1 and "no such file" in checks["data"]["found"]
    code, checks = doctor("--dir", tmp_path / "a" / "b")
    assert code == 0 and "to be made in" in checks["checkpoints"]["found"] and not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    code, checks = doctor("--dir", tmp_path / "file")
    assert code == 1 and "no folder" in checks["checkpoints"]["found"], checks["checkpoints"]
    code, checks = doctor("--dir", "/proc")
    assert code == 1 and "cannot be written to" in checks["checkpoints"]["found"], checks["checkpoints"]


def test_an_interrupted_doctor_leaves_nothing(lockstep, tmp_path):
    def interrupted_by(number):
        with subprocess.Popen([lockstep, "doctor", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL,
                              env=clean_environment()) as process:
            wait_for_write(process)
            process.send_signal(number)
            code = process.wait()
        assert not [path for path in tmp_path.iterdir()]
        return code != 0
    for number in (signal.SIGINT, signal.SIGKILL):
        # It may have ended before this process runs again.
        assert any(interrupted_by(number) for _ in range(20))


def wait_for_write(process):
    """Until the process has written to a disk, or has ended."""
    while process.poll() is None:
        try:
            text = pathlib.Path(f"/proc/{process.pid}/io").read_text()
        except OSError:
            return
        if int(re.search(r"^write_bytes: (\d+)", text, re.M).group(1)) > 1 << 20:
            return


def test_too_few_files_fail(lockstep, tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = subprocess.run([lockstep, "doctor", "--dir", str(tmp_path)], capture_output=True, text=True, check=False,
                          env=clean_environment(),
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit[1])))
    assert done.returncode == 1 and "256 open files are too few" in done.stdout, done.stdout
    assert "ulimit -n" in done.stdout and done.stdout.endswith("Fix what failed, then run lockstep doctor again.\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("user", [0, 65534])
def test_a_limit_of_threads_counts_those_that_run_and_does_not_hold_for_root(lockstep, user):
    limit = 100

    def drop():
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setresuid(user, user, user)

    try:
        done = subprocess.run([str(lockstep), "doctor", "--json", "--dir", "/tmp"], capture_output=True, text=True,
                              timeout=60, env=clean_environment(), check=False, preexec_fn=drop)
    except OSError as why:
        pytest.skip(f"nobody may run the program where it lies: {why}")
    (check,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "limits")
    room = re.search(r"room for (\d+) threads? only", check["found"])
    if user == 0:
        assert room is None, check
    else:
        assert 0 < int(room[1]) < limit, check


def test_a_worker_that_does_not_start_says_why(doctor, fake_worker, tmp_path):
    (tmp_path / "empty").write_text("")
    cases = ((tmp_path / "nothing", "No such file"), (tmp_path / "empty", "Permission denied"),
             (fake_worker("echo 'x: error while loading shared libraries: libtorch_cpu.so: cannot open' >&2",
                          "exit 127"), "libtorch_cpu.so"))
    for program, told in cases:
        code, checks = doctor(LOCKSTEP_WORKER=str(program))
        assert code == 1 and told in checks["worker"]["found"], checks["worker"]
    for lines, told in ((["kill -SEGV $$"], "signal 11"), (["echo hello"], "hello"), ([], "printed nothing")):
        code, checks = doctor(LOCKSTEP_WORKER=str(fake_worker(*lines)))
        assert code == 1 and told in checks["worker"]["found"], checks["worker"]
    code, checks = doctor(LOCKSTEP_WORKER=str(fake_worker(f"echo '{json.dumps({**CUDA_BUILD, 'version': '9.9.9'})}'")))
    assert code == 0 and checks["worker"]["verdict"] == "warn" and "9.9.9" in checks["worker"]["found"]


H200 = ("version 580.65.06", "cuda 13000", "gpu 9.0 0 0 NVIDIA H200", "gpu 9.0 0 0 NVIDIA H200")


def test_gpus_are_seen_through_the_driver(doctor, fake_driver, cuda_worker):
    code, checks = doctor(LOCKSTEP_WORKER=str(cuda_worker), **fake_driver(*H200))
    assert code == 0, checks
    assert checks["driver"]["found"] == "NVIDIA 580.65.06, runs CUDA up to 13.0"
    assert checks["GPUs"]["found"] == "2 × NVIDIA H200 (9.0, 141 GiB)"
    assert checks["NCCL"]["found"] == "2.28.9" and checks["GPU health"]["verdict"] == "ok"
    code, checks = doctor(LOCKSTEP_WORKER=str(cuda_worker), CUDA_VISIBLE_DEVICES="GPU-1", **fake_driver(*H200))
    assert checks["GPUs"]["found"].endswith(", 1 visible")
    code, checks = doctor(LOCKSTEP_WORKER=str(cuda_worker), CUDA_VISIBLE_DEVICES="2", **fake_driver(*H200))
    assert checks["GPUs"]["verdict"] == "warn" and 'CUDA_VISIBLE_DEVICES is "2"' in checks["GPUs"]["found"]
    code, checks = doctor("--nproc", 3, LOCKSTEP_WORKER=str(cuda_worker), **fake_driver(*H200))
    assert code == 1 and "--nproc 3" in checks["GPUs"]["found"]


def test_what_is_wrong_with_gpus_is_said(doctor, fake_driver, cuda_worker):
    cases = ((("version 525.1", "cuda 12040", H200[2]), 1, "CUDA", "the driver runs CUDA up to 12.4"),
             ((*H200[:2], "gpu 7.0 0 0 Tesla V100"), 1, "GPUs", "GPU 0 (Tesla V100) has compute capability 7.0"),
             ((*H200[:2], "gpu 9.0 3 0 NVIDIA H200"), 0, "GPU health", "3 uncorrected memory errors"),
             ((*H200[:2], "gpu 9.0 0 1 NVIDIA H200"), 0, "GPU health", "is split (MIG)"),
             (("init 18",), 1, "driver", "Driver/library version mismatch"),
             (H200[:2], 0, "GPUs", "the driver shows none"))
    for lines, expected, name, told in cases:
        code, checks = doctor(LOCKSTEP_WORKER=str(cuda_worker), **fake_driver(*lines))
        assert (code, checks[name]["verdict"]) == (expected, "fail" if expected else "warn"), checks[name]
        assert told in checks[name]["found"], checks[name]


def test_a_cpu_build_says_that_gpus_go_unused(doctor, fake_driver):
    code, checks = doctor(**fake_driver(*H200))
    assert code == 0 and checks["CUDA"]["verdict"] == "warn" and "will not be used" in checks["CUDA"]["found"]
    assert "LOCKSTEP_CUDA=ON" in checks["CUDA"]["remedy"]
