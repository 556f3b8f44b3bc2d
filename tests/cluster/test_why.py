"""`kubectl lockstep why`: on one screen, what is the matter with a job."""
import json

import pytest
import yaml

from command_line import kubectl_lockstep
from fake_kubelet import Behaviour, Exit, oom_killed
from train_jobs import Jobs, run_report
from waiting import wait_until

LINES_MAX = 45  # fits into a usual terminal
FREE_PORT = 1  # nobody listens there


class Screen:
    """What `kubectl lockstep why` says."""

    def __init__(self, done):
        self.code, self.text, self.errors = done.returncode, done.stdout, done.stderr
        self.verdict = self.text.split("\n\n")[0].split("\n  ")[0].replace("\n", " ")
        self.flat = " ".join(self.text.split())  # without line breaks

    def __repr__(self):
        return f"{self.code}\n{self.text}{self.errors}"


def why(api, name="job", *words, **options):
    screen = Screen(kubectl_lockstep(api, "why", name, *words, **options))
    assert screen.text.count("\n") <= LINES_MAX and "\033" not in screen.text, screen
    return screen


def wait_for_verdict(api, words, timeout=60):
    def told():
        screens.append(why(api))
        return all(word in screens[-1].verdict for word in words)
    screens = []
    wait_until(told, f"verdict with {words}", timeout, lambda: repr(screens[-1]))
    return screens[-1]


def termination_report(code, reason, message, rank=None, step=None):
    return json.dumps({"exitCode": code, "reason": reason, "message": message, "rank": rank, "step": step})


# --- all is well


def test_a_job_that_trains(api, jobs, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.serve_status(api.namespace, "job-0-0", run_report(step=42, checkpoint=40))
    screen = wait_for_verdict(api, ["TrainJob job trains since"])
    jobs.wait_for(lambda: "step 42 of 100 (42%)" in why(api).text, "figures")
    screen = why(api)
    assert screen.code == 0
    assert "newest checkpoint at step 40: 2 steps would be lost with all pods" in screen.flat
    assert "job-1-0" in screen.text and "What to do" not in screen.text


def test_a_job_that_is_complete(api, jobs, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    for pod in ("job-0-0", "job-1-0"):
        kubelet.exit(api.namespace, pod, Exit(0))
    jobs.wait_for_condition("Complete")
    assert wait_for_verdict(api, ["TrainJob job is complete after"]).code == 0


def test_a_suspended_job_says_how_it_goes_on(api, jobs):
    jobs.create(nodes=1, suspend=True)
    jobs.wait_for_condition("Suspended")
    screen = wait_for_verdict(api, ["is suspended", "starts from step 0"])
    assert screen.code == 0
    assert '{"spec": {"suspend": false}}' in screen.text
    status = kubectl_lockstep(api, "status")
    assert status.returncode == 0 and "Suspended" in status.stdout


# --- something ended


def test_a_rank_that_the_kernel_killed_and_that_trains_again(api, jobs, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    message = termination_report(13, "OutOfMemory", "worker was killed", 3, 812)
    kubelet.exit(api.namespace, "job-1-0", oom_killed(message))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_for_condition("Running")
    screen = wait_for_verdict(api, ["Rank 3 in pod job-1-0 was killed by the kernel (out of memory)", "restarted (1 of maxRestarts 10 used)",
                                    "training again since"])
    assert screen.code == 0
    assert "exit code 137: killed by SIGKILL" in screen.text
    assert "its last message: worker was killed" in screen.text
    assert "resourcesPerNode" in screen.text


@pytest.mark.parametrize("code, reason, message, says, does", [
    (2, "InvalidUsage", "unknown flag --datast", "refused its arguments", "lockstep validate -f"),
    (3, "DataUnreadable", "no data set in /data", "could not read its data", "get -n"),
    (5, "NotFinite", "loss is not finite", "loss or gradient were not finite", "--lr"),
])
def test_an_end_that_is_not_tried_again(api, jobs, kubelet, code, reason, message, says, does):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-0-0", Exit(code, termination_report(code, reason, message, 0, 0)))
    jobs.wait_for_condition("Failed")
    screen = wait_for_verdict(api, ["TrainJob job has failed: rank 0 in pod job-0-0", says, "it was not tried again"])
    assert screen.code == 1
    assert f"exit code {code}: " in screen.text and message in screen.text
    assert does in screen.text and f"ended with {code} ({reason})" in screen.text


def test_a_crash_loop_says_that_the_budget_is_used_up(api, jobs, kubelet):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace, Behaviour(exits=Exit(139)))
    jobs.create(nodes=1, restartPolicy={"maxRestarts": 0})
    jobs.wait_for_condition("Failed")
    screen = wait_for_verdict(api, ["was killed by signal 11 (SignalSEGV)", "restartPolicy.maxRestarts (0)"])
    assert screen.code == 1 and "139: killed by SIGSEGV" in screen.text


# --- something is waited for


def test_an_image_that_cannot_be_pulled(api, jobs, kubelet):
    waiting = Behaviour(start="Waiting", waiting_reason="ImagePullBackOff", waiting_message="Back-off pulling image x")
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace, waiting)
    jobs.create(nodes=2)
    screen = wait_for_verdict(api, ["cannot pull its image"])
    assert screen.code == 1
    assert "Back-off pulling image x" in screen.text and "describe -n" in screen.text
    assert "15m" in screen.text  # the job fails by then


def test_no_machine_for_a_pod(api, jobs):
    jobs.create(nodes=1, trainer={"podTemplate": {"spec": {"nodeSelector": {"no": "where"}}}})
    screen = wait_for_verdict(api, ["cannot be scheduled"])
    assert screen.code == 1
    assert "node affinity/selector" in screen.flat
    # The scheduler posts its event some time after the pod's condition.
    wait_until(lambda: "FailedScheduling" in why(api).text, "event in the answer", 60, lambda: repr(why(api)))


def test_a_claim_that_is_missing(api, jobs):
    jobs.create(nodes=1, checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "nowhere"}}})
    screen = wait_for_verdict(api, ["needs a volume claim that does not exist"])
    assert screen.code == 1 and 'create the claim "nowhere"' in screen.text


