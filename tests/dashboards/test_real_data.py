"""Every query of every panel and every rule, on a real Prometheus that scraped a real run in which workers were killed
and the disk was full for a while, and a real operator with a TrainJob that failed and one that recovered.
"""
import http.client
import json
import pathlib
import re
import time
import types
import urllib.request
import xml.etree.ElementTree as ET

import pytest

from boards import (CUDA_ONLY_METRICS, CUDA_ONLY_PANELS, NAMES, PROTEIN_PANELS, ROOT, annotations, load, metric_names, queries,
                    selectors, substitute)
from control_plane import ControlPlane
from draw import Board
from fake_kubelet import Exit, FakeKubelet
from jobs import Job, read_metrics
from namespace import fresh_namespace
from operator_process import OperatorProcess, operator_binary
from programs import bin_folder, program, write_interactions
from prometheus_server import Prometheus
from test_rules import promtool
from train_jobs import Jobs, run_report
from waiting import wait_until

STEPS = 1_000_000  # the run is still there when the last test has asked
RUN_LABELS = {"namespace": "team-a", "trainjob": "sasrec"}


def start_operator(plane):
    if not operator_binary().exists():
        pytest.fail(f"{operator_binary()} is not built: build it, or set LOCKSTEP_BIN")
    return OperatorProcess(plane, leader_elect=True).start()


def start_run(folder):
    dataset = write_interactions(folder / "small.txt")
    return Job(program(bin_folder() / "lockstep"), dataset, folder / "run", folder, "--eval_every", 20,
               "--checkpoint_every", 25, "--max_restarts", 1, steps=STEPS, faulty=True)


def failed_checkpoints(run):
    try:
        text = read_metrics(run.port)
    except (OSError, http.client.HTTPException):
        return False
    counted = re.search(r"^lockstep_checkpoint_failures_total\{.*\} (\d+)$", text, re.M)
    return counted is not None and int(counted[1]) > 0


def hurt_run(run):
    """A worker of each node is killed, and the disk is full for some checkpoints: no new one clears the count of
    restarts, and node 1's agent gives up when its worker is killed again."""
    run.wait_for_progress(30)
    run.kill_rank(1)
    run.wait_for_recovery(1)
    run.inject(0, "disk_full")
    run.wait_for(lambda: failed_checkpoints(run), "a checkpoint that was not written")
    for number in (2, 3):
        run.kill_rank(3)
        run.wait_for_recovery(number)
    run.wait_for_status(lambda status: status["ladder"]["rung"] == "pod", "the decision about node 1")
    run.mend_disk()


def hurt_train_jobs(api, kubelet):
    """`lucky` loses a pod and trains again; `broken` has an error that no new pod would mend; `waiting` finds no node."""
    jobs = Jobs(api)
    jobs.create("lucky", nodes=2)
    jobs.create("broken", nodes=1)
    jobs.create("waiting", nodes=1, trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1000}}})
    jobs.wait_for_condition("PodsReady", name="lucky")
    agent = kubelet.serve_status(api.namespace, "lucky-0-0", run_report(step=5))
    jobs.wait_for_condition("Running", name="lucky")
    kubelet.exit(api.namespace, "lucky-1-0", Exit(137))
    jobs.wait_for_pods("lucky-0-0", "lucky-1-1", job="lucky")
    agent.document = run_report(step=9, generation=2)
    jobs.wait_for_condition("Recovering", "False", name="lucky")
    kubelet.exit(api.namespace, "broken-0-0", Exit(2))
    jobs.wait_for_condition("Failed", name="broken")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """prometheus, and the two addresses that it scrapes; all alive."""
    folder = tmp_path_factory.mktemp("recorded")
    with ControlPlane() as plane, FakeKubelet(plane.api) as kubelet:
        plane.apply_base()
        operator = start_operator(plane)
        run = start_run(folder)
        addresses = {"lockstep-runs": f"127.0.0.1:{run.port}", "lockstep-operator": f"127.0.0.1:{operator.port}"}
        prometheus = Prometheus(plane.folder, plane.ports, [
            ("lockstep-runs", addresses["lockstep-runs"], RUN_LABELS),
            ("lockstep-operator", addresses["lockstep-operator"], {"namespace": "lockstep-system"})])
        try:
            prometheus.start()
            # What breaks before the first scrape is not seen to break.
            prometheus.wait_for_numbers("lockstep_trainjobs")
            with fresh_namespace(plane, "dashboards") as api:
                hurt_train_jobs(api, kubelet)
                hurt_run(run)
                wait_until(lambda: not prometheus.targets_down(), "scrape of all targets", 30,
                           lambda: str(prometheus.targets_down()))
                yield types.SimpleNamespace(prometheus=prometheus, addresses=addresses, api=api)
        finally:
            run.process.terminate()
            run.end()
            prometheus.stop()
            operator.kill()


