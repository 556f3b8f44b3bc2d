"""`lockstep validate` says of a file what kubectl, the API server and the operator would say of it."""
import json
import os
import pathlib
import re

import pytest

from bad_jobs import REFUSED, TEMPLATES, WRONG_PODS
from command_line import lockstep
from control_plane import is_usual_version, kubernetes_version
from kube_api import ApiError
from pod_fields import pod_fields, text_of
from pod_values import ACCEPTED, REFUSED as REFUSED_VALUES, pod_of, resources
from train_jobs import train_job
from waiting import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What tests leave out, and our agent needs.
ARGS = {"args": ["run", "sasrec", "--dataset", "/data/a.inter"]}


def validate(text):
    return lockstep("validate", "-f", "-", stdin=text)


def fields(done):
    """field → its messages, of what validate has found."""
    found = re.findall(r"^standard input:\d+:\d+: ([^:]*): (.*)$", done.stdout, re.M)
    return {field: message for field, message in found}


def with_args(body):
    trainer = {**body["spec"]["trainer"], **ARGS}
    return {**body, "spec": {**body["spec"], "trainer": trainer}}


def server_accepts(api, text):
    done = api.kubectl("create", "--dry-run=server", "-f", "-", stdin=text, check=False)
    return done.returncode == 0, done.stderr


# --- the rules


@pytest.mark.parametrize("body, field, says", REFUSED)
def test_what_the_api_server_refuses_is_found(body, field, says):
    is_of_args = field.startswith("spec.trainer.args")
    done = validate(json.dumps(body if is_of_args else with_args(body), indent=2))
    assert done.returncode == 2
    assert field in fields(done), done.stdout


@pytest.mark.parametrize("template, path, says", TEMPLATES)
def test_a_template_that_makes_no_pod_is_found(template, path, says):
    done = validate(json.dumps(with_args(train_job(trainer={"podTemplate": template})), indent=2))
    assert done.returncode == 2
    (field,) = fields(done)
    assert path in field and field.startswith("spec.trainer.podTemplate."), done.stdout


# Whether an account or a class exists is known in a cluster alone.
@pytest.mark.parametrize("body, field, says", [wrong for wrong in WRONG_PODS if wrong[1] != "spec"])
def test_a_pod_that_the_api_server_refuses_is_found(body, field, says):
    done = validate(json.dumps(with_args(body), indent=2))
    assert done.returncode == 2
    (found,) = fields(done)
    # The server names what is above the value in some places, such as the requests of all resources.
    assert found.startswith(re.sub(r"\[([^]0-9][^]]*)\]", r".\1", field).removesuffix(".limits")), done.stdout


def test_what_the_tests_start_is_valid(api):
    body = with_args(train_job(nodes=3, elastic={"minNodes": 1, "maxNodes": 4}, networkPolicy="IntraJob"))
    done = validate(json.dumps(body))
    assert (done.returncode, done.stdout) == (0, "standard input: TrainJob job is valid\n")
    assert server_accepts(api, json.dumps(body))[0]


# --- values in pods


@pytest.fixture(scope="module")
def refusal(control_plane):
    """refusal(pod): what the API server says against it; "" when it takes it. Nothing is created."""
    namespace = control_plane.make_namespace("pod-values")

    def ask(pod):
        metadata = {key: value for key, value in pod["metadata"].items() if key not in ("ownerReferences", "namespace")}
        try:
            control_plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict",
                                      {**pod, "metadata": metadata})
        except ApiError as refused:
            return refused.message
        return ""

    yield ask
    control_plane.api.delete("namespaces", name=namespace)


def rendered_pods(text):
    done = lockstep("render", "-f", "-", "--output", "json", stdin=text)
    assert done.returncode == 0, done.stderr
    return [one for one in json.loads(done.stdout)["items"] if one["kind"] == "Pod"]


def job_of(written):
    return with_args(train_job(nodes=1, trainer=written))


@pytest.fixture(scope="module")
def plain_pod():
    (pod,) = rendered_pods(json.dumps(job_of({})))
    return pod


