"""operator/kube against the real API server: tests/operator/kube/real_server_test.cc."""
import os
import subprocess

from operator_process import operator_binary


def test_the_client_and_the_server_understand_each_other(api):
    program = operator_binary().parents[1] / "tests/kube_real_server_test"
    # Without a bundle of the system's, which OpenSSL would read for every connection.
    environment = {**os.environ, "SSL_CERT_FILE": os.devnull}
    done = subprocess.run([program, "--kubeconfig", api.kubeconfig, "--namespace", api.namespace], check=False,
                          env=environment, capture_output=True, text=True, timeout=300)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
