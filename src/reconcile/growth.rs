//! Why the guard may not grow limits of a pod's containers for now. Pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::desired::{Denied, TemporaryLimit};
use crate::actuate::shrink::Lowering;
use crate::model::objects::Pod;
use crate::model::{MemoryLimit, PodAmounts, Resource, ResourceList};

/// How long the guard does not grow a container's limits after the API server's first denial. Doubles with each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(5);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// What keeps the guard from growing limits, by container name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Growth {
    /// Why the guard did not grow a memory limit that was about to be reached.
    refused: BTreeMap<String, NotGrown>,
    /// Until when the guard does not grow limits that the API server denied.
    pauses: BTreeMap<String, GrowthPause>,
}

/// A memory limit that the guard did not grow.
#[derive(Debug, Clone)]
struct NotGrown {
    why: String,
    /// The container's memory limit without a temporary one in bytes, at that time.
    limit: Option<u64>,
}

/// A time in which the guard grows no limit of a container, after the API server denied one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GrowthPause {
    until: Timestamp,
    /// How many times in a row the API server denied temporary limits.
    times: u32,
    /// The limits of the container's spec at the denial. The pause ends when the spec has other limits.
    limits: ResourceList,
    /// The memory limit that was denied last, in bytes; zero where only cpu limits were.
    denied: u64,
    /// The explanation for users, with the words of the denial.
    why: String,
}

/// The API server's denial of a container's temporary limits.
#[derive(Debug, Clone, Copy)]
struct Denial {
    /// The denied memory limit in bytes, if there is one.
    memory: Option<u64>,
    /// When the last of the denied limits ends.
    ends: Timestamp,
}

fn spec_limits(pod: &Pod, container: &str) -> Option<ResourceList> {
    pod.container(container).map(|container| container.resources.limits)
}

impl Growth {
    /// Notes that the guard did not grow a container's memory limit, which is `limit` bytes without a temporary one.
    pub(crate) fn refuse(&mut self, container: String, why: String, limit: Option<u64>) {
        self.refused.insert(container, NotGrown { why, limit });
    }

    /// Notes that the guard has grown a container's memory limit.
    pub(crate) fn succeed(&mut self, container: &str) {
        self.refused.remove(container);
    }

    /// Notes that the API server denied these temporary limits: the containers get none for a while.
    pub(crate) fn deny(&mut self, pod: &Pod, limits: &[TemporaryLimit], why: &str) {
        let mut denials: BTreeMap<&str, Denial> = BTreeMap::new();
        for limit in limits {
            let Some(Denied { ends, .. }) = limit.denied else {
                continue;
            };
            let memory = Some(limit.to).filter(|_| limit.resource == Resource::Memory);
            let denial = Denial { memory, ends };
            let of_container = denials.entry(&limit.container).or_insert(denial);
            of_container.memory = of_container.memory.or(memory);
            of_container.ends = of_container.ends.max(ends);
        }
        for (container, denial) in denials {
            let limits = spec_limits(pod, container).unwrap_or_default();
            self.pause_after(container, limits, denial, why);
        }
    }

    /// Begins a pause of a container with these `limits` in its spec.
    fn pause_after(&mut self, container: &str, limits: ResourceList, Denial { memory, ends }: Denial, why: &str) {
        let earlier = self.pauses.get(container);
        let times = earlier.map_or(0, |pause| pause.times);
        let in_force = earlier.filter(|pause| pause.until > ends);
        let denied = memory.or(in_force.map(|pause| pause.denied));
        let pause = (FIRST_PAUSE * (1 << times.min(8))).min(LONGEST_PAUSE);
        let until = ends.checked_add(pause).unwrap_or(Timestamp::MAX);
        let pause = GrowthPause {
            until,
            times: times.saturating_add(1),
            limits,
            denied: denied.unwrap_or_default(),
            why: format!("the API server denies a higher limit, no temporary limit before {until:.0}: {why}"),
        };
        self.pauses.insert(container.to_owned(), pause);
    }

    /// Notes that the API server accepts the temporary limits of a container again.
    pub(crate) fn accept(&mut self, container: &str) {
        self.pauses.remove(container);
    }

    /// The pause of a container, if there is one now. It ends when the spec has other limits.
    fn pause(&self, pod: &Pod, container: &str, now: Timestamp) -> Option<&GrowthPause> {
        let pause = self.pauses.get(container).filter(|pause| pause.until > now);
        pause.filter(|pause| spec_limits(pod, container) == Some(pause.limits))
    }

    /// Whether a container's limits may grow: not for a while after a denial, unless its spec has other limits since.
    pub(crate) fn is_allowed(&self, pod: &Pod, container: &str, now: Timestamp) -> bool {
        self.pause(pod, container, now).is_none()
    }

    /// Whether one of these lowered limits was denied by the API server. A container that then reaches the limit of its
    /// spec is no reason to undo the shrink.
    pub(crate) fn takes_back_denied(&self, pod: &Pod, lowered: &[Lowering], now: Timestamp) -> bool {
        lowered.iter().any(|lowering| {
            let pause = self.pause(pod, lowering.target.container().unwrap_or_default(), now);
            pause.is_some_and(|pause| lowering.from <= MemoryLimit::Bytes(pause.denied))
        })
    }

    /// All pauses, as the state file has them.
    pub(crate) const fn pauses(&self) -> &BTreeMap<String, GrowthPause> {
        &self.pauses
    }

    /// Takes the pauses of an earlier agent.
    pub(crate) fn restore(&mut self, pauses: BTreeMap<String, GrowthPause>) {
        self.pauses.extend(pauses);
    }

    /// Why limits of containers are not grown: denials of the API server, until the guard may grow limits again, and refusals of the
    /// guard, for containers that have no higher memory limit in these `amounts`.
    pub(crate) fn refusals(
        &self,
        pod: &Pod,
        amounts: PodAmounts,
        now: Timestamp,
    ) -> impl Iterator<Item = (&String, &String)> {
        let denials = self.pauses.keys();
        let denials = denials.filter_map(move |container| Some((container, &self.pause(pod, container, now)?.why)));
        let refusals = self.refused.iter();
        denials.chain(refusals.filter_map(move |(container, NotGrown { why, limit })| {
            let is_raised = amounts.limit(container, Resource::Memory) > *limit;
            (!is_raised).then_some((container, why))
        }))
    }
}
