"""TrainJobs that are refused, and where: by the API server, or, what their pod templates say, by the operator."""
from train_jobs import train_job

BOUNDS = {"minNodes": 3, "maxNodes": 2}


def trainer_container(**fields):
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


# body, field, words of the API server
REFUSED = [
    (train_job("a" * 46), "metadata.name", "at most 45 characters"),
    (train_job("no.dots"), "metadata.name", "lower-case letters, digits and dashes"),
    (train_job(nodes=0), "spec.trainer.numNodes", "greater than or equal to 1"),
    (train_job(nodes=-1), "spec.trainer.numNodes", "greater than or equal to 1"),
    (train_job(nodes=2, elastic=BOUNDS), "spec.elastic.minNodes", "at most maxNodes; lower it or raise maxNodes"),
    (train_job(nodes=9, elastic={"minNodes": 1, "maxNodes": 4}), "spec.trainer.numNodes", "elastic.maxNodes"),
    (train_job(trainer={"env": [{"name": "LOCKSTEP_TOKEN", "value": "x"}]}), "spec.trainer.env[0].name",
     "names that begin with LOCKSTEP_ are the operator's"),
    (train_job(trainer={"launcher": "Torchrun", "env": [{"name": "MASTER_ADDR", "value": "x"}]}), "spec.trainer.env",
     "the operator writes MASTER_ADDR"),
    (train_job(trainer={"imaeg": "x"}), "spec.trainer.imaeg", "unknown field"),
    (train_job(elastik={}), "spec.elastik", "unknown field"),
]

# podTemplate, path below it, words
TEMPLATES = [
    (trainer_container(env=[{"name": "LOCKSTEP_NODE_RANK", "value": "7"}]), "spec.containers[0].env[0].name",
     "which the operator writes itself"),
    ({"spec": {"hostname": "mine"}}, "spec.hostname", "remove it"),
    ({"spec": {"subdomain": "mine"}}, "spec.subdomain", "remove it"),
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy", "remove it"),
    ({"spec": {"volumes": [{"name": "lockstep-checkpoint", "emptyDir": {}}]}}, "spec.volumes[0].name", "another name"),
    ({"metadata": {"labels": {"lockstep.dev/job": "other"}}}, "metadata.labels[lockstep.dev/job]", "the operator's"),
    ({"metadata": {"name": "mine"}}, "metadata.name", "remove it"),
    ({"spec": {"containers": {"name": "trainer"}}}, "spec.containers", "expected a list"),
    # What only the API server knows:
    ({"spec": {"tolerations": [{"key": "a", "operator": "Sometimes"}]}}, "spec.tolerations[0].operator", "Sometimes"),
    ({"spec": {"containers": [{"name": "sidecar"}]}}, "spec.containers[", "image"),
    (trainer_container(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}]), "spec.containers[0].volumeMounts[",
     "nowhere"),
    ({"spec": {"nodeSelektor": {"a": "b"}}}, "spec.nodeSelektor", "unknown field"),
    ({"spec": {"securityContext": {"runAsUser": "root"}}}, "runAsUser", ""),
]