def all_queries():
    return [pytest.param(name, panel, target, id=f"{name}: {panel['title']} {target['refId']}")
            for name in NAMES for panel, target in queries(load(name))]


@pytest.mark.parametrize("name, panel, target", all_queries())
def test_every_query_of_every_panel_has_data(recorded, name, panel, target):
    board = load(name)
    expression = substitute(target["expr"], recorded.prometheus.grafana_values(board))
    if panel["title"] in CUDA_ONLY_PANELS:
        assert not recorded.prometheus.has_numbers(expression, True), f"{panel['title']} has data on a CPU: unlist it"
        missing = metric_names(target["expr"]) & CUDA_ONLY_METRICS.keys()
        pytest.skip("; ".join(CUDA_ONLY_METRICS[metric] for metric in sorted(missing)))
    if panel["title"] in PROTEIN_PANELS:
        assert not recorded.prometheus.has_numbers(expression, True), f"{panel['title']} has data of SASRec"
        pytest.skip("the run that is recorded trains SASRec; tests/python/test_protein.py compares these queries with a run of protein")
    recorded.prometheus.wait_for_numbers(expression, is_range=target.get("range", False))


def test_the_breaks_are_marked_in_the_graphs(recorded):
    board = load("training-run")
    (expression,) = annotations(board)
    recorded.prometheus.wait_for_numbers(substitute(expression, recorded.prometheus.grafana_values(board)))


def test_what_broke_is_in_the_panels(recorded):
    """Not zeros: what was done to the run and to the TrainJobs."""
    expected = {
        ("training-run", "Recoveries"): {"SignalKILL": 3},
        # Node 1's agent has no page: node 0 counts for it.
        ("training-run", "Workers started again"): {"process: SignalKILL": 2, "process gave up: SignalKILL": 1,
                                                    "pod: SignalKILL": 1},
        ("fleet", "TrainJobs that ended, by reason"): {"InvalidUsage": 1, "complete": 0},  # none was completed
        ("fleet", "Pods and gangs started again, by reason"): {"SignalKILL": 1},
        ("fleet", "Recoveries, by cause"): {"SignalKILL": 3},
    }
    for (name, title), values in expected.items():
        board = load(name)
        values_of_board = recorded.prometheus.grafana_values(board)
        asked = [(re.sub(r"\{\{(\w+)\}\}", r"{\1}", target["legendFormat"]), substitute(target["expr"], values_of_board))
                 for panel, target in queries(board) if panel["title"] == title]

        def shown():
            found = {legend.format(**labels): value for legend, expression in asked
                     for labels, value in recorded.prometheus.instant(expression)}
            assert found == values, (title, found)
            return True
        wait_until(shown, title, 30)


def test_shares_of_a_whole_add_up(recorded):
    prometheus = recorded.prometheus
    board = load("training-run")
    for title in ("Where the ranks' time goes", "Where the job's time goes"):
        (target,) = [target for panel, target in queries(board) if panel["title"] == title]
        expression = substitute(target["expr"], prometheus.grafana_values(board))
        wait_until(lambda: sum(value for _, value in prometheus.instant(expression)) == pytest.approx(1), title, 30)


