{{/* Gives a value that is null, such as a key with comments alone below it, what it has in values.yaml. Comes first in each template. */}}
{{- define "vscaled.defaults" -}}
{{- include "vscaled.fill" (dict "values" .Values "defaults" (include "vscaled.file" (dict "root" . "name" "values.yaml") | fromYaml)) -}}
{{- range $key, $value := .Values.config -}}
  {{- if kindIs "invalid" $value -}}{{- $_ := unset $.Values.config $key -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Gives the values that are null or missing (.values) what they have in .defaults. */}}
{{- define "vscaled.fill" -}}
{{- range $key, $default := .defaults -}}
  {{- $value := index $.values $key -}}
  {{- if kindIs "invalid" $value -}}
    {{- $_ := set $.values $key $default -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" $default) -}}
    {{- include "vscaled.fill" (dict "values" $value "defaults" $default) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses what no schema refuses: unknown values, with the nearest known one, and values that contradict each other. */}}
{{- define "vscaled.check" -}}
{{- include "vscaled.known" (dict "values" .Values "schema" (include "vscaled.file" (dict "root" . "name" "values.schema.json") | fromJson) "path" "") -}}
{{- range $key := keys .Values.config | sortAlpha -}}
  {{- $words := list "apiVersion" "kind" -}}
  {{- range regexFindAll "(?m)^\\| `[A-Za-z]+` \\| `--" (include "vscaled.file" (dict "root" $ "name" "configuration.md")) -1 -}}
    {{- $words = append $words (regexFind "[A-Za-z]+" .) -}}
  {{- end -}}
  {{- if not (has $key $words) -}}{{- include "vscaled.unknown" (dict "path" "config." "key" $key "words" $words "all" "docs/configuration.md lists all keys") -}}{{- end -}}
{{- end -}}
{{- if and (hasKey .Values.config "observeOnly") (ne (toString .Values.config.observeOnly) (toString .Values.observeOnly)) -}}
{{- fail (printf "config.observeOnly=%v and observeOnly=%v contradict each other: set observeOnly alone" .Values.config.observeOnly .Values.observeOnly) -}}
{{- end -}}
{{- $version := toString (get .Values.config "kubeletVersion") -}}
{{- if regexMatch "^1\\.[0-9]$" $version -}}
{{- fail (printf "config.kubeletVersion=%s is older than every kubelet that runs agents: YAML takes 1.30 for 1.3, so write it in quotes" $version) -}}
{{- end -}}
{{- $source := (include "vscaled.effective" . | fromYaml).source -}}
{{- if and .Values.kubeletPods (not (has $source (list "kubelet" "kubernetes"))) -}}
{{- fail (printf "config.source=%v and kubeletPods=true contradict each other: set kubeletPods alone" $source) -}}
{{- end -}}
{{- if eq (include "vscaled.name" .) "default" -}}
{{- fail (printf "%s=default would give the agents' rights to every pod of the namespace that names no service account: choose another name" (ternary "fullnameOverride" "nameOverride" (eq .Values.fullnameOverride "default"))) -}}
{{- end -}}
{{- if hasSuffix ".sock" .Values.runtimeDirectory -}}
{{- fail (printf "runtimeDirectory=%s is a socket: name its directory, %s" .Values.runtimeDirectory (dir .Values.runtimeDirectory)) -}}
{{- end -}}
{{- /* The variable would also precede the one that keeps agents from acting again after they restored. */ -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "VSCALED_OBSERVE_ONLY" -}}{{- fail "extraEnv has VSCALED_OBSERVE_ONLY: set observeOnly alone" -}}{{- end -}}
{{- if and $.Values.kubeletPods (eq .name "VSCALED_SOURCE") (ne (get . "value") "kubelet") -}}
{{- fail (printf "VSCALED_SOURCE=%v in extraEnv and kubeletPods=true contradict each other: set kubeletPods alone" (get . "value")) -}}
{{- end -}}
{{- end -}}
{{- /* The new agent would wait for the lock of the old one, and the old one for the new one to become ready. */ -}}
{{- $surge := toString (get (get .Values.updateStrategy "rollingUpdate" | default dict) "maxSurge" | default 0) -}}
{{- if not (or (has $surge (list "0" "0%")) (eq (get .Values.updateStrategy "type") "OnDelete")) -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge=%s: a node can have one agent, so a rollout would never end: leave it out, or set 0, and set maxUnavailable" $surge) -}}
{{- end -}}
{{- /* One agent on each node: two would write the same files. */ -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
  {{- $metadata := .metadata -}}
  {{- $own := and (eq $metadata.name (include "vscaled.name" $)) (eq $metadata.namespace (include "vscaled.namespace" $)) -}}
  {{- if and (eq (get ($metadata.labels | default dict) "app.kubernetes.io/name" | default "") "vscaled") (not $own) -}}
    {{- if include "vscaled.made" (dict "root" $ "metadata" $metadata) -}}
      {{- fail (printf "this release has DaemonSet %s in namespace %s, and an upgrade changes neither: restore and uninstall it, then install it anew" $metadata.name $metadata.namespace) -}}
    {{- end -}}
    {{- fail (printf "DaemonSet %s in namespace %s is vscaled already, and a node can have one agent: upgrade or uninstall that release (%s)" $metadata.name $metadata.namespace (get ($metadata.annotations | default dict) "meta.helm.sh/release-name" | default "not one of Helm's")) -}}
  {{- end -}}
{{- end -}}
{{- /* Helm would name missing labels and no way out. At an upgrade it does not look. */ -}}
{{- $namespace := include "vscaled.namespace" . -}}
{{- if and .Release.IsInstall (ne $namespace .Release.Namespace) -}}
  {{- $metadata := (lookup "v1" "Namespace" "" $namespace).metadata -}}
  {{- if and $metadata (not (include "vscaled.made" (dict "root" . "metadata" $metadata))) -}}
    {{- fail (printf "namespace %s exists, and this release did not create it: add --namespace %s to helm's command, and label the namespace for pod security" $namespace $namespace) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Names the first of .keys of the configuration (.config) whose path the container lacks: it is neither below one of .mounts nor above one. */}}
{{- define "vscaled.unmounted" -}}
{{- $first := "" -}}
{{- range $key := .keys -}}
  {{- $path := get $.config $key | toString | trimPrefix "unix://" | trimSuffix "/" | printf "%s/" -}}
  {{- $found := not (hasPrefix "/" $path) -}}
  {{- range $.mounts -}}
    {{- $mount := .mountPath | trimSuffix "/" | printf "%s/" -}}
    {{- if or (hasPrefix $mount $path) (hasPrefix $path $mount) -}}{{- $found = true -}}{{- end -}}
  {{- end -}}
  {{- if not (or $found $first) -}}{{- $first = printf "config.%s=%v" $key (get $.config $key) -}}{{- end -}}
{{- end -}}
{{- $first -}}
{{- end -}}

{{/* Says whether this release made an object of the cluster (.metadata). */}}
{{- define "vscaled.made" -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- $name := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if and (eq $name .root.Release.Name) (eq $namespace .root.Release.Namespace) -}}yes{{- end -}}
{{- end -}}

{{/* Refuses keys of an object (.values, named .path) that its schema (.schema) does not have. */}}
{{- define "vscaled.known" -}}
{{- $properties := .schema.properties -}}
{{- range $key, $value := .values -}}
  {{- $path := printf "%s%s" $.path $key -}}
  {{- if hasKey $properties $key -}}
    {{- $schema := get $properties $key -}}
    {{- if and (kindIs "map" $value) (hasKey $schema "properties") (not (hasKey $schema "additionalProperties")) -}}
      {{- include "vscaled.known" (dict "values" $value "schema" $schema "path" (printf "%s." $path)) -}}
    {{- end -}}
  {{- else -}}
    {{- include "vscaled.unknown" (dict "path" $.path "key" $key "words" (keys $properties | sortAlpha) "all" "the chart's README lists all values") -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses the key .key below .path, which none of .words is. .all says where those are listed. */}}
{{- define "vscaled.unknown" -}}
{{- $nearest := include "vscaled.nearest" (dict "word" .key "words" .words) -}}
{{- $hint := ternary .all (printf "did you mean %s%s?" .path $nearest) (empty $nearest) -}}
{{- fail (printf "there is no value %s%s: %s" .path .key $hint) -}}
{{- end -}}

{{/* The one of .words that has most letters and pairs of letters in common with .word, if it is half of them. */}}
{{- define "vscaled.nearest" -}}
{{- $pairs := include "vscaled.pairs" .word | fromJsonArray -}}
{{- $best := 0 -}}
{{- $nearest := "" -}}
{{- range $candidate := .words -}}
  {{- $others := include "vscaled.pairs" $candidate | fromJsonArray -}}
  {{- $common := 0 -}}
  {{- range $pairs -}}{{- if has . $others -}}{{- $common = add1 $common -}}{{- end -}}{{- end -}}
  {{- $score := div (mul 200 $common) (add1 (add (len $pairs) (len $others))) -}}
  {{- if gt (int $score) (int $best) -}}{{- $best = $score -}}{{- $nearest = $candidate -}}{{- end -}}
{{- end -}}
{{- if ge (int $best) 50 -}}{{- $nearest -}}{{- end -}}
{{- end -}}

{{/* The letters of a word and its pairs of neighbouring letters, also with its ends, without case. */}}
{{- define "vscaled.pairs" -}}
{{- $pairs := list -}}
{{- $last := "^" -}}
{{- range splitList "" (lower .) -}}{{- $pairs = concat $pairs (list . (print $last .)) -}}{{- $last = . -}}{{- end -}}
{{- toJson (append $pairs (print $last "$")) -}}
{{- end -}}
