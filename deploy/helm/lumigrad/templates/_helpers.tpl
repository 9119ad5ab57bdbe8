{{- define "lumigrad.name" -}}
{{- if contains "lumigrad" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-lumigrad" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lumigrad.selector" -}}
app.kubernetes.io/name: lumigrad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lumigrad.labels" -}}
{{ include "lumigrad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lumigrad.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.device) }}
{{- end }}

{{- define "lumigrad.tlsSecret" -}}
{{ required "tls.existingSecret: expected the name of a Secret with tls.crt and tls.key, as tls.enabled is true" .Values.tls.existingSecret }}
{{- end }}

{{- define "lumigrad.tokensSecret" -}}
{{- if .Values.auth.existingSecret }}{{ .Values.auth.existingSecret }}
{{- else if .Values.auth.tokens }}{{ include "lumigrad.name" . }}-tokens
{{- else }}{{ fail "auth: expected auth.existingSecret or auth.tokens, as auth.enabled is true" }}
{{- end }}
{{- end }}

{{- define "lumigrad.isInsecure" -}}
{{- if not (and .Values.tls.enabled (or .Values.auth.enabled .Values.tls.clientCa)) }}true{{ end }}
{{- end }}

{{- /* What the kubelet asks. It cannot speak gRPC with TLS, so then it asks by HTTP for the same. */ -}}
{{- define "lumigrad.probe" -}}
{{- if .Values.tls.enabled -}}
httpGet:
  path: /health
  port: metrics
{{- else -}}
grpc:
  port: {{ .Values.worker.port }}
{{- end }}
{{- end }}
