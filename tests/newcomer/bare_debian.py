"""A bare Debian 12 with git and make, in a folder: what a newcomer has. Made by debootstrap, entered by chroot.

Nothing of this machine is in it but its network, and what a machine behind a proxy needs: the standard variables below,
and the certificates that they name. NEWCOMER_BIND="/folder …" shows further folders inside, read-only."""
import os
import pathlib
import shutil
import subprocess

from images import debian_mirror

# Passed on where they are set.
VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL",
             "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_DEFAULT_TIMEOUT")
# Files that these name are copied to where every program of Debian's looks.
CERTIFICATES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def run(*argv, **options):
    return subprocess.run([str(word) for word in argv], check=True, **options)


class BareDebian:
    """make() … remove(). folder: where the tree goes, about 5 GB when all is built; repository: what is cloned."""

    def __init__(self, folder, repository):
        self.tree = pathlib.Path(folder) / "debian"
        self.repository = repository
        self.mounted = []

    def make(self):
        if self.tree.exists():
            raise RuntimeError(f"{self.tree} is there already, of a run that did not end: look at it and remove it")
        self.tree.mkdir(parents=True)
        try:
            run("debootstrap", "--variant=minbase", "--include=git,make,ca-certificates", "bookworm", self.tree,
                debian_mirror(), stdout=subprocess.DEVNULL)
            self.bring_network_settings()
            for name in ("sys", "dev", "dev/pts"):
                self.mount(f"/{name}", name)
            for path in os.environ.get("NEWCOMER_BIND", "").split():
                self.mount(path, path.lstrip("/"), read_only=True)
            run("git", "clone", "--quiet", "--bare", f"file://{self.repository}", self.tree / "repository")
        except BaseException:
            self.remove()
            raise
        return self

    def bring_network_settings(self):
        for name in ("resolv.conf", "hosts", "pip.conf"):
            source = pathlib.Path("/etc") / name
            if source.exists():
                shutil.copy(source, self.tree / "etc" / name)
        bundle = next((os.environ[name] for name in CERTIFICATES if os.environ.get(name)), None)
        if bundle:
            shutil.copy(bundle, self.tree / BUNDLE.lstrip("/"))

    def mount(self, source, inside, read_only=False):
        target = self.tree / inside
        target.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", source, target)
        self.mounted.append(target)
        if read_only:
            run("mount", "-o", "remount,ro,bind", target)

    def remove(self):
        for target in reversed(self.mounted):
            run("umount", "--lazy", target)
        self.mounted.clear()
        # A tree with something still mounted in it must not be deleted: it would be somebody else's files.
        mounts = pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8")
        if f" {self.tree}/" in mounts:
            raise RuntimeError(f"something is still mounted below {self.tree}: it is left there")
        shutil.rmtree(self.tree)

    @property
    def argv(self):
        """What starts a shell inside, as root, with processes of its own that end with it."""
        return ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={self.tree}/proc",
                "chroot", str(self.tree), "bash", "--noprofile", "--norc"]

    @staticmethod
    def environment():
        kept = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        if any(os.environ.get(name) for name in CERTIFICATES):
            kept |= {name: BUNDLE for name in CERTIFICATES}
        return {**kept, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                "TERM": "dumb", "LC_ALL": "C.UTF-8"}
