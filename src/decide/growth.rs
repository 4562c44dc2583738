//! How far limits may grow in an emergency, before a recommendation asks for it.
//!
//! Only what the VPA manages may grow: limits that are there, of containers and resources whose policy covers limits and that no
//! horizontal autoscaler follows. A limit grows to `maxAllowed`, or where the policy has none to the limit that
//! goes with the recommendation's upper bound; never beyond what a LimitRange or the pod's own limit lets a
//! container have.

use super::candidate::Candidate;
use super::limit_range::{Bounds, Limits};
use super::proportional::Ratio;
use crate::model::objects::{ControlledValues, Pod};
use crate::model::{Resource, ResourceList};

/// How far the limits of one container may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    pub container: String,
    /// The highest limits; an absent one must not grow at all.
    pub limits: ResourceList,
}

/// The ceilings of all containers of which any limit may grow.
pub(super) fn ceilings(
    pod: &Pod,
    candidates: &[Candidate<'_>],
    limits: &Limits,
    followed: impl Fn(Resource) -> bool,
) -> Vec<Ceiling> {
    let free = Resource::ALL.into_iter().filter(|resource| !followed(*resource));
    let free: Vec<Resource> = free.collect();
    let of = |candidate: &Candidate<'_>| {
        let mut ceiling = ResourceList::default();
        for resource in &free {
            let others = candidates.iter().filter(|other| other.spec.name != candidate.spec.name);
            let others = others
                .map(|other| other.in_force.limits.amount(*resource))
                .fold(0, u64::saturating_add);
            let highest = highest(pod, candidate, &limits.container, *resource)
                .map(|highest| within_pod(highest, pod, limits, *resource, others));
            ceiling.set(*resource, highest);
        }
        Ceiling {
            container: candidate.spec.name.clone(),
            limits: ceiling,
        }
    };
    let all = candidates.iter().map(of);
    all.filter(|ceiling| !ceiling.limits.is_empty()).collect()
}

fn highest(pod: &Pod, candidate: &Candidate<'_>, limits: &Bounds, resource: Resource) -> Option<u64> {
    let policy = candidate.policy;
    let managed = policy.is_none_or(|policy| !policy.is_off() && policy.controls(resource))
        && candidate.values() == ControlledValues::RequestsAndLimits
        && candidate.in_force.limits.amount(resource) > 0
        && !candidate.spec.restarts_for(resource)
        && pod.metadata.deletion_timestamp.is_none();
    if !managed {
        return None;
    }
    let max_allowed = policy
        .and_then(|policy| policy.max_allowed.get(resource))
        .filter(|max| *max > 0);
    let from_upper = || {
        let upper = candidate
            .recommended
            .as_ref()?
            .upper
            .get(resource)
            .filter(|upper| *upper > 0)?;
        let ratio = Ratio::new(
            candidate.ratio.requests.amount(resource),
            candidate.ratio.limits.amount(resource),
            limits.default.amount(resource),
        );
        ratio.limit_for(upper)
    };
    let highest = max_allowed.or_else(from_upper)?;
    Some(limits.max.get(resource).map_or(highest, |max| highest.min(max)))
}

/// What is left for the container of what its pod may have at most.
fn within_pod(highest: u64, pod: &Pod, limits: &Limits, resource: Resource, others: u64) -> u64 {
    let of_range = limits.pod.max.get(resource).map(|max| max.saturating_sub(others));
    // A container may use all of it; the pod's own limit stays as it is.
    let of_pod = pod.spec.resources.and_then(|resources| resources.limits.get(resource));
    [of_range, of_pod].into_iter().flatten().fold(highest, u64::min)
}
