//! Events for people: one for each kill, or one for many where there are too many.

use std::time::Instant;

use indexmap::IndexMap;

use super::{PlannedEvent, name_of, stem, subject, text};
use crate::kubernetes::events::{EventRates, NamedEvent, Severity, Subject, Topic};
use crate::oom::Level;
use crate::report::content::Report;
use crate::report::log::Pending;
use crate::report::outbox::{EventPlan, PodMetadata};

/// The reports that wait for an Event.
#[derive(Debug)]
pub struct PodEvents {
    /// So many reports may wait.
    most: usize,
    /// One Event covers all that wait with the same container and levels: the level whose limit the kernel enforced, and whose limit it
    /// was. Oldest first.
    groups: IndexMap<(Subject, [Level; 2]), Vec<Pending>>,
}

impl PodEvents {
    /// Once `most` reports wait, the largest group has the next Event regardless of its pod's rate, so that a flood in one
    /// pod does not keep out the reports of others.
    pub fn new(most: usize) -> Self {
        let groups = IndexMap::new();
        Self { most, groups }
    }
}

impl EventPlan for PodEvents {
    fn offer(&mut self, pending: Pending) {
        let facts = pending.report.facts();
        let same = (subject(facts), [facts.level, facts.limit_of()]);
        let reports = self.groups.entry(same).or_default();
        let place = reports.partition_point(|earlier| earlier.number < pending.number);
        reports.insert(place, pending);
    }

    fn due(&self, now: Instant) -> Vec<(&str, Instant)> {
        let groups = self.groups.keys();
        groups.map(|(subject, _)| (subject.namespace(), now)).collect()
    }

    fn next_event(
        &mut self,
        namespace: &str,
        now: Instant,
        rates: &mut EventRates,
        _: &dyn PodMetadata,
        _: &mut Vec<u64>,
    ) -> Option<PlannedEvent> {
        let in_turn = rates.in_turn(self.groups.keys().map(|(subject, _)| subject.namespace()), now);
        let waiting = |place: &usize| self.groups[*place].len();
        let is_full = in_turn.iter().map(waiting).sum::<usize>() >= self.most;
        let largest = in_turn.iter().copied().max_by_key(waiting).filter(|_| is_full);
        let mut groups = self.groups.keys().enumerate();
        let (place, _) = groups.find(|(place, (subject, _))| {
            subject.namespace() == namespace && rates.try_use(subject, Topic::Kill, Some(*place) == largest, now)
        })?;
        let ((subject, _), reports) = self.groups.shift_remove_index(place)?;
        let sum = reports.iter().map(|pending| pending.report.clone());
        let sum = sum.reduce(Report::merged)?;
        let event = NamedEvent {
            name: name_of(stem(&subject), &reports.first()?.report.id()),
            severity: Severity::Warning,
            reason: "OOMKilled",
            message: text::message(&sum),
            first: sum.first(),
            last: sum.last(),
            count: sum.count(),
            subject,
            ..NamedEvent::default()
        };
        Some(PlannedEvent::new(event, reports))
    }
}
