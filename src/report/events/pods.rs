//! Events for people: one for each kill, or one for many where there are too many.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::{CoveredReport, PlannedEvent, name_of, subject, text};
use crate::kubernetes::events::{NamedEvent, PodReference, Severity, Subject};
use crate::oom::Level;
use crate::rate_limiter::{Rate, RateLimiter};
use crate::report::cluster::{EventPlan, PodMetadata};
use crate::report::content::Report;
use crate::report::destination::Destination;
use crate::report::log::Pending;

/// How long a namespace that had an Event gives way to others.
const REMEMBERED: Duration = Duration::from_secs(300);

/// How many Events the agent may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// About one pod. Both hold: the first spaces a burst of kills, the second an endless flood.
    pub pod: [Rate; 2],
    pub node: Rate,
}

impl Default for Rates {
    /// About a pod ten at once, so that the first kills of a flood have an Event each; then one in five seconds, and one a
    /// minute of a flood that goes on. The first twenty are fewer than the Events that client-go lets a source send about an
    /// object at once (`EventSourceObjectSpamFilter`: 25). From a node about one a second.
    fn default() -> Self {
        Self {
            pod: [
                Rate::new(10, Duration::from_secs(5)),
                Rate::new(20, Duration::from_secs(60)),
            ],
            node: Rate::new(50, Duration::from_secs(1)),
        }
    }
}

/// The reports that wait for an Event.
#[derive(Debug)]
pub struct PodEvents {
    rates: Rates,
    /// So many reports may wait.
    most: usize,
    node: RateLimiter,
    /// The latest Event about a pod of each namespace, within the last minutes.
    latest: BTreeMap<String, Instant>,
    /// The limiters that are not full, by the pod's UID.
    pods: BTreeMap<String, [RateLimiter; 2]>,
    /// In the order of their first reports.
    groups: VecDeque<Group>,
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
    /// Once `most` reports wait, the largest group has an Event regardless of its pod's rate, so that a flood in one
    /// pod does not keep out the reports of others.
    pub const fn new(rates: Rates, most: usize, now: Instant) -> Self {
        Self {
            rates,
            most,
            node: RateLimiter::new(rates.node, now),
            latest: BTreeMap::new(),
            pods: BTreeMap::new(),
            groups: VecDeque::new(),
        }
    }

    /// The next Event that may be sent now, which counts as sent.
    pub fn next(&mut self, now: Instant) -> Option<PlannedEvent> {
        self.pods
            .retain(|_, both| !both.iter().all(|limiter| limiter.is_full(now)));
        if self.node.ready_at() > now {
            return None;
        }
        let group = self.groups.remove(self.next_group(now)?)?;
        self.node.use_turn(now);
        if let Subject::Pod(PodReference { pod, .. }) = &group.subject {
            let new = || self.rates.pod.map(|rate| RateLimiter::new(rate, now));
            let both = self.pods.entry(pod.uid.clone()).or_insert_with(new);
            both.iter_mut().for_each(|limiter| limiter.use_turn(now));
            self.latest
                .retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED);
            self.latest.insert(pod.namespace.clone(), now);
        }
        Some(group.event())
    }

    /// The index of the group that may have the next Event: namespaces take turns.
    fn next_group(&self, now: Instant) -> Option<usize> {
        if self.is_full() {
            let sizes = self.groups.iter().map(|group| group.reports.len()).enumerate();
            return sizes.max_by_key(|(_, size)| *size).map(|(place, _)| place);
        }
        let ready = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| self.pod_ready(group) <= now);
        let latest = |group: &Group| match &group.subject {
            Subject::Pod(PodReference { pod, .. }) => self.latest.get(&pod.namespace).copied(),
            Subject::Node => None,
        };
        ready.min_by_key(|(_, group)| latest(group)).map(|(place, _)| place)
    }

    fn is_full(&self) -> bool {
        self.waiting() >= self.most
    }

    /// When the pod may have another Event.
    fn pod_ready(&self, group: &Group) -> Instant {
        let both = match &group.subject {
            Subject::Pod(PodReference { pod, .. }) => self.pods.get(&pod.uid),
            Subject::Node => None,
        };
        let ready = both.into_iter().flatten().map(RateLimiter::ready_at).max();
        ready.unwrap_or_else(|| self.node.ready_at())
    }
}

impl EventPlan for PodEvents {
    fn destination(&self) -> Destination {
        Destination::PodEvents
    }

    fn offer(&mut self, pending: Pending) {
        // One Event covers all that wait with the same container and levels.
        let facts = pending.report.facts();
        let (subject, levels) = (subject(facts), [facts.level, facts.limit_of()]);
        let same = |group: &&mut Group| group.subject == subject && group.levels == levels;
        match self.groups.iter_mut().find(same) {
            Some(group) => group.add(pending),
            None => self.groups.push_back(Group {
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
        let first = self.groups.iter().map(|group| self.pod_ready(group)).min()?;
        let node = self.node.ready_at();
        Some(if self.is_full() { node } else { first.max(node) })
    }

    fn next_event(&mut self, now: Instant, _: &dyn PodMetadata, _: &mut Vec<u64>) -> Option<PlannedEvent> {
        self.next(now)
    }

    fn start_over(&mut self) {
        self.groups.clear();
    }
}

impl Group {
    fn add(&mut self, pending: Pending) {
        self.reports.push(CoveredReport::from(&pending));
        let mut sum = self.report.clone().into_aggregate();
        sum.add(pending.report.into_aggregate());
        self.report = Report::Aggregate(Box::new(sum));
    }

    fn event(self) -> PlannedEvent {
        let stem = match &self.subject {
            Subject::Pod(PodReference { pod, .. }) => pod.name.as_str(),
            Subject::Node => "node",
        };
        PlannedEvent {
            event: NamedEvent {
                name: name_of(stem, &self.id),
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
