"""The examples of a model of one's own, built as a person builds them: outside of the tree, against an installed Lockstep."""
import os
import shutil
import subprocess

from programs import ROOT, bin_folder, clean_environment

EXAMPLE = ROOT / "examples/plugin"


def do(*words, **variables):
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, errors="replace",
                          env=clean_environment(**variables), timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install_headers(prefix):
    """The headers and the package for CMake, from the build whose programs are tested."""
    do("cmake", "--install", bin_folder().parent, "--component", "plugin", "--prefix", prefix)
    return prefix


def build_plugin(source, folder, prefix):
    """The shared object of a CMake project."""
    # ccache finds what another run has compiled in another temporary folder.
    variables = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "1",
                 "CCACHE_BASEDIR": os.path.commonpath([source, folder, prefix])} if shutil.which("ccache") else {}
    do("cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", **variables)
    do("cmake", "--build", folder, **variables)
    return next(folder.glob("*.so"))


def build_example(base, prefix, source=EXAMPLE):
    shutil.copytree(source, base / "source")
    return build_plugin(base / "source", base / "build", prefix)
