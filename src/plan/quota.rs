//! Judges whether the quotas of a namespace allow the amounts that a pod is to get, as the API server's admission does
//! (`CheckRequest`, kubernetes `apiserver/pkg/admission/plugin/resourcequota`, and `pkg/quota/v1/evaluator/core/pods.go`). Pure.
//!
//! Input: the quotas with what the API server has counted (`status.used`: the specs and statuses of all pods of the namespace, on
//! all nodes), and the pods of this node that take more than their objects show. Those are pods whose values the agent writes
//! without a patch, pods whose patch is not in the view yet, and pods that may be patched in a moment. Output: a refusal in the
//! words of the API server with the numbers, or what the quotas leave.
//!
//! What agents of other nodes give without a patch is not visible. Other namespaces count nowhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::hierarchy::pod_amounts;
use crate::model::objects::{KnownObjects, Pod, PodKey, QuotaStatus, ResizePhase, ResourceQuota, Shared};
use crate::model::{KubeletVersion, PodAmounts, Requirements, Resource, ResourceList, Withheld};

/// The quotas of some namespaces, and what pods of this node take from them beyond what is counted.
#[derive(Debug, Clone, Default)]
pub struct QuotaAccount {
    quotas: Vec<Shared<ResourceQuota>>,
    kubelet: KubeletVersion,
    /// The pods that take more than their objects show, with the amounts beyond those.
    beyond: BTreeMap<PodKey, (Arc<Pod>, Requirements)>,
    /// The defaults of LimitRanges for containers, by namespace.
    defaults: BTreeMap<String, Requirements>,
}

type AmountsOf = fn(&Requirements) -> ResourceList;

/// The two lists of amounts, and the beginning of their names.
const AMOUNTS: [(AmountsOf, &str); 2] = [(|one| one.requests, "requests"), (|one| one.limits, "limits")];

