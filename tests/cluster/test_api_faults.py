"""The operator against an API server that is away, forgets, refuses, loses answers or is late, and against another
operator. Whatever happens: every pod is made once, a failure is counted once, and the job comes to its end."""
import collections
import contextlib
import itertools
import json
import time

import pytest

from fake_kubelet import Exit
from fault_proxy import FaultProxy
from kube_api import ApiError, KubeApi
from operator_process import OPERATOR
from train_jobs import Jobs, run_report
from waiting import wait_until

LEASES = "coordination.k8s.io/v1/leases"
ALWAYS = 1_000_000


@pytest.fixture
def process(api, kubelet, history, proxy, operator):
    """An operator with its ServiceAccount's rights, through the proxy."""
    return operator(kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR))


# --- matching requests


def plural_of(request):
    """"pods" of …/namespaces/NS/pods, "trainjobs/status" of …/trainjobs/NAME/status."""
    words = request.path.split("/namespaces/")[-1].split("/")[1:]
    return "/".join(words[:1] + words[2:])


def is_work(request):
    """A write for a TrainJob; Events and Leases are others' concern."""
    return request.is_write and plural_of(request) in ("pods", "services", "trainjobs/status")


def is_lease(request):
    return plural_of(request) == "leases"


def creates_pod(name):
    def matches(request):
        return (request.method == "POST" and plural_of(request) == "pods" and
                json.loads(request.body)["metadata"]["name"] == name)
    return matches


class EveryOther:
    """Matches `refused` of `refused` + 1 equal requests, the first ones: nothing works at once, everything in the end.
    Equal: method and object; not the body, which is another one after a conflict."""

    def __init__(self, match, refused=1):
        self.match, self.refused = match, refused
        self.arrivals = collections.defaultdict(list)  # of equal requests: (time, was it refused?)

    def __call__(self, request):
        if not self.match(request):
            return False
        name = json.loads(request.body)["metadata"]["name"] if request.method == "POST" else ""
        equal = self.arrivals[request.method, request.path, name]
        is_refused = (len(equal) + 1) % (self.refused + 1) != 0
        equal.append((time.monotonic(), is_refused))
        return is_refused

    def waits(self):
        """Seconds from each refusal to the next try."""
        return [later[0] - earlier[0] for equal in self.arrivals.values() for earlier, later in zip(equal, equal[1:])
                if earlier[1]]


# --- what happens to a job


def live_through_a_failure(jobs, kubelet, history, timeout=120):
    """Three nodes, one of which fails and is replaced, and the end of the job."""
    namespace = jobs.api.namespace
    jobs.create(nodes=3)
    jobs.wait_for_condition("PodsReady", timeout=timeout)
    kubelet.exit(namespace, "job-1-0", Exit(1, "it broke"))
    jobs.wait_for_pods("job-0-0", "job-1-1", "job-2-0", timeout=timeout)
    jobs.wait_for_condition("PodsReady", timeout=timeout)
    for name in ("job-0-0", "job-1-1", "job-2-0"):
        kubelet.exit(namespace, name, Exit(0))
    jobs.wait_for_condition("Complete", timeout=timeout)
    status = jobs.status()
    assert status["attempts"] == [{"node": 1, "attempt": 1}]
    assert status["restarts"]["pod"] == 1 and status["restarts"]["total"] == 1
    assert [(f["node"], f["attempt"], f["exitCode"]) for f in status["recentFailures"]] == [(1, 0, 1)]
    assert history.names() == ["job-0-0", "job-1-0", "job-1-1", "job-2-0"]


def failures_of(status):
    return [(f["node"], f["attempt"], f["exitCode"]) for f in status.get("recentFailures", [])]


# --- an API server that is away or has forgotten


