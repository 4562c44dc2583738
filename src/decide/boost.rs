//! Startup boosts: whose cpu is not to be touched while its pod starts, and goes back once it has (AEP-7862).
//!
//! In come the annotations that VPA's webhook leaves on a pod when it raises the cpu of its containers at their creation,
//! the pod's Ready condition, and how long after that the VPA lets a boost go on. Each such container is marked: its boost
//! lasts, or it is over and the container goes to what is recommended for it, else to what it had before. Nothing here
//! ever makes a boost.
//!
//! A kubelet that resizes in place has what was decided in its pod's spec, and the annotation goes once the spec says so.
//! Elsewhere the spec keeps the boost for good, and so does the pod its annotation; that the record of what was applied
//! differs from the spec says that the boost has been taken back.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::candidate::Candidate;
use super::note::Note;
use super::verdict::changes;
use crate::objects::{Pod, VerticalPodAutoscaler};
use crate::resources::{NamedRequirements, Requirements, Resource};

/// What the webhook's annotation begins with; the container's name follows. Its value is what the container had before
/// (`StartupCPUBoostAnnotation`, autoscaler `pkg/utils/annotations`).
pub const ANNOTATION: &str = "vpaCpuStartupBoost/";

/// What becomes of a pod's startup boosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Boosts {
    /// When the first of those that last is over, if only time has to pass.
    pub next_end: Option<Timestamp>,
    /// The containers whose boost was taken back: their annotations have nothing left to say.
    pub done: Vec<String>,
}

/// How long a boost goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// Until the pod has been ready for so long.
    UntilReady(SignedDuration),
    /// Until then.
    Until(Timestamp),
}

impl fmt::Display for Lasts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UntilReady(SignedDuration::ZERO) => f.write_str("the pod is ready"),
            Self::UntilReady(duration) => write!(f, "the pod has been ready for {} s", duration.as_secs()),
            Self::Until(end) => write!(f, "{end:.0}"),
        }
    }
}

/// What a marked container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Boost {
    /// More cpu than later, and keeps it.
    Lasts,
    /// More cpu than it is to keep from now on; what it had before, where that is known.
    Over(Option<Requirements>),
}

/// Whether the webhook has boosted any container of the pod.
pub(super) fn is_marked(pod: &Pod) -> bool {
    marks(pod).next().is_some()
}

