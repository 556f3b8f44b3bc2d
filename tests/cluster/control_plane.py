"""A real Kubernetes control plane on this machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and
KWOK where a test wants thousands of fake nodes. No root, no containers, ready in seconds. `scripts/setup cluster`
builds the programs.

There is no kubelet, no network and no DNS: pods run only where kwok or fake_kubelet.FakeKubelet says so.
"""
import base64
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import urllib.request

from certificates import Certificates
from kube_api import ApiError, KubeApi, node_is_usable
from ports import ReservedPorts
from processes import Process, end_leftovers, make_run_folder, write_whole
from waiting import wait_until

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parents[1] / "manifests/base"
APPLIED = ("namespace.yaml", "crd.yaml", "service_account.yaml", "rbac.yaml", "flow_schema.yaml")
# Nobody answers DNS here, and the addresses of fake pods may be loopback ones, which an EndpointSlice refuses.
CONTROLLERS = "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
# The one that the documentation and the operator's own message give.
TOKEN_KEY_LINE = ("head -c 32 /dev/urandom | kubectl create secret generic lockstep-token-key -n lockstep-system "
                  "--from-file=key=/dev/stdin")
KWOK_NODE_LABEL = "lockstep.dev/played-by=kwok"


def is_usual_version():
    """Not so in `make cluster-versions`: LOCKSTEP_KUBERNETES names the folder below tests/cluster/kube of another one."""
    return not os.environ.get("LOCKSTEP_KUBERNETES")


def kubernetes_version():
    """The control plane's."""
    module = os.environ.get("LOCKSTEP_KUBERNETES", "")
    text = (HERE / "kube" / module / "go.mod").read_text(encoding="utf-8")
    return re.search(r"k8s\.io/kubernetes v([0-9.]+)", text).group(1)


def kube_bin():
    cache = pathlib.Path(os.environ.get("LOCKSTEP_CACHE", pathlib.Path.home() / ".cache/lockstep"))
    return cache / f"kube-{kubernetes_version()}" / "bin"


