{{/* The namespace of the agents. */}}
{{- define "vscaled.namespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* The name of all objects. */}}
{{- define "vscaled.name" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default "vscaled" -}}
{{- end -}}

{{/* A file of deploy/, by its name there. The chart has it below files/, by links to the directories. */}}
{{- define "vscaled.file" -}}
{{- required (printf "the chart has no files/%s: package it from a whole checkout" .name) (.root.Files.Get (printf "files/%s" .name)) -}}
{{- end -}}

{{/*
Prints an object (.object) of a file of deploy/ as a document: with the chart's name, namespace and labels. Names of objects in
deploy/ begin with vscaled. Labels that the object has already stay, because selectors know them.
*/}}
{{- define "vscaled.object" -}}
{{- $metadata := .object.metadata -}}
{{- $_ := set $metadata "name" (printf "%s%s" (include "vscaled.name" .root) (trimPrefix "vscaled" $metadata.name)) -}}
{{- if hasKey $metadata "namespace" -}}{{- $_ := set $metadata "namespace" (include "vscaled.namespace" .root) -}}{{- end -}}
{{- $_ := set $metadata "labels" (merge ($metadata.labels | default dict) (include "vscaled.labels" .root | fromYaml)) }}
---
{{ toYaml .object }}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "vscaled.labels" -}}
{{- $labels := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $_ := set $labels "app.kubernetes.io/name" "vscaled" -}}
{{- $_ := set $labels "app.kubernetes.io/instance" .Release.Name -}}
{{- $_ := set $labels "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/component" "agent" -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "vscaled" -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $labels .Values.commonLabels) -}}
{{- end -}}

{{/* The configuration of the agents. */}}
{{- define "vscaled.config" -}}
{{- $config := include "vscaled.file" (dict "root" . "name" "base/agent.yaml") -}}
{{- $changed := deepCopy .Values.config -}}
{{- /* The overlay sets it for the agent alone: what restores gets no pods from the kubelet. */ -}}
{{- if and .Values.kubeletPods (eq (get $changed "source") "kubelet") -}}{{- $_ := unset $changed "source" -}}{{- end -}}
{{- with .Values.reportTls -}}
{{- if .secretName -}}
  {{- $files := dict "reportGrpcCaFile" "/etc/vscaled-tls/ca.crt" -}}
  {{- if .clientCertificate -}}
    {{- $_ := set $files "reportGrpcCertFile" "/etc/vscaled-tls/tls.crt" -}}
    {{- $_ := set $files "reportGrpcKeyFile" "/etc/vscaled-tls/tls.key" -}}
  {{- end -}}
  {{- $changed = merge $changed $files -}}
{{- else if .clientCertificate -}}
  {{- fail "reportTls.clientCertificate needs reportTls.secretName" -}}
{{- end -}}
{{- end -}}
{{- if $changed -}}
{{- mergeOverwrite (fromYaml $config) $changed | toYaml -}}
{{- else -}}
{{- $config -}}
{{- end -}}
{{- end -}}

{{/* The configuration that counts: a variable (extraEnv) precedes the file, and is refused if its value is none of the key. */}}
{{- define "vscaled.effective" -}}
{{- $config := include "vscaled.config" . | fromYaml -}}
{{- $schema := include "vscaled.file" (dict "root" . "name" "values.schema.json") | fromJson -}}
{{- range $key, $allowed := $schema.properties.config.properties -}}
  {{- range $variable := $.Values.extraEnv -}}
    {{- if and (hasKey $variable "value") (hasKey $allowed "pattern") (eq $variable.name (printf "VSCALED_%s" (snakecase $key | upper))) -}}
      {{- $value := kindIs "invalid" $variable.value | ternary "" (toString $variable.value) -}}
      {{- /* The kubelet replaces $(NAME). */ -}}
      {{- if not (or (contains "$(" $value) (regexMatch $allowed.pattern $value)) -}}
        {{- fail (printf "%s=%s in extraEnv is no value of config.%s: %s" $variable.name $value $key $allowed.description) -}}
      {{- end -}}
      {{- $_ := set $config $key $value -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The port of httpAddress, or nothing where neither the kubelet nor Prometheus reaches it. */}}
{{- define "vscaled.port" -}}
{{- $address := (include "vscaled.effective" . | fromYaml).httpAddress | default "" -}}
{{- if not (regexMatch "^(127\\.|\\[::1\\]|localhost:)" $address) -}}{{- regexFind "[0-9]+$" $address -}}{{- end -}}
{{- end -}}

