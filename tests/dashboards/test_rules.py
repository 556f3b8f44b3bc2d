"""The rule files: promtool has nothing to say, every alert is tried both ways, and docs/alerts.md and the alerts keep
to each other."""
import os
import re
import shutil
import subprocess

import pytest

from boards import DASHBOARDS, NAMES, ROOT, declared_series, load, queries

RULES = DASHBOARDS / "rules"
FILES = [RULES / "recording.yaml", RULES / "alerts.yaml"]
TESTS = sorted((RULES / "tests").glob("*.yaml"))
RUNBOOKS = ROOT / "docs/alerts.md"
RUNBOOK_URL = "https://lockstep.dev/docs/alerts.md#"


def promtool(*words, stdin=None):
    cache = os.environ.get("LOCKSTEP_CACHE", os.path.expanduser("~/.cache/lockstep"))
    program = shutil.which("promtool", path=f"{cache}/tools/bin{os.pathsep}{os.environ.get('PATH', '')}")
    assert program, "promtool is missing: run scripts/setup test"
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, input=stdin)


@pytest.fixture(scope="module")
def alerts():
    """name → the text of the rule."""
    parts = re.split(r"^      - alert: (\w+)\n", FILES[1].read_text(), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2]))
    assert len(found) == len(parts) // 2 and len(found) > 10
    return found


@pytest.fixture(scope="module")
def sections():
    """heading → text, of the runbooks."""
    parts = re.split(r"^### (\w+)\n", RUNBOOKS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_promtool_check_rules(file):
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", file)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_promtool_test_rules(file):
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_a_rule_that_is_wrong(tmp_path):
    shutil.copytree(RULES, tmp_path / "rules")
    changed = tmp_path / "rules/alerts.yaml"
    text = changed.read_text()
    changed.write_text(text.replace("ratio_rate10m > 0.2", "ratio_rate10m > 0.6"))
    assert text != changed.read_text()
    done = promtool("test", "rules", tmp_path / "rules/tests/training.yaml")
    assert done.returncode != 0 and "DataStarved" in done.stdout + done.stderr


def test_the_boards_queries_are_promql(tmp_path):
    """promtool reads rules, so each query becomes one."""
    values = {"$__rate_interval": "5m", "$__range": "1h"}
    lines = ["groups:", "- name: boards", "  rules:"]
    for number, (_, target) in enumerate(one for name in NAMES for one in queries(load(name))):
        text = target["expr"]
        for variable, value in values.items():
            text = text.replace(variable, value)
        lines += [f"  - record: query_{number}", "    expr: '" + text.replace("'", "''") + "'"]
    file = tmp_path / "queries.yaml"
    file.write_text("\n".join(lines))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stderr


def test_every_alert_fires_in_a_test_and_is_quiet_in_another(alerts):
    text = "".join(file.read_text() for file in TESTS)
    checks = re.findall(r"alertname: (\w+)\n +exp_alerts:( \[\])?", text)
    assert len(checks) == text.count("alertname:")
    assert {name for name, quiet in checks if not quiet} == set(alerts)
    assert {name for name, quiet in checks if quiet} == set(alerts)


def test_every_alert_says_what_who_and_where_to_read_on(alerts):
    for name, rule in alerts.items():
        assert re.search(r"labels: \{severity: (critical|warning)\}", rule), name
        assert re.search(r"^          summary: \S", rule, re.MULTILINE), name
        assert re.search(r"^          description: >-\n", rule, re.MULTILINE), name
        # An alert about a run names it; one about the operator, where it runs. OperatorDown has nobody to name.
        if "lockstep_trainjob_" in rule:
            assert re.search(r"\{\{ [$.]labels\.trainjob_namespace \}\}/\{\{ [$.]labels\.trainjob \}\}", rule, re.I), name
        elif "trainjob)" in rule or "trainjob:" in rule:
            assert "{{ $labels.namespace }}/{{ $labels.trainjob }}" in rule, name
        elif name != "OperatorDown":
            assert "{{ $labels.namespace }}" in rule, name


def test_every_alert_has_a_runbook_and_every_runbook_an_alert(alerts, sections):
    assert list(sections) == list(alerts), "docs/alerts.md: one section per alert, in the order of alerts.yaml"
    for name, rule in alerts.items():
        assert f"runbook_url: {RUNBOOK_URL}{name.lower()}\n" in rule, name


def test_every_runbook_says_what_it_means_how_to_look_and_what_to_do(alerts, sections):
    for name, text in sections.items():
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            assert text.count(part) == 1, f"{name}: {part}"
        severity = re.search(r"severity: (\w+)", alerts[name]).group(1)
        assert text.strip().startswith(severity.capitalize()), f"{name} is {severity}"


@pytest.mark.parametrize("document", ["docs/alerts.md", "docs/metrics.md"])
def test_documents_name_series_that_exist(document):
    recorded = set(re.findall(r"record: (\S+)", FILES[0].read_text()))
    named = set(re.findall(r"\b(?:(?:instance|trainjob):)?lockstep_[a-z_]+[a-z](?::\w+)?",
                           (ROOT / document).read_text(encoding="utf-8")))
    declared = declared_series() | {re.sub(r"_(bucket|sum|count)$", "", name) for name in declared_series()}
    assert named - declared - recorded == set()


def test_rules_name_series_that_exist():
    for file in FILES:
        text = re.sub(r"https?://\S+", "", file.read_text())
        named = set(re.findall(r"(?<![:\w])lockstep_\w+", text))
        assert named - declared_series() == set(), file
        assert set(re.findall(r"(?:instance|trainjob):\w+:\w+", text)) <= \
            set(re.findall(r"record: (\S+)", FILES[0].read_text()))


def test_the_documented_scrape_config_of_a_local_run_is_one(tmp_path):
    """The ones for Kubernetes need a Prometheus with its discovery, which Debian's lacks."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.DOTALL)
    (local,) = [block for block in blocks if "static_configs" in block]
    (tmp_path / "prometheus.yml").write_text(local)
    done = promtool("check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stderr
