//! Kubernetes manifests in YAML or JSON text → [`KnownObjects`].
//!
//! A text holds one or more documents; `List` kinds are unfolded, and nulls count as absent, as in the API server. Unused
//! kinds, and kinds of other projects, are skipped with a warning. Any other unusable object is an error with the origin of
//! the text, the document and the field, and then nothing of the text is used. What is kept of an object is what the API
//! server's objects are reduced to.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::KnownObjects;
use super::validate::{check_pod, check_texts};
use super::workload::{self, Workload};
use crate::kubernetes::{KeptObject, ObjectMemory, reduce, strip_nulls};
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, Node, OwnerKind, Pod, ResourceQuota, VerticalPodAutoscaler, group_of,
};
use crate::model::unreadable;

/// The objects of a text.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The objects that the agent uses.
    pub view: KnownObjects,
    /// One sentence for each skipped object, and for each annotation that is too long to keep.
    pub warnings: Vec<String>,
    /// The memory that the objects take, in bytes, by namespace.
    pub(super) held: BTreeMap<String, usize>,
    /// The objects without memory: the first one, and the number of all.
    pub(super) left_out: Option<(String, usize)>,
}

/// An unusable text.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {message}")]
pub struct ManifestError {
    /// The file, or `-` for standard input.
    pub origin: String,
    /// The problem and the allowed values, with document, object and field where there are any.
    pub message: String,
}

/// Reads a text of one or more documents. `origin` names the file in messages.
///
/// Errors: [`ManifestError`] for the first unusable document.
pub fn parse_manifests(origin: &str, text: &str) -> Result<Manifests, ManifestError> {
    parse_within(origin, text, "", &ObjectMemory::new(u64::MAX))
}

/// As [`parse_manifests`], without pods that are bound to another node than this one, if it has a name. Objects of namespaces that
/// have their share of `memory` are left out. On errors, all memory is given back.
pub(super) fn parse_within(
    origin: &str,
    text: &str,
    node_name: &str,
    memory: &ObjectMemory,
) -> Result<Manifests, ManifestError> {
    let mut manifests = Manifests::default();
    let parsed = for_each_object(origin, text, |document, kind, object| {
        manifests.add(document, kind, object, node_name, memory)
    });
    parsed.inspect_err(|_| give_back(memory, &manifests.held))?;
    Ok(manifests)
}

/// Gives back the memory of a text's objects.
pub(super) fn give_back(memory: &ObjectMemory, held: &BTreeMap<String, usize>) {
    for (namespace, bytes) in held {
        memory.give_back(namespace, *bytes);
    }
}