@pytest.mark.parametrize("name", NAMES)
def test_the_board_is_drawn(recorded, name, tmp_path, request):
    """By our own renderer, whose pictures the documents show (--draw docs/images)."""
    prometheus = recorded.prometheus
    board = load(name)
    picture = Board(name, prometheus, prometheus.started_at, time.time()).draw()
    drawn = ET.fromstring(picture)
    words = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert all(any(panel["title"].startswith(word.rstrip("…")) for word in words if word) for panel in board["panels"])
    graphs = sum(panel["type"] == "timeseries" for panel in board["panels"])
    lines = sum(1 for _ in drawn.iter("{http://www.w3.org/2000/svg}polyline"))
    assert lines >= graphs - words.count("No data") > 0
    folder = pathlib.Path(request.config.getoption("--draw") or tmp_path)
    (folder / f"board_{name.replace('-', '_')}.svg").write_text(picture, encoding="utf-8")


def rules_of(prometheus):
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


def test_every_rule_is_evaluated_without_an_error(recorded):
    def are_well():
        return all(rule["health"] == "ok" for rule in rules_of(recorded.prometheus))
    wait_until(are_well, "healthy rules", 30, lambda: str([(rule["name"], rule["health"], rule.get("lastError"))
                                                           for rule in rules_of(recorded.prometheus)]))


def test_every_recording_rule_records(recorded):
    names = [rule["name"] for rule in rules_of(recorded.prometheus) if rule["type"] == "recording"]
    assert len(names) > 5
    for name in names:
        recorded.prometheus.wait_for_numbers(name)


def test_every_alert_looks_at_series_that_exist(recorded):
    """A quiet alert returns nothing: so each of its selectors is asked alone."""
    alerts = [rule for rule in rules_of(recorded.prometheus) if rule["type"] == "alerting"]
    assert len(alerts) > 10
    for rule in alerts:
        matchers = {one["name"]: one["matchers"] for one in selectors(rule["query"])}
        for name in metric_names(rule["query"]) - CUDA_ONLY_METRICS.keys():
            recorded.prometheus.wait_for_numbers(f"{name}{{{matchers.get(name, '')}}}")


def test_the_alerts_that_are_due_fire_and_no_others(recorded):
    due = {("CheckpointFailing", "sasrec"), ("TrainJobFailed", "broken")}

    def firing():
        return {(alert["labels"]["alertname"], alert["labels"].get("trainjob"))
                for alert in recorded.prometheus.get("alerts")["alerts"] if alert["state"] == "firing"}
    wait_until(lambda: firing() == due, f"{due} alone", 60, lambda: str(firing()))


def test_all_series_that_are_asked_for_are_scraped(recorded):
    names = {name for board in NAMES for _, target in queries(load(board)) for name in metric_names(target["expr"])}
    names |= {name for rule in rules_of(recorded.prometheus) for name in metric_names(rule["query"])}

    def missing():
        return names - set(recorded.prometheus.get("label/__name__/values")) - CUDA_ONLY_METRICS.keys()
    wait_until(lambda: not missing(), "all series", 60, lambda: str(missing()))


def test_pods_have_what_the_scrape_configurations_ask_for(recorded):
    """docs/metrics.md, Scraping: the label that becomes trainjob, and the name of the port."""
    pod = recorded.api.get("pods", "lucky-0-0")
    assert pod["metadata"]["labels"]["lockstep.dev/job"] == "lucky"
    ports = [port for one in pod["spec"]["containers"] for port in one.get("ports", [])]
    assert [port["containerPort"] for port in ports if port["name"] == "status"] == [8080]
    documented = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert "__meta_kubernetes_pod_label_lockstep_dev_job" in documented and "true;status" in documented
    shown = recorded.api.control_plane.kubectl("create", "--dry-run=client", "-o", "json", "-f",
                                               ROOT / "manifests/base/deployment.yaml")
    template = json.loads(shown.stdout)["spec"]["template"]
    labels = template["metadata"]["labels"]
    (port,) = template["spec"]["containers"][0]["ports"]
    asked = f"{labels['app.kubernetes.io/name']};{labels['app.kubernetes.io/component']};{port['name']}"
    assert f"regex: {asked}\n" in documented


@pytest.mark.parametrize("job", ["lockstep-runs", "lockstep-operator"])
def test_promtool_check_metrics(recorded, job, tmp_path):
    with urllib.request.urlopen(f"http://{recorded.addresses[job]}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    done = promtool("check", "metrics", stdin=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
