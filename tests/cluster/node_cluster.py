"""A real cluster on this machine: the control plane of control_plane.py, real nodes (node.py), DNS as clusters have
it, our images, and the operator as `kubectl apply -k manifests/base` runs it. Needs root: missing_for_nodes()."""
import os

from control_plane import BASE, ControlPlane
from host_traces import HostTraces
from images import OPERATOR, PAUSE, RUNNER, Images
from node import CLUSTER_DOMAIN, DNS_ADDRESS, HOST, Network, Node
from processes import one_at_a_time, write_whole
from waiting import wait_until

OPERATOR_SELECTOR = "app.kubernetes.io/component=operator"


class NodeCluster(ControlPlane):
    """nodes: how many at the start; add_node() adds one. images: those that every node has."""

    address = HOST
    controllers = "*"

    def __init__(self, nodes=1, images=(PAUSE, OPERATOR, RUNNER), **options):
        options.setdefault("controller_manager_flags", [
            # A node that is gone is known after 10 s, and its pods are given up 5 s later.
            "--node-monitor-period=1s", "--node-monitor-grace-period=10s"])
        super().__init__(**options)
        self.apiserver_flags += ["--kubelet-preferred-address-types=InternalIP",
                                 "--default-not-ready-toleration-seconds=5",
                                 "--default-unreachable-toleration-seconds=5"]
        self.wanted_nodes = nodes
        self.image_names = images
        self.nodes = []
        self.traces = None
        self.lock = None
        self.images = Images()

    def advertise_flags(self):
        return [f"--advertise-address={HOST}"]

    def start_in_folder(self):
        self.images.build_all()
        self.lock = one_at_a_time()
        self.traces = HostTraces(self.folder)
        self.network = Network(self.traces, str(os.getpid()))
        super().start_in_folder()
        self.start_dns()
        for number in range(self.wanted_nodes):
            self.add_node(number)

    def apiserver_argv(self):
        certificate, key = self.certificates.admin
        return [*super().apiserver_argv(), "--kubelet-client-certificate", certificate, "--kubelet-client-key", key]

    def stop(self):
        if self.folder is None:
            return
        for node in self.nodes:
            node.stop()
        if self.traces is not None:
            self.traces.remove()
        super().stop()
        self.nodes.clear()
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def add_node(self, number):
        node = Node(self, self.network, self.traces, number).start()
        self.nodes.append(node)
        self.bring(node, self.image_names)
        node.join().wait_until_usable()
        return node

    def import_image(self, name):
        """To all nodes."""
        for node in self.nodes:
            self.bring(node, [name])

    def bring(self, node, names):
        archive = self.images.save(self.folder / "images.tar", *names)
        node.import_image(archive)
        archive.unlink()

    def start_dns(self):
        """As kubeadm sets it up: answers live 30 s, also those that say "no such name"."""
        config = self.folder / "Corefile"
        write_whole(config, f""".:53 {{
    bind {DNS_ADDRESS}
    errors
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {self.kubeconfig}
        pods insecure
        ttl 30
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
    cache 30
}}
""")
        self.start_component("coredns", ["-conf", config])

    # --- the operator

    def install_operator(self):
        """As a person does it: the namespace, the key's Secret, the manifests. Also over what is left of another way."""
        self.kubectl("apply", "--server-side", "-f", BASE / "namespace.yaml")
        if not self.exists("secrets", "lockstep-system", "lockstep-token-key"):
            self.make_token_key()
        self.kubectl("apply", "--server-side", "--force-conflicts", "-k", BASE)
        self.wait_for_crd("trainjobs.lockstep.dev")
        self.kubectl("rollout", "status", "deployment/lockstep-operator", "--timeout=120s",
                     namespace="lockstep-system")

    def operator_pod(self):
        """The name of the one that is there."""
        pods = self.api.list("pods", "lockstep-system", labelSelector=OPERATOR_SELECTOR)
        live = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        assert len(live) == 1, live
        return live[0]

    def restart_operator(self):
        """The pod is deleted at once; another one takes over."""
        before = self.operator_pod()
        self.api.delete("pods", "lockstep-system", before, gracePeriodSeconds=0)
        wait_until(lambda: self.operator_pod() != before, "another operator pod")
        self.kubectl("rollout", "status", "deployment/lockstep-operator", "--timeout=120s",
                     namespace="lockstep-system")
