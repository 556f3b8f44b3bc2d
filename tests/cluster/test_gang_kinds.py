"""Gangs whose PodGroup is a CRD: absent, installed later, removed while the gang runs; and what Volcano and scheduler-plugins
find, on their published CRDs. Their schedulers run in test_gang_schedulers.py; here pods of scheduler-plugins are given to
Kubernetes' own."""
import pytest
import yaml

from control_plane import kube_bin
from fake_kubelet import Exit
from train_jobs import Jobs
from waiting import wait_until

CRDS = kube_bin().parent / "crds"
COSCHEDULING = "scheduling.x-k8s.io_podgroups.yaml"
VOLCANO = "scheduling.volcano.sh_podgroups.yaml"
OWN_SCHEDULER = {"podTemplate": {"spec": {"schedulerName": "default-scheduler"}}}


@pytest.fixture
def jobs(api, restricted_operator):
    return Jobs(api)


@pytest.fixture
def crds(control_plane):
    """crds.install(file), crds.remove(file): what is installed goes at the end."""
    class Crds:
        installed = set()

        def install(self, file, versions=()):
            """versions: instead of the published one; the first is stored."""
            crd = yaml.safe_load((CRDS / file).read_text(encoding="utf-8"))
            published = crd["spec"]["versions"][0]
            if versions:
                crd["spec"]["versions"] = [{**published, "name": name, "storage": name == versions[0]} for name in versions]
            control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(crd))
            group, plural = file.removesuffix(".yaml").split("_")
            control_plane.wait_for_crd(f"{plural}.{group}")
            self.installed.add(file)

        def remove(self, file):
            control_plane.kubectl("delete", "--wait", "-f", CRDS / file)
            self.installed.discard(file)

    found = Crds()
    yield found
    for file in sorted(found.installed):
        found.remove(file)


def groups(api, resource):
    return {group["metadata"]["name"]: group for group in api.list(resource)}


def test_a_kind_that_comes_goes_and_comes_again(api, jobs, restricted_operator, kubelet, crds):
    resource = "scheduling.x-k8s.io/v1alpha1/podgroups"
    jobs.create(nodes=2, scheduling={"gang": "Coscheduling"}, trainer=OWN_SCHEDULER)
    why = jobs.wait_for_condition("GangScheduled", "False", "PodGroupUnavailable")["message"]
    assert "the cluster has no PodGroup of scheduling.x-k8s.io/v1alpha1" in why
    jobs.wait_for_event(lambda event: event[0] == "PodGroupUnavailable", "event PodGroupUnavailable")
    assert jobs.pods() == {} and restricted_operator.answers("readyz")

    crds.install(COSCHEDULING)
    jobs.wait_for_condition("PodsReady")
    jobs.wait_for_condition("GangScheduled")
    (name,) = groups(api, resource)
    assert groups(api, resource)[name]["spec"] == {"minMember": 2}
    labels = {pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for pod in jobs.pods().values()}
    assert labels == {name}

    crds.remove(COSCHEDULING)
    kubelet.exit(api.namespace, "job-1-0", Exit(1))
    jobs.wait_for_condition("PodsReady", "False", "PodGroupUnavailable")
    assert jobs.live_pods() == ["job-0-0"] and restricted_operator.answers("readyz")

    crds.install(COSCHEDULING)
    jobs.wait_for_pods("job-0-0", "job-1-1")
    jobs.wait_for_condition("PodsReady")
    assert list(groups(api, resource)) == [name]


@pytest.mark.long
def test_a_kind_in_a_version_that_is_not_known(api, jobs, restricted_operator, crds):
    """Kubernetes itself goes on to other versions, and so may the plugins."""
    crds.install(COSCHEDULING, versions=["v9"])
    jobs.create(nodes=2, scheduling={"gang": "Coscheduling"}, trainer=OWN_SCHEDULER)
    why = jobs.wait_for_condition("GangScheduled", "False", "PodGroupUnavailable")["message"]
    assert "no PodGroup of scheduling.x-k8s.io/v1alpha1, and this operator knows no other version" in why
    jobs.wait_for_condition("PodsReady", "False", "PodGroupUnavailable")
    assert jobs.pods() == {} and restricted_operator.answers("readyz")

    crds.install(COSCHEDULING, versions=["v9", "v1alpha1"])
    jobs.wait_for_condition("PodsReady")
    jobs.wait_for_condition("GangScheduled")
    (group,) = groups(api, "scheduling.x-k8s.io/v9/podgroups").values()
    assert group["spec"] == {"minMember": 2}


def test_a_group_that_somebody_deletes_or_changes_is_put_right(api, jobs, crds):
    resource = "scheduling.x-k8s.io/v1alpha1/podgroups"
    crds.install(COSCHEDULING)
    jobs.create(nodes=2, scheduling={"gang": "Coscheduling"}, trainer=OWN_SCHEDULER)
    jobs.wait_for_condition("PodsReady")
    (name,) = groups(api, resource)
    uid = groups(api, resource)[name]["metadata"]["uid"]
    pods = {pod["metadata"]["uid"] for pod in jobs.pods().values()}
    api.client.delete(resource, api.namespace, name)
    wait_until(lambda: groups(api, resource).get(name, {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
               "another group of the name")
    api.client.patch(resource, {"spec": {"minMember": 1}}, api.namespace, name)
    wait_until(lambda: groups(api, resource)[name]["spec"]["minMember"] == 2, "the size that the job needs")
    assert {pod["metadata"]["uid"] for pod in jobs.pods().values()} == pods


def test_volcano_finds_its_group_and_its_pods(api, jobs, crds):
    resource = "scheduling.volcano.sh/v1beta1/podgroups"
    crds.install(VOLCANO)
    api.control_plane.api.create("scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "volcanic"}, "value": 7})
    try:
        jobs.create(nodes=3, elastic={"minNodes": 2, "maxNodes": 3},
                    scheduling={"gang": "Volcano", "queue": "team-a", "priorityClassName": "volcanic"})
        jobs.wait_for_pods("job-0-0", "job-1-0")
        (name,) = groups(api, resource)
        assert groups(api, resource)[name]["spec"] == {"minMember": 2, "queue": "team-a", "priorityClassName": "volcanic"}
        for pod in jobs.pods().values():
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == name
            assert pod["spec"]["schedulerName"] == "volcano" and pod["spec"]["priority"] == 7
        jobs.wait_for_condition("GangScheduled", "False", "GangStarting")
    finally:
        api.control_plane.api.delete("scheduling.k8s.io/v1/priorityclasses", name="volcanic")


def test_a_native_gang_without_the_gate_waits_and_says_so(jobs):
    jobs.create(nodes=2, scheduling={"gang": "Native"})
    why = jobs.wait_for_condition("GangScheduled", "False", "PodGroupUnavailable")["message"]
    assert "scheduling.k8s.io/v1beta1 or scheduling.k8s.io/v1alpha2" in why
    assert jobs.pods() == {}
