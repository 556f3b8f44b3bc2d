{{/* "lockstep" for the release "lockstep", "prod-lockstep" for "prod". Names get suffixes: 40 of 63 characters. */}}
{{- define "lockstep.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.operator" -}}{{ include "lockstep.fullname" . }}-operator{{- end -}}

{{/* On every object. */}}
{{- define "lockstep.labels" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Never changed: the Deployment's selector is immutable, and the NetworkPolicies that the operator makes for TrainJobs
let in the pods with this name and component. */}}
{{- define "lockstep.selector" -}}
app.kubernetes.io/name: lockstep
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "lockstep.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "lockstep.operator" .) -}}
{{- else -}}
{{- required "serviceAccount.name: name the ServiceAccount to use, or set serviceAccount.create to true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.tokenSecret" -}}
{{- .Values.tokenKey.existingSecret | default (printf "%s-token-key" (include "lockstep.fullname" .)) -}}
{{- end -}}

{{/* OpenShift gives each namespace its own user and group, and refuses others. */}}
{{- define "lockstep.podSecurityContext" -}}
{{- if .Values.openshift -}}
{{- omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup" | toYaml -}}
{{- else -}}
{{- toYaml .Values.podSecurityContext -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.replicas" -}}
{{- if .Values.highAvailability -}}{{ max 2 (int .Values.replicas) }}{{- else -}}{{ int .Values.replicas }}{{- end -}}
{{- end -}}

{{/* {image: .Values.image, version: .Chart.AppVersion} */}}
{{- define "lockstep.image" -}}
{{- $name := .image.repository -}}
{{- with .image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .version) -}}
{{- end -}}
{{- end -}}

{{/* Fails where a toggle needs a kind that the cluster does not have: {root: $, kind: …, value: …} */}}
{{- define "lockstep.needsMonitoring" -}}
{{- $resource := printf "monitoring.coreos.com/v1/%s" .kind -}}
{{- if not (.root.Capabilities.APIVersions.Has $resource) -}}
{{- fail (printf "\n%s is true, but the cluster has no %s (%s): install the Prometheus operator's CRDs first, or set %s to false. To render without a cluster: helm template --api-versions %s" .value .kind $resource .value $resource) -}}
{{- end -}}
{{- end -}}

{{- define "lockstep.checks" -}}
{{- if and (not .Values.leaderElection) (gt (int (include "lockstep.replicas" .)) 1) -}}
{{- fail (printf "\nleaderElection is false, but there are %s replicas (replicas, highAvailability): several would act at once on the same TrainJobs. Set leaderElection to true, or have one replica" (include "lockstep.replicas" .)) -}}
{{- end -}}
{{- end -}}

{{/* A file of the chart, its links to runbooks as the values have them: {root: $, path: …} */}}
{{- define "lockstep.withRunbooks" -}}
{{- .root.Files.Get .path | replace "https://lockstep.dev/docs/alerts.md#" (printf "%s#" .root.Values.runbookUrl) -}}
{{- end -}}
