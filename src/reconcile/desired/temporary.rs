//! Temporary limits, which the guard gives above the decided ones. Pure. This list is their only home: the agent
//! derives the least limits that writers heed ([`crate::actuate::LeastLimits`]) and the state file from the list.
//!
//! A temporary limit ends when the recommendation has reached it, or when the container has been quiet for a while and its use
//! in that time fits below the limit without it. A temporary limit comes down when the use in the quiet time was much lower,
//! and never so far that the guard would grow it again at once. The guard never grows a limit that an operator has set.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{DesiredState, limit_in};
use crate::model::objects::Pod;
use crate::model::{Bytes, NamedRequirements, Resource, ResourceList};

/// The peak use in a quiet time must leave one part in this many of a limit free.
const FREE_PART: u64 = 8;
/// A temporary limit comes down if that frees one part in this many of it.
const LOWERED_PART: u64 = 5;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemporaryLimit {
    pub(crate) container: String,
    pub(crate) resource: Resource,
    /// The limit before it, in bytes or thousandths of a cpu.
    pub(crate) from: u64,
    /// The limit in force, in the same unit.
    pub(crate) to: u64,
    pub(crate) since: Timestamp,
    /// When the limit was last grown or lowered.
    pub(crate) renewed: Timestamp,
    pub(crate) why: String,
    /// The API server's denial of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<Denied>,
    /// The container has used more than `from`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exceeded: bool,
}

/// The API server's denial of a temporary limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Denied {
    /// When the limit ends, whatever the container uses then.
    pub(crate) ends: Timestamp,
    pub(crate) why: String,
}

/// A time in which the guard grows no limit of a container, after the API server denied one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GrowthPause {
    pub(crate) until: Timestamp,
    /// How many temporary limits in a row the API server denied.
    pub(crate) times: u32,
    /// The limits of the container's spec at the denial. With other limits the pause does not count.
    pub(crate) limits: ResourceList,
    /// The denied limit, in bytes or thousandths of a cpu.
    pub(crate) denied: u64,
    /// The explanation for users, with the words of the denial.
    pub(crate) why: String,
}

/// What happens to a temporary limit after a quiet time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterQuiet {
    End,
    /// The limit comes down to this amount.
    Lower(u64),
    Keep,
}

impl TemporaryLimit {
    pub(crate) fn given(
        container: &str,
        resource: Resource,
        (from, to): (u64, u64),
        why: String,
        at: Timestamp,
    ) -> Self {
        Self {
            container: container.to_owned(),
            resource,
            from,
            to,
            since: at,
            renewed: at,
            why,
            denied: None,
            exceeded: false,
        }
    }

    /// When the limit ends at the earliest, if the container is quiet for this long.
    #[must_use]
    pub(crate) fn until(&self, quiet: SignedDuration) -> Timestamp {
        self.renewed.checked_add(quiet).unwrap_or(Timestamp::MAX)
    }

    /// What happens after a quiet time; `base` is the limit without this one, `peak` the highest use in that time.
    #[must_use]
    pub(crate) const fn after_quiet(&self, base: u64, peak: u64) -> AfterQuiet {
        let enough = peak.saturating_add(peak / (FREE_PART - 1)).saturating_add(1);
        if enough <= base {
            AfterQuiet::End
        } else if enough.saturating_add(self.to / LOWERED_PART) <= self.to {
            AfterQuiet::Lower(enough)
        } else {
            AfterQuiet::Keep
        }
    }

    pub(crate) fn is_of(&self, container: &str, resource: Resource) -> bool {
        self.container == container && self.resource == resource
    }
}

impl DesiredState {
    /// The temporary memory limits, in bytes.
    pub(crate) fn memory_limits(&self) -> impl Iterator<Item = (&str, Bytes)> {
        let memory = self.temporary.iter().filter(|limit| limit.resource == Resource::Memory);
        memory.map(|limit| (limit.container.as_str(), Bytes::new(limit.to)))
    }

    pub(crate) fn temporary_limit(&self, container: &str, resource: Resource) -> Option<&TemporaryLimit> {
        self.temporary.iter().find(|limit| limit.is_of(container, resource))
    }

    /// Adds a temporary limit. A growth that continues an earlier one keeps its beginning.
    pub(crate) fn grow(&mut self, pod: &Pod, mut given: TemporaryLimit) {
        self.remember_origin(pod);
        if let Some(earlier) = self
            .take_out(|limit| limit.is_of(&given.container, given.resource))
            .pop()
        {
            (given.from, given.since, given.denied) = (earlier.from, earlier.since, earlier.denied);
            given.exceeded = earlier.exceeded;
        }
        self.temporary.push(given);
    }

    /// Puts earlier temporary limits back, except where the limit has grown further since.
    pub(crate) fn restore_temporary(&mut self, earlier: Vec<TemporaryLimit>) {
        for earlier in earlier {
            let since = self.temporary_limit(&earlier.container, earlier.resource);
            if since.is_none_or(|since| since.to < earlier.to) {
                self.temporary
                    .retain(|limit| !limit.is_of(&earlier.container, earlier.resource));
                self.temporary.push(earlier);
            }
        }
    }

    /// Notes a container's memory use. Returns whether the use is above the limit before the temporary one for the first time.
    pub(crate) fn used(&mut self, container: &str, used: u64) -> bool {
        let mut limits = self.temporary.iter_mut();
        let limit = limits.find(|limit| limit.is_of(container, Resource::Memory) && used > limit.from);
        limit.is_some_and(|limit| !std::mem::replace(&mut limit.exceeded, true))
    }

    pub(crate) fn lower_temporary(&mut self, container: &str, resource: Resource, to: u64, now: Timestamp) {
        if let Some(limit) = self.temporary.iter_mut().find(|limit| limit.is_of(container, resource)) {
            (limit.to, limit.renewed) = (to, now);
        }
    }

    /// Ends temporary limits. If nothing else is desired, the pod goes back to its spec.
    pub(crate) fn end_temporary(&mut self, ends: impl Fn(&TemporaryLimit) -> bool) -> Vec<TemporaryLimit> {
        let ended = self.take_out(ends);
        self.returning |= !ended.is_empty() && self.is_empty();
        ended
    }

    /// Ends the temporary limits that are not above the limits without them.
    pub(crate) fn end_overtaken(&mut self, pod: &Pod) -> Vec<TemporaryLimit> {
        let base = self.without_temporary(pod);
        self.take_out(|limit| limit_in(&base, &limit.container, limit.resource) >= Some(limit.to))
    }

    fn take_out(&mut self, ends: impl Fn(&TemporaryLimit) -> bool) -> Vec<TemporaryLimit> {
        self.temporary.extract_if(.., |limit| ends(limit)).collect()
    }

    /// Raises lower targets to the temporary limits.
    pub(super) fn lift(&self, targets: &mut [NamedRequirements]) {
        for limit in &self.temporary {
            if let Some(target) = targets.iter_mut().find(|target| target.name == limit.container) {
                target.resources.lift(limit.resource, limit.to);
            }
        }
    }
}

#[cfg(test)]
mod tests;
