#!/usr/bin/env python3
"""Writes docs/trainjob.md from manifests/base/crd.yaml, the one description of a TrainJob.

  scripts/trainjob_reference.py           writes it
  scripts/trainjob_reference.py --check   says whether it is up to date, and changes nothing

Needs PyYAML (scripts/setup test, or Debian's python3-yaml).
"""
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
CRD = ROOT / "manifests/base/crd.yaml"
PAGE = ROOT / "docs/trainjob.md"

HEAD = """# TrainJob reference

`{group}/{version}`, kind `{kind}`, short name `{short}`, categories {categories}. Generated from
[manifests/base/crd.yaml](../manifests/base/crd.yaml) by `scripts/trainjob_reference.py`; a test compares the two. In a
cluster `kubectl explain tj.spec` says the same. A job to begin with:
[manifests/examples/trainjob.yaml](../manifests/examples/trainjob.yaml).

A field with a default may be left out. Where a rule is broken the API server refuses the object with the message given
here, naming the field.
"""


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def kind_of(schema):
    """The type as a person says it, with its limits."""
    if schema.get("x-kubernetes-int-or-string"):
        words = "integer or string" if "pattern" not in schema else f"integer or `{literal(schema['pattern'])}`"
    elif schema.get("type") == "array":
        words = f"list of {kind_of(schema['items'])}"
    elif "additionalProperties" in schema:
        words = "map of quantities"
    elif "enum" in schema:
        words = ", ".join(f"`{value}`" for value in schema["enum"])
    elif schema.get("format") == "date-time":
        words = "time"
    else:
        words = schema.get("type", "any")
    if "minimum" in schema and "maximum" in schema:
        words += f", {schema['minimum']} to {schema['maximum']}"
    elif "minimum" in schema:
        words += f", at least {schema['minimum']}"
    return words


def literal(pattern):
    """`auto` of `^auto$`; a real pattern as it is."""
    return pattern.strip("^$") if re.fullmatch(r"\^\w+\$", pattern) else pattern


def default_of(schema):
    value = schema.get("default")
    if value is None or value == {}:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def inner(schema):
    """The schema whose fields a field has, through a list; None where it has none."""
    schema = schema.get("items", schema)
    return schema if schema.get("properties") else None


def rules(schema):
    """(field, message) of the CEL rules of an object, of its fields that have no page of their own too."""
    found = []
    for name, field in [("", schema), *schema.get("properties", {}).items()]:
        if name and inner(field) is not None and field.get("type") != "array":
            continue
        items = {} if inner(field) else field.get("items", {})
        for holder in (field, items):
            for rule in holder.get("x-kubernetes-validations", []):
                place = (f".{name}" if name else "") + rule.get("fieldPath", "")
                found.append((place.lstrip(".") or "(the object)", rule["message"]))
    return list(dict.fromkeys(found))


def table(schema):
    required = schema.get("required", [])
    lines = ["| field | type | default | what it says |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "required" if name in required else default_of(field)
        lines.append(f"| `{name}` | {cell(kind_of(field))} | {default} | {cell(field.get('description', ''))} |")
    return lines


def section(path, schema):
    lines = [f"## {path}", "", " ".join(schema.get("description", "").split()), "", *table(schema), ""]
    told = rules(schema)
    if told:
        lines += ["Rules:", ""]
        lines += [f"- `{place}`: {cell(message)}" for place, message in told]
        lines.append("")
    for name, field in schema["properties"].items():
        below = inner(field)
        if below is not None:
            mark = "[]" if field.get("type") == "array" else ""
            described = {"description": field.get("description", ""), **below} if mark else below
            lines += section(f"{path}.{name}{mark}", described)
    return lines


def columns(version):
    lines = ["## kubectl get", "", "`kubectl get tj`; columns marked wide need `-o wide`.", "",
             "| column | what it says |", "|---|---|"]
    for column in version["additionalPrinterColumns"]:
        name = column["name"].upper() + (" (wide)" if column.get("priority") else "")
        lines.append(f"| {name} | {cell(column.get('description', 'Time since it was made.'))} |")
    return lines + [""]


def page():
    spec = yaml.safe_load(CRD.read_text(encoding="utf-8"))["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    names = spec["names"]
    lines = [HEAD.format(group=spec["group"], version=version["name"], kind=names["kind"], short=names["shortNames"][0],
                         categories=", ".join(f"`{name}`" for name in names["categories"]))]
    lines += ["## Rules of the whole object", ""]
    lines += [f"- `{place}`: {cell(message)}" for place, message in rules(schema) if not place.startswith("spec.spec")]
    lines += ["", *columns(version)]
    for part in ("spec", "status"):
        lines += section(part, schema["properties"][part])
    return "\n".join(lines).rstrip() + "\n"


def main():
    wanted = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{PAGE.relative_to(ROOT)} differs from {CRD.relative_to(ROOT)}: run scripts/trainjob_reference.py",
              file=sys.stderr)
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
