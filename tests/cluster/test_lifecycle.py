"""What becomes of a TrainJob on a real API server: pods, repairs, suspension, the end; each said in status and events."""
import hashlib
import hmac
import json

import pytest

from fake_kubelet import Behaviour, Exit, oom_killed
from operator_process import ROOT
from train_jobs import TRAIN_JOBS, ApiError, Jobs, environment_of, run_report

TOKEN_KEY = bytes(range(32))  # as OperatorProcess has it


def selected_pods(api, service):
    selector = ",".join(f"{name}={value}" for name, value in service["spec"]["selector"].items())
    return api.list("pods", labelSelector=selector)


@pytest.fixture
def jobs(api, kubelet, operator):
    operator()
    return Jobs(api)


def test_a_job_becomes_pods_and_a_headless_service(jobs, api):
    made = jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    pods = jobs.pods()
    assert sorted(pods) == ["job-0-0", "job-1-0"]
    service = api.get("services", "job")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    owner = service["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
    token = hmac.new(TOKEN_KEY, made["metadata"]["uid"].encode(), hashlib.sha256).hexdigest()
    for node in range(2):
        pod = pods[f"job-{node}-0"]
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (f"job-{node}", "job")
        assert pod["spec"]["restartPolicy"] == "Never"
        environment = environment_of(pod)
        assert environment["LOCKSTEP_NODE_RANK"] == str(node)
        assert environment["LOCKSTEP_NUM_NODES"] == "2"
        assert environment["LOCKSTEP_JOB_UID"] == made["metadata"]["uid"]
        assert environment["LOCKSTEP_COORDINATOR"].startswith(f"job-0.job.{api.namespace}.svc")
        assert environment["LOCKSTEP_TOKEN"] == token
    # Node 0 alone is looked up by its name.
    assert [pod["metadata"]["name"] for pod in selected_pods(api, service)] == ["job-0-0"]
    scale = api.client.get(TRAIN_JOBS, api.namespace, "job", "scale")
    assert len(api.list("pods", labelSelector=scale["status"]["selector"])) == 2
    status = jobs.status()
    assert status["observedGeneration"] == 1
    assert status["nodes"] == {"desired": 2, "ready": 2, "active": 2, "succeeded": 0, "failed": 0, "summary": "2/2"}


def test_progress_is_what_node_0_says(jobs, api, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.serve_status(api.namespace, "job-0-0", run_report(step=42, total=100, checkpoint=40))
    jobs.wait_for(lambda: jobs.status().get("progress", {}).get("step") == 42, "progress")
    progress = jobs.status()["progress"]
    assert (progress["totalSteps"], progress["percent"], progress["lastCheckpointStep"]) == (100, 42, 40)
    jobs.wait_for_condition("Running")
    jobs.wait_for_condition("CheckpointReady")
    row = api.kubectl("get", "tj", "job").stdout.splitlines()[1].split()
    assert row[0] == "job" and "Running" in row and "2/2" in row and "42" in row and "42%" in row, row


def test_a_job_is_complete_when_all_nodes_are(jobs, api, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-1-0", Exit(0))
    jobs.wait_for(lambda: jobs.status()["nodes"]["succeeded"] == 1, "one pod done")
    assert jobs.condition("Complete").get("status") != "True"
    kubelet.exit(api.namespace, "job-0-0", Exit(0))
    jobs.wait_for_condition("Complete")
    status = jobs.status()
    assert status["phase"] == "Complete" and "completionTime" in status and status["nodes"]["succeeded"] == 2
    assert sorted(jobs.pods()) == ["job-0-0", "job-1-0"]  # podCleanup: Running keeps those that have ended
    api.kubectl("wait", "tj/job", "--for=condition=Complete", "--timeout=5s")


@pytest.mark.parametrize("how, reason", [(Exit(1), "Crash"), (Exit(11), "TimedOut"), (Exit(137), "SignalKILL"),
                                         (oom_killed(), "OutOfMemory")])
def test_a_pod_that_ends_badly_is_replaced_alone(jobs, api, kubelet, how, reason):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    survivor = jobs.pods()["job-0-0"]["metadata"]["uid"]
    kubelet.exit(api.namespace, "job-1-0", how)
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_for_condition("PodsReady")
    status = jobs.status()
    assert jobs.pods()["job-0-0"]["metadata"]["uid"] == survivor
    assert status["attempts"] == [{"node": 1, "attempt": 1}]
    assert status["restarts"]["pod"] == 1 and status["restarts"]["gang"] == 0
    (failure,) = status["recentFailures"]
    assert (failure["node"], failure["attempt"]) == (1, 0) and failure["reason"] == reason, failure
    jobs.wait_for_event(lambda event: "job-1-0" in event[1], "event about pod 1")
    assert environment_of(jobs.pods()["job-1-1"])["LOCKSTEP_POD_ATTEMPT"] == "1"


@pytest.mark.parametrize("code, reason", [(2, "Usage"), (3, "Data"), (5, "NotFinite")])
def test_what_no_new_pod_would_mend_fails_the_job_in_the_workers_words(jobs, api, kubelet, code, reason):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    words = '{"exitCode": %d, "reason": "x", "message": "the file /data/x is missing", "rank": 1, "step": 0, ' \
            '"generation": 1}' % code
    kubelet.exit(api.namespace, "job-1-0", Exit(code, words))
    failed = jobs.wait_for_condition("Failed")
    assert "the file /data/x is missing" in failed["message"]
    jobs.wait_for(lambda: jobs.live_pods() == [], "end of the other pod")  # podCleanup: Running
    status = jobs.status()
    assert status["phase"] == "Failed" and status["recentFailures"][0]["exitCode"] == code
    assert status["restarts"]["total"] == 0
    assert reason in failed["reason"] or reason in status["recentFailures"][0]["reason"], (failed, status)


def test_what_a_new_pod_may_mend_after_the_first_step_is_replaced(jobs, api, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    words = {"exitCode": 3, "reason": "DataUnreadable", "message": "/data/x: Stale file handle", "rank": 1, "step": 7}
    kubelet.exit(api.namespace, "job-1-0", Exit(3, json.dumps(words)))
    jobs.wait_for_pods("job-0-0", "job-1-1")
    status = jobs.status()
    assert status["restarts"]["pod"] == 1 and len(status["bookkeeping"]["counted"]) == 1
    assert "the same input has worked before" in jobs.condition("Recovering")["message"], status


def test_a_deleted_pod_comes_back_as_the_next_attempt(jobs, api):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    api.kubectl("delete", "pod", "job-0-0", "--force", "--grace-period=0")
    jobs.wait_for_pods("job-0-1", "job-1-0")


def test_a_node_that_went_away_is_replaced_without_waiting_for_it(api, kubelet, operator):
    operator(namespace=None)  # who looks after one namespace sees no nodes
    jobs = Jobs(api)
    jobs.create(nodes=2, health={"notReadyTimeoutSeconds": 1})  # no agent reports on the other here
    jobs.wait_for_condition("PodsReady")
    host = jobs.pods()["job-1-0"]["spec"]["nodeName"]
    kubelet.lose_node(host)
    jobs.wait_for(lambda: "job-1-1" in jobs.live_pods(), "a new pod 1")
    jobs.wait_for_condition("PodsReady")
    assert jobs.pods()["job-1-1"]["spec"]["nodeName"] != host
    assert jobs.status()["recentFailures"][-1]["host"] == host


def test_suspend_keeps_what_resume_goes_on_with(jobs, api, kubelet):
    jobs.create(nodes=2)
    jobs.wait_for_condition("PodsReady")
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    jobs.wait_for(lambda: jobs.pods() == {}, "no pods")
    assert jobs.status()["phase"] == "Suspended"
    jobs.patch({"spec": {"suspend": False}})
    jobs.wait_for_condition("Suspended", "False")
    jobs.wait_for_condition("PodsReady")
    assert jobs.live_pods() == ["job-0-1", "job-1-1"]  # generations rise: attempts go on
    assert jobs.status()["recentFailures"] == [] if "recentFailures" in jobs.status() else True
    kubelet.exit(api.namespace, "job-0-1", Exit(0))
    kubelet.exit(api.namespace, "job-1-1", Exit(0))
    jobs.wait_for_condition("Complete")


RUN_OF = {"image": "registry.example/runner:2", "command": ["lockstep"], "args": ["run", "sasrec", "--lr", "0.01"],
          "env": [{"name": "MINE", "value": "1"}]}


def test_what_runs_is_changed_while_the_job_is_suspended(jobs, api):
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    jobs.patch({"spec": {"suspend": False, "trainer": RUN_OF}})  # in one write
    jobs.wait_for_pods("job-0-1")
    (container,) = jobs.pods()["job-0-1"]["spec"]["containers"]
    assert {field: container[field] for field in ("image", "command", "args")} == {
        field: RUN_OF[field] for field in ("image", "command", "args")}
    assert environment_of(jobs.pods()["job-0-1"])["MINE"] == "1"
    with pytest.raises(ApiError) as refused:
        jobs.patch({"spec": {"trainer": {"args": ["run", "sasrec"]}}})
    assert "spec.trainer.args" in refused.value.message and "only while the job is suspended" in refused.value.message


def test_a_configuration_that_does_not_fit_the_checkpoint_suspends_the_job_until_it_is_mended(jobs, api, kubelet):
    jobs.create(nodes=2, trainer={"args": ["run", "sasrec", "--lr", "0.01"]})
    jobs.wait_for_condition("PodsReady")
    words = json.dumps({"exitCode": 2, "reason": "ConfigurationChanged", "message": "--lr is 0.01 and was 0.001"})
    kubelet.exit(api.namespace, "job-0-0", Exit(2, words))
    suspended = jobs.wait_for_condition("Suspended", reason="ConfigurationChanged")
    assert "--lr is 0.01 and was 0.001" in suspended["message"]
    jobs.wait_for_event(lambda event: event[0] == "ConfigurationChanged" and "--lr is 0.01" in event[1], "event")
    job = jobs.get()
    assert job["spec"]["suspend"] is False and job["status"]["phase"] == "Suspended" and jobs.live_pods() == []
    jobs.patch({"spec": {"trainer": {"args": ["run", "sasrec", "--lr", "0.001"]}}})
    jobs.wait_for_pods("job-0-1", "job-1-1")
    jobs.wait_for_condition("PodsReady")
    assert jobs.condition("Suspended")["reason"] == "Resumed"
    assert "0.001" in jobs.pods()["job-0-1"]["spec"]["containers"][0]["args"]


def test_another_program_that_ends_with_0_because_it_is_suspended_is_not_complete(jobs, api, kubelet):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace, Behaviour(on_delete=Exit(0)))
    jobs.create(nodes=2, trainer={"launcher": "None"})
    jobs.wait_for_condition("PodsReady")
    assert len(selected_pods(api, api.get("services", "job"))) == 2  # such programs may look each other up
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("Suspended")
    assert jobs.condition("Complete")["status"] == "False"
    jobs.patch({"spec": {"suspend": False}})
    jobs.wait_for_pods("job-0-1", "job-1-1")


def test_kubectl_scale_changes_an_elastic_job_and_tells_node_0(jobs, api, kubelet):
    jobs.create(nodes=2, elastic={"minNodes": 1, "maxNodes": 4})
    jobs.wait_for_condition("PodsReady")
    agent = kubelet.serve_status(api.namespace, "job-0-0", run_report(step=5, nodes=2))
    api.kubectl("scale", "tj/job", "--replicas=3")
    jobs.wait_for_pods("job-0-0", "job-1-0", "job-2-0")
    jobs.wait_for(lambda: agent.posts, "numNodes for pod 0")
    api.kubectl("scale", "tj/job", "--replicas=1")
    jobs.wait_for_pods("job-0-0")
    api.kubectl("scale", "tj/job", "--replicas=2")
    jobs.wait_for_pods("job-0-0", "job-1-1")
    refused = api.kubectl("scale", "tj/job", "--replicas=9", check=False)
    assert refused.returncode != 0 and "maxNodes" in refused.stderr, refused.stderr


def test_a_job_is_deleted_when_its_time_is_over(jobs, api, kubelet):
    jobs.create(nodes=1, ttlSecondsAfterFinished=1)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-0-0", Exit(0))
    jobs.wait_until_gone(timeout=120)
    jobs.wait_for_absence(lambda: jobs.pods() == {}, "end of its pods", 120)


def test_the_deadline_ends_a_job(jobs):
    jobs.create(nodes=1, activeDeadlineSeconds=2)
    failed = jobs.wait_for_condition("Failed")
    assert failed["reason"] == "DeadlineExceeded"
    jobs.wait_for(lambda: jobs.live_pods() == [], "end of its pods")


def test_a_crash_loop_ends_with_the_reason(jobs, api, kubelet):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace, Behaviour(exits=Exit(1, "it broke")))
    jobs.create(nodes=1, restartPolicy={"maxRestarts": 2})
    failed = jobs.wait_for_condition("Failed")
    assert "restart" in failed["message"].lower(), failed
    assert jobs.live_pods() == []


def test_pods_that_wait_for_an_image_say_so(jobs, api, kubelet):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace,
                   Behaviour(start="Waiting", waiting_reason="ImagePullBackOff", waiting_message="no such image: x"))
    jobs.create(nodes=2)
    waiting = jobs.wait_for_condition("PodsReady", "False", "ImagePullBackOff")
    assert "no such image: x" in waiting["message"]
    assert "ImagePullBackOff" in api.kubectl("describe", "tj", "job").stdout


SIDECAR = {"podTemplate": {"spec": {"containers": [{"name": "logs", "image": "registry.example/logs:1"}]}}}


@pytest.mark.parametrize("sidecars, phase", [("Ended", "Running"), ("Waiting", "Pending")])
def test_a_sidecar_that_does_not_run_holds_nothing_up(jobs, api, kubelet, sidecars, phase):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace,
                   Behaviour(sidecars=sidecars, waiting_reason="ImagePullBackOff"))
    jobs.create(nodes=2, trainer=SIDECAR)
    jobs.wait_for_condition("PodsReady")
    assert jobs.pods()["job-0-0"]["status"]["phase"] == phase
    kubelet.serve_status(api.namespace, "job-0-0", run_report(step=42))
    jobs.wait_for_condition("Running", reason="StepCommitted")