def test_a_template_that_makes_no_pod(api, jobs):
    jobs.create(nodes=1, trainer={"podTemplate": {"spec": {"hostname": "mine"}}})
    jobs.wait_for_condition("PodsReady", "False", "InvalidSpec")
    screen = wait_for_verdict(api, ["has a spec of which no pod can be made"])
    assert screen.code == 1 and "kubectl edit" in screen.text and "spec.trainer.podTemplate.spec.hostname" in screen.text


# --- no operator, no job, no rights


def test_no_operator(api, kubelet):
    Jobs(api).create(nodes=1)
    assert why(api).verdict.endswith("the operator has not seen it yet")
    screen = wait_for_verdict(api, ["No operator has looked at TrainJob job"], timeout=90)
    assert screen.code == 1 and "kubectl get deployments" in screen.text


def test_a_name_that_is_misspelt(api, jobs):
    jobs.create("sasrec", nodes=1)
    screen = why(api, "sasrek")
    assert screen.code == 1
    assert screen.verdict.startswith(f"There is no TrainJob sasrek in namespace {api.namespace}; did you mean sasrec?")


def test_a_user_without_rights_is_told_which(api, jobs):
    jobs.create(nodes=1)
    api.create("serviceaccounts", {"metadata": {"name": "nobody"}})
    kubeconfig = api.control_plane.kubeconfig_of_service_account(api.namespace, "nobody")
    screen = why(api, kubeconfig=kubeconfig)
    assert screen.code == 1 and screen.text == ""
    assert f"no right to get trainjobs.lockstep.dev in namespace {api.namespace}" in screen.errors


