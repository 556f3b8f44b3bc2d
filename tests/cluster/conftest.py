"""One real control plane per pytest session, and a fresh namespace per test.

As root everything happens in a network namespace of its own: an agent of another test that listens on port 8080 of all
addresses would answer for the fake kubelet's pods, whose addresses are loopback addresses."""
import pathlib
import sys
import time

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))

from control_plane import ControlPlane  # noqa: E402
from fake_kubelet import FakeKubelet  # noqa: E402
from fault_proxy import FaultProxy  # noqa: E402
from namespace import fresh_namespace  # noqa: E402
from operator_process import OPERATOR, OperatorProcess, operator_binary  # noqa: E402
from pod_history import PodHistory  # noqa: E402
from programs import leave_the_network  # noqa: E402
from train_jobs import Jobs  # noqa: E402

leave_the_network()


def pytest_addoption(parser):
    parser.addoption("--scenario", choices=("some", "all"), default="some",
                     help="some: what `make test` takes of the long scenarios; all: everything (`make e2e`)")


@pytest.fixture(scope="session")
def control_plane():
    """With the CRD and the RBAC rules of manifests/base."""
    with ControlPlane() as running:
        running.apply_base()
        yield running


@pytest.fixture
def api(control_plane, request):
    with fresh_namespace(control_plane, request.node.name) as found:
        yield found


@pytest.fixture
def proxy(control_plane):
    with FaultProxy(control_plane) as running:
        yield running


@pytest.fixture
def kubelet(control_plane):
    """Four nodes, whose pods do what the test says."""
    with FakeKubelet(control_plane.api) as running:
        yield running


@pytest.fixture
def operator(control_plane, api):
    """operator(**flags) starts one, for the test's namespace unless `namespace` says otherwise."""
    if not operator_binary().exists():
        pytest.fail(f"{operator_binary()} is not built: build it, or set LOCKSTEP_BIN")
    started = []

    def start(wait=True, **flags):
        flags.setdefault("namespace", api.namespace)
        flags.setdefault("name", f"operator-{control_plane.number()}")
        started.append(OperatorProcess(control_plane, **flags))
        return started[-1].start(wait)

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def process(api, kubelet, operator):
    """An operator that has started."""
    return operator()


@pytest.fixture
def jobs(api, process):
    return Jobs(api)


@pytest.fixture
def history(api):
    with PodHistory(api) as running:
        yield running


@pytest.fixture
def restricted_operator(control_plane, kubelet, operator):
    """An operator that has started, with the rights of its ServiceAccount alone."""
    return operator(kubeconfig=control_plane.kubeconfig_of_service_account(*OPERATOR))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the ends of the components' logs, and of those of its own operators."""
    report = (yield).get_result()
    plane = item.funcargs.get("control_plane") if hasattr(item, "funcargs") else None
    if report.when == "call" and report.failed and plane is not None and plane.folder is not None:
        for path in sorted(plane.folder.glob("logs/*.log"), key=lambda path: path.stat().st_mtime):
            if path.name.startswith("operator-") and path.stat().st_mtime < time.time() - call.duration:
                continue
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
            report.sections.append((f"the end of {path.name}", "\n".join(line[:300] for line in lines)))
