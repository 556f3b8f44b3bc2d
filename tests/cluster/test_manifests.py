"""manifests/ does on a real API server what its files say."""
import base64
import re
import subprocess

import pytest

from control_plane import BASE, TOKEN_KEY_LINE
from operator_process import operator_binary
from test_rbac import CLUSTERS, MAY, verbs_of
from waiting import wait_until

NAMESPACED = BASE.parent / "overlays/namespaced"
TEAM = "lockstep-jobs"  # the overlay's own


@pytest.fixture
def base(control_plane):
    """All of manifests/base, the Deployment too, for one test."""
    control_plane.kubectl("apply", "--server-side", "-k", BASE)
    yield control_plane
    control_plane.kubectl("delete", "deployment", "lockstep-operator", namespace="lockstep-system")


@pytest.fixture(scope="module")
def namespaced(control_plane):
    control_plane.make_namespace(TEAM)
    control_plane.kubectl("apply", "--server-side", "-k", NAMESPACED)
    yield control_plane
    control_plane.kubectl("delete", "namespace", TEAM, "--wait=false")


def operator_container(plane, namespace):
    deployment = plane.api.get("apps/v1/deployments", namespace, "lockstep-operator")
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_the_operators_pod_is_admitted_under_restricted_pod_security(base, kubelet):
    base.kubectl("rollout", "status", "deployment/lockstep-operator", "--timeout=60s", namespace="lockstep-system")
    (pod,) = base.api.list("pods", "lockstep-system", labelSelector="app.kubernetes.io/component=operator")
    assert pod["spec"]["nodeName"] in kubelet.nodes


def test_applying_it_says_no_warning_and_a_second_time_changes_nothing(base):
    again = base.kubectl("apply", "--server-side", "-k", BASE)
    assert "Warning" not in again.stderr
    assert base.kubectl("diff", "--server-side", "-k", BASE).stdout == ""


def test_the_secret_of_the_documented_line_holds_32_bytes(control_plane):
    assert TOKEN_KEY_LINE in (BASE / "deployment.yaml").read_text(encoding="utf-8")
    try:
        assert len(control_plane.make_token_key()) == 32
        secret = control_plane.api.get("secrets", "lockstep-system", "lockstep-token-key")
        assert len(base64.b64decode(secret["data"]["key"])) == 32
    finally:
        control_plane.kubectl("delete", "secret", "lockstep-token-key", namespace="lockstep-system")


def test_every_flag_of_the_deployment_is_one_of_the_operator(base, namespaced):
    if not operator_binary().exists():
        pytest.fail(f"{operator_binary()} is not built: build it, or set LOCKSTEP_BIN")
    known = set(re.findall(r"--([a-z_]+)", subprocess.run([operator_binary(), "--help"], capture_output=True, text=True,
                                                          check=True).stdout))
    for namespace in ("lockstep-system", TEAM):
        used = {arg.split("=")[0].removeprefix("--") for arg in operator_container(base, namespace)["args"]}
        assert used and used <= known


@pytest.mark.parametrize("resource", sorted(MAY.keys() - CLUSTERS))
def test_the_namespaced_operator_may_do_the_same_in_its_namespace_and_nothing_elsewhere(namespaced, resource):
    operator = f"system:serviceaccount:{TEAM}:lockstep-operator"
    # The authorizer learns of a binding some time after it is made.
    wait_until(lambda: verbs_of(namespaced, operator, resource, TEAM) == MAY[resource], f"rights on {resource}", 60,
               lambda: str(verbs_of(namespaced, operator, resource, TEAM)))
    assert verbs_of(namespaced, operator, resource, "default") == set()


def test_the_namespaced_operator_sees_no_nodes_and_holds_its_lease_at_home(namespaced):
    operator = f"system:serviceaccount:{TEAM}:lockstep-operator"
    assert verbs_of(namespaced, operator, "nodes", "") == set()
    lease = "leases.coordination.k8s.io"
    assert verbs_of(namespaced, operator, lease, TEAM, name="lockstep-operator") == {"get", "create", "update"}
    assert "--namespace=$(POD_NAMESPACE)" in operator_container(namespaced, TEAM)["args"]


def test_the_namespaced_overlay_makes_no_namespace_and_reads_in_the_whole_cluster_what_queues_refer_to(control_plane):
    text = control_plane.kubectl("kustomize", NAMESPACED).stdout
    kinds = re.findall(r"^kind: (\w+)$", text, re.M)
    assert "Namespace" not in kinds and kinds.count("ClusterRoleBinding") == 1
    assert f"name: lockstep-operator-queues-{TEAM}" in text
    assert kinds.count("RoleBinding") == 2


@pytest.mark.parametrize("resource", sorted(CLUSTERS - {"nodes"}))
def test_the_namespaced_operator_may_read_what_queues_refer_to(namespaced, resource):
    operator = f"system:serviceaccount:{TEAM}:lockstep-operator"
    wait_until(lambda: verbs_of(namespaced, operator, resource, "") == MAY[resource], f"rights on {resource}")
