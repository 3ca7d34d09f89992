{{/*
A Deployment of one of our binaries with its ServiceAccount.
Call with (dict "root" $ "component" "operator" "values" .Values.operator "command" "/tailnet-operator" "healthPort" 9403 "env" "…yaml…" "ports" "…yaml…" "strategy" "…yaml…" "trustedCA" "…PEM, empty when the process makes no outgoing TLS connection…").
*/}}
{{- define "tailnet.workload" -}}
{{- $name := printf "tailnet-%s" .component }}
{{- $labels := include "tailnet.labels" . }}
{{- $selector := include "tailnet.selector" . }}
{{- $v := .root.Values }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  strategy: {{ .strategy }}
  selector:
    matchLabels: {{- $selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- $labels | nindent 8 }}
        {{- with .values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .component }}
        {{- with .trustedCA }}
        # The bundle is read at start.
        checksum/trusted-ca: {{ sha256sum . }}
        {{- end }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: 45
      securityContext: {{- include "tailnet.podSecurityContext" . | nindent 8 }}
      {{- include "tailnet.placement" . | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "tailnet.image" (dict "image" $v.image "defaultTag" .root.Chart.AppVersion) }}
          imagePullPolicy: {{ $v.image.pullPolicy }}
          command: [{{ .command }}]
          env:
            {{- include "tailnet.commonEnv" . | nindent 12 }}
            {{- .env | nindent 12 }}
            {{- if .trustedCA }}
            - {name: TRUSTED_CA_FILE, value: /etc/tailnet-trusted-ca/ca.crt}
            {{- end }}
          ports:
            - {name: health, containerPort: {{ .healthPort }}, protocol: TCP}
            {{- with .ports }}
            {{- . | nindent 12 }}
            {{- end }}
          readinessProbe: {httpGet: {path: /readyz, port: health}, periodSeconds: 2, timeoutSeconds: 2}
          livenessProbe: {httpGet: {path: /healthz, port: health}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
          resources: {{- toYaml .values.resources | nindent 12 }}
          securityContext: {{- include "tailnet.containerSecurityContext" . | nindent 12 }}
          {{- if .trustedCA }}
          volumeMounts:
            - {name: trusted-ca, mountPath: /etc/tailnet-trusted-ca, readOnly: true}
          {{- end }}
      {{- if .trustedCA }}
      volumes:
        - {name: trusted-ca, configMap: {name: tailnet-trusted-ca}}
      {{- end }}
{{- end }}