/// Calls `read` with every object of a text and its kind. Unfolds lists.
pub(super) fn for_each_object(
    origin: &str,
    text: &str,
    mut read: impl FnMut(&ManifestDocument<'_>, &str, Value) -> Result<(), ManifestError>,
) -> Result<(), ManifestError> {
    let mut bytes = text.as_bytes();
    // One document at a time: a tree of values takes many times the memory of its text.
    let documents = serde_saphyr::read_with_options::<_, Value>(&mut bytes, yaml_options());
    for (index, object) in documents.enumerate() {
        let object = object.map_err(|error| ManifestError {
            origin: origin.to_owned(),
            message: format!("not readable as YAML or JSON: {}", unreadable(&error, text)),
        })?;
        let number = index + 1;
        ManifestDocument { origin, number }.unfold(object, &mut read)?;
    }
    Ok(())
}

/// `name: n` is a name, not a boolean. The budget admits the pods of a full node and bounds the memory for a hostile file.
fn yaml_options() -> serde_saphyr::Options {
    let budget = serde_saphyr::budget! { max_documents: 20_000, max_nodes: 4_000_000, max_events: 16_000_000 };
    serde_saphyr::options! { strict_booleans: true, with_snippet: false, budget: budget }
}

impl Manifests {
    fn add(
        &mut self,
        document: &ManifestDocument<'_>,
        kind: &str,
        mut object: Value,
        node_name: &str,
        memory: &ObjectMemory,
    ) -> Result<(), ManifestError> {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let group = group_of(version);
        // Other projects have kinds of the same names, such as Node.
        let is_other = group.contains('.') && !group.ends_with(".k8s.io");
        let keep = &mut Keep {
            document,
            described: describe(&object),
            memory,
            held: &mut self.held,
            left_out: &mut self.left_out,
            warnings: &mut self.warnings,
        };
        let view = &mut self.view;
        match kind {
            _ if is_other => self
                .warnings
                .push(document.ignored(&object, ": its apiVersion is none of Kubernetes")),
            "Pod" => {
                let pod: Pod = document.typed(object, check_pod)?;
                if node_name.is_empty() || ["", node_name].contains(&pod.spec.node_name.as_str()) {
                    view.pods.extend(keep.object(pod)?);
                }
            }
            "VerticalPodAutoscaler" => view.vpas.extend(keep.read::<VerticalPodAutoscaler, _>(object)?),
            "LimitRange" => view.limit_ranges.extend(keep.read::<LimitRange, _>(object)?),
            "ResourceQuota" => view.quotas.extend(keep.read::<ResourceQuota, _>(object)?),
            "HorizontalPodAutoscaler" => view.hpas.extend(keep.read::<HorizontalPodAutoscaler, _>(object)?),
            "Node" => view.node = keep.read::<Node, _>(object)?.or(view.node.take()),
            _ => match OwnerKind::of(version, kind) {
                Some(kind) => {
                    workload::in_one_notation(kind, &mut object);
                    let workload: Workload = document.typed(object, |_| Ok(()))?;
                    view.owners.extend(keep.object(workload.into_owner(kind))?);
                }
                None => self.warnings.push(document.ignored(&object, "")),
            },
        }
        Ok(())
    }
}

/// Reduces an object of a text to what the agent keeps.
struct Keep<'a> {
    document: &'a ManifestDocument<'a>,
    described: String,
    memory: &'a ObjectMemory,
    held: &'a mut BTreeMap<String, usize>,
    left_out: &'a mut Option<(String, usize)>,
    warnings: &'a mut Vec<String>,
}

impl Keep<'_> {
    /// Decodes and reduces an object.
    fn read<T: KeptObject + DeserializeOwned, Kept: From<T>>(
        &mut self,
        object: Value,
    ) -> Result<Option<Kept>, ManifestError> {
        let object: T = self.document.typed(object, |_| Ok(()))?;
        self.object(object)
    }

    /// The reduced object; none if its namespace has its share of the memory.
    fn object<T: KeptObject, Kept: From<T>>(&mut self, mut object: T) -> Result<Option<Kept>, ManifestError> {
        let described = &self.described;
        let refused = |why: String| self.document.unusable(&format!(" ({described}): {why}"));
        let (bytes, left_out) = reduce(&mut object).map_err(refused)?;
        self.warnings.extend(left_out.map(|what| refused(what).to_string()));
        let namespace = &object.metadata_mut().namespace;
        let Ok(held) = self.memory.take(namespace, 0, bytes) else {
            let (_, count) = self.left_out.get_or_insert_with(|| (described.clone(), 0));
            *count += 1;
            return Ok(None);
        };
        *self.held.entry(namespace.clone()).or_default() += held;
        Ok(Some(object.into()))
    }
}

/// The position of an object, for messages.
pub(super) struct ManifestDocument<'a> {
    origin: &'a str,
    /// Counted from 1.
    number: usize,
}