@pytest.mark.long
def test_an_api_server_that_is_away_for_30_s_in_the_middle_of_a_replacement(api, jobs, kubelet, proxy, process,
                                                                               history):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    new_pod = creates_pod("job-1-1")
    proxy.answer(new_pod, 503, "ServiceUnavailable", times=ALWAYS)
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    wait_until(lambda: proxy.answered(new_pod) > 0, "create of the new pod")  # its attempt is in the status by now
    api.control_plane.stop_component("kube-apiserver")
    proxy.clear()
    back_at = time.monotonic() + 30  # the outage itself, not a wait for something
    wait_until(lambda: time.monotonic() >= back_at, "end of the outage")
    process.wait_until_alive()  # a restart of the operator would mend nothing
    api.control_plane.restart_component("kube-apiserver")
    jobs.wait_for_pods("job-0-0", "job-1-1", timeout=120)
    jobs.wait_for_condition("PodsReady", timeout=120)
    assert sorted(jobs.pods()) == ["job-0-0", "job-1-0", "job-1-1"]  # the one that failed stays for its logs
    status = jobs.status()
    assert status["attempts"] == [{"node": 1, "attempt": 1}] and status["restarts"]["total"] == 1
    assert failures_of(status) == [(1, 0, 1)]
    assert history.names() == ["job-0-0", "job-1-0", "job-1-1"]
    wait_until(lambda: process.answers("readyz"), "answer to /readyz")


def test_what_happened_before_history_was_forgotten_is_found_by_a_list(api, jobs, kubelet, proxy, process, history):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    process.pause()
    proxy.cut_watches()  # what follows can be learned by a list alone
    api.kubectl("delete", "pod", "job-1-0", "--force", "--grace-period=0")
    kubelet.exit(api.namespace, "job-0-0", Exit(1))
    jobs.create("second", nodes=1)
    api.control_plane.forget_history()
    listed_before = proxy.answered(lambda r: r.method == "GET" and not r.is_watch and plural_of(r) == "pods")
    process.go_on()
    jobs.wait_for_pods("job-0-1", "job-1-1", timeout=120)
    jobs.wait_for_condition("PodsReady", timeout=120)
    jobs.wait_for_condition("PodsReady", name="second", timeout=120)
    listed = proxy.answered(lambda r: r.method == "GET" and not r.is_watch and plural_of(r) == "pods")
    assert listed > listed_before
    assert jobs.status()["attempts"] == [{"node": 0, "lastNode": 1, "attempt": 1}]
    assert history.names() == ["job-0-0", "job-0-1", "job-1-0", "job-1-1", "second-0-0"]


# --- watches


def test_watches_that_are_cut_and_torn_lose_nothing(api, jobs, kubelet, proxy, history):
    nodes = 4
    jobs.create(nodes=nodes)
    jobs.wait_for_condition("PodsReady")
    for node in range(nodes):
        proxy.tear_next_event()
        kubelet.exit(api.namespace, f"job-{node}-0", Exit(1))
        proxy.cut_watches()
        jobs.wait_for_pods(*(f"job-{n}-{1 if n <= node else 0}" for n in range(nodes)))
    jobs.wait_for_condition("PodsReady")
    assert not proxy.tear  # an event was torn
    status = jobs.status()
    assert status["restarts"]["pod"] == nodes
    assert sorted(failures_of(status)) == [(node, 0, 1) for node in range(nodes)]
    assert history.names() == sorted(f"job-{node}-{attempt}" for node in range(nodes) for attempt in (0, 1))


def test_pods_that_end_before_the_operator_has_seen_its_own_creates(api, jobs, kubelet, proxy, history):
    is_create = creates_pod("job-0-0")

    def hold(request):
        if is_create(request):
            proxy.hold_watches()
        return False

    proxy.answer(hold, 500, times=ALWAYS)
    jobs.create(nodes=3)
    for node in range(3):
        wait_until(lambda node=node: api.control_plane.exists("pods", api.namespace, f"job-{node}-0"), "pods")
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    kubelet.wait_for(api.namespace, "job-2-0", lambda pod: pod["status"].get("phase") == "Running", "running")
    api.kubectl("delete", "pod", "job-2-0", "--force", "--grace-period=0")
    proxy.release_watches()
    jobs.wait_for_pods("job-0-0", "job-1-1", "job-2-1")
    jobs.wait_for_condition("PodsReady")
    assert jobs.status()["restarts"]["pod"] == 2
    assert history.names() == ["job-0-0", "job-1-0", "job-1-1", "job-2-0", "job-2-1"]


