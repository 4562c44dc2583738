//! Delivery as Kubernetes Events: reports → Events at the API server, as [`events`](super::events) plans them.
//!
//! In come the reports of a [`ReportQueue`](super::ReportQueue) and [`PodMetadata`]; out go Events, each acknowledged once
//! the API server has it. While it is away, or refuses for want of a right, everything waits in the spool, and the link's
//! state says what is missing. What it will never take on a pod (its namespace is gone, or a quota is used up) is told
//! about the node instead, so that it is told at all.

mod delivery;
mod plan;

use std::fmt;

use futures::future::BoxFuture;

pub use delivery::EventDelivery;

use super::content::Report;
use super::events::ContainerFacts;
use super::log::Pending;
use crate::kubernetes::events::PodReference;

/// What the agent knows besides the reports, at the moment it is asked.
pub trait PodMetadata: fmt::Debug + Send + Sync {
    /// Waits until the pods of the node are known for the first time. An agent that begins while the API server is
    /// away knows nobody by name.
    fn wait_until_known(&self) -> BoxFuture<'static, ()>;

    /// The names of the pod with this UID in its cgroup's name, and of its container with this id.
    fn names(&self, uid: &str, container: &str) -> Option<Names>;

    /// Gives a pod the UID it has at the API server (for a static pod its mirror pod's) and finds out whether the container
    /// is an init container. A pod that is not known stays as it is.
    fn resolve(&self, reference: &mut PodReference);

    /// What a VPA recommender would have to know of the report's container.
    fn container_facts(&self, report: &Report) -> ContainerFacts;
}

/// What a pod and its container are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub namespace: String,
    pub pod: String,
    /// The container's name; none if it is not known.
    pub container: Option<String>,
}

/// With names in place of those that were not known when the kill was seen.
fn named(mut pending: Pending, metadata: &dyn PodMetadata) -> Pending {
    let facts = pending.report.facts_mut();
    let (Some(pod), container) = (&mut facts.pod, &mut facts.container) else {
        return pending;
    };
    let nameless = pod.name.is_empty() || container.as_ref().is_some_and(|container| container.name.is_empty());
    let id = container.as_ref().map_or("", |container| &container.id);
    if nameless && let Some(names) = metadata.names(&pod.uid, id) {
        pod.namespace = names.namespace;
        pod.name = names.pod;
        if let (Some(container), Some(name)) = (container, names.container) {
            container.name = name;
        }
    }
    pending
}
