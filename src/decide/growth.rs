//! How far limits may grow in an emergency, before a recommendation follows.
//!
//! Only what the VPA manages may grow: existing limits of containers and resources whose policy covers limits and that no
//! horizontal autoscaler scales on. A limit grows to `maxAllowed`. Where the policy has none, a limit grows to the one that
//! goes with the recommendation's upper bound. A LimitRange and the pod's own limit bound both.

use super::candidate::{Candidate, Part};
use super::case::Case;
use super::index::Limits;
use crate::model::objects::LimitRangeItem;
use crate::model::{Requirements, Resource, ResourceList};

/// How far the limits of one container may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    pub container: String,
    /// The highest limits. Where one is absent, the container's limit must not grow.
    pub limits: ResourceList,
}

impl Case<'_> {
    /// The ceilings of all containers with a limit that may grow: together within a LimitRange for pods. `fixed` limits never grow.
    pub(super) fn ceilings(&self, limits: &Limits<'_>, fixed: impl Fn(&str, Resource) -> bool) -> Vec<Ceiling> {
        let (pod, candidates) = (self.pod, &self.candidates);
        let highest = |candidate: &Candidate<'_>, resource| {
            let highest = highest(candidate, &limits.container, resource);
            highest.filter(|_| !fixed(&candidate.spec.name, resource))
        };
        let of = |candidate: &Candidate<'_>| Ceiling {
            container: candidate.spec.name.clone(),
            limits: ResourceList::from_fn(|resource| {
                let own = highest(candidate, resource)?;
                let sum = |of: fn(&Requirements) -> ResourceList| {
                    let all = candidates.iter().map(|one| of(&one.in_force).amount(resource));
                    all.fold(0, u64::saturating_add)
                };
                let requests = fixed_request(candidate, resource).map(|_| sum(|has| has.requests));
                let left = of_range(&limits.pod, resource, requests).saturating_sub(sum(|has| has.limits));
                // Several may grow at the same moment: each has an equal part, and what is left beyond all that the others may take.
                let has = |one: &Candidate<'_>| one.in_force.limits.amount(resource);
                let room = |one: &Candidate<'_>| Some(highest(one, resource)?.saturating_sub(has(one)));
                let rooms: Vec<u64> = candidates.iter().filter_map(room).collect();
                let all = rooms.iter().copied().fold(0, u64::saturating_add);
                let others = all.saturating_sub(own.saturating_sub(has(candidate)));
                let part = (left / rooms.len() as u64).max(left.saturating_sub(others));
                let of_range = has(candidate).saturating_add(part);
                // A container may use all of the pod's own limit, which stays as it is. The LimitRange bounds that limit then.
                let of_pod = pod.spec.resources.and_then(|resources| resources.limits.get(resource));
                Some(own.min(of_pod.unwrap_or(of_range)))
            }),
        };
        let all = candidates.iter().map(of);
        // Each pod of the node keeps its list: no room for more than it holds.
        let ceilings = all.filter(|ceiling| !ceiling.limits.is_empty());
        ceilings.collect::<Box<[_]>>().into_vec()
    }
}

fn highest(candidate: &Candidate<'_>, limits: &LimitRangeItem, resource: Resource) -> Option<u64> {
    let policy = candidate.policy;
    let managed = policy.is_none_or(|policy| !policy.is_off() && policy.controls(resource))
        && candidate.moves_limit(resource)
        && candidate.in_force.limits.amount(resource) > 0
        && !candidate.spec.restarts_for(resource);
    if !managed {
        return None;
    }
    let max_allowed = policy.map_or(0, |policy| policy.max_allowed.amount(resource));
    let from_upper = || {
        let upper = candidate.recommended(Part::Upper, resource).unwrap_or(0);
        candidate.limit_rule(resource, limits).limit_for(upper)
    };
    let highest = Some(max_allowed).filter(|max| *max > 0).or_else(from_upper)?;
    Some(highest.min(of_range(limits, resource, fixed_request(candidate, resource))))
}

/// The highest limit that a LimitRange allows beside these requests.
fn of_range(bounds: &LimitRangeItem, resource: Resource, requests: Option<u64>) -> u64 {
    let max = bounds.max.get(resource).unwrap_or(u64::MAX);
    max.min(bounds.highest_beside(resource, requests))
}

/// The request beside which the limit grows. A request that equals the limit grows with it.
fn fixed_request(candidate: &Candidate<'_>, resource: Resource) -> Option<u64> {
    let [request, limit] = candidate.in_force.of(resource);
    request.filter(|request| *request > 0 && Some(*request) != limit)
}
