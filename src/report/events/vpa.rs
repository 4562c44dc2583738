//! Events in the shape that an unmodified VPA recommender reads, for kills that the pod's status does not show.
//!
//! The recommender takes a new Event with the reason Evicted on a pod, with three annotations, for a sample of memory
//! (`parseEvictionEvent` in `recommender/input/oom/observer.go`), and adds its own margin. From the status of a pod it
//! learns of containers that ended with OOMKilled: an Event about those would count them twice. Users see an eviction that
//! is none, so the agent makes such Events only where the configuration asks for them, and few.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{PlannedEvent, name_of, subject, text};
use crate::kubernetes::events::{EventRates, NamedEvent, Severity};
use crate::oom::{Confidence, Level, OomReport, ReportedContainer, ReportedPod, Role};
use crate::report::content::Report;
use crate::report::log::Pending;
use crate::report::outbox::{EventPlan, PodMetadata};

/// How long the kubelet has to write the end of a container into the pod's status: the recommender reads that, too, and must
/// not count a kill twice. The kubelet looks at its containers every second (`genericPlegRelistPeriod`) and writes the
/// status at once, unless the API server makes it wait.
const SETTLE: Duration = Duration::from_secs(10);

/// How many containers are remembered; the one whose Event is oldest gives way.
const REMEMBERED: usize = 4096;

/// The least time between two Events about one container while maxAllowed holds down the recommendation: every further Event
/// would raise the uncapped recommendation. This is the recommender's own window for the peak of memory.
pub(super) const PINNED_WINDOW: SignedDuration = SignedDuration::from_hours(24);

/// The agent's facts about a container, besides the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Whether it is one of the pod's regular containers: the recommender ignores all others.
    pub regular: bool,
    /// Whether a VPA controls the pod: without one the Event has no reader.
    pub vpa: bool,
    /// Whether maxAllowed holds down the container's recommendation.
    pub pinned: bool,
    /// Whether the container runs on after the kill; unknown before the agent saw the container's status.
    pub survived: Option<bool>,
}

/// When a container last had an Event for the recommender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEvent {
    pub pod: String,
    pub container: String,
    /// When, by the wall clock.
    pub at: Timestamp,
    /// The number of its report, as long as the API server may not have the Event.
    #[serde(skip)]
    pub under_way: Option<u64>,
}

/// A report that waits, the moment at which it is decided, and what [`VpaEvents::screen`] found.
type ScreenedReport = (Instant, Result<(), &'static str>, Pending);

/// Makes Events for the recommender of reports, each once the kubelet has had time to write the pod's status.
#[derive(Debug)]
pub struct VpaEvents {
    /// The least time between two Events about one container. The recommender polls once a minute.
    window: SignedDuration,
    /// The latest Event of each container, oldest first.
    told: Vec<LastEvent>,
    /// The file that keeps `told`, so that windows outlive the agent.
    memory: PathBuf,
    waiting: Vec<ScreenedReport>,
}

impl VpaEvents {
    /// Begins with the Events of an earlier agent, which the file `memory` keeps.
    pub fn new(window: SignedDuration, told: Vec<LastEvent>, memory: PathBuf) -> Self {
        Self {
            window,
            told,
            memory,
            waiting: Vec::new(),
        }
    }

    /// Whether to wait for the container's next state.
    ///
    /// Errors: why there will be no Event, regardless of the container's state, as a word for the log.
    pub fn screen(&self, report: &Report, now: Timestamp) -> Result<(), &'static str> {
        let (pod, container, _) = eligible(report)?;
        self.check_window(&LastEvent::new(pod, container, now), false)
    }

    /// The Event about a report, once the agent knows the container's state. It counts as sent from now on.
    ///
    /// Errors: why there is none.
    pub fn decide(
        &mut self,
        pending: &Pending,
        facts: ContainerFacts,
        now: Timestamp,
    ) -> Result<PlannedEvent, &'static str> {
        let report = &pending.report;
        let (pod, container, usage) = eligible(report)?;
        // The recommender ignores other than regular containers, and an Event about a pod without a VPA has no reader.
        if !facts.regular {
            return Err("NoContainer");
        }
        if !facts.vpa {
            return Err("NoVpa");
        }
        if is_in_status(report, facts.survived) {
            return Err("InStatus");
        }
        let last = LastEvent {
            under_way: Some(pending.number),
            ..LastEvent::new(pod, container, now)
        };
        self.use_window(last, facts.pinned)?;
        let message = format!(
            "vscaled reports an OOM kill in container {} to the VPA recommender; nothing was evicted. {}",
            container.name,
            text::message(report)
        );
        let event = NamedEvent {
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
            ..NamedEvent::default()
        };
        Ok(PlannedEvent::new(event, vec![pending.clone()]))
    }

    /// Refuses an Event within the window of the last one about its container.
    fn check_window(&self, event: &LastEvent, pinned: bool) -> Result<(), &'static str> {
        let (window, why) = if pinned {
            (self.window.max(PINNED_WINDOW), "Pinned")
        } else {
            (self.window, "WithinWindow")
        };
        let is_within = |last: &LastEvent| last.is_of_same(event) && event.at.duration_since(last.at) < window;
        if self.told.iter().any(is_within) {
            Err(why)
        } else {
            Ok(())
        }
    }

    /// Has a clock that was set back cost one window, and not the time by which it was wrong.
    fn note_time(&mut self, now: Timestamp) {
        self.told.iter_mut().for_each(|last| last.at = last.at.min(now));
    }

    /// Remembers an Event that is sent now, if its container may have one.
    fn use_window(&mut self, event: LastEvent, pinned: bool) -> Result<(), &'static str> {
        self.note_time(event.at);
        self.check_window(&event, pinned)?;
        let longest = self.window.max(PINNED_WINDOW);
        let is_needed = |last: &LastEvent| event.at.duration_since(last.at) < longest && !last.is_of_same(&event);
        self.told.retain(is_needed);
        self.told.push(event);
        let excess = self.told.len().saturating_sub(REMEMBERED);
        self.told.drain(..excess);
        Ok(())
    }
}