def test_a_stale_operator_overwrites_nothing_of_a_job_that_changed_meanwhile(api, jobs, kubelet, proxy, history):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    agent = kubelet.serve_status(api.namespace, "job-0-0", run_report(step=1))
    jobs.wait_for(lambda: jobs.status().get("progress", {}).get("step") == 1, "progress")
    proxy.hold_watches()
    jobs.patch({"spec": {"suspend": True}, "metadata": {"labels": {"touched": "yes"}}})
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    asked = agent.gets
    agent.document = run_report(step=50)
    wait_until(lambda: agent.gets > asked, "further look at the progress")  # it works with what it has
    # No others are made. The 409 of a status write may have told it of the suspension, so that these are gone already.
    assert jobs.pods().keys() <= {"job-0-0", "job-1-0"}
    proxy.release_watches()
    jobs.wait_for_condition("Suspended")
    jobs.wait_for(lambda: jobs.pods() == {}, "no pods")
    job = jobs.get()
    assert job["spec"]["suspend"] is True and job["metadata"]["labels"] == {"touched": "yes"}
    assert history.names() == ["job-0-0", "job-1-0"]


def test_a_pod_is_replaced_before_jobs_that_came_earlier_are_started(api, kubelet, proxy, operator, history):
    operator(kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR), workers=1)
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    proxy.delay(lambda request: request.is_write and plural_of(request) == "services", 0.3, times=ALWAYS)
    for number in range(12):
        jobs.create(f"new-{number}", nodes=1)
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for(lambda: "job-1-1" in history.made, "the replacement")
    assert len(history.made) < 3 + 8, list(history.made)  # some were started before the pod ended
    proxy.clear()
    jobs.wait_for(lambda: len(history.made) == 3 + 12, "the pods of all jobs")


# --- refusals


@pytest.mark.parametrize("status, reason, refused", [(409, "Conflict", 2), (500, "InternalError", 2),
                                                     (503, "ServiceUnavailable", 1)])
def test_a_storm_of_refusals_delays_and_changes_nothing(jobs, kubelet, proxy, history, status, reason, refused):
    storm = EveryOther(is_work, refused)
    proxy.answer(storm, status, reason, times=ALWAYS)
    live_through_a_failure(jobs, kubelet, history)
    assert len(storm.waits()) >= 5


def test_retry_after_is_obeyed(jobs, kubelet, proxy, history):
    storm = EveryOther(is_work)
    proxy.answer(storm, 429, "TooManyRequests", times=ALWAYS, retry_after=1)
    live_through_a_failure(jobs, kubelet, history)
    assert len(storm.waits()) >= 5
    assert min(storm.waits()) >= 1.0, sorted(storm.waits())[:3]


def test_lists_and_watches_are_refused_for_a_while(api, kubelet, proxy, history, operator):
    storm = EveryOther(lambda request: request.method == "GET", refused=2)
    proxy.answer(storm, 500, "InternalError", times=ALWAYS)
    operator(kubeconfig=proxy.kubeconfig_of_service_account(*OPERATOR))
    proxy.clear()
    live_through_a_failure(Jobs(api), kubelet, history)


def test_answers_that_are_lost_after_the_write_was_done_do_no_harm(jobs, kubelet, proxy, history):
    lost = EveryOther(is_work)
    proxy.lose_answer(lost, times=ALWAYS)
    live_through_a_failure(jobs, kubelet, history)
    assert len(lost.waits()) >= 5


# --- credentials and rights


