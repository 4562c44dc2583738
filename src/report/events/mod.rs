//! Which Kubernetes Events a stream of reports comes to. Pure: time is an argument, and nothing is sent from here.
//!
//! In come reports as a feed gives them; out come [`PlannedEvent`]s, each saying which reports it tells of, so that they
//! are acknowledged once the API server has it.
//!
//! - [`PodEvents`]: for people. An Event for each kill, on its pod; where kills come faster than a pod or the node may send
//!   Events, one Event tells of many, and says how many.
//! - [`VpaEvents`]: for an unmodified VPA recommender. It learns of a kill from the pod's status or from an Event in the
//!   shape of an eviction (`recommender/input/oom/observer.go`); the latter is sent only for what the former will not tell.
//!
//! An Event's name is made from the id of what it tells: sending one again finds that it exists.

mod bucket;
mod pods;
#[cfg(test)]
mod tests;
mod text;
mod vpa;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

pub use pods::{PodEvents, Rates};
pub use vpa::{ContainerFacts, VpaEvents, VpaVerdict, VpaWindows, Withheld};

use super::seen::IdHash;

/// The longest name of an object (RFC 1123 subdomain), less the suffix that makes an Event's name unique.
const LONGEST_STEM: usize = 253 - 33;

/// An Event to be created: `core/v1`, type Warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedEvent {
    /// Its name; the same for the same reports. If it exists already, it was sent before.
    pub name: String,
    /// What it is about.
    pub regarding: Regarding,
    /// Why, as one word.
    pub reason: &'static str,
    /// What happened, for people; at most 1024 bytes.
    pub message: String,
    /// When it happened first.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
    /// How many kills it tells of.
    pub count: u64,
    /// Annotations of the Event itself.
    pub annotations: BTreeMap<&'static str, String>,
    /// The numbers of the reports it tells of: to be acknowledged once it exists.
    pub reports: Vec<u64>,
}

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regarding {
    /// A pod, or one of its containers. The Event lives in its namespace.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// The container's name, for the field path `spec.containers{name}`.
        container: Option<String>,
    },
    /// This node: the pod is not known by name, or none was concerned.
    Node,
}

impl Regarding {
    /// Which part of the pod's object it is about.
    #[must_use]
    pub fn field_path(&self) -> Option<String> {
        match self {
            Self::Pod {
                container: Some(container),
                ..
            } => Some(format!("spec.containers{{{container}}}")),
            Self::Pod { container: None, .. } | Self::Node => None,
        }
    }
}

/// So many at once, and one more after each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many at once; at least 1.
    pub burst: u32,
    /// The time until there is one more.
    pub every: Duration,
}

/// A name that belongs to what has this id.
fn event_name(stem: &str, id: &str) -> String {
    let mut end = stem.len().min(LONGEST_STEM);
    while !stem.is_char_boundary(end) {
        end -= 1;
    }
    let stem = stem[..end].trim_end_matches(['-', '.']);
    format!("{stem}.{:x}", IdHash::of(id))
}
