"""The project's own picture of a board, for documents and for eyes: what Grafana would ask a Prometheus, drawn as one SVG.
It is not Grafana: places, titles, thresholds, units and legends are the board's, the rest is plain."""
import datetime
import html
import re

from boards import load, substitute

COLUMN, LINE, GAP = 60, 34, 6  # pixels of Grafana's grid
PALETTE = ("#2f74c0", "#d9730d", "#3a8f3a", "#b5338a", "#7a5cc7", "#008c95", "#a0522d", "#6b7280")
COLOURS = {"green": "#2e8b57", "orange": "#d9730d", "red": "#c0392b", "blue": "#2f74c0"}
LEGEND_MAX = 4
POINTS = 240


def shown(value, unit, decimals=None):
    """A value as people read it; units are Grafana's names."""
    if value != value:
        return "NaN"
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    if unit == "dtdurations":
        return str(datetime.timedelta(seconds=round(value)))
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
    if unit == "sci":
        return f"{value:.2e}"
    if unit in ("bytes", "flops"):
        step, names = (1024, ("B", "KiB", "MiB", "GiB", "TiB")) if unit == "bytes" else \
            (1000, ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"))
        place = 0
        while abs(value) >= step and place + 1 < len(names):
            value, place = value / step, place + 1
        return f"{value:.3g} {names[place]}"
    end = {"cps": " /s", "ops": " /s", "reqps": " /s"}.get(unit, "")
    if decimals is not None:
        return f"{value:,.{decimals}f}{end}"
    return (f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}") + end


def text(x, y, words, size=12, colour="#333", anchor="start", weight="normal"):
    return (f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{html.escape(str(words))}</text>')


def fitted(words, width, size=12):
    """Cut to what fits into so many pixels."""
    room = max(int(width / (0.56 * size)), 3)
    return words if len(words) <= room else words[:room - 1] + "…"


def colour_of(value, panel):
    found = "blue"
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            found = step["color"]
    return COLOURS[found]


def legend_of(target, labels):
    if target["legendFormat"] == "__auto":
        return ", ".join(f"{name}={value}" for name, value in labels.items() if name != "__name__")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"])


class Board:
    """draw() asks the Prometheus for what each panel shows between `start` and `end` (seconds)."""

    def __init__(self, name, prometheus, start, end):
        self.board = load(name)
        self.prometheus = prometheus
        self.start, self.end = start, end
        self.values = prometheus.grafana_values(self.board)

    def draw(self):
        height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in self.board["panels"]) * LINE + 56
        width = 24 * COLUMN + 2 * GAP
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                 f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif">',
                 f'<rect width="{width}" height="{height}" fill="#f4f5f7"/>',
                 text(2 * GAP, 28, self.board["title"], 18, weight="bold"),
                 text(width - 2 * GAP, 28, "drawn by tests/dashboards/draw.py, not by Grafana", 12, "#777", "end")]
        for panel in self.board["panels"]:
            at = panel["gridPos"]
            parts.append(f'<g transform="translate({at["x"] * COLUMN + GAP},{at["y"] * LINE + 44})">')
            parts += self.panel(panel, at["w"] * COLUMN - GAP, at["h"] * LINE - GAP)
            parts.append("</g>")
        return "\n".join([*parts, "</svg>\n"])

    def panel(self, panel, width, height):
        if panel["type"] == "row":
            return [text(4, height - 8, panel["title"], 14, weight="bold")]
        inside = {"stat": self.stat, "gauge": self.stat, "timeseries": self.graph, "table": self.table}[panel["type"]]
        return [f'<rect width="{width}" height="{height}" fill="#fff" stroke="#d8dbe0" rx="3"/>',
                text(8, 18, fitted(panel["title"], width - 16), weight="bold"), *inside(panel, width, height)]

    def instant(self, target):
        return self.prometheus.instant(substitute(target["expr"], self.values))

    def no_data(self, width, height):
        return [text(width / 2, height / 2 + 8, "No data", 14, "#999", "middle")]

    def stat(self, panel, width, height):
        found = self.instant(panel["targets"][0])
        if not found:
            return self.no_data(width, height)
        value = found[0][1]
        defaults = panel["fieldConfig"]["defaults"]
        words = shown(value, defaults["unit"], defaults.get("decimals"))
        size = min(30, (width - 16) / (0.6 * len(words)), height / 3)
        made = [text(width / 2, height / 2 + size / 2, words, f"{size:.0f}", colour_of(value, panel), "middle", "bold")]
        if panel["type"] == "gauge":
            share = min(max(value, 0), 1)
            made += [f'<rect x="10" y="{height - 20}" width="{width - 20}" height="8" fill="#e3e6ea"/>',
                     f'<rect x="10" y="{height - 20}" width="{share * (width - 20):.0f}" height="8" '
                     f'fill="{colour_of(value, panel)}"/>']
        return made

    def series(self, panel):
        """[(legend, {time: value})], without what is no number."""
        made = []
        step = max((self.end - self.start) / POINTS, 1)
        for target in panel["targets"]:
            answer = self.prometheus.get("query_range", query=substitute(target["expr"], self.values), start=self.start,
                                         end=self.end, step=step)
            for one in answer["result"]:
                points = {at: float(value) for at, value in one["values"]}
                points = {at: value for at, value in points.items() if abs(value) < float("inf")}
                if points:
                    made.append((legend_of(target, one["metric"]), points))
        return made

    def graph(self, panel, width, height):
        found = self.series(panel)
        if not found:
            return self.no_data(width, height)
        defaults = panel["fieldConfig"]["defaults"]
        stacked = defaults["custom"]["stacking"]["mode"] == "normal"
        curves, floor = [], {}
        for name, points in found:
            upper = {at: value + (floor.get(at, 0) if stacked else 0) for at, value in points.items()}
            curves.append((name, points, dict(floor), upper))
            if stacked:
                floor.update(upper)
        lows = [value for _, _, _, upper in curves for value in upper.values()]
        low = defaults.get("min", min(lows))
        high = defaults.get("max", max(lows))
        high = high if high > low else low + (abs(low) or 1)
        shown_names = sorted(curves, key=lambda one: -one[1][max(one[1])])[:LEGEND_MAX]  # the largest at the end
        left, right, top, bottom = 76, width - 10, 30, height - 26 - 16 * len(shown_names)

        def x(at):
            return left + (right - left) * (at - self.start) / (self.end - self.start)

        def y(value):
            return bottom - (bottom - top) * (min(max(value, low), high) - low) / (high - low)
        made = []
        for level in (low, (low + high) / 2, high):
            made += [f'<line x1="{left}" x2="{right}" y1="{y(level):.1f}" y2="{y(level):.1f}" stroke="#e3e6ea"/>',
                     text(left - 6, y(level) + 4, shown(level, defaults["unit"]), 10, "#666", "end")]
        for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
            at = self.start + share * (self.end - self.start)
            made.append(text(x(at), bottom + 14, datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime(
                "%H:%M:%S"), 10, "#666", anchor))
        for number, (name, points, below, upper) in enumerate(curves):
            colour = PALETTE[number % len(PALETTE)]
            times = sorted(upper)
            line = " ".join(f"{x(at):.1f},{y(upper[at]):.1f}" for at in times)
            if stacked:
                back = " ".join(f"{x(at):.1f},{y(below.get(at, 0)):.1f}" for at in reversed(times))
                made.append(f'<polygon points="{line} {back}" fill="{colour}" fill-opacity="0.3"/>')
            made.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            if curves[number] in shown_names:
                place = shown_names.index(curves[number])
                at = bottom + 32 + 16 * place
                more = f" and {len(curves) - LEGEND_MAX} more" if place + 1 == LEGEND_MAX < len(curves) else ""
                last = shown(points[times[-1]], defaults["unit"], defaults.get("decimals"))
                made += [f'<rect x="10" y="{at - 8}" width="12" height="4" fill="{colour}"/>',
                         text(28, at, fitted(name + more, width - 120, 11), 11), text(width - 10, at, last, 11, anchor="end")]
        for step in defaults["thresholds"]["steps"][1:]:
            if defaults["custom"]["thresholdsStyle"]["mode"] != "off" and low <= step["value"] <= high:
                made.append(f'<line x1="{left}" x2="{right}" y1="{y(step["value"]):.1f}" y2="{y(step["value"]):.1f}" '
                            f'stroke="{COLOURS[step["color"]]}" stroke-dasharray="6 4"/>')
        return made

    def table(self, panel, width, height):
        organize = panel["transformations"][-1]["options"]
        names = sorted(organize["renameByName"], key=lambda name: organize["indexByName"][name])
        units = {one["matcher"]["options"]: one["properties"][0]["value"] for one in panel["fieldConfig"]["overrides"]}
        rows = {}
        for target in panel["targets"]:
            for labels, value in self.instant(target):
                row = rows.setdefault(tuple(sorted((name, one) for name, one in labels.items() if name != "__name__")), {})
                row.update(labels)
                row[f"Value #{target['refId']}"] = value
        if not rows:
            return self.no_data(width, height)
        made, room = [], (width - 16) / len(names)
        for column, name in enumerate(names):
            heading = organize["renameByName"][name]
            made.append(text(8 + column * room, 44, heading, 12, "#666"))
            for line, row in enumerate(rows.values()):
                value = row.get(name, "")
                words = shown(value, units.get(heading, "none")) if isinstance(value, float) else value
                made.append(text(8 + column * room, 68 + 24 * line, fitted(words, room)))
        return made
