//! Events for people: one for each kill, or one for many where there are too many.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::bucket::{Bucket, Pair};
use super::{PlannedEvent, Rate, Regarding, Told, event_name, text};
use crate::oom::Level;
use crate::report::content::Report;
use crate::report::log::Pending;

/// How many Events may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// About one pod. Both hold: the first spaces what comes at once, the second what does not end.
    pub pod: [Rate; 2],
    /// From this node.
    pub node: Rate,
}

impl Default for Rates {
    /// About a pod ten at once, so that the first of a flood are told as they come; the rest of a short one five seconds
    /// later; and one a minute of a flood that goes on. What is told so quickly, twenty, is below what client-go lets a source
    /// say about an object at once (`EventSourceObjectSpamFilter`: 25). From a node about one a second.
    fn default() -> Self {
        Self {
            pod: [
                Rate {
                    burst: 10,
                    every: Duration::from_secs(5),
                },
                Rate {
                    burst: 20,
                    every: Duration::from_secs(60),
                },
            ],
            node: Rate {
                burst: 50,
                every: Duration::from_secs(1),
            },
        }
    }
}

/// What waits to be told in Events.
#[derive(Debug)]
pub struct PodEvents {
    rates: Rates,
    /// As many reports may wait.
    most: usize,
    node: Bucket,
    /// Those that are not full, by the pod's UID.
    pods: BTreeMap<String, Pair>,
    /// In the order in which their first report came.
    groups: VecDeque<Group>,
}

/// Reports that one Event will tell.
#[derive(Debug)]
struct Group {
    regarding: Regarding,
    level: Level,
    report: Report,
    /// The first one's.
    id: String,
    reports: Vec<Told>,
}

impl PodEvents {
    /// Nothing waits. Once `most` reports do, those that are most of them are told in one Event whatever their pod's rate
    /// is, so that a flood in one pod does not keep the others' from being taken in.
    #[must_use]
    pub const fn new(rates: Rates, most: usize, now: Instant) -> Self {
        Self {
            rates,
            most,
            node: Bucket::new(rates.node, now),
            pods: BTreeMap::new(),
            groups: VecDeque::new(),
        }
    }

    /// Takes a report in. It is told with those of the same container and level that wait already.
    pub fn offer(&mut self, pending: Pending) {
        let (regarding, level) = (regarding(&pending.report), pending.report.level());
        let same = |group: &&mut Group| group.regarding == regarding && group.level == level;
        match self.groups.iter_mut().find(same) {
            Some(group) => group.add(pending),
            None => self.groups.push_back(Group {
                regarding,
                level,
                id: pending.report.id().into_owned(),
                reports: vec![Told::from(&pending)],
                report: pending.report,
            }),
        }
    }

    /// Forgets what waits. What was sent still counts against the rates.
    pub fn start_over(&mut self) {
        self.groups.clear();
    }

    /// The next Event that may be sent now, if one may. One that was given counts as sent.
    pub fn next(&mut self, now: Instant) -> Option<PlannedEvent> {
        self.pods.retain(|_, bucket| !bucket.is_full(now));
        if self.node.ready_at() > now {
            return None;
        }
        let group = self.groups.remove(self.next_group(now)?)?;
        self.node.consume(now);
        if let Regarding::Pod { uid, .. } = &group.regarding {
            self.pods
                .entry(uid.clone())
                .or_insert_with(|| Pair::new(self.rates.pod, now))
                .consume(now);
        }
        Some(group.event())
    }

    /// When [`Self::next`] has something, if nothing more is offered: in the past if now, never if nothing waits.
    #[must_use]
    pub fn ready_at(&self) -> Option<Instant> {
        let first = self.groups.iter().map(|group| self.pod_ready(group)).min()?;
        let node = self.node.ready_at();
        Some(if self.is_full() { node } else { first.max(node) })
    }

    /// How many reports wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.groups.iter().map(|group| group.reports.len()).sum()
    }

    /// The place of the group that is told next, if one may be.
    fn next_group(&self, now: Instant) -> Option<usize> {
        if self.is_full() {
            let sizes = self.groups.iter().map(|group| group.reports.len()).enumerate();
            return sizes.max_by_key(|(_, size)| *size).map(|(place, _)| place);
        }
        self.groups.iter().position(|group| self.pod_ready(group) <= now)
    }

    fn is_full(&self) -> bool {
        self.waiting() >= self.most
    }

    /// When the pod may have another Event.
    fn pod_ready(&self, group: &Group) -> Instant {
        let bucket = match &group.regarding {
            Regarding::Pod { uid, .. } => self.pods.get(uid),
            Regarding::Node => None,
        };
        bucket.map_or_else(|| self.node.ready_at(), Pair::ready_at)
    }
}

impl Group {
    fn add(&mut self, pending: Pending) {
        self.reports.push(Told::from(&pending));
        let mut folded = self.report.clone().into_aggregate();
        folded.add(pending.report.into_aggregate());
        self.report = Report::Aggregate(Box::new(folded));
    }

    fn event(self) -> PlannedEvent {
        let stem = match &self.regarding {
            Regarding::Pod { name, .. } => name.as_str(),
            Regarding::Node => "node",
        };
        PlannedEvent {
            name: event_name(stem, &self.id),
            reason: "OOMKilled",
            message: text::message(&self.report),
            first: self.report.first(),
            last: self.report.last(),
            count: self.report.count(),
            annotations: Vec::new(),
            reports: self.reports,
            regarding: self.regarding,
        }
    }
}

/// What an Event about this report can be about.
fn regarding(report: &Report) -> Regarding {
    match report.pod() {
        Some(pod) if !pod.name.is_empty() && !pod.namespace.is_empty() => Regarding::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            container: report
                .container()
                .map(|container| container.name.clone())
                .filter(|name| !name.is_empty()),
        },
        Some(_) | None => Regarding::Node,
    }
}
