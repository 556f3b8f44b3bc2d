"""TrainJobs with a mistake, as people make them, and where each is said: by the API server when it is applied, or,
its pods are refused, by the operator, which waits until the spec or what the cluster allows is mended. Each is named in
the fields that its author wrote."""
import dataclasses

from fake_kubelet import Behaviour, Exit
from train_jobs import train_job

BOUNDS = {"minNodes": 3, "maxNodes": 2}
TEMPLATE = "spec.trainer.podTemplate"


def trainer_container(**fields):
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def trainer(**fields):
    return train_job(trainer=fields)


def checkpoint(**fields):
    return train_job(checkpoint={"volume": {"emptyDir": {}}, **fields})


# body, field, words of the API server
REFUSED = [
    (train_job("a" * 46), "metadata.name", "at most 45 characters"),
    (train_job("no.dots"), "metadata.name", "lower-case letters, digits and dashes"),
    (train_job(nodes=0), "spec.trainer.numNodes", "greater than or equal to 1"),
    (train_job(nodes=-1), "spec.trainer.numNodes", "greater than or equal to 1"),
    (train_job(nodes=2, elastic=BOUNDS), "spec.elastic.minNodes", "at most maxNodes; lower it or raise maxNodes"),
    (train_job(nodes=9, elastic={"minNodes": 1, "maxNodes": 4}), "spec.trainer.numNodes", "elastic.maxNodes"),
    (trainer(env=[{"name": "LOCKSTEP_TOKEN", "value": "x"}]), "spec.trainer.env[0].name",
     "names that begin with LOCKSTEP_ are the operator's"),
    (trainer(launcher="Torchrun", env=[{"name": "MASTER_ADDR", "value": "x"}]), "spec.trainer.env",
     "the operator writes MASTER_ADDR"),
    (trainer(imaeg="x"), "spec.trainer.imaeg", "unknown field"),
    (train_job(elastik={}), "spec.elastik", "unknown field"),
    (train_job(nodes="two"), "spec.trainer.numNodes", "integer"),
    (trainer(image=""), "spec.trainer.image", "should match"),
    (trainer(image="a b"), "spec.trainer.image", "should match"),
    (trainer(args="run sasrec"), "spec.trainer.args", "array"),
    (trainer(args=["run", "sasrec", "--num_epochs", 20]), "spec.trainer.args[3]", "string"),
    (trainer(command="lockstep"), "spec.trainer.command", "array"),
    (trainer(env={"A": "b"}), "spec.trainer.env", "unknown field"),
    (trainer(env=[{"name": "A", "value": 1}]), "spec.trainer.env[0].value", "string"),
    (trainer(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "spec.trainer.env[1]", "Duplicate value"),
    (trainer(launcher="torchrun"), "spec.trainer.launcher", '"Torchrun"'),
    (trainer(numProcPerNode="all"), "spec.trainer.numProcPerNode", "auto"),
    (trainer(resourcesPerNode={"limits": {"memory": "64 GB"}}), "spec.trainer.resourcesPerNode.limits.memory",
     "should match"),
    (trainer(resourcesPerNode={"limit": {"cpu": 1}}), "spec.trainer.resourcesPerNode.limit", "unknown field"),
    (trainer(sharedMemory="Disk"), "spec.trainer.sharedMemory", '"Memory"'),
    (trainer(podTemplate=[]), "spec.trainer.podTemplate", "object"),
    (train_job(elastic={"minNodes": 1}), "spec.elastic.maxNodes", "Required"),
    (train_job(trainer={"launcher": "None"}, elastic={"minNodes": 1, "maxNodes": 2}), "spec.elastic",
     "elastic needs trainer.launcher Lockstep"),
    (train_job(scheduling={"gang": "Kai"}), "spec.scheduling.gang", '"Native"'),
    (train_job(scheduling={"gang": "Native", "queue": "a"}), "spec.scheduling.queue", "needs gang Volcano"),
    (checkpoint(volume={"configMap": {"name": "c"}}), "spec.checkpoint.volume.configMap", "unknown field"),
    (checkpoint(volume={}), "spec.checkpoint.volume", "at least 1"),
    (checkpoint(mountPath="checkpoints"), "spec.checkpoint.mountPath", "should match"),
    (checkpoint(mountPath="/dev/shm/a"), "spec.checkpoint.mountPath", "shared memory"),
    (checkpoint(resume="Always"), "spec.checkpoint.resume", '"SameConfig"'),
    (train_job(health={"startupTimeoutSeconds": 0}), "spec.health.startupTimeoutSeconds", "greater than or equal to 1"),
    (train_job(restartPolicy={"rules": [{"action": "Fail"}]}), "spec.restartPolicy.rules[0]", "at least one exit code"),
    (train_job(restartPolicy={"rules": [{"exitCodes": [0], "action": "Fail"}]}),
     "spec.restartPolicy.rules[0].exitCodes[0]", "greater than or equal to 1"),
    (train_job(successPolicy="Any"), "spec.successPolicy", '"AllNodes"'),
    (train_job(suspend="yes"), "spec.suspend", "boolean"),
    (train_job(podCleanup="Some"), "spec.podCleanup", '"Running"'),
]

# podTemplate, path below it, words. `lockstep validate` finds them, too.
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
    ({"spec": {"activeDeadlineSeconds": 60}}, "spec.activeDeadlineSeconds",
     "spec.activeDeadlineSeconds of the TrainJob"),
    ({"spec": {"terminationGracePeriodSeconds": "90"}}, "spec.terminationGracePeriodSeconds",
     "expected a whole number"),
    (trainer_container(ports=[{"name": "status", "containerPort": 1}]), "spec.containers[0].ports[0].name",
     "a port that the operator names itself"),
    (trainer_container(terminationMessagePath="/tmp/x"), "spec.containers[0].terminationMessagePath", "remove it"),
    # What only the API server knows:
    ({"spec": {"tolerations": [{"key": "a", "operator": "Sometimes"}]}}, "spec.tolerations[0].operator", "Sometimes"),
    ({"spec": {"containers": [{"name": "sidecar"}]}}, "spec.containers[", "image"),
    (trainer_container(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}]), "spec.containers[0].volumeMounts[",
     "nowhere"),
    ({"spec": {"nodeSelektor": {"a": "b"}}}, "spec.nodeSelektor", "unknown field"),
    ({"spec": {"securityContext": {"runAsUser": "root"}}}, "spec.securityContext.runAsUser", ""),
]

