//! Annotations of one pod → a patch of the pod's `status` subresource, and its outcome.
//!
//! The API server takes annotations from a patch of the status and leaves the spec as it is. So the right to patch the status does
//! not allow the agent to change what a pod runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::call::Call;
use super::client::ApiClient;
use super::error::ApiError;
use crate::model::objects::PodId;

/// The wanted annotations by name; none removes an annotation.
pub type Annotations = BTreeMap<String, Option<String>>;

impl ApiClient {
    /// Sets and removes annotations of the pod with this UID in one patch, if the pod still exists. Does not change another pod
    /// of the same name.
    ///
    /// Errors: [`ApiError`]; the annotations are unchanged, or the answer was lost.
    pub async fn annotate(&self, pod: &PodId, annotations: &Annotations) -> Result<(), ApiError> {
        let call = Call::patch_pod(&pod.namespace, &pod.name, "status");
        match self.send::<Value>(&call, &body(&pod.uid, annotations)).await {
            Err(error) if !error.problem.names_no_pod() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The UID restricts the patch to this pod. Null removes an annotation.
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