def test_a_trainer_that_waits_for_its_sidecar_says_which_container_waits(jobs, api, kubelet):
    kubelet.behave(lambda pod: pod["metadata"]["namespace"] == api.namespace,
                   Behaviour(start="Running", sidecars="Waiting", waiting_reason="ImagePullBackOff",
                             waiting_message="no such image: x"))
    jobs.create(nodes=1, trainer=SIDECAR)
    waiting = jobs.wait_for_condition("PodsReady", "False", "ImagePullBackOff")
    assert "container logs: no such image: x" in waiting["message"]


def test_other_launchers_get_torchruns_variables_and_restart_as_a_gang(jobs, api, kubelet):
    """Pod 0 does not answer SIGTERM, so nothing is made before it is killed at the end of its grace period."""
    kubelet.behave_by_name(api.namespace, "job-0-0", Behaviour(on_delete=None))
    jobs.create(nodes=2, trainer={"launcher": "Torchrun", "command": ["torchrun", "train.py"],
                                  "podTemplate": {"spec": {"terminationGracePeriodSeconds": 3}}})
    jobs.wait_for_condition("PodsReady")
    assert len(selected_pods(api, api.get("services", "job"))) == 2  # torchrun may make either of them the master
    environment = environment_of(jobs.pods()["job-1-0"])
    assert environment["PET_NNODES"] == "2" and environment["PET_NODE_RANK"] == "1"
    assert environment["MASTER_ADDR"].startswith("job-0.job.")
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_condition("PodsReady", "False", "EarlierGangEnding")
    assert jobs.live_pods() == []
    jobs.wait_for_pods("job-0-1", "job-1-1")
    assert jobs.status()["restarts"]["gang"] == 1