/// Marks the containers that have a boost, by the rules of this VPA: of none, where it is gone, a boost ends with the pod's
/// being ready.
pub(super) fn take_up(
    pod: &Pod,
    vpa: Option<&VerticalPodAutoscaler>,
    now: Timestamp,
    candidates: &mut [Candidate<'_>],
    notes: &mut Vec<Note>,
) -> Boosts {
    let mut boosts = Boosts::default();
    for (container, before) in marks(pod) {
        let duration = vpa.map_or(SignedDuration::ZERO, |vpa| vpa.boost_duration(container));
        let lasts = lasts(pod, duration, now);
        let Some(candidate) = candidates.iter_mut().find(|one| one.spec.name == container) else {
            boosts.done.extend(lasts.is_none().then(|| container.to_owned()));
            continue;
        };
        if changes(&candidate.in_force, &candidate.spec.resources, Resource::Cpu) {
            // Taken back already, and not to be given again.
            keep_ratio(candidate, read(before).ok());
            continue;
        }
        match lasts {
            Some(lasts) => {
                if let Lasts::Until(end) = lasts {
                    boosts.next_end = Some(boosts.next_end.map_or(end, |known| known.min(end)));
                }
                candidate.leave(Resource::Cpu);
                candidate.boost = Some(Boost::Lasts);
                notes.push(Note::Boosted {
                    container: container.to_owned(),
                    lasts,
                });
            }
            None => end(candidate, before, notes),
        }
    }
    boosts
}

/// Containers and what is said of them.
fn marks(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let annotations = pod.metadata.annotations.iter();
    annotations.filter_map(|(name, value)| Some((name.strip_prefix(ANNOTATION)?, value.as_str())))
}

/// Until when, if a boost is not over (`GetExpiredStartupCPUBoostAnnotations`, autoscaler `pkg/utils/vpa`). A pod that is
/// ready nobody knows since when has been so for long enough.
fn lasts(pod: &Pod, duration: SignedDuration, now: Timestamp) -> Option<Lasts> {
    let conditions = pod.status.conditions.iter();
    let mut ready = conditions.filter(|condition| condition.kind == "Ready" && condition.status == "True");
    let Some(ready) = ready.next() else {
        return Some(Lasts::UntilReady(duration));
    };
    let since = ready.last_transition_time.filter(|_| !duration.is_zero())?;
    let end = since.checked_add(duration).unwrap_or(Timestamp::MAX);
    (end > now).then_some(Lasts::Until(end))
}

/// The boost is over: limits follow requests as they did before it.
fn end(candidate: &mut Candidate<'_>, before: &str, notes: &mut Vec<Note>) {
    let before = read(before).map_err(|why| {
        notes.push(Note::BoostUnreadable {
            container: candidate.spec.name.clone(),
            why,
        });
    });
    let before = before.ok();
    keep_ratio(candidate, before);
    candidate.boost = Some(Boost::Over(before));
}

/// The limit is to be as many times the request as it was before the boost.
fn keep_ratio(candidate: &mut Candidate<'_>, before: Option<Requirements>) {
    if let Some(before) = before.filter(|before| before.requests.amount(Resource::Cpu) > 0) {
        candidate.ratio.requests.cpu = before.requests.cpu;
        candidate.ratio.limits.cpu = before.limits.cpu;
    }
}

fn read(before: &str) -> Result<Requirements, String> {
    let before: Requirements = serde_json::from_str(before).map_err(|error| error.to_string())?;
    let (request, limit) = (
        before.requests.amount(Resource::Cpu),
        before.limits.amount(Resource::Cpu),
    );
    if limit > 0 && request > limit {
        return Err(format!(
            "the cpu request {} is above the limit {}",
            Resource::Cpu.quantity(request),
            Resource::Cpu.quantity(limit)
        ));
    }
    Ok(before)
}

/// Nothing is recommended for the cpu of a container whose boost is over: gives it what it had before, if that is known.
/// A limit that it did not have before stays: a running pod cannot lose one.
pub(super) fn take_back(candidate: &Candidate<'_>, outcome: &mut Requirements, notes: &mut Vec<Note>) {
    let Some(before) = candidate.before_boost() else { return };
    let request = before.requests.amount(Resource::Cpu);
    if request == 0 {
        notes.push(Note::BoostStays {
            container: candidate.spec.name.clone(),
        });
        return;
    }
    outcome.requests.set(Resource::Cpu, Some(request));
    let limit = before
        .limits
        .cpu
        .or(outcome.limits.cpu)
        .map(crate::resources::MilliCpu::get);
    let limit = limit.filter(|limit| *limit > 0);
    if let Some(limit) = limit {
        outcome.limits.set(Resource::Cpu, Some(limit.max(request)));
    }
}

/// The containers whose boost is over and that have what they are to have.
pub(super) fn taken_back(candidates: &[Candidate<'_>], outcome: &[NamedRequirements]) -> Vec<String> {
    let ended = candidates.iter().zip(outcome).filter(|(candidate, new)| {
        let differs = |from| changes(from, &new.resources, Resource::Cpu);
        candidate.ends_boost(Resource::Cpu)
            && !is_stuck(candidate)
            && !differs(&candidate.in_force)
            && !differs(&candidate.standing)
    });
    ended.map(|(candidate, _)| candidate.spec.name.clone()).collect()
}

/// Whether a boost is over, and nothing says what the container should have instead.
pub(super) fn is_stuck(candidate: &Candidate<'_>) -> bool {
    candidate.ends_boost(Resource::Cpu) && !candidate.moves(Resource::Cpu)
}