{{/*
Applies a strategic merge patch (.patch) to an object (.object), which it changes, as kubectl and kustomize do: maps are merged, and so
are lists of objects, whose members are found by `name`, or by `mountPath` where there is one. Everything else is replaced.
*/}}
{{- define "vscaled.patch" -}}
{{- $object := .object -}}
{{- range $field, $new := .patch -}}
  {{- $old := get $object $field -}}
  {{- if and (kindIs "map" $new) (kindIs "map" $old) -}}
    {{- include "vscaled.patch" (dict "object" $old "patch" $new) -}}
  {{- else if and (kindIs "slice" $new) (kindIs "slice" $old) (kindIs "map" (first $new)) -}}
    {{- range $item := $new -}}
      {{- $key := ternary "mountPath" "name" (hasKey $item "mountPath") -}}
      {{- $found := false -}}
      {{- $merged := list -}}
      {{- range $existing := get $object $field -}}
        {{- if ne (get $existing $key) (get $item $key) -}}
          {{- $merged = append $merged $existing -}}
        {{- else -}}
          {{- $found = true -}}
          {{- if ne (get $item "$patch") "delete" -}}
            {{- include "vscaled.patch" (dict "object" $existing "patch" $item) -}}
            {{- $merged = append $merged $existing -}}
          {{- end -}}
        {{- end -}}
      {{- end -}}
      {{- if not $found -}}
        {{- $merged = append $merged $item -}}
      {{- end -}}
      {{- $_ := set $object $field $merged -}}
    {{- end -}}
  {{- else -}}
    {{- $_ := set $object $field $new -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The overlays of deploy/overlays that change the DaemonSet and that the values ask for, as a list in YAML. */}}
{{- define "vscaled.overlays" -}}
{{- $overlays := list -}}
{{- if ne .Values.cgroup "auto" -}}{{- $overlays = append $overlays (printf "cgroup-%s" .Values.cgroup) -}}{{- end -}}
{{- if eq .Values.runtime "cri-o" -}}{{- $overlays = append $overlays "cri-o" -}}{{- end -}}
{{- if .Values.kernelLog -}}{{- $overlays = append $overlays "kernel-log" -}}{{- end -}}
{{- if .Values.kubeletPods -}}{{- $overlays = append $overlays "kubelet-pods" -}}{{- end -}}
{{- if .Values.restore -}}
{{- $overlays = append $overlays "restore" -}}
{{- else if .Values.observeOnly -}}
{{- $overlays = append $overlays "observe-only" -}}
{{- end -}}
{{- toYaml $overlays -}}
{{- end -}}

{{/* Names the image in a container (.container). */}}
{{- define "vscaled.image" -}}
{{- with .root.Values.image -}}
{{- if .repository -}}
{{- $version := ternary (printf "@%s" .digest) (printf ":%s" (.tag | default $.root.Chart.AppVersion)) (not (empty .digest)) -}}
{{- $_ := set $.container "image" (print .repository $version) -}}
{{- else -}}
{{- fail "image.repository is required: REGISTRY/vscaled, an image that your nodes can pull, or its name on nodes that have it already (then also image.tag)" -}}
{{- end -}}
{{- with .pullPolicy -}}{{- $_ := set $.container "imagePullPolicy" . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where the pods go (.pod): nodes of the values, with their Secrets for the registry. */}}
{{- define "vscaled.placement" -}}
{{- $pod := .pod -}}
{{- with .root.Values -}}
{{- if .imagePullSecrets -}}
  {{- $secrets := list -}}
  {{- range .imagePullSecrets -}}
    {{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
  {{- end -}}
  {{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- $_ := set $pod "nodeSelector" (merge .nodeSelector $pod.nodeSelector) -}}
{{- $_ := set $pod "tolerations" .tolerations -}}
{{- if .affinity -}}{{- $_ := set $pod "affinity" .affinity -}}{{- end -}}
{{- if .priorityClassName -}}{{- $_ := set $pod "priorityClassName" .priorityClassName -}}{{- end -}}
{{- end -}}
{{- end -}}
