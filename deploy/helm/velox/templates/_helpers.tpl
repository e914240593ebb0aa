{{- define "velox.name" -}}
{{- if eq .Release.Name .Chart.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "velox.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "velox.labels" -}}
{{ include "velox.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "velox.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "velox.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "velox.name" .) }}
{{- end }}

{{- define "velox.claim" -}}
{{ .Values.ledger.volume.existingClaim | default (printf "%s-ledger" (include "velox.name" .)) }}
{{- end }}

{{- /* What contradicts itself, and what no schema can say. */ -}}
{{- define "velox.check" -}}
{{- if not .Values.existingSecret }}
{{- fail "existingSecret: expected the name of a Secret with VELOX_ADMIN_TOKEN, VELOX_API_KEYS and keys of providers as its keys" }}
{{- end }}
{{- if eq .Values.ledger.mode "volume" }}
{{- if or (gt (int .Values.replicaCount) 1) .Values.autoscaling.enabled }}
{{- fail "ledger.mode: volume is for one gateway, as each needs a volume of its own: set replicaCount to 1 and autoscaling.enabled to false, or ledger.mode to postgres" }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) }}
{{- fail (printf "autoscaling.maxReplicas: %d is less than autoscaling.minReplicas, %d" (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.targetCPUUtilizationPercentage) (not .Values.autoscaling.metrics) }}
{{- fail "autoscaling: expected targetCPUUtilizationPercentage above 0, or metrics" }}
{{- end }}
{{- end }}