def test_a_user_who_may_see_the_job_alone_is_told_what_is_missing(api, jobs):
    jobs.create(nodes=1)
    api.create("serviceaccounts", {"metadata": {"name": "half"}})
    api.create("rbac.authorization.k8s.io/v1/roles", {"metadata": {"name": "half"}, "rules": [
        {"apiGroups": ["lockstep.dev"], "resources": ["trainjobs"], "verbs": ["get"]}]})
    api.create("rbac.authorization.k8s.io/v1/rolebindings", {
        "metadata": {"name": "half"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "half"},
        "subjects": [{"kind": "ServiceAccount", "name": "half", "namespace": api.namespace}]})
    kubeconfig = api.control_plane.kubeconfig_of_service_account(api.namespace, "half")
    jobs.wait_for_condition("PodsReady")
    wait_until(lambda: "TrainJob job" in why(api, kubeconfig=kubeconfig).verdict, "rights")
    screen = why(api, kubeconfig=kubeconfig)
    assert "note: no right to list pods in namespace" in screen.flat and "no right to list events" in screen.flat


def test_a_server_that_is_not_there_is_named_in_the_words_of_kubectl(api):
    screen = why(api, "job", "-s", f"http://127.0.0.1:{FREE_PORT}")
    assert screen.code == 1 and screen.text == ""
    assert f"get trainjobs.lockstep.dev in namespace {api.namespace}: " in screen.errors, screen
    assert f"127.0.0.1:{FREE_PORT} was refused" in screen.errors, screen


def test_one_may_ask_as_somebody_else(api, jobs):
    jobs.create(nodes=1)
    screen = why(api, "job", "--as", f"system:serviceaccount:{api.namespace}:default")
    assert screen.code == 1 and f"no right to get trainjobs.lockstep.dev in namespace {api.namespace}" in screen.errors
    assert "TrainJob job" in why(api, "job", "--as=anybody", "--as-group=system:masters").verdict


@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_file_may_be_asked_about_as_somebody_else(api, tmp_path, command):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "lockstep.dev/v1", "kind": "TrainJob", "metadata": {
        "name": "job", "namespace": api.namespace}, "spec": {"trainer": {"image": "runner"}}}), encoding="utf-8")
    def asked(*words):
        return kubectl_lockstep(api, command, "-f", file, "--server", *words, namespace=False)
    done = asked("--as", "anybody", "--as-group=system:masters", "--context=lockstep-test")
    assert done.returncode == 0, done.stdout + done.stderr
    done = asked("--as", f"system:serviceaccount:{api.namespace}:default")
    assert done.returncode == 2 and "forbidden" in done.stdout + done.stderr
    done = asked("-s", f"http://127.0.0.1:{FREE_PORT}")
    assert done.returncode == 2 and f"127.0.0.1:{FREE_PORT}: connect: connection refused" in done.stdout + done.stderr


LOG_IN = """#!/usr/bin/env python3
import json, pathlib
status = {"clientCertificateData": pathlib.Path(CERTIFICATE).read_text(), "clientKeyData": pathlib.Path(KEY).read_text()}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


@pytest.fixture
def with_user(api, tmp_path):
    """with_user(user) → a kubeconfig of this server for it."""
    def write(user):
        config = yaml.safe_load(api.kubeconfig.read_text(encoding="utf-8"))
        config["users"][0]["user"] = user
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path
    return write


def test_a_program_gives_the_credentials(api, jobs, with_user, tmp_path):
    certificate, key = api.control_plane.certificates.admin
    program = tmp_path / "log-in"
    program.write_text(LOG_IN.replace("CERTIFICATE", repr(str(certificate))).replace("KEY", repr(str(key))),
                       encoding="utf-8")
    program.chmod(0o700)
    jobs.create(nodes=1)
    screen = why(api, kubeconfig=with_user({"exec": {
        "command": "./log-in", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "IfAvailable"}}))
    assert "TrainJob job" in screen.verdict, screen


def test_a_program_for_credentials_that_fails_is_named(api, with_user):
    screen = why(api, kubeconfig=with_user({"exec": {
        "command": "false", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}}))
    assert screen.code == 1 and "false failed with exit code 1" in screen.errors, screen
