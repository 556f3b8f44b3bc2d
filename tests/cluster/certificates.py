"""The certificates of one control plane, made with openssl: a CA, the API server's, and one per user."""
import pathlib
import subprocess

DAYS = "30"
SERVER_NAMES = ("DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
                "IP:127.0.0.1,IP:10.96.0.1")
CURVE = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]  # milliseconds; RSA takes a second per key


def openssl(*words, stdin=None):
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False, input=stdin)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


class Certificates:
    def __init__(self, folder, extra_server_names=()):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.ca = self.folder / "ca.crt"
        openssl("req", "-x509", "-newkey", *CURVE, "-nodes", "-days", DAYS, "-subj", "/CN=lockstep-test-ca",
                "-keyout", self.folder / "ca.key", "-out", self.ca)
        self.server = self.issue("apiserver", "kube-apiserver", names=",".join([SERVER_NAMES, *extra_server_names]))
        self.admin = self.issue("admin", "admin", groups=["system:masters"])
        # The key that signs ServiceAccounts' tokens, and its public half.
        self.tokens_key = self.folder / "service-accounts.key"
        self.tokens_public = self.folder / "service-accounts.pub"
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.tokens_key)
        openssl("ec", "-in", self.tokens_key, "-pubout", "-out", self.tokens_public)

    def issue(self, file_name, user, groups=(), names="DNS:localhost"):
        """(certificate file, key file). Kubernetes reads the user from CN and the groups from O."""
        certificate, key = self.folder / f"{file_name}.crt", self.folder / f"{file_name}.key"
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        request = openssl("req", "-newkey", *CURVE, "-nodes", "-subj", subject, "-keyout", key)
        extensions = self.folder / f"{file_name}.ext"
        extensions.write_text(f"subjectAltName={names}\n", encoding="utf-8")
        openssl("x509", "-req", "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial", "-days", DAYS,
                "-extfile", extensions, "-out", certificate, stdin=request)
        return certificate, key
