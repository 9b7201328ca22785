{{- /* Name of a part's objects: (list $ part). */ -}}
{{- define "dexorder.name" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s" $root.Release.Name (index . 1) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* Labels that select a part's pods: (list $ part). */ -}}
{{- define "dexorder.selector" -}}
app.kubernetes.io/name: dexorder
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "dexorder.labels" -}}
{{ include "dexorder.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}
