//! Checks whether the quotas of a namespace allow the amounts that a pod is to get without the API server. Pure.
//!
//! The API server counts what the specs of all pods of the namespace declare (`status.used`), on all nodes. Where the agent
//! writes values without a patch, the spec stays. So a pod takes from a quota what its spec declares, which is in `used`, and
//! what its targets exceed the spec by ([`beyond_spec`]). The latter is summed over the pods of this node. What agents of other
//! nodes have given beyond specs is not visible.

use crate::model::objects::{Pod, QuotaAmounts, ResourceQuota};
use crate::model::{NamedRequirements, Requirements, Resource, ResourceList};

/// A quota that does not allow a pod's new amounts. Amounts are thousandths of a cpu or bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "quota {quota} of the namespace allows {key} {}: {} are used, and this node gives {} beyond the specs of other pods; this \
     pod would get {} beyond its spec",
    resource.quantity(*hard),
    used.map_or_else(|| "an unknown amount".to_owned(), |used| resource.quantity(used)),
    resource.quantity(*others),
    resource.quantity(*after)
)]
pub struct OverQuota {
    pub quota: String,
    /// Such as `limits.memory`.
    pub key: String,
    pub resource: Resource,
    pub hard: u64,
    /// None until the API server has counted.
    pub used: Option<u64>,
    pub others: u64,
    pub after: u64,
}

/// The sums of a pod's targets that exceed those of its spec.
pub fn beyond_spec(pod: &Pod, targets: &[NamedRequirements]) -> QuotaAmounts {
    let spec = pod.requirements();
    let beyond = |of: fn(&Requirements) -> ResourceList| {
        let sum = |list: &[NamedRequirements], resource| {
            let (containers, _) = NamedRequirements::split(list);
            let amounts = containers.iter().map(|one| of(&one.resources).amount(resource));
            let sum = amounts.fold(0, u64::saturating_add);
            // The pod's own amounts count in place of the sum.
            let own = pod.pod_level_in(list).and_then(|own| of(&own).get(resource));
            own.unwrap_or(sum)
        };
        ResourceList::from_fn(|resource| Some(sum(targets, resource).saturating_sub(sum(&spec, resource))))
    };
    QuotaAmounts {
        requests: beyond(|one| one.requests),
        limits: beyond(|one| one.limits),
    }
}

/// Checks whether a pod that gets `before` beyond its spec may get `after`, where the other pods of this node get `others`
/// beyond theirs. Only an amount that grows is checked.
///
/// Errors: [`OverQuota`] with the numbers, for the first amount that grows and does not fit.
pub fn check_quota(
    quota: &ResourceQuota,
    before: QuotaAmounts,
    after: QuotaAmounts,
    others: QuotaAmounts,
) -> Result<(), OverQuota> {
    for (of, key) in AMOUNTS {
        for resource in Resource::ALL {
            let [before, after, others] = [before, after, others].map(|amounts| of(&amounts).amount(resource));
            let Some((hard, used)) = allowed(quota, of, resource) else {
                continue;
            };
            let sum = |used: u64| used.saturating_add(others).saturating_add(after);
            if after > before && used.is_none_or(|used| sum(used) > hard) {
                let key = format!("{key}.{resource}");
                let quota = quota.metadata.name.clone();
                return Err(OverQuota {
                    quota,
                    key,
                    resource,
                    hard,
                    used,
                    others,
                    after,
                });
            }
        }
    }
    Ok(())
}

/// The limits that a quota leaves where the pods of this node get `beyond` more than their specs. An unset amount is unbounded.
pub fn limits_left(quota: &ResourceQuota, beyond: QuotaAmounts) -> ResourceList {
    ResourceList::from_fn(|resource| {
        let (hard, used) = allowed(quota, |amounts| amounts.limits, resource)?;
        let taken = used.map_or(u64::MAX, |used| used.saturating_add(beyond.limits.amount(resource)));
        Some(hard.saturating_sub(taken))
    })
}

type AmountsOf = fn(&QuotaAmounts) -> ResourceList;

/// The two lists of amounts, and the beginning of their names.
const AMOUNTS: [(AmountsOf, &str); 2] = [
    (|amounts| amounts.requests, "requests"),
    (|amounts| amounts.limits, "limits"),
];

/// The amount that a quota allows, if it names one, and what is used of it. The lower of the new and the counted amount counts.
fn allowed(
    quota: &ResourceQuota,
    of: fn(&QuotaAmounts) -> ResourceList,
    resource: Resource,
) -> Option<(u64, Option<u64>)> {
    let hard = of(&quota.spec.hard).combine(of(&quota.status.hard), u64::min);
    Some((hard.get(resource)?, of(&quota.status.used).get(resource)))
}

#[cfg(test)]
mod tests;
