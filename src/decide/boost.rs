//! Startup boosts: whose cpu is not to be touched while its pod starts, and goes back once it has (AEP-7862).
//!
//! In come the annotations that VPA's webhook leaves on a pod when it raises the cpu of its containers at their creation,
//! the pod's Ready condition, and how long after that the VPA lets a boost go on. Each such container is marked: its boost
//! lasts, or it is over and the container goes to what is recommended for it, else to what it had before. Nothing here
//! ever makes a boost.
//!
//! Whoever may write pods may write these annotations. So they count only for containers that the pod's VPA boosts, the cpu
//! only ever comes down when a boost ends, and the annotation's ratio of limit to request counts only where it is not above
//! the pod's own.
//!
//! A kubelet that resizes in place has what was decided in its pod's spec, and the annotation goes once the spec says so.
//! Elsewhere the spec keeps the boost for good, and so does the pod its annotation; that the record of what was applied
//! differs from the spec says that the boost has been taken back.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::candidate::Candidate;
use super::limit_range::Bounds;
use super::note::Note;
use super::verdict::changes;
use crate::model::objects::{Pod, VerticalPodAutoscaler, annotation};
use crate::model::{MilliCpu, NamedRequirements, Requirements, Resource, ResourceList};

/// What the webhook's annotation begins with; the container's name follows. Its value is what the container
/// had before (`StartupCPUBoostAnnotation`, autoscaler `pkg/utils/annotations`).
pub const ANNOTATION: &str = annotation::BOOST_PREFIX;

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

/// Whether the webhook has boosted any container of the pod for this VPA.
pub(super) fn is_marked(pod: &Pod, vpa: &VerticalPodAutoscaler) -> bool {
    marks(pod, vpa).next().is_some()
}

/// Marks the containers that have a boost, by the rules of this VPA.
pub(super) fn take_up(
    pod: &Pod,
    vpa: &VerticalPodAutoscaler,
    now: Timestamp,
    candidates: &mut [Candidate<'_>],
    notes: &mut Vec<Note>,
) -> Boosts {
    let mut boosts = Boosts::default();
    for (container, before) in marks(pod, vpa) {
        let lasts = lasts(pod, vpa.boost_duration(container), now);
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

/// The containers that the VPA boosts, and what the annotations say of them.
fn marks<'a>(pod: &'a Pod, vpa: &'a VerticalPodAutoscaler) -> impl Iterator<Item = (&'a str, &'a str)> {
    let annotations = pod.metadata.annotations.iter();
    let marks = annotations.filter_map(|(name, value)| Some((name.strip_prefix(ANNOTATION)?, value.as_str())));
    marks.filter(|(container, _)| vpa.boosts(container))
}

/// Drops boosts that are over where more cpu is recommended, within all bounds, than the container has with its boost: the
/// recommendation counts then, as it does without a boost.
pub(super) fn yield_to_larger_targets(candidates: &mut [Candidate<'_>], boosts: &mut Boosts) {
    for candidate in candidates
        .iter_mut()
        .filter(|candidate| candidate.ends_boost(Resource::Cpu))
    {
        let has = candidate.in_force.requests.amount(Resource::Cpu);
        if candidate.target(Resource::Cpu).is_some_and(|target| target > has) {
            candidate.boost = None;
            boosts.done.push(candidate.spec.name.clone());
        }
    }
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

/// The limit is to be as many times the request as it was before the boost, and no more times than it is now: the webhook
/// multiplies both alike, and rounds the limit.
fn keep_ratio(candidate: &mut Candidate<'_>, before: Option<Requirements>) {
    let Some(before) = before.filter(|before| before.requests.amount(Resource::Cpu) > 0) else {
        return;
    };
    let has = candidate.ratio;
    let cpu = |list: ResourceList| u128::from(list.amount(Resource::Cpu));
    let is_above = cpu(before.limits) * cpu(has.requests) > (cpu(has.limits) + 1) * cpu(before.requests);
    if cpu(has.limits) == 0 || !is_above {
        candidate.ratio.requests.cpu = before.requests.cpu;
        candidate.ratio.limits.cpu = before.limits.cpu;
    }
}

/// The end of a boost gives nothing: no amount is above what the container has, nor above the LimitRange.
pub(super) fn only_lower(candidate: &Candidate<'_>, limits: &Bounds, outcome: &mut Requirements) {
    let (has, stands) = (candidate.in_force, candidate.standing);
    let request = has.requests.cpu.or(has.limits.cpu);
    let max = limits.max.cpu.filter(|max| !max.is_zero());
    let bounded = |amount: Option<MilliCpu>, stands: Option<MilliCpu>, has: Option<MilliCpu>| {
        let changed = amount
            .filter(|_| amount != stands)?
            .max(limits.min.cpu.unwrap_or_default());
        Some([has, max].into_iter().flatten().fold(changed, MilliCpu::min))
    };
    let limit = bounded(outcome.limits.cpu, stands.limits.cpu, has.limits.cpu);
    outcome.limits.cpu = limit.or(stands.limits.cpu);
    let request = request.and_then(|request| bounded(outcome.requests.cpu, stands.requests.cpu, Some(request)));
    let request = request.or(stands.requests.cpu);
    outcome.requests.cpu = request.map(|request| outcome.limits.cpu.map_or(request, |limit| request.min(limit)));
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
    let limit = before.limits.cpu.or(outcome.limits.cpu).map(MilliCpu::get);
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
