//! The JSON of one object → the slim object. Pure.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::call::Kind;
use super::kept::{KeptObject, reduce, shortened};
use super::splitter::LARGEST_OBJECT;
use crate::model::objects::{LONGEST_SUBDOMAIN, ObjectMeta, TargetRef};

/// A kind of object that can be followed.
pub trait Object: KeptObject + DeserializeOwned + PartialEq + Send + Sync + 'static {
    /// The group, versions and plural name at the API server, newest version first.
    const KINDS: &'static [Kind];

    /// The memory for all objects of the kind on this node, in bytes.
    const MEMORY: u64;

    /// The kind's plural name, which is the same in all versions.
    fn plural() -> &'static str {
        Self::KINDS.first().map_or("", |kind| kind.plural)
    }

    /// The kind and the name of the object with this namespace and name, as problems name it.
    fn kind_and_name(key: &str) -> String {
        format!("{} {key}", Self::plural())
    }

    /// The workload whose pods the object is about. Without one, it is about all pods of its namespace.
    fn target(&self) -> Option<&TargetRef> {
        None
    }
}

/// The part that every object has, and a list.
#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) metadata: ObjectMeta,
}

#[derive(Debug)]
pub(super) struct Decoded<T> {
    /// Namespace and name.
    pub(super) key: String,
    pub(super) resource_version: String,
    /// The object and its size in bytes of JSON, or the reason why it cannot be used.
    pub(super) object: Result<(T, usize), String>,
    /// The parts that the agent reads and that are too long to keep.
    pub(super) left_out: Option<String>,
}

impl<T: Object> Decoded<T> {
    pub(super) fn parse(text: &str) -> Self {
        let mut object = match serde_json::from_str::<T>(text).or_else(|_| decode_leniently(text)) {
            Ok(object) => object,
            Err(_) if serde_json::from_str::<Named>(text).is_err() => {
                return Self::unusable(text, "it has no name, or is no object".to_owned());
            }
            Err(why) => return Self::unusable(text, why),
        };
        let metadata = object.metadata_mut();
        let (key, resource_version) = (metadata.full_name(), metadata.resource_version.clone());
        let (object, left_out) = match reduce(&mut object) {
            Ok((size, left_out)) => (Ok((object, size)), left_out),
            Err(why) => (Err(why), None),
        };
        Self {
            key,
            resource_version,
            object,
            left_out,
        }
    }

    /// Decodes the beginning of an object of which the rest is not kept.
    pub(super) fn too_large(beginning: &[u8]) -> Self {
        let why = format!("larger than {LARGEST_OBJECT} bytes, its long strings left out");
        Self::unusable(&String::from_utf8_lossy(beginning), why)
    }

    /// An object that cannot be used. Its key has what can be read of its metadata.
    fn unusable(text: &str, why: String) -> Self {
        let mut metadata = ObjectMeta {
            name: "?".to_owned(),
            ..ObjectMeta::default()
        };
        // An error ends an object that is cut off; what was read before stays.
        drop(Identity(&mut metadata, false).deserialize(&mut serde_json::Deserializer::from_str(text)));
        Self {
            key: metadata.full_name(),
            resource_version: metadata.resource_version,
            object: Err(shortened(why)),
            left_out: None,
        }
    }
}

/// Fills in the name, namespace and version from the metadata of an object, whatever else is cut off or malformed. The flag says
/// that the present mapping is the metadata.
struct Identity<'a>(&'a mut ObjectMeta, bool);

impl<'de> DeserializeSeed<'de> for Identity<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Identity<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a mapping")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<(), M::Error> {
        let Self(found, is_metadata) = self;
        while let Some(field) = fields.next_key::<String>()? {
            let known = match field.as_str() {
                // A line of a watch has the object in a field.
                "metadata" | "object" if !is_metadata => {
                    fields.next_value_seed(Identity(found, field == "metadata"))?;
                    continue;
                }
                "name" if is_metadata => &mut found.name,
                "namespace" if is_metadata => &mut found.namespace,
                "resourceVersion" if is_metadata => &mut found.resource_version,
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *known = fields.next_value::<String>()?.chars().take(LONGEST_SUBDOMAIN).collect();
        }
        Ok(())
    }
}

/// The slow way, for objects with explicit nulls, and for an error with a path.
fn decode_leniently<T: Object>(text: &str) -> Result<T, String> {
    let mut value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    strip_nulls(&mut value);
    serde_path_to_error::deserialize(value).map_err(|error| format!("{}: {}", error.path(), error.inner()))
}

/// Removes explicit nulls, which mean "absent" to the API server.
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

#[cfg(test)]
mod tests {
    use super::super::splitter::LEFT_OUT;
    use super::*;
    use crate::model::objects::{Pod, VerticalPodAutoscaler};

