"""A real Kubernetes node on this machine: containerd, kubelet, CNI and kube-proxy in a network namespace of its own, so
that several nodes live side by side and the machine's own network stays as it is.

The nodes' addresses are on a bridge that belongs to the run; pods have a range per node. There is no way out: images
are brought (Node.import_image), never pulled. cgroups v1 or v2, cgroupfs driver.
"""
import json
import pathlib
import signal
import subprocess

from host_traces import kill_cgroup, run
from processes import Process, write_whole
from waiting import wait_until

BRIDGE = "lockstep0"
HOST = "10.99.0.1"  # the machine, on the bridge: the API server
DNS_ADDRESS = "10.99.0.2"
CLUSTER_DOMAIN = "cluster.local"


def node_address(number):
    return f"10.99.0.{10 + number}"


def pod_range(number):
    return f"10.98.{number}"


class Network:
    """The bridge that joins the machine and its nodes."""

    def __init__(self, traces, label):
        self.traces = traces
        self.label = label
        self.namespaces = []
        traces.make_link(BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{HOST}/24", "dev", BRIDGE)
        run("ip", "address", "add", f"{DNS_ADDRESS}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")

    def add_node(self, number):
        """The name of its network namespace."""
        name = self.traces.make_namespace(f"lockstep-{self.label}-{number}")
        link = self.traces.make_link(f"ls{self.label}n{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", link, "master", BRIDGE, "up")
        inside = ["nsenter", f"--net=/run/netns/{name}"]
        run("ip", "-n", name, "address", "add", f"{node_address(number)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "route", "add", "default", "via", HOST)
        run(*inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        run("ip", "route", "add", f"{pod_range(number)}.0/24", "via", node_address(number), "dev", BRIDGE)
        for other, other_name in self.namespaces:
            run("ip", "-n", name, "route", "add", f"{pod_range(other)}.0/24", "via", node_address(other))
            run("ip", "-n", other_name, "route", "add", f"{pod_range(number)}.0/24", "via", node_address(number))
        self.namespaces.append((number, name))
        return name


class Node:
    """start() … stop(). `plane` is the ControlPlane; `number` gives its name and addresses."""

    def __init__(self, plane, network, traces, number):
        self.plane = plane
        self.traces = traces
        self.number = number
        self.name = f"node-{number}"
        self.folder = plane.folder / self.name
        self.socket = self.folder / "containerd.sock"
        self.namespace = network.add_node(number)
        self.cgroup = traces.make_cgroup(f"lockstep-{network.label}-{number}")
        self.processes = {}

    def start(self):
        (self.folder / "cni").mkdir(parents=True)
        self.write_containerd_config()
        self.write_network_config()
        self.start_process("containerd", ["containerd", "--config", self.folder / "containerd.toml"])
        self.wait_for_containerd()
        return self

    def wait_for_containerd(self):
        self.processes["containerd"].wait_until(lambda: self.ctr("version", check=False).returncode == 0,
                                                "answer of containerd")

    def join(self):
        """kubelet and kube-proxy; returns when the node is usable."""
        self.write_kubelet_config()
        self.start_kubelet()
        proxy = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
                 "mode": "nftables", "hostnameOverride": self.name, "conntrack": {"maxPerCore": 0},
                 "clusterCIDR": "10.98.0.0/16", "metricsBindAddress": "127.0.0.1:10249",
                 "clientConnection": {"kubeconfig": str(self.plane.kubeconfig)}}
        write_whole(self.folder / "kube-proxy.json", json.dumps(proxy))
        self.start_process("kube-proxy", [self.plane.program("kube-proxy"), "--config",
                                          self.folder / "kube-proxy.json"])
        return self

    def wait_until_usable(self, timeout=120):
        self.processes["kubelet"].wait_until(lambda: self.plane.node_is_usable(self.name), "usable node", timeout)

    def start_kubelet(self):
        config = self.folder / "kubelet.json"
        self.start_process("kubelet", [
            self.plane.program("kubelet"), "--config", config, "--kubeconfig", self.folder / "kubelet.kubeconfig",
            "--hostname-override", self.name, "--node-ip", node_address(self.number), "--root-dir",
            self.folder / "kubelet", "--cert-dir", self.folder / "kubelet-pki", "-v=2"])

    def start_process(self, name, argv):
        found = self.processes.get(name)
        if found is None:
            argv = ["nsenter", f"--net=/run/netns/{self.namespace}", *argv]
            found = Process(f"{self.name}.{name}", argv, self.plane.folder)
            self.processes[name] = found
        found.start()

    # --- faults

    def kill(self, name):
        """SIGKILL of "kubelet", "containerd" or "kube-proxy"; the pods' processes live on."""
        self.processes[name].stop(signal.SIGKILL)

    def restart(self, name):
        self.processes[name].start()

    def vanish(self):
        """As when the power fails: kubelet, containerd and all pods end at once, and say nothing."""
        self.kill("kubelet")
        self.kill("containerd")
        self.traces.kill_shims(self.folder)
        wait_until(lambda: kill_cgroup(self.cgroup.strip("/")), f"end of the pods of {self.name}")

    def come_back(self):
        self.restart("containerd")
        self.wait_for_containerd()
        self.restart("kubelet")
        self.wait_until_usable()

    def stop(self):
        for process in reversed(self.processes.values()):
            process.stop()

    # --- images and containers

    def ctr(self, *words, check=True):
        done = subprocess.run(["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *map(str, words)],
                              capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"ctr {' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done

    def import_image(self, archive):
        """Of `podman save`; the kubelet then finds it by its name."""
        self.ctr("images", "import", archive)

    # --- configuration

    def write_containerd_config(self):
        write_whole(self.folder / "containerd.toml", f"""version = 2
root = "{self.folder}/containerd-root"
state = "{self.folder}/containerd-state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{self.socket}"
[ttrpc]
  address = "{self.folder}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
""")

    def write_network_config(self):
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True,
                  "ipam": {"type": "host-local", "dataDir": str(self.folder / "cni-addresses"),
                           "ranges": [[{"subnet": f"{pod_range(self.number)}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
        write_whole(self.folder / "cni/10-bridge.conflist",
                    json.dumps({"cniVersion": "0.4.0", "name": "bridge", "plugins": [
                        bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}))

    def write_kubelet_config(self):
        certificate, key = self.plane.certificates.issue(self.name, f"system:node:{self.name}", ["system:nodes"])
        self.plane.write_kubeconfig(self.folder / "kubelet.kubeconfig",
                                    {"client-certificate": str(certificate), "client-key": str(key)})
        config = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
                  "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                                     "x509": {"clientCAFile": str(self.plane.certificates.ca)}},
                  "authorization": {"mode": "Webhook"},
                  "address": node_address(self.number), "healthzBindAddress": "127.0.0.1",
                  "cgroupDriver": "cgroupfs", "cgroupRoot": self.cgroup, "failCgroupV1": False, "failSwapOn": False,
                  "clusterDNS": [DNS_ADDRESS], "clusterDomain": CLUSTER_DOMAIN,
                  "containerRuntimeEndpoint": f"unix://{self.socket}",
                  "featureGates": {"KubeletInUserNamespace": True}, "enforceNodeAllocatable": [],
                  "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
                  # 100: no images are removed, however full the machine is. Nobody could bring them again.
                  "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
                  "nodeStatusUpdateFrequency": "2s", "nodeLeaseDurationSeconds": 10,
                  "syncFrequency": "10s", "volumePluginDir": str(self.folder / "volume-plugins"),
                  # Of its own: a kubelet removes the logs of pods that it does not know, which may be another node's.
                  "podLogsDir": str(self.folder / "pod-logs"),
                  "registryPullQPS": 0, "eventRecordQPS": 0, "kubeAPIQPS": 100, "kubeAPIBurst": 200}
        write_whole(self.folder / "kubelet.json", json.dumps(config))


def build_pause(folder):
    """The program that holds a pod's namespaces: it reaps, and ends when asked."""
    source = pathlib.Path(folder) / "pause.c"
    source.write_text("""#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
""", encoding="utf-8")
    run("gcc", "-Os", "-static", "-o", pathlib.Path(folder) / "pause", source)
