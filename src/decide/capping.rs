//! Bounds on recommended requests (`Apply`, autoscaler `pkg/utils/vpa/capping.go`), and the amounts that follow.
//!
//! The target and both ends of its range pass the same bounds, in this order: LimitRange for pods, LimitRange for
//! containers, the VPA's policy, the container's fixed heap, and with `RequestsOnly` the container's own limit. Later
//! bounds win: the policy beats the LimitRange, a heap that is there already beats the policy, and nothing beats a limit
//! that may not change.

use super::boost;
use super::candidate::{Candidate, Part};
use super::limit_range::{Bounds, Limits};
use super::note::{Note, Rule};
use super::pod_share;
use super::proportional::{MAX, Ratio};
use crate::lint::limit_floor;
use crate::model::objects::ControlledValues;
use crate::model::{NamedRequirements, Resource};

/// Caps everything that is recommended for a pod's containers.
pub(super) fn cap(candidates: &mut [Candidate<'_>], limits: &Limits, notes: &mut Vec<Note>) {
    pod_share::fit(candidates, &limits.pod, notes);
    for candidate in candidates {
        for resource in Resource::ALL {
            for part in Part::ALL {
                cap_part(candidate, &limits.container, part, resource, notes);
            }
            drop_zero_target(candidate, resource, notes);
        }
    }
}

fn cap_part(candidate: &mut Candidate<'_>, limits: &Bounds, part: Part, resource: Resource, notes: &mut Vec<Note>) {
    let bounds = bounds(candidate, limits, resource);
    let Some(recommended) = &mut candidate.recommended else {
        return;
    };
    let Some(mut amount) = recommended.part(part).get(resource) else {
        return;
    };
    for (rule, bound) in bounds {
        // A bound of zero bounds nothing.
        let Some(bound) = bound.filter(|bound| *bound > 0) else {
            continue;
        };
        let bounded = match rule {
            Rule::PodMin | Rule::ContainerMin | Rule::MinAllowed | Rule::FixedHeap => amount.max(bound),
            Rule::PodMax | Rule::ContainerMax | Rule::MaxAllowed | Rule::OwnLimit => amount.min(bound),
        };
        if bounded != amount && part == Part::Target {
            notes.push(Note::Capped {
                container: candidate.spec.name.clone(),
                resource,
                rule,
                from: amount,
                to: bounded,
            });
        }
        amount = bounded;
    }
    recommended.part_mut(part).set(resource, Some(amount));
}

/// The bounds of one container, in the order in which they apply.
fn bounds(candidate: &Candidate<'_>, limits: &Bounds, resource: Resource) -> [(Rule, Option<u64>); 6] {
    let ratio = ratio(candidate, limits, resource);
    let min = limits.min.get(resource);
    let policy = candidate.policy;
    [
        (
            Rule::ContainerMin,
            min.map(|min| ratio.request_at(min).map_or(min, |request| request.max(min))),
        ),
        (
            Rule::ContainerMax,
            limits.max.get(resource).and_then(|max| ratio.request_at(max)),
        ),
        (
            Rule::MinAllowed,
            policy.and_then(|policy| policy.min_allowed.get(resource)),
        ),
        (
            Rule::MaxAllowed,
            policy.and_then(|policy| policy.max_allowed.get(resource)),
        ),
        (Rule::FixedHeap, request_for_heap(candidate, ratio, resource)),
        (Rule::OwnLimit, own_limit(candidate, resource)),
    ]
}

/// The request that goes with the lowest memory limit under which the container's fixed heap has room. No limit is raised
/// for it: where the limit is lower already, it stays.
fn request_for_heap(candidate: &Candidate<'_>, ratio: Ratio, resource: Resource) -> Option<u64> {
    if resource != Resource::Memory || candidate.values() == ControlledValues::RequestsOnly {
        return None;
    }
    let floor = limit_floor(candidate.spec)?.get();
    let limits = [candidate.in_force, candidate.standing].map(|has| has.limits.amount(resource));
    let limit = limits.into_iter().find(|limit| *limit > 0);
    ratio.request_reaching(floor.min(limit.unwrap_or(MAX)))
}

fn ratio(candidate: &Candidate<'_>, limits: &Bounds, resource: Resource) -> Ratio {
    Ratio::new(
        candidate.ratio.requests.amount(resource),
        candidate.ratio.limits.amount(resource),
        limits.default.amount(resource),
    )
}

/// The limit that a request must respect because it will not change: the smaller of what is in force and what is asked
/// for, should the two differ.
fn own_limit(candidate: &Candidate<'_>, resource: Resource) -> Option<u64> {
    match candidate.values() {
        ControlledValues::RequestsAndLimits => None,
        ControlledValues::RequestsOnly => [candidate.in_force, candidate.standing]
            .into_iter()
            .filter_map(|has| has.limits.get(resource).filter(|limit| *limit > 0))
            .min(),
    }
}

/// A request of zero is no request: where the rules leave nothing, the resource stays as it is.
fn drop_zero_target(candidate: &mut Candidate<'_>, resource: Resource, notes: &mut Vec<Note>) {
    if let Some(recommended) = &mut candidate.recommended
        && recommended.target.get(resource) == Some(0)
    {
        recommended.drop(resource);
        notes.push(Note::NothingLeft {
            container: candidate.spec.name.clone(),
            resource,
        });
    }
}

/// What a container will have: the target as request, and the limit in proportion if limits are controlled.
///
/// `GetContainersResources` (autoscaler `pkg/admission-controller/resource/pod/recommendation`). Unlike there, a limit
/// never ends below the request: a LimitRange default below the request would make it so.
pub(super) fn outcome(candidate: &Candidate<'_>, limits: &Bounds, notes: &mut Vec<Note>) -> NamedRequirements {
    let mut outcome = candidate.standing();
    for resource in Resource::ALL {
        let Some(target) = candidate.target(resource) else {
            if candidate.ends_boost(resource) {
                boost::take_back(candidate, &mut outcome.resources, notes);
            }
            continue;
        };
        outcome.resources.requests.set(resource, Some(target));
        if candidate.values() == ControlledValues::RequestsOnly {
            continue;
        }
        let proportional = ratio(candidate, limits, resource).limit_for(target);
        // Where what is in force has no limit, one that is only asked for so far stands.
        let standing = candidate.standing.limits.get(resource).filter(|limit| *limit > 0);
        if let Some(limit) = proportional.or(standing) {
            outcome.resources.limits.set(resource, Some(limit.max(target)));
            explain_limit(candidate, resource, limit, target, notes);
        }
    }
    if candidate.ends_boost(Resource::Cpu) {
        boost::only_lower(candidate, limits, &mut outcome.resources);
    }
    outcome
}

fn explain_limit(candidate: &Candidate<'_>, resource: Resource, limit: u64, target: u64, notes: &mut Vec<Note>) {
    let container = || candidate.spec.name.clone();
    if limit < target {
        notes.push(Note::LimitRaised {
            container: container(),
            resource,
            from: limit,
            to: target,
        });
    }
    if candidate.in_force.limits.amount(resource) == 0 && candidate.standing.limits.amount(resource) == 0 {
        notes.push(Note::LimitAdded {
            container: container(),
            resource,
            to: limit.max(target),
        });
    }
    if limit == MAX && candidate.in_force.limits.amount(resource) < MAX {
        notes.push(Note::LimitSaturated {
            container: container(),
            resource,
        });
    }
}
