//! Events in the shape that an unmodified VPA recommender reads, for kills that it would not learn of otherwise.
//!
//! The recommender takes a new Event with the reason Evicted on a pod, with three annotations, for a sample of memory
//! (`parseEvictionEvent` in `recommender/input/oom/observer.go`), and adds its own margin. From the status of a pod it
//! learns of containers that ended with OOMKilled: those are not told here, or they would count twice. Users see an
//! eviction that is none, so this is for those who ask for it, and sparse.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{PlannedEvent, Regarding, event_name, text};
use crate::oom::{Confidence, HitLimit, Level, OomReport, Role};
use crate::report::content::Report;
use crate::report::spool::Owed;

/// Containers that are remembered; the one whose Event is oldest gives way.
const REMEMBERED: usize = 4096;

/// The least time between two Events about one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VpaWindows {
    /// Usually. The recommender looks once a minute.
    pub usual: Duration,
    /// While the recommendation is held down by maxAllowed: every further Event would inflate what it would be without.
    pub pinned: Duration,
}

impl Default for VpaWindows {
    /// Ten minutes; a day, which is the recommender's own window for the peak of memory.
    fn default() -> Self {
        Self {
            usual: Duration::from_secs(10 * 60),
            pinned: Duration::from_secs(24 * 3600),
        }
    }
}

/// What is known of a container besides the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Whether it is one of the pod's regular containers: the recommender knows no others.
    pub regular: bool,
    /// Whether its recommendation is held down by maxAllowed.
    pub pinned: bool,
    /// Whether the container that had the kill is seen to run on after it; unknown before its status was seen.
    pub survived: Option<bool>,
}

/// What is done about a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VpaVerdict {
    /// This Event is sent; it counts as sent from now on.
    Send(Box<PlannedEvent>),
    /// Nothing is, for this reason; the report is dealt with.
    Withhold(Withheld),
}

/// Why the recommender is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// The container is not known by name, or is none of the pod's regular ones.
    NoContainer,
    /// Another limit than its own was reached: more memory for it would not have helped.
    NotItsLimit,
    /// It is not certain that it lost a process.
    Uncertain,
    /// The container ended with it, or may have: its status tells.
    InStatus,
    /// How much it would have needed is not known.
    NoUsage,
    /// The recommender was told of this container a short while ago.
    WithinWindow,
    /// The same, and it cannot recommend more anyway.
    Pinned,
}

/// What the recommender was told lately.
#[derive(Debug)]
pub struct VpaEvents {
    windows: VpaWindows,
    /// When, by the pod's UID and the container's name.
    told: BTreeMap<(String, String), Instant>,
}

impl VpaEvents {
    /// Nothing yet.
    #[must_use]
    pub const fn new(windows: VpaWindows) -> Self {
        Self {
            windows,
            told: BTreeMap::new(),
        }
    }

    /// What to do about a report.
    pub fn judge(&mut self, owed: &Owed, facts: ContainerFacts, now: Instant) -> VpaVerdict {
        match self.event(owed, facts, now) {
            Ok(event) => VpaVerdict::Send(Box::new(event)),
            Err(why) => VpaVerdict::Withhold(why),
        }
    }

    fn event(&mut self, owed: &Owed, facts: ContainerFacts, now: Instant) -> Result<PlannedEvent, Withheld> {
        let report = &owed.report;
        let (Some(pod), Some(container)) = (report.pod(), report.container()) else {
            return Err(Withheld::NoContainer);
        };
        let nameless = pod.name.is_empty() || pod.namespace.is_empty() || container.name.is_empty();
        if nameless || !facts.regular {
            return Err(Withheld::NoContainer);
        }
        if report.level() != Level::Container {
            return Err(Withheld::NotItsLimit);
        }
        if let Report::Kill(kill) = report
            && kill.confidence == Confidence::Ambiguous
        {
            return Err(Withheld::Uncertain);
        }
        if in_status(report, facts.survived) {
            return Err(Withheld::InStatus);
        }
        let usage = usage(report.limit()).ok_or(Withheld::NoUsage)?;
        self.spend((pod.uid.clone(), container.name.clone()), facts.pinned, now)?;
        let message = format!(
            "vscaled tells the VPA recommender of an OOM kill in container {}; nothing was evicted. {}",
            container.name,
            text::message(report)
        );
        Ok(PlannedEvent {
            name: event_name(&format!("{}.oom", pod.name), &report.id()),
            regarding: Regarding::Pod {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                container: Some(container.name.clone()),
            },
            reason: "Evicted",
            message: text::bounded(&message),
            first: report.first(),
            last: report.last(),
            count: report.count(),
            annotations: BTreeMap::from([
                ("offending_containers", container.name.clone()),
                ("offending_containers_usage", usage.to_string()),
                ("starved_resource", "memory".to_owned()),
            ]),
            reports: vec![owed.number],
        })
    }

    /// Makes an Event about a container now the last one, if it may have another.
    fn spend(&mut self, container: (String, String), pinned: bool, now: Instant) -> Result<(), Withheld> {
        let longest = self.windows.usual.max(self.windows.pinned);
        self.told
            .retain(|_, told| now.saturating_duration_since(*told) < longest);
        let (window, why) = if pinned {
            (longest, Withheld::Pinned)
        } else {
            (self.windows.usual, Withheld::WithinWindow)
        };
        if let Some(told) = self.told.get(&container)
            && now.saturating_duration_since(*told) < window
        {
            return Err(why);
        }
        if self.told.len() >= REMEMBERED
            && let Some(oldest) = self.told.iter().min_by_key(|(_, told)| **told)
        {
            let oldest = oldest.0.clone();
            self.told.remove(&oldest);
        }
        self.told.insert(container, now);
        Ok(())
    }
}

/// Whether the pod's status tells of it: the container ended, or that it did not end is not known.
fn in_status(report: &Report, survived: Option<bool>) -> bool {
    if survived == Some(false) {
        return true;
    }
    match report {
        Report::Kill(kill) => match kill.victim.as_ref().map(|victim| victim.role) {
            Some(Role::Main) => true,
            Some(Role::Child) => survived.is_none() && died_as_a_whole(kill),
            Some(Role::Unknown) | None => survived.is_none(),
        },
        Report::Folded(_) => survived.is_none(),
    }
}

/// Whether all of the container was killed with this process. A group below the container's own cgroup (and crun's inner
/// one) is one that the container made itself, and need not hold its main process.
fn died_as_a_whole(kill: &OomReport) -> bool {
    let inside = kill
        .container
        .as_ref()
        .zip(kill.cgroup.as_ref())
        .map(|(container, cgroup)| {
            let inside = cgroup.split_once(&container.id).map_or("", |(_, inside)| inside);
            inside.trim_start_matches(".scope").trim_matches('/')
        });
    !kill.group.is_empty() && matches!(inside, None | Some("" | "container"))
}

/// What the container would have needed at least, in bytes. The recommender adds its own margin.
fn usage(limit: &HitLimit) -> Option<u64> {
    limit.limit_bytes.max(limit.usage_bytes).or(limit.peak_bytes)
}
