//! Events in the shape that an unmodified VPA recommender reads, for kills that it would not learn of otherwise.
//!
//! The recommender takes a new Event with the reason Evicted on a pod, with three annotations, for a sample of memory
//! (`parseEvictionEvent` in `recommender/input/oom/observer.go`), and adds its own margin. From the status of a pod it
//! learns of containers that ended with OOMKilled: those are not told here, or they would count twice. Users see an
//! eviction that is none, so this is for those who ask for it, and sparse.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{CoveredReport, PlannedEvent, name_of, subject, text};
use crate::kubernetes::events::{NamedEvent, Severity};
use crate::oom::{Confidence, HitLimit, Level, OomReport, ReportedContainer, ReportedPod, Role};
use crate::report::content::Report;
use crate::report::log::Pending;

/// Containers that are remembered; the one whose Event is oldest gives way.
const REMEMBERED: usize = 4096;

/// The least time between two Events about one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VpaWindows {
    /// Usually. The recommender looks once a minute.
    pub usual: SignedDuration,
    /// While the recommendation is held down by maxAllowed: every further Event would inflate what it would be without.
    pub pinned: SignedDuration,
}

impl Default for VpaWindows {
    /// Ten minutes; a day, which is the recommender's own window for the peak of memory.
    fn default() -> Self {
        Self {
            usual: SignedDuration::from_mins(10),
            pinned: SignedDuration::from_hours(24),
        }
    }
}

/// What is known of a container besides the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Whether it is one of the pod's regular containers: the recommender knows no others.
    pub regular: bool,
    /// Whether a VPA controls its pod: nobody else would read the Event.
    pub vpa: bool,
    /// Whether its recommendation is held down by maxAllowed.
    pub pinned: bool,
    /// Whether the container that had the kill is seen to run on after it; unknown before its status was seen.
    pub survived: Option<bool>,
}

/// Why the recommender is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// The container is not known by name, or is none of the pod's regular ones.
    NoContainer,
    /// No VPA controls the pod.
    NoVpa,
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

/// When the recommender was told of a container last. Windows outlive the agent, so this is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastTold {
    pub pod: String,
    pub container: String,
    /// When, by the wall clock.
    pub at: Timestamp,
}

/// What the recommender was told lately.
#[derive(Debug)]
pub struct VpaEvents {
    windows: VpaWindows,
    told: Vec<LastTold>,
}

impl VpaEvents {
    /// Begins with what an earlier agent told.
    pub fn new(windows: VpaWindows, mut before: Vec<LastTold>) -> Self {
        before.truncate(REMEMBERED);
        Self { windows, told: before }
    }

    /// What was told lately, to be kept.
    pub fn told(&self) -> &[LastTold] {
        &self.told
    }

    /// Whether it is worth waiting for what becomes of the container.
    ///
    /// Errors: Why the recommender will not be told of the report, whatever becomes of the container.
    pub fn screen(&self, report: &Report, now: Timestamp) -> Result<(), Withheld> {
        let (pod, container, _) = eligible(report)?;
        match self.since(pod, container, now) {
            Some(since) if since < self.windows.usual => Err(Withheld::WithinWindow),
            Some(_) | None => Ok(()),
        }
    }

    /// The Event about a report, once it is known what became of the container. It counts as sent from now on.
    ///
    /// Errors: Why there is none; the report is dealt with.
    pub fn decide(
        &mut self,
        pending: &Pending,
        facts: ContainerFacts,
        now: Timestamp,
    ) -> Result<PlannedEvent, Withheld> {
        let report = &pending.report;
        let (pod, container, usage) = eligible(report)?;
        if !facts.regular {
            return Err(Withheld::NoContainer);
        }
        if !facts.vpa {
            return Err(Withheld::NoVpa);
        }
        if in_status(report, facts.survived) {
            return Err(Withheld::InStatus);
        }
        self.spend(pod, container, facts.pinned, now)?;
        let message = format!(
            "vscaled tells the VPA recommender of an OOM kill in container {}; nothing was evicted. {}",
            container.name,
            text::message(report)
        );
        Ok(PlannedEvent {
            event: NamedEvent {
                name: name_of(&format!("{}.oom", pod.name), &report.id()),
                subject: subject(report.facts()),
                severity: Severity::Warning,
                reason: "Evicted",
                message,
                first: report.first(),
                last: report.last(),
                count: report.count(),
                annotations: vec![
                    ("offending_containers", container.name.clone()),
                    ("offending_containers_usage", usage.to_string()),
                    ("starved_resource", "memory".to_owned()),
                ],
            },
            reports: vec![CoveredReport::from(pending)],
        })
    }

    /// How long ago the recommender was told of a container. Not at all long if the clock was set back since: a window
    /// that begins then may last too long by one window, and not for as long as the clock was wrong.
    fn since(&self, pod: &ReportedPod, container: &ReportedContainer, now: Timestamp) -> Option<SignedDuration> {
        let mut told = self.told.iter();
        let last = told.find(|last| last.pod == pod.uid && last.container == container.name)?;
        Some(now.duration_since(last.at).max(SignedDuration::ZERO))
    }

    /// Makes an Event about a container now the last one, if it may have another.
    fn spend(
        &mut self,
        pod: &ReportedPod,
        container: &ReportedContainer,
        pinned: bool,
        now: Timestamp,
    ) -> Result<(), Withheld> {
        let longest = self.windows.usual.max(self.windows.pinned);
        self.told.iter_mut().for_each(|last| last.at = now.min(last.at));
        self.told.retain(|last| now.duration_since(last.at) < longest);
        let (window, why) = if pinned {
            (longest, Withheld::Pinned)
        } else {
            (self.windows.usual, Withheld::WithinWindow)
        };
        if self.since(pod, container, now).is_some_and(|since| since < window) {
            return Err(why);
        }
        self.told
            .retain(|last| last.pod != pod.uid || last.container != container.name);
        self.told.push(LastTold {
            pod: pod.uid.clone(),
            container: container.name.clone(),
            at: now,
        });
        // The oldest come first.
        let excess = self.told.len().saturating_sub(REMEMBERED);
        self.told.drain(..excess);
        Ok(())
    }
}

/// The pod, the container and the usage in bytes of which the recommender is told, if the report is for it at all.
fn eligible(report: &Report) -> Result<(&ReportedPod, &ReportedContainer, u64), Withheld> {
    let facts = report.facts();
    let (Some(pod), Some(container)) = (&facts.pod, &facts.container) else {
        return Err(Withheld::NoContainer);
    };
    if pod.name.is_empty() || pod.namespace.is_empty() || container.name.is_empty() {
        return Err(Withheld::NoContainer);
    }
    if facts.limit_of() != Level::Container {
        return Err(Withheld::NotItsLimit);
    }
    if let Report::Kill(kill) = report {
        if kill.confidence == Confidence::Ambiguous {
            return Err(Withheld::Uncertain);
        }
        if kill.victim.as_ref().is_some_and(|victim| victim.role == Role::Main) {
            return Err(Withheld::InStatus);
        }
    }
    let usage = usage(facts.container_limit.as_ref().unwrap_or(&facts.limit)).ok_or(Withheld::NoUsage)?;
    Ok((pod, container, usage))
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
            Some(Role::Unspecified) | None => survived.is_none(),
        },
        Report::Aggregate(_) => survived.is_none(),
    }
}

/// Whether all of the container was killed with this process. A group below the container's own cgroup (and crun's inner
/// one) is one that the container made itself, and need not hold its main process.
fn died_as_a_whole(kill: &OomReport) -> bool {
    let inside = kill
        .facts
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
