"""JSON schemas for kubeconform: of everything that the API server knows, and of CRDs. Strict: unknown fields are errors."""
import json

import yaml

from helm import ROOT
from control_plane import kube_bin

# As kubeconform fills it in, for a kind in lower case.
LOCATION = "{{ .ResourceKind }}_{{ .Group }}_{{ .ResourceAPIVersion }}.json"
CRDS = (ROOT / "manifests/base/crd.yaml", *sorted((kube_bin().parent / "crds").glob("*.yaml")))
REF = "#/components/schemas/"


def strict(schema):
    """The schema with all references local to one file, and no fields but those that it names."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items()}
    if isinstance(made.get("$ref"), str):
        made["$ref"] = made["$ref"].replace(REF, "#/definitions/")
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def write(folder, group, version, kind, schema):
    """To kubeconform the core group is called as its version."""
    name = f"{kind.lower()}_{group or version}_{version}.json"
    (folder / name).write_text(json.dumps(schema), encoding="utf-8")


def openapi(api, path=""):
    """The server calls it plain text."""
    answer = api.request("GET", f"/openapi/v3{path}")
    return json.loads(answer) if isinstance(answer, str) else answer


def write_schemas_of_server(api, folder):
    from_files = {yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["group"] for path in CRDS}
    for path in openapi(api)["paths"]:
        if from_files & set(path.split("/")):
            continue  # another test may just have removed it here
        document = openapi(api, f"/{path}")
        definitions = strict(document.get("components", {}).get("schemas", {}))
        for name, schema in definitions.items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                write(folder, kind["group"], kind["version"], kind["kind"],
                      {"definitions": definitions, "$ref": f"#/definitions/{name}"})


def write_schemas_of_crds(folder):
    """Over those of the server: what a repository has may be newer than what a cluster has."""
    for path in CRDS:
        crd = yaml.safe_load(path.read_text(encoding="utf-8"))
        for version in crd["spec"]["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"},
                                    **schema["properties"], "metadata": {"type": "object"}}
            write(folder, crd["spec"]["group"], version["name"], crd["spec"]["names"]["kind"], schema)