def test_a_network_policy_admits_the_job_itself_the_operator_and_dns(jobs, api):
    jobs.create(nodes=1, networkPolicy="IntraJob")
    jobs.wait_for_condition("PodsReady")
    policy = api.get("networking.k8s.io/v1/networkpolicies", "job")
    assert policy["spec"]["podSelector"]["matchLabels"]["lockstep.dev/job"] == "job"
    # The operator that reads /status is the one of manifests/base.
    shown = api.control_plane.kubectl("create", "--dry-run=client", "-o", "json", "-f", ROOT / "manifests/base/deployment.yaml")
    deployment = json.loads(shown.stdout)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    admitted = [peer["podSelector"]["matchLabels"] for rule in policy["spec"]["ingress"] for peer in rule.get("from", [])
                if "matchLabels" in peer.get("podSelector", {})]
    assert any(wanted.items() <= labels.items() for wanted in admitted), admitted


def test_a_job_that_another_controller_manages_is_left_alone(jobs, api):
    jobs.create("theirs", managedBy="example.com/other")
    jobs.create("ours")
    jobs.wait_for_condition("PodsReady", name="ours")
    assert jobs.pods("theirs") == {} and not jobs.status("theirs").get("conditions")


def test_the_metrics_count_jobs_and_restarts(api, kubelet, operator):
    process = operator()
    jobs = Jobs(api)
    jobs.create(nodes=1)
    jobs.wait_for_condition("PodsReady")
    kubelet.exit(api.namespace, "job-0-0", Exit(1))
    jobs.wait_for_pods("job-0-1")
    jobs.wait_for_condition("PodsReady")
    jobs.wait_for(lambda: any("lockstep_trainjob_restarts_total" in name and value == 1
                              for name, value in process.metrics().items()), "a counted restart")
    found = process.metrics()
    assert found['controller_runtime_reconcile_total{controller="trainjob",result="success"}'] >= 1
    assert any(name.startswith("lockstep_trainjobs{") and value == 1 for name, value in found.items())
    assert any(name.startswith("rest_client_requests_total{") for name in found)