impl QuotaAccount {
    /// The quotas before any pod takes more than its object shows. At a resize, admission fills in the defaults of LimitRanges before it
    /// checks quotas (`mergePodResourceRequirements`, kubernetes `plugin/pkg/admission/limitranger`).
    pub fn new<'a>(objects: impl IntoIterator<Item = &'a KnownObjects>, kubelet: KubeletVersion) -> Self {
        let mut account = Self {
            kubelet,
            ..Self::default()
        };
        for known in objects {
            account.quotas.extend(known.quotas.iter().cloned());
            for range in &known.limit_ranges {
                if let Some(defaults) = range.container_defaults() {
                    let earlier = account.defaults.entry(range.metadata.namespace.clone()).or_default();
                    *earlier = earlier.or(defaults);
                }
            }
        }
        account
    }

    /// Gives quotas without a status the one that their controller would, where these are all pods of the namespaces.
    pub fn count_uncounted(&mut self, pods: &[Arc<Pod>]) {
        for quota in self
            .quotas
            .iter_mut()
            .filter(|quota| quota.status == QuotaStatus::default())
        {
            let is_counted = |pod: &&Arc<Pod>| pod.metadata.namespace == quota.metadata.namespace && quota.counts(pod);
            let counting = pods.iter().filter(is_counted);
            let used = counting.fold(Requirements::default(), |used, pod| {
                let counted = counted(pod, PodAmounts::NONE, self.kubelet);
                combine(&used, &counted, u64::saturating_add)
            });
            let hard = quota.spec.hard;
            quota.status = QuotaStatus { hard, used };
        }
    }

    /// Counts a pod with these targets from now on. No targets are those of its object. Returns whether it takes less of
    /// something than before.
    pub fn count(&mut self, pod: &Arc<Pod>, targets: &PodAmounts) -> bool {
        let has_quota = |quota: &Shared<ResourceQuota>| quota.metadata.namespace == pod.metadata.namespace;
        if !self.quotas.iter().any(has_quota) {
            return false;
        }
        let key = pod.key();
        let before = self.beyond.remove(&key).map(|(_, beyond)| beyond).unwrap_or_default();
        let beyond = self.beyond(pod, targets);
        let frees = exceeds(&before, &beyond);
        if exceeds(&beyond, &Requirements::default()) {
            self.beyond.insert(key, (Arc::clone(pod), beyond));
        }
        frees
    }

    /// Checks whether a pod that has the targets `held` may get others. Without a patch, the agent holds the quotas itself, and
    /// checks only amounts that grow.
    ///
    /// Errors: a sentence with the quota and the numbers.
    pub fn check(&self, pod: &Pod, held: &PodAmounts, wanted: &PodAmounts, is_patched: bool) -> Result<(), String> {
        let is_patched = is_patched && !wanted.same(&pod.requirements());
        let defaults = self.defaults.get(&pod.metadata.namespace).filter(|_| is_patched);
        let filled_in = defaults.map(|defaults| filled_in(wanted, defaults));
        let wanted = filled_in.as_ref().unwrap_or(wanted);
        let [before, after] = [held, wanted].map(|targets| self.beyond(pod, targets));
        for (quota, others) in self.quotas_of(pod) {
            let name = &quota.metadata.name;
            for (of, list) in AMOUNTS {
                for resource in Resource::ALL {
                    let Some(hard) = of(&hard(quota, is_patched)).get(resource) else {
                        continue;
                    };
                    let key = format!("{list}.{resource}");
                    let is_filled_in = defaults.is_some_and(|defaults| of(defaults).get(resource).is_some());
                    let without = without(pod, wanted, of, resource).filter(|_| is_patched && !is_filled_in);
                    if let Some(container) = without {
                        return Err(format!("failed quota: {name}: must specify {key} for: {container}"));
                    }
                    let [before, after, others] = [before, after, others].map(|one| of(&one).amount(resource));
                    let grows = after > before;
                    match of(&quota.status.used).get(resource) {
                        None if grows || is_patched => {
                            return Err(format!("status unknown for quota: {name}, resources: {key}"));
                        }
                        Some(used) if grows && used.saturating_add(others).saturating_add(after) > hard => {
                            let [hard, used, after] = [hard, used, after].map(|amount| resource.quantity(amount));
                            let others = match others {
                                0 => String::new(),
                                others => format!(
                                    "; other pods of this node get {} that is not counted yet",
                                    resource.quantity(others)
                                ),
                            };
                            return Err(format!(
                                "exceeded quota: {name}, requested: {key}={after}, used: {key}={used}, limited: {key}={hard}{others}"
                            ));
                        }
                        None | Some(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// How much the limits of a pod that has the targets `held` may grow. An unset amount is unbounded.
    pub fn limits_left(&self, pod: &Pod, held: &PodAmounts, is_patched: bool) -> ResourceList {
        let own = self.beyond(pod, held).limits;
        let left = self.quotas_of(pod).map(|(quota, others)| {
            let (hard, used) = (hard(quota, is_patched).limits, quota.status.used.limits);
            ResourceList::from_fn(|resource| {
                let taken = own.amount(resource).saturating_add(others.limits.amount(resource));
                let taken = used.get(resource).map_or(u64::MAX, |used| used.saturating_add(taken));
                Some(hard.get(resource)?.saturating_sub(taken))
            })
        });
        left.fold(ResourceList::default(), |least, left| least.combine(left, u64::min))
    }

    /// The quotas that count a pod, each with what other pods take beyond their objects.
    fn quotas_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a ResourceQuota, Requirements)> {
        let namespace = &pod.metadata.namespace;
        let counting = self.quotas.iter().map(|quota| &**quota);
        let counting = counting.filter(move |quota| quota.metadata.namespace == *namespace && quota.counts(pod));
        counting.map(move |quota| {
            let others = self.beyond.values().filter(|(other, _)| {
                let is_other = other.metadata.name != pod.metadata.name;
                is_other && other.metadata.namespace == *namespace && quota.counts(other)
            });
            let sum = others.fold(Requirements::default(), |sum, (_, one)| {
                combine(&sum, one, u64::saturating_add)
            });
            (quota, sum)
        })
    }

    /// The amounts of a pod with these targets beyond those that are counted for its object.
    fn beyond(&self, pod: &Pod, targets: &PodAmounts) -> Requirements {
        if targets.is_empty() {
            // They are those of the object.
            return Requirements::default();
        }
        let [with, without] = [targets, PodAmounts::NONE].map(|targets| counted(pod, targets, self.kubelet));
        combine(&with, &without, u64::saturating_sub)
    }
}

/// The amounts that a quota counts for a pod with these targets: the larger of what the spec declares, and what the kubelet has
/// allocated and actuated; without the spec while the kubelet finds that infeasible (`PodRequests` and `PodLimits` with
/// `UseStatusResources`). An API server of 1.37 or later compares the sums of the pod, an earlier one each container.
fn counted(pod: &Pod, targets: &PodAmounts, kubelet: KubeletVersion) -> Requirements {
    let is_infeasible =
        targets.is_empty() && matches!(ResizePhase::of(pod), ResizePhase::Withheld(Withheld::Infeasible(_)));
    let levels = |of: Option<&str>, spec: &Requirements| {
        let own = *targets.get(of).unwrap_or(spec);
        let status = of.and_then(|name| pod.container_status(name));
        let reported = match of {
            Some(_) => status.and_then(|status| status.resources),
            None => pod.status.resources,
        };
        let granted = status.and_then(|status| status.allocated_resources).unwrap_or_default();
        let reported = reported.unwrap_or_default();
        let known = |lists: &[ResourceList]| lists.iter().find(|list| !list.is_empty()).copied().unwrap_or_default();
        let limits = known(&[reported.limits, own.limits]);
        let allocated = Requirements {
            requests: known(&[granted, own.requests]),
            limits,
        };
        let actuated = Requirements {
            requests: known(&[reported.requests, granted, own.requests]),
            limits,
        };
        [if is_infeasible { allocated } else { own }, allocated, actuated]
    };
    let sum = |choice: &dyn Fn([Requirements; 3]) -> Requirements| {
        let mut all = pod.requirements();
        for (of, resources) in all.iter_mut() {
            *resources = choice(levels(of, resources));
        }
        pod_amounts(pod, &all, kubelet)
    };
    if kubelet >= KubeletVersion::QUOTAS_COMPARE_SUMS {
        let sums = [0, 1, 2].map(|level| sum(&|levels| levels[level]));
        return sums
            .iter()
            .fold(Requirements::default(), |most, one| combine(&most, one, u64::max));
    }
    sum(&|levels| Requirements::choose(levels.each_ref(), |all| all.into_iter().flatten().max()))
}

/// The amounts that a quota allows. Admission knows those that the API server has counted. Where the agent holds the quota
/// itself, a lower amount counts before it is counted.
fn hard(quota: &ResourceQuota, is_patched: bool) -> Requirements {
    let (spec, counted) = (quota.spec.hard, quota.status.hard);
    if is_patched {
        return counted;
    }
    Requirements::choose([&spec, &counted], |both| both.into_iter().flatten().min())
}

/// These amounts, with the defaults where a container has none.
fn filled_in(amounts: &PodAmounts, defaults: &Requirements) -> PodAmounts {
    let mut all = amounts.clone();
    for one in &mut all.containers {
        one.resources = one.resources.with_requests().or(*defaults);
    }
    all
}

/// A container without an amount that each container must have once a quota names it (`Constraints`, kubernetes
/// `pkg/quota/v1/evaluator/core/pods.go`). None if the pod has resources of its own.
fn without<'a>(pod: &'a Pod, wanted: &PodAmounts, of: AmountsOf, resource: Resource) -> Option<&'a str> {
    let own = pod.spec.resources.unwrap_or_default();
    let mut containers = pod.all_containers().filter(|_| own == Requirements::default());
    let lacks = |name: &str, spec: &Requirements| {
        let resources = wanted.container(name).unwrap_or(spec);
        of(&resources.with_requests()).get(resource).is_none()
    };
    let found = containers.find(|container| lacks(&container.name, &container.resources));
    found.map(|container| container.name.as_str())
}

/// Combines the amounts of both. Unset is zero.
fn combine(one: &Requirements, other: &Requirements, with: fn(u64, u64) -> u64) -> Requirements {
    Requirements::choose([one, other], |both| {
        let [one, other] = both.map(Option::unwrap_or_default);
        Some(with(one, other))
    })
}

/// Whether an amount of the first is larger.
fn exceeds(one: &Requirements, other: &Requirements) -> bool {
    combine(one, other, u64::saturating_sub).amounts() != [0; 4]
}

#[cfg(test)]
mod tests;
