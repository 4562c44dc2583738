//! Kubernetes Events at the API server: [`post()`] makes one attempt to create an Event, [`raise()`] one to raise its count, and
//! [`EventRates`] bounds how many the node may send. Each returns its failure; the caller tries again. The Event's name makes a
//! second attempt harmless.

mod post;
mod rates;

use crate::model::objects::PodId;

pub use post::{NamedEvent, Posted, Subject, name, post, raise, shortened};
pub use rates::{EventRates, OF_A_POD, OF_THE_NODE, Topic};

/// A pod, or one of its containers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodReference {
    /// The pod, by the UID in its cgroup's name: by that one kubectl describes the Events of a static pod.
    pub pod: PodId,
    pub container: Option<String>,
    pub init: bool,
}

impl PodReference {
    /// The container's place in the pod's object, such as `spec.containers{app}`.
    pub fn field_path(&self) -> Option<String> {
        let list = if self.init { "initContainers" } else { "containers" };
        self.container.as_ref().map(|name| format!("spec.{list}{{{name}}}"))
    }
}

/// The type of an Event: `Normal` or `Warning`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Severity {
    #[default]
    Normal,
    Warning,
}
