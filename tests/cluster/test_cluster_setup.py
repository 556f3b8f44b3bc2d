"""What an operator says where the cluster is not set up for it: no CRD, an older CRD, rights that are missing."""
import copy

import pytest
import yaml

from control_plane import BASE, ControlPlane
from fake_kubelet import FakeKubelet
from namespace import fresh_namespace
from operator_process import OperatorProcess
from train_jobs import Jobs, TRAIN_JOBS, train_job
from waiting import pause, wait_until

CRD = yaml.safe_load((BASE / "crd.yaml").read_text(encoding="utf-8"))
CRD_NAME = CRD["metadata"]["name"]
OPERATOR_ROLE = "lockstep-operator"


@pytest.fixture(scope="module")
def plane():
    """Of this file alone: its CRD changes."""
    with ControlPlane() as running:
        running.kubectl("apply", "--server-side", "-f", BASE / "namespace.yaml", "-f", BASE / "service_account.yaml",
                        "-f", BASE / "rbac.yaml")
        yield running


@pytest.fixture
def api(plane, request):
    with fresh_namespace(plane, request.node.name) as found:
        yield found


def apply_crd(plane, crd):
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.dump(crd))
    plane.wait_for_crd(CRD_NAME)


def older(*paths):
    """The CRD without these fields."""
    crd = copy.deepcopy(CRD)
    for path in paths:
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        *above, last = path.split(".")
        for name in above:
            schema = schema["properties"][name]
        del schema["properties"][last]
    return crd


def narrower():
    """The CRD without a word of an enum, and with a lower limit: the API server would refuse what goes beyond."""
    crd = copy.deepcopy(CRD)
    fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields["status"]["properties"]["phase"]["enum"].remove("Recovering")
    fields["spec"]["properties"]["trainer"]["properties"]["numNodes"]["maximum"] = 100
    return crd


def wait_until_it_says(operator, *parts):
    wait_until(lambda: all(part in operator.readyz() for part in parts), f"{parts} in /readyz",
               on_timeout=lambda: operator.readyz() + operator.log()[-3000:])


def test_without_a_crd_it_says_so_and_begins_once_there_is_one(plane, api):
    plane.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")
    operator = OperatorProcess(plane, namespace=api.namespace)
    operator.start(wait=False)
    try:
        wait_until_it_says(operator, "no list of trainjobs yet",
                           "the server does not know trainjobs of lockstep.dev/v1: install the CRD trainjobs.lockstep.dev")
        apply_crd(plane, CRD)
        operator.wait_until_ready(120)
        api.create(TRAIN_JOBS, train_job(nodes=1))
        wait_until(lambda: api.list("pods"), "a pod", 60)
    finally:
        operator.kill()


def test_with_an_older_crd_it_names_what_is_missing_and_does_nothing_until_it_is_there(plane, api):
    apply_crd(plane, older("spec.podCleanup", "status.recentFailures", "status.progress.eta"))
    operator = OperatorProcess(plane, namespace=api.namespace, name="operator-older")
    operator.start(wait=False)
    try:
        wait_until_it_says(operator, "the CRD trainjobs.lockstep.dev in the cluster is older than this operator",
                           "spec.podCleanup, status.progress.eta, status.recentFailures", "manifests/base/crd.yaml")
        said = [record for record in operator.records() if record["level"] == "error"]
        assert len(said) == 1 and "older than this operator" in said[0]["msg"]
        api.create(TRAIN_JOBS, train_job(nodes=1))
        apply_crd(plane, older("spec.podCleanup"))  # better, not good
        wait_until_it_says(operator, "it does not have spec.podCleanup;")
        apply_crd(plane, narrower())
        wait_until_it_says(operator, "spec.trainer.numNodes: a maximum of 10000, status.phase: Recovering;")
        assert api.list("pods") == [] and "status" not in api.get(TRAIN_JOBS, "job")
        apply_crd(plane, CRD)
        wait_until(lambda: api.list("pods"), "a pod", 60)
        operator.wait_until_ready()
    finally:
        operator.kill()


