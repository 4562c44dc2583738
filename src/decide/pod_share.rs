//! What a LimitRange for whole pods leaves to each container (`applyPodLimitRange`, autoscaler `pkg/utils/vpa/capping.go`).
//!
//! Each container gets a share of the pod's bounds in proportion to its recommendation. Where every container has one, the
//! results are upstream's. Containers without a recommendation keep what they have, and their amounts are subtracted from
//! the pod's bounds first. (Upstream changes them too, or stops on a nil pointer where they have no request, or a
//! recommendation lacks a bound.) Where nothing is left to share, the resource keeps its amounts. (Upstream writes minus
//! one byte.)

use super::candidate::{Candidate, Part};
use super::limit_range::Bounds;
use super::note::{Note, Rule};
use super::proportional::{Rounding, scale};
use crate::model::Resource;

/// Scales all recommendations until their sums are within the pod's bounds.
pub(super) fn fit(candidates: &mut [Candidate<'_>], bounds: &Bounds, notes: &mut Vec<Note>) {
    for resource in Resource::ALL {
        if bounds.min.amount(resource) == 0 && bounds.max.amount(resource) == 0 {
            continue;
        }
        for part in Part::ALL {
            fit_part(candidates, bounds, part, resource, notes);
        }
        // Each part is scaled and rounded on its own. That can push a target out of its range, and the pod would be
        // changed again and again.
        for recommended in candidates.iter_mut().map(|candidate| &mut candidate.recommended) {
            if let Some(target) = recommended.target.get(resource) {
                let lower = recommended.lower.get(resource).map(|lower| lower.min(target));
                let upper = recommended.upper.get(resource).map(|upper| upper.max(target));
                recommended.lower.set(resource, lower);
                recommended.upper.set(resource, upper);
            }
        }
    }
}

/// Sums of requests and limits over containers.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    requests: u128,
    limits: u128,
}

/// The factor that all shares are multiplied by.
struct Factor {
    numerator: u128,
    denominator: u128,
    rounding: Rounding,
    rule: Rule,
}

fn fit_part(candidates: &mut [Candidate<'_>], bounds: &Bounds, part: Part, resource: Resource, notes: &mut Vec<Note>) {
    let Some(factor) = factor(candidates, bounds, part, resource) else {
        return;
    };
    if factor.numerator == 0 && part == Part::Target {
        notes.push(Note::PodMaxTaken {
            resource,
            max: bounds.max.amount(resource),
        });
    }
    for candidate in candidates {
        if factor.numerator == 0 {
            // Without a target the resource keeps its amounts. Without one end of the range, that end triggers nothing.
            match part {
                Part::Target => candidate.drop_recommendation(resource),
                Part::Upper | Part::Lower => candidate.recommended.part_mut(part).set(resource, None),
            }
            continue;
        }
        let list = candidate.recommended.part_mut(part);
        let Some(from) = list.get(resource) else {
            continue;
        };
        // A share may be rounded to zero. A minimum can still raise it, and capping drops targets that stay zero.
        let to = scale(from, factor.numerator, factor.denominator, factor.rounding);
        list.set(resource, Some(to));
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

/// The factor that brings the sums within the bounds. None if they are within them, or if there is no limit to bound.
fn factor(candidates: &[Candidate<'_>], bounds: &Bounds, part: Part, resource: Resource) -> Option<Factor> {
    let (mut shared, mut fixed) = (Sums::default(), Sums::default());
    for candidate in candidates {
        let own = candidate.recommended.part(part).get(resource);
        // A container that lacks this part alone will get its target. One without a target keeps what it has.
        let (sums, request, limit) = match own.or(candidate.target(resource)) {
            Some(request) => {
                let limit = candidate.ratio(resource, bounds).limit_for(request).unwrap_or(0);
                (if own.is_some() { &mut shared } else { &mut fixed }, request, limit)
            }
            None => {
                let has = candidate.in_force;
                (&mut fixed, has.requests.amount(resource), has.limits.amount(resource))
            }
        };
        sums.requests += u128::from(request);
        sums.limits += u128::from(limit);
    }
    let [min, max] = [bounds.min, bounds.max].map(|bound| u128::from(bound.amount(resource)));
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
