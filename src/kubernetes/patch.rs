//! Patches of pods' subresources: changes to requests and limits → `resize`, annotations → `status`, and the answers.
//!
//! A dry run of an empty patch of `resize` reads the pod, and shows whether the API server has the subresource. The API
//! server takes annotations from a patch of the status and leaves the spec as it is. So the right to patch the status does not
//! allow the agent to change what a pod runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::call::Call;
use super::client::ApiClient;
use super::error::{ApiError, Problem, Status};
use super::follow::Latest;
use crate::actuate::PodResizer;
use crate::model::objects::{Pod, PodId};
use crate::model::{Change, Requirements, Step, Target};
use crate::resize::{self, ResizeError};

/// Patches the `resize` subresource of pods.
#[derive(Debug)]
pub struct ApiResizer {
    client: ApiClient,
    /// The followed pods; `None` if the API server has not sent them.
    pods: Option<Latest<Pod>>,
}

impl ApiResizer {
    /// A resizer that uses this client, and may know pods from a watch. Sends nothing yet.
    pub const fn new(client: ApiClient, pods: Option<Latest<Pod>>) -> Self {
        Self { client, pods }
    }
}

#[tonic::async_trait]
impl PodResizer for ApiResizer {
    async fn resize(&self, pod: &Pod, changes: &[Step]) -> Result<Pod, ResizeError> {
        let body = body(pod, &pod.metadata.resource_version, changes);
        let accepted = self.client.send(&resize_call(pod), &body).await;
        let accepted = accepted.map_err(|error| match error.problem.status() {
            Some(409) if !error.problem.names_no_pod() => ResizeError::Stale,
            _ => resize_error(error),
        })?;
        match resize::altered(&accepted, changes) {
            Some(altered) => Err(ResizeError::Altered(altered)),
            None => Ok(accepted),
        }
    }

    async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError> {
        let call = resize_call(pod).with("dryRun", "All");
        let read = self.client.send(&call, &body(pod, "", &[])).await;
        let read = read.map_err(resize_error)?;
        let known = self.known(&read);
        Ok(stored(read, known))
    }

    fn known(&self, pod: &Pod) -> Option<Pod> {
        let known = self.pods.as_ref()?.get(&pod.metadata.full_name())?;
        (known.metadata.uid == pod.metadata.uid).then_some(known)
    }

    fn away(&self) -> Option<String> {
        self.client.health.away()
    }

    fn missing_rights(&self, told: &[String]) -> Vec<String> {
        self.client.health.missing_rights(told)
    }

    fn for_operators(&self) -> Option<Arc<dyn PodResizer>> {
        Some(Arc::new(Self {
            client: self.client.for_operators(),
            pods: self.pods.clone(),
        }))
    }
}

/// The pod as the API server stores it. What a dry run returns also has the amounts that a resize would fill in, and the generation
/// after that (`podResizeStrategy`, kubernetes `pkg/registry/core/pod`): a `known` pod of the same version has neither.
fn stored(read: Pod, known: Option<Pod>) -> Pod {
    known
        .filter(|known| known.metadata.resource_version == read.metadata.resource_version)
        .unwrap_or(read)
}

fn resize_call(pod: &Pod) -> Call {
    Call::patch_pod(&pod.metadata.namespace, &pod.metadata.name, "resize")
}

