//! Bounds on recommended requests (`Apply`, autoscaler `pkg/utils/vpa/capping.go`), and the amounts that follow.
//!
//! The target and both ends of its range pass the same bounds, in this order: LimitRange for pods, LimitRange for
//! containers, the VPA's policy, the container's fixed heap, and the container's own limit where that stays. A later
//! bound wins: the policy beats the LimitRange, an existing heap beats the policy, and a limit that may not change beats
//! everything.
//!
//! Where the kubelet can resize the pod's own amounts (`spec.resources`), these change by the sum of the containers' changes,
//! within the VPA's `podPolicy` (AEP-7571). If the containers then exceed them, `case` forbids the change.
//!
//! A [`LimitRule`] says which limit goes with a request. Amounts are plain numbers, thousandths of a cpu or bytes. Zero means
//! unset. Products have 128 bits and results saturate at [`MAX`]. Upstream's saturate there too, or wrap for some shares of a
//! pod's bound.

use super::boost;
use super::candidate::{Candidate, Part};
use super::index::Limits;
use super::limit_rule::LimitRule;
use super::note::Note;
use super::pod_share;
use crate::lint::limit_floor;
use crate::model::objects::{ContainerPolicy, LimitRangeItem, Pod};
use crate::model::{Bytes, PodAmounts, Requirements, Resource, ResourceList};