@pytest.mark.parametrize("what", REFUSED_VALUES)
def test_a_value_that_the_api_server_refuses_is_named_by_its_field(refusal, plain_pod, what):
    written, field = REFUSED_VALUES[what]
    assert refusal(pod_of(plain_pod, written)) != ""
    done = validate(json.dumps(job_of(written), indent=2))
    assert done.returncode == 2, done.stdout
    found = list(fields(done))
    assert len(found) == 1 and found[0].startswith("spec.trainer.") and found[0].endswith(field), done.stdout


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_value_that_the_api_server_takes_is_valid(refusal, plain_pod, what):
    text = json.dumps(job_of(ACCEPTED[what]), indent=2)
    done = validate(text)
    assert done.returncode == 0, done.stdout
    (pod,) = rendered_pods(text)
    assert refusal(pod) == ""
    assert refusal(pod_of(plain_pod, ACCEPTED[what])) == ""


@pytest.mark.parametrize("path", sorted((ROOT / "manifests/examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_pods_of_the_examples_are_taken(refusal, path):
    done = lockstep("validate", "-f", path)
    assert done.returncode == 0, done.stdout
    assert [refusal(pod) for pod in rendered_pods(path.read_text(encoding="utf-8"))[:2]] in ([""], ["", ""])


@pytest.mark.parametrize("labels", [{"a": "lr=3"}, {"a b": "c"}, {"a": "b" * 64}, {"a": ""}, {"x.y/A": "B_c.d"}])
def test_labels_of_the_job_are_those_of_the_api_server(api, labels):
    body = job_of({})
    body["metadata"]["labels"] = labels
    text = json.dumps(body, indent=2)
    accepted, said = server_accepts(api, text)
    assert (validate(text).returncode == 0) == accepted, said


def test_a_mount_is_found_whatever_its_slashes(api):
    own = {"name": "own", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}

    def job(path, **spec):
        template = {"spec": {"volumes": [own], "containers": [
            {"name": "trainer", "volumeMounts": [{"name": "own", "mountPath": path}]}]}}
        return json.dumps(with_args(train_job(nodes=1, trainer={"podTemplate": template}, **spec)), indent=2)

    (pod,) = rendered_pods(job("/dev/shm/"))
    assert [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]] == ["/dev/shm/"]
    found = fields(validate(job("/checkpoints/", checkpoint={"volume": {"emptyDir": {}}})))
    assert list(found) == ["spec.trainer.podTemplate.spec.containers[0].volumeMounts[0].mountPath"]
    inside = json.dumps(with_args(train_job(checkpoint={"volume": {"emptyDir": {}}, "mountPath": "/dev//shm/x"})), indent=2)
    assert list(fields(validate(inside))) == ["spec.checkpoint.mountPath"]
    accepted, said = server_accepts(api, inside)
    assert not accepted and "must not be in /dev/shm" in said


# --- the agent's variables

ENVIRONMENTS = {
    "of torchrun": ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}, "RANK"),
    "of Slurm": ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, "SLURM_NTASKS"),
    "of NCCL": ({"GLOO_SOCKET_IFNAME": "^lo,docker"}, "GLOO_SOCKET_IFNAME"),
    "of a Service": ({"MASTER_PORT": "tcp://10.96.0.12:6379"}, None),
    "of nobody": ({"RANKING": "0", "NCCL_SOCKET_IFNAME": "^lo,docker"}, None),
}


