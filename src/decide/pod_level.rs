//! The pod's own amounts (`spec.resources`) after its containers' change, where the kubelet can resize them.
//!
//! Input: the pod's own amounts, the VPA's `podPolicy` (AEP-7571), and the containers' amounts before and after. The pod's
//! own amounts change by the sum of the containers' changes. If the containers then exceed them, `verdict` forbids the
//! change.

use super::candidate::Candidate;
use crate::model::objects::ContainerPolicy;
use crate::model::{Requirements, Resource};

pub(super) fn follow(
    has: &Requirements,
    policy: Option<&ContainerPolicy>,
    candidates: &[Candidate<'_>],
) -> Requirements {
    let mut after = *has;
    let followed = |resource: &Resource| policy.is_none_or(|policy| !policy.is_off() && policy.controls(*resource));
    for resource in Resource::ALL.into_iter().filter(followed) {
        let (mut request, mut limit) = (has.requests.get(resource), has.limits.get(resource));
        let mut highest = 0;
        // VPA's webhook boosts containers only, so the end of a boost moves no other amount either.
        for candidate in candidates.iter().filter(|candidate| !candidate.ends_boost(resource)) {
            let [before, after] = [&candidate.standing, &candidate.outcome];
            let requests = [before, after].map(|has| has.requests.get(resource));
            let limits = [before, after].map(|has| has.limits.get(resource));
            change(&mut request, requests);
            // The pod's limit bounds a container without a limit of its own.
            change(&mut limit, if limits[0].is_some() { limits } else { requests });
            highest = after.limits.amount(resource).max(highest);
        }
        let min = policy.map_or(0, |policy| policy.min_allowed.amount(resource));
        let max = policy.and_then(|policy| policy.max_allowed.get(resource));
        let max = max.filter(|max| *max > 0).unwrap_or(u64::MAX);
        let request = request.map(|request| request.max(min).min(max.max(has.requests.amount(resource))));
        let least = highest.max(request.unwrap_or(0));
        // Equal amounts stay equal: the pod's class depends on that.
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

/// Adds the difference between two amounts, if both are set.
fn change(sum: &mut Option<u64>, amounts: [Option<u64>; 2]) {
    if let (Some(sum), [Some(before), Some(after)]) = (sum, amounts) {
        *sum = sum.saturating_sub(before).saturating_add(after);
    }
}
