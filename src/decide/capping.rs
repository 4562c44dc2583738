//! Bounds on recommended requests (`Apply`, autoscaler `pkg/utils/vpa/capping.go`), and the amounts that follow.
//!
//! The target and both ends of its range pass the same bounds, in this order: LimitRange for pods, LimitRange for
//! containers, the VPA's policy, the container's fixed heap, and with `RequestsOnly` the container's own limit. A later
//! bound wins: the policy beats the LimitRange, an existing heap beats the policy, and a limit that may not change beats
//! everything.

use super::boost;
use super::candidate::{Candidate, Part};
use super::limit_range::{Bounds, Limits};
use super::note::{Note, Rule};
use super::pod_share;
use super::proportional::{MAX, Ratio};
use crate::lint::limit_floor;
use crate::model::objects::ControlledValues;
use crate::model::{Requirements, Resource};

/// Applies every bound to the recommendations of a pod's containers.
pub(super) fn cap(candidates: &mut [Candidate<'_>], limits: &Limits, notes: &mut Vec<Note>) {
    pod_share::fit(candidates, &limits.pod, notes);
    for candidate in candidates {
        for resource in Resource::ALL {
            cap_resource(candidate, &limits.container, resource, notes);
        }
    }
}

fn cap_resource(candidate: &mut Candidate<'_>, limits: &Bounds, resource: Resource, notes: &mut Vec<Note>) {
    let bounds = bounds(candidate, limits, resource);
    for part in Part::ALL {
        let list = candidate.recommended.part_mut(part);
        let Some(mut amount) = list.get(resource) else {
            continue;
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
        list.set(resource, Some(amount));
    }
    // A request of zero is no request: where the rules leave nothing, the resource keeps its amounts.
    if candidate.target(resource) == Some(0) {
        candidate.drop_recommendation(resource);
        notes.push(Note::NothingLeft {
            container: candidate.spec.name.clone(),
            resource,
        });
    }
}

/// The bounds of one container, in the order in which they apply.
fn bounds(candidate: &Candidate<'_>, limits: &Bounds, resource: Resource) -> [(Rule, Option<u64>); 6] {
    let ratio = candidate.ratio(resource, limits);
    let min = limits.min.get(resource);
    let min = min.map(|min| ratio.request_at(min).map_or(min, |request| request.max(min)));
    let max = limits.max.get(resource).and_then(|max| ratio.request_at(max));
    let allowed = candidate.policy.map(|policy| [policy.min_allowed, policy.max_allowed]);
    let [min_allowed, max_allowed] = allowed.unwrap_or_default().map(|list| list.get(resource));
    [
        (Rule::ContainerMin, min),
        (Rule::ContainerMax, max),
        (Rule::MinAllowed, min_allowed),
        (Rule::MaxAllowed, max_allowed),
        (Rule::FixedHeap, request_for_heap(candidate, ratio, resource)),
        (Rule::OwnLimit, own_limit(candidate, resource)),
    ]
}

/// The request that goes with the lowest memory limit under which the container's fixed heap has room. The heap raises no
/// limit: a limit that is lower already stays.
fn request_for_heap(candidate: &Candidate<'_>, ratio: Ratio, resource: Resource) -> Option<u64> {
    if resource != Resource::Memory || candidate.controlled_values() == ControlledValues::RequestsOnly {
        return None;
    }
    let floor = limit_floor(candidate.spec)?.get();
    let limit = limits_of(candidate, resource).next();
    ratio.request_reaching(floor.min(limit.unwrap_or(MAX)))
}

/// With `RequestsOnly` the limit stays, and bounds the request. If the limit in force differs from the one that
/// stands, the smaller one counts.
fn own_limit(candidate: &Candidate<'_>, resource: Resource) -> Option<u64> {
    match candidate.controlled_values() {
        ControlledValues::RequestsAndLimits => None,
        ControlledValues::RequestsOnly => limits_of(candidate, resource).min(),
    }
}

/// The container's limit in force, then the one that stands. Zero is no limit.
fn limits_of(candidate: &Candidate<'_>, resource: Resource) -> impl Iterator<Item = u64> {
    let limits = [candidate.in_force, candidate.standing].map(|has| has.limits.amount(resource));
    limits.into_iter().filter(|limit| *limit > 0)
}

/// What a container will have: the target as request, and the limit in proportion if the VPA controls limits.
///
/// `GetContainersResources` (autoscaler `pkg/admission-controller/resource/pod/recommendation`). Unlike there, a limit
/// never ends below the request: a LimitRange default below the request would make it so.
pub(super) fn outcome(candidate: &Candidate<'_>, limits: &Bounds, notes: &mut Vec<Note>) -> Requirements {
    let mut outcome = candidate.standing;
    for resource in Resource::ALL {
        let Some(target) = candidate.target(resource) else {
            if candidate.ends_boost(resource) {
                boost::take_back(candidate, &mut outcome, notes);
            }
            continue;
        };
        outcome.requests.set(resource, Some(target));
        if candidate.controlled_values() == ControlledValues::RequestsOnly {
            continue;
        }
        let proportional = candidate.ratio(resource, limits).limit_for(target);
        // Without a limit in force, the limit of the spec counts.
        let standing = candidate.standing.limits.get(resource).filter(|limit| *limit > 0);
        if let Some(limit) = proportional.or(standing) {
            outcome.limits.set(resource, Some(limit.max(target)));
            explain_limit(candidate, resource, limit, target, notes);
        }
    }
    if candidate.ends_boost(Resource::Cpu) {
        boost::only_lower(candidate, limits, &mut outcome);
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
    if limits_of(candidate, resource).next().is_none() {
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
