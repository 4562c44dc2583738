//! Events for people: one for each kill, or one for many where there are too many.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use super::{PlannedEvent, name_of, stem, subject, text};
use crate::kubernetes::events::{EventRates, NamedEvent, Severity, Subject, Topic};
use crate::oom::Level;
use crate::report::content::Report;
use crate::report::log::Pending;
use crate::report::outbox::{EventPlan, PodMetadata};

/// The time between two attempts to find a turn for one of the reports that wait.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The reports that wait for an Event.
#[derive(Debug)]
pub struct PodEvents {
    /// So many reports may wait.
    most: usize,
    groups: Vec<Group>,
    try_at: Instant,
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
    pub fn new(most: usize, now: Instant) -> Self {
        Self {
            most,
            groups: Vec::new(),
            try_at: now,
        }
    }
}

impl EventPlan for PodEvents {
    fn offer(&mut self, pending: Pending) {
        self.try_at = Instant::now();
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

    fn ready_at(&self) -> Option<Instant> {
        (!self.groups.is_empty()).then_some(self.try_at)
    }

    fn next_event(
        &mut self,
        since: Instant,
        now: Instant,
        rates: &mut EventRates,
        _: &dyn PodMetadata,
        _: &mut Vec<u64>,
    ) -> Option<PlannedEvent> {
        let mut in_turn = rates.in_turn(self.groups.iter().map(|group| group.subject.namespace()), since);
        let waiting = |place: &usize| self.groups[*place].reports.len();
        let is_full = in_turn.iter().map(waiting).sum::<usize>() >= self.most;
        if is_full {
            in_turn.sort_by_key(|place| Reverse(waiting(place)));
        }
        let may_go = |place: &usize| rates.try_use(&self.groups[*place].subject, Topic::Kill, is_full, now);
        let place = in_turn.into_iter().find(may_go);
        self.try_at = if place.is_some() { now } else { now + TRY_AGAIN };
        self.groups.remove(place?).event()
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
