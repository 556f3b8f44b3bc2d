"""What the operator and people may do, asked of the API server's own authorizer."""
import itertools
import json

import pytest

from control_plane import BASE, is_usual_version
from kube_api import KubeApi, path_of
from train_jobs import train_job
from waiting import wait_until

OPERATOR = "system:serviceaccount:lockstep-system:lockstep-operator"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")

# resource → what the operator may do with it in every namespace; nothing else is allowed, of these or any other.
MAY = {
    "trainjobs.lockstep.dev": {"get", "list", "watch", "delete"},
    "trainjobs.lockstep.dev/status": {"update"},
    "trainjobs.lockstep.dev/finalizers": {"update"},
    "pods": {"get", "list", "watch", "create", "patch", "delete"},
    "services": {"get", "list", "watch", "create", "patch"},
    "networkpolicies.networking.k8s.io": {"get", "list", "watch", "create", "patch"},
    "poddisruptionbudgets.policy": {"get", "list", "watch", "create", "patch", "delete"},
    "podgroups.scheduling.k8s.io": {"get", "list", "watch", "create", "patch", "delete"},
    "podgroups.scheduling.volcano.sh": {"get", "list", "watch", "create", "patch", "delete"},
    "podgroups.scheduling.x-k8s.io": {"get", "list", "watch", "create", "patch", "delete"},
    "events": {"get", "create", "patch"},
    "nodes": {"list", "watch"},
    "persistentvolumeclaims": {"get"},
    "workloads.kueue.x-k8s.io": {"get", "list", "watch", "create", "patch", "delete"},
    "workloads.kueue.x-k8s.io/status": {"patch"},
    "resourceflavors.kueue.x-k8s.io": {"get"},
    "workloadpriorityclasses.kueue.x-k8s.io": {"get"},
    "priorityclasses.scheduling.k8s.io": {"get", "list"},
}
# Objects of the whole cluster.
CLUSTERS = {"nodes", "resourceflavors.kueue.x-k8s.io", "workloadpriorityclasses.kueue.x-k8s.io",
            "priorityclasses.scheduling.k8s.io"}
# What somebody with a stolen token of the operator would try first.
NEVER = ("secrets", "configmaps", "serviceaccounts", "serviceaccounts/token", "pods/exec", "pods/attach",
         "pods/portforward", "pods/log", "pods/ephemeralcontainers", "pods/status", "nodes/status", "nodes/proxy",
         "namespaces", "deployments.apps", "jobs.batch", "leases.coordination.k8s.io",
         "customresourcedefinitions.apiextensions.k8s.io", "clusterroles.rbac.authorization.k8s.io",
         "rolebindings.rbac.authorization.k8s.io")


