"""The test cluster behaves as the other tests assume."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest

from control_plane import ControlPlane, is_usual_version, kubernetes_version
from fake_kubelet import Behaviour, Exit, oom_killed
from kube_api import ApiError, StopWatch
from ports import ReservedPorts
from processes import Process, end_leftovers, make_run_folder, registry, runs_still, start_time, write_whole
from waiting import wait_until

HERE = pathlib.Path(__file__).resolve().parent
MESSAGE = '{"exitCode":12,"reason":"DeviceFault","rank":1}'


def pod(name, grace=30, **metadata):
    return {"metadata": {"name": name, **metadata},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace,
                     "containers": [{"name": "main", "image": "example/image"}]}}


def phase_is(phase):
    return lambda found: found["status"].get("phase") == phase


def terminated(found):
    return found["status"]["containerStatuses"][0]["state"]["terminated"]


def conditions(found):
    return {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", [])}


# --- components


def test_its_version_is_the_one_that_go_mod_names(control_plane):
    assert control_plane.api.request("GET", "/version")["gitVersion"] == f"v{kubernetes_version()}"


@pytest.mark.skipif(not is_usual_version(), reason="PodGroups are newer than this Kubernetes")
def test_native_gangs_are_off_unless_asked_for_and_then_on_in_every_component(control_plane):
    kind = "scheduling.k8s.io/v1beta1/podgroups"
    assert "scheduling.k8s.io/v1beta1" not in control_plane.kubectl("api-versions").stdout
    with ControlPlane(native_gangs=True, kwok_nodes=1) as plane:
        scheduler = plane["kube-scheduler"]
        plane.api.create(kind, {"metadata": {"name": "pair"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}},
                         "default")
        for name in ("a", "b"):
            one = pod(name)
            one["spec"]["schedulingGroup"] = {"podGroupName": "pair"}
            kept = plane.api.create("pods", one, "default")  # the API server drops a field whose gate is off
            assert kept["spec"]["schedulingGroup"] == {"podGroupName": "pair"}
        scheduler.wait_until(lambda: {"PodGroupInitiallyScheduled": "True"}.items() <= conditions(
            plane.api.get(kind, "default", "pair")).items(), "group that the scheduler has seen to")
        # The controller manager, which keeps a group while it has pods, lets it go.
        for name in ("a", "b"):
            plane.api.delete("pods", "default", name, gracePeriodSeconds=0)
        plane.api.delete(kind, "default", "pair")
        plane["kube-controller-manager"].wait_until(lambda: not plane.exists(kind, "default", "pair"), "end of the group")


def test_objects_outlive_an_api_server_that_was_killed(api):
    api.create("configmaps", {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    api.control_plane.stop_component("kube-apiserver")
    assert not api.client.is_ready()
    api.control_plane.restart_component("kube-apiserver")
    assert api.get("configmaps", "kept")["data"] == {"a": "b"}


def test_an_api_server_that_is_stopped_by_a_signal_answers_nothing_and_then_goes_on(control_plane):
    control_plane.pause_component("kube-apiserver")
    try:
        with pytest.raises(TimeoutError):
            control_plane.api.request("GET", "/readyz", timeout=0.5)
    finally:
        control_plane.continue_component("kube-apiserver")
        control_plane.api.drop_connection()
    control_plane.wait_for_apiserver()


def test_a_watch_from_before_a_compaction_is_answered_410(api):
    before = api.client.request("GET", "/api/v1/configmaps")["metadata"]["resourceVersion"]
    api.create("configmaps", {"metadata": {"name": "later"}})
    # The controller manager makes one of its own in every namespace.
    selector = {"fieldSelector": "metadata.name=later"}
    assert next(api.client.watch("configmaps", api.namespace, before, **selector))[0] == "ADDED"
    api.control_plane.forget_history()
    with pytest.raises(ApiError) as caught:
        next(api.client.watch("configmaps", api.namespace, before))
    assert (caught.value.status, caught.value.reason) == (410, "Expired")


def test_compaction_alone_makes_etcd_forget(control_plane):
    before = control_plane.revision()
    control_plane.api.create("configmaps", {"metadata": {"generateName": "x-"}}, "default")
    assert control_plane.compact() > before
    with pytest.raises(urllib.error.HTTPError) as caught:
        control_plane.etcd("kv/range", {"key": "Lw==", "revision": before})
    assert "compacted" in caught.value.read().decode()


def test_a_watch_that_is_cut_is_an_end_and_no_hang(api):
    stop = StopWatch()
    api.create("configmaps", {"metadata": {"name": "first"}})
    events = api.client.watch("configmaps", api.namespace, stop=stop, fieldSelector="metadata.name=first")
    assert next(events)[0] == "ADDED"
    stop.cut()
    with contextlib.suppress(OSError):
        assert all(kind == "BOOKMARK" for kind, _ in events)  # one may have been on its way


# --- users


def test_a_kubeconfig_of_a_person_carries_user_and_groups(control_plane):
    kubeconfig = control_plane.kubeconfig_of_user("ann@example.org", ["team-a", "team-b"])
    answer = json.loads(control_plane.kubectl("auth", "whoami", "-o", "json", kubeconfig=kubeconfig).stdout)
    assert answer["status"]["userInfo"]["username"] == "ann@example.org"
    assert set(answer["status"]["userInfo"]["groups"]) == {"team-a", "team-b", "system:authenticated"}


def test_a_kubeconfig_of_a_service_account_may_do_what_rbac_says(api):
    kubeconfig = api.control_plane.kubeconfig_of_service_account(api.namespace, "default")
    who = json.loads(api.kubectl("auth", "whoami", "-o", "json", kubeconfig=kubeconfig).stdout)
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{api.namespace}:default"
    refused = api.kubectl("get", "pods", kubeconfig=kubeconfig, check=False)
    assert refused.returncode == 1 and "forbidden" in refused.stderr


def test_a_rotated_token_is_another_one_in_the_same_file(api):
    api.control_plane.kubeconfig_of_service_account(api.namespace, "default", token_file=True)
    path = api.control_plane.folder / f"{api.namespace}.default.token"
    before = path.read_text()
    # A token's times are in whole seconds: one of the same second would be the same.
    wait_until(lambda: api.control_plane.rotate_token(api.namespace, "default").read_text() != before, "new token")


# --- the fake kubelet


def test_a_pod_becomes_ready_on_a_node_of_the_fake_kubelet(api, kubelet):
    api.create("pods", pod("a"))
    found = kubelet.wait_for(api.namespace, "a", phase_is("Running"), "running")
    assert found["spec"]["nodeName"] in kubelet.nodes
    assert {one["type"]: one["status"] for one in found["status"]["conditions"]}["Ready"] == "True"
    assert found["status"]["podIP"].startswith("127.")


def test_a_pod_fails_with_the_exit_code_and_message_that_the_test_says(api, kubelet):
    api.create("pods", pod("a"))
    kubelet.exit(api.namespace, "a", Exit(12, MESSAGE))
    found = kubelet.wait_for(api.namespace, "a", phase_is("Failed"), "failed")
    assert (terminated(found)["exitCode"], terminated(found)["message"]) == (12, MESSAGE)
    assert terminated(found)["reason"] == "Error"


def test_a_pod_behaves_as_it_was_told_before_it_was_made(api, kubelet):
    kubelet.behave_by_name(api.namespace, "a", Behaviour(exits=oom_killed()))
    kubelet.behave_by_name(api.namespace, "b", Behaviour(exits=Exit(0)))
    kubelet.behave_by_name(api.namespace, "c", Behaviour("Waiting", "ImagePullBackOff", "Back-off pulling image"))
    for name in "abc":
        api.create("pods", pod(name))
    assert terminated(kubelet.wait_for(api.namespace, "a", phase_is("Failed"), "failed"))["reason"] == "OOMKilled"
    assert terminated(kubelet.wait_for(api.namespace, "b", phase_is("Succeeded"), "done"))["reason"] == "Completed"
    waits = kubelet.wait_for(api.namespace, "c", lambda found: "containerStatuses" in found["status"], "waiting")
    assert waits["status"]["phase"] == "Pending"
    assert waits["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"
    kubelet.change(api.namespace, "c", Behaviour())
    kubelet.wait_for(api.namespace, "c", phase_is("Running"), "running")


def test_an_evicted_pod_says_so_in_its_status(api, kubelet):
    api.create("pods", pod("a"))
    kubelet.evict(api.namespace, "a")
    found = kubelet.wait_for(api.namespace, "a", phase_is("Failed"), "failed")
    assert found["status"]["reason"] == "Evicted"
    condition = next(one for one in found["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "TerminationByKubelet")


@pytest.mark.parametrize("on_delete, code", [(Exit(143), 143), (Exit(0), 0), (None, 137)])
def test_a_deleted_pod_exits_within_its_grace_period_and_is_removed(api, kubelet, on_delete, code):
    kubelet.behave_by_name(api.namespace, "a", Behaviour(on_delete=on_delete))
    api.create("pods", pod("a", grace=1))
    made = kubelet.wait_for(api.namespace, "a", phase_is("Running"), "running")
    events = api.client.watch("pods", api.namespace, made["metadata"]["resourceVersion"])
    api.client.delete("pods", api.namespace, "a")
    for kind, found in events:
        if kind == "DELETED":
            break
    assert terminated(found)["exitCode"] == code


def test_a_pod_on_a_lost_node_stays_until_the_node_is_found(api, kubelet):
    api.create("pods", pod("a"))
    node = kubelet.wait_for(api.namespace, "a", phase_is("Running"), "running")["spec"]["nodeName"]
    kubelet.lose_node(node)
    api.client.delete("pods", api.namespace, "a")
    api.create("pods", pod("b"))
    kubelet.wait_for(api.namespace, "b", phase_is("Running"), "running")
    assert api.get("pods", "a")["status"]["phase"] == "Running"
    kubelet.find_node(node)
    wait_until(lambda: not api.control_plane.exists("pods", api.namespace, "a"), "end of the pod")


def test_the_fake_kubelet_goes_on_after_the_api_server_was_away(api, kubelet):
    api.create("pods", pod("a"))
    kubelet.wait_for(api.namespace, "a", phase_is("Running"), "running")
    api.control_plane.stop_component("kube-apiserver")
    api.control_plane.restart_component("kube-apiserver")
    api.create("pods", pod("b"))
    kubelet.wait_for(api.namespace, "b", phase_is("Running"), "running")


def test_an_agents_status_is_served_at_the_pods_address(api, kubelet):
    api.create("pods", pod("a"))
    server = kubelet.serve_status(api.namespace, "a", {"step": 7})
    address = api.get("pods", "a")["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:8080/status", timeout=5) as answer:
        assert json.load(answer) == {"step": 7}
    request = urllib.request.Request(f"http://{address}:8080/nodes", b'{"nodes":3}', {"Authorization": "Bearer x"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200
    path, headers, body = server.posts[0]
    assert (path, headers["Authorization"], body) == ("/nodes", "Bearer x", '{"nodes":3}')


# --- KWOK


def test_kwok_runs_pods_on_its_nodes_and_ends_them_as_annotated():
    failing = {"fake.lockstep.dev/exit-after": "0s", "fake.lockstep.dev/exit-code": "12",
               "fake.lockstep.dev/exit-message": MESSAGE}
    with ControlPlane(kwok_nodes=10) as plane:
        plane.make_namespace("a")
        for n in range(50):
            plane.api.create("pods", pod(f"runs-{n}"), "a")
        plane.api.create("pods", pod("fails", annotations=failing), "a")
        plane.api.create("pods", pod("ends", annotations={"fake.lockstep.dev/exit-after": "100ms"}), "a")

        def phases():
            found = [one["status"].get("phase") for one in plane.api.list("pods", "a")]
            return {phase: found.count(phase) for phase in set(found)}
        wait_until(lambda: phases() == {"Running": 50, "Failed": 1, "Succeeded": 1}, "phases",
                   on_timeout=lambda: f"{phases()}\n{plane.logs()}")
        failed = plane.api.get("pods", "a", "fails")
        assert (terminated(failed)["exitCode"], terminated(failed)["message"]) == (12, MESSAGE)
        plane.kubectl("delete", "pod", "runs-0", namespace="a")
        assert not plane.exists("pods", "a", "runs-0")


# --- what is left behind

LONG_LIVED = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from control_plane import ControlPlane
plane = ControlPlane(scheduler=False).start()
print(plane.folder, flush=True)
signal.pause()
"""


