"""One real cluster per pytest session: our images, kubelet, containerd, DNS, the operator as a Deployment. A fresh
namespace per test. Needs root; says so and skips without.

`make test` runs the tests marked `first`, `make e2e` all of them.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("cluster", "python"):
    sys.path.append(str(HERE.parent / folder))

import pytest  # noqa: E402

from host_traces import missing_for_nodes  # noqa: E402
from namespace import fresh_namespace  # noqa: E402
from node_cluster import NodeCluster  # noqa: E402
from programs import bin_folder, fetched, program  # noqa: E402
from real_jobs import RealJobs, run_undisturbed  # noqa: E402
from timings import Timings  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "first: what `make test` runs")
    config.timings = Timings()


def pytest_collection_modifyitems(items):
    why = missing_for_nodes()
    if why:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter, config):
    for line in config.timings.table():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def cluster():
    with NodeCluster() as running:
        running.install_operator()
        yield running


@pytest.fixture(scope="session")
def second_machine(cluster):
    """Another real node."""
    return cluster.add_node(1)


@pytest.fixture
def api(cluster, request):
    with fresh_namespace(cluster, request.node.name) as found:
        yield found


@pytest.fixture
def jobs(api):
    """RealJobs of the test's namespace, with a data set and a checkpoint volume."""
    with RealJobs(api) as found:
        found.make_volumes()
        yield found


@pytest.fixture
def bare_jobs(api):
    """The same without volumes."""
    with RealJobs(api) as found:
        yield found


@pytest.fixture(scope="session")
def timings(pytestconfig):
    """timings.add("what failed", seconds): shown as a table at the end."""
    return pytestconfig.timings


@pytest.fixture(scope="session")
def lockstep():
    return program(bin_folder() / "lockstep")


@pytest.fixture(scope="session")
def ml100k():
    """MovieLens-100K."""
    return fetched("get_ml100k")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """undisturbed(steps) is the folder of a run on this machine, without pods and without a fault."""
    known = {}

    def find(steps):
        if steps not in known:
            known[steps] = run_undisturbed(tmp_path_factory.mktemp(f"undisturbed-{steps}"), steps)
        return known[steps]
    return find


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows its TrainJobs, pods and events as a person would look at them, and the operator's log."""
    report = (yield).get_result()
    api = item.funcargs.get("api") if hasattr(item, "funcargs") else None
    if report.when != "call" or not report.failed or api is None:
        return
    for words in (("get", "trainjobs,pods", "-o", "wide"), ("describe", "trainjobs"),
                  ("get", "events", "--sort-by=.metadata.creationTimestamp"),
                  ("logs", "--selector=lockstep.dev/job", "--prefix", "--tail=25")):
        done = api.kubectl(*words, check=False)
        report.sections.append((f"kubectl {' '.join(words)}", (done.stdout + done.stderr)[-6000:]))
    done = api.control_plane.kubectl("logs", "deployment/lockstep-operator", "--tail=25", namespace="lockstep-system",
                                     check=False)
    report.sections.append(("the operator's log", done.stdout[-6000:]))
