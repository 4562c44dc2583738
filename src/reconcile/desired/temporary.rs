//! Temporary limits: limits that the guard grew in an emergency, laid over everything else that is desired. Pure, and their
//! only home: the least limit that writers heed ([`crate::actuate::LeastLimits`]) and the state file are made from these.
//!
//! A temporary limit ends when the recommendation has caught up, or when the container has been quiet for a while and what
//! it used meanwhile fits below the limit without it. It is lowered where much less was used, and never so far that it
//! would be grown again at once. A limit that an operator has set is the operator's: nothing is laid over it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{DesiredState, limit_in};
use crate::model::objects::Pod;
use crate::model::{Bytes, NamedRequirements, Resource, ResourceList};

/// What a container used at most in a quiet time must leave this part of a limit free.
const FREE: u64 = 8;
/// A temporary limit is lowered if that gives back this part of it.
const WORTH: u64 = 5;

/// One limit that was grown before a decision was there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemporaryLimit {
    pub(crate) container: String,
    pub(crate) resource: Resource,
    /// The limit before, in bytes or thousandths of a cpu.
    pub(crate) from: u64,
    /// The limit that is held, in the same unit.
    pub(crate) to: u64,
    pub(crate) since: Timestamp,
    /// When it was grown or lowered last.
    pub(crate) renewed: Timestamp,
    pub(crate) why: String,
    /// The API server denies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<Denied>,
    /// More was used than the limit was before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exceeded: bool,
}

/// The API server's denial of a limit that was grown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Denied {
    /// When the limit ends, whatever is in use then.
    pub(crate) ends: Timestamp,
    pub(crate) why: String,
}

/// For how long no limit of a container is grown because the API server denied one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GrowthPause {
    pub(crate) until: Timestamp,
    /// How often in a row the API server denied a temporary limit.
    pub(crate) times: u32,
    /// The limits of the container's spec at the denial: with others the answer may be another.
    pub(crate) limits: ResourceList,
    /// The limit that was denied, in bytes or thousandths of a cpu.
    pub(crate) denied: u64,
    /// What is said of it, with the denial's words.
    pub(crate) why: String,
}

/// What becomes of a temporary limit after a quiet time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterQuiet {
    End,
    /// The limit is lowered to this.
    Lower(u64),
    Keep,
}

impl TemporaryLimit {
    /// A limit that has just grown from one amount to another.
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

    /// When it ends at the earliest, if the container is quiet for that long.
    #[must_use]
    pub(crate) fn until(&self, quiet: SignedDuration) -> Timestamp {
        self.renewed.checked_add(quiet).unwrap_or(Timestamp::MAX)
    }

    /// What becomes of it: `base` is the limit without it, `peak` the most that was used in the quiet time.
    #[must_use]
    pub(crate) const fn after_quiet(&self, base: u64, peak: u64) -> AfterQuiet {
        let enough = peak.saturating_add(peak / (FREE - 1)).saturating_add(1);
        if enough <= base {
            AfterQuiet::End
        } else if enough.saturating_add(self.to / WORTH) <= self.to {
            AfterQuiet::Lower(enough)
        } else {
            AfterQuiet::Keep
        }
    }

    /// Whether it is about this limit.
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

    /// Notes that a limit was grown; a growth that continues an earlier one keeps its beginning.
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

    /// Puts earlier limits back, except where a limit has grown further since.
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

    /// Notes how much memory a container used beside its temporary limit; returns whether that is the first time that it was more
    /// than the limit was before.
    pub(crate) fn used(&mut self, container: &str, used: u64) -> bool {
        let mut limits = self.temporary.iter_mut();
        let limit = limits.find(|limit| limit.is_of(container, Resource::Memory) && used > limit.from);
        limit.is_some_and(|limit| !std::mem::replace(&mut limit.exceeded, true))
    }

    /// Keeps only so much of a limit.
    pub(crate) fn lower_temporary(&mut self, container: &str, resource: Resource, to: u64, now: Timestamp) {
        if let Some(limit) = self.temporary.iter_mut().find(|limit| limit.is_of(container, resource)) {
            (limit.to, limit.renewed) = (to, now);
        }
    }

    /// Ends temporary limits. If nothing else is desired then, the pod goes back to its spec.
    pub(crate) fn end_temporary(&mut self, ends: impl Fn(&TemporaryLimit) -> bool) -> Vec<TemporaryLimit> {
        let ended = self.take_out(ends);
        self.returning |= !ended.is_empty() && self.is_empty();
        ended
    }

    /// Ends the temporary limits that the containers would have without them.
    pub(crate) fn end_overtaken(&mut self, pod: &Pod) -> Vec<TemporaryLimit> {
        let base = self.without_temporary(pod);
        self.take_out(|limit| limit_in(&base, &limit.container, limit.resource) >= Some(limit.to))
    }

    fn take_out(&mut self, ends: impl Fn(&TemporaryLimit) -> bool) -> Vec<TemporaryLimit> {
        self.temporary.extract_if(.., |limit| ends(limit)).collect()
    }

    /// Lays the temporary limits over lower ones.
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
