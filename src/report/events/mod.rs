//! Plans Kubernetes Events. Nothing here sends anything, or reads or writes a file.
//!
//! Of records of changes, `Composer` makes messages, and `EventLimits` counts the messages that become one Event.
//!
//! Of reports of kills come [`PlannedEvent`]s, each with the reports that it covers, which the outbox acknowledges once the API
//! server has the Event.
//!
//! - [`PodEvents`]: for people. An Event for each kill, on its pod; where kills come faster than a pod or the node may send
//!   Events, one Event covers many, and says how many.
//! - [`VpaEvents`]: for an unmodified VPA recommender. It learns of a kill from the pod's status or from an Event in the
//!   shape of an eviction (`recommender/input/oom/observer.go`); the plan has such an Event only where the
//!   status lacks the kill.
//!
//! The id of the first report gives an Event its name, so a second post finds that the Event exists. An agent that ended before
//! it acknowledged the reports may be followed by one with another plan for them and more; the count of the Event that exists
//! says how many kills it covered ([`PlannedEvent::covered_by`]).

mod changes;
mod counts;
mod pods;
#[cfg(test)]
mod tests;
mod text;
mod vpa;

pub(super) use changes::Composer;
pub(super) use counts::EventLimits;
pub use pods::PodEvents;
pub use vpa::{ContainerFacts, LastEvent, VpaEvents};

use super::destination::Destination;
use super::log::Pending;
use super::metrics::ReportOutcome;
use crate::kubernetes::events::{NamedEvent, PodReference, Subject, name};
use crate::model::objects::PodId;
use crate::oom::{KillFacts, ReportedPod};

/// An Event to be created or, if it is about changes, raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedEvent {
    /// Of whose reports it is; none if it is about changes.
    pub destination: Option<Destination>,
    pub event: NamedEvent,
    /// The reports that the Event covers, oldest first.
    pub reports: Vec<Pending>,
    /// [`ReportOutcome::SentAgain`] after a refusal.
    pub outcome: ReportOutcome,
}

impl PlannedEvent {
    /// An Event that was not sent yet, of no destination.
    pub const fn new(event: NamedEvent, reports: Vec<Pending>) -> Self {
        Self {
            destination: None,
            event,
            reports,
            outcome: ReportOutcome::Sent,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        self.event.subject.namespace()
    }

    /// The numbers of all reports that the Event covers.
    pub fn numbers(&self) -> Vec<u64> {
        self.reports.iter().map(|report| report.number).collect()
    }

    /// The numbers of the reports that an existing Event of this name covers, if it counts so many kills: the oldest ones,
    /// and at least the first, whose name it has.
    pub fn covered_by(&self, count: u64) -> Vec<u64> {
        let mut kills = 0u64;
        let covered = self.reports.iter().enumerate().take_while(|(index, report)| {
            kills = kills.saturating_add(report.report.count());
            *index == 0 || kills <= count
        });
        covered.map(|(_, report)| report.number).collect()
    }
}

/// The beginning of the names of Events about this object.
fn stem(subject: &Subject) -> &str {
    match subject {
        Subject::Pod(reference) => &reference.pod.name,
        Subject::Node => "node",
    }
}

/// The name of an Event whose first report has this id.
fn name_of(stem: &str, id: &str) -> String {
    name(stem, &format!("{:032x}", fnv_1a(id)))
}

/// FNV-1a of 128 bits (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>). An Event that is sent again needs the same
/// name, so this never changes.
fn fnv_1a(text: &str) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = text.bytes();
    bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// A reported pod, as the rest of the agent names it.
pub(crate) fn pod_id(pod: &ReportedPod) -> PodId {
    PodId {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.as_str().into(),
    }
}

/// The object of an Event about such kills.
fn subject(facts: &KillFacts) -> Subject {
    let container = facts.container.as_ref().map(|container| container.name.clone());
    match &facts.pod {
        Some(pod) if !pod.name.is_empty() && !pod.namespace.is_empty() => Subject::Pod(PodReference {
            pod: pod_id(pod),
            container: container.filter(|name| !name.is_empty()),
            init: false,
        }),
        Some(_) | None => Subject::Node,
    }
}