/// A strategic merge patch, which merges containers by name and amounts by resource. The UID restricts the patch to this pod among
/// pods of the same name, and the resource version to this state of the pod. It has only the amounts that change, and the memory
/// limit that a changed request reaches: the spec's own limit may lack a part of a byte (`0.1Gi`), which every reader rounds up.
fn body(pod: &Pod, version: &str, changes: &[Step]) -> Value {
    let is_init = |name: &str| pod.spec.init_containers.iter().any(|container| container.name == name);
    let mut spec = json!({"containers": []});
    for step in changes {
        let Change::Resize { from, to } = &step.change else {
            continue;
        };
        let mut sent = Requirements::choose([from, to], |[from, to]| to.filter(|_| from != to));
        let request = sent.requests.memory;
        if request.is_some() && request == to.limits.memory {
            sent.limits.memory = request;
        }
        match &step.target {
            Target::Pod => spec["resources"] = json!(sent),
            Target::Container(name) => {
                let list = if is_init(name) { "initContainers" } else { "containers" };
                let container = json!({"name": name, "resources": sent});
                match spec[list].as_array_mut() {
                    Some(containers) => containers.push(container),
                    None => spec[list] = json!([container]),
                }
            }
        }
    }
    let mut body = json!({"metadata": {"uid": pod.metadata.uid}, "spec": spec});
    if !version.is_empty() {
        body["metadata"]["resourceVersion"] = version.into();
    }
    body
}

/// Turns an API error into the reaction of the pass. Only the message distinguishes some errors: 404 is a missing pod, a
/// missing path or a webhook's denial, 422 is another pod (the UID is immutable), a pod whose kubelet does not resize, or a rule.
fn resize_error(error: ApiError) -> ResizeError {
    let reason = error.to_string();
    let retry_after = error.problem.retry_after();
    let unsupported = |Status { message: why, .. }, everywhere| ResizeError::Unsupported { why, everywhere };
    let is_of_kubelet = |status: &Status| {
        let is_said = status.message.contains("without support for resize");
        is_said && status.is_denial() && !status.is_by_webhook()
    };
    match error.problem {
        problem if problem.names_no_pod() => ResizeError::Gone(reason),
        Problem::Refused(status) if status.names_no_path() => unsupported(status, true),
        Problem::Refused(status) if is_of_kubelet(&status) => unsupported(status, false),
        Problem::Refused(status) if status.is_denial() => ResizeError::Denied(reason),
        problem if problem.is_silence() => ResizeError::Away(reason),
        _ => ResizeError::Refused { reason, retry_after },
    }
}

/// The wanted annotations by name; none removes an annotation.
pub type Annotations = BTreeMap<String, Option<String>>;

