#!/usr/bin/env python3
"""A control plane to play with: `make cluster`.

  cluster.py run [--nodes N] [--detach]   starts it, with the operator when that is built and N=4 fake nodes, on which
                                          pods run by kwok_stages.yaml; until Ctrl-C, or, with --detach, until stop
  cluster.py stop                         ends the one that runs, and removes its folder
  cluster.py status                       says which one runs; exit code 1 when none does
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys

from control_plane import ControlPlane, kube_bin
from operator_process import OperatorProcess, operator_binary
from processes import registry, runs_still, start_time, write_whole
from waiting import pause, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = pathlib.Path("manifests/examples/trainjob.yaml")


def record_path():
    return registry() / "cluster.json"


def running():
    """The record of the one that runs, or None."""
    try:
        record = json.loads(record_path().read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if runs_still(record) else None


def make_volumes(plane):
    """For the claims of the example: nothing provisions volumes here, and no pod of a fake node mounts one."""
    for number in range(4):
        plane.api.create("persistentvolumes", {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"fake-{number}"},
            "spec": {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
                     "hostPath": {"path": f"/nowhere/{number}"}}})


def greeting(record):
    operator = ("the operator" if record["operator"] else
                f"no operator: {operator_binary()} is not built")
    example = [f"  kubectl apply -f {EXAMPLE}"] if (ROOT / EXAMPLE).exists() else []
    return "\n".join([
        f"A Kubernetes {record['version']} control plane runs, with {record['nodes']} fake nodes and {operator}.",
        f"Logs: {record['folder']}/logs",
        "",
        f"export KUBECONFIG={record['kubeconfig']} PATH=\"$PATH:{kube_bin()}\"",
        "",
        "Try:", *example,
        "  kubectl get trainjobs,pods,nodes -A",
        "  kubectl explain trainjob.spec",
        "  kubectl annotate pod NAME fake.lockstep.dev/exit-after=0s fake.lockstep.dev/exit-code=12",
    ])


def run(nodes, ready_message):
    """Until SIGINT or SIGTERM; fails when a program ends by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ControlPlane(kwok_nodes=nodes) as plane:
        plane.apply_base()
        operator = None
        key = plane.make_token_key()
        make_volumes(plane)
        if operator_binary().exists():
            operator = OperatorProcess(plane, token_key=key, leader_elect=True).start()
            plane.components["operator"] = operator
        record = {"pid": os.getpid(), "start_time": start_time(os.getpid()), "kubeconfig": str(plane.kubeconfig),
                  "folder": str(plane.folder), "nodes": nodes, "operator": operator is not None,
                  "version": plane.api.request("GET", "/version")["gitVersion"]}
        write_whole(record_path(), json.dumps(record))
        try:
            print(greeting(record) + ready_message, flush=True)
            while all(one.is_running() for one in plane.components.values()):
                pause(0.5)
            dead = next(one for one in plane.components.values() if not one.is_running())
            print(f"{dead.name} ended by itself\n{dead.log_tail()}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0
        finally:
            record_path().unlink(missing_ok=True)


def run_detached(nodes):
    registry().mkdir(mode=0o700, exist_ok=True)
    log_path = registry() / "cluster.log"
    with open(log_path, "w", encoding="utf-8") as log:
        started = subprocess.Popen([sys.executable, __file__, "run", f"--nodes={nodes}"], stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def is_up():
        if started.poll() is not None:
            raise RuntimeError(log_path.read_text(encoding="utf-8"))
        return running()
    print(greeting(wait_until(is_up, "control plane", timeout=180)) + "\n\nTo end it: make cluster-stop")
    return 0


def stop():
    record = running()
    if record is None:
        print("none runs")
        return 0
    os.kill(record["pid"], signal.SIGTERM)
    wait_until(lambda: not runs_still(record), "end of the control plane")
    print("ended")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "stop", "status"), nargs="?", default="run")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--detach", action="store_true")
    words = parser.parse_args()
    record = running()
    if words.what == "stop":
        return stop()
    if words.what == "status":
        print(greeting(record) if record else "none runs")
        return 0 if record else 1
    if record:
        print(f"One runs already; to end it: make cluster-stop\n\n{greeting(record)}")
        return 1
    return run_detached(words.nodes) if words.detach else run(words.nodes, "\n\nCtrl-C ends it.")


if __name__ == "__main__":
    sys.exit(main())
