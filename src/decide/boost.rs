//! Startup boosts (AEP-7862): a container keeps more cpu while its pod starts, and loses it after that.
//!
//! VPA's webhook raises the cpu of containers when it admits a pod, and leaves annotations on the pod. From these, the
//! pod's Ready condition and the VPA's duration this module marks each boosted container. While the boost lasts, the
//! decision leaves the container's cpu alone. After it, the cpu goes to the recommended amount, or else to the amount
//! from before the boost. This module never makes a boost.
//!
//! A tenant who may write pods may write these annotations. So an annotation counts only for a container that the pod's VPA
//! boosts, the end of a boost only ever lowers cpu, and the annotation's ratio of limit to request counts only if it is not
//! above the pod's own.
//!
//! A kubelet that resizes in place has the decision in its pod's spec, and the agent removes the annotation once the
//! spec has it. On other nodes the spec keeps the boost, and the pod its annotation. There the agent's record of its
//! applied amounts differs from the spec once the boost was taken back.

use jiff::{SignedDuration, Timestamp};

use super::PodDecision;
use super::candidate::{Candidate, differ};
use super::case::Case;
use super::note::Note;
use crate::model::objects::annotation::BOOST_PREFIX;
use crate::model::objects::{LimitRangeItem, Pod, VerticalPodAutoscaler};
use crate::model::{MilliCpu, Requirements, Resource, ResourceList};

/// The startup boosts of a pod after a decision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Boosts {
    /// When the first boost that lasts is over, if it ends by time alone.
    pub next_end: Option<Timestamp>,
    /// The containers whose boost was taken back. Their annotations are no longer needed.
    pub done: Vec<String>,
}

/// The boost of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Boost {
    /// The container keeps its additional cpu.
    Lasts,
    /// The container loses its additional cpu. Holds its amounts from before, if the annotation has them.
    Over(Option<Requirements>),
}

impl Case<'_> {
    /// Marks the containers that have a boost, by the rules of this VPA.
    pub(super) fn mark_boosts(&mut self, vpa: &VerticalPodAutoscaler) {
        let PodDecision { boosts, notes, .. } = &mut self.decision;
        for (container, before) in marks(self.pod, vpa) {
            let lasts = lasts(self.pod, vpa.boost_duration(container), self.now);
            let Some(candidate) = self.candidates.iter_mut().find(|one| one.spec.name == container) else {
                boosts.done.extend(lasts.is_none().then(|| container.to_owned()));
                continue;
            };
            // Only the agent's record says so: a status differs from the spec while any resize is under way.
            if differ(&candidate.standing, &candidate.spec.resources, Resource::Cpu) {
                // The boost was taken back already, and the agent does not give it again.
                keep_ratio(candidate, read(before).ok());
                continue;
            }
            match lasts {
                Some((end, until)) => {
                    boosts.next_end = boosts.next_end.into_iter().chain(end).min();
                    candidate.drop_recommendation(Resource::Cpu);
                    candidate.boost = Some(Boost::Lasts);
                    let text = format!("cpu keeps its startup boost until {until}");
                    notes.push(candidate.note(Resource::Cpu, text));
                }
                // The limit keeps its ratio to the request from before the boost.
                None => {
                    let before = read(before).map_err(|why| {
                        let text = format!(
                            "its values before its startup boost are not known: annotation {BOOST_PREFIX}{container} should hold \
                             those requests and limits as JSON: {why}"
                        );
                        notes.push(candidate.note(Resource::Cpu, text));
                    });
                    let before = before.ok();
                    keep_ratio(candidate, before);
                    candidate.boost = Some(Boost::Over(before));
                }
            }
        }
    }

    /// Drops boosts that are over where the recommendation, within all bounds, is above what the container has with its boost.
    /// The recommendation counts then, as it does without a boost.
    pub(super) fn yield_to_larger_targets(&mut self) {
        for candidate in &mut self.candidates {
            let has = candidate.in_force.requests.amount(Resource::Cpu);
            if candidate.ends_boost(Resource::Cpu) && candidate.target(Resource::Cpu).is_some_and(|target| target > has)
            {
                candidate.boost = None;
                self.decision.boosts.done.push(candidate.spec.name.clone());
            }
        }
    }
}

