"""The faults that other tests ask for are those that a client sees."""
import concurrent.futures
import http.client

import pytest

from kube_api import ApiError, KubeApi
from waiting import wait_until


@pytest.fixture
def client(api, proxy):
    """Of a ServiceAccount that may edit the test's namespace, through the proxy."""
    api.kubectl("create", "rolebinding", "edits", "--clusterrole=edit", f"--serviceaccount={api.namespace}:default")
    plane = api.control_plane
    who = f"system:serviceaccount:{api.namespace}:default"
    # The authorizer learns of a binding some time after it is made.
    wait_until(lambda: api.kubectl("auth", "can-i", "create", "configmaps", "--as", who, check=False).returncode == 0,
               "right of the binding")
    return KubeApi(proxy.port, plane.certificates.ca, token=plane.token_of(api.namespace, "default"))


def config_map(name):
    return {"metadata": {"name": name}}


def is_create(request):
    return request.method == "POST" and request.path.endswith("/configmaps")


def names(api):
    return {one["metadata"]["name"] for one in api.list("configmaps")} - {"kube-root-ca.crt"}


def test_what_no_fault_concerns_is_passed_on_and_noted(api, proxy, client):
    client.create("configmaps", config_map("a"), api.namespace)
    assert client.get("configmaps", api.namespace, "a")["metadata"]["name"] == "a"
    with pytest.raises(ApiError, match="403 Forbidden"):
        client.list("nodes")
    assert [(request.method, status) for request, status in proxy.requests] == [("POST", 201), ("GET", 200),
                                                                               ("GET", 403)]


def test_kubectl_goes_through_it(api, proxy):
    kubeconfig = proxy.kubeconfig_of_service_account(api.namespace, "default")
    assert f"{api.namespace}:default" in api.kubectl("auth", "whoami", kubeconfig=kubeconfig).stdout
    assert proxy.answered(lambda request: request.path.endswith("/selfsubjectreviews")) == 1


@pytest.mark.parametrize("status, reason", [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")])
def test_it_answers_as_often_as_it_was_told(api, proxy, client, status, reason):
    proxy.answer(is_create, status, reason, times=2, retry_after=1 if status == 429 else None)
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            client.create("configmaps", config_map("a"), api.namespace)
        assert (caught.value.status, caught.value.reason) == (status, reason)
    assert names(api) == set()
    client.create("configmaps", config_map("a"), api.namespace)
    assert names(api) == {"a"}


def test_a_lost_answer_is_of_a_request_that_was_done(api, proxy, client):
    proxy.lose_answer(is_create)
    with pytest.raises((OSError, http.client.HTTPException)):
        client.create("configmaps", config_map("a"), api.namespace)
    assert names(api) == {"a"}
    with pytest.raises(ApiError, match="AlreadyExists"):
        client.create("configmaps", config_map("a"), api.namespace)


def watches_begun(proxy):
    return proxy.answered(lambda request: request.is_watch)


class Watching:
    """A watch that a thread of its own reads to its end."""

    def __init__(self, client, namespace, proxy):
        self.seen = []
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        before = watches_begun(proxy)
        self.end = self.pool.submit(self.read, client, namespace)
        wait_until(lambda: watches_begun(proxy) > before, "watch at the proxy")

    def read(self, client, namespace):
        try:
            for kind, found in client.watch("configmaps", namespace, fieldSelector="metadata.name!=kube-root-ca.crt"):
                if kind != "BOOKMARK":
                    self.seen.append(found["metadata"]["name"])
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error)
        return None


def test_watches_are_cut_and_new_ones_may_begin(api, proxy, client):
    first = Watching(client, api.namespace, proxy)
    api.create("configmaps", config_map("a"))
    wait_until(lambda: first.seen == ["a"], "event")
    assert proxy.cut_watches() == 1
    assert first.end.result(timeout=10) in (None, http.client.IncompleteRead, ConnectionResetError)
    again = Watching(client, api.namespace, proxy)
    wait_until(lambda: again.seen == ["a"], "event of the second watch")


def test_a_torn_event_is_no_whole_line(api, proxy, client):
    watching = Watching(client, api.namespace, proxy)
    api.create("configmaps", config_map("a"))
    wait_until(lambda: watching.seen == ["a"], "event")
    proxy.tear_next_event()
    api.create("configmaps", config_map("b"))
    assert watching.end.result(timeout=10) is not None
    assert watching.seen == ["a"]


def test_held_watches_make_a_cache_stale_and_lose_nothing(api, proxy, client):
    watching = Watching(client, api.namespace, proxy)
    api.create("configmaps", config_map("a"))
    wait_until(lambda: watching.seen == ["a"], "event")
    proxy.hold_watches()
    for name in "bc":
        api.create("configmaps", config_map(name))
    assert client.get("configmaps", api.namespace, "c")  # the API server has it, through the same proxy
    assert watching.seen == ["a"]
    proxy.release_watches()
    wait_until(lambda: watching.seen == ["a", "b", "c"], "held events")
