"""Values in pods: REFUSED by every API server, with the field that `lockstep validate` names, and ACCEPTED ones beside
them. Each is what a user writes below spec.trainer; `pod_of` makes of it the pod that a server is asked about."""
import copy


def template(**spec):
    return {"podTemplate": {"spec": spec}}


def trainer(**fields):
    return template(containers=[{"name": "trainer", **fields}])


def sidecar(**fields):
    return template(containers=[{"name": "sidecar", "image": "i", **fields}])


def resources(requests=None, limits=None):
    given = {"requests": requests, "limits": limits}
    return {"resourcesPerNode": {kind: amounts for kind, amounts in given.items() if amounts}}


def labels(**pairs):
    return {"podTemplate": {"metadata": {"labels": pairs}}}


def toleration(**fields):
    return template(tolerations=[fields])


def mounted(*paths, **fields):
    return template(containers=[{"name": "trainer", "volumeMounts": [
        {"name": "v", "mountPath": path, **fields} for path in paths]}], volumes=[{"name": "v", "emptyDir": {}}])


def volume(**source):
    return template(volumes=[{"name": "v", **source}])


def probe(kind="livenessProbe", **fields):
    return sidecar(**{kind: fields})


def node_affinity(*expressions):
    return template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}}})


def pod_affinity(**term):
    return template(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", **term}]}})


def spread(**fields):
    return template(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                                                **fields}])


def claim(**spec):
    return volume(ephemeral={"volumeClaimTemplate": {"spec": spec}})


GPU = "nvidia.com/gpu"
EXEC = {"command": ["true"]}
LONG = "a" * 64
STORAGE = {"requests": {"storage": "1Gi"}}

