//! What a LimitRange for whole pods leaves to each container (`applyPodLimitRange`, autoscaler `pkg/utils/vpa/capping.go`).
//!
//! Each container gets a share of the pod's bounds in proportion to its recommendation. Where every container has one, the
//! results are upstream's. Containers without a recommendation keep what they have, and their amounts are subtracted from
//! the pod's bounds first. (Upstream changes them too, or stops on a nil pointer where they have no request, or a
//! recommendation lacks a bound.) Where nothing is left to share, the resource keeps its amounts. (Upstream writes minus
//! one byte.)

use super::candidate::{Candidate, Part};
use super::capping::{Rounding, scale};
use super::note::Note;
use crate::model::objects::LimitRangeItem;
use crate::model::{Resource, ResourceList};

/// The bounds of one resource of a pod. A limit of the pod's own counts in place of its containers' (`podLimits`, kubernetes
/// `plugin/pkg/admission/limitranger`): there only the containers' requests have to be within the maximum.
#[derive(Debug, Clone, Copy)]
struct PodBounds<'a> {
    bounds: &'a LimitRangeItem,
    resource: Resource,
    has_own_limit: bool,
}

impl<'a> PodBounds<'a> {
    const fn new(bounds: &'a LimitRangeItem, resource: Resource, has_own_limit: bool) -> Self {
        Self {
            bounds,
            resource,
            has_own_limit,
        }
    }

    fn min(self) -> u64 {
        let min = self.bounds.min.get(self.resource);
        min.filter(|_| !self.has_own_limit).unwrap_or(0)
    }

    fn max(self) -> u64 {
        self.bounds.max.amount(self.resource)
    }

    /// What counts of a container as it is.
    fn standing(self, candidate: &Candidate<'_>) -> u64 {
        let has = candidate.in_force;
        let list = if self.has_own_limit { has.requests } else { has.limits };
        list.amount(self.resource)
    }

    /// What counts of a container with this request.
    fn with(self, candidate: &Candidate<'_>, request: u64) -> u64 {
        if self.has_own_limit {
            return request;
        }
        let rule = candidate.limit_rule(self.resource, self.bounds);
        rule.limit_for(request).unwrap_or(0)
    }
}