impl ApiClient {
    /// Sets and removes annotations of the pod with this UID in one patch, if the pod still exists. Does not change another pod
    /// of the same name. Waits so long for the answer, and before that for a permit.
    ///
    /// Errors: [`ApiError`]; the annotations are unchanged, or the answer was lost.
    pub async fn annotate(&self, pod: &PodId, annotations: &Annotations, patience: Duration) -> Result<(), ApiError> {
        let call = Call::patch_pod(&pod.namespace, &pod.name, "status");
        let patch = annotating(&pod.uid, annotations);
        match self.exchange::<IgnoredAny>(&call, Some(&patch), patience).await {
            Err(error) if !error.problem.names_no_pod() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The UID restricts the patch to this pod. Null removes an annotation.
fn annotating(uid: &str, annotations: &Annotations) -> Value {
    json!({"metadata": {"uid": uid, "annotations": annotations}})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::http::StatusCode;

    use super::*;
    use crate::model::{Bytes, MilliCpu, ResourceList};

    #[test]
    fn a_patch_of_annotations_names_the_uid() {
        let annotations = Annotations::from([("a.io/b".to_owned(), Some("{}".to_owned())), ("c/d".to_owned(), None)]);
        let patch = json!({"metadata": {"uid": "u1", "annotations": {"a.io/b": "{}", "c/d": null}}});
        assert_eq!(annotating("u1", &annotations), patch);
    }

    #[test]
    fn a_patch_names_the_uid_and_the_changes() {
        let to = Requirements {
            requests: ResourceList {
                cpu: Some(MilliCpu::new(250)),
                memory: None,
            },
            ..Requirements::default()
        };
        let step = |container: &str| Step {
            target: Target::Container(container.into()),
            change: Change::Resize {
                from: Requirements::default(),
                to,
            },
        };
        let changed = |name: &str| json!([{"name": name, "resources": {"requests": {"cpu": "250m"}, "limits": {}}}]);
        let pod = json!({"metadata": {"uid": "u1", "namespace": "shop", "name": "web"},
            "spec": {"containers": [{"name": "app"}], "initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let expected = json!({"metadata": {"uid": "u1"}, "spec": {"containers": changed("app")}});
        assert_eq!(body(&pod, "", &[step("app")]), expected);
        let both = json!({"metadata": {"uid": "u1"},
            "spec": {"containers": changed("app"), "initContainers": changed("mesh")}});
        assert_eq!(body(&pod, "", &[step("app"), step("mesh")]), both);
        let whole = Step {
            target: Target::Pod,
            ..step("app")
        };
        let of_pod = json!({"metadata": {"uid": "u1"},
            "spec": {"containers": [], "resources": {"requests": {"cpu": "250m"}, "limits": {}}}});
        assert_eq!(body(&pod, "", &[whole]), of_pod);
        let read = json!({"metadata": {"uid": "u1", "resourceVersion": "7"}, "spec": {"containers": []}});
        assert_eq!(body(&pod, "7", &[]), read);
    }

    #[test]
    fn a_request_takes_the_limit_it_reaches_along() {
        let memory = |bytes| ResourceList {
            cpu: None,
            memory: Some(Bytes::new(bytes)),
        };
        let read: Requirements =
            serde_json::from_value(json!({"requests": {"memory": "64Mi"}, "limits": {"memory": "0.1Gi"}})).unwrap();
        let resources = |request| {
            let to = Requirements {
                requests: memory(request),
                ..read
            };
            let step = Step {
                target: Target::Container("app".into()),
                change: Change::Resize { from: read, to },
            };
            body(&Pod::default(), "", &[step])["spec"]["containers"][0]["resources"].clone()
        };
        assert_eq!(
            resources(107_374_183),
            json!({"requests": {"memory": "107374183"}, "limits": {"memory": "107374183"}})
        );
        assert_eq!(
            resources(107_374_182),
            json!({"requests": {"memory": "107374182"}, "limits": {}})
        );
    }

    #[test]
    fn a_dry_run_hides_no_stored_spec() {
        let pod = |generation: i64, version: &str, limits: Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "generation": generation, "resourceVersion": version},
                "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]},
            }))
            .unwrap()
        };
        let dry = pod(3, "7", json!({"memory": "1Gi"}));
        let known = pod(2, "7", json!({}));
        assert_eq!(stored(dry.clone(), Some(known.clone())), known);
        assert_eq!(stored(dry.clone(), Some(pod(2, "6", json!({})))), dry, "known too late");
        assert_eq!(stored(dry.clone(), None), dry);
    }

    fn refused(problem: Problem) -> ResizeError {
        resize_error(ApiError {
            call: "patch pods/resize shop/web".to_owned(),
            problem,
        })
    }

    fn answered(code: u16, message: &str) -> ResizeError {
        refused(Problem::Refused(Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        }))
    }

    /// The answers of kube-apiserver 1.20, which are the same for every pod.
    #[test]
    fn an_unserved_path_is_not_a_gone_pod() {
        let path = answered(404, "the server could not find the requested resource");
        assert!(matches!(path, ResizeError::Unsupported { everywhere: true, .. }));
        let verb = answered(405, "the server does not allow this method on the requested resource");
        assert!(matches!(verb, ResizeError::Unsupported { everywhere: true, .. }));
        let pod = answered(404, "pods \"web\" not found");
        assert!(matches!(pod, ResizeError::Gone(_)));
        let proxy = answered(404, "404 page not found");
        assert!(matches!(proxy, ResizeError::Refused { .. }), "{proxy}");
    }

    #[test]
    fn a_webhook_or_kubelet_denies_one_pod_only() {
        for text in [
            "not now",
            "the server could not find the requested resource",
            "pods \"web\" not found",
            "spec: Forbidden: Pod running on node without support for resize",
        ] {
            let text = format!("admission webhook \"limits.example.com\" denied the request: {text}");
            for code in [400, 403, 404, 405, 422] {
                assert!(matches!(answered(code, &text), ResizeError::Denied(_)), "{code} {text}");
            }
        }
        let kubelet = "Pod \"web\" is invalid: spec: Forbidden: Pod running on node without support for resize";
        let kubelet = answered(422, kubelet);
        assert!(matches!(kubelet, ResizeError::Unsupported { everywhere: false, .. }));
    }