def test_an_operator_newer_than_the_crd_leaves_the_lead_to_the_one_that_works(plane, api):
    apply_crd(plane, CRD)
    with OperatorProcess(plane, namespace=api.namespace, name="operator-old", leader_elect=True) as old:
        wait_until(lambda: leads(old), "leader")
        # From here on the CRD is too old for an operator that begins; the one that leads has seen a whole one.
        apply_crd(plane, older("spec.podCleanup"))
        newer = OperatorProcess(plane, namespace=api.namespace, name="operator-new", leader_elect=True)
        newer.start(wait=False)
        try:
            wait_until_it_says(newer, "it does not have spec.podCleanup;")
            assert old.answers("readyz") and leads(old) and not newer.answers("readyz")
            api.create(TRAIN_JOBS, train_job(nodes=1))
            wait_until(lambda: api.list("pods"), "a pod of the old one", 60)
            old.terminate()  # it gives the Lease up, and the new one may not take it
            for _ in range(200):
                assert not leads(newer)
                pause()
            apply_crd(plane, CRD)
            newer.wait_until_ready()
            wait_until(lambda: leads(newer), "new leader", 60)
        finally:
            newer.kill()


def leads(operator):
    return operator.metrics()['leader_election_master_status{name="lockstep-operator"}'] == 1


def test_a_newer_crd_is_no_reason_to_wait(plane, api):
    newer = copy.deepcopy(CRD)
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["fromTheFuture"] = {"type": "string"}
    apply_crd(plane, newer)
    api.create(TRAIN_JOBS, train_job(nodes=1))
    with OperatorProcess(plane, namespace=api.namespace, name="operator-newer"):
        wait_until(lambda: api.list("pods"), "a pod", 60)
    apply_crd(plane, CRD)


# --- rights

@pytest.fixture
def without(plane):
    """without(resource, verb) takes it from the operator's role."""
    apply_crd(plane, CRD)
    roles = "rbac.authorization.k8s.io/v1/clusterroles"
    whole = plane.api.get(roles, name=OPERATOR_ROLE)["rules"]

    def take(resource, verb):
        rules = copy.deepcopy(whole)
        (rule,) = [one for one in rules if resource in one["resources"]]
        rule["verbs"].remove(verb)
        plane.api.patch(roles, {"rules": rules}, name=OPERATOR_ROLE)
        taken.append((verb, resource + ("." + rule["apiGroups"][0] if rule["apiGroups"][0] else "")))
        wait_until(lambda: can_i(*taken[-1]) == "no", f"end of the right to {verb} {resource}")

    def can_i(verb, resource):
        """"yes" or "no": the authorizer learns of a role some time after it is written."""
        return plane.kubectl("auth", "can-i", verb, resource, "--all-namespaces", "--as",
                             f"system:serviceaccount:lockstep-system:{OPERATOR_ROLE}", check=False).stdout.strip()
    taken = []
    yield take
    plane.api.patch(roles, {"rules": whole}, name=OPERATOR_ROLE)
    wait_until(lambda: all(can_i(*one) == "yes" for one in taken), "the rights of before")


def as_operator(plane, name, **flags):
    kubeconfig = plane.kubeconfig_of_service_account("lockstep-system", OPERATOR_ROLE)
    return OperatorProcess(plane, kubeconfig=kubeconfig, name=name, **flags)


@pytest.mark.parametrize("resource, verb", [("pods", "list"), ("nodes", "list"), ("networkpolicies", "list")])
def test_a_right_to_look_that_is_missing_is_named_verb_and_resource(plane, without, resource, verb):
    without(resource, verb)
    operator = as_operator(plane, f"operator-blind-{resource}")
    operator.start(wait=False)
    try:
        wait_until_it_says(operator, f"no list of {resource} yet", f'cannot {verb} resource "{resource}"',
                           "system:serviceaccount:lockstep-system:lockstep-operator")
    finally:
        operator.kill()


@pytest.mark.parametrize("resource", ["pods", "services"])
def test_a_right_to_make_that_is_missing_is_said_by_the_trainjob(plane, api, without, resource):
    without(resource, "create")
    jobs = Jobs(api)
    with FakeKubelet(plane.api), as_operator(plane, f"operator-maimed-{resource}"):
        jobs.create(nodes=1)
        words = f'cannot create resource "{resource}"'
        wait_until(lambda: words in jobs.status().get("message", "") or
                   any(words in message for _, message, _ in jobs.events()), "the missing right",
                   on_timeout=lambda: f"{jobs.status()} {jobs.events()}")