def recorded(folder):
    return [json.loads(path.read_text()) for path in folder.glob("processes/*.json")]


def test_what_a_killed_run_left_is_ended_by_the_next_one():
    root = tempfile.mkdtemp(prefix="ls-")  # a registry of its own: other tests end what they find in the common one
    with subprocess.Popen([sys.executable, "-c", LONG_LIVED, str(HERE)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "TMPDIR": root}) as run:
        folder = pathlib.Path(run.stdout.readline().strip())
        records = recorded(folder)
        run.kill()
    assert {one["name"] for one in records} == {"etcd", "kube-apiserver", "kube-controller-manager"}
    assert all(runs_still(one) for one in records)
    ended = {one["pid"] for one in end_leftovers(registry(root))}
    assert {one["pid"] for one in records} <= ended
    assert not any(runs_still(one) for one in records)
    assert not folder.exists()
    shutil.rmtree(root)


def test_runs_that_are_alive_are_left_alone(control_plane):
    pids = {one["pid"] for one in recorded(control_plane.folder)}
    assert not pids & {one["pid"] for one in end_leftovers()}
    assert control_plane.api.is_ready()


def test_a_process_that_only_has_the_pid_of_a_record_is_left_alone(tmp_path):
    innocent = Process("sleep", ["sleep", "300"], tmp_path)
    innocent.start()
    try:
        run = tmp_path / "run-1"
        (run / "processes").mkdir(parents=True)
        write_whole(run / "owner.json", json.dumps({"pid": os.getpid(), "start_time": start_time(os.getpid()) - 1}))
        write_whole(run / "processes/sleep.json", json.dumps(
            {"name": "sleep", "pid": innocent.pid, "start_time": start_time(innocent.pid) - 1}))
        assert end_leftovers(tmp_path) == []
        assert innocent.is_running() and not run.exists()
    finally:
        innocent.stop()


def test_a_component_that_ends_at_once_is_said_with_its_log(tmp_path):
    broken = Process("etcd", ["sh", "-c", "echo the reason; exit 3"], tmp_path)
    broken.start()
    with pytest.raises(RuntimeError, match=r"etcd ended with 3 before an answer\n(.|\n)*the reason"):
        broken.wait_until(lambda: False, "an answer")


def test_a_run_folder_is_closed_to_other_users():
    folder = make_run_folder()
    assert folder.stat().st_mode & 0o077 == 0
    (folder / "owner.json").unlink()
    folder.rmdir()


def test_a_reserved_port_is_ours_while_its_server_is_away():
    ports = ReservedPorts()
    port = ports.take()
    for _ in range(2):  # a server comes, goes, and comes again
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("127.0.0.1", port))
    ports.close()


def test_a_signal_ends_a_process_and_its_exit_code_says_so(tmp_path):
    process = Process("sleep", ["sleep", "300"], tmp_path)
    process.start()
    assert process.stop(signal.SIGTERM) == -signal.SIGTERM
    started = time.monotonic()
    assert process.stop() == -signal.SIGTERM  # a second stop says the same, at once
    assert time.monotonic() - started < 5
