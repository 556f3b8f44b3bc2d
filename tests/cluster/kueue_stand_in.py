"""Plays Kueue's controller as far as our tests need it: admission within a quota (whole or partial), preemption,
deactivation, admission checks, a node for all pods where a topology is asked for, queues that do not exist. It reads
the same objects, and writes Workloads' status with server-side apply as its field manager does; it decides only what
Kueue's documentation promises.
"""
import datetime
import threading
import urllib.parse

from kube_api import APPLY_PATCH, NO_ANSWER, ApiError, path_of
from waiting import pause

GROUP = "kueue.x-k8s.io/v1beta2"
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
# The conditions that the real one applies; PodsReady is the job's.
ITS_OWN = ("QuotaReserved", "Admitted", "Evicted", "Preempted", "Requeued", "Finished")


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def conditions_of(workload):
    return {c["type"]: c for c in workload.get("status", {}).get("conditions", [])}


def is_true(workload, kind):
    return conditions_of(workload).get(kind, {}).get("status") == "True"


def cpus_of(pod_set):
    def number(value):
        text = str(value)
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)

    def cpus(container):
        resources = container.get("resources", {})
        return number({**resources.get("limits", {}), **resources.get("requests", {})}.get("cpu", 0))
    return sum(cpus(c) for c in pod_set["template"]["spec"]["containers"])


