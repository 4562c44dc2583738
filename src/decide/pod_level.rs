//! What the pod as a whole has (`spec.resources`) once its containers have something else, where its kubelet can resize that.
//!
//! In come the pod's own amounts, the VPA's `podPolicy` (AEP-7571) and what the containers have before and after; out come the
//! pod's own amounts after. They change by as much as those of the containers do together: what the pod has beside them stays.
//! Where the containers do not fit in after all, the change is forbidden (`verdict`).

use super::candidate::Candidate;
use crate::model::objects::ContainerPolicy;
use crate::model::{NamedRequirements, Requirements, Resource};

/// `outcome` has one entry for each candidate, in the same order.
pub(super) fn follow(
    has: &Requirements,
    policy: Option<&ContainerPolicy>,
    candidates: &[Candidate<'_>],
    outcome: &[NamedRequirements],
) -> Requirements {
    let mut after = *has;
    let followed = |resource: &Resource| policy.is_none_or(|policy| !policy.is_off() && policy.controls(*resource));
    for resource in Resource::ALL.into_iter().filter(followed) {
        let (mut request, mut limit) = (has.requests.get(resource), has.limits.get(resource));
        let mut highest = 0;
        let pairs = candidates.iter().zip(outcome);
        // VPA's webhook boosts containers alone, so the end of a boost moves nothing else either.
        for (before, after) in pairs.filter(|(candidate, _)| !candidate.ends_boost(resource)) {
            let [before, after] = [&before.standing, &after.resources];
            let requests = [before, after].map(|has| has.requests.get(resource));
            let limits = [before, after].map(|has| has.limits.get(resource));
            change(&mut request, requests);
            // A container without a limit of its own is bound by the pod's.
            change(&mut limit, if limits[0].is_some() { limits } else { requests });
            highest = after.limits.amount(resource).max(highest);
        }
        let min = policy.map_or(0, |policy| policy.min_allowed.amount(resource));
        let max = policy.and_then(|policy| policy.max_allowed.get(resource));
        let max = max.filter(|max| *max > 0).unwrap_or(u64::MAX);
        let request = request.map(|request| request.max(min).min(max.max(has.requests.amount(resource))));
        let least = highest.max(request.unwrap_or(0));
        // What is equal stays equal: the pod's class follows from that.
        let is_equal = has.limits.get(resource) == has.requests.get(resource);
        let limit = if is_equal {
            request
        } else {
            limit.map(|limit| limit.max(least))
        };
        after.requests.set(resource, request);
        after.limits.set(resource, limit);
    }
    after
}

/// Adds the difference between two amounts that are there.
fn change(sum: &mut Option<u64>, amounts: [Option<u64>; 2]) {
    if let (Some(sum), [Some(before), Some(after)]) = (sum, amounts) {
        *sum = sum.saturating_sub(before).saturating_add(after);
    }
}
