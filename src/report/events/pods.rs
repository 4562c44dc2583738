//! Events for people: one for each kill, or one for many where there are too many.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::bucket::Bucket;
use super::{PlannedEvent, Rate, Regarding, event_name, text};
use crate::oom::Level;
use crate::report::content::Report;
use crate::report::spool::Owed;

/// How many Events may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// About one pod.
    pub pod: Rate,
    /// From this node.
    pub node: Rate,
}

impl Default for Rates {
    /// Below what the API server's own limits on Events allow a source and object (`EventRateLimit`, client-go's
    /// `EventSourceObjectSpamFilter`: 25, then one in five minutes), and about one a second from a node.
    fn default() -> Self {
        Self {
            pod: Rate {
                burst: 10,
                every: Duration::from_secs(60),
            },
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
    node: Bucket,
    /// Those that are not full, by the pod's UID.
    pods: BTreeMap<String, Bucket>,
    /// In the order in which their first report came.
    groups: VecDeque<Group>,
}

/// Reports that one Event will tell.
#[derive(Debug)]
struct Group {
    regarding: Regarding,
    level: Level,
    report: Report,
    numbers: Vec<u64>,
}

impl PodEvents {
    /// Nothing waits.
    #[must_use]
    pub const fn new(rates: Rates, now: Instant) -> Self {
        Self {
            rates,
            node: Bucket::new(rates.node, now),
            pods: BTreeMap::new(),
            groups: VecDeque::new(),
        }
    }

    /// Takes a report in. It is told with those of the same container and level that wait already.
    pub fn offer(&mut self, owed: Owed) {
        let (regarding, level) = (regarding(&owed.report), owed.report.level());
        let same = |group: &&mut Group| group.regarding == regarding && group.level == level;
        match self.groups.iter_mut().find(same) {
            Some(group) => group.add(owed),
            None => self.groups.push_back(Group {
                regarding,
                level,
                report: owed.report,
                numbers: vec![owed.number],
            }),
        }
    }

    /// The next Event that may be sent now, if one may. One that was given counts as sent.
    pub fn next(&mut self, now: Instant) -> Option<PlannedEvent> {
        self.pods.retain(|_, bucket| !bucket.is_full(now));
        if self.node.ready_at() > now {
            return None;
        }
        let at = self.groups.iter().position(|group| self.pod_ready(group) <= now)?;
        let group = self.groups.remove(at)?;
        self.node.take(now);
        if let Regarding::Pod { uid, .. } = &group.regarding {
            self.pods
                .entry(uid.clone())
                .or_insert_with(|| Bucket::new(self.rates.pod, now))
                .take(now);
        }
        Some(group.event())
    }

    /// When [`Self::next`] has something, if nothing more is offered: in the past if now, never if nothing waits.
    #[must_use]
    pub fn ready_at(&self) -> Option<Instant> {
        let first = self.groups.iter().map(|group| self.pod_ready(group)).min()?;
        Some(first.max(self.node.ready_at()))
    }

    /// How many reports wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.groups.iter().map(|group| group.numbers.len()).sum()
    }

    /// When the pod may have another Event.
    fn pod_ready(&self, group: &Group) -> Instant {
        let bucket = match &group.regarding {
            Regarding::Pod { uid, .. } => self.pods.get(uid),
            Regarding::Node => None,
        };
        bucket.map_or_else(|| self.node.ready_at(), Bucket::ready_at)
    }
}

impl Group {
    fn add(&mut self, owed: Owed) {
        let mut folded = self.report.clone().folded();
        folded.count_in(owed.report.folded());
        self.report = Report::Folded(Box::new(folded));
        self.numbers.push(owed.number);
    }

    fn event(self) -> PlannedEvent {
        let stem = match &self.regarding {
            Regarding::Pod { name, .. } => name.as_str(),
            Regarding::Node => "node",
        };
        PlannedEvent {
            name: event_name(stem, &self.report.id()),
            reason: "OOMKilled",
            message: text::message(&self.report),
            first: self.report.first(),
            last: self.report.last(),
            count: self.report.count(),
            annotations: BTreeMap::new(),
            reports: self.numbers,
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
