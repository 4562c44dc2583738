//! What a LimitRange for whole pods leaves to each container (`applyPodLimitRange`, autoscaler `pkg/utils/vpa/capping.go`).
//!
//! The pod's bounds are shared out in proportion to the recommendations. Where every container has one, the results are
//! upstream's. Containers without a recommendation are never changed here: what they have is taken off the pod's bounds
//! first. (Upstream changes them too, or stops on a nil pointer where they have no request, or a recommendation lacks a
//! bound.) Where nothing is left to share out, the resource is left as it is. (Upstream writes minus one byte.)

use super::candidate::{Candidate, Part};
use super::limit_range::Bounds;
use super::note::{Note, Rule};
use super::proportional::{Ratio, Rounding, scale};
use crate::model::Resource;

/// Fits all recommendations into the pod's bounds.
pub(super) fn fit(candidates: &mut [Candidate<'_>], bounds: &Bounds, notes: &mut Vec<Note>) {
    for resource in Resource::ALL {
        if bounds.min.amount(resource) == 0 && bounds.max.amount(resource) == 0 {
            continue;
        }
        for part in Part::ALL {
            fit_part(candidates, bounds, part, resource, notes);
        }
        // Shares are rounded and each part has its own, which can push a target out of its range and so cause a
        // change in every round.
        for recommended in candidates
            .iter_mut()
            .filter_map(|candidate| candidate.recommended.as_mut())
        {
            if let Some(target) = recommended.target.get(resource) {
                let lower = recommended.lower.get(resource).map(|lower| lower.min(target));
                let upper = recommended.upper.get(resource).map(|upper| upper.max(target));
                recommended.lower.set(resource, lower);
                recommended.upper.set(resource, upper);
            }
        }
    }
}

/// Requests and limits added up over containers.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    requests: u128,
    limits: u128,
}

impl Sums {
    fn add(&mut self, request: u64, limit: u64) {
        self.requests += u128::from(request);
        self.limits += u128::from(limit);
    }
}

/// The factor all shares are multiplied by.
struct Factor {
    numerator: u128,
    denominator: u128,
    rounding: Rounding,
    rule: Rule,
}

fn fit_part(candidates: &mut [Candidate<'_>], bounds: &Bounds, part: Part, resource: Resource, notes: &mut Vec<Note>) {
    let (mut shared, mut fixed) = (Sums::default(), Sums::default());
    for candidate in &*candidates {
        add_up(candidate, bounds, part, resource, &mut shared, &mut fixed);
    }
    let Some(factor) = factor(bounds, resource, shared, fixed) else {
        return;
    };
    if factor.numerator == 0 {
        leave_alone(candidates, bounds, part, resource, notes);
        return;
    }
    for candidate in candidates {
        let Some(recommended) = &mut candidate.recommended else {
            continue;
        };
        let Some(from) = recommended.part(part).get(resource) else {
            continue;
        };
        // A share may be rounded to zero: a minimum can still lift it, and capping deals with what remains zero.
        let to = scale(from, factor.numerator, factor.denominator, factor.rounding);
        recommended.part_mut(part).set(resource, Some(to));
        if part == Part::Target && to != from {
            notes.push(Note::Capped {
                container: candidate.spec.name.clone(),
                resource,
                rule: factor.rule,
                from,
                to,
            });
        }
    }
}

/// There is nothing to share out: without a target the resource is not touched, without a bound not tested against it.
fn leave_alone(
    candidates: &mut [Candidate<'_>],
    bounds: &Bounds,
    part: Part,
    resource: Resource,
    notes: &mut Vec<Note>,
) {
    for recommended in candidates
        .iter_mut()
        .filter_map(|candidate| candidate.recommended.as_mut())
    {
        match part {
            Part::Target => recommended.drop(resource),
            Part::Upper | Part::Lower => recommended.part_mut(part).set(resource, None),
        }
    }
    if part == Part::Target {
        notes.push(Note::PodMaxTaken {
            resource,
            max: bounds.max.amount(resource),
        });
    }
}

/// Counts a container among those that share the bounds, or those whose amounts are fixed.
fn add_up(
    candidate: &Candidate<'_>,
    bounds: &Bounds,
    part: Part,
    resource: Resource,
    shared: &mut Sums,
    fixed: &mut Sums,
) {
    let default = bounds.default.amount(resource);
    let ratio = Ratio::new(
        candidate.ratio.requests.amount(resource),
        candidate.ratio.limits.amount(resource),
        default,
    );
    let said = candidate
        .recommended
        .as_ref()
        .and_then(|said| said.part(part).get(resource));
    // A container that lacks this part alone will get its target; one without a target keeps what it has.
    match (said, candidate.target(resource)) {
        (Some(request), _) => shared.add(request, ratio.limit_for(request).unwrap_or(0)),
        (None, Some(target)) => fixed.add(target, ratio.limit_for(target).unwrap_or(0)),
        (None, None) => fixed.add(
            candidate.in_force.requests.amount(resource),
            candidate.in_force.limits.amount(resource),
        ),
    }
}

/// What brings the sums into the bounds; none if they are, or if no limit is there to bound.
fn factor(bounds: &Bounds, resource: Resource, shared: Sums, fixed: Sums) -> Option<Factor> {
    let min = u128::from(bounds.min.amount(resource));
    let max = u128::from(bounds.max.amount(resource));
    let (requests, limits) = (shared.requests + fixed.requests, shared.limits + fixed.limits);
    if min <= limits && min <= requests && (max == 0 || max >= limits) {
        return None;
    }
    if min > requests && limits != 0 {
        return (shared.requests != 0).then(|| Factor {
            numerator: min - fixed.requests,
            denominator: shared.requests,
            rounding: match resource {
                Resource::Cpu => Rounding::Up,
                Resource::Memory => Rounding::Down,
            },
            rule: Rule::PodMin,
        });
    }
    let (bound, rule) = if max != 0 && max < limits {
        (max, Rule::PodMax)
    } else {
        (min, Rule::PodMin)
    };
    (shared.limits != 0).then(|| Factor {
        numerator: bound.saturating_sub(fixed.limits),
        denominator: shared.limits,
        rounding: Rounding::Down,
        rule,
    })
}
