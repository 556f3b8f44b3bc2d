"""`lockstep-operator try`, which `helm test` runs in a pod: with the rights that the chart gives to that pod."""
import subprocess

import pytest
import yaml

from helm import CHART, NAMESPACE, RELEASE, by_name, documents, is_hook
from operator_process import OperatorProcess, operator_binary
from train_jobs import TRAIN_JOBS
from waiting import wait_until

JOB = f"{RELEASE}-test"


@pytest.fixture(scope="module")
def hooks(helm):
    """(kind, name) → object of `helm test`."""
    return by_name([one for one in documents(helm.template().stdout) if is_hook(one)])


@pytest.fixture(scope="module")
def release(control_plane, cluster_helm, hooks):
    """Installed, with what `helm test` would put beside it: the ServiceAccount and its Role."""
    cluster_helm("install", RELEASE, CHART, "-n", NAMESPACE, "--wait", "--timeout", "120s", "--set",
                 "crds.keep=false,tokenKey.keep=false")
    beside = [hooks[kind, JOB] for kind in ("ServiceAccount", "Role", "RoleBinding")]
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.dump_all(beside))
    yield control_plane
    control_plane.kubectl("delete", "-f", "-", stdin=yaml.dump_all(beside))
    cluster_helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait")


@pytest.fixture
def operator(release):
    with OperatorProcess(release, namespace=NAMESPACE) as running:
        yield running


@pytest.fixture
def start(release, hooks, tmp_path):
    """start(exit_code): a process that tries the chart's TrainJob, whose pods end with that code; None: never."""
    kubeconfig = release.kubeconfig_of_service_account(NAMESPACE, JOB)
    started = []

    def begin(exit_code=0, *flags):
        job = yaml.safe_load(hooks["ConfigMap", JOB]["data"]["trainjob.yaml"])
        if exit_code is not None:
            job["spec"]["trainer"]["podTemplate"]["metadata"] = {"annotations": {
                "fake.lockstep.dev/exit-after": "1s", "fake.lockstep.dev/exit-code": str(exit_code)}}
        path = tmp_path / "trainjob.yaml"
        path.write_text(yaml.dump(job), encoding="utf-8")
        argv = [operator_binary(), "try", f"--kubeconfig={kubeconfig}", *flags, path]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]
    yield begin
    for one in started:
        one.kill()
        one.communicate()
    if release.exists(TRAIN_JOBS, NAMESPACE, JOB):
        release.api.delete(TRAIN_JOBS, NAMESPACE, JOB)
        wait_until(lambda: not release.exists(TRAIN_JOBS, NAMESPACE, JOB), "end of the job")
    # The next job has its name and waits for it. The garbage collector learns of new kinds every 30 s.
    wait_until(lambda: not release.exists("services", NAMESPACE, JOB), "end of its Service")


def end(process):
    """(exit code, stdout, stderr)"""
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def test_a_job_that_is_complete_is_told_and_deleted(release, operator, start):
    code, out, err = end(start())
    assert (code, err) == (0, ""), out + err
    assert f"TrainJob {NAMESPACE}/{JOB} is made" in out and f"TrainJob {NAMESPACE}/{JOB} was complete after" in out
    assert "Starting: " in out and "Complete: " in out
    assert not release.exists(TRAIN_JOBS, NAMESPACE, JOB)


@pytest.mark.long
def test_a_job_that_fails_is_told_with_its_reason_and_stays(release, operator, start):
    code, _, err = end(start(2))  # usage: never tried again
    assert code == 1
    assert f"TrainJob {NAMESPACE}/{JOB} has failed: Failed: " in err and "ended with 2" in err
    assert f"kubectl describe tj -n {NAMESPACE} {JOB}" in err
    assert release.exists(TRAIN_JOBS, NAMESPACE, JOB)


@pytest.mark.long
def test_a_job_of_an_earlier_time_is_replaced_on_demand(release, operator, start):
    end(start(2))
    code, _, err = end(start())
    assert code == 1 and "exists already: delete it, or give --replace" in err
    code, out, err = end(start(0, "--replace"))
    assert code == 0, out + err
    assert "left by an earlier test, is being deleted" in out


def test_without_an_operator_it_says_that_nobody_looked(release, start):
    code, _, err = end(start(0, "--timeout_seconds=2"))
    assert code == 1
    assert "has not ended within 2 s: no operator has looked at it" in err and NAMESPACE in err


def test_a_job_that_never_ends_is_told_with_what_it_last_said(release, operator, start):
    code, _, err = end(start(None, "--timeout_seconds=20"))
    assert code == 1
    assert "has not ended within 20 s: Starting: " in err or "has not ended within 20 s: Running: " in err, err


def test_a_job_that_somebody_deletes_is_told(release, operator, start):
    process = start(None)
    wait_until(lambda: release.exists(TRAIN_JOBS, NAMESPACE, JOB), "the job")
    release.api.delete(TRAIN_JOBS, NAMESPACE, JOB)
    code, _, err = end(process)
    assert code == 1 and "was deleted by somebody else" in err


def test_a_field_that_does_not_exist_is_named(release, start, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: lockstep-test}\n"
                    "spec: {trainer: {image: i, nodes: 2}}\n", encoding="utf-8")
    kubeconfig = release.kubeconfig_of_service_account(NAMESPACE, JOB)
    done = subprocess.run([operator_binary(), "try", f"--kubeconfig={kubeconfig}", path], capture_output=True, text=True,
                          check=False, timeout=60)
    assert done.returncode == 2 and 'unknown field "spec.trainer.nodes"' in done.stderr


@pytest.mark.parametrize("text, says", [
    ("kind: Pod\n", 'is apiVersion "", kind "Pod", expected lockstep.dev/v1, TrainJob'),
    ("apiVersion: lockstep.dev/v1\nkind: TrainJob\n", "metadata.name is missing"),
    ("a: [\n", "wrong.yaml:"),
])
def test_a_file_that_is_no_trainjob_is_refused(tmp_path, text, says):
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([operator_binary(), "try", path], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and says in done.stderr


def test_usage_is_refused_in_words():
    for words, says in ((["try"], "file is required"), (["try", "x", "--timeout_seconds=0"], "--timeout_seconds")):
        done = subprocess.run([operator_binary(), *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2 and says in done.stderr