impl ManifestDocument<'_> {
    fn unfold(
        &self,
        mut object: Value,
        read: &mut impl FnMut(&ManifestDocument<'_>, &str, Value) -> Result<(), ManifestError>,
    ) -> Result<(), ManifestError> {
        if object.is_null() {
            return Ok(());
        }
        strip_nulls(&mut object);
        let Some(kind) = object.get("kind").and_then(Value::as_str).map(str::to_owned) else {
            return Err(self.unusable(": not a Kubernetes object: it has no kind"));
        };
        let (of, items) = match (kind.strip_suffix("List"), object.get_mut("items")) {
            (Some(of), Some(Value::Array(items))) => (of, std::mem::take(items)),
            (Some(""), _) => return Err(self.unusable(": a list without items")),
            // The name of another kind may end like that.
            _ => return read(self, &kind, object),
        };
        // The API server omits kind and version of the items of a typed list.
        let version = &object["apiVersion"];
        items.into_iter().try_for_each(|mut item| {
            if let Some(fields) = item.as_object_mut().filter(|_| !of.is_empty()) {
                fields.entry("kind").or_insert_with(|| Value::from(of));
                fields.entry("apiVersion").or_insert_with(|| version.clone());
            }
            self.unfold(item, read)
        })
    }

    fn ignored(&self, object: &Value, why: &str) -> String {
        let message = format!(": {} ignored{why}", describe(object));
        self.unusable(&message).to_string()
    }

    /// Decodes and checks an object. Errors name the object and the field.
    pub(super) fn typed<T: DeserializeOwned>(
        &self,
        object: Value,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Result<T, ManifestError> {
        let described = describe(&object);
        let refused = |invalid: String| self.unusable(&format!(" ({described}): {invalid}"));
        check_texts(&object).map_err(refused)?;
        let decoded: T =
            serde_path_to_error::deserialize(object).map_err(|error| refused(explained(&error.to_string())))?;
        check(&decoded).map_err(refused)?;
        Ok(decoded)
    }

    /// An error about this document.
    fn unusable(&self, message: &str) -> ManifestError {
        ManifestError {
            origin: self.origin.to_owned(),
            message: format!("document {}{message}", self.number),
        }
    }
}

/// The decoder's error about a value of another type, in the words of a manifest's author. YAML 1.1 reads some words as booleans.
fn explained(error: &str) -> String {
    let Some((path, (found, wanted))) = error
        .split_once("invalid type: ")
        .and_then(|(path, types)| Some((path, types.rsplit_once(", expected ")?)))
    else {
        return error.to_owned();
    };
    let wanted = match wanted {
        "a string" | "string or map" => "a text",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "i32" | "i64" | "u32" | "u64" => "a whole number",
        map if map.starts_with("struct ") || map.ends_with(" map") => "a map",
        other => other,
    };
    let quote = match found.split_once(' ') {
        Some(("boolean", _)) => ": quote the word, since Off, On, Yes and No are booleans to many programs",
        Some(("integer" | "floating", _)) if wanted == "a text" => ": quote the number",
        _ => "",
    };
    let found = match found.split_once(" `").map(|(_, value)| value.trim_end_matches('`')) {
        Some(value) => value,
        None if found == "sequence" => "a list",
        None if found == "map" => "a map",
        None => found.strip_prefix("string ").unwrap_or(found),
    };
    format!("{path}{found} is refused: it must be {wanted}{quote}")
}

/// Kind and name of an object, as far as it has them.
fn describe(document: &Value) -> String {
    let text = |pointer| {
        let text = document.pointer(pointer).and_then(Value::as_str)?;
        Some(text.escape_debug().take(300).collect::<String>())
    };
    let kind = text("/kind").unwrap_or_else(|| "object".to_owned());
    match (text("/metadata/namespace"), text("/metadata/name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, MilliCpu};

    fn parse(text: &str) -> Result<Manifests, ManifestError> {
        parse_manifests("pods.yaml", text)
    }

    fn pod_with(resources: &str) -> String {
        format!("kind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: app\n    resources: {resources}\n")
    }

    #[test]
    fn a_word_read_as_a_boolean_is_to_be_quoted() {
        let vpa = "kind: VerticalPodAutoscaler\nmetadata: {name: v}\nspec: {targetRef: {kind: Job, name: j}, \
                   updatePolicy: {updateMode: MODE}}\n";
        let refused = parse(&vpa.replace("MODE", "false")).unwrap_err().to_string();
        assert!(
            refused.contains("spec.updatePolicy.updateMode: false is refused: it must be a text: quote the word"),
            "{refused}"
        );
        assert_eq!(parse(&vpa.replace("MODE", "Off")).unwrap().view.vpas.len(), 1);
    }

    #[test]
    fn a_value_of_another_type_is_named() {
        for (resources, why) in [
            ("5", "resources: 5 is refused: it must be a map"),
            ("{limits: [1]}", "resources.limits: a list is refused: it must be a map"),
            (
                "{requests: no}",
                "resources.requests: \"no\" is refused: it must be a map",
            ),
            ("{}\n    env: {A: b}", "env: a map is refused: it must be a list"),
            (
                "{}\n    env: [{name: A, value: 5}]",
                "env[0].value: 5 is refused: it must be a text: quote the number",
            ),
            (
                "{requests: {cpu: [1]}}",
                "requests.cpu: a list is refused: it must be a quantity such as 250m, 1.5Gi or 128974848",
            ),
        ] {
            let refused = parse(&pod_with(resources)).unwrap_err().to_string();
            assert!(refused.ends_with(why), "{refused}");
        }
    }

    #[test]
    fn several_documents_and_lists_become_one_view() {
        let text = "
apiVersion: v1
kind: List
items:
- {kind: Pod, metadata: {name: a, namespace: x}, spec: {containers: [{name: c}]}}
- {kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Pod, max: {cpu: 1}}]}}
---
# nothing here
---
kind: CronJob
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {metadata: {creationTimestamp: null, labels: {app: nightly}}}}}}
---
kind: ConfigMap
metadata: {name: ignored}
";
        let manifests = parse(text).unwrap();
        assert_eq!(manifests.view.pods[0].full_name(), "x/a");
        assert_eq!(
            manifests.view.limit_ranges[0].spec.limits[0].max.cpu,
            Some(MilliCpu::new(1000))
        );
        let selector = manifests.view.owners[0].selector.as_ref().unwrap();
        assert_eq!(selector.match_labels["app"], "nightly");
        assert_eq!(manifests.warnings, ["pods.yaml: document 3: ConfigMap ignored ignored"]);
    }

    #[test]
    fn items_of_a_typed_list_need_no_kind() {
        let text = r#"{"kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}]}"#;
        assert_eq!(parse(text).unwrap().view.pods[0].full_name(), "default/a");
    }

    #[test]
    fn a_kind_of_another_project_is_ignored() {
        let node = "apiVersion: longhorn.io/v1beta2\nkind: Node\nmetadata: {name: n}";
        let manifests = parse(node).unwrap();
        assert_eq!(manifests.view.node, None);
        let warning = "pods.yaml: document 1: Node n ignored: its apiVersion is none of Kubernetes";
        assert_eq!(manifests.warnings, [warning]);
        let list = "apiVersion: longhorn.io/v1beta2\nkind: NodeList\nitems: [{metadata: {name: n}}]";
        assert_eq!(parse(list).unwrap().view.node, None);
        let node = parse(&node.replace("longhorn.io/v1beta2", "v1")).unwrap().view.node;
        assert!(node.is_some());
        let vpa = "apiVersion: autoscaling.k8s.io/v1\nkind: VerticalPodAutoscaler\nmetadata: {name: v}";
        let vpa = parse(&format!("{vpa}\nspec: {{targetRef: {{kind: Job, name: j}}}}"));
        assert_eq!(vpa.unwrap().view.vpas.len(), 1);
    }

    #[test]
    fn a_kind_whose_name_ends_in_list_is_ignored() {
        let text = "kind: ManagedPrefixList\nmetadata: {name: m}\n---\nkind: PodList\nitems: null\n---\n";
        let manifests = parse(&format!("{text}kind: Node\nmetadata: {{name: n}}")).unwrap();
        let ignored = ["1: ManagedPrefixList m", "2: PodList"];
        assert_eq!(
            manifests.warnings,
            ignored.map(|what| format!("pods.yaml: document {what} ignored"))
        );
        assert!(manifests.view.node.is_some());
        let without = parse("kind: List").unwrap_err().to_string();
        assert_eq!(without, "pods.yaml: document 1: a list without items");
    }

    #[test]
    fn quantities_come_in_any_notation() {
        let manifests = parse(&pod_with(
            "{limits: null, requests: {cpu: 0.5, memory: 1e9, example.com/gpu: 1}}",
        ))
        .unwrap();
        let resources = manifests.view.pods[0].spec.containers[0].resources;
        assert_eq!(resources.requests.cpu, Some(MilliCpu::new(500)));
        assert_eq!(resources.requests.memory, Some(Bytes::new(1_000_000_000)));
        assert!(resources.limits.is_empty());
    }

    #[test]
    fn a_bad_quantity_names_its_place() {
        let error = parse(&pod_with("{limits: {memory: 12Qx}}")).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "pods.yaml: document 1 (Pod web): spec.containers[0].resources.limits.memory: \"12Qx\" is not a quantity"
            ),
            "{error}"
        );
    }

    #[test]
    fn impossible_amounts_are_refused() {
        let negative = parse(&pod_with("{requests: {cpu: -1}}")).unwrap_err().to_string();
        assert!(
            negative.contains("resources.requests.cpu: \"-1\" is negative"),
            "{negative}"
        );
        let above = parse(&pod_with("{requests: {cpu: 2}, limits: {cpu: 1}}"))
            .unwrap_err()
            .to_string();
        assert!(
            above.contains("spec.containers[0].resources.requests.cpu: 2 is above the limit of 1"),
            "{above}"
        );
    }

    #[test]
    fn a_document_without_kind_or_name_is_refused() {
        let no_kind = parse("kind: Node\nmetadata: {name: n}\n---\nmetadata: {name: x}")
            .unwrap_err()
            .to_string();
        assert_eq!(
            no_kind,
            "pods.yaml: document 2: not a Kubernetes object: it has no kind"
        );
        let no_name = parse("kind: Pod").unwrap_err().to_string();
        assert_eq!(
            no_name,
            "pods.yaml: document 1 (Pod): metadata.name: required, and not empty"
        );
        let number = parse("kind: Pod\nmetadata: {name: 123}").unwrap_err().to_string();
        assert_eq!(
            number,
            "pods.yaml: document 1 (Pod): metadata.name: 123 is refused: it must be a text: quote the number"
        );
    }

    #[test]
    fn text_that_is_not_yaml_names_the_line() {
        let error = parse("kind: Pod\n  bad: [").unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("pods.yaml: not readable as YAML or JSON: "),
            "{error}"
        );
    }

    #[test]
    fn impossible_names_are_refused() {
        let long = "a".repeat(64);
        for (name, namespace, container, field) in [
            ("web\\nERROR all is lost", "shop", "app", "metadata.name"),
            ("../../etc", "shop", "app", "metadata.name"),
            ("Web", "shop", "app", "metadata.name"),
            ("web", "shop/../bank", "app", "metadata.namespace"),
            ("web", &long, "app", "metadata.namespace"),
            ("web", "shop", "app 1\\nside 9", "spec.containers[0].name"),
            ("web", "shop", &long, "spec.containers[0].name"),
            ("web", "shop", "-app", "spec.containers[0].name"),
        ] {
            let text = format!(
                "kind: Pod\nmetadata: {{name: \"{name}\", namespace: \"{namespace}\"}}\nspec: {{containers: [{{name: \"{container}\"}}]}}"
            );
            let error = parse(&text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{field}: \"")) && error.contains("allowed are up to"),
                "{error}"
            );
            assert!(!error.contains(char::is_control), "{error:?}");
        }
        let text = "kind: Pod\nmetadata: {name: web-0.a, namespace: a1}\nspec: {containers: [{name: 0-a}]}";
        assert_eq!(parse(text).unwrap().view.pods.len(), 1);
    }

    #[test]
    fn two_containers_of_one_name_are_refused() {
        let text = "kind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a}, {name: b}, {name: a}]}";
        let error = parse(text).unwrap_err().to_string();
        assert!(
            error.contains("spec.containers[2].name: \"a\" is taken by another container"),
            "{error}"
        );
    }
}
