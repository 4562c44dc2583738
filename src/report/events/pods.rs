//! Events for people: one for each kill, or one for many where there are too many.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use super::{CoveredReport, PlannedEvent, name_of, stem, subject, text};
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
    report: Report,
    id: String,
    reports: Vec<CoveredReport>,
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
            Some(group) => group.add(pending),
            None => self.groups.push(Group {
                subject,
                levels,
                id: pending.report.id().into_owned(),
                reports: vec![CoveredReport::from(&pending)],
                report: pending.report,
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
        Some(self.groups.remove(place?).event())
    }
}

impl Group {
    fn add(&mut self, pending: Pending) {
        let covered = CoveredReport::from(&pending);
        let place = self.reports.partition_point(|report| report.number < covered.number);
        if place == 0 {
            self.id = pending.report.id().into_owned();
        }
        self.reports.insert(place, covered);
        let mut sum = self.report.clone().into_aggregate();
        sum.add(pending.report.into_aggregate());
        self.report = Report::Aggregate(Box::new(sum));
    }

    fn event(self) -> PlannedEvent {
        PlannedEvent {
            event: NamedEvent {
                name: name_of(stem(&self.subject), &self.id),
                severity: Severity::Warning,
                reason: "OOMKilled",
                message: text::message(&self.report),
                first: self.report.first(),
                last: self.report.last(),
                count: self.report.count(),
                annotations: Vec::new(),
                subject: self.subject,
            },
            reports: self.reports,
        }
    }
}
