"""The boards are what their source makes, are laid out well, and keep the rules of Grafana's dashboard-linter, named as
there; beyond it: every panel says what it shows, has a threshold and a place, every board leads to the others.
"""
import itertools
import os
import re
import subprocess
import sys

import pytest

from boards import (CUDA_ONLY_METRICS, CUDA_ONLY_PANELS, DASHBOARDS, FUNCTIONS, NAMES, annotations, declared_series,
                    load, metric_names, panels, queries, selectors, variables)
from control_plane import kube_bin

# Of Grafana's units, those that the boards use (packages/grafana-data/src/valueFormats/categories.ts).
UNITS = {"none", "percentunit", "locale", "sci", "s", "dtdurations", "bytes", "flops", "cps", "ops", "reqps"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
MAX_BYTES = 120_000  # a ConfigMap holds 1 MiB


@pytest.fixture(params=NAMES)
def board(request):
    return load(request.param)


def test_the_files_are_what_the_source_makes():
    done = subprocess.run([sys.executable, "-B", DASHBOARDS / "source/generate.py", "--check"], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr


def test_a_change_by_hand_is_found(tmp_path):
    for file in ("source", *(f"{name}.json" for name in NAMES)):
        subprocess.run(["cp", "-r", DASHBOARDS / file, tmp_path], check=True)
    changed = tmp_path / "fleet.json"
    changed.write_text(changed.read_text().replace("Recovering", "Mending"))
    done = subprocess.run([sys.executable, "-B", tmp_path / "source/generate.py", "--check"], capture_output=True,
                          text=True)
    assert done.returncode == 1 and "fleet.json" in done.stderr


def test_all_boards_are_here_and_in_the_component():
    assert sorted(path.stem for path in DASHBOARDS.glob("*.json")) == sorted(NAMES)
    component = (DASHBOARDS / "kustomization.yaml").read_text()
    assert sorted(re.findall(r"files: \[(.*)\.json\]", component)) == sorted(NAMES)
    assert all((DASHBOARDS / f"{name}.json").stat().st_size < MAX_BYTES for name in NAMES)


def test_the_component_makes_config_maps_that_grafanas_sidecar_finds(tmp_path):
    (tmp_path / "kustomization.yaml").write_text(f"components: [{os.path.relpath(DASHBOARDS, tmp_path)}]\n")
    made = subprocess.run([kube_bin() / "kubectl", "kustomize", tmp_path], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    for name in NAMES:
        assert f"  name: lockstep-dashboard-{name}\n" in made.stdout
        assert f'  {name}.json: |\n    {{\n' in made.stdout
    assert made.stdout.count('    grafana_dashboard: "1"\n') == len(NAMES)


# --- dashboard-linter's rules

def test_template_datasource(board):
    one = variables(board)["datasource"]
    assert (one["type"], one["query"], one["label"]) == ("datasource", "prometheus", "Data source")


@pytest.mark.parametrize("name", ["job", "instance"])
def test_template_job_and_template_instance(board, name):
    one = variables(board)[name]
    assert (one["type"], one["datasource"], one["label"]) == ("query", DATASOURCE, name.title())
    assert one["multi"] and one["allValue"] == ".+"


def test_template_label_promql_and_template_on_time_change_reload(board):
    for one in variables(board).values():
        if one["type"] == "query":
            assert re.fullmatch(r"label_values\(.+, \w+\)", one["query"]), one["query"]
            assert one["refresh"] == 2


def test_panel_datasource_and_panel_no_targets(board):
    for panel in panels(board):
        assert panel["datasource"] == DATASOURCE and panel["targets"], panel["title"]
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])


def test_panel_title_description(board):
    for panel in panels(board):
        assert panel["title"] and len(panel["description"]) > 10, panel["title"]
        assert panel["description"].endswith("."), panel["title"]


def test_panel_units(board):
    for panel in panels(board):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        for override in panel["fieldConfig"]["overrides"]:
            assert all(one["value"] in UNITS for one in override["properties"] if one["id"] == "unit"), panel["title"]


def test_target_job_and_target_instance(board):
    for panel, target in queries(board):
        found = selectors(target["expr"])
        assert {one["name"] for one in found} == metric_names(target["expr"]), f"{panel['title']}: a bare selector"
        for one in found:
            assert 'job=~"$job"' in one["matchers"] and 'instance=~"$instance"' in one["matchers"], target["expr"]


def test_target_rate_interval(board):
    for _, target in queries(board):
        for one in selectors(target["expr"]):
            if one["function"] in ("rate", "irate"):
                assert one["range"] == "$__rate_interval", target["expr"]
            elif one["function"] in ("increase", "min_over_time"):
                assert one["range"] == "1h", target["expr"]
            elif one["range"]:
                assert one["range"] == "$__range", target["expr"]


def test_target_counter_agg(board):
    """A counter is rated, or counted as panels.within_an_hour does it; means and quantiles over all that the board shows
    are of max_over_time (panels.counted)."""
    for _, target in queries(board):
        for one in selectors(re.sub(r"unless \w+\{[^}]*\} offset 1h", "", target["expr"])):
            if one["name"].endswith(("_total", "_bucket", "_sum", "_count")):
                assert one["function"] in ("rate", "increase", "min_over_time", "max_over_time"), target["expr"]
                assert one["range"], target["expr"]


def test_series_per_rank_are_the_largest_ones(board):
    """A run may have thousands of ranks."""
    for panel, target in queries(board):
        if "rank" in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert target["expr"].startswith("topk("), panel["title"]


def test_uneditable(board):
    assert board["editable"] is False


# --- ours

def test_every_panel_has_thresholds_in_order(board):
    for panel in panels(board):
        thresholds = panel["fieldConfig"]["defaults"]["thresholds"]
        assert thresholds["mode"] == "absolute" and thresholds["steps"][0]["value"] is None, panel["title"]
        levels = [step["value"] for step in thresholds["steps"][1:]]
        assert levels == sorted(set(levels)), panel["title"]


def test_panels_do_not_overlap_and_fill_their_lines(board):
    places = {}
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] and at["x"] + at["w"] <= 24 and at["h"] >= 1, panel["title"]
        if panel["type"] != "row":
            assert at["w"] >= 3 and at["h"] >= 4, f"{panel['title']} is too small to read"
        for x, y in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])):
            assert (x, y) not in places, f"{panel['title']} lies on {places[(x, y)]}"
            places[(x, y)] = panel["title"]
    height = max(y for _, y in places) + 1
    assert len(places) == 24 * height, "there is a hole between the panels"


