//! JSON of one object → the object, slim. Pure.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::call::Kind;
use crate::objects::ObjectMeta;

/// A kind of object that can be followed.
pub trait Object: DeserializeOwned + PartialEq + Send + Sync + 'static {
    /// Where the API server serves it, newest version first.
    const KINDS: &'static [Kind];

    /// Whether the object's version is kept, because it is named as the reason of what follows. Every write is then a
    /// change of the object, and news.
    const IS_CITED: bool = false;

    /// Name, namespace, UID.
    fn metadata(&self) -> &ObjectMeta;

    /// The same.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// What makes the object unusable: field and reason.
    ///
    /// # Errors
    /// A sentence.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Gives back memory that nobody here needs.
    fn slim(&mut self) {}
}

/// Namespace and name. Cluster-scoped objects have the namespace of an object that gives none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What every object has, whatever else it holds.
#[derive(Debug, Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

/// One object as it came.
#[derive(Debug)]
pub(super) struct Decoded<T> {
    pub(super) key: Key,
    pub(super) resource_version: String,
    /// Or why it cannot be used.
    pub(super) object: Result<T, String>,
}

/// Reads an object. None if it has no name: it is no object at all.
pub(super) fn decode<T: Object>(text: &str) -> Option<Decoded<T>> {
    match serde_json::from_str::<T>(text).or_else(|_| decode_leniently(text)) {
        Ok(mut object) => {
            let metadata = object.metadata_mut();
            let resource_version = metadata.resource_version.clone();
            if !T::IS_CITED {
                metadata.resource_version = String::new();
            }
            metadata.annotations.retain(|name, _| is_read(name));
            let key = Key {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
            };
            object.slim();
            let object = object.check().map(|()| object);
            Some(Decoded {
                key,
                resource_version,
                object,
            })
        }
        Err(why) => {
            let Named { metadata } = serde_json::from_str(text).ok()?;
            Some(Decoded {
                key: Key {
                    namespace: metadata.namespace,
                    name: metadata.name,
                },
                resource_version: metadata.resource_version,
                object: Err(why),
            })
        }
    }
}

/// The long way, for objects with nulls, which mean "absent" to the API server, and for a word about what is wrong.
fn decode_leniently<T: Object>(text: &str) -> Result<T, String> {
    let mut value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    strip_nulls(&mut value);
    serde_path_to_error::deserialize(value).map_err(|error| format!("{}: {}", error.path(), error.inner()))
}

/// An explicit null means "absent" to the API server.
pub fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, field| !field.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Annotations may be larger than all the rest (`kubectl apply` keeps the whole manifest in one): only those that somebody
/// here reads are kept.
fn is_read(annotation: &str) -> bool {
    ["vscaled.io/", "vpa", "kubernetes.io/config."]
        .iter()
        .any(|prefix| annotation.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Pod, VerticalPodAutoscaler};

    #[test]
    fn what_changes_with_every_write_and_what_nobody_reads_is_dropped() {
        let text = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7","annotations":
            {"kubectl.kubernetes.io/last-applied-configuration":"{}","vscaled.io/ignore":"true"}},
            "spec":{"containers":[{"name":"app"}]}}"#;
        let decoded = decode::<Pod>(text).unwrap();
        let pod = decoded.object.unwrap();
        assert_eq!(
            (decoded.key.to_string().as_str(), decoded.resource_version.as_str()),
            ("shop/web", "7")
        );
        assert_eq!(pod.metadata.resource_version, "");
        assert_eq!(pod.metadata.annotations.len(), 1);
    }

    #[test]
    fn which_version_of_a_vpa_it_was_is_kept_for_those_who_ask_who_did_that() {
        let text =
            r#"{"metadata":{"name":"web","resourceVersion":"4711"},"spec":{"targetRef":{"kind":"Job","name":"x"}}}"#;
        let decoded = decode::<VerticalPodAutoscaler>(text).unwrap();
        assert_eq!(decoded.resource_version, "4711");
        assert_eq!(decoded.object.unwrap().metadata.resource_version, "4711");
    }

    #[test]
    fn nulls_are_absent() {
        let text = r#"{"metadata":{"name":"web","labels":null},"spec":{"targetRef":{"kind":"Job","name":"x"},"resourcePolicy":{"containerPolicies":null}}}"#;
        let vpa = decode::<VerticalPodAutoscaler>(text).unwrap().object.unwrap();
        assert_eq!(vpa.metadata.name, "web");
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_name_and_says_why() {
        let text = r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"8"},"status":{"recommendation":
            {"containerRecommendations":[{"containerName":"app","target":{"cpu":"a lot"}}]}}}"#;
        let decoded = decode::<VerticalPodAutoscaler>(text).unwrap();
        assert_eq!(decoded.key.to_string(), "shop/web");
        let why = decoded.object.unwrap_err();
        assert!(
            why.starts_with("status.recommendation.containerRecommendations[0].target.cpu: "),
            "{why}"
        );
    }
}