/// Scales all recommendations until their sums are within the bounds of a pod with these limits of its `own`.
pub(super) fn fit(candidates: &mut [Candidate<'_>], bounds: &LimitRangeItem, own: ResourceList, notes: &mut Vec<Note>) {
    for resource in Resource::ALL {
        let bounds = PodBounds::new(bounds, resource, own.get(resource).is_some());
        if bounds.min() == 0 && bounds.max() == 0 {
            continue;
        }
        for part in Part::ALL {
            fit_part(candidates, bounds, part, notes);
        }
        // Each part is scaled and rounded on its own. That can push a target out of its range, and the pod would be
        // changed again and again.
        for candidate in &mut *candidates {
            if let Some(target) = candidate.target(resource) {
                let [upper, lower] = [Part::Upper, Part::Lower].map(|part| candidate.recommended(part, resource));
                candidate.recommend(Part::Upper, resource, upper.map(|upper| upper.max(target)));
                candidate.recommend(Part::Lower, resource, lower.map(|lower| lower.min(target)));
            }
        }
    }
}

/// The numerator and the denominator that all shares are multiplied by, how shares are rounded, and the rule.
type Factor = (u128, u128, Rounding, &'static str);

const POD_MIN: &str = "the LimitRange's minimum for pods";
const POD_MAX: &str = "the LimitRange's maximum for pods";

fn fit_part(candidates: &mut [Candidate<'_>], bounds: PodBounds<'_>, part: Part, notes: &mut Vec<Note>) {
    let Some((numerator, denominator, rounding, rule)) = factor(candidates, bounds, part) else {
        return;
    };
    let resource = bounds.resource;
    if numerator == 0 && part == Part::Target {
        let max = resource.quantity(bounds.max());
        let text = format!(
            "{resource} is left alone: containers without recommendation take all of the {max} that the LimitRange allows a pod"
        );
        notes.push(Note::new(None, Some(resource), text));
    }
    for candidate in candidates {
        // Without a target the resource keeps its amounts. Without one end of the range, that end triggers nothing.
        match (numerator, part, candidate.recommended(part, resource)) {
            (0, Part::Target, _) => candidate.drop_recommendation(resource),
            (0, Part::Upper | Part::Lower, _) => candidate.recommend(part, resource, None),
            // A share may be rounded to zero. A minimum can still raise it, and capping drops targets that stay zero.
            (_, _, Some(from)) => {
                let to = scale(from, numerator, denominator, rounding);
                candidate.cap(part, resource, to, rule, notes);
            }
            (_, _, None) => {}
        }
    }
}

/// The factor that brings the sums within the bounds. None if they are within them, or if there is no limit to bound.
fn factor(candidates: &[Candidate<'_>], bounds: PodBounds<'_>, part: Part) -> Option<Factor> {
    let resource = bounds.resource;
    // Requests and limits.
    let (mut shared, mut fixed) = ([0_u128; 2], [0_u128; 2]);
    for candidate in candidates {
        let own = candidate.recommended(part, resource);
        let sums = if own.is_some() { &mut shared } else { &mut fixed };
        // A container that lacks this part alone will get its target. One without a target keeps what it has.
        let amounts = own.or(candidate.target(resource)).map_or_else(
            || [candidate.in_force.requests.amount(resource), bounds.standing(candidate)],
            |request| [request, bounds.with(candidate, request)],
        );
        *sums = [0, 1].map(|at| sums[at] + u128::from(amounts[at]));
    }
    let [min, max] = [bounds.min(), bounds.max()].map(u128::from);
    let [requests, limits] = [0, 1].map(|at| shared[at] + fixed[at]);
    if min <= limits && min <= requests && (max == 0 || max >= limits) {
        return None;
    }
    let down: Rounding = u128::div_euclid;
    if min > requests && limits != 0 {
        let rounding = match resource {
            Resource::Cpu => u128::div_ceil,
            Resource::Memory => down,
        };
        return (shared[0] != 0).then(|| (min - fixed[0], shared[0], rounding, POD_MIN));
    }
    let exceeds = max != 0 && max < limits;
    let (bound, rule) = if exceeds { (max, POD_MAX) } else { (min, POD_MIN) };
    (shared[1] != 0).then(|| (bound.saturating_sub(fixed[1]), shared[1], down, rule))
}

/// Lowers targets until the limits together are within the maximum of a pod with these limits of its `own`, where later rules have
/// raised some: the others give way in proportion, each down to its `floor`. Not where the VPA's policy has set one: it beats the
/// LimitRange. Nor where the floors and the limits that stay exceed the maximum: giving way is in vain.
pub(super) fn lower(
    candidates: &mut [Candidate<'_>],
    bounds: &LimitRangeItem,
    own: ResourceList,
    resource: Resource,
    floor: impl Fn(&Candidate<'_>) -> u64,
    notes: &mut Vec<Note>,
) {
    let bounds = PodBounds::new(bounds, resource, own.get(resource).is_some());
    if bounds.max() == 0 || candidates.iter().any(|one| one.is_pinned(resource)) {
        return;
    }
    let max = u128::from(bounds.max());
    // A limit that stays does not follow its request.
    let follows = |one: &Candidate<'_>| bounds.has_own_limit || one.moves_limit(resource);
    let movable = |one: &Candidate<'_>| one.target(resource).filter(|_| follows(one));
    let mut targets: Vec<_> = candidates.iter().map(movable).collect();
    for _ in 0..=candidates.len() {
        let (mut shared, mut fixed) = (0_u128, 0_u128);
        for (candidate, target) in candidates.iter().zip(&targets) {
            let own = target.map_or_else(|| bounds.standing(candidate), |target| bounds.with(candidate, target));
            let gives_way = target.is_some_and(|target| target > floor(candidate));
            *if gives_way { &mut shared } else { &mut fixed } += u128::from(own);
        }
        if shared + fixed <= max {
            break;
        }
        if shared == 0 {
            return;
        }
        let left = max.saturating_sub(fixed);
        for (candidate, target) in candidates.iter().zip(&mut targets) {
            *target = target.map(|to| scale(to, left, shared, u128::div_euclid).max(floor(candidate)).min(to));
        }
    }
    for (candidate, target) in candidates.iter_mut().zip(targets) {
        if let Some(to) = target.filter(|to| candidate.target(resource) > Some(*to)) {
            candidate.cap(Part::Target, resource, to, POD_MAX, notes);
            let lower = candidate.recommended(Part::Lower, resource);
            candidate.recommend(Part::Lower, resource, lower.map(|lower| lower.min(to)));
        }
    }
}
