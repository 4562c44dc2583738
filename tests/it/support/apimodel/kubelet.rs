//! The kubelet's part in a resize: it allocates, writes cgroups, and reports in the pod's status.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vscaled::model::objects::Pod;

use super::Shared;
use super::serve::full_name;

/// The result of every resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResizeResult {
    /// The resize is carried out.
    Done,
    /// The resize is deferred, for this reason.
    Deferred(&'static str),
    /// The resize is infeasible, for this reason.
    Infeasible(&'static str),
    /// A resize that changes this resource is infeasible, for this reason.
    Refuses(&'static str, &'static str),
    /// The kubelet allocates the resize and then fails to write it, again and again. It reports no second failure
    /// while it retries.
    Error(&'static str),
}

/// Writes the cgroups of a pod.
type Writes = Arc<dyn Fn(&Pod) + Send + Sync>;

/// The behaviour of the kubelet.
pub(crate) struct Kubelet {
    /// The kubelet does nothing.
    pub(crate) asleep: bool,
    /// The delay before the kubelet sees a change, and again before it writes.
    pub(crate) delay: Duration,
    pub(crate) result: ResizeResult,
    pub(crate) writes: Option<Writes>,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet")
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

impl Kubelet {
    pub(super) fn prompt() -> Self {
        Self {
            asleep: false,
            delay: Duration::from_millis(20),
            result: ResizeResult::Done,
            writes: None,
        }
    }
}

/// Syncs the node's pods after every change.
pub(super) async fn run(shared: Arc<Shared>, node: String) {
    let mut changed = shared.changed.subscribe();
    loop {
        changed.borrow_and_update();
        let (asleep, delay) = {
            let kubelet = shared.kubelet.lock().unwrap();
            (kubelet.asleep, kubelet.delay)
        };
        if !asleep && unsettled(&shared, &node).next().is_some() {
            tokio::time::sleep(delay).await;
            // The test may have put the kubelet to sleep while a resize was delayed.
            for name in unsettled(&shared, &node) {
                if !shared.kubelet.lock().unwrap().asleep {
                    sync(&shared, &name, delay).await;
                }
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Pods whose status differs from their spec.
fn unsettled(shared: &Shared, node: &str) -> std::vec::IntoIter<String> {
    let store = shared.store();
    let resizes = |pod: &&Value| pod["status"]["containerStatuses"][0].get("resources").is_some();
    let here = store
        .all("pods")
        .filter(|pod| pod["spec"]["nodeName"] == node)
        .filter(resizes);
    let different = here.filter(|pod| !is_settled(pod));
    let names: Vec<_> = different.map(full_name).collect();
    names.into_iter()
}

fn is_settled(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let resizing = conditions.into_iter().flatten().any(is_about_resize);
    !resizing && pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
}

fn is_about_resize(condition: &Value) -> bool {
    condition["type"].as_str().unwrap_or_default().starts_with("PodResize")
}

/// Syncs one pod once.
async fn sync(shared: &Shared, name: &str, delay: Duration) {
    let result = shared.kubelet.lock().unwrap().result.clone();
    let refusal = match &result {
        _ if is_in_force(shared, name) => None,
        ResizeResult::Deferred(why) => Some(("Deferred", *why)),
        ResizeResult::Infeasible(why) => Some(("Infeasible", *why)),
        ResizeResult::Refuses(resource, why) if changes(shared, name, resource) => Some(("Infeasible", *why)),
        ResizeResult::Done | ResizeResult::Refuses(..) | ResizeResult::Error(_) => None,
    };
    let read = || shared.store().find("pods", name).cloned();
    let Some(pod) = read() else { return };
    if let Some((reason, message)) = refusal {
        return write_status(shared, &pod, Some(("PodResizePending", reason, message)), |_| {});
    }
    write_status(shared, &pod, Some(("PodResizeInProgress", "", "")), |pod| {
        report(pod, "allocatedResources");
    });
    tokio::time::sleep(delay).await;
    let Some(pod) = read() else { return };
    if let ResizeResult::Error(why) = result {
        return write_status(shared, &pod, Some(("PodResizeInProgress", "Error", why)), |_| {});
    }
    let writes = shared.kubelet.lock().unwrap().writes.clone();
    if let Some(writes) = writes {
        writes(&serde_json::from_value(pod.clone()).unwrap());
    }
    write_status(shared, &pod, None, |pod| report(pod, "resources"));
}

/// Whether the pod's containers run with the resources of its spec: a kubelet refuses no such spec.
fn is_in_force(shared: &Shared, name: &str) -> bool {
    let store = shared.store();
    let pod = store.find("pods", name);
    pod.is_some_and(|pod| {
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        let mut pairs = containers.zip(pod["status"]["containerStatuses"].as_array().into_iter().flatten());
        pairs.all(|(container, status)| container["resources"] == status["resources"])
    })
}

/// Whether the pod's spec has another request of a resource than the kubelet has granted.
fn changes(shared: &Shared, name: &str, resource: &str) -> bool {
    let store = shared.store();
    let Some(pod) = store.find("pods", name) else {
        return false;
    };
    let requests = |list: &Value, of: &str| -> Vec<Value> {
        let all = list.as_array().into_iter().flatten();
        all.map(|container| container[of]["requests"][resource].clone())
            .collect()
    };
    requests(&pod["spec"]["containers"], "resources") != requests(&pod["status"]["containerStatuses"], "resources")
}

/// Copies the amounts of the spec into the containers' statuses.
fn report(pod: &mut Value, field: &str) {
    let reported = |resources: &Value| match field {
        "resources" => resources.clone(),
        _ => resources["requests"].clone(),
    };
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let statuses = pod["status"]["containerStatuses"].as_array_mut();
    for status in statuses.into_iter().flatten() {
        let mut containers = containers.iter();
        let container = containers.find(|container| container["name"] == status["name"]);
        status[field] = reported(&container.unwrap()["resources"]);
    }
    if let Some(resources) = pod["spec"].get("resources") {
        pod["status"][field] = reported(resources);
    }
}

/// Writes the status of the pod as the kubelet read it, if that changes the status. The next sync handles a pod that has
/// changed since: the cgroups do not have the values of its new spec, or of its new containers, yet.
fn write_status(shared: &Shared, read: &Value, condition: Option<(&str, &str, &str)>, more: impl FnOnce(&mut Value)) {
    let mut pod = read.clone();
    more(&mut pod);
    let generation = pod["metadata"]["generation"].clone();
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut conditions: Vec<_> = conditions
        .into_iter()
        .filter(|condition| !is_about_resize(condition))
        .collect();
    if let Some((kind, reason, message)) = condition {
        conditions.push(json!({
            "type": kind, "status": "True", "reason": reason, "message": message, "observedGeneration": generation,
        }));
    }
    pod["status"]["conditions"] = conditions.into();
    pod["status"]["observedGeneration"] = generation;
    if pod != *read && shared.store().find("pods", &full_name(read)) == Some(read) {
        shared.change(|store| {
            if store.find("pods", &full_name(read)) == Some(read) {
                store.put("pods", pod);
            }
        });
    }
}
