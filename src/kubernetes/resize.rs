//! The `resize` subresource of pods: changes to requests and limits → a patch, and what the API server says to it.
//!
//! Whether the API server knows it is found out by asking, not by version: the first patch is made as a dry run before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};

use super::call::{Call, Kind, Verb};
use super::client::ApiClient;
use super::error::{ApiError, Problem, Status};
use crate::actuate::{PodResizer, ResizeError};
use crate::model::objects::Pod;
use crate::model::{Change, Requirements, Resource, ResourceList, Step, Target};
use crate::plan::resize;

const PODS: Kind = Kind::new("", "v1", "pods");

/// Asks an API server for resizes.
#[derive(Debug)]
pub struct ApiResizer {
    client: ApiClient,
    /// It has accepted one, dry or not.
    proven: AtomicBool,
}

impl ApiResizer {
    /// Asks through this client. Nothing is sent yet.
    #[must_use]
    pub const fn new(client: ApiClient) -> Self {
        Self {
            client,
            proven: AtomicBool::new(false),
        }
    }

    async fn patch(&self, call: &Call, body: &Value) -> Result<Pod, ApiError> {
        // Many may want to be the first. Those whose turn comes later know what came of it.
        let turn = self.client.turn(call).await?;
        if !self.proven.load(Ordering::Relaxed) {
            turn.send::<Pod>(&call.clone().with("dryRun", "All"), body).await?;
            self.proven.store(true, Ordering::Relaxed);
        }
        turn.send(call, body).await
    }
}

#[tonic::async_trait]
impl PodResizer for ApiResizer {
    async fn resize(&self, pod: &Pod, version: &str, changes: &[Step]) -> Result<Pod, ResizeError> {
        let accepted = self.patch(&resize_call(pod), &body(pod, version, changes)).await;
        let accepted = accepted.map_err(refusal)?;
        match resize::altered(&accepted, changes) {
            Some(altered) => Err(ResizeError::Altered(altered)),
            None => Ok(accepted),
        }
    }

    async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError> {
        let call = resize_call(pod).with("dryRun", "All");
        self.client.send(&call, &body(pod, "", &[])).await.map_err(refusal)
    }

    fn away(&self) -> Option<String> {
        self.client.health.away().map(|away| away.to_string())
    }

    fn for_operators(&self) -> Option<Arc<dyn PodResizer>> {
        let resizer = Self::new(self.client.for_operators());
        resizer
            .proven
            .store(self.proven.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::new(resizer))
    }
}

fn resize_call(pod: &Pod) -> Call {
    Call {
        subresource: Some("resize"),
        ..Call::new(Verb::Patch, PODS)
            .within(Some(&pod.metadata.namespace))
            .named(&pod.metadata.name)
    }
}

/// A strategic merge patch: containers are merged by name, lists of amounts by resource. The UID makes it one for this pod
/// and no other of its name. Without a resource version, nobody else's write is in its way.
fn body(pod: &Pod, version: &str, changes: &[Step]) -> Value {
    let is_init = |name: &str| pod.spec.init_containers.iter().any(|container| container.name == name);
    let changed = |init: bool| {
        let changed = changes.iter().filter_map(|step| match (&step.target, &step.change) {
            (Target::Container(name), Change::Resize { to, .. }) if is_init(name) == init => {
                Some(json!({"name": name, "resources": resources(to)}))
            }
            _ => None,
        });
        changed.collect::<Vec<_>>()
    };
    let mut body = json!({"metadata": {"uid": pod.metadata.uid}, "spec": {"containers": changed(false)}});
    for step in changes {
        if let (Target::Pod, Change::Resize { to, .. }) = (&step.target, &step.change) {
            body["spec"]["resources"] = resources(to);
        }
    }
    let sidecars = changed(true);
    if !sidecars.is_empty() {
        body["spec"]["initContainers"] = sidecars.into();
    }
    if !version.is_empty() {
        body["metadata"]["resourceVersion"] = version.into();
    }
    body
}

fn resources(to: &Requirements) -> Value {
    json!({"requests": amounts(to.requests), "limits": amounts(to.limits)})
}

fn amounts(list: ResourceList) -> Map<String, Value> {
    let set = Resource::ALL
        .into_iter()
        .filter_map(|resource| Some((resource.to_string(), list.text(resource)?.into())));
    set.collect()
}

/// What follows from an error. Words are all there is to tell some of them apart: 404 is a pod that is gone or a path
/// nobody serves, 422 is another pod (the UID cannot change) or a rule.
fn refusal(error: ApiError) -> ResizeError {
    let reason = error.to_string();
    let retry_after = error.problem.retry_after();
    match error.problem {
        problem if problem.names_nobody() => ResizeError::Gone(reason),
        Problem::Refused(Status {
            code: 404 | 405,
            message,
            ..
        }) => ResizeError::Unsupported(message),
        Problem::Refused(status) if status.is_denial() => {
            if status.message.contains("without support for resize") {
                ResizeError::Unsupported(status.message)
            } else {
                ResizeError::Denied(reason)
            }
        }
        problem if problem.is_silence() => ResizeError::Away(reason),
        _ => ResizeError::Refused { reason, retry_after },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MilliCpu;

    #[test]
    fn a_patch_names_the_pod_by_uid_and_only_what_changes() {
        let to = Requirements {
            requests: ResourceList {
                cpu: Some(MilliCpu::new(250)),
                memory: None,
            },
            ..Requirements::default()
        };
        let step = |container: &str| Step {
            target: Target::Container(container.to_owned()),
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

    fn refused(problem: Problem) -> ResizeError {
        refusal(ApiError {
            call: "patch pods/resize shop/web".to_owned(),
            problem,
        })
    }

    #[test]
    fn a_path_nobody_serves_is_told_from_a_pod_that_is_gone() {
        let missing = |message: &str| {
            Problem::Refused(Status {
                code: 404,
                message: message.to_owned(),
                ..Status::default()
            })
        };
        let path = missing("the server could not find the requested resource");
        assert!(matches!(refused(path), ResizeError::Unsupported(_)));
        let pod = missing("pods \"web\" not found");
        assert!(matches!(refused(pod), ResizeError::Gone(_)));
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
