"""Several "hosts" on one machine: network namespaces on a bridge, with a name server that has a cache of its own.

Host i is 10.77.S.(10+i), S chosen so that two tests can run at once. The names are served by a dnsmasq whose records live
30 s, and the hosts ask another dnsmasq in front of it, which keeps them that long, as a cluster's CoreDNS does.
Needs root.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess

from jobs import read_status, sasrec_flags, wait_until, workers_of
from runs import Running

TTL = 30


def ip(*words):
    subprocess.run(["ip", *[str(word) for word in words]], check=True, capture_output=True, text=True)


def can_make_hosts():
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    probe = f"lockstep-probe-{os.getpid()}"  # of its own: another test may ask at the same moment
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"cannot make network namespaces: {made.stderr.strip()}"
    ip("netns", "del", probe)
    return None


def answers(address):
    """Does a name server answer there (whatever it says)?"""
    query = bytes([0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + b"\4none\7invalid\0" + bytes([0, 1, 0, 1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(0.2)
        try:
            link.sendto(query, (address, 53))
            return len(link.recv(512)) > 0
        except OSError:
            return False


class Hosts:
    def __init__(self, count, base, subnet):
        self.base, self.subnet, self.count = pathlib.Path(base), subnet, count
        self.tag = f"ls{os.getpid() % 10000}x{subnet}"
        ip("link", "add", self.tag, "type", "bridge")
        ip("addr", "add", f"{self.address_of_bridge(1)}/24", "dev", self.tag)
        ip("addr", "add", f"{self.address_of_bridge(2)}/24", "dev", self.tag)
        ip("link", "set", self.tag, "up")
        for host in range(count):
            self._add(host)
        self.records = self.base / "records"
        self.records.write_text("")
        self.source = self._serve(f"--addn-hosts={self.records}", f"--local-ttl={TTL}", bridge=1)
        self.cache = self._serve_cache()

    def address_of_bridge(self, number):
        return f"10.77.{self.subnet}.{number}"

    def address(self, host):
        return f"10.77.{self.subnet}.{10 + host}"

    def namespace(self, host):
        return f"{self.tag}-{host}"

    def device(self, host):
        return f"{self.tag}h{host}"

    def _add(self, host):
        space, near = self.namespace(host), self.device(host)
        ip("netns", "add", space)
        ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", near, "master", self.tag, "up")
        ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", space, "link", "set", "lo", "up")
        etc = pathlib.Path("/etc/netns") / space
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "resolv.conf").write_text(f"nameserver {self.address_of_bridge(2)}\noptions timeout:1\n")
        (etc / "hosts").write_text("127.0.0.1 localhost\n")
        (etc / "nsswitch.conf").write_text("hosts: files dns\n")

    def _serve(self, *flags, bridge):
        server = subprocess.Popen(
            ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--no-resolv", "--no-hosts",
             f"--listen-address={self.address_of_bridge(bridge)}", "--bind-interfaces", "--pid-file=", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: answers(self.address_of_bridge(bridge)), "answer of the name server")
        return server

    def _serve_cache(self):
        return self._serve(f"--server={self.address_of_bridge(1)}", "--no-negcache", bridge=2)

    def name(self, name, *hosts):
        """`name` has the addresses of these hosts from now on; the cache may know the earlier ones for TTL seconds."""
        part = self.base / "records.tmp"
        part.write_text("".join(f"{self.address(host)} {name}\n" for host in hosts))
        os.replace(part, self.records)
        self.source.send_signal(signal.SIGHUP)  # read again

    def renew(self, name):
        """The cache knows what the name has now, and keeps it for TTL seconds from now on."""
        self.cache.kill()  # a signal to forget would be acted on at some later time
        self.cache.wait()
        self.cache = self._serve_cache()
        wait_until(lambda: self.resolve(self.count - 1, name), f"addresses of {name}")

    def resolve(self, host, name):
        """The addresses that a program on this host gets for the name, sorted."""
        done = subprocess.run(["ip", "netns", "exec", self.namespace(host), "getent", "ahostsv4", name],
                              capture_output=True, text=True, check=False)
        return sorted({line.split()[0] for line in done.stdout.splitlines()})

    def swallow(self, host):
        """Nothing leaves this host, and what is sent to it vanishes: nobody refuses, and no router says that there is
        no way, as when the machine of a pod lost its power."""
        self.cut(host)
        for other in range(self.count):
            if other != host:
                ip("-n", self.namespace(other), "neigh", "replace", self.address(host), "lladdr", "02:00:00:00:00:01",
                   "dev", "eth0", "nud", "permanent")

    def cut(self, host):
        ip("link", "set", self.device(host), "down")

    def heal(self, host):
        ip("link", "set", self.device(host), "up")

    def close(self):
        for server in (self.source, self.cache):
            server.kill()
            server.wait()
        for host in range(self.count):
            subprocess.run(["ip", "netns", "pids", self.namespace(host)], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True, check=False)
            subprocess.run(["rm", "-rf", f"/etc/netns/{self.namespace(host)}"], check=False)
        subprocess.run(["ip", "link", "del", self.tag], capture_output=True, check=False)


class Agent(Running):
    """`lockstep run` of one node on one host."""

    def __init__(self, lockstep, hosts, host, node, dataset, folder, base, *flags, steps=400, nodes="2", nproc=1,
                 attempt=0, job="job", coordinator="job-0.job:29400", token="secret"):
        self.hosts, self.host, self.port = hosts, host, 8080
        self.folder = folder
        super().__init__(["ip", "netns", "exec", hosts.namespace(host), lockstep, "run", "sasrec", "--nnodes", nodes,
                          "--nproc", nproc, "--node_rank", node, "--coordinator", coordinator, "--status_port", self.port,
                          "--train_dir", folder, *sasrec_flags(dataset, steps, *flags)], base, LOCKSTEP_POD_ATTEMPT=str(attempt),
                         LOCKSTEP_TOKEN=token, LOCKSTEP_JOB=job)

    def status(self):
        """Asked from the bridge: the hosts are on its network."""
        return read_status(self.port, self.hosts.address(self.host), timeout=1) or self.status_inside()

    def status_inside(self):
        """The same from inside its namespace, which works behind a partition."""
        done = subprocess.run(["ip", "netns", "exec", self.hosts.namespace(self.host), "python3", "-c",
                               "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/status', "
                               "timeout=2).read().decode())"], capture_output=True, text=True, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def workers(self):
        return workers_of(self.process.pid)