impl EventPlan for VpaEvents {
    fn offer(&mut self, pending: Pending) {
        let now = Timestamp::now();
        self.note_time(now);
        let screened = self.screen(&pending.report, now);
        // A report that gets no Event, regardless of the container's state, waits for nothing.
        let wait = if screened.is_ok() { SETTLE } else { Duration::ZERO };
        self.waiting.push((Instant::now() + wait, screened, pending));
    }

    fn due(&self, _: Instant) -> Vec<(&str, Instant)> {
        let waiting = self.waiting.iter();
        waiting
            .map(|(due, _, pending)| (pending.report.namespace(), *due))
            .collect()
    }

    fn next_event(
        &mut self,
        namespace: &str,
        now: Instant,
        _: &mut EventRates,
        metadata: &dyn PodMetadata,
        withheld: &mut Vec<u64>,
    ) -> Option<PlannedEvent> {
        let is_due = |(due, _, pending): &ScreenedReport| *due <= now && pending.report.namespace() == namespace;
        while let Some(place) = self.waiting.iter().position(is_due) {
            let (_, screened, pending) = self.waiting.remove(place);
            let facts = metadata.container_facts(&pending.report).unwrap_or_default();
            match screened.and_then(|()| self.decide(&pending, facts, Timestamp::now())) {
                Ok(event) => return Some(event),
                Err(why) => {
                    tracing::debug!(id = %pending.report.id(), why, "no Event for the VPA recommender");
                    withheld.push(pending.number);
                }
            }
        }
        None
    }

    fn ended(&mut self, numbers: &[u64]) -> Option<(&Path, Vec<LastEvent>)> {
        for last in &mut self.told {
            last.under_way = last.under_way.filter(|number| !numbers.contains(number));
        }
        // The next agent sends the others again.
        let ended = self.told.iter().filter(|last| last.under_way.is_none());
        Some((&self.memory, ended.cloned().collect()))
    }
}

impl LastEvent {
    fn new(pod: &ReportedPod, container: &ReportedContainer, at: Timestamp) -> Self {
        Self {
            pod: pod.uid.clone(),
            container: container.name.clone(),
            at,
            under_way: None,
        }
    }

    fn is_of_same(&self, other: &Self) -> bool {
        self.pod == other.pod && self.container == other.container
    }
}

/// The pod, the container and the usage in bytes for the Event, if the recommender needs one at all.
fn eligible(report: &Report) -> Result<(&ReportedPod, &ReportedContainer, u64), &'static str> {
    let facts = report.facts();
    let (Some(pod), Some(container)) = (&facts.pod, &facts.container) else {
        return Err("NoContainer");
    };
    if pod.name.is_empty() || pod.namespace.is_empty() || container.name.is_empty() {
        return Err("NoContainer");
    }
    // A higher limit of the container would not have helped.
    if facts.limit_of() != Level::Container {
        return Err("NotItsLimit");
    }
    if let Report::Kill(kill) = report {
        if kill.confidence == Confidence::Ambiguous {
            return Err("Uncertain");
        }
        if kill.victim.as_ref().is_some_and(|victim| victim.role() == Role::Main) {
            return Err("InStatus");
        }
    }
    let limit = facts.container_limit.as_ref().unwrap_or(&facts.limit);
    // The container would have needed so much at least. The recommender adds its own margin.
    let usage = limit.limit_bytes.max(limit.usage_bytes).or(limit.peak_bytes);
    Ok((pod, container, usage.ok_or("NoUsage")?))
}

/// Whether the pod's status shows an eligible kill: the container ended, or may have.
fn is_in_status(report: &Report, survived: Option<bool>) -> bool {
    let may_have_ended = || match report.kill() {
        Some(kill) if kill.victim.as_ref().is_some_and(|victim| victim.role() == Role::Child) => died_as_a_whole(kill),
        Some(_) | None => true,
    };
    survived.map_or_else(may_have_ended, |survived| !survived)
}

/// Whether the kernel killed all of the container with this process. The container made a group below its own cgroup (and
/// crun's inner one) itself, and such a group need not hold its main process.
fn died_as_a_whole(kill: &OomReport) -> bool {
    let known = kill.facts.container.as_ref().zip(kill.cgroup.as_ref());
    let inside = known.map(|(container, cgroup)| {
        let inside = cgroup.split_once(&container.id).map_or("", |(_, inside)| inside);
        inside.trim_start_matches(".scope").trim_matches('/')
    });
    !kill.group.is_empty() && matches!(inside, None | Some("" | "container"))
}
