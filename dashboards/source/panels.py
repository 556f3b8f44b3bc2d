"""Panels and boards as Grafana's JSON model has them. Pure functions: text in, dictionaries out.

A panel that names an alert in its description ("The alert X …") links to the alert's runbook.
A board's expressions are written with <selector> where its variables go:  lockstep_step{<selector>, rank="0"}
"""

import re

SCHEMA_VERSION = 39  # Grafana 10.3 and newer read it
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "lockstep"
RUNBOOKS = "https://lockstep.dev/docs/alerts.md"

GREEN, ORANGE, RED, NEUTRAL = "green", "orange", "red", "blue"


def select(name, *matchers):
    return f"{name}{{{', '.join(matchers)}}}"


def counted(series):
    """What a counter stands at, or stood at last; for means and quantiles over all that the board shows."""
    return f"max_over_time({series}[$__range])"


def within_an_hour(series):
    """How often something rare happened within the last hour. A label's series appears with its first event, at 1, which
    increase() does not see: where there was no series an hour ago, its first value is added."""
    return (f"(round(increase({series}[1h])) + (min_over_time({series}[1h]) unless {series} offset 1h) "
            f"or round(increase({series}[1h])))")


def largest(expression, count=10):
    """Of series per rank, the largest: a run may have thousands of them."""
    return f"topk({count}, {expression})"


def rising(*steps):
    """Thresholds where more is worse: rising((0.9, ORANGE), (1, RED)). rising(): neither is better."""
    return [{"color": GREEN if steps else NEUTRAL, "value": None},
            *({"color": color, "value": value} for value, color in steps)]


def falling(*steps):
    """Thresholds where less is worse: falling((0.7, ORANGE), (0.9, GREEN)) is red below 0.7."""
    return [{"color": RED, "value": None}, *({"color": color, "value": value} for value, color in steps)]


def query(expression, legend=""):
    return {"expr": expression, "legend": legend}


def panel(kind, title, description, unit, queries, width, thresholds=None, height=8, minimum=None, maximum=None,
          decimals=None, stacked=False, links=(), columns=None):
    """What the boards are written with; kinds: "stat", "gauge", "timeseries", "table". `queries` is one expression, or
    a list of query(…). `columns`, of a table: label or query → its heading and unit."""
    if isinstance(queries, str):
        queries = [query(queries)]
    return {"kind": kind, "title": title, "description": description, "unit": unit, "queries": queries, "width": width,
            "height": height, "thresholds": thresholds or rising(), "minimum": minimum, "maximum": maximum,
            "decimals": decimals, "stacked": stacked, "links": list(links), "columns": columns or {}}


def stat(title, description, unit, queries, width=3, height=4, **options):
    return panel("stat", title, description, unit, queries, width, height=height, **options)


def gauge(title, description, unit, queries, width=3, height=4, **options):
    return panel("gauge", title, description, unit, queries, width, height=height, minimum=0, maximum=1, **options)


def graph(title, description, unit, queries, width=8, **options):
    """The axis of what cannot be negative begins at 0, so that small changes do not look large."""
    if unit in ("bytes", "cps", "flops", "ops", "reqps", "s"):
        options.setdefault("minimum", 0)
    return panel("timeseries", title, description, unit, queries, width, **options)


def table(title, description, unit, queries, columns, width=COLUMNS, **options):
    return panel("table", title, description, unit, queries, width, columns=columns, **options)


# --- to JSON

def targets_of(one, selector):
    targets = []
    for number, wanted in enumerate(one["queries"]):
        target = {"datasource": DATASOURCE, "editorMode": "code",
                  "expr": wanted["expr"].replace("<selector>", selector), "legendFormat": wanted["legend"] or "__auto",
                  "refId": chr(ord("A") + number)}
        if one["kind"] == "timeseries":
            target["range"] = True
        else:
            target.update(instant=True, range=False)
        if one["kind"] == "table":
            target["format"] = "table"
        targets.append(target)
    return targets


def graph_style(one):
    has_levels = len(one["thresholds"]) > 1
    return {"drawStyle": "line", "fillOpacity": 30 if one["stacked"] else 8, "lineWidth": 1, "showPoints": "never",
            "spanNulls": False, "stacking": {"mode": "normal" if one["stacked"] else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if has_levels and not one["stacked"] else "off"}}


