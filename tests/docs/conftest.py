"""What the commands of the documents find: the built programs, a small data set, a control plane with the operator.

As root everything happens in a network namespace of its own: ports such as 8080 are free whatever else runs here, and
no command can reach out."""
import os
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("cluster", "newcomer", "python"):
    sys.path.append(str(HERE.parent / folder))

import pytest  # noqa: E402

from control_plane import ControlPlane, kube_bin  # noqa: E402
from operator_process import OperatorProcess  # noqa: E402
from pages import ROOT  # noqa: E402
from programs import bin_folder, clean_environment, leave_the_network, program  # noqa: E402
from shell import Shell  # noqa: E402

CRD = "crd/trainjobs.lockstep.dev"
PROGRAMS = ("lockstep", "lockstep-worker", "lockstep-operator", "kubectl-lockstep")
USERS, ITEMS, EVENTS = 160, 60, 10


leave_the_network()


@pytest.fixture(scope="session")
def cluster():
    """A control plane with the CRD, four nodes of KWOK's, and the operator as a process: no pod runs its image."""
    with ControlPlane(kwok_nodes=4) as plane:
        plane.apply_base()
        # As if Helm had made it: a page installs the chart.
        plane.kubectl("label", CRD, "app.kubernetes.io/managed-by=Helm")
        plane.kubectl("annotate", CRD, "meta.helm.sh/release-name=lockstep",
                      "meta.helm.sh/release-namespace=lockstep-system")
        with OperatorProcess(plane):
            yield plane


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A folder with the programs that the documents name."""
    folder = tmp_path_factory.mktemp("bin")
    for name in PROGRAMS:
        (folder / name).symlink_to(program(bin_folder() / name))
    return folder


@pytest.fixture
def sandbox(tmp_path, programs):
    """A folder as a reader has it after `git clone` and `make`: the repository's files (links), data, the programs on
    the PATH."""
    for path in ROOT.iterdir():
        if path.name not in (".git", "build", "data", "demo", "out", "config.yaml"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build/release").symlink_to(bin_folder().parent)  # from which one installs
    write_ratings(tmp_path / "ratings.inter")
    cache = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep"))
    path = [programs, cache / "py-test/bin", kube_bin(), cache / "tools/bin", os.environ["PATH"]]
    home = tmp_path / ".home"
    home.mkdir()
    environment = clean_environment(PATH=":".join(map(str, path)), HOME=str(home), LOCKSTEP_CACHE=str(cache),
                                    OMP_NUM_THREADS="1")
    return tmp_path, environment


def write_ratings(path):
    """The header and columns of RecBole's .inter; every user likes items near the one before."""
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user in range(USERS):
        lines += [f"{user + 1}\t{(7 * user + 3 * event) % ITEMS + 1}\t4\t{880000000 + 100 * event}"
                  for event in range(EVENTS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def page_shell(sandbox, request):
    """page_shell(name, wants_cluster) → Shell; with a namespace of the page's own as kubectl's current one."""
    folder, environment = sandbox
    opened = []

    def start(name, wants_cluster):
        if wants_cluster:
            plane = request.getfixturevalue("cluster")
            prepare(plane, name)
            certificate, key = plane.certificates.admin
            environment["KUBECONFIG"] = str(plane.write_kubeconfig(
                folder / "config.yaml", {"client-certificate": str(certificate), "client-key": str(key)}, name))
        opened.append(Shell(folder, environment))
        return opened[-1].__enter__()

    yield start
    for one in opened:
        one.__exit__()
    shutil.rmtree(folder, ignore_errors=True)


def prepare(plane, namespace):
    """The page's namespace, volumes for its claims, and no installation: pages make their own."""
    plane.make_namespace(namespace)
    for number in range(4):
        plane.api.create("persistentvolumes", {
            "metadata": {"name": f"{namespace}-{number}"},
            "spec": {"capacity": {"storage": "100Gi"}, "hostPath": {"path": "/nowhere"},
                     "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]}})
    plane.kubectl("delete", "clusterroles,clusterrolebindings,flowschemas", "--selector=app.kubernetes.io/name=lockstep")
    plane.kubectl("delete", "deployments,roles,rolebindings,serviceaccounts,secrets",
                  "--selector=app.kubernetes.io/name=lockstep", namespace="lockstep-system")
    plane.kubectl("delete", "secrets", "--selector=owner=helm", namespace="lockstep-system")  # an earlier release
    plane.kubectl("delete", "secret", "lockstep-token-key", "--ignore-not-found", namespace="lockstep-system")
