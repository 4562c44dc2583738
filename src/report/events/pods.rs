//! Events for people: one for each kill, or one for many where there are too many.

use std::time::Instant;

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
    groups: Vec<Group>,
}

/// Reports that one Event will cover.
#[derive(Debug)]
struct Group {
    subject: Subject,
    /// The level whose limit the kernel enforced, and whose limit it was.
    levels: [Level; 2],
    /// Oldest first.
    reports: Vec<Pending>,
}

impl PodEvents {
    /// Once `most` reports wait, the largest group has the next Event regardless of its pod's rate, so that a flood in one
    /// pod does not keep out the reports of others.
    pub const fn new(most: usize) -> Self {
        let groups = Vec::new();
        Self { most, groups }
    }
}

impl EventPlan for PodEvents {
    fn offer(&mut self, pending: Pending) {
        // One Event covers all that wait with the same container and levels.
        let facts = pending.report.facts();
        let (subject, levels) = (subject(facts), [facts.level, facts.limit_of()]);
        let same = |group: &&mut Group| group.subject == subject && group.levels == levels;
        match self.groups.iter_mut().find(same) {
            Some(Group { reports, .. }) => {
                let place = reports.partition_point(|earlier| earlier.number < pending.number);
                reports.insert(place, pending);
            }
            None => self.groups.push(Group {
                subject,
                levels,
                reports: vec![pending],
            }),
        }
    }

    fn waiting(&self) -> usize {
        self.groups.iter().map(|group| group.reports.len()).sum()
    }

    fn due(&self, now: Instant) -> Vec<(&str, Instant)> {
        let groups = self.groups.iter();
        groups.map(|group| (group.subject.namespace(), now)).collect()
    }

    fn next_event(
        &mut self,
        namespace: &str,
        now: Instant,
        rates: &mut EventRates,
        _: &dyn PodMetadata,
        _: &mut Vec<u64>,
    ) -> Option<PlannedEvent> {
        let in_turn = rates.in_turn(self.groups.iter().map(|group| group.subject.namespace()), now);
        let waiting = |place: &usize| self.groups[*place].reports.len();
        let is_full = in_turn.iter().map(waiting).sum::<usize>() >= self.most;
        let largest = in_turn.iter().copied().max_by_key(waiting).filter(|_| is_full);
        let place = in_turn.into_iter().find(|place| {
            let (subject, is_urgent) = (&self.groups[*place].subject, Some(*place) == largest);
            subject.namespace() == namespace && rates.try_use(subject, Topic::Kill, is_urgent, now)
        })?;
        self.groups.remove(place).event()
    }
}

impl Group {
    fn event(self) -> Option<PlannedEvent> {
        let oldest = &self.reports.first()?.report;
        let reports = self.reports.iter().map(|pending| pending.report.clone());
        let sum = reports.reduce(Report::merged)?;
        Some(PlannedEvent {
            event: NamedEvent {
                name: name_of(stem(&self.subject), &oldest.id()),
                severity: Severity::Warning,
                reason: "OOMKilled",
                message: text::message(&sum),
                first: sum.first(),
                last: sum.last(),
                count: sum.count(),
                annotations: Vec::new(),
                subject: self.subject,
            },
            reports: self.reports,
        })
    }
}
