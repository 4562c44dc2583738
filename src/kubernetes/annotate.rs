//! Annotations of one pod: a value each, or none → a patch of the pod's `status` subresource, and what became of it.
//!
//! The status, because that is what the annotations tell of, and because whoever may patch it may still not change what a
//! pod runs: the API server takes over annotations from such a patch, and leaves the spec as it is.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::call::{Call, Kind, Verb};
use super::client::ApiClient;
use super::error::ApiError;
use crate::model::objects::PodId;

const PODS: Kind = Kind::new("", "v1", "pods");

/// Annotations by their names, and what each is to be; none removes it.
pub type Annotations = BTreeMap<String, Option<String>>;

/// The outcome of writing a pod's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotated {
    Done,
    /// There is no such pod any more.
    Gone,
}

impl ApiClient {
    /// Sets annotations of the pod with this UID, or removes them, all at once. Another pod of the name is left alone.
    ///
    /// Errors: [`ApiError`]; the annotations are then as they were, or the answer was lost.
    pub async fn annotate(&self, pod: &PodId, annotations: &Annotations) -> Result<Annotated, ApiError> {
        let mut call = Call::new(Verb::Patch, PODS)
            .within(Some(&pod.namespace))
            .named(&pod.name);
        call.subresource = Some("status");
        match self.send::<Value>(&call, &body(&pod.uid, annotations)).await {
            Ok(_) => Ok(Annotated::Done),
            Err(error) if error.problem.names_nobody() => Ok(Annotated::Gone),
            Err(error) => Err(error),
        }
    }
}

/// The UID makes it a patch for this pod and no other of its name. Null removes.
fn body(uid: &str, annotations: &Annotations) -> Value {
    json!({"metadata": {"uid": uid, "annotations": annotations}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_the_pod_by_uid_and_nothing_but_the_annotations() {
        let annotations = Annotations::from([("a.io/b".to_owned(), Some("{}".to_owned())), ("c/d".to_owned(), None)]);
        let patch = json!({"metadata": {"uid": "u1", "annotations": {"a.io/b": "{}", "c/d": null}}});
        assert_eq!(body("u1", &annotations), patch);
    }
}
