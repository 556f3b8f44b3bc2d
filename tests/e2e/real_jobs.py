"""TrainJobs whose pods are real: started on real data, observed through their agents, and given faults."""
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import time
import urllib.request

import kube_api
from images import RUNNER
from jobs import max_step, sasrec_flags
from pod_history import JobHistory
from programs import bin_folder, clean_environment, program, write_interactions
from runs import equal_weights, losses, weights
from train_jobs import Jobs, TRAIN_JOBS
from waiting import wait_until

DATA_CLAIM, CHECKPOINT_CLAIM = "datasets", "checkpoints"
MODES = ["ReadWriteOnce", "ReadWriteMany"]
NO_ANSWER = (*kube_api.NO_ANSWER, ValueError)  # ValueError: half a JSON document
STEPS = 3000
ENDLESS = 10_000_000


def run_undisturbed(base, steps):
    """The folder of the same run as RealJobs.start() makes, without Kubernetes."""
    dataset = write_interactions(base / "small.txt")
    argv = [program(bin_folder() / "lockstep"), "run", "sasrec", "--nproc", 2, "--status_port", 0,
            "--train_dir", base / "run", *sasrec_flags(dataset, steps)]
    done = subprocess.run([str(word) for word in argv], env=clean_environment(), capture_output=True, text=True,
                          timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return base / "run"


def read_json(url):
    """None if there is no complete answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return json.load(answer)
    except NO_ANSWER:
        return None


def read_metrics(address):
    """/metrics of port 8080 of address(), as soon as it answers."""
    def read():
        url = f"http://{address()}:8080/metrics"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except NO_ANSWER as error:
            raise AssertionError(f"{url}: {error!r}") from error
    return wait_until(read, "answer to /metrics")


class RealJobs(Jobs):
    """The TrainJobs of one namespace. Their data and checkpoints are folders of this machine."""

    def __init__(self, api):
        super().__init__(api)
        self.plane = api.control_plane
        self.folder = self.plane.folder / "volumes" / api.namespace
        self.history = JobHistory(api)

    def __enter__(self):
        self.history.__enter__()
        return self

    def __exit__(self, *details):
        self.history.__exit__(*details)
        for volume in self.plane.api.list("persistentvolumes"):
            if volume["spec"]["claimRef"]["namespace"] == self.api.namespace:
                self.plane.api.delete("persistentvolumes", name=volume["metadata"]["name"])

    # --- volumes

    def make_volumes(self):
        self.data = self.make_volume(DATA_CLAIM)
        self.checkpoints = self.make_volume(CHECKPOINT_CLAIM)
        for claim in (DATA_CLAIM, CHECKPOINT_CLAIM):
            self.api.create("persistentvolumeclaims", {
                "metadata": {"name": claim}, "spec": {"accessModes": MODES, "storageClassName": "",
                                                      "resources": {"requests": {"storage": "1Gi"}}}})
        write_interactions(self.data / "small.txt")

    def make_volume(self, claim):
        """A volume for the claim of that name: a folder of its own, which all users may write to."""
        folder = self.folder / claim
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        self.plane.api.create("persistentvolumes", {
            "metadata": {"name": f"{self.api.namespace}-{claim}"},
            "spec": {"capacity": {"storage": "10Gi"}, "accessModes": MODES, "hostPath": {"path": str(folder)},
                     "claimRef": {"namespace": self.api.namespace, "name": claim}}})
        return folder

    # --- jobs

    def start(self, name="job", nodes=2, steps=STEPS, flags=(), trainer=(), checkpoint=(), pod_spec=(),
              **spec):
        """SASRec with dropout on a small data set, two nodes of one process; every step is logged."""
        args = ["run", "sasrec", "--train_dir", "unused",
                *(str(word) for word in sasrec_flags("/data/small.txt", steps, *flags))]
        body = {
            "apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "metadata": {"name": name},
            "spec": {
                "trainer": {
                    "image": RUNNER, "args": args, "numNodes": nodes,
                    "resourcesPerNode": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
                    "podTemplate": {"metadata": {"labels": dict([self.selector().split("=")])}, "spec": {
                        "containers": [{"name": "trainer",
                                        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]}],
                        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": DATA_CLAIM}}],
                        **dict(pod_spec)}},
                    **dict(trainer)},
                "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": CHECKPOINT_CLAIM}},
                               **dict(checkpoint)},
                **spec}}
        return self.api.create(TRAIN_JOBS, body)

    def selector(self):
        """Of this namespace's pods, for what looks at those of all namespaces."""
        return f"tests.lockstep.dev/namespace={self.api.namespace}"

    def run_folder(self, name="job"):
        return self.checkpoints / name

    def wait_for_step(self, step, name="job", timeout=300):
        """Node 0's agent says that it is committed; its status."""
        def reached():
            status = self.agent(0, name)
            return status if status is not None and max_step(status) >= step else None
        return wait_until(reached, f"step {step}", timeout,
                          lambda: f"{self.status(name)}\n{self.logs(name)}")

    def wait_until_complete(self, name="job", timeout=600):
        self.wait_for(lambda: self.status(name).get("phase") in ("Complete", "Failed"), "end", name, timeout)
        status = self.status(name)
        assert status["phase"] == "Complete", status
        return status

    def assert_same_curve(self, reference):
        """Every step's loss and the final weights, to the bit."""
        found, expected = losses(self.run_folder()), losses(reference)
        odd = sorted(found.keys() ^ expected.keys())
        assert not odd, f"{len(odd)} steps are in one of {self.run_folder()} and {reference} only, from {odd[0]} to {odd[-1]}"
        assert [step for step in found if found[step] != expected[step]] == []
        assert equal_weights(weights(self.run_folder()), weights(reference))

    def assert_same_beginning(self, reference):
        """Every step so far that the other run also took has its loss, to the bit, and none is missing."""
        found, expected = losses(self.run_folder()), losses(reference)
        assert sorted(found) == list(range(1, max(found) + 1))
        assert [step for step in found.keys() & expected.keys() if found[step] != expected[step]] == []

    # --- pods

    def pod_of(self, node, name="job"):
        """The newest pod of a node that is not being deleted; None when there is none."""
        found = [pod for pod in self.pods(name).values() if pod["metadata"]["labels"]["lockstep.dev/node"] == str(node)
                 and "deletionTimestamp" not in pod["metadata"]]
        return max(found, key=lambda pod: int(pod["metadata"]["labels"]["lockstep.dev/attempt"]), default=None)

    def pod_name(self, node, name="job"):
        return self.pod_of(node, name)["metadata"]["name"]

    def agent(self, node, name="job"):
        """/status of a node's agent; None while it does not answer."""
        pod = self.pod_of(node, name)
        ip = pod and pod["status"].get("podIP")
        return read_json(f"http://{ip}:8080/status") if ip else None

    def answer(self, node, name="job"):
        """The same, as soon as it answers."""
        return wait_until(lambda: self.agent(node, name), f"answer of node {node}")

    def metrics_text(self, node):
        return read_metrics(lambda: self.pod_of(node)["status"]["podIP"])

    def worker_pid(self, node, name="job"):
        """In the pod's own numbers."""
        (pid,) = [worker["pid"] for worker in self.answer(node, name)["workers"] if worker["pid"]]
        return pid

    def processes(self, node):
        """(container, started at, worker's pid): the same as long as nothing was restarted."""
        pod = self.pod_of(node)
        container = pod["status"]["containerStatuses"][0]
        return container["containerID"], container["state"].get("running"), self.worker_pid(node)

    def execute(self, node, command, name="job"):
        """`kubectl exec` of a shell's command in a node's pod."""
        return self.api.kubectl("exec", self.pod_name(node, name), "--container", "trainer", "--", "sh", "-c", command)

    def kill_worker(self, node, name="job", number=9):
        self.execute(node, f"kill -{number} {self.worker_pid(node, name)}", name)

    def delete_pod(self, node):
        """As `kubectl delete pod --force` does."""
        self.api.client.delete("pods", self.api.namespace, self.pod_name(node), gracePeriodSeconds=0)

    def delete_and_see_ends(self, nodes, grace):
        """Deletes these nodes' pods; pod → the exit code that its container was last seen with."""
        names = [self.pod_name(node) for node in nodes]
        codes = {}

        def are_gone():
            there = self.pods()
            for pod in names:
                for container in there.get(pod, {}).get("status", {}).get("containerStatuses", []):
                    if ended := container["state"].get("terminated"):
                        codes[pod] = ended["exitCode"]
            return not set(names) & there.keys()
        for pod in names:
            self.api.client.delete("pods", self.api.namespace, pod, gracePeriodSeconds=grace)
        wait_until(are_gone, f"end of {names}")
        return codes

    @contextlib.contextmanager
    def forwarded_port(self, target, port):
        """`kubectl port-forward`; the port on this machine."""
        argv = [self.plane.program("kubectl"), "--kubeconfig", self.api.kubeconfig, "-n", self.api.namespace,
                "port-forward", target, f":{port}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as forwarding:
            try:
                yield int(re.search(r":(\d+) ->", forwarding.stdout.readline())[1])
            finally:
                forwarding.terminate()

    def logs(self, name="job"):
        return self.api.kubectl("logs", f"--selector=lockstep.dev/job={name}", "--prefix", "--tail=30",
                                check=False).stdout

    def seconds_to_next_step(self, inject_fault, name="job", timeout=120):
        """Calls inject_fault(), and returns the seconds from just before it to the first step that a new group has
        committed."""
        before = self.answer(0, name)
        begin = time.monotonic()
        inject_fault()

        def is_further():
            status = self.agent(0, name)
            return (status is not None and status["generation"] > before["generation"] and
                    status["phase"] == "Running" and max_step(status) > max_step(before))
        wait_until(is_further, "step after the failure", timeout, lambda: f"{self.status(name)}\n{self.logs(name)}")
        return time.monotonic() - begin

    # --- words

    def wait_for_recovered(self, message):
        """The condition Recovering said so, with this in its message; the end of the job may have replaced it since."""
        def said():
            return [one["message"] for one in self.history.of("Recovering", "Recovered")
                    if one["status"] == "False"]
        wait_until(lambda: any(message in one for one in said()), f"Recovering=False Recovered: {message!r}",
                   on_timeout=lambda: f"{said()}; the status is {self.status()}")

    def describe(self):
        return self.api.kubectl("describe", "trainjob", "job").stdout

    def reasons(self, name="job"):
        return [reason for reason, _, _ in self.events(name)]


def copy_into(source, folder):
    shutil.copy(source, pathlib.Path(folder) / pathlib.Path(source).name)
