"""Every pod that was there, also those that are gone by now."""
import http.client
import threading

from kube_api import ApiError, StopWatch, path_of
from waiting import pause


class PodHistory:
    """`with PodHistory(api) as history`: a thread follows the pods of the test's namespace, also past an API server
    that is away for a while. `made`: name → the set of its UIDs."""

    def __init__(self, api):
        self.client, self.namespace = api.client, api.namespace
        self.made = {}
        self.watch_end = StopWatch()
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.follow, name="pod history")

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        self.watch_end.stop()
        self.thread.join(60)

    def take(self, pod):
        self.made.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])

    def take_all(self):
        """Returns the version of what it saw."""
        listed = self.client.request("GET", path_of("pods", self.namespace))
        for pod in listed["items"]:
            self.take(pod)
        return listed["metadata"]["resourceVersion"]

    def follow(self):
        while not self.ending.is_set():
            try:
                version = self.take_all()
                for kind, pod in self.client.watch("pods", self.namespace, version, stop=self.watch_end):
                    if kind != "BOOKMARK":
                        self.take(pod)
            except (ApiError, ValueError, OSError, http.client.HTTPException):
                pause(0.1)

    def names(self):
        """Of all pods, each of which was made once."""
        self.take_all()
        twice = {name: uids for name, uids in self.made.items() if len(uids) > 1}
        assert not twice, f"made twice: {twice}"
        return sorted(self.made)