/// The containers that the webhook has boosted for this VPA, with their annotations' values.
pub(super) fn marks<'a>(pod: &'a Pod, vpa: &'a VerticalPodAutoscaler) -> impl Iterator<Item = (&'a str, &'a str)> {
    let annotations = pod.metadata.annotations.iter();
    let marks = annotations.filter_map(|(name, value)| Some((name.strip_prefix(BOOST_PREFIX)?, value.as_str())));
    marks.filter(|(container, _)| vpa.boosts(container))
}

/// When a boost ends, if by time alone, and until when it lasts, in words. None if it is over
/// (`GetExpiredStartupCPUBoostAnnotations`, autoscaler `pkg/utils/vpa`). If the condition does not say since when the pod is
/// ready, the boost is over.
fn lasts(pod: &Pod, duration: SignedDuration, now: Timestamp) -> Option<(Option<Timestamp>, String)> {
    let conditions = pod.status.conditions.iter();
    let mut ready = conditions.filter(|condition| condition.kind == "Ready" && condition.status == "True");
    let Some(ready) = ready.next() else {
        let until = match duration.as_secs() {
            _ if duration.is_zero() => "the pod is ready".to_owned(),
            seconds => format!("the pod has been ready for {seconds} s"),
        };
        return Some((None, until));
    };
    let since = ready.last_transition_time.filter(|_| !duration.is_zero())?;
    let end = since.checked_add(duration).unwrap_or(Timestamp::MAX);
    (end > now).then(|| (Some(end), format!("{end:.0}")))
}

/// Takes the ratio of limit to request from before the boost, unless it is above the present one. The webhook multiplies
/// both by the same factor and rounds the limit, so the two ratios may differ by one unit of the limit.
fn keep_ratio(candidate: &mut Candidate<'_>, before: Option<Requirements>) {
    let Some(before) = before.filter(|before| before.requests.amount(Resource::Cpu) > 0) else {
        return;
    };
    let has = candidate.base;
    let cpu = |list: ResourceList| u128::from(list.amount(Resource::Cpu));
    let is_above = cpu(before.limits) * cpu(has.requests) > (cpu(has.limits) + 1) * cpu(before.requests);
    if cpu(has.limits) == 0 || !is_above {
        candidate.base.requests.cpu = before.requests.cpu;
        candidate.base.limits.cpu = before.limits.cpu;
    }
}

/// The end of a boost raises nothing: bounds each amount by what the container has and by the LimitRange.
pub(super) fn only_lower(candidate: &Candidate<'_>, limits: &LimitRangeItem, outcome: &mut Requirements) {
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
    let cpu = before.requests.cpu.unwrap_or_default();
    match before.limits.cpu.filter(|limit| !limit.is_zero() && cpu > *limit) {
        Some(limit) => Err(format!("the cpu request {cpu} is above the limit {limit}")),
        None => Ok(before),
    }
}

/// Gives a container whose boost is over, and for whose cpu there is no recommendation, its earlier amounts. A limit
/// that it did not have before stays: a running pod cannot lose one.
pub(super) fn take_back(candidate: &Candidate<'_>, outcome: &mut Requirements, notes: &mut Vec<Note>) {
    let Some(before) = candidate.before_boost() else { return };
    let Some(request) = before.requests.cpu.filter(|request| !request.is_zero()) else {
        let text = "cpu stays as its startup boost left it: it had no request before, and a request cannot be removed from a \
                    running pod";
        notes.push(candidate.note(Resource::Cpu, text));
        return;
    };
    outcome.requests.cpu = Some(request);
    let limit = before
        .limits
        .cpu
        .or(outcome.limits.cpu)
        .filter(|limit| !limit.is_zero());
    outcome.limits.cpu = limit.map(|limit| limit.max(request)).or(outcome.limits.cpu);
}

/// The containers whose boost is over and that already have their outcome.
pub(super) fn taken_back<'a>(candidates: &'a [Candidate<'_>]) -> impl Iterator<Item = String> + 'a {
    let ended = candidates
        .iter()
        .filter(|one| one.ends_boost(Resource::Cpu) && !is_stuck(one));
    let there = ended.filter(|one| !one.differs(Resource::Cpu));
    there.map(|candidate| candidate.spec.name.clone())
}

/// Whether a boost is over, and neither a recommendation nor the annotation has the container's amounts.
pub(super) fn is_stuck(candidate: &Candidate<'_>) -> bool {
    candidate.ends_boost(Resource::Cpu) && !candidate.moves(Resource::Cpu)
}
