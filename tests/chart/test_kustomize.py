"""manifests/kustomize/trainjob.yaml: images and the names of other objects reach the fields of a TrainJob."""
import shutil
import subprocess

import yaml

from control_plane import kube_bin
from helm import ROOT

JOB = """
apiVersion: lockstep.dev/v1
kind: TrainJob
metadata: {name: films}
spec:
  trainer:
    image: lockstep/runner:0.1.0
    env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a}}}]
    podTemplate:
      spec:
        serviceAccountName: trainer
        imagePullSecrets: [{name: pull}]
        initContainers: [{name: fetch, image: "busybox:1", envFrom: [{secretRef: {name: pull}}]}]
        containers: [{name: trainer}, {name: side, image: "busybox:1"}]
        volumes:
        - {name: settings, configMap: {name: settings}}
        - {name: keys, secret: {secretName: pull}}
        - {name: both, projected: {sources: [{secret: {name: pull}}, {configMap: {name: settings}}]}}
        - {name: data, persistentVolumeClaim: {claimName: data}}
  checkpoint: {volume: {persistentVolumeClaim: {claimName: data}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: trainer}
"""
KUSTOMIZATION = """
configurations: [trainjob.yaml]
namePrefix: dev-
resources: [job.yaml]
images: [{name: lockstep/runner, newTag: 0.2.0}, {name: busybox, newName: registry.example/busybox}]
configMapGenerator: [{name: settings, literals: [a=1]}]
secretGenerator: [{name: pull, literals: [b=1]}]
"""


def test_images_and_names_reach_a_trainjob(tmp_path):
    shutil.copy(ROOT / "manifests/kustomize/trainjob.yaml", tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "kustomization.yaml").write_text(KUSTOMIZATION)
    done = subprocess.run([kube_bin() / "kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    settings, pull = (objects[kind]["metadata"]["name"] for kind in ("ConfigMap", "Secret"))
    assert settings.startswith("dev-settings-") and pull.startswith("dev-pull-"), "with hashes"
    spec = objects["TrainJob"]["spec"]
    assert spec["checkpoint"]["volume"]["persistentVolumeClaim"]["claimName"] == "dev-data"
    trainer, pod = spec["trainer"], spec["trainer"]["podTemplate"]["spec"]
    assert trainer["image"] == "lockstep/runner:0.2.0"
    assert trainer["env"][0]["valueFrom"]["configMapKeyRef"]["name"] == settings
    assert pod["containers"][1]["image"] == pod["initContainers"][0]["image"] == "registry.example/busybox:1"
    assert pod["initContainers"][0]["envFrom"][0]["secretRef"]["name"] == pull
    assert pod["imagePullSecrets"] == [{"name": pull}] and pod["serviceAccountName"] == "dev-trainer"
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == settings and volumes["keys"]["secret"]["secretName"] == pull
    assert volumes["both"]["projected"]["sources"] == [{"secret": {"name": pull}}, {"configMap": {"name": settings}}]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "dev-data"