@pytest.mark.parametrize("place", ["field", "template"])
@pytest.mark.parametrize("whose", ENVIRONMENTS)
def test_variables_are_those_that_the_agent_takes(whose, place):
    variables, named = ENVIRONMENTS[whose]
    env = [{"name": name, "value": value} for name, value in variables.items()]
    written = {"env": env} if place == "field" else {"podTemplate": {"spec": {"containers": [
        {"name": "trainer", "env": env}]}}}
    done = validate(json.dumps(job_of(written), indent=2))
    agent = lockstep("run", "sasrec", "--dataset", "/nowhere", "--status_port", "0", environment=variables)
    says = re.search(r"(RANK, WORLD_SIZE|SLURM_NTASKS=8|GLOO_SOCKET_IFNAME=)", agent.stderr)
    if named is None:
        assert done.returncode == 0 and says is None, done.stdout + agent.stderr
        return
    assert agent.returncode == 2 and says, agent.stderr
    ((field, message),) = fields(done).items()
    where = "spec.trainer.env[0]" if place == "field" else "spec.trainer.podTemplate.spec.containers[0].env[0]"
    assert field == where and message.startswith(named)


# --- what a cluster says


def ask_cluster(api, body, command="validate"):
    """`lockstep validate --server` or `render --server` of a job in the test's namespace."""
    body = {**body, "metadata": {**body["metadata"], "namespace": api.namespace}}
    programs = pathlib.Path(api.control_plane.program("kubectl")).parent
    return lockstep(command, "-f", "-", "--server", stdin=json.dumps(body, indent=2), environment={
        "KUBECONFIG": str(api.kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"})


def line_with(body, api, part):
    """The number of the first line that has `part`, in the text that ask_cluster sends."""
    body = {**body, "metadata": {**body["metadata"], "namespace": api.namespace}}
    return next(i for i, line in enumerate(json.dumps(body, indent=2).splitlines(), 1) if part in line)


def test_a_cluster_that_takes_a_job_is_asked_and_keeps_nothing(api):
    done = ask_cluster(api, job_of({}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is valid, and the cluster takes it and its first pod" in done.stdout
    rendered = ask_cluster(api, job_of({}), "render")
    assert rendered.returncode == 0 and "kind: Pod" in rendered.stdout, rendered.stderr
    assert api.list("pods") == [] and api.list("lockstep.dev/v1/trainjobs") == []


def test_a_cluster_is_asked_about_a_job_that_runs_there(api):
    api.create("lockstep.dev/v1/trainjobs", job_of({}))
    assert ask_cluster(api, job_of({})).returncode == 0
    done = ask_cluster(api, job_of({"launcher": "None"}))
    assert done.returncode == 2
    assert ": spec.trainer.launcher: " in done.stdout and "cannot change" in done.stdout


def test_what_a_cluster_alone_refuses_is_said_in_the_users_fields(api):
    api.create("limitranges", {"metadata": {"name": "small"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}}]}})
    body = job_of(resources(requests={"cpu": "700m"}))
    assert validate(json.dumps(body)).returncode == 0
    for command in ("validate", "render"):
        done = ask_cluster(api, body, command)
        assert done.returncode == 2
        said = done.stdout if command == "validate" else done.stderr
        line = said.rstrip("\n")
        assert "\n" not in line, said
        assert line.startswith(f"standard input:{line_with(body, api, 'requests')}:"), said
        assert "spec.trainer.resourcesPerNode.requests: " in line and "cpu limit of 500m" in line
    assert done.stdout == ""


@pytest.mark.parametrize("kind, spec, written, says", [
    ("resourcequotas", {"hard": {"pods": "0"}}, {}, "exceeded quota"),
    ("limitranges", {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
     {"resourcesPerNode": {"limits": {"memory": "2Gi"}}}, "maximum memory usage per Container is 1Gi"),
])
def test_what_a_namespace_does_not_allow_is_said(api, kind, spec, written, says):
    api.create(kind, {"metadata": {"name": "little"}, "spec": spec})
    body = job_of(written)
    wait_until(lambda: ask_cluster(api, body).returncode == 2, "refusal")
    done = ask_cluster(api, body)
    assert says in done.stdout and "standard input:" in done.stdout


def test_a_cluster_that_does_not_answer_is_said(api):
    done = lockstep("validate", "-f", "-", "--server", stdin=json.dumps(job_of({})), environment={"PATH": "/nowhere"})
    assert done.returncode == 2 and "PATH has no program of that name" in done.stderr


# --- the text

HEAD = "apiVersion: lockstep.dev/v1\nkind: TrainJob\nmetadata: {name: job}\n"
IMAGE = "image: a, args: [run, sasrec, --dataset, a"


def job_with(trainer):
    return HEAD + "spec:\n  trainer: {" + trainer + "}\n"


@pytest.mark.parametrize("text", [
    job_with(IMAGE + "]"),
    job_with(IMAGE + ", --train_dir, yes]"),  # a boolean to kubectl
    job_with(IMAGE + ', --train_dir, "yes"]'),
    job_with(IMAGE + ", --train_dir, n]"),
    job_with(IMAGE + "], numNodes: 0x2"),
    job_with(IMAGE + "], numNodes: 2.0"),
    job_with(IMAGE + "], numNodes: 2.5"),
    job_with(IMAGE + "], numNodes: two"),
    job_with(IMAGE + "], numNodes: ~"),
    job_with(IMAGE + "], env: [{name: A, value: 1}]"),
    job_with(IMAGE + "], env: [{name: A, value: 12:30}]"),
    job_with(IMAGE + "], env: [{name: A, value: Off}]"),
    HEAD + "spec:\n  suspend: yes\n  trainer: {" + IMAGE + "]}\n",
    HEAD + "x: &t {" + IMAGE + "]}\nspec:\n  trainer: *t\n",  # an anchor is no harm, an unknown field is
    HEAD + "spec:\n  trainer: &t {" + IMAGE + "], env: &e [{name: A, value: b}]}\n",
    HEAD + "spec:\n  trainer:\n    <<: {" + IMAGE + "]}\n    numNodes: 2\n",
    HEAD + "spec:\n\ttrainer: {" + IMAGE + "]}\n",  # a tab
    HEAD + "spec:\n  trainer: {" + IMAGE + "]\n",  # cut off
    HEAD + 'spec:\n  trainer: {image: "a\0"}\n',
    "\ufeff" + job_with(IMAGE + "]"),
    json.dumps(with_args(train_job()), indent="\t"),
])
def test_a_text_is_read_as_kubectl_reads_it(api, text):
    accepted, said = server_accepts(api, text)
    done = validate(text)
    assert (done.returncode == 0) == accepted, f"{done.stdout}{done.stderr}\nkubectl: {said}"


@pytest.mark.parametrize("text, says", [
    # kubectl silently takes the last one.
    (job_with(IMAGE + "],\n    numNodes: 2,\n    numNodes: 3"), '7:5: the key "numNodes" is given twice'),
    (job_with(IMAGE + "], numNodes: 010"), '"010" is another number to kubectl'),  # 8
])
def test_what_kubectl_takes_in_silence_is_refused(api, text, says):
    assert server_accepts(api, text)[0]
    done = validate(text)
    assert done.returncode == 2 and says in done.stdout


def test_several_documents_are_read_one_by_one(api):
    other = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
    text = job_with(IMAGE + "]") + other + "---\n" + job_with(IMAGE + "], numNodes: 0")
    done = validate(text)
    assert done.returncode == 2
    assert "TrainJob job is valid" in done.stdout and "ConfigMap a is no TrainJob: passed over" in done.stdout
    assert list(fields(done)) == ["spec.trainer.numNodes"]
    assert "standard input:15:58: " in done.stdout
    assert not server_accepts(api, text)[0]


# --- what is known of pods


@pytest.mark.skipif(not is_usual_version(), reason="the stored fields are those of the newest version")
def test_the_fields_of_pods_are_those_of_this_version(control_plane):
    openapi = control_plane.api.request("GET", "/openapi/v3/api/v1")
    stored = (ROOT / "operator/manifest/pod_fields.yaml").read_text(encoding="utf-8")
    assert stored == text_of(pod_fields(openapi), kubernetes_version())
    header = (ROOT / "operator/manifest/pod_fields.h").read_text(encoding="utf-8")
    assert f'kPodFieldsVersion = "{kubernetes_version().rsplit(".", 1)[0]}"' in header