/// Applies every bound to the recommendations of the containers of a pod with these limits of its `own`.
pub(super) fn cap(candidates: &mut [Candidate<'_>], limits: &Limits<'_>, own: ResourceList, notes: &mut Vec<Note>) {
    pod_share::fit(candidates, &limits.pod, own, notes);
    for candidate in &mut *candidates {
        for resource in Resource::ALL {
            cap_resource(candidate, &limits.container, resource, notes);
        }
    }
    for resource in Resource::ALL {
        let floor = |candidate: &Candidate<'_>| lowest(candidate, &limits.container, resource);
        pod_share::lower(candidates, &limits.pod, own, resource, floor, notes);
    }
}

/// The lowest request that the bounds of a container let it have.
fn lowest(candidate: &Candidate<'_>, limits: &LimitRangeItem, resource: Resource) -> u64 {
    let bounds = bounds(candidate, limits, resource).into_iter();
    let bounds = bounds.filter_map(|(_, pick, bound)| Some((pick, bound.filter(|bound| *bound > 0)?)));
    bounds.fold(1, |amount, (pick, bound)| pick(amount, bound))
}

fn cap_resource(candidate: &mut Candidate<'_>, limits: &LimitRangeItem, resource: Resource, notes: &mut Vec<Note>) {
    for (rule, pick, bound) in bounds(candidate, limits, resource) {
        // A bound of zero bounds nothing.
        let Some(bound) = bound.filter(|bound| *bound > 0) else {
            continue;
        };
        for part in Part::ALL {
            if let Some(amount) = candidate.recommended(part, resource) {
                candidate.cap(part, resource, pick(amount, bound), rule, notes);
            }
        }
    }
    let why = match candidate.target(resource) {
        // A request of zero is no request: where the rules leave nothing, the resource keeps its amounts.
        Some(0) => "its request would become zero",
        Some(target) if keeps_zero_limit(candidate, limits, resource, target) => {
            "its limit is zero, and no request may be above it"
        }
        Some(_) | None => return,
    };
    candidate.drop_recommendation(resource);
    notes.push(candidate.note(resource, format!("{resource} is left alone: {why}")));
}

/// Whether a container with this target keeps a limit that is set, and zero. To the kernel that is no limit, but the API server admits
/// no request above it (`validateResourceRequirements`, kubernetes `pkg/apis/core/validation`).
fn keeps_zero_limit(candidate: &Candidate<'_>, limits: &LimitRangeItem, resource: Resource, target: u64) -> bool {
    let becomes = candidate.limit_rule(resource, limits).limit_for(target);
    let becomes = becomes.filter(|_| candidate.moves_limit(resource));
    becomes.is_none() && candidate.standing.limits.get(resource) == Some(0)
}

/// A rule, its effect on an amount, and its bound.
type BoundingRule = (&'static str, fn(u64, u64) -> u64, Option<u64>);

/// The bounds of one container, in the order in which they apply.
fn bounds(candidate: &Candidate<'_>, limits: &LimitRangeItem, resource: Resource) -> [BoundingRule; 7] {
    let rule = candidate.limit_rule(resource, limits);
    let min = limits.min.get(resource);
    let at = |limit| rule.request_for(limit, u128::div_euclid);
    let min = min.map(|min| at(min).map_or(min, |request| request.max(min)));
    let max = limits.max.get(resource).and_then(at);
    let [min_allowed, max_allowed] = candidate.allowed(resource);
    let heap = request_for_heap(candidate, rule, resource);
    // A limit that stays bounds the request. If the limit in force differs from the kept one, the smaller one counts.
    let (max_rule, for_ratio, own_limit) = if candidate.moves_limit(resource) {
        ("the LimitRange's maximum for containers", None, None)
    } else {
        // Upstream bounds the request in proportion also where the limit stays.
        let rule = "VPA bounds it by the LimitRange's maximum for containers in the ratio of limit to request, although the limit \
                    stays";
        let highest = limits_of(candidate, resource).max().zip(limits.max_ratio.get(resource));
        let for_ratio = highest.map(|(limit, ratio)| scale(limit, 1000, ratio.into(), u128::div_ceil));
        (rule, for_ratio, limits_of(candidate, resource).min())
    };
    [
        ("the LimitRange's minimum for containers", u64::max, min),
        // Bounds the limit, and so the request.
        (max_rule, u64::min, max),
        ("the VPA's minAllowed", u64::max, min_allowed),
        ("the VPA's maxAllowed", u64::min, max_allowed),
        (
            "the memory limit keeps room for the container's fixed heap",
            u64::max,
            heap,
        ),
        ("the LimitRange's maxLimitRequestRatio", u64::max, for_ratio),
        ("the container's limit, which stays as it is", u64::min, own_limit),
    ]
}

/// The request that goes with the lowest memory limit under which the container's fixed heap has room. The heap raises no
/// limit: a limit that is lower already stays.
fn request_for_heap(candidate: &Candidate<'_>, rule: LimitRule, resource: Resource) -> Option<u64> {
    if resource != Resource::Memory || !candidate.moves_limit(resource) {
        return None;
    }
    let floor = limit_floor(candidate.spec)?.get();
    let limit = limits_of(candidate, resource).next();
    rule.request_for(floor.min(limit.unwrap_or(MAX)), u128::div_ceil)
}

/// The container's limit in force, then the kept one. Zero is no limit.
fn limits_of(candidate: &Candidate<'_>, resource: Resource) -> impl Iterator<Item = u64> {
    let limits = [candidate.in_force, candidate.standing].map(|has| has.limits.amount(resource));
    limits.into_iter().filter(|limit| *limit > 0)
}

/// What a container will have: the target as request, and the limit that goes with it if the VPA controls limits.
///
/// `GetContainersResources` (autoscaler `pkg/admission-controller/resource/pod/recommendation`). Unlike there, a limit
/// never ends below the request: a LimitRange default below the request would make it so.
pub(super) fn outcome(candidate: &Candidate<'_>, limits: &LimitRangeItem, notes: &mut Vec<Note>) -> Requirements {
    let mut outcome = candidate.standing;
    for resource in Resource::ALL {
        let Some(target) = candidate.target(resource) else {
            if candidate.ends_boost(resource) {
                boost::take_back(candidate, &mut outcome, notes);
            }
            continue;
        };
        outcome.requests.set(resource, Some(target));
        if !candidate.moves_limit(resource) {
            continue;
        }
        let following = candidate.limit_rule(resource, limits).limit_for(target);
        let highest = limits.highest_beside(resource, Some(target));
        let following = following.map(|limit| limit.min(highest));
        // Without a limit in force, the limit of the spec counts.
        let standing = candidate.standing.limits.get(resource).filter(|limit| *limit > 0);
        if let Some(limit) = following.or(standing) {
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
    let mut note = |text| notes.push(candidate.note(resource, text));
    let [from, to] = resource.quantities([limit, limit.max(target)]);
    if limit < target {
        note(format!("{resource} limit {from} is raised to the request of {to}"));
    }
    if let Some(annotation) = candidate.limit_annotation(resource) {
        note(format!("{resource} limit becomes {to}: {annotation} of the VPA"));
    }
    if limits_of(candidate, resource).next().is_none() {
        note(format!("{resource} gets a limit of {to}: the LimitRange has a default"));
    }
    if limit == MAX && candidate.in_force.limits.amount(resource) < MAX {
        note(format!("{resource} limit stays at the largest quantity there is"));
    }
}

/// The pod's own amounts after its containers' change, within the LimitRange for pods. The request is at least what the containers need
/// together, init containers included. The limit is at least that of each regular container. A limit whose change would restart a
/// container stays, and none comes down below the fixed heaps that it alone bounds.
pub(super) fn pod_level(
    pod: &Pod,
    has: &Requirements,
    range: &LimitRangeItem,
    policy: Option<&ContainerPolicy>,
    candidates: &[Candidate<'_>],
    outcome: &PodAmounts,
) -> Requirements {
    let mut after = *has;
    let needed = pod.total(outcome, |has| has.requests);
    let followed = |resource: &Resource| policy.is_none_or(|policy| !policy.is_off() && policy.controls(*resource));
    for resource in Resource::ALL.into_iter().filter(followed) {
        let restarting = pod.restarts_with_pod_limit(resource, outcome);
        let kept = has.limits.get(resource).filter(|_| restarting.is_some());
        let [request, limit] = with_changes(has, candidates, resource);
        let min = policy.map_or(0, |policy| policy.min_allowed.amount(resource));
        let min = min.max(needed.amount(resource));
        let max = policy.and_then(|policy| policy.max_allowed.get(resource));
        let max = max.filter(|max| *max > 0).unwrap_or(u64::MAX);
        let max = max.max(has.requests.amount(resource));
        let request = request.map(|request| range.hold(resource, request.max(min).min(max)));
        let regular = candidates.iter().take(pod.spec.containers.len());
        let limits = regular.map(|one| one.outcome.limits.amount(resource));
        let heaps = heaps_of(candidates, resource).min(has.limits.amount(resource));
        let least = limits.fold(request.unwrap_or(0), u64::max).max(heaps);
        let with_heaps = request.map(|request| request.max(heaps));
        // Equal amounts stay equal: the pod's class depends on that.
        let is_equal = has.limits.get(resource) == has.requests.get(resource);
        let (request, limit) = match kept {
            Some(_) if is_equal => (kept, kept),
            Some(limit) => (request.map(|request| request.min(limit)), kept),
            None if is_equal => (with_heaps, with_heaps),
            None => (
                request,
                limit.map(|limit| range.hold_limit(resource, limit, request).max(least)),
            ),
        };
        after.requests.set(resource, request);
        after.limits.set(resource, limit);
    }
    after
}

/// What the fixed heaps of containers without a limit of their own need of the pod's.
fn heaps_of(candidates: &[Candidate<'_>], resource: Resource) -> u64 {
    let all = candidates.iter().filter(|_| resource == Resource::Memory);
    let inheriting = all.filter(|one| one.outcome.limits.amount(resource) == 0);
    let heaps = inheriting.filter_map(|one| limit_floor(one.spec));
    heaps.map(Bytes::get).fold(0, u64::saturating_add)
}

/// The pod's own request and limit, changed by as much as those of its containers.
fn with_changes(has: &Requirements, candidates: &[Candidate<'_>], resource: Resource) -> [Option<u64>; 2] {
    let [mut request, mut limit] = has.of(resource).map(|amount| amount.map(i128::from));
    // VPA's webhook boosts containers only, so the end of a boost moves no other amount either.
    for candidate in candidates.iter().filter(|candidate| !candidate.ends_boost(resource)) {
        let [before, after] = [&candidate.standing, &candidate.outcome];
        let requests = [before, after].map(|has| has.requests.get(resource));
        let limits = [before, after].map(|has| has.limits.get(resource));
        change(&mut request, requests);
        // The pod's limit bounds a container without a limit of its own, and a sidecar with a higher one.
        let is_own = limits[0].is_some_and(|own| has.limits.get(resource).is_none_or(|of_pod| own <= of_pod));
        change(&mut limit, if is_own { limits } else { requests });
    }
    [request, limit].map(|sum| Some(u64::try_from(sum?.max(0)).unwrap_or(u64::MAX)))
}

/// Adds the difference between two amounts, if both are set. The sum may be below zero until all containers are counted.
fn change(sum: &mut Option<i128>, amounts: [Option<u64>; 2]) {
    if let (Some(sum), [Some(before), Some(after)]) = (sum, amounts) {
        *sum += i128::from(after) - i128::from(before);
    }
}

/// The largest amount a Kubernetes quantity holds.
pub(super) const MAX: u64 = i64::MAX as u64;

/// How the quotient of a proportion is rounded: `u128::div_euclid` rounds down, `u128::div_ceil` up.
pub(super) type Rounding = fn(u128, u128) -> u128;

/// `amount · numerator / denominator`, or the amount itself if the denominator is zero.
pub(super) fn scale(amount: u64, numerator: u128, denominator: u128, rounding: Rounding) -> u64 {
    if denominator == 0 {
        return amount.min(MAX);
    }
    let product = u128::from(amount).saturating_mul(numerator);
    u64::try_from(rounding(product, denominator)).map_or(MAX, |quotient| quotient.min(MAX))
}