    #[test]
    fn what_may_pass_by_itself_is_no_denial() {
        let is_away = |error: ResizeError| matches!(error, ResizeError::Away(_));
        assert!(is_away(refused(Problem::Timeout(Duration::from_secs(1)))));
        assert!(is_away(refused(Problem::Unreachable("reset".to_owned()))));
        for (code, expected) in [
            (401, false),
            (409, false),
            (410, false),
            (429, false),
            (500, false),
            (502, true),
            (503, true),
            (504, true),
        ] {
            let error = answered(code, "busy");
            assert!(
                matches!(error, ResizeError::Away(_) | ResizeError::Refused { .. }),
                "{error}"
            );
            assert_eq!(is_away(error), expected, "{code}");
        }
        let asked_for = Some(Duration::from_secs(7));
        let status = Status {
            code: 429,
            retry_after: asked_for,
            ..Status::default()
        };
        let busy = refused(Problem::Refused(status));
        assert!(
            matches!(busy, ResizeError::Refused { retry_after, .. } if retry_after == asked_for),
            "{busy}"
        );
        for problem in [
            Problem::Forbidden("a rule".to_owned()),
            Problem::Unreadable("<html>".to_owned()),
        ] {
            let error = refused(problem);
            assert!(
                matches!(error, ResizeError::Refused { retry_after: None, .. }),
                "{error}"
            );
        }
    }

    /// An API server that answers every call so.
    fn answering(code: u16, message: &str) -> ApiClient {
        let body = json!({"message": message}).to_string();
        let router = Router::new().fallback(async move || (StatusCode::from_u16(code).unwrap(), body.clone()));
        ApiClient::to(&router)
    }

    const MODIFIED: &str = "Operation cannot be fulfilled on pods \"web\": the object has been modified";
    const OTHER_UID: &str = "Precondition failed: UID in precondition: a, UID in object meta: b";

    #[tokio::test]
    async fn a_changed_pod_is_patched_anew() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap();
        let patched = async |message| {
            let resizer = ApiResizer::new(answering(409, message), None);
            resizer.resize(&pod, &[]).await.unwrap_err()
        };
        let stale = patched(MODIFIED).await;
        assert!(matches!(stale, ResizeError::Stale), "{stale}");
        let gone = patched(OTHER_UID).await;
        assert!(matches!(gone, ResizeError::Gone(_)), "{gone}");
    }

    #[tokio::test]
    async fn a_gone_pod_needs_no_annotations() {
        let pod = PodId {
            uid: "u1".into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        for (code, message, expected) in [
            (200, "", true),
            (404, "pods \"web\" not found", true),
            (404, "404 page not found", false),
            (409, OTHER_UID, true),
            (409, MODIFIED, false),
            (500, "down", false),
        ] {
            let annotated = answering(code, message)
                .annotate(&pod, &Annotations::new(), Duration::from_secs(10))
                .await;
            assert_eq!(annotated.is_ok(), expected, "{code} {message}");
        }
    }

    #[test]
    fn another_pod_of_the_name_is_no_refusal() {
        let refusal = |message: &str| {
            refused(Problem::Refused(Status {
                code: 422,
                reason: "Invalid".to_owned(),
                message: message.to_owned(),
                retry_after: None,
            }))
        };
        let other = refusal("Pod \"web\" is invalid: metadata.uid: Invalid value: \"u1\": field is immutable");
        assert!(matches!(other, ResizeError::Gone(_)));
        let rule = refusal("Pod \"web\" is invalid: spec: Invalid value: \"Burstable\": Pod QOS Class may not change");
        assert!(matches!(rule, ResizeError::Denied(_)), "{rule}");
    }
}