class ControlPlane:
    """start() … stop(), or `with ControlPlane() as it`. Options:

    kwok_nodes: so many nodes, played by kwok; apiserver_flags, controller_manager_flags: added to ours; scheduler:
    False leaves pods unbound; native_gangs: with Kubernetes' own PodGroups (1.37), in every component that needs the
    gate. One object is used by one thread; `api` by all."""

    address = "127.0.0.1"  # where the API server listens
    controllers = CONTROLLERS

    def __init__(self, kwok_nodes=0, apiserver_flags=(), controller_manager_flags=(), scheduler=True, native_gangs=False):
        self.kwok_nodes = kwok_nodes
        gates = ["--feature-gates=GenericWorkload=true"] if native_gangs else []
        api = ["--runtime-config=scheduling.k8s.io/v1beta1=true"] if native_gangs else []
        self.apiserver_flags = [*apiserver_flags, *gates, *api]
        self.controller_manager_flags = [*controller_manager_flags, *gates]
        self.scheduler_flags = gates
        self.with_scheduler = scheduler
        self.components = {}
        self.folder = None
        self.ports = ReservedPorts()
        self.numbers = itertools.count(1)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    # --- life

    def start(self):
        for name in ("etcd", "kube-apiserver", "kubectl"):
            self.program(name)
        end_leftovers()
        self.folder = make_run_folder()
        try:
            self.start_in_folder()
        except BaseException:
            self.stop()
            raise
        return self

    def start_in_folder(self):
        self.certificates = Certificates(self.folder / "pki", [f"IP:{self.address}"])
        self.etcd_port, self.etcd_peer_port = self.ports.take(), self.ports.take()
        self.port = self.ports.take(self.address)
        self.api = KubeApi(self.port, self.certificates.ca, *self.certificates.admin, host=self.address)
        self.kubeconfig = self.folder / "admin.kubeconfig"
        certificate, key = self.certificates.admin
        self.write_kubeconfig(self.kubeconfig, {"client-certificate": str(certificate), "client-key": str(key)})
        self.start_component("etcd", self.etcd_flags())
        self.start_component("kube-apiserver", self.apiserver_argv())
        self.wait_for_apiserver()
        self.start_component("kube-controller-manager", [
            "--kubeconfig", self.kubeconfig, "--leader-elect=false", "--secure-port=0",
            "--service-account-private-key-file", self.certificates.tokens_key,
            "--root-ca-file", self.certificates.ca, "--use-service-account-credentials=true",
            "--kube-api-qps=500", "--kube-api-burst=1000",
            f"--controllers={self.controllers}", *self.controller_manager_flags])
        if self.with_scheduler:
            self.start_component("kube-scheduler", [
                "--kubeconfig", self.kubeconfig, "--leader-elect=false", "--secure-port=0",
                "--kube-api-qps=1000", "--kube-api-burst=2000", *self.scheduler_flags])
        if self.kwok_nodes:
            self.start_kwok()
        # Pods need it in their namespace, and it shows that the controllers run.
        self["kube-controller-manager"].wait_until(
            lambda: self.exists("serviceaccounts", "default", "default"), "ServiceAccount of namespace default")

    def stop(self):
        """Ends everything and removes the folder. Safe to call twice, and after a start that failed."""
        if self.folder is None:
            return
        for component in reversed(self.components.values()):
            component.stop()
        self.components.clear()
        self.ports.close()
        shutil.rmtree(self.folder)
        self.folder = None

    def etcd_flags(self):
        here, peers = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.etcd_peer_port}"
        return ["--data-dir", self.folder / "etcd", "--unsafe-no-fsync", "--log-level=warn",
                "--listen-client-urls", here, "--advertise-client-urls", here,
                "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                "--initial-cluster", f"default={peers}"]

    def apiserver_argv(self):
        certificate, key = self.certificates.server
        return ["--etcd-servers", f"http://127.0.0.1:{self.etcd_port}",
                f"--bind-address={self.address}", f"--secure-port={self.port}",
                "--service-cluster-ip-range=10.96.0.0/16", *self.advertise_flags(),
                "--tls-cert-file", certificate, "--tls-private-key-file", key,
                "--client-ca-file", self.certificates.ca,
                "--service-account-key-file", self.certificates.tokens_public,
                "--service-account-signing-key-file", self.certificates.tokens_key,
                "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",  # as in every cluster that kubeadm or a cloud makes
                # As strict as the strictest clusters: who sets blockOwnerDeletion needs the finalizers verb.
                "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
                *self.apiserver_flags]

    def advertise_flags(self):
        # A loopback address would be refused as the Service "kubernetes"'s endpoint.
        return ["--advertise-address=10.0.0.1", "--endpoint-reconciler-type=none"]

    # --- components: "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"

    def __getitem__(self, name):
        return self.components[name]

    def start_component(self, name, flags):
        self.components[name] = Process(name, [self.program(name), *flags], self.folder)
        self.components[name].start()

    def stop_component(self, name):
        self[name].stop()

    def restart_component(self, name):
        """Starts it again, with its own flags and ports, and waits until the API server answers. With the API server,
        its clients are started afresh: they would back off for up to half a minute."""
        self[name].start()
        self.wait_for_apiserver()
        if name == "kube-apiserver":
            for client in ("kube-controller-manager", "kube-scheduler", "kwok"):
                if client in self.components and self[client].is_running():
                    self[client].stop()
                    self[client].start()

    def pause_component(self, name):
        """SIGSTOP: the process stays, but does not answer. continue_component() lets it go on."""
        self[name].pause()

    def continue_component(self, name):
        self[name].go_on()

    def wait_for_apiserver(self):
        self["kube-apiserver"].wait_until(self.api.is_ready, "answer to /readyz")

    def start_kwok(self):
        self.start_component("kwok", [
            "--kubeconfig", self.kubeconfig, "--config", HERE / "kwok_stages.yaml",
            f"--manage-nodes-with-label-selector={KWOK_NODE_LABEL}", "--cidr=127.64.0.0/10",
            "--node-lease-duration-seconds=40"])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: self.api.create("nodes", kwok_node(f"kwok-{n}")), range(self.kwok_nodes)))
        self["kwok"].wait_until(
            lambda: sum(node_is_usable(node) for node in self.api.list("nodes")) >= self.kwok_nodes,
            f"{self.kwok_nodes} ready nodes", timeout=60 + self.kwok_nodes / 20)

    # --- etcd

    def etcd(self, call, body):
        """etcd's JSON gateway."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.etcd_port}/v3/{call}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def revision(self):
        """etcd's, which the API server shows as resourceVersion."""
        return int(self.etcd("maintenance/status", {})["header"]["revision"])

    def compact(self):
        """Forgets every revision but the newest, and returns that one. The API server still answers what its own watch
        cache holds: forget_history() empties that too."""
        newest = self.revision()
        self.etcd("kv/compaction", {"revision": newest, "physical": True})
        return newest

    def forget_history(self):
        """After it, a watch from any resourceVersion of before is answered 410 Gone. All watches are cut."""
        self.stop_component("kube-apiserver")
        newest = self.compact()
        self.restart_component("kube-apiserver")
        return newest

    # --- users

    def write_kubeconfig(self, path, user, namespace="default", embed_ca=False, port=None):
        """`user` holds the fields of a kubeconfig's user; port: another way to the API server (FaultProxy). The folder
        of this run is closed to other people."""
        ca = self.certificates.ca
        authority = (f"certificate-authority-data: {base64.b64encode(ca.read_bytes()).decode()}" if embed_ca
                     else f"certificate-authority: {json.dumps(str(ca))}")
        fields = "\n".join(f"      {name}: {json.dumps(value)}" for name, value in user.items())
        text = f"""apiVersion: v1
kind: Config
clusters:
  - name: lockstep-test
    cluster:
      server: https://{"127.0.0.1" if port else self.address}:{port or self.port}
      {authority}
users:
  - name: user
    user:
{fields}
contexts:
  - name: lockstep-test
    context:
      cluster: lockstep-test
      user: user
      namespace: {namespace}
current-context: lockstep-test
"""
        write_whole(path, text)
        return path

    def kubeconfig_of_user(self, user, groups=(), namespace="default"):
        """Of a person with a client certificate."""
        name = re.sub(r"[^a-zA-Z0-9.-]", "_", user)
        certificate, key = self.certificates.issue(f"user-{name}", user, groups)
        return self.write_kubeconfig(self.folder / f"user-{name}.kubeconfig",
                                     {"client-certificate": str(certificate), "client-key": str(key)}, namespace)

    def token_of(self, namespace, service_account):
        answer = self.api.create("serviceaccounts", {"spec": {"expirationSeconds": 3600}}, namespace,
                                 service_account, "token")
        return answer["status"]["token"]

    def kubeconfig_of_service_account(self, namespace, service_account, token_file=False):
        """With a token of the TokenRequest API; token_file: in a file of its own, which rotate_token() renews."""
        path = self.folder / f"{namespace}.{service_account}.kubeconfig"
        if not token_file:
            user = {"token": self.token_of(namespace, service_account)}
        else:
            user = {"tokenFile": str(self.rotate_token(namespace, service_account))}
        return self.write_kubeconfig(path, user, namespace, embed_ca=True)

    def rotate_token(self, namespace, service_account):
        """Writes a new token into the file that kubeconfig_of_service_account(token_file=True) names."""
        path = self.folder / f"{namespace}.{service_account}.token"
        write_whole(path, self.token_of(namespace, service_account))
        return path

    # --- asking

    @staticmethod
    def program(name):
        """The path of one that scripts/setup has built."""
        if not (kube_bin() / name).exists():
            raise RuntimeError(f"{kube_bin()} has no {name}: run scripts/setup cluster")
        return kube_bin() / name

    def node_is_usable(self, name):
        return self.exists("nodes", None, name) and node_is_usable(self.api.get("nodes", name=name))

    def kubectl(self, *words, kubeconfig=None, stdin=None, check=True, timeout=120, namespace=None):
        """CompletedProcess with text output. check: an exit code other than 0 is an AssertionError that quotes it."""
        argv = [self.program("kubectl"), "--kubeconfig", kubeconfig or self.kubeconfig]
        argv += ["--namespace", namespace] if namespace else []
        # A home of its own: discovery is cached there, and no user's kuberc applies.
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        done = subprocess.run([str(word) for word in [*argv, *words]], input=stdin, capture_output=True, text=True,
                              check=False, timeout=timeout, env=environment)
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(map(str, words))}: exit code {done.returncode}\n"
                                 f"{done.stdout}{done.stderr}")
        return done

    def apply_base(self):
        """manifests/base but for the operator's Deployment: nobody would run its image."""
        files = [word for name in APPLIED for word in ("-f", BASE / name)]
        self.kubectl("apply", "--server-side", *files)
        self.wait_for_crd("trainjobs.lockstep.dev")

    def wait_for_crd(self, name):
        """Until it is established and its objects can be asked for: a client finds out about them later still."""
        # kubectl fails at once as long as the CRD has no conditions at all.
        wait_until(lambda: self.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{name}",
                                        check=False).returncode == 0, f"established CRD {name}")
        wait_until(lambda: self.kubectl("get", name, "--all-namespaces", check=False).returncode == 0,
                   f"list of {name}")

    def make_token_key(self):
        """The operator's Secret, made as a person does it; returns the key."""
        environment = {"PATH": f"{kube_bin()}:{os.environ['PATH']}", "KUBECONFIG": str(self.kubeconfig)}
        subprocess.run(["bash", "-o", "pipefail", "-c", TOKEN_KEY_LINE], env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        return base64.b64decode(self.api.get("secrets", "lockstep-system", "lockstep-token-key")["data"]["key"])

    def exists(self, resource, namespace, name):
        try:
            self.api.get(resource, namespace, name)
            return True
        except ApiError as error:
            if error.status == 404:
                return False
            raise

    def number(self):
        """A new number at each call, for names that must differ."""
        return next(self.numbers)

    def make_namespace(self, name, labels=None):
        """A namespace in which pods can be made at once."""
        self.api.create("namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        wait_until(lambda: self.exists("serviceaccounts", name, "default"), f"ServiceAccount in {name}",
                   on_timeout=self["kube-controller-manager"].log_tail)
        return name

    def logs(self, lines=40):
        """The ends of all logs, for a test that failed."""
        return "\n".join(component.log_tail(lines) for component in self.components.values())


def kwok_node(name):
    key, value = KWOK_NODE_LABEL.split("=")
    size = {"cpu": "96", "memory": "1Ti", "pods": "250", "nvidia.com/gpu": "8"}
    labels = {key: value, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": size, "capacity": size}}
