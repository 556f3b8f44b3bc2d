"""Small TrainJobs for tests: to create, to look at, to wait for."""
from kube_api import ApiError
from waiting import wait_until

TRAIN_JOBS = "lockstep.dev/v1/trainjobs"
IMAGE = "registry.example/runner:1"


def train_job(name="job", nodes=2, trainer=(), **spec):
    return {"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "metadata": {"name": name},
            "spec": {"trainer": {"image": IMAGE, "numNodes": nodes, "args": ["run", "sasrec"], **dict(trainer)}, **spec}}


class Jobs:
    """The TrainJobs of one namespace, as a user sees them."""

    def __init__(self, api):
        self.api = api

    def create(self, name="job", **options):
        return self.api.create(TRAIN_JOBS, train_job(name, **options))

    def get(self, name="job"):
        return self.api.get(TRAIN_JOBS, name)

    def patch(self, body, name="job"):
        return self.api.client.patch(TRAIN_JOBS, body, self.api.namespace, name)

    def delete(self, name="job", **options):
        return self.api.client.delete(TRAIN_JOBS, self.api.namespace, name, **options)

    def is_gone(self, name="job"):
        return not self.api.control_plane.exists(TRAIN_JOBS, self.api.namespace, name)

    def status(self, name="job"):
        return self.get(name).get("status", {})

    def condition(self, kind, name="job"):
        """The condition, or {} when there is none."""
        found = [c for c in self.status(name).get("conditions", []) if c["type"] == kind]
        assert len(found) <= 1, found
        return found[0] if found else {}

    def pods(self, name="job"):
        """name → pod, those that are being deleted included."""
        listed = self.api.list("pods", labelSelector=f"lockstep.dev/job={name}")
        return {pod["metadata"]["name"]: pod for pod in listed}

    def live_pods(self, name="job"):
        """Names of the pods that have neither ended nor are asked to."""
        return sorted(pod for pod, body in self.pods(name).items() if "deletionTimestamp" not in body["metadata"] and
                      body["status"].get("phase") not in ("Succeeded", "Failed"))

    def events(self, name="job"):
        """(reason, message, count), oldest first."""
        listed = self.api.list("events", fieldSelector=f"involvedObject.kind=TrainJob,involvedObject.name={name}")
        ordered = sorted(listed, key=lambda e: (e["firstTimestamp"] or "", e["metadata"]["resourceVersion"]))
        return [(event["reason"], event["message"], event["count"]) for event in ordered]

    def wait_for_event(self, holds, what, name="job", timeout=60):
        """The first event for which holds((reason, message, count)): it is written after the status that it is about."""
        wait_until(lambda: any(holds(event) for event in self.events(name)), what, timeout,
                   lambda: str(self.events(name)))
        return next(event for event in self.events(name) if holds(event))

    def wait_for(self, holds, what, name="job", timeout=60):
        def told():
            status = "gone with it" if self.is_gone(name) else self.status(name)
            return f"{what}; the job's status is {status}, its pods {sorted(self.pods(name))}"
        wait_until(holds, what, timeout, told)

    def wait_for_condition(self, kind, status="True", reason=None, name="job", timeout=60):
        def holds():
            found = self.condition(kind, name)
            return found.get("status") == status and reason in (None, found.get("reason"))
        self.wait_for(holds, f"condition {kind}={status} {reason or ''}", name, timeout)
        return self.condition(kind, name)

    def wait_for_pods(self, *names, job="job", timeout=60):
        """These pods, and no others, live."""
        self.wait_for(lambda: self.live_pods(job) == sorted(names), f"pods {sorted(names)}", job, timeout)

    def wait_until_gone(self, name="job", timeout=60):
        self.wait_for_absence(lambda: self.is_gone(name), f"end of {name}", timeout)

    @staticmethod
    def wait_for_absence(holds, what, timeout=60):
        wait_until(holds, what, timeout)


def environment_of(pod):
    """name → value of the trainer container."""
    (found,) = [c for c in pod["spec"]["containers"] if c["name"] == "trainer"]
    return {entry["name"]: entry.get("value", "") for entry in found["env"]}


def run_report(step=0, total=100, nodes=2, generation=1, checkpoint=None, **more):
    """What node 0's agent answers under /status?view=summary."""
    return {"job": "job", "workload": "sasrec", "node": 0, "coordinator": "", "generation": generation,
            "phase": "Running", "reason": "", "startTime": 0, "worldSize": nodes, "nnodes": nodes,
            "wantedNodes": nodes, "nodes": [],
            "progress": {"step": step, "totalSteps": total, "epoch": 1, "numEpochs": 2, "percent": step * 100 // total,
                         "loss": 0.5, "learningRate": 0.001,
                         "gradientNorm": 1.0, "samplesPerSecond": 123.4, "estimatedRemainingSeconds": 42.0,
                         "dataWaitRatio": 0.0, "deviceMemoryBytes": None},
            "metrics": {"ndcg@10": 0.25},
            "lastCheckpoint": None if checkpoint is None else {"step": checkpoint, "path": f"/checkpoints/{checkpoint}"},
            "restarts": 0, "recentFailures": [], "recoveriesTotal": 0, "redoneSteps": 0, "recoveries": [],
            "ladder": {"rung": "process", "restarts": 0, "budgetLeft": 10, "lastDecision": ""}, "goodput": None,
            "slowest": None, **more}


__all__ = ["ApiError", "Jobs", "TRAIN_JOBS", "environment_of", "run_report", "train_job"]