def allowed(plane, user, verb, resource, namespace, name="", groups=()):
    """One SubjectAccessReview."""
    resource, _, subresource = resource.partition("/")
    plural, _, group = resource.partition(".")
    asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace,
             "name": name}
    answer = plane.api.create("authorization.k8s.io/v1/subjectaccessreviews", {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated", *groups], "resourceAttributes": asked}})
    return answer["status"]["allowed"]


def verbs_of(plane, user, resource, namespace, **more):
    return {verb for verb in VERBS if allowed(plane, user, verb, resource, namespace, **more)}


@pytest.mark.parametrize("resource", MAY)
def test_the_operator_may_do_what_it_does_and_no_more(api, resource):
    assert verbs_of(api.control_plane, OPERATOR, resource, api.namespace) == MAY[resource]


@pytest.mark.parametrize("resource", NEVER)
def test_the_operator_has_no_access(api, resource):
    assert verbs_of(api.control_plane, OPERATOR, resource, api.namespace) == set()


def test_no_rule_of_the_operator_is_missing_here(control_plane):
    """A wider role needs a change of MAY."""
    roles = [control_plane.api.get("rbac.authorization.k8s.io/v1/clusterroles", name=name)
             for name in ("lockstep-operator", "lockstep-operator-queues")]
    granted = {}
    for rule in (rule for role in roles for rule in role["rules"]):
        assert not rule.get("nonResourceURLs")
        for group, resource in itertools.product(rule["apiGroups"], rule["resources"]):
            plural, slash, subresource = resource.partition("/")
            name = plural + (f".{group}" if group else "") + slash + subresource
            granted.setdefault(name, set()).update(rule["verbs"])
    assert granted == MAY


def test_the_operator_holds_its_own_lease_in_its_own_namespace_only(api):
    plane, leases = api.control_plane, "leases.coordination.k8s.io"
    assert verbs_of(plane, OPERATOR, leases, "lockstep-system", name="lockstep-operator") == {"get", "create", "update"}
    assert verbs_of(plane, OPERATOR, leases, "lockstep-system", name="another") == {"create"}
    assert verbs_of(plane, OPERATOR, leases, "kube-system", name="lockstep-operator") == set()


def test_the_renewal_of_the_lease_has_a_queue_of_its_own(api, control_plane):
    """The API server names the FlowSchema by which it has classified a request."""
    operator = KubeApi(control_plane.port, control_plane.certificates.ca, host=control_plane.address,
                       token=control_plane.token_of("lockstep-system", "lockstep-operator"))

    def schema_of(path):
        connection = operator.connection(30)
        connection.request("GET", path, headers=operator.headers())
        answer = connection.getresponse()
        answer.read()
        return answer.headers["X-Kubernetes-PF-FlowSchema-UID"]

    def uid_of(name):
        return control_plane.api.get("flowcontrol.apiserver.k8s.io/v1/flowschemas", name=name)["metadata"]["uid"]
    lease = path_of("coordination.k8s.io/v1/leases", "lockstep-system", "lockstep-operator")
    # The API server learns of a schema some time after it is made.
    wait_until(lambda: schema_of(lease) == uid_of("lockstep-operator-lease"), "the class of the Lease's requests")
    assert schema_of(path_of("pods", api.namespace)) == uid_of("service-accounts")
    assert schema_of(path_of("coordination.k8s.io/v1/leases", "kube-system", "x")) == uid_of("service-accounts")


def test_kubectl_says_the_same(api):
    def can_i(*words):
        done = api.kubectl("auth", "can-i", *words, "--as", OPERATOR, "--all-namespaces", check=False)
        return done.stdout.strip(), done.returncode
    assert can_i("create", "pods") == ("yes", 0)
    assert can_i("get", "secrets") == ("no", 1)


# --- people

EVERYTHING = {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
PEOPLE = {
    "view": {"trainjobs": {"get", "list", "watch"}, "trainjobs/scale": {"get", "list", "watch"},
             "trainjobs/status": {"get", "list", "watch"}},
    "edit": {"trainjobs": EVERYTHING, "trainjobs/scale": {"get", "list", "watch", "update", "patch"},
             "trainjobs/status": {"get", "list", "watch"}},
    "admin": {"trainjobs": EVERYTHING, "trainjobs/scale": {"get", "list", "watch", "update", "patch"},
              "trainjobs/status": {"get", "list", "watch"}},
}


@pytest.mark.parametrize("role", PEOPLE)
def test_whoever_has_a_standard_role_has_it_for_trainjobs(api, role):
    api.kubectl("create", "rolebinding", "people", f"--clusterrole={role}", "--user=ann")
    for resource, verbs in PEOPLE[role].items():
        plural, slash, subresource = resource.partition("/")

        def found(name=f"{plural}.lockstep.dev{slash}{subresource}"):
            return verbs_of(api.control_plane, "ann", name, api.namespace)
        # The authorizer learns of a binding some time after it is made.
        wait_until(lambda: found() == verbs, f"{role}: {resource}", 60, lambda: str(found()))  # pylint: disable=W0640
    assert verbs_of(api.control_plane, "ann", "trainjobs.lockstep.dev", "default") == set()


def test_a_stranger_has_nothing(api):
    assert verbs_of(api.control_plane, "eve", "trainjobs.lockstep.dev", api.namespace) == set()


# --- the sample policy

POLICY = BASE.parent / "policies/trainjobs.yaml"


@pytest.mark.skipif(not is_usual_version(), reason="Kubernetes 1.29 does not serve these policies")
def test_the_sample_policy_judges_the_user_who_makes_the_trainjob(api):
    def refusal(user, image="registry.example/runner:1", **pod):
        template = {"podTemplate": {"spec": pod}} if pod else {}
        done = api.kubectl("create", "--dry-run=server", "--as", user, "-f", "-", check=False,
                           stdin=json.dumps(train_job(trainer={"image": image, **template})))
        return done.stderr if done.returncode else ""

    # Kubernetes' own role `edit` includes impersonating the service accounts of the namespace.
    api.kubectl("create", "rolebinding", "ann", "--clusterrole=edit", "--user=ann")
    api.kubectl("create", "rolebinding", "bob", "--clusterrole=lockstep-trainjobs-edit", "--user=bob")
    wait_until(lambda: not refusal("ann") and not refusal("bob"), "rights on TrainJobs")
    api.kubectl("apply", "--server-side", "-f", POLICY)
    try:
        # The API server learns of a policy some time after it is made.
        wait_until(lambda: "registry.example/" in refusal("ann", image="elsewhere.example/i"), "the policy's refusal")
        assert refusal("ann") == refusal("bob") == ""
        assert "registry.example/" in refusal("ann", containers=[{"name": "beside", "image": "elsewhere.example/i"}])
        assert refusal("ann", containers=[{"name": "trainer"}], serviceAccountName="robot") == ""
        assert 'serviceAccountName is "robot", and you may not impersonate it' in refusal("bob", serviceAccountName="robot")
        assert refusal("bob", serviceAccountName="default") == ""
        policy = api.client.get("admissionregistration.k8s.io/v1/validatingadmissionpolicies", name="trainjobs")
        assert policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings", []) == []
    finally:
        api.kubectl("delete", "-f", POLICY)