def field_config(one):
    defaults = {"unit": one["unit"], "thresholds": {"mode": "absolute", "steps": one["thresholds"]},
                "color": {"mode": "palette-classic" if one["kind"] == "timeseries" else "thresholds"}}
    for name, key in (("minimum", "min"), ("maximum", "max"), ("decimals", "decimals")):
        if one[name] is not None:
            defaults[key] = one[name]
    if one["kind"] == "timeseries":
        defaults["custom"] = graph_style(one)
    if one["links"]:
        defaults["links"] = one["links"]
    overrides = [{"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "unit", "value": unit}]}
                 for heading, unit in one["columns"].values() if unit]
    return {"defaults": defaults, "overrides": overrides}


def options_of(one):
    if one["kind"] == "timeseries":
        return {"legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom",
                           "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if one["kind"] == "stat":
        return {"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
                "reduceOptions": reduce, "textMode": "auto"}
    if one["kind"] == "gauge":
        return {"orientation": "auto", "reduceOptions": reduce, "showThresholdLabels": False,
                "showThresholdMarkers": True}
    return {"cellHeight": "sm", "showHeader": True}


def runbook_links(description):
    return [{"title": f"Runbook of {alert}", "url": f"{RUNBOOKS}#{alert.lower()}", "targetBlank": True}
            for alert in re.findall(r"[Tt]he alert (\w+)", description)]


def panel_json(one, number, x, y, selector):
    made = {"id": number, "type": one["kind"], "title": one["title"], "description": one["description"],
            "datasource": DATASOURCE, "gridPos": {"h": one["height"], "w": one["width"], "x": x, "y": y},
            "links": runbook_links(one["description"]), "targets": targets_of(one, selector),
            "fieldConfig": field_config(one), "options": options_of(one)}
    if one["kind"] == "table":
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {
                "excludeByName": {"Time": True},
                "indexByName": {name: place for place, name in enumerate(one["columns"])},
                "renameByName": {name: heading for name, (heading, _) in one["columns"].items()}}}]
    return made


def row_json(title, number, y):
    return {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}}


def lay_out(rows, selector):
    """rows: [(title, [panel, …])]. Panels go from left to right, into lines that are as high as their highest."""
    made, number, y = [], 1, 0
    for title, panels in rows:
        made.append(row_json(title, number, y))
        number, y, x, line = number + 1, y + 1, 0, 0
        for one in panels:
            if x + one["width"] > COLUMNS:
                x, y, line = 0, y + line, 0
            made.append(panel_json(one, number, x, y, selector))
            number, x, line = number + 1, x + one["width"], max(line, one["height"])
        y += line
    return made


def datasource_variable():
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {},
            "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": ""}


def label_variable(name, label, series, all_value=".+", multi=True):
    """The values of a label. all_value ".*" also takes series that lack the label."""
    made = {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "current": {}, "hide": 0,
            "definition": f"label_values({series}, {name})", "query": f"label_values({series}, {name})",
            "includeAll": multi, "multi": multi, "options": [], "refresh": 2, "regex": "", "sort": 1}
    if multi:
        made["allValue"] = all_value
    return made


def board_link(title, uid):
    return {"title": title, "type": "link", "icon": "dashboard", "url": f"/d/{uid}", "tags": [], "asDropdown": False,
            "includeVars": False, "keepTime": True, "targetBlank": False, "tooltip": ""}


def marks(name, expression, selector):
    """An annotation: a vertical line in all graphs wherever the expression has a value."""
    return {"name": name, "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": RED,
            "expr": expression.replace("<selector>", selector), "titleFormat": name, "step": "15s"}


def board(uid, title, description, variables, rows, selector, links, time_from="now-3h", annotations=()):
    return {"uid": uid, "title": title, "description": description, "tags": [TAG], "editable": False,
            "schemaVersion": SCHEMA_VERSION, "version": 1, "graphTooltip": 1, "refresh": "30s", "timezone": "",
            "time": {"from": time_from, "to": "now"}, "annotations": {"list": list(annotations)}, "links": links,
            "templating": {"list": [datasource_variable(), *variables]}, "panels": lay_out(rows, selector)}
