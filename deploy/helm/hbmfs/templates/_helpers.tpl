{{/* The driver's name is part of every volume of a cluster, so it is nobody's to choose. */}}
{{- define "hbmfs.driver" -}}csi.hbmfs.io{{- end }}

{{- define "hbmfs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "hbmfs.labels" -}}
app.kubernetes.io/name: hbmfs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Where kubelet finds the plugin's socket. */}}
{{- define "hbmfs.socketDir" -}}
{{ .Values.kubeletDir }}/plugins/{{ include "hbmfs.driver" . }}
{{- end }}

{{- define "hbmfs.cacheDir" -}}
{{ .Values.cacheDir | default (printf "%s/cache" .Values.stateDir) }}
{{- end }}

{{/* What both DaemonSets say of the nodes they run on. */}}
{{- define "hbmfs.placement" -}}
serviceAccountName: {{ .Release.Name }}
# Neither part talks to the API server.
automountServiceAccountToken: false
priorityClassName: {{ .Values.priorityClassName }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* All that a container may be denied. */}}
{{- define "hbmfs.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
