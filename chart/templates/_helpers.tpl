{{/* Labels of every object. Call with (dict "root" $ "component" "webhook"). */}}
{{- define "tailnet.labels" -}}
app.kubernetes.io/name: tailnet-operator
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels that a Deployment selects its Pods by: they never change. */}}
{{- define "tailnet.selector" -}}
app.kubernetes.io/name: tailnet-operator
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Image reference. Call with (dict "image" .Values.image "defaultTag" .Chart.AppVersion). */}}
{{- define "tailnet.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .defaultTag }}
{{- end }}
{{- end }}

{{/* What the restricted Pod Security Standard asks for. */}}
{{- define "tailnet.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tailnet.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where a Pod may run. Call with (dict "root" $ "component" "webhook" "values" .Values.webhook). */}}
{{- define "tailnet.placement" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else if gt (int .values.replicas) 1 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "tailnet.selector" . | nindent 8 }}
{{- end }}
{{- end }}

{{/* Environment of both processes. Call with (dict "root" $ "values" .Values.webhook). */}}
{{- define "tailnet.commonEnv" -}}
- name: OPERATOR_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: LOG_LEVEL
  value: {{ .root.Values.logLevel | quote }}
- name: LOG_FORMAT
  value: {{ .root.Values.logFormat | quote }}
{{- with .values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
failurePolicy of the entry that checks. Ignore only in the first installation by Helm itself: nothing can answer yet, and objects of our kinds
may be in the same release. The webhook sets Fail once the API server has reached it. Whoever only renders (helm template, Argo CD) gets Fail.
*/}}
{{- define "tailnet.failurePolicy" -}}
{{- if .Release.IsUpgrade -}}
Fail
{{- else if lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" "tailnet-webhook" -}}
Fail
{{- else if lookup "v1" "Namespace" "" "kube-system" -}}
Ignore
{{- else -}}
Fail
{{- end }}
{{- end }}

{{/* Name of the Secret that brings the webhook's certificate; nothing with the webhook's own CA. */}}
{{- define "tailnet.certificateSecret" -}}
{{- $certificate := .Values.webhook.certificate -}}
{{- if eq $certificate.source "cert-manager" -}}
tailnet-webhook-tls
{{- else if eq $certificate.source "secret" -}}
{{ required "webhook.certificate.source is secret: webhook.certificate.secretName must name a Secret with tls.crt, tls.key and ca.crt" $certificate.secretName }}
{{- end -}}
{{- end }}