def test_ids_and_titles_tell_panels_apart(board):
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    shown = [(panel["title"], panel["type"]) for panel in board["panels"]]
    assert len(set(shown)) == len(shown)


def test_boards_link_to_each_other(board):
    uids = {load(name)["uid"] for name in NAMES}
    assert len(uids) == len(NAMES)
    assert {f"/d/{uid}" for uid in uids} - {link["url"] for link in board["links"]} == {f"/d/{board['uid']}"}


def test_series_names_are_declared(board):
    foreign = ("controller_runtime_", "workqueue_", "rest_client_", "leader_election_", "process_")
    for panel, target in queries(board):
        names = metric_names(target["expr"])
        assert names and not names & FUNCTIONS
        unknown = {name for name in names if not name.startswith(foreign)} - declared_series()
        assert not unknown, f"{panel['title']}: {unknown} are not in metric_names.h"


def test_only_panels_of_gpus_may_be_without_data_on_a_cpu():
    asks_for_gpus = {panel["title"] for name in NAMES for panel, target in queries(load(name))
                     if metric_names(target["expr"]) & CUDA_ONLY_METRICS.keys()}
    assert asks_for_gpus == CUDA_ONLY_PANELS


def test_annotations_select_as_panels_do(board):
    for expression in annotations(board):
        for one in selectors(expression):
            assert 'job=~"$job"' in one["matchers"] and 'instance=~"$instance"' in one["matchers"], expression
            assert one["range"] == "$__rate_interval" and one["name"] in declared_series(), expression


def test_panels_lead_to_the_runbooks_of_the_alerts_that_they_name(board):
    text = (DASHBOARDS / "rules/alerts.yaml").read_text()
    runbooks = dict(re.findall(r"- alert: (\w+)\n.*?runbook_url: (\S+)", text, re.DOTALL))
    for panel in panels(board):
        named = re.findall(r"[Tt]he alert (\w+)", panel["description"])
        assert [link["url"] for link in panel["links"]] == [runbooks[alert] for alert in named], panel["title"]


def test_every_alert_is_named_by_a_panel():
    alerts = re.findall(r"- alert: (\w+)", (DASHBOARDS / "rules/alerts.yaml").read_text())
    text = " ".join(panel["description"] for name in NAMES for panel in panels(load(name)))
    assert set(alerts) - set(re.findall(r"[Tt]he alert (\w+)", text)) == set()
