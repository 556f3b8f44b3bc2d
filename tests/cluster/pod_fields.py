"""operator/manifest/pod_fields.yaml: the fields of a PodTemplateSpec and of all below it, from an API server's OpenAPI
document. `pod_fields.py OPENAPI.json VERSION` prints the file:

    kubectl get --raw /openapi/v3/api/v1 > openapi.json && python tests/cluster/pod_fields.py openapi.json 1.37.2
"""
import json
import sys

ROOT = "PodTemplateSpec"
PREFIX = "#/components/schemas/"
# What has a form of its own in JSON, or none that is known.
WORDS = {"io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
         "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
         "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
         "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any"}
HEADER = """\
# The fields of pods, from the OpenAPI document of Kubernetes {version}; tests/cluster/pod_fields.py makes this file,
# and a test compares the two. Type: its fields with their types. [X]: a list of X; {{X}}: names with X;
# !: must be there; words after a type: its only values.
"""


def short(name):
    return name.rsplit(".", 1)[-1]


def type_of(schema, wanted):
    """The type as text; names of types met are added to `wanted`."""
    reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
    if reference:
        name = reference.removeprefix(PREFIX)
        if name not in WORDS:
            wanted.add(name)
        return WORDS.get(name, short(name))
    if schema["type"] == "array":
        return f"[{type_of(schema['items'], wanted)}]"
    if schema["type"] == "object":
        return f"{{{type_of(schema['additionalProperties'], wanted)}}}"
    # OpenAPI writes "" for a word that may be left out.
    return " ".join([schema["type"], *sorted(word for word in schema.get("enum", []) if word)])


def pod_fields(openapi):
    """type → field → its type as text, all sorted."""
    schemas = openapi["components"]["schemas"]
    (root,) = [name for name in schemas if name.endswith(".core.v1." + ROOT)]
    found, wanted = {}, {root}
    while wanted:
        name = wanted.pop()
        if short(name) in found:
            continue
        schema = schemas[name]
        required = schema.get("required", [])
        found[short(name)] = {field: type_of(of, wanted) + ("!" if field in required else "")
                              for field, of in schema["properties"].items()}
        wanted = {one for one in wanted if short(one) not in found}
    return {name: dict(sorted(fields.items())) for name, fields in sorted(found.items())}


def text_of(fields, version):
    lines = [HEADER.format(version=version)]
    for name, members in fields.items():
        lines.append(f"{name}:\n")
        lines += [f'  {field}: "{kind}"\n' for field, kind in members.items()]
    return "".join(lines)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(text_of(pod_fields(json.load(file)), sys.argv[2]), end="")
