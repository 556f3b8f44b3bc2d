"""Kueue for tests: its published CRDs on a real API server, queues, and a controller.

By default the controller is StandIn (kueue_stand_in.py), which admits, evicts, preempts and deactivates as the tests
need it. With KUEUE_BIN, the path of Kueue's own controller, the same tests run against that one, with its webhooks
(`make cluster-queues`). The CRDs come from the module sigs.k8s.io/kueue, which scripts/setup has downloaded.
"""
import base64
import json
import os
import pathlib
import re
import shutil

import yaml

from control_plane import HERE, kube_bin
from kube_api import ApiError
from kueue_stand_in import StandIn
from processes import Process
from waiting import wait_until

GROUP = "kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{GROUP}/workloads"
CRDS = ("workloads", "localqueues", "clusterqueues", "resourceflavors", "workloadpriorityclasses", "admissionchecks",
        "topologies", "cohorts", "multikueueclusters", "multikueueconfigs", "provisioningrequestconfigs")
# What the controller does about pods, in namespaces with this label; only there it manages what has no queue name.
MANAGED = {"lockstep.dev/kueue-manages-all": "true"}
# Of all its webhooks those that concern Workloads and pods, so that no other CRD is needed.
WEBHOOKS = re.compile(r"^[mv](workload|clusterqueue|resourceflavor|cohort|pod)\.kb\.io$")


def crd_folder():
    text = (HERE / "kube/kueue/go.mod").read_text(encoding="utf-8")
    version = re.search(r"sigs\.k8s\.io/kueue (v[0-9.]+)", text).group(1)
    return kube_bin().parents[1] / f"kueue-{version}" / "crds"


def crd_text(name, served=("v1beta2",)):
    """The published CRD with these versions served. By default as Kueue 0.20 has it, which does not serve v1beta1."""
    text = (crd_folder() / f"kueue.x-k8s.io_{name}.yaml").read_text(encoding="utf-8")
    for version, storage in (("v1beta1", "false"), ("v1beta2", "true")):
        text, found = re.subn(rf"served: \w+\n(\s+)storage: {storage}",
                              rf"served: {str(version in served).lower()}\n\1storage: {storage}", text)
        assert found == 1, (name, version)
    # v1beta1 of Kueue 0.17.0 refuses every change of an admitted Workload without a priority class; 0.17.1 does not.
    return re.sub(r"(message: priorityClassSource is immutable while workload quota reserved\n\s+rule: )'(?:[^']|'')*'",
                  r"\1'true'", text)


def install_crds(plane, names=CRDS, served=("v1beta2",)):
    """Raises where scripts/setup has not brought them."""
    if not crd_folder().is_dir():
        raise RuntimeError(f"{crd_folder()} is missing: run scripts/setup test")
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-",
                  stdin="\n---\n".join(crd_text(name, served) for name in names))
    for name in names:
        plane.wait_for_crd(f"{name}.kueue.x-k8s.io")


def kueue_binary():
    path = os.environ.get("KUEUE_BIN")
    return pathlib.Path(path) if path else None


class RealKueue:
    """Kueue's own controller as a process beside the test, its webhooks called by URL. start() … stop().

    Its program wants a certificate for its metrics at /etc/kueue: it gets a /etc of its own (unshare)."""

    workloads = WORKLOADS

    def __init__(self, plane):
        self.plane = plane
        self.port, self.probes, self.metrics = (plane.ports.take() for _ in range(3))
        self.folder = plane.folder / "kueue"
        self.process = None

    def start(self):
        self.folder.mkdir()
        certificate, key = self.plane.certificates.issue("kueue", "kueue", names="IP:127.0.0.1")
        shutil.copy(certificate, self.folder / "tls.crt")
        shutil.copy(key, self.folder / "tls.key")
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
            "namespace": "kueue-system", "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.probes}"},
            "metrics": {"bindAddress": f"127.0.0.1:{self.metrics}"},
            "webhook": {"host": "127.0.0.1", "port": self.port, "certDir": str(self.folder)},
            "manageJobsWithoutQueueName": True,
            "managedJobsNamespaceSelector": {"matchLabels": MANAGED},
            "integrations": {"frameworks": ["pod"], "externalFrameworks": ["TrainJob.v1.lockstep.dev"]},
        }), encoding="utf-8")
        namespace = {"metadata": {"name": "kueue-system"}}
        if not self.plane.exists("namespaces", None, "kueue-system"):
            self.plane.api.create("namespaces", namespace)
        script = ('mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics/certs && cp "$1"/tls.* '
                  '/etc/kueue/metrics/certs && shift && exec "$@"')
        self.process = Process("kueue", [
            "unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c", script, "sh",
            self.folder, kueue_binary(), f"--config={config}", f"--kubeconfig={self.plane.kubeconfig}",
            "--feature-gates=VisibilityOnDemand=false", "--zap-log-level=2"], self.plane.folder)
        self.process.start()
        self.install_webhooks()
        self.process.wait_until(self.admits, "answer of Kueue's webhook", 120)
        return self

    def install_webhooks(self):
        text = (crd_folder() / "webhooks.yaml").read_text(encoding="utf-8")
        authority = base64.b64encode(self.plane.certificates.ca.read_bytes()).decode()
        for found in yaml.safe_load_all(text):
            found["metadata"] = {"name": "kueue-" + found["metadata"]["name"]}
            found["webhooks"] = [hook for hook in found["webhooks"] if WEBHOOKS.match(hook["name"])]
            for hook in found["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": authority}
                if "pod" in hook["name"]:
                    hook["namespaceSelector"] = {"matchLabels": MANAGED}
            self.plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(found))

    def admits(self):
        try:
            self.plane.api.request("POST", f"/apis/{GROUP}/resourceflavors?dryRun=All",
                                   {"apiVersion": GROUP, "kind": "ResourceFlavor", "metadata": {"name": "probe"}})
            return True
        except ApiError as error:
            raise AssertionError(error.message) from error

    def stop(self):
        for kind in ("validating", "mutating"):
            self.plane.kubectl("delete", f"{kind}webhookconfigurations", f"kueue-{kind}-webhook-configuration",
                               "--ignore-not-found")
        if self.process is not None:
            self.process.stop()