class StandIn:
    """start() … stop(). One thread; what fails is tried again at the next look, as a controller does. version: of the API
    in which it reads and writes Workloads."""

    def __init__(self, api, version="v1beta2"):
        self.api = api
        self.workloads = f"kueue.x-k8s.io/{version}/workloads"
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.run, name="kueue-stand-in")
        self.failure = None

    def start(self):
        self.thread.start()
        return self

    def stop(self):
        """Also if it was never started, or was stopped before."""
        self.ending.set()
        if self.thread.ident is not None:
            self.thread.join(30)
        assert self.failure is None, self.failure

    def run(self):
        while not self.ending.is_set():
            try:
                self.look()
            except ApiError as error:
                if error.status not in (404, 409, 422, 429, 500, 503):
                    self.failure = error
            except AssertionError as error:
                self.failure = error
            except NO_ANSWER:
                pass  # a test stops the API server
            pause(0.05)

    def look(self):
        workloads = self.api.list(self.workloads)
        queues = {(q["metadata"]["namespace"], q["metadata"]["name"]): q for q in self.api.list(f"{GROUP}/localqueues")}
        clusters = {q["metadata"]["name"]: q for q in self.api.list(f"{GROUP}/clusterqueues")}
        open_ones = [w for w in workloads if not is_true(w, "Finished")]
        for workload in open_ones:
            if self.host_of(workload) and is_true(workload, "Admitted"):
                self.remove_gates(workload)
        waiting = []
        for workload in open_ones:
            if self.keep(workload):
                waiting.append(workload)
        # The highest priority first, then the oldest.
        waiting.sort(key=lambda w: (-w["spec"].get("priority", 0), w["metadata"]["creationTimestamp"],
                                    w["metadata"]["name"]))
        for workload in waiting:
            key = (workload["metadata"]["namespace"], workload["spec"].get("queueName"))
            if key not in queues:
                self.say(workload, "Inadmissible", f"LocalQueue {key[1]} doesn't exist")
                continue
            cluster = clusters.get(queues[key]["spec"]["clusterQueue"])
            if cluster is None:
                self.say(workload, "Inadmissible", f"ClusterQueue {queues[key]['spec']['clusterQueue']} doesn't exist")
                continue
            if self.admit(workload, cluster, open_ones):
                return  # the next look counts it

    def keep(self, workload):
        """What is due whatever the quota. True: it waits for a reservation."""
        if "deletionTimestamp" in workload["metadata"]:
            return False
        if not workload["spec"].get("active", True):
            if not is_true(workload, "Evicted"):
                self.evict(workload, "Deactivated", "The workload is deactivated")
            return False
        requeued = conditions_of(workload).get("Requeued", {})
        if requeued.get("status") == "False":
            self.write(workload, {"Requeued": ("True", "Reactivated", "The workload was reactivated")})
            return False
        if not is_true(workload, "QuotaReserved"):
            return True
        if not is_true(workload, "Admitted") and not is_true(workload, "Evicted"):
            checks = workload["status"].get("admissionChecks", [])
            if all(check["state"] == "Ready" for check in checks):
                self.write(workload, {"Admitted": ("True", "Admitted", "The workload is admitted")})
        return False

    def admit(self, workload, cluster, workloads):
        (pod_set,) = workload["spec"]["podSets"]
        request = pod_set.get("topologyRequest", {})
        # The rule of Kueue's webhook (0.19.1 and newer).
        assert ("podSetSliceSize" in request) == ("podSetSliceRequiredTopology" in request), request
        flavor = cluster["spec"]["resourceGroups"][0]["flavors"][0]
        quota = float(flavor["resources"][0]["nominalQuota"])
        mine = cluster["metadata"]["name"]
        holding = [w for w in workloads if w.get("status", {}).get("admission", {}).get("clusterQueue") == mine]
        free = quota - sum(map(self.usage, holding))
        each = cpus_of(pod_set)
        fitting = [n for n in range(pod_set["count"], pod_set.get("minCount", pod_set["count"]) - 1, -1)
                   if n * each <= free]
        if not fitting:
            self.say(workload, "Pending", f"couldn't assign flavors to pod set main: insufficient unused quota for cpu "
                                          f"in flavor {flavor['name']}, {pod_set['count'] * each - free:g} more needed")
            if cluster["spec"].get("preemption", {}).get("withinClusterQueue") == "LowerPriority":
                self.preempt_for(workload, holding)
            return False
        checks = [check["name"] for check in
                  cluster["spec"].get("admissionChecksStrategy", {}).get("admissionChecks", [])]
        admission = {"clusterQueue": mine, "podSetAssignments": [
            {"name": pod_set["name"], "count": fitting[0], "flavors": {"cpu": flavor["name"]},
             "resourceUsage": {"cpu": f"{int(fitting[0] * each * 1000)}m"}}]}
        if any(word in request for word in ("required", "preferred", "unconstrained", "podSetSliceRequiredTopology")):
            admission["podSetAssignments"][0]["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"], "slices": [
                {"domainCount": 1, "podCounts": {"universal": fitting[0]}, "valuesPerLevel": [{"universal": "fake-1"}]}]}
        states = {"QuotaReserved": ("True", "QuotaReserved", f"Quota reserved in ClusterQueue {mine}")}
        if "Evicted" in conditions_of(workload):
            states["Evicted"] = ("False", "QuotaReserved", "Previously: evicted")
        if not checks:
            states["Admitted"] = ("True", "Admitted", "The workload is admitted")
        self.write(workload, states, admission, [
            {"name": name, "state": "Pending", "message": "it is looked at", "lastTransitionTime": now()}
            for name in checks])
        return True

    @staticmethod
    def host_of(workload):
        """Of all its pods; None when it asks for no topology."""
        for assignment in workload.get("status", {}).get("admission", {}).get("podSetAssignments", []):
            for part in assignment.get("topologyAssignment", {}).get("slices", []):
                return part["valuesPerLevel"][0]["universal"]
        return None

    def remove_gates(self, workload):
        """Like the real one it sees only pods that carry the Workload's name and an annotation about the topology."""
        for pod in self.api.list("pods", workload["metadata"]["namespace"]):
            annotations, gates = pod["metadata"].get("annotations", {}), pod["spec"].get("schedulingGates", [])
            if annotations.get("kueue.x-k8s.io/workload") == workload["metadata"]["name"] and \
                    any(name.endswith("-topology") for name in annotations) and gates == [{"name": TOPOLOGY_GATE}]:
                self.api.patch("pods", {"spec": {"schedulingGates": None, "nodeSelector": {
                    **pod["spec"].get("nodeSelector", {}), "kubernetes.io/hostname": self.host_of(workload)}}},
                    pod["metadata"]["namespace"], pod["metadata"]["name"])

    @staticmethod
    def usage(workload):
        (pod_set,) = workload["spec"]["podSets"]
        (assignment,) = workload["status"]["admission"]["podSetAssignments"]
        given_back = sum(pods["count"] for pods in workload["status"].get("reclaimablePods", []))
        return min(assignment["count"], pod_set["count"] - given_back) * cpus_of(pod_set)

    def preempt_for(self, workload, holding):
        mine = workload["spec"].get("priority", 0)
        for other in holding:
            if other["spec"].get("priority", 0) < mine and not is_true(other, "Evicted"):
                self.evict(other, "Preempted", "Preempted to accommodate a workload of a higher priority")
                return

    def evict(self, workload, reason, message):
        self.write(workload, {"Evicted": ("True", reason, message)})

    def say(self, workload, reason, message):
        found = conditions_of(workload).get("QuotaReserved", {})
        if (found.get("status"), found.get("reason"), found.get("message")) != ("False", reason, message):
            self.write(workload, {"QuotaReserved": ("False", reason, message)})

    def write(self, workload, states, admission=None, checks=None):
        status = workload.get("status", {})
        conditions = {kind: found for kind, found in conditions_of(workload).items() if kind in ITS_OWN}
        for kind, (value, reason, message) in states.items():
            before = conditions.get(kind, {})
            since = before["lastTransitionTime"] if before.get("status") == value else now()
            conditions[kind] = {"type": kind, "status": value, "reason": reason, "message": message,
                                "lastTransitionTime": since}
        body = {"apiVersion": self.workloads.removesuffix("/workloads"), "kind": "Workload",
                "metadata": {name: workload["metadata"][name] for name in ("name", "namespace", "uid",
                                                                           "resourceVersion")},
                "status": {"conditions": list(conditions.values())}}
        for name, value in (("admission", admission), ("admissionChecks", checks)):
            if value or name in status:
                body["status"][name] = value or status[name]
        query = urllib.parse.urlencode({"fieldManager": "kueue-admission", "force": "true"})
        meta = workload["metadata"]
        self.api.request("PATCH", path_of(self.workloads, meta["namespace"], meta["name"], "status") + "?" + query,
                         body, APPLY_PATCH)