SIDE = {"name": "side", "image": "busybox"}
SECRET_KEY = {"secretKeyRef": {"name": "UPPER_case", "key": "k"}}


def template(**spec):
    return trainer(podTemplate={"spec": spec})


def resources(**fields):
    return trainer(resourcesPerNode=fields)


# body, field, words: of a pod that the API server's validation or an admission that every cluster has refuses.
WRONG_PODS = [
    (resources(requests={"nvidia.com/gpu": 2}), "spec.trainer.resourcesPerNode.limits", "Limit must be set"),
    (resources(requests={"cpu": 2}, limits={"cpu": 1}), "spec.trainer.resourcesPerNode.requests", "cpu limit of 1"),
    (resources(limits={"nvidia.com/gpu": "500m"}), "spec.trainer.resourcesPerNode.limits[nvidia.com/gpu]", "integer"),
    (resources(requests={"nvidia.com/gpu": 1}, limits={"nvidia.com/gpu": 2}), "spec.trainer.resourcesPerNode.requests",
     "nvidia.com/gpu limit of 2"),
    (resources(limits={"gpu": 1}), "spec.trainer.resourcesPerNode.limits[gpu]", "resource"),
    (resources(claims=[{"name": "fabric"}]), "spec.trainer.resourcesPerNode.claims[0]", "resourceClaims"),
    (trainer(env=[{"name": "S3", "valueFrom": SECRET_KEY}]), "spec.trainer.env[0].valueFrom.secretKeyRef.name",
     "RFC 1123"),
    (trainer(env=[{"name": "A", "value": "a"}, {"name": "S3", "valueFrom": SECRET_KEY}]),
     "spec.trainer.env[1].valueFrom.secretKeyRef.name", "RFC 1123"),
    (trainer(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nope"}}}]),
     "spec.trainer.env[0].valueFrom.fieldRef.fieldPath", "spec.nope"),
    (trainer(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c"}}}]),
     "spec.trainer.env[0].valueFrom.configMapKeyRef.key", "Required value"),
    (trainer(podTemplate=trainer_container(env=[{"name": "T", "valueFrom": SECRET_KEY}]),
             env=[{"name": "A", "value": "a"}]),
     f"{TEMPLATE}.spec.containers[0].env[0].valueFrom.secretKeyRef.name", "RFC 1123"),
    (checkpoint(volume={"nfs": {"path": "/p"}}), "spec.checkpoint.volume.nfs.server", "Required value"),
    (checkpoint(volume={"hostPath": {"path": "/a/../b"}}), "spec.checkpoint.volume.hostPath.path", "'..'"),
    (template(tolerations=[{"key": "a", "effect": "Never"}]), f"{TEMPLATE}.spec.tolerations[0].effect", "Never"),
    (template(tolerations=[{"key": "a b"}]), f"{TEMPLATE}.spec.tolerations[0].key", "a b"),
    (template(nodeSelector={"a": "b c"}), f"{TEMPLATE}.spec.nodeSelector", "b c"),
    (trainer(podTemplate={"metadata": {"labels": {"a b": "c"}}}), f"{TEMPLATE}.metadata.labels", "a b"),
    (trainer(podTemplate={"metadata": {"annotations": {"a b": "c"}}}), f"{TEMPLATE}.metadata.annotations", "a b"),
    (template(containers=[{**SIDE, "name": "Side"}]), f"{TEMPLATE}.spec.containers[0].name", "RFC 1123"),
    (template(containers=[SIDE, SIDE]), f"{TEMPLATE}.spec.containers[1].name", "second time"),
    (template(containers=[{**SIDE, "imagePullPolicy": "Sometimes"}]), f"{TEMPLATE}.spec.containers[0].imagePullPolicy",
     "Sometimes"),
    (template(initContainers=[{"name": "fetch"}]), f"{TEMPLATE}.spec.initContainers[0].image", "Required value"),
    (template(volumes=[{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
     f"{TEMPLATE}.spec.volumes[1].name", "Duplicate value"),
    (template(volumes=[{"name": "a", "emptyDir": {}, "hostPath": {"path": "/a"}}]), f"{TEMPLATE}.spec.volumes[0]",
     "may not specify more than 1 volume type"),
    (template(volumes=[{"name": "a", "secret": {}}]), f"{TEMPLATE}.spec.volumes[0].secret.secretName",
     "Required value"),
    (trainer(podTemplate=trainer_container(volumeMounts=[{"name": "nowhere", "mountPath": "/x"}])),
     f"{TEMPLATE}.spec.containers[0].volumeMounts[0].name", "nowhere"),
    (trainer(podTemplate=trainer_container(readinessProbe={"periodSeconds": 5})),
     f"{TEMPLATE}.spec.containers[0].readinessProbe", "must specify a handler type"),
    (trainer(podTemplate=trainer_container(securityContext={"runAsUser": -1})),
     f"{TEMPLATE}.spec.containers[0].securityContext.runAsUser", "-1"),
    (template(dnsPolicy="Nope"), f"{TEMPLATE}.spec.dnsPolicy", "Nope"),
    (template(hostAliases=[{"ip": "not-an-ip", "hostnames": ["a"]}]), f"{TEMPLATE}.spec.hostAliases[0].ip",
     "not-an-ip"),
    (template(topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]),
     f"{TEMPLATE}.spec.topologySpreadConstraints[0].maxSkew", "greater than zero"),
    (template(serviceAccountName="nobody"), "spec", 'serviceaccount "nobody" not found'),
    (template(runtimeClassName="nowhere"), "spec", 'RuntimeClass "nowhere" not found'),
]

# The LimitRange of a namespace, TrainJobs, words. The first admission that says no is named.
LIMITS = {"metadata": {"name": "limits"}, "spec": {"limits": [
    {"type": "Container", "default": {"cpu": "500m", "memory": "1Gi"},
     "defaultRequest": {"cpu": "100m", "memory": "1Mi"},
     "max": {"cpu": "2", "memory": "4Gi"}, "min": {"memory": "1Mi"}}]}}
LIMITED = [
    (resources(requests={"cpu": "0.7"}), "spec.trainer.resourcesPerNode.requests",
     "500m is not in the TrainJob: a LimitRange"),
    (resources(limits={"cpu": 3}), "maximum cpu usage per Container is 2, but limit is 3",
     "a LimitRange of the namespace"),
    (resources(limits={"memory": "8Gi"}), "maximum memory usage per Container is 4Gi", "a LimitRange of the namespace"),
    (resources(requests={"memory": "1"}, limits={"memory": "1"}), "minimum memory usage per Container is 1Mi",
     "a LimitRange of the namespace"),
]

# In a namespace with the label pod-security.kubernetes.io/enforce: restricted.
RESTRICTED = [
    (template(hostNetwork=True), 'violates PodSecurity "restricted', "hostNetwork=true"),
    (template(volumes=[{"name": "a", "hostPath": {"path": "/a"}}]), 'violates PodSecurity "restricted', "hostPath"),
    (trainer(podTemplate=trainer_container(securityContext={"privileged": True})), 'violates PodSecurity "restricted',
     "privileged"),
]


@dataclasses.dataclass(frozen=True)
class Wait:
    """What the kubelet finds wrong, and waits with."""
    reason: str
    message: str

    @property
    def behaviour(self):
        return Behaviour(start="Waiting", waiting_reason=self.reason, waiting_message=self.message)


# A container that cannot be started. The job waits, and the kubelet's words are in its message.
WAITS = [
    Wait("InvalidImageName", 'Failed to apply default image tag "x:::y": invalid reference format'),
    Wait("ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never'),
    Wait("ImagePullBackOff", 'Back-off pulling image "registry.example/runner:1"'),
    Wait("CreateContainerConfigError", 'secret "tracker" not found'),
    Wait("CreateContainerError", "context deadline exceeded"),
]

# Before the first commit these of the program's own exit codes fail the job: (code, its last words).
ENDS = [Exit(2, "unknown flag --datast"), Exit(3, "/data/a.inter: no such file")]