    #[test]
    fn unread_and_volatile_fields_are_dropped() {
        let text = r#"{"metadata":{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7","annotations":
            {"kubectl.kubernetes.io/last-applied-configuration":"{}","vscaled.io/ignore":"true"}},
            "spec":{"containers":[{"name":"app"}]}}"#;
        let decoded = Decoded::<Pod>::parse(text);
        let (pod, _) = decoded.object.unwrap();
        assert_eq!(
            (decoded.key.to_string().as_str(), decoded.resource_version.as_str()),
            ("shop/web", "7")
        );
        assert_eq!(pod.metadata.resource_version, "");
        assert_eq!(pod.metadata.annotations.len(), 1);
    }

    #[test]
    fn the_version_of_a_vpa_is_kept() {
        let text =
            r#"{"metadata":{"name":"web","resourceVersion":"4711"},"spec":{"targetRef":{"kind":"Job","name":"x"}}}"#;
        let decoded = Decoded::<VerticalPodAutoscaler>::parse(text);
        assert_eq!(decoded.resource_version, "4711");
        assert_eq!(decoded.object.unwrap().0.metadata.resource_version, "4711");
    }

    #[test]
    fn nulls_are_absent() {
        let text = r#"{"metadata":{"name":"web","labels":null},"spec":{"targetRef":{"kind":"Job","name":"x"},"resourcePolicy":{"containerPolicies":null}}}"#;
        let vpa = Decoded::<VerticalPodAutoscaler>::parse(text).object.unwrap().0;
        assert_eq!(vpa.metadata.name, "web");
    }

    #[test]
    fn an_unreadable_object_keeps_its_name() {
        let text = r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"8"},"status":{"recommendation":
            {"containerRecommendations":[{"containerName":"app","target":{"cpu":"a lot"}}]}}}"#;
        let decoded = Decoded::<VerticalPodAutoscaler>::parse(text);
        assert_eq!(decoded.key.to_string(), "shop/web");
        let why = decoded.object.unwrap_err();
        assert!(
            why.starts_with("status.recommendation.containerRecommendations[0].target.cpu: "),
            "{why}"
        );
    }

    #[test]
    fn a_complaint_names_the_right_object() {
        let hostile = r#""annotations":{"name":"api","namespace":"bank","resourceVersion":"9"}"#;
        let before = r#"{"spec":{"name":"api","namespace":"bank"},"metadata":{"annotations":"#;
        let texts = [
            format!(r#"{{"metadata":{{{hostile},"name":"web","namespace":"shop","resourceVersion":"8","labels":7}}}}"#),
            format!(r#"{before}{{"name":"api"}},"namespace":"shop","name":"web","resourceVersion":"8","labels":["#),
        ];
        for text in texts {
            for decoded in [Decoded::<Pod>::parse(&text), Decoded::too_large(text.as_bytes())] {
                assert!(decoded.object.is_err());
                assert_eq!(
                    (decoded.key.as_str(), decoded.resource_version.as_str()),
                    ("shop/web", "8"),
                    "{text}"
                );
            }
        }
        let cut_off = format!(r#"{{"metadata":{{{hostile},"managedFields":[{{"name":"api"#);
        assert_eq!(Decoded::<Pod>::too_large(cut_off.as_bytes()).key, "/?");
    }

    #[test]
    fn only_known_annotations_and_labels_are_kept() {
        let metadata = |more: &str| {
            format!(
                r#""metadata":{{"name":"web","namespace":"shop","labels":{{"app":"web"}},"annotations":{{{more}
                "vscaled.io/act":"true","vscaled.io/acts":"x","vscaled.io/ignore":"true","vpaObservedContainers":"",
                "vpa-of-ours":"x","vpaCpuStartupBoost/app":"{{}}","vpaCpuStartupBoost/gone":"{{}}",
                "kubernetes.io/config.source":"api","kubernetes.io/config.mirror":"m"}}}}"#
            )
        };
        let pod = format!(r#"{{{},"spec":{{"containers":[{{"name":"app"}}]}}}}"#, metadata(""));
        let (pod, _) = Decoded::<Pod>::parse(&pod).object.unwrap();
        let names: Vec<_> = pod.metadata.annotations.keys().map(String::as_str).collect();
        let read = [
            "kubernetes.io/config.mirror",
            "vpaCpuStartupBoost/app",
            "vpaObservedContainers",
            "vscaled.io/ignore",
        ];
        assert_eq!(names, read);
        assert_eq!(pod.metadata.labels.len(), 1);
        let vpa = format!(
            r#"{{{},"spec":{{"targetRef":{{"kind":"Job","name":"x"}}}}}}"#,
            metadata("")
        );
        let (vpa, _) = Decoded::<VerticalPodAutoscaler>::parse(&vpa).object.unwrap();
        assert_eq!(vpa.metadata.annotations.keys().collect::<Vec<_>>(), ["vscaled.io/act"]);
        assert_eq!(vpa.metadata.labels.len(), 0);
    }

    #[test]
    fn a_long_value_is_named_and_counts_as_absent() {
        let text = format!(
            r#"{{"metadata":{{"name":"web","annotations":{{"vscaled.io/ignore":"{LEFT_OUT}","other":"{LEFT_OUT}"}}}}}}"#
        );
        let decoded = Decoded::<Pod>::parse(&text);
        let complaint = decoded.left_out.unwrap();
        assert!(
            complaint.starts_with("metadata.annotations[vscaled.io/ignore]: longer than"),
            "{complaint}"
        );
        assert!(!complaint.contains("other"), "{complaint}");
        assert_eq!(decoded.object.unwrap().0.metadata.annotations.len(), 0);
    }

    #[test]
    fn labels_and_lists_without_end_are_not_kept() {
        let labels: Vec<_> = (0..1000)
            .map(|number| format!(r#""a-label-of-many-{number}":"x""#))
            .collect();
        let text = format!(r#"{{"metadata":{{"name":"web","labels":{{{}}}}}}}"#, labels.join(","));
        let decoded = Decoded::<Pod>::parse(&text);
        assert!(decoded.left_out.unwrap().starts_with("metadata.labels: "));
        assert_eq!(decoded.object.unwrap().0.metadata.labels.len(), 0);

        let policies = vec![r#"{"containerName":"app"}"#; 10_000].join(",");
        let text = format!(
            r#"{{"metadata":{{"name":"web"}},"spec":{{"targetRef":{{"kind":"Job","name":"x"}},
            "resourcePolicy":{{"containerPolicies":[{policies}]}}}}}}"#
        );
        let why = Decoded::<VerticalPodAutoscaler>::parse(&text).object.unwrap_err();
        assert!(why.contains("allowed are 65536"), "{why}");
    }
}
