//! One annotation on one pod: a value, or none → a patch of the pod's `status` subresource, and what became of it.
//!
//! The status, because that is what the annotation tells of, and because whoever may patch it may still not change what a
//! pod runs: the API server takes over annotations from such a patch, and leaves the spec as it is.

use serde_json::{Value, json};

use super::call::{Call, Kind, Verb};
use super::client::ApiClient;
use super::error::ApiError;

const PODS: Kind = Kind::new("", "v1", "pods");

/// A pod as the API server knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// The object's own UID: another pod of the name is left alone.
    pub uid: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// What became of an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotated {
    /// The pod has it.
    Done,
    /// There is no such pod any more.
    Gone,
}

impl ApiClient {
    /// Sets an annotation of a pod, or removes it.
    ///
    /// # Errors
    /// [`ApiError`]; the annotation is then as it was, or the answer was lost.
    pub async fn annotate(&self, pod: &PodRef, name: &str, value: Option<&str>) -> Result<Annotated, ApiError> {
        let mut call = Call::new(Verb::Patch, PODS)
            .within(Some(&pod.namespace))
            .named(&pod.name);
        call.subresource = Some("status");
        match self.send::<Value>(&call, &body(&pod.uid, name, value)).await {
            Ok(_) => Ok(Annotated::Done),
            Err(error) if error.problem.names_nobody() => Ok(Annotated::Gone),
            Err(error) => Err(error),
        }
    }
}

/// The UID makes it a patch for this pod and no other of its name. Null removes.
fn body(uid: &str, name: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"uid": uid, "annotations": {name: value}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_the_pod_by_uid_and_nothing_but_the_annotation() {
        let set = json!({"metadata": {"uid": "u1", "annotations": {"a.io/b": "{}"}}});
        assert_eq!(body("u1", "a.io/b", Some("{}")), set);
        let removed = json!({"metadata": {"uid": "u1", "annotations": {"a.io/b": null}}});
        assert_eq!(body("u1", "a.io/b", None), removed);
    }
}