class Queues:
    """The queues of one test, and what a test does with them. `api`: the test's namespace."""

    def __init__(self, api, controller):
        self.api, self.controller = api, controller
        self.name = f"cq-{api.namespace}"
        self.checks = []

    @property
    def is_real(self):
        return isinstance(self.controller, RealKueue)

    def cluster(self, resource, body):
        return self.api.client.create(f"{GROUP}/{resource}", {"apiVersion": GROUP, **body})

    def make(self, pods=4, queue="team", preempts=False, checks=(), labels=None, topology=None):
        """A LocalQueue whose quota holds so many pods of our test jobs (one CPU each). topology: the node label of the only
        level of a Topology that the queue's flavor has."""
        if not self.api.control_plane.exists(f"{GROUP}/resourceflavors", None, self.name):
            spec = {"nodeLabels": labels or {"kubernetes.io/os": "linux"}}
            if topology:
                self.cluster("topologies", {"kind": "Topology", "metadata": {"name": self.name},
                                            "spec": {"levels": [{"nodeLabel": topology}]}})
                spec["topologyName"] = self.name
            self.cluster("resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": self.name}, "spec": spec})
        spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": self.name, "resources": [{"name": "cpu", "nominalQuota": str(pods)}]}]}]}
        if preempts:
            spec["preemption"] = {"withinClusterQueue": "LowerPriority"}
        if checks:
            self.checks = list(checks)
            for check in checks:
                self.cluster("admissionchecks", {"kind": "AdmissionCheck", "metadata": {"name": check},
                                                 "spec": {"controllerName": "lockstep.dev/test"}})
                self.api.client.patch(f"{GROUP}/admissionchecks", {"status": {"conditions": [
                    {"type": "Active", "status": "True", "reason": "Active", "message": "It is played by a test.",
                     "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}, None, check, "status")
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
        self.cluster("clusterqueues", {"kind": "ClusterQueue", "metadata": {"name": self.name}, "spec": spec})
        self.make_local(queue)
        return queue

    def make_local(self, queue):
        self.api.create(f"{GROUP}/localqueues", {"apiVersion": GROUP, "kind": "LocalQueue",
                                                 "metadata": {"name": queue},
                                                 "spec": {"clusterQueue": self.name}})

    def make_priority(self, name, value):
        if not self.api.control_plane.exists(f"{GROUP}/workloadpriorityclasses", None, name):
            self.cluster("workloadpriorityclasses", {"kind": "WorkloadPriorityClass", "metadata": {"name": name},
                                                     "value": value})

    def remove(self):
        for resource, name in (("clusterqueues", self.name), ("resourceflavors", self.name), ("topologies", self.name),
                               *(("admissionchecks", check) for check in self.checks)):
            try:
                self.api.client.delete(f"{GROUP}/{resource}", None, name)
            except ApiError:
                pass

    def pass_check(self, check, **more):
        """Plays the check's controller: it says Ready. more: podSetUpdates."""
        self.api.client.patch(WORKLOADS, {"status": {"admissionChecks": [
            {"name": check, "state": "Ready", "message": "it is there", "lastTransitionTime": "2026-01-01T00:00:00Z",
             **more}]}}, self.api.namespace, self.workload()["metadata"]["name"], "status")

    # --- Workloads

    def workloads(self):
        return self.api.list(self.controller.workloads)

    def are_served(self):
        """Not at once when the API server has started again: its storage of a CRD's objects comes later (429)."""
        try:
            self.workloads()
        except ApiError:
            return False
        return True

    def workload(self, job="job"):
        """The job's, or None."""
        found = [w for w in self.workloads() if any(owner["name"] == job for owner in
                                                     w["metadata"].get("ownerReferences", []))]
        assert len(found) <= 1, [w["metadata"]["name"] for w in found]
        return found[0] if found else None

    def condition(self, kind, job="job"):
        found = self.workload(job) or {}
        return next((c for c in found.get("status", {}).get("conditions", []) if c["type"] == kind), {})

    def wait_for_condition(self, kind, status="True", reason=None, job="job", timeout=60):
        def holds():
            found = self.condition(kind, job)
            return found.get("status") == status and reason in (None, found.get("reason"))
        wait_until(holds, f"Workload of {job} with {kind}={status} {reason or ''}", timeout,
                   lambda: json.dumps(self.workload(job)))
        return self.condition(kind, job)

    def deactivate(self, job="job", active=False):
        self.api.client.patch(self.controller.workloads, {"spec": {"active": active}}, self.api.namespace,
                              self.workload(job)["metadata"]["name"])

    def reserved(self, job="job"):
        found = self.workload(job)
        return found is not None and "admission" in found.get("status", {})

    def let_go(self):
        """Removes the finalizers of Workloads, which would keep the test's namespace from being deleted."""
        for found in self.workloads():
            if found["metadata"].get("finalizers"):
                self.api.client.patch(self.controller.workloads, {"metadata": {"finalizers": None}}, self.api.namespace,
                                      found["metadata"]["name"])


def start_controller(plane):
    return (RealKueue(plane) if kueue_binary() else StandIn(plane.api)).start()


__all__ = ["GROUP", "MANAGED", "Queues", "RealKueue", "WORKLOADS", "install_crds", "kueue_binary",
           "start_controller"]