# what is written below spec.trainer, the end of the field that is named
REFUSED = {
    "a part of a GPU": (resources(limits={GPU: "0.5"}), "limits.nvidia.com/gpu"),
    "a GPU without a limit": (resources({GPU: 2}), "requests.nvidia.com/gpu"),
    "a GPU's request below its limit": (resources({GPU: 1}, {GPU: 2}), "requests.nvidia.com/gpu"),
    "a GPU without its domain": (resources(limits={"gpu": 2}), "limits.gpu"),
    "a resource in bad form": (resources(limits={"example.com/a b": 2}), "limits.example.com/a b"),
    "a request above the limit": (resources({"cpu": "4"}, {"cpu": "2"}), "requests.cpu"),
    "a memory request above the limit": (resources({"memory": "1Gi"}, {"memory": "1G"}), "requests.memory"),
    "a negative amount": (resources({"cpu": "-1"}), "requests.cpu"),
    "huge pages alone": (resources(limits={"hugepages-2Mi": "4Mi"}), "limits.hugepages-2Mi"),
    "a part of a huge page": (resources(limits={"hugepages-2Mi": "3Mi", "cpu": 1}), "limits.hugepages-2Mi"),
    "huge pages without a limit": (resources({"hugepages-2Mi": "4Mi", "cpu": 1}), "requests.hugepages-2Mi"),
    "a sidecar's request above the limit": (sidecar(resources={"requests": {"cpu": 2}, "limits": {"cpu": 1}}),
                                            "containers[0].resources.requests.cpu"),
    "a label's value": (labels(experiment="lr=3e-4,wd=0.1"), "metadata.labels.experiment"),
    "a long label": (labels(a=LONG), "metadata.labels.a"),
    "a label's name": ({"podTemplate": {"metadata": {"labels": {"a b": "c"}}}}, "metadata.labels.a b"),
    "an annotation's name": ({"podTemplate": {"metadata": {"annotations": {"a b": "c"}}}}, "metadata.annotations.a b"),
    "a node selector's value": (template(nodeSelector={"a": "b c"}), "nodeSelector.a"),
    "a node affinity's operator": (node_affinity({"key": "a", "operator": "In"}), "matchExpressions[0].values"),
    "a node affinity's values": (node_affinity({"key": "a", "operator": "Exists", "values": ["b"]}),
                                 "matchExpressions[0].values"),
    "a node affinity's value": (node_affinity({"key": "a", "operator": "In", "values": ["b c"]}),
                                "matchExpressions[0].values[0]"),
    "a node affinity's key": (node_affinity({"key": "a b", "operator": "Exists"}), "matchExpressions[0].key"),
    "a node affinity's two bounds": (node_affinity({"key": "a", "operator": "Gt", "values": ["1", "2"]}),
                                     "matchExpressions[0].values"),
    "a node affinity without terms": (template(affinity={"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}), "nodeSelectorTerms"),
    "a node's field": (template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.labels", "operator": "In", "values": ["a"]}]}]}}}),
        "matchFields[0].key"),
    "two nodes": (template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}]}}}),
        "matchFields[0].values"),
    "a pod affinity's namespace": (pod_affinity(namespaces=["A b"]), "namespaces[0]"),
    "a pod affinity's keys": (pod_affinity(matchLabelKeys=["a"]), "matchLabelKeys"),
    "a spread's keys": (spread(matchLabelKeys=["a"]), "topologySpreadConstraints[0].matchLabelKeys"),
    "a preference's weight": (template(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 0, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}}), "weight"),
    "a pod affinity's selector": (pod_affinity(labelSelector={"matchLabels": {"a": "b c"}}), "matchLabels.a"),
    "a pod affinity's operator": (pod_affinity(labelSelector={"matchExpressions": [
        {"key": "a", "operator": "Gt", "values": ["1"]}]}), "matchExpressions[0].operator"),
    "a pod affinity's topology": (pod_affinity(topologyKey=""), "topologyKey"),
    "a toleration's value": (toleration(key=GPU, operator="Exists", value="present"), "tolerations[0].value"),
    "a toleration's bad value": (toleration(key="a", value="b c"), "tolerations[0].value"),
    "a toleration without a key": (toleration(operator="Equal", value="a"), "tolerations[0].key"),
    "a toleration's bad key": (toleration(key="a b", operator="Exists"), "tolerations[0].key"),
    "a toleration's seconds": (toleration(key="a", operator="Exists", effect="NoSchedule", tolerationSeconds=3),
                               "tolerations[0].effect"),
    "a toleration of no number": (toleration(key="a", operator="Gt", value="b"), "tolerations[0].value"),
    "a spread's skew": (spread(maxSkew=0), "topologySpreadConstraints[0].maxSkew"),
    "a spread's domains": (spread(minDomains=0), "topologySpreadConstraints[0].minDomains"),
    "a spread's domains without need": (spread(minDomains=2, whenUnsatisfiable="ScheduleAnyway"),
                                        "topologySpreadConstraints[0].minDomains"),
    "a spread's selector": (spread(labelSelector={"matchLabels": {"a": "b c"}}), "matchLabels.a"),
    "a spread twice": (template(topologySpreadConstraints=[
        {"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"} for skew in (1, 2)]),
        "topologySpreadConstraints[1]"),
    "a container's name": (template(containers=[{"name": "Side_car", "image": "i"}]), "containers[0].name"),
    "an init container named trainer": (template(initContainers=[{"name": "trainer", "image": "busybox"}]),
                                        "initContainers[0].name"),
    "two init containers of a name": (template(initContainers=[{"name": "a", "image": "i"}] * 2), "initContainers[1].name"),
    "a container's restarts": (sidecar(restartPolicy="Sometimes"), "containers[0].restartPolicy"),
    "a container to debug": (template(ephemeralContainers=[{"name": "a", "image": "i"}]), "ephemeralContainers"),
    "a node's name": (template(nodeName="A b"), "nodeName"),
    "users on the host's network": (template(hostUsers=False, hostNetwork=True), "hostUsers"),
    "a claim without a source": (template(resourceClaims=[{"name": "a"}]), "resourceClaims[0]"),
    "a claim with two sources": (template(resourceClaims=[
        {"name": "a", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]),
        "resourceClaims[0].resourceClaimTemplateName"),
    "two claims of a name": (template(resourceClaims=[{"name": "a", "resourceClaimName": "a"}] * 2),
                             "resourceClaims[1].name"),
    "an image with a space": (template(containers=[{"name": "sidecar", "image": "i "}]), "containers[0].image"),
    "the trainer's image with a space": ({"image": " i"}, "spec.trainer.image"),
    "a port that is too high": (sidecar(ports=[{"containerPort": 65536}]), "ports[0].containerPort"),
    "a port 0": (sidecar(ports=[{"containerPort": 0}]), "ports[0].containerPort"),
    "a port's name": (sidecar(ports=[{"containerPort": 1, "name": "a-long-port-name"}]), "ports[0].name"),
    "a port's name in digits": (sidecar(ports=[{"containerPort": 1, "name": "80"}]), "ports[0].name"),
    "a port's name twice": (sidecar(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
                            "ports[1].name"),
    "a host port twice": (sidecar(ports=[{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]),
                          "ports[1].hostPort"),
    "a host port on the host's network": (template(hostNetwork=True, containers=[
        {"name": "sidecar", "image": "i", "ports": [{"containerPort": 1, "hostPort": 2}]}]), "ports[0].hostPort"),
    "a variable's name": (trainer(env=[{"name": "a=b", "value": "c"}]), "env[0].name"),
    "a variable with two values": (trainer(env=[{"name": "A", "value": "b", "valueFrom": {
        "fieldRef": {"fieldPath": "metadata.name"}}}]), "env[0].valueFrom"),
    "a variable from nowhere": ({"env": [{"name": "A", "valueFrom": {}}]}, "env[0].valueFrom"),
    "a variable from two places": (trainer(env=[{"name": "A", "valueFrom": {
        "fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "a", "key": "b"}}}]),
        "env[0].valueFrom.secretKeyRef"),
    "a secret without a name": ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "b"}}}]},
                                "secretKeyRef.name"),
    "a key's name": ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b c"}}}]},
                     "secretKeyRef.key"),
    "a secret's bad name": ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "A_b", "key": "k"}}}]},
                            "secretKeyRef.name"),
    "a field that no variable may be": (trainer(env=[{"name": "A", "valueFrom": {
        "fieldRef": {"fieldPath": "spec.nope"}}}]), "fieldRef.fieldPath"),
    "a resource that no variable may be": (trainer(env=[{"name": "A", "valueFrom": {
        "resourceFieldRef": {"resource": "limits.nvidia.com/gpu"}}}]), "resourceFieldRef.resource"),
    "a claim that the pod lacks": ({"resourcesPerNode": {"claims": [{"name": "fabric"}]}}, "claims[0].name"),
    "variables from two places": (trainer(envFrom=[{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]),
                                  "envFrom[0].secretRef"),
    "variables from nowhere": (trainer(envFrom=[{}]), "envFrom[0]"),
    "two mounts at one place": (mounted("/data", "/data"), "volumeMounts[1].mountPath"),
    "a mount without a place": (mounted(""), "volumeMounts[0].mountPath"),
    "a way out of the volume": (mounted("/data", subPath="a/../../b"), "volumeMounts[0].subPath"),
    "a way out of the volume by a variable": (mounted("/data", subPathExpr="../$(A)"), "volumeMounts[0].subPathExpr"),
    "an absolute path in the volume": (mounted("/data", subPath="/a"), "volumeMounts[0].subPath"),
    "two paths in the volume": (mounted("/data", subPath="a", subPathExpr="b"), "volumeMounts[0].subPathExpr"),
    "a mount that is written": (mounted("/data", recursiveReadOnly="Enabled"), "volumeMounts[0].recursiveReadOnly"),
    "mounts that spread": (mounted("/data", mountPropagation="Bidirectional"), "volumeMounts[0].mountPropagation"),
    "a volume's name": (template(volumes=[{"name": "a.b", "emptyDir": {}}]), "volumes[0].name"),
    "two volumes of a name": (template(volumes=[{"name": "a", "emptyDir": {}}] * 2), "volumes[1].name"),
    "a volume with two sources": (volume(emptyDir={}, hostPath={"path": "/a"}), "volumes[0].hostPath"),
    "a negative limit of a volume": (volume(emptyDir={"sizeLimit": "-1"}), "emptyDir.sizeLimit"),
    "a host's path upwards": (volume(hostPath={"path": "/a/../b"}), "hostPath.path"),
    "a relative NFS path": (volume(nfs={"server": "a", "path": "b"}), "nfs.path"),
    "an NFS volume without a server": (volume(nfs={"server": "", "path": "/b"}), "nfs.server"),
    "a secret volume without a name": (volume(secret={}), "secret.secretName"),
    "a config map without a name": (volume(configMap={}), "configMap.name"),
    "a mode": (volume(configMap={"name": "a", "defaultMode": 1000}), "configMap.defaultMode"),
    "an item's mode": (volume(configMap={"name": "a", "items": [{"key": "a", "path": "b", "mode": 512}]}), "items[0].mode"),
    "an item's path": (volume(configMap={"name": "a", "items": [{"key": "a", "path": "../b"}]}), "items[0].path"),
    "an item without a key": (volume(configMap={"name": "a", "items": [{"key": "", "path": "b"}]}), "items[0].key"),
    "a field's file without a field": (volume(downwardAPI={"items": [{"path": "a"}]}), "downwardAPI.items[0]"),
    "a field's file upwards": (volume(downwardAPI={"items": [
        {"path": "../a", "fieldRef": {"fieldPath": "metadata.name"}}]}), "items[0].path"),
    "a volume without its driver": (volume(csi={"driver": ""}), "csi.driver"),
    "a claim without a name": (volume(persistentVolumeClaim={"claimName": ""}), "claimName"),
    "a projection with two sources": (volume(projected={"sources": [{"secret": {"name": "a"},
                                                                     "configMap": {"name": "b"}}]}), "sources[0].secret"),
    "a new claim without a size": (claim(accessModes=["ReadWriteOnce"]), "resources.requests.storage"),
    "a new claim without a mode": (claim(resources=STORAGE), "accessModes"),
    "two handlers of a probe": (probe(exec=EXEC, tcpSocket={"port": 1}), "livenessProbe.tcpSocket"),
    "a probe without a handler": (probe(periodSeconds=3), "livenessProbe"),
    "a probe's negative delay": (probe(exec=EXEC, initialDelaySeconds=-1), "livenessProbe.initialDelaySeconds"),
    "a liveness probe's successes": (probe(exec=EXEC, successThreshold=2), "livenessProbe.successThreshold"),
    "a probe's port": (probe(tcpSocket={"port": 70000}), "livenessProbe.tcpSocket.port"),
    "a probe's port by a bad name": (probe(httpGet={"port": "not a port"}), "livenessProbe.httpGet.port"),
    "a probe without a command": (probe(exec={}), "livenessProbe.exec.command"),
    "a readiness probe's grace": (probe("readinessProbe", exec=EXEC, terminationGracePeriodSeconds=3),
                                  "readinessProbe.terminationGracePeriodSeconds"),
    "a probe's grace of 0": (probe(exec=EXEC, terminationGracePeriodSeconds=0),
                             "livenessProbe.terminationGracePeriodSeconds"),
    "an init container's probe": (template(initContainers=[{"name": "a", "image": "i", "livenessProbe": {"exec": EXEC}}]),
                                  "initContainers[0].livenessProbe"),
    "two hooks": (sidecar(lifecycle={"preStop": {"exec": EXEC, "sleep": {"seconds": 1}}}), "preStop.sleep"),
    "a hook without a handler": (sidecar(lifecycle={"preStop": {}}), "preStop"),
    "privileged without escalation": (trainer(securityContext={"privileged": True, "allowPrivilegeEscalation": False}),
                                      "securityContext.allowPrivilegeEscalation"),
    "a capability without escalation": (trainer(securityContext={
        "capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False}),
        "securityContext.allowPrivilegeEscalation"),
    "a negative user": (template(securityContext={"runAsUser": -1}), "securityContext.runAsUser"),
    "a container's negative group": (trainer(securityContext={"runAsGroup": -1}), "securityContext.runAsGroup"),
    "a negative group among others": (template(securityContext={"supplementalGroups": [1, -1]}), "supplementalGroups[1]"),
    "a profile without its file": (template(securityContext={"seccompProfile": {"type": "Localhost"}}),
                                   "seccompProfile.localhostProfile"),
    "a profile's file upwards": (template(securityContext={"seccompProfile": {
        "type": "Localhost", "localhostProfile": "../a"}}), "seccompProfile.localhostProfile"),
    "a file without its profile": (template(securityContext={"seccompProfile": {
        "type": "RuntimeDefault", "localhostProfile": "a"}}), "seccompProfile.localhostProfile"),
    "no name server": (template(dnsPolicy="None"), "dnsConfig.nameservers"),
    "a name server": (template(dnsConfig={"nameservers": ["a"]}), "dnsConfig.nameservers[0]"),
    "a host's alias": (template(hostAliases=[{"ip": "a", "hostnames": ["b"]}]), "hostAliases[0].ip"),
    "two ways to share processes": (template(shareProcessNamespace=True, hostPID=True), "shareProcessNamespace"),
    "a service account's name": (template(serviceAccountName="a b"), "serviceAccountName"),
}

# Just inside the same rules.
ACCEPTED = {
    "GPUs": resources(limits={GPU: 2}),
    "GPUs as text, and in thousandths": resources({GPU: "2000m"}, {GPU: "2"}),
    "requests alone": resources({"cpu": "4", "memory": "1Gi", "ephemeral-storage": "1e9"}),
    "requests as limits": resources({"cpu": "1000m", "memory": "1024Mi"}, {"cpu": 1, "memory": "1Gi"}),
    "a small share of a core": resources({"cpu": "0.1"}, {"cpu": "100m"}),
    "huge pages": resources(limits={"hugepages-2Mi": "4Mi", "memory": "1Gi"}),
    "no amount": resources(limits={"cpu": 0, GPU: 0}),
    "labels": labels(a="", b="A_b.c-9", c="a" * 63),
    "an annotation's capitals": {"podTemplate": {"metadata": {"annotations": {"Example.COM/Name": "lr=3e-4,wd=0.1"}}}},
    "a node selector": template(nodeSelector={"example.com/a": ""}),
    "a node affinity": node_affinity({"key": "a", "operator": "In", "values": ["b"]},
                                     {"key": "a/b", "operator": "DoesNotExist"},
                                     {"key": "c", "operator": "Gt", "values": ["1"]}),
    "an affinity to a node": template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}}}),
    "a pod affinity": pod_affinity(labelSelector={"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "NotIn", "values": ["e"]}]}),
    "tolerations": template(tolerations=[
        {"operator": "Exists"}, {"key": GPU, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3},
        {"key": "a", "value": "b"}, {"key": "a", "operator": "Equal"}]),
    "a node preference of any value": template(affinity={"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {"matchExpressions": [
            {"key": "a", "operator": "In", "values": ["b c"]}]}}]}}),
    "spreads": template(topologySpreadConstraints=[
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when} for when in ("DoNotSchedule", "ScheduleAnyway")]),
    "a spread's domains": spread(minDomains=2),
    "a sidecar among the init containers": template(initContainers=[
        {"name": "a", "image": "i", "restartPolicy": "Always", "readinessProbe": {"exec": EXEC}}]),
    "ports": sidecar(ports=[{"containerPort": 65535, "name": "http-1"}, {"containerPort": 1, "hostPort": 9},
                            {"containerPort": 1, "hostPort": 9, "protocol": "UDP"}]),
    "the host's network": template(hostNetwork=True, containers=[
        {"name": "sidecar", "image": "i", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 2}]}]),
    "variables": trainer(env=[{"name": "a.b-c d", "value": ""}, {"name": "A", "value": "", "valueFrom": {
        "fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "A", "value": "twice"}]),
    "variables of the pod": trainer(env=[
        {"name": f"A{i}", "valueFrom": {"fieldRef": {"fieldPath": path}}} for i, path in enumerate((
            "metadata.uid", "spec.nodeName", "spec.host", "status.hostIPs", "metadata.labels['a']",
            "metadata.annotations['a.b/C']"))] + [{"name": "R", "valueFrom": {
                "resourceFieldRef": {"resource": "limits.cpu"}}}]),
    "a claim": {"resourcesPerNode": {"claims": [{"name": "fabric"}]}, **template(
        resourceClaims=[{"name": "fabric", "resourceClaimName": "a"}])},
    "variables from elsewhere": trainer(envFrom=[{"configMapRef": {"name": "a"}, "prefix": "b"}]),
    "a secret's variable": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]},
    "mounts": mounted("/data", "/data/a", "relative", subPath="a..b"),
    "a volume in memory": volume(emptyDir={"medium": "Memory", "sizeLimit": "8Gi"}),
    "volumes": template(volumes=[
        {"name": "a", "emptyDir": None, "configMap": {"name": "a", "defaultMode": 511, "items": [
            {"key": "a", "path": "b/c", "mode": 0}]}},
        {"name": "b", "secret": {"secretName": "s"}}, {"name": "c", "nfs": {"server": "a", "path": "/"}},
        {"name": "d", "hostPath": {"path": "/a..b"}},
        {"name": "e", "projected": {"sources": [{"secret": {"name": "a"}}, {"serviceAccountToken": {"path": "b"}}]}},
        {"name": "f", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]),
    "a volume of no source": template(volumes=[{"name": "a"}]),
    "a new claim": claim(accessModes=["ReadWriteOnce"], resources=STORAGE),
    "restarts of containers": sidecar(restartPolicy="Never"),
    "keys of labels": spread(labelSelector={"matchLabels": {"a": "b"}}, matchLabelKeys=["c"]),
    "a mount to read": mounted("/data", readOnly=True, recursiveReadOnly="IfPossible"),
    "a probe": probe(httpGet={"port": "http"}, initialDelaySeconds=0, successThreshold=1, timeoutSeconds=0),
    "a readiness probe": probe("readinessProbe", tcpSocket={"port": 1}, successThreshold=3),
    "hooks": sidecar(lifecycle={"postStart": {"exec": EXEC}, "preStop": {"sleep": {"seconds": 1}}}),
    "privileged": trainer(securityContext={"privileged": True}),
    "a user": template(securityContext={"runAsUser": 0, "runAsGroup": 2147483647, "supplementalGroups": [1]}),
    "a profile": template(securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": "a"}}),
    "name servers": template(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.1", "fd00::1"]}),
    "a host's alias": template(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a.b"]}]),
}


def merged(container, own):
    """As the operator merges them: the user's fields, with its lists before the operator's."""
    found = {**container, **own}
    for name in ("env", "ports", "volumeMounts"):
        found[name] = [*own.get(name, []), *container.get(name, [])]
    return found


def pod_of(base, written):
    """`base`, the pod of a job that says nothing, with what is written below spec.trainer."""
    pod = copy.deepcopy(base)
    metadata = written.get("podTemplate", {}).get("metadata", {})
    for kind, pairs in metadata.items():
        pod["metadata"].setdefault(kind, {}).update(pairs)
    spec, (trainer_container,) = pod["spec"], pod["spec"]["containers"]
    for name, value in written.get("podTemplate", {}).get("spec", {}).items():
        if name == "volumes":
            spec["volumes"] = [*value, *spec["volumes"]]
        elif name == "securityContext":
            spec[name] = {**spec[name], **value}
        elif name == "containers":
            spec[name] = [merged(trainer_container, one) if one["name"] == "trainer" else one for one in value]
            if "trainer" not in [one["name"] for one in value]:
                spec[name].append(trainer_container)
        else:
            spec[name] = value
    trainer_container = next(one for one in spec["containers"] if one["name"] == "trainer")
    trainer_container["image"] = written.get("image", trainer_container["image"])
    trainer_container["env"] = [*trainer_container.get("env", []), *written.get("env", [])]
    if "resourcesPerNode" in written:
        trainer_container["resources"] = written["resourcesPerNode"]
    return pod
