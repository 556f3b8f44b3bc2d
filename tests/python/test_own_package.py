"""The package `lockstep` as it comes to a program: as a wheel, or brought along by `lockstep launch`."""
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from programs import ROOT, clean_environment, text
from test_own_program import CASES, PACKAGE, VENV

FOUND = """
import lockstep, torch
lockstep.init_process_group()
run = lockstep.restore(model=torch.nn.Linear(1, 1))
for step in run.steps(0):
    pass
print("found", lockstep.__file__)
"""
WAYS = pytest.mark.parametrize("how", [[], ["--no_zygote"]], ids=["zygote", "exec"])


@pytest.fixture
def launch(lockstep, run, tmp_path):
    def call(*words, path=VENV, **environment):
        return run([lockstep, "launch", "--status_port", "0", "--max_restarts", "5", *words], cwd=tmp_path,
                   **clean_environment(PATH=f"{path}:/usr/bin:/bin", XDG_CACHE_HOME=str(tmp_path.parent / "cache"), **environment))
    return call


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    made = subprocess.run([ROOT / "scripts/make_wheel", PACKAGE, tmp_path_factory.mktemp("wheel")], capture_output=True, text=True)
    assert made.returncode == 0, text(made)
    return pathlib.Path(made.stdout.strip())


@WAYS
def test_launch_brings_the_package_along(launch, tmp_path, how):
    (tmp_path / "train.py").write_text(FOUND)
    done = launch("--nproc", "2", *how, "train.py")
    assert done.returncode == 0 and len(re.findall(r"found /\S+/last/lockstep/__init__.py", done.stdout)) == 2, text(done)


def test_what_launch_brings_recovers(launch, tmp_path):
    done = launch("--nproc", "3", CASES, "--folder", tmp_path, "--kill", "1:5:backward")
    assert done.returncode == 0 and (tmp_path / "killed-0").exists() and (tmp_path / "end-1.txt").exists(), text(done)


@WAYS
def test_an_installed_package_wins_and_its_other_version_is_said(launch, tmp_path, how):
    installed = shutil.copytree(PACKAGE / "lockstep", tmp_path / "packages/lockstep")
    (installed / "_version.py").write_text('__version__ = "0.0.7"\n')
    (tmp_path / "train.py").write_text(FOUND)
    done = launch("--nproc", "2", *how, "train.py", PYTHONPATH=str(tmp_path / "packages"))
    assert done.returncode == 0 and done.stdout.count(f"found {installed}/__init__.py") == 2, text(done)
    assert text(done).count("the installed package lockstep has version 0.0.7, and this is lockstep ") == 1


def test_a_library_that_cannot_be_loaded_is_named(tmp_path):
    package = shutil.copytree(PACKAGE / "lockstep", tmp_path / "lockstep", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "liblockstep.so").write_bytes(b"no library")
    done = subprocess.run([sys.executable, "-c", "from lockstep._library import Library; Library()"], capture_output=True, text=True,
                          env=clean_environment(PYTHONPATH=str(tmp_path)))
    assert f"ImportError: the library of the package lockstep cannot be loaded: {package}/liblockstep.so: " in done.stderr


def test_the_library_is_loaded_from_a_volume_that_allows_no_code(tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", volume], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no volume can be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(PACKAGE / "lockstep", volume / "lockstep")
        done = subprocess.run([sys.executable, "-c", "from lockstep._library import Library; print(Library().now_ns())"], text=True,
                              capture_output=True, env=clean_environment(PYTHONPATH=str(volume)))
    finally:
        subprocess.run(["umount", volume], check=True)
    assert done.returncode == 0 and int(done.stdout) > 0, text(done)


def test_the_wheel_is_for_every_python_and_holds_what_it_needs(wheel):
    assert re.fullmatch(r"lockstep-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    assert wheel.stat().st_size < 5_000_000
    names = zipfile.ZipFile(wheel).namelist()
    assert {"lockstep/__init__.py", "lockstep/py.typed", "lockstep/liblockstep.so"} < set(names)
    assert all(name.startswith(("lockstep/", "lockstep-")) and "__pycache__" not in name for name in names)


@pytest.mark.long  # it makes a virtual environment
def test_the_wheel_is_installed_by_pip_and_recovers(wheel, launch, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    # PyTorch is the tests'.
    packages, = (venv / "lib").glob("python3*/site-packages")
    (packages / "torchs.pth").write_text(f"{next((VENV.parent / 'lib').glob('python3*/site-packages'))}\n")
    (tmp_path / "train.py").write_text(FOUND)
    done = launch("--nproc", "2", "train.py", path=venv / "bin")
    assert done.returncode == 0 and done.stdout.count(f"found {packages}/lockstep/__init__.py") == 2, text(done)
    done = launch("--nproc", "3", CASES, "--folder", tmp_path, "--kill", "1:5:backward", path=venv / "bin")
    assert done.returncode == 0 and (tmp_path / "killed-0").exists(), text(done)
