"""tests/golden/operator/pod_states.yaml: how Kubernetes reports a pod in each state."""
import copy
import pathlib

import yaml

PATH = pathlib.Path(__file__).resolve().parents[1] / "golden/operator/pod_states.yaml"
STATES = yaml.safe_load(PATH.read_text(encoding="utf-8"))
# Of each condition that the operator reads, the fields that it reads.
CONDITIONS = {"PodScheduled": ("status", "reason", "message"), "PodReadyToStartContainers": ("status",),
              "Ready": ("status", "reason"), "DisruptionTarget": ("status", "reason", "message")}
CONTAINER_STATES = {"waiting": ("reason", "message"), "running": ("startedAt",),
                    "terminated": ("exitCode", "reason", "message", "startedAt", "finishedAt")}
THERE = ("podIP", "startTime", "startedAt", "finishedAt")  # that they are there counts, not what they say


def status_of(state):
    """The entry of the file; "exited 143" is "exited 1" with another code."""
    word, _, code = state.partition(" ")
    if word != "exited":
        return STATES[state]
    status = copy.deepcopy(STATES["exited 1"])
    status["containerStatuses"][0]["state"]["terminated"]["exitCode"] = int(code)
    return status


def name_of(state):
    """For a pod in this state."""
    return state.replace(" ", "-")


def fields_read(status):
    """What the operator reads of a pod's status: lists by type or name, without what is empty."""
    found = pick(status, ("phase", "reason", "message", "podIP", "startTime"))
    found["conditions"] = {one["type"]: pick(one, CONDITIONS[one["type"]])
                           for one in status.get("conditions", []) if one["type"] in CONDITIONS}
    for containers in ("initContainerStatuses", "containerStatuses"):
        found[containers] = {one["name"]: container_fields(one) for one in status.get(containers, [])}
    return found


def container_fields(status):
    return {"ready": status["ready"],
            **{kind: pick(status["state"][kind], CONTAINER_STATES[kind]) for kind in status["state"]}}


def pick(fields, names):
    return {name: "there" if name in THERE else fields[name] for name in names if fields.get(name) not in (None, "")}


def differences(found, expected, path=""):
    """Between two results of fields_read(), as lines; of a message only the expected beginning counts."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return [line for name in sorted(found.keys() | expected.keys())
                for line in differences(found.get(name), expected.get(name), f"{path}.{name}")]
    is_message = path.endswith(".message") and found is not None and expected is not None
    same = found.startswith(expected) if is_message else found == expected
    return [] if same else [f"{path[1:]} is {found!r}, in {PATH.name} {expected!r}"]


def differences_from(state, pod):
    """Between a pod and the state of the file: empty if the pod is in that state."""
    return differences(fields_read(pod["status"]), fields_read(status_of(state)))
