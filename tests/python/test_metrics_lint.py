"""The metrics' text passes promtool, holds what metric_names.h declares, and docs/metrics.md lists exactly that."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERIES = re.compile(r"^(?P<name>[a-z_]+?)(?:_bucket|_sum|_count)?\{(?P<labels>[^}]*)\} ")


DECLARATION = re.compile(r"""^// (\w+)|MetricName k\w+\{\s*"(\w+)",\s*MetricType::k(\w+),\s*"([\w,]*)",\s*("[^}]*")\};""",
                         re.MULTILINE)


@pytest.fixture(scope="module")
def names():
    """The declared metrics by who emits them; a comment begins with Package, Agent or Operator where theirs begin."""
    names = {"worker": [], "package": [], "agent": [], "operator": []}
    emitter = "worker"
    for section, name, kind, labels, text in DECLARATION.findall((ROOT / "runner/contract/metric_names.h").read_text()):
        if section:
            emitter = section.lower() if section.lower() in names else "worker"
        else:
            words = "".join(re.findall('"([^"]*)"', text))
            names[emitter].append({"name": name, "type": kind.lower(), "labels": labels, "help": words})
    return names


@pytest.fixture(scope="module")
def text(tool):
    return subprocess.check_output([tool("metrics_text")], text=True)


def test_promtool_has_nothing_to_say(text):
    assert shutil.which("promtool"), "promtool is not on PATH: run scripts/setup test"
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_worker_emits_what_is_declared(names, text):
    emitted = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert emitted == {metric["name"]: metric["type"] for metric in names["worker"]}


def test_labels_are_those_declared_and_the_rank(names, text):
    declared = {metric["name"]: {"rank", *filter(None, metric["labels"].split(","))} for metric in names["worker"]}
    seen = set()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        series = SERIES.match(line)
        assert series, line
        labels = set(re.findall(r'(\w+)="', series["labels"])) - {"le"}
        assert labels == declared[series["name"]], line
        seen.add(series["name"])
    assert seen == set(declared)


def test_names_are_spelled_nowhere_else(names):
    for source in sorted(path for top in ("runner", "operator") for path in (ROOT / top).rglob("*.[ch]*")):
        if source.name == "metric_names.h":
            continue
        # The operator has process_* of its own, which are everybody's names.
        ours = "lockstep" if (ROOT / "operator") in source.parents else "(?:lockstep|process)"
        strings = re.findall(rf'"({ours}_[a-z_]+)"', source.read_text())
        for metric in sum(names.values(), []):
            assert metric["name"] not in strings, f"{source} spells {metric['name']}"


def test_the_documentation_lists_exactly_these(names):
    document = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", document, re.MULTILINE)
    documented = [(name, kind, ",".join(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]
    declared = [(m["name"], m["type"], m["labels"], m["help"]) 
                for m in sum(names.values(), [])]
    assert documented == declared
