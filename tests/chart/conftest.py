"""Helm without a cluster, and one real control plane per session, on which the chart installs the CRD."""
import pytest

from helm import NAMESPACE, Helm  # extends sys.path
from control_plane import ControlPlane

FAKE_NODES = 3


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    """Helm without a cluster."""
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def control_plane():
    """Bare, with fake nodes whose pods run."""
    with ControlPlane(kwok_nodes=FAKE_NODES) as running:
        running.make_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted",
                                           "pod-security.kubernetes.io/warn": "restricted"})
        yield running


@pytest.fixture(scope="session")
def cluster_helm(control_plane):
    """Helm with that control plane."""
    return Helm(control_plane.folder, control_plane.kubeconfig)
