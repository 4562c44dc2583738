//! Which Kubernetes Events a stream of reports comes to. Pure: time is an argument, and nothing is sent from here.
//!
//! In come reports as a queue gives them; out come [`PlannedEvent`]s, each saying which reports it tells of, so that they
//! are acknowledged once the API server has it.
//!
//! - [`PodEvents`]: for people. An Event for each kill, on its pod; where kills come faster than a pod or the node may send
//!   Events, one Event tells of many, and says how many.
//! - [`VpaEvents`]: for an unmodified VPA recommender. It learns of a kill from the pod's status or from an Event in the
//!   shape of an eviction (`recommender/input/oom/observer.go`); the latter is sent only for what the former will not tell.
//!
//! An Event's name is made from the id of the first report that it tells: sending it again finds that it exists. An agent
//! that ended before it could note what it had sent may come to another plan for the same reports, and more of them; the
//! Event that exists says how many kills it told ([`PlannedEvent::told_by`]).

mod pods;
#[cfg(test)]
mod tests;
mod text;
mod vpa;

pub use pods::{PodEvents, Rates};
pub use vpa::{ContainerFacts, LastTold, VpaEvents, VpaWindows, Withheld};

use super::log::{IdHash, Pending};
use crate::kubernetes::events::{NamedEvent, PodReference, Subject, name};
use crate::model::objects::PodId;
use crate::oom::KillFacts;

/// An Event to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedEvent {
    /// The Event. A pod in it has the UID of its cgroup's name.
    pub event: NamedEvent,
    /// The reports it tells of, oldest first: to be acknowledged once it exists.
    pub reports: Vec<CoveredReport>,
}

/// A report that an Event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoveredReport {
    /// Its number in the log.
    pub number: u64,
    /// How many kills it is about.
    pub count: u64,
}

impl PlannedEvent {
    /// The numbers of all reports it tells of.
    pub fn numbers(&self) -> Vec<u64> {
        self.reports.iter().map(|told| told.number).collect()
    }

    /// The numbers of the reports that an Event of this name has told of which tells of so many kills: the oldest ones,
    /// and at least the first, whose name it has.
    pub fn told_by(&self, count: u64) -> Vec<u64> {
        let mut kills = 0u64;
        let told = self.reports.iter().enumerate().take_while(|(place, told)| {
            kills = kills.saturating_add(told.count);
            *place == 0 || kills <= count
        });
        told.map(|(_, told)| told.number).collect()
    }
}

impl From<&Pending> for CoveredReport {
    fn from(pending: &Pending) -> Self {
        Self {
            number: pending.number,
            count: pending.report.count(),
        }
    }
}

/// The name of the Event that tells first of the report with this id.
fn name_of(stem: &str, id: &str) -> String {
    name(stem, &format!("{:x}", IdHash::of(id)))
}

/// What an Event about such kills can be about.
fn subject(facts: &KillFacts) -> Subject {
    match &facts.pod {
        Some(pod) if !pod.name.is_empty() && !pod.namespace.is_empty() => Subject::Pod(PodReference {
            pod: PodId {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
            },
            container: facts
                .container
                .as_ref()
                .map(|container| container.name.clone())
                .filter(|name| !name.is_empty()),
            init: false,
        }),
        Some(_) | None => Subject::Node,
    }
}
