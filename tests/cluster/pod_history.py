"""Every pod that ever existed, and every condition that a TrainJob ever had."""
import threading

from kube_api import NO_ANSWER, ApiError, StopWatch, path_of
from train_jobs import TRAIN_JOBS
from waiting import pause


class History:
    """A thread follows a resource of the test's namespace, even if the API server is away for a while."""

    resource = ""

    def __init__(self, api):
        self.client, self.namespace = api.client, api.namespace
        self.watch_end = StopWatch()
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.follow, name=f"history of {self.resource}")

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.watch_end.stop()
        self.thread.join(60)

    def take(self, one):
        """Called for each object that is seen."""
        raise NotImplementedError

    def take_all(self):
        """Returns the version of what it saw."""
        listed = self.client.request("GET", path_of(self.resource, self.namespace))
        for one in listed["items"]:
            self.take(one)
        return listed["metadata"]["resourceVersion"]

    def follow(self):
        while not self.ending.is_set():
            try:
                version = self.take_all()
                for kind, one in self.client.watch(self.resource, self.namespace, version, stop=self.watch_end):
                    if kind != "BOOKMARK":
                        self.take(one)
            except (ApiError, ValueError, *NO_ANSWER):
                pause(0.1)


class PodHistory(History):
    """`with PodHistory(api) as history`. `made`: name → the set of its UIDs."""

    resource = "pods"

    def __init__(self, api):
        super().__init__(api)
        self.made = {}

    def take(self, one):
        self.made.setdefault(one["metadata"]["name"], set()).add(one["metadata"]["uid"])

    def names(self):
        """Of all pods, each of which was made once."""
        self.take_all()
        twice = {name: uids for name, uids in self.made.items() if len(uids) > 1}
        assert not twice, f"made twice: {twice}"
        return sorted(self.made)


class JobHistory(History):
    """`with JobHistory(api) as history`. `conditions`: [(name of the TrainJob, condition)], in the order of their
    times; a job that ends soon may have shown one for a moment only."""

    resource = TRAIN_JOBS

    def __init__(self, api):
        super().__init__(api)
        self.conditions = []

    def take(self, one):
        for condition in one.get("status", {}).get("conditions", []):
            found = one["metadata"]["name"], condition
            if found not in self.conditions:
                self.conditions.append(found)

    def of(self, kind, *reasons, name="job"):
        """Those of this type that had one of these reasons."""
        return [one for job, one in list(self.conditions) if (job, one["type"]) == (name, kind) and
                one["reason"] in reasons]
