"""Helm as a person runs it, and the chart as it renders."""
import json
import os
import pathlib
import subprocess
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "tests/cluster"))

from control_plane import kube_bin  # noqa: E402

CHART = ROOT / "charts/lockstep"
RELEASE, NAMESPACE = "lockstep", "lockstep-system"
MONITORING = tuple(f"monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"))


def tool(name):
    """The path of a program that scripts/setup has built."""
    if not (kube_bin() / name).exists():
        raise RuntimeError(f"{kube_bin()} has no {name}: run scripts/setup test")
    return kube_bin() / name


def values_flags(values):
    """{"a.b": 1} → --set-json a.b=1, for values of any type."""
    return [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]


class Helm:
    """home: a folder for its caches; kubeconfig: none for what asks no cluster."""

    def __init__(self, home, kubeconfig=None):
        self.environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C.UTF-8",
                            "KUBECONFIG": str(kubeconfig or home / "no-kubeconfig")}

    def __call__(self, *words, check=True, timeout=300):
        """CompletedProcess with text output. check: an exit code other than 0 is an AssertionError that quotes it."""
        argv = [str(tool("helm")), *(str(word) for word in words)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout, env=self.environment)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv[1:])}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def template(self, values=None, *words, release=RELEASE, namespace=NAMESPACE, chart=CHART, check=True):
        return self("template", release, chart, "--namespace", namespace, *values_flags(values or {}), *words, check=check)

    def objects(self, values=None, *words, **options):
        """What the chart renders, without the hooks of `helm test`."""
        return [one for one in documents(self.template(values, *words, **options).stdout) if not is_hook(one)]


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


def is_hook(one):
    return "helm.sh/hook" in one["metadata"].get("annotations", {})


def by_name(objects):
    """(kind, name) → object."""
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects), "two objects have one name"
    return found