def bound_token(plane, secret):
    """A token of the operator that is good for as long as this Secret is there."""
    made = plane.api.create("secrets", {"metadata": {"name": secret}}, OPERATOR[0])
    bound = {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": made["metadata"]["uid"]}
    answer = plane.api.create("serviceaccounts", {"spec": {"boundObjectRef": bound}}, *OPERATOR, "token")
    return answer["status"]["token"]


def is_refused(plane, token):
    """Does the API server refuse this token?"""
    try:
        KubeApi(plane.port, plane.certificates.ca, token=token).request("GET", "/api/v1/namespaces/default/pods")
    except ApiError as error:
        assert error.status == 401, error
        return True
    return False


def test_a_rotated_token_is_taken_from_its_file(api, kubelet, proxy, history, operator):
    plane = api.control_plane
    first, second = (f"token-{plane.number()}" for _ in range(2))
    old = bound_token(plane, first)
    token_file = plane.folder / f"{first}.token"
    token_file.write_text(old, encoding="utf-8")
    kubeconfig = plane.write_kubeconfig(plane.folder / f"{first}.kubeconfig", {"tokenFile": str(token_file)},
                                        OPERATOR[0], port=proxy.port)
    process = operator(kubeconfig=kubeconfig)
    try:
        jobs = Jobs(api)
        jobs.create(nodes=2)
        jobs.wait_for_condition("PodsReady")
        token_file.write_text(bound_token(plane, second), encoding="utf-8")
        plane.api.delete("secrets", OPERATOR[0], first)
        wait_until(lambda: is_refused(plane, old), "end of the old token")  # the API server remembers it for 10 s
        proxy.cut_watches()
        kubelet.exit(api.namespace, "job-1-0", Exit(1))
        jobs.wait_for_pods("job-0-0", "job-1-1")
        jobs.wait_for_condition("PodsReady")
        wait_until(lambda: process.answers("readyz"), "answer to /readyz")
    finally:
        for secret in (first, second):
            with contextlib.suppress(ApiError):
                plane.api.delete("secrets", OPERATOR[0], secret)


def test_an_operator_without_rights_says_which_verb_on_what_and_goes_on_once_it_has_them(api, kubelet, operator):
    kubeconfig = api.control_plane.kubeconfig_of_service_account(api.namespace, "default")
    process = operator(wait=False, kubeconfig=kubeconfig)
    missing = 'cannot list resource "trainjobs" in API group "lockstep.dev" in the namespace "' + api.namespace
    process.wait_until(lambda: missing in process.readyz(), "the missing right in /readyz")
    process.wait_until_alive()
    assert not process.answers("readyz")
    assert any("cannot list resource" in json.dumps(record) for record in process.records())
    api.kubectl("create", "rolebinding", "operator", "--clusterrole=lockstep-operator",
                f"--serviceaccount={api.namespace}:default")
    process.wait_until_ready(timeout=90)
    jobs = Jobs(api)
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")


def test_an_operator_whose_credentials_are_refused_says_so(api, operator):
    plane = api.control_plane
    kubeconfig = plane.write_kubeconfig(plane.folder / f"nobody-{plane.number()}.kubeconfig", {"token": "nobody's"})
    process = operator(wait=False, kubeconfig=kubeconfig)
    process.wait_until(lambda: "Unauthorized" in process.readyz(), "the refusal in /readyz")
    assert not process.answers("readyz")


# --- two operators


def test_two_operators_that_both_act_do_no_harm(api, kubelet, history, operator):
    """As if an old leader never noticed that another one leads: names, versions and UIDs keep their writes apart."""
    for _ in range(2):
        operator(leader_elect=False)
    live_through_a_failure(Jobs(api), kubelet, history)


class Replicas:
    """Two operators that elect a leader: `leader` leads, `other` stands by; each has a proxy of its own."""

    def __init__(self, control_plane, operator, proxies):
        with contextlib.suppress(ApiError):
            control_plane.api.delete(LEASES, OPERATOR[0], OPERATOR[1])  # an earlier test's, not yet over
        self.proxy, self.other_proxy = proxies
        self.leader, self.other = None, None
        self.leader = operator(kubeconfig=self.proxy.kubeconfig_of_service_account(*OPERATOR), leader_elect=True)
        wait_until(lambda: leads(self.leader), "leader")
        self.other = operator(kubeconfig=self.other_proxy.kubeconfig_of_service_account(*OPERATOR), leader_elect=True)
        assert not leads(self.other)


def leads(process):
    return any(name.startswith("leader_election_master_status") and value == 1
               for name, value in process.metrics().items())


def writes(proxy):
    """(method, path, status) of all writes but those to the Lease."""
    with proxy.lock:
        return [(r.method, r.path, status) for r, status in proxy.requests if r.is_write and not is_lease(r)]


@pytest.fixture
def replicas(control_plane, api, kubelet, history, operator):
    with FaultProxy(control_plane) as first, FaultProxy(control_plane) as second:
        yield Replicas(control_plane, operator, (first, second))


def holder(control_plane):
    return control_plane.api.get(LEASES, *OPERATOR)["spec"].get("holderIdentity", "")


def said_at(process, message):
    """When its log first says so."""
    return next(record["ts"] for record in process.records() if record["msg"] == message)


def looks_before_it_leads(proxy, since):
    """How often the lease was read through this proxy after the first `since` requests, up to the first write of it."""
    with proxy.lock:
        asked = [(request.is_write, status) for request, status in proxy.requests[since:] if is_lease(request)]
    return len(list(itertools.takewhile(lambda one: not (one[0] and one[1] == 200), asked)))


def repair_by_the_other(jobs, kubelet, replicas, history):
    kubelet.exit(jobs.api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_pods("job-0-0", "job-1-1", timeout=90)
    jobs.wait_for_condition("PodsReady")
    assert leads(replicas.other)
    status = jobs.status()
    assert status["restarts"]["total"] == 1 and failures_of(status) == [(1, 0, 1)]
    assert history.names() == ["job-0-0", "job-1-0", "job-1-1"]


def test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on(api, kubelet, replicas, history):
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    jobs.wait_for(lambda: {"PodsReady", "Running"} <= {event[0] for event in jobs.events()}, "what it has to say")
    assert writes(replicas.other_proxy) == []  # it stands by
    replicas.leader.pause()
    before = writes(replicas.proxy)
    repair_by_the_other(jobs, kubelet, replicas, history)
    replicas.leader.go_on()  # to find the news of a failed pod in its watches
    assert replicas.leader.wait() != 0  # so that whatever started it starts it again
    assert writes(replicas.proxy) == before
    assert leads(replicas.other)
    assert history.names() == ["job-0-0", "job-1-0", "job-1-1"]


def test_a_leader_that_reaches_no_api_server_leaves_before_the_other_begins(api, kubelet, replicas, history):
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    replicas.proxy.answer(lambda request: True, 503, "ServiceUnavailable", times=ALWAYS)
    replicas.proxy.cut_watches()
    assert replicas.leader.wait() != 0
    repair_by_the_other(jobs, kubelet, replicas, history)
    # The lease outlives the leadership.
    assert said_at(replicas.leader, "no longer leading") < said_at(replicas.other, "leading")


def test_a_leader_that_is_asked_to_end_gives_its_lease_back(api, kubelet, replicas, history):
    jobs = Jobs(api)
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    was = holder(api.control_plane)
    assert replicas.leader.terminate() == 0
    since = replicas.other_proxy.answered(lambda request: True)
    assert holder(api.control_plane) != was
    wait_until(lambda: leads(replicas.other), "other leader")
    # A candidate looks every 2 s or so; without the lease back, it would have to look until that is over.
    assert looks_before_it_leads(replicas.other_proxy, since) <= 2
    repair_by_the_other(jobs, kubelet, replicas, history)
