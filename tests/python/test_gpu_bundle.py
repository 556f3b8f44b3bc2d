"""scripts/gpu: what is carried to a machine with a GPU starts there with the PyTorch that is there, and no network."""
import re
import subprocess
import sys

import pytest

from programs import ROOT, bin_folder, clean_environment, leave_the_network


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Packed from the programs that are here: where they have no CUDA, the tests that need it say so and skip."""
    folder = tmp_path_factory.mktemp("gpu") / "bundle"
    done = subprocess.run([ROOT / "scripts/gpu", "pack", bin_folder().parent, folder], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def start(bundle, **environment):
    return subprocess.run([bundle / "run"], capture_output=True, text=True, check=False, timeout=600, cwd=bundle,
                          preexec_fn=leave_the_network, env=clean_environment(**environment))


def test_all_of_it_runs_without_a_network(bundle):
    done = start(bundle, PYTHON=sys.executable, GTEST_FILTER="Fault.is_named*:CommitGate*", STEPS="7")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("kernels", "dist", "optim"):
        assert f"gpu: {name}_test" in done.stdout
    assert "[  PASSED  ] 1 test." in done.stdout  # Fault.is_named_by_its_type
    assert "SKIPPED" in done.stdout and "test_gpu.py" in done.stdout


@pytest.mark.long
def test_a_failed_test_is_named_and_the_others_run(bundle):
    broken = bundle / "tests/optim_test"
    kept = broken.read_bytes()
    broken.write_text("#!/bin/sh\nexit 1\n")
    try:
        done = start(bundle, PYTHON=sys.executable, GTEST_FILTER="None*")
    finally:
        broken.write_bytes(kept)
    assert done.returncode == 1 and "failed: optim_test\n" in done.stderr
    assert "gpu: dist_test" in done.stdout


def test_symbols_of_libstdcxx_come_from_the_machines_own(bundle):
    """PyTorch's libraries export parts of another one: its std::filesystem::remove_all jumps to null."""
    for program in ("bin/lockstep-worker", "tests/kernels_test"):
        done = subprocess.run(["readelf", "-d", bundle / program], capture_output=True, text=True, check=True)
        needed = re.findall(r"\(NEEDED\).*\[(\S+)\]", done.stdout)
        assert needed.index("libstdc++.so.6") < min(i for i, name in enumerate(needed) if name.startswith("libtorch")), needed


def test_another_pytorch_is_refused_by_both_versions(bundle, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncase $2 in *__version__*) echo 2.9.1+cu128 ;; *) echo /nowhere ;; esac\n")
    python.chmod(0o755)
    done = start(bundle, PYTHON=str(python))
    assert done.returncode == 1 and "2.9.1+cu128" in done.stderr and "2.11.0" in done.stderr
    done = start(bundle, PYTHON="/bin/false")
    assert done.returncode == 1 and "/bin/false has no PyTorch" in done.stderr
