//! Kubernetes manifests → the pod templates of workloads of any kind, and pods. Reads the same texts as `manifests`.

use serde_json::{Value, json};

use super::manifests::{ManifestDocument, ManifestError, for_each_object};
use super::validate::check_pod;
use crate::model::objects::{OwnerKind, Pod, PodSpec};

/// The pod spec of a workload.
#[derive(Debug)]
pub struct PodTemplate {
    pub namespace: String,
    /// Kind and name, such as `Deployment/web`. A pod is its own workload.
    pub workload: String,
    pub spec: PodSpec,
}

/// The pod templates of a text.
#[derive(Debug, Default)]
pub struct PodTemplates {
    pub templates: Vec<PodTemplate>,
    /// One sentence for each object of an unknown kind whose template is not that of a pod.
    pub warnings: Vec<String>,
}

/// Reads a text of one or more documents. `origin` names the file in messages.
///
/// Errors: [`ManifestError`] for the first unusable document.
pub fn parse_pod_templates(origin: &str, text: &str) -> Result<PodTemplates, ManifestError> {
    let mut found = PodTemplates::default();
    for_each_object(origin, text, |document, kind, object| found.add(document, kind, object))?;
    Ok(found)
}

impl PodTemplates {
    fn add(&mut self, document: &ManifestDocument<'_>, kind: &str, mut object: Value) -> Result<(), ManifestError> {
        let has_containers = |place: &&str| object.pointer(&format!("{place}/containers")).is_some();
        let place = match kind {
            "Pod" => Some("/spec"),
            "PodTemplate" => Some("/template/spec"),
            _ => ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec"]
                .into_iter()
                .find(has_containers),
        };
        let Some(place) = place else {
            return Ok(());
        };
        let prefix = name_what_is_to_be_named(&mut object);
        let spec = object.pointer_mut(place).map_or_else(|| json!({}), Value::take);
        let pod = json!({"kind": kind, "metadata": object["metadata"].take(), "spec": spec});
        let check = |pod: &Pod| if kind == "Pod" { check_pod(pod) } else { Ok(()) };
        let decoded = document.typed(pod, check).map_err(|error| {
            let place = format!("): {}", place[1..].replace('/', "."));
            let message = error.message.replacen("): spec", &place, 1);
            ManifestError { message, ..error }
        });
        let Pod { metadata, spec, .. } = match decoded {
            Ok(pod) => pod,
            // A kind of somebody else's may mean another thing by the same names.
            Err(error) if !matches!(kind, "Pod" | "PodTemplate") && OwnerKind::named(kind).is_none() => {
                self.warnings.push(format!("{error}; ignored"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.templates.push(PodTemplate {
            namespace: metadata.namespace,
            workload: format!("{kind}/{}", prefix.unwrap_or(metadata.name)),
            spec,
        });
        Ok(())
    }
}

/// Gives an object with only a `generateName` a name with this prefix, as the API server does. Returns the prefix.
fn name_what_is_to_be_named(object: &mut Value) -> Option<String> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let prefix = metadata.get("generateName")?.as_str()?.to_owned();
    if prefix.is_empty() || metadata.contains_key("name") {
        return None;
    }
    metadata.insert("name".to_owned(), json!(format!("{prefix}x")));
    Some(prefix)
}
