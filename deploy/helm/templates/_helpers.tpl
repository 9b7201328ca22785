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

{{- /* How the parts are protected: tls, mesh or none. */ -}}
{{- define "dexorder.security" -}}
{{- $given := .Values.security | default (ternary "mesh" "tls" (eq .Values.mesh "istio")) -}}
{{- if and (eq $given "mesh") (ne .Values.mesh "istio") -}}
{{- fail (printf "security: mesh needs sidecars that say who calls, mesh: istio; with mesh: %s use security: tls" .Values.mesh) -}}
{{- end -}}
{{- $given -}}
{{- end -}}

{{- /* Name of the Secret with a part's certificate: (list $ part). */ -}}
{{- define "dexorder.certificate" -}}
{{- $tls := (index . 0).Values.tls -}}
{{- ternary (printf "%s-%s" $tls.secret (index . 1)) $tls.secret (eq $tls.identity "certificate") -}}
{{- end -}}

{{- /* Whether the mesh sees single calls, so that its policies can name paths. */ -}}
{{- define "dexorder.seesCalls" -}}
{{- if and (eq .Values.mesh "istio") (ne (include "dexorder.security" .) "tls") }}true{{ end -}}
{{- end -}}

{{- /* The mesh's name of a part's account: (list $ part). */ -}}
{{- define "dexorder.principal" -}}
{{- $root := index . 0 -}}
{{- printf "%s/ns/%s/sa/%s" $root.Values.istio.trustDomain $root.Release.Namespace (include "dexorder.name" .) -}}
{{- end -}}

{{- /* A list, as JSON, of those who have one of some roles: (list $ roles). */ -}}
{{- define "dexorder.principals" -}}
{{- $root := index . 0 -}}
{{- $own := dict "client" "relay" "gateway" "gateway" "ingestor" "ingestor" "pipeline" "spark" -}}
{{- $found := list -}}
{{- range $role := index . 1 -}}
{{- with get $own $role -}}
{{- $found = append $found (include "dexorder.principal" (list $root .)) -}}
{{- end -}}
{{- $found = concat $found (get $root.Values.istio.principals $role | default list) -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- /* Annotations of pods in a mesh. */ -}}
{{- define "dexorder.meshAnnotations" -}}
{{- if eq .Values.mesh "istio" -}}
{{- if .Values.istio.nativeSidecars -}}
sidecar.istio.io/nativeSidecar: "true"
{{- else -}}
# The gateway needs Kafka until its acks are out.
proxy.istio.io/config: |
  {"terminationDrainDuration": "{{ add 60 .Values.lameDuckSeconds }}s", "holdApplicationUntilProxyStarts": true}
{{- end }}
{{- else if eq .Values.mesh "linkerd" -}}
linkerd.io/inject: enabled
config.linkerd.io/opaque-ports: "5567,5570,5571,9092"
config.beta.linkerd.io/proxy-enable-native-sidecar: "true"
{{- end -}}
{{- end -}}

{{- define "dexorder.meshLabels" -}}
{{- if eq .Values.mesh "istio" -}}
sidecar.istio.io/inject: "true"
{{- else if eq .Values.mesh "ambient" -}}
istio.io/dataplane-mode: ambient
{{- end -}}
{{- end -}}

{{- /* Protocol of a port, as proxies should take it: (list $ name). */ -}}
{{- define "dexorder.protocol" -}}
{{- $tls := eq (include "dexorder.security" (index . 0)) "tls" -}}
{{- $known := dict "grpc" (ternary "tls" "grpc" $tls) "web" (ternary "https" "http" $tls) "metrics" "http" -}}
{{- get $known (index . 1) | default "tcp" -}}
{{- end -}}
