{{/* The namespace of the agents. */}}
{{- define "vscaled.namespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* A file of deploy/, by its name there. The chart has it below files/, by links to the directories. */}}
{{- define "vscaled.file" -}}
{{- required (printf "the chart has no files/%s: package it from a whole checkout" .name) (.root.Files.Get (printf "files/%s" .name)) -}}
{{- end -}}

{{/* The configuration of the agents. */}}
{{- define "vscaled.config" -}}
{{- $base := include "vscaled.file" (dict "root" . "name" "base/agent.yaml") -}}
{{- if .Values.config -}}
{{- mergeOverwrite (fromYaml $base) (deepCopy .Values.config) | toYaml -}}
{{- else -}}
{{- $base -}}
{{- end -}}
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
{{- else if or .tag .digest -}}
{{- fail "image.tag and image.digest need image.repository" -}}
{{- end -}}
{{- with .pullPolicy -}}{{- $_ := set $.container "imagePullPolicy" . -}}{{- end -}}
{{- end -}}
{{- end -}}
