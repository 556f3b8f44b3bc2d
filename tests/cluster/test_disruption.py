"""spec.disruption on a real API server, whose disruption controller counts the pods: evictions one at a time."""
import pytest

from fake_kubelet import Exit
from kube_api import ApiError
from train_jobs import Jobs
from waiting import wait_until

BUDGETS = "policy/v1/poddisruptionbudgets"
ONE_AT_A_TIME = {"budget": "OneAtATime"}


@pytest.fixture(scope="module")
def disruption_controller(control_plane):
    """Started again: it finds the scale of a kind whose CRD is newer than itself only after half a minute."""
    control_plane.stop_component("kube-controller-manager")
    control_plane.restart_component("kube-controller-manager")


@pytest.fixture
def jobs(disruption_controller, api, restricted_operator):
    return Jobs(api)


def has_budget(api):
    return api.control_plane.exists(BUDGETS, api.namespace, "job")


def evict(api, pod):
    api.client.create("pods", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}, api.namespace,
                      pod, "eviction")


def wait_until_counted(api, allowed):
    """The disruption controller has seen that so many more pods may be evicted."""
    def counted():
        found = api.get(BUDGETS, "job")
        status = found.get("status", {})
        return status.get("observedGeneration") == found["metadata"]["generation"] and \
            (status["expectedPods"], status["disruptionsAllowed"]) == (2, allowed)
    wait_until(counted, f"a budget of {allowed}", 60, lambda: str(api.get(BUDGETS, "job")))


def test_evictions_take_one_pod_at_a_time(jobs, api):
    made = jobs.create(nodes=2, disruption=ONE_AT_A_TIME)
    jobs.wait_for_condition("PodsReady")
    jobs.wait_for_condition("DisruptionBudget")
    (owner,) = api.get(BUDGETS, "job")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainJob", made["metadata"]["uid"], True)
    wait_until_counted(api, 1)
    evict(api, "job-1-0")
    with pytest.raises(ApiError) as refused:
        evict(api, "job-0-0")
    assert refused.value.status == 429 and "disruption budget" in refused.value.message
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_for_condition("PodsReady")
    wait_until_counted(api, 1)
    evict(api, "job-0-0")


def test_the_budget_goes_when_the_job_wants_no_pods_and_comes_back(jobs, api, kubelet):
    jobs.create(nodes=1, disruption=ONE_AT_A_TIME)
    jobs.wait_for_condition("DisruptionBudget")
    jobs.patch({"spec": {"suspend": True}})
    jobs.wait_for_condition("DisruptionBudget", "False", "Suspended")
    jobs.wait_for(lambda: not has_budget(api), "end of the budget")
    jobs.patch({"spec": {"suspend": False}})
    jobs.wait_for_condition("PodsReady")
    jobs.wait_for(lambda: has_budget(api), "a budget")
    jobs.patch({"spec": {"disruption": {"budget": "None"}}})
    jobs.wait_for_condition("DisruptionBudget", "False", "NotRequested")
    jobs.wait_for(lambda: not has_budget(api), "end of the budget")
    jobs.patch({"spec": {"disruption": ONE_AT_A_TIME}})
    jobs.wait_for_condition("DisruptionBudget")
    jobs.wait_for(lambda: has_budget(api), "a budget")
    kubelet.exit(api.namespace, "job-0-1", Exit(0))
    jobs.wait_for_condition("Complete")
    jobs.wait_for_condition("DisruptionBudget", "False", "Finished")
    jobs.wait_for(lambda: not has_budget(api), "end of the budget")


def test_a_budget_that_somebody_deletes_or_changes_is_restored(jobs, api):
    jobs.create(nodes=1, disruption=ONE_AT_A_TIME)
    jobs.wait_for_condition("DisruptionBudget")
    jobs.wait_for(lambda: has_budget(api), "a budget")
    first = api.get(BUDGETS, "job")["metadata"]["uid"]
    api.client.delete(BUDGETS, api.namespace, "job")
    jobs.wait_for(lambda: has_budget(api) and api.get(BUDGETS, "job")["metadata"]["uid"] != first, "another budget")
    api.client.patch(BUDGETS, {"spec": {"maxUnavailable": 0}}, api.namespace, "job")
    jobs.wait_for(lambda: api.get(BUDGETS, "job")["spec"]["maxUnavailable"] == 1, "a budget as it was")


def test_pods_ask_autoscalers_to_be_left_alone(jobs):
    jobs.create(nodes=1, disruption={"doNotDisrupt": True})
    jobs.wait_for_pods("job-0-0")
    annotations = jobs.pods()["job-0-0"]["metadata"]["annotations"]
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
