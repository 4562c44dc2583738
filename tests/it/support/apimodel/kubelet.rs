//! The kubelet's part in a resize: what it sets aside, what it writes, and what it says in the pod's status.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use vscaled::model::Resource;
use vscaled::model::objects::Pod;

use super::Shared;
use super::admission::list;
use super::serve::full_name;

/// What becomes of every resize, whatever room there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// What the room on the node allows.
    ByRoom,
    /// Not now.
    Deferred(&'static str),
    /// Never.
    Infeasible(&'static str),
    /// Set aside, and then writing fails, again and again; while it tries it says no more of the failure.
    Error(&'static str),
}

/// Writes the cgroups of a pod.
type Writes = Arc<dyn Fn(&Pod) + Send + Sync>;

/// How the kubelet behaves.
pub(crate) struct Kubelet {
    /// It notices nothing.
    pub(crate) asleep: bool,
    /// How long it takes to notice, and again to write.
    pub(crate) delay: Duration,
    pub(crate) verdict: Verdict,
    /// How it writes cgroups.
    pub(crate) writes: Option<Writes>,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet")
            .field("verdict", &self.verdict)
            .finish_non_exhaustive()
    }
}

impl Kubelet {
    pub(super) fn prompt() -> Self {
        Self {
            asleep: false,
            delay: Duration::from_millis(20),
            verdict: Verdict::ByRoom,
            writes: None,
        }
    }
}

/// Looks at the node's pods whenever anything changes.
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
            // It may have fallen asleep meanwhile, while it had a resize put off.
            for name in unsettled(&shared, &node) {
                if !shared.kubelet.lock().unwrap().asleep {
                    sync(&shared, &node, &name, delay).await;
                }
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Pods whose spec has not become what they have.
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

/// One look at one pod.
async fn sync(shared: &Shared, node: &str, name: &str, delay: Duration) {
    let verdict = shared.kubelet.lock().unwrap().verdict.clone();
    let refusal = match &verdict {
        Verdict::Deferred(why) => Some(("Deferred", (*why).to_owned())),
        Verdict::Infeasible(why) => Some(("Infeasible", (*why).to_owned())),
        Verdict::ByRoom | Verdict::Error(_) => full(shared, node, name).map(|why| ("Deferred", why)),
    };
    if let Some((reason, message)) = refusal {
        return say(shared, name, Some(("PodResizePending", reason, &message)), |_| {});
    }
    say(shared, name, Some(("PodResizeInProgress", "", "")), |pod| {
        report(pod, "allocatedResources");
    });
    tokio::time::sleep(delay).await;
    if let Verdict::Error(why) = verdict {
        return say(shared, name, Some(("PodResizeInProgress", "Error", why)), |_| {});
    }
    let pod = shared.store().find("pods", name).cloned();
    let writes = shared.kubelet.lock().unwrap().writes.clone();
    if let (Some(pod), Some(writes)) = (pod, writes) {
        writes(&serde_json::from_value(pod).unwrap());
    }
    say(shared, name, None, |pod| report(pod, "resources"));
}

/// Puts the spec's amounts into the containers' statuses.
fn report(pod: &mut Value, field: &str) {
    for (list, statuses) in [
        ("containers", "containerStatuses"),
        ("initContainers", "initContainerStatuses"),
    ] {
        let containers = pod["spec"][list].as_array().cloned().unwrap_or_default();
        let statuses = pod["status"].get_mut(statuses).and_then(Value::as_array_mut);
        for status in statuses.into_iter().flatten() {
            let mut containers = containers.iter();
            let container = containers.find(|container| container["name"] == status["name"]);
            let resources = &container.unwrap()["resources"];
            status[field] = if field == "resources" {
                resources.clone()
            } else {
                resources["requests"].clone()
            };
        }
    }
    if let Some(resources) = pod["spec"].get("resources").cloned() {
        match field {
            "resources" => pod["status"]["resources"] = resources,
            _ => pod["status"]["allocatedResources"] = resources["requests"].clone(),
        }
    }
}

/// Writes the status, if that changes it, about the spec as it was when it was read.
fn say(shared: &Shared, name: &str, condition: Option<(&str, &str, &str)>, more: impl FnOnce(&mut Value)) {
    let Some(old) = shared.store().find("pods", name).cloned() else {
        return;
    };
    let mut pod = old.clone();
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
    let unchanged = shared.store().find("pods", name) == Some(&pod);
    if !unchanged {
        shared.change(|store| {
            // What was written meanwhile is looked at next.
            if store.find("pods", name) == Some(&old) {
                store.put("pods", pod);
            }
        });
    }
}

/// Why there is no room for a pod's requests beside what others have set aside.
fn full(shared: &Shared, node: &str, name: &str) -> Option<String> {
    let store = shared.store();
    let allocatable = store.find("nodes", node)?["status"]["allocatable"].clone();
    let has = list(&allocatable);
    let requests = |container: &Value| {
        list(
            container
                .get("allocatedResources")
                .unwrap_or(&container["resources"]["requests"]),
        )
    };
    let sum = |containers: &Value, resource: Resource| -> u64 {
        let containers = containers.as_array().into_iter().flatten();
        containers.map(|container| requests(container).amount(resource)).sum()
    };
    let others = |resource| -> u64 {
        let others = store
            .all("pods")
            .filter(|pod| pod["spec"]["nodeName"] == node && full_name(pod) != name);
        others
            .map(|pod| sum(&pod["status"]["containerStatuses"], resource))
            .sum()
    };
    let pod = store.find("pods", name)?;
    Resource::ALL.into_iter().find_map(|resource| {
        let (wanted, used) = (sum(&pod["spec"]["containers"], resource), others(resource));
        let capacity = has.get(resource)?;
        (wanted + used > capacity).then(|| {
            format!(
                "Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {capacity}"
            )
        })
    })
}
