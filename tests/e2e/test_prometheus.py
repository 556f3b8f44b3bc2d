"""Debian's Prometheus scrapes the operator and the pods of a run, as it would in a cluster."""
import json
import urllib.parse
import urllib.request

import pytest

from images import cache
from ports import ReservedPorts
from processes import Process, write_whole
from real_jobs import ENDLESS
from waiting import wait_until

# Debian's Prometheus is built without Kubernetes discovery: the test names the pods, as that would.
CONFIG = """
global: {scrape_interval: 1s}
scrape_configs:
- job_name: pods
  file_sd_configs:
  - files: [targets.json]
    refresh_interval: 1s
"""


def write_targets(cluster, path):
    """Every running pod with a container port 8080."""
    pods = [pod for pod in cluster.api.list("pods") if pod["status"].get("phase") == "Running" and
            any(port.get("containerPort") == 8080 for one in pod["spec"]["containers"] for port in one.get("ports", []))]
    write_whole(path, json.dumps([{
        "targets": [f"{pod['status']['podIP']}:8080"],
        "labels": {"namespace": pod["metadata"]["namespace"], "pod": pod["metadata"]["name"],
                   "trainjob": pod["metadata"].get("labels", {}).get("lockstep.dev/job", "")}} for pod in pods]))


@pytest.fixture
def prometheus(cluster):
    program = cache() / "tools/bin/prometheus"
    if not program.exists():
        pytest.fail(f"{program} is missing: run scripts/setup test")
    folder = cluster.folder / "prometheus"
    folder.mkdir()
    write_whole(folder / "prometheus.yml", CONFIG)
    ports = ReservedPorts()
    port = ports.take()
    write_targets(cluster, folder / "targets.json")
    process = Process("prometheus", [program, "--config.file", folder / "prometheus.yml", "--storage.tsdb.path",
                                     folder / "data", f"--web.listen-address=127.0.0.1:{port}"], cluster.folder)
    process.start()

    def query(text):
        """[(labels, value)]"""
        write_targets(cluster, folder / "targets.json")
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(url, timeout=5) as answer:
            return [(one["metric"], float(one["value"][1])) for one in json.load(answer)["data"]["result"]]

    def why():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=5) as answer:
            targets = json.load(answer)["data"]
        return json.dumps([(one["scrapeUrl"], one["lastError"]) for one in targets["activeTargets"]] +
                          targets["droppedTargets"][:2]) + process.log_tail(15)
    query.why = why
    try:
        yield query
    finally:
        process.stop()
        ports.close()


def test_the_figures_of_a_run_with_a_failure_are_there(api, jobs, prometheus):
    jobs.start(steps=ENDLESS)
    jobs.wait_for_step(100)
    here = f'namespace="{api.namespace}"'

    def first(text, above=0):
        def value():
            try:
                found = prometheus(text)
            except OSError:
                return None
            return found[0][1] if found and found[0][1] > above else None
        return wait_until(value, text, 60, prometheus.why)
    # The operator's own have no namespace: other tests' jobs are in them.
    counted = [f"sum({one}) or vector(0)" for one in ('lockstep_trainjob_restarts_total{reason="PodDeleted"}',
                                                      "lockstep_trainjob_recovery_seconds_count")]
    first("sum(controller_runtime_reconcile_total)")
    before = [prometheus(one)[0][1] for one in counted]
    jobs.delete_pod(1)
    jobs.wait_for_condition("Recovering", "True")
    jobs.wait_for_condition("Recovering", "False")
    assert first(f'lockstep_step{{{here}, trainjob="job"}}') > 0
    assert first(f"rate(lockstep_steps_total{{{here}}}[10s])") > 0
    assert first(f"sum(lockstep_recoveries_total{{{here}}})") >= 1
    assert first(f"lockstep_world_size{{{here}}}") == 2
    assert first(f'lockstep_goodput_ratio{{{here}}}') <= 1
    assert first('lockstep_trainjobs{phase="Running"}') >= 1
    for one, known in zip(counted, before):
        assert first(one, known) == known + 1
