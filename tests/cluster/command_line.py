"""lockstep and kubectl-lockstep as people call them."""
import os
import subprocess

from operator_process import operator_binary


def program(name):
    path = operator_binary().parent / name
    assert path.exists(), f"{path} is not built: build it, or set LOCKSTEP_BIN"
    return path


def lockstep(*words, stdin=None, environment=None):
    """CompletedProcess with text output. `environment`: variables beside our own."""
    return subprocess.run([program("lockstep"), *map(str, words)], input=stdin, capture_output=True, text=True,
                          check=False, timeout=60, env={**os.environ, **(environment or {})})


def kubectl_lockstep(api, *words, kubeconfig=None, namespace=True):
    """`kubectl lockstep …`, which kubectl finds in the PATH."""
    kubectl = api.control_plane.program("kubectl")
    folders = [program("kubectl-lockstep").parent, kubectl.parent, os.environ.get("PATH", "")]
    environment = {"PATH": ":".join(map(str, folders)),
                   "HOME": str(api.control_plane.folder), "KUBECONFIG": str(kubeconfig or api.kubeconfig)}
    place = ["-n", api.namespace] if namespace else []
    return subprocess.run([kubectl, "lockstep", *map(str, words), *place], capture_output=True, text=True,
                          check=False, timeout=120, env=environment)
