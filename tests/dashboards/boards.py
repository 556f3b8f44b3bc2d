"""The committed boards as Grafana reads them: panels, queries, variables; and the selectors inside PromQL."""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
NAMES = ("training-run", "fleet", "operator")

# Nobody has these without a device whose memory or peak is known, or without fp16: no CPU run can show them.
CUDA_ONLY_METRICS = {
    "lockstep_mfu_ratio": "the peak of a CPU is not known",
    "lockstep_device_memory_bytes": "memory of a GPU",
    "lockstep_loss_scale": "fp16 needs a GPU",
}
CUDA_ONLY_PANELS = {"MFU", "Device memory, by rank", "Peak of the device memory"}
# Panels of the figures that a protein model has.
PROTEIN_PANELS = {"Perplexity", "Recovery"}

KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool"}
FUNCTIONS = {"abs", "absent", "avg", "changes", "clamp_min", "count", "histogram_quantile", "increase", "max",
             "max_over_time", "min_over_time", "rate", "round", "sum", "time", "topk", "vector"}
SELECTOR = re.compile(r"(?:(?P<function>[a-z_]+)\()?(?P<name>[a-zA-Z_:][\w:]*)\{(?P<matchers>[^{}]*)\}"
                      r"(?:\[(?P<range>[^\]]*)\])?")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def load(name):
    return json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))


def panels(board):
    """Those that show something: no rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(board):
    """(panel, target) of all panels."""
    return [(panel, target) for panel in panels(board) for target in panel["targets"]]


def annotations(board):
    """Expressions whose values are marked in all graphs."""
    return [annotation["expr"] for annotation in board["annotations"]["list"]]


def variables(board):
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def selectors(expression):
    """Dictionaries of function (the one whose only argument it is), name, matchers, range."""
    return [found.groupdict() for found in SELECTOR.finditer(expression)]


def metric_names(expression):
    """All series names of an expression, bare ones included."""
    text = re.sub(r'"[^"]*"', '""', expression)
    found = {one["name"] for one in selectors(expression)}
    text = SELECTOR.sub(lambda one: f"{one['function'] or ''} ", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(r"\[[^\]]*\]|\boffset\s+\S+|\b[0-9][\w.]*", " ", text)
    return found | (set(re.findall(r"[a-zA-Z_:][\w:]*", text)) - KEYWORDS - FUNCTIONS)


def substitute(text, values):
    """Grafana's: $name and ${name}. An unknown one is a fault."""
    return VARIABLE.sub(lambda found: values[found.group(1) or found.group(2)], text)


def declared_metrics():
    """name → type, of runner/contract/metric_names.h."""
    header = (ROOT / "runner/contract/metric_names.h").read_text(encoding="utf-8")
    found = re.findall(r'inline constexpr MetricName k\w+\{\s*"(\w+)",\s*MetricType::k(\w+)', header)
    assert len(found) > 40
    return dict(found)


def declared_series():
    """Names of series that the declared metrics have."""
    ends = {"Histogram": ("_bucket", "_sum", "_count")}
    return {name + end for name, kind in declared_metrics().items() for end in ends.get(kind, ("",))}
