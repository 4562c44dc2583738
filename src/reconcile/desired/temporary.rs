//! Temporary limits: limits that the guard grew in an emergency, laid over everything else that is desired. Pure, and their
//! only home: the least limit that writers heed ([`crate::actuate::LeastLimits`]) and the state file are made from these.
//!
//! A temporary limit ends when the recommendation has caught up, or when the container has been quiet for a while and what
//! it used meanwhile fits below the limit without it. It is lowered where much less was used, and never so far that it
//! would be grown again at once. A limit that an operator has set is the operator's: nothing is laid over it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

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

/// A growth that has just happened.
#[derive(Debug)]
pub(crate) struct Growth<'a> {
    pub(crate) container: &'a str,
    pub(crate) resource: Resource,
    /// The limit before, in bytes or thousandths of a cpu.
    pub(crate) from: u64,
    /// The limit now, in the same unit.
    pub(crate) to: u64,
    pub(crate) why: String,
    pub(crate) at: Timestamp,
}

impl TemporaryLimit {
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

/// The temporary limits of one pod, at most one for each limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TemporaryLimits(Vec<TemporaryLimit>);

impl TemporaryLimits {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &TemporaryLimit> + Clone {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut TemporaryLimit> {
        self.0.iter_mut()
    }

    /// Those of memory, in bytes.
    pub(crate) fn of_memory(&self) -> impl Iterator<Item = (&str, Bytes)> {
        let memory = self.0.iter().filter(|limit| limit.resource == Resource::Memory);
        memory.map(|limit| (limit.container.as_str(), Bytes::new(limit.to)))
    }

    pub(crate) fn get(&self, container: &str, resource: Resource) -> Option<&TemporaryLimit> {
        self.0.iter().find(|limit| limit.is_of(container, resource))
    }

    /// Notes a growth; one that continues an earlier one keeps its beginning.
    pub(super) fn grow(&mut self, growth: Growth<'_>) {
        let earlier = self
            .extract(|limit| limit.is_of(growth.container, growth.resource))
            .pop();
        self.0.push(TemporaryLimit {
            container: growth.container.to_owned(),
            resource: growth.resource,
            from: earlier.as_ref().map_or(growth.from, |earlier| earlier.from),
            to: growth.to,
            since: earlier.as_ref().map_or(growth.at, |earlier| earlier.since),
            renewed: growth.at,
            why: growth.why,
            denied: earlier.and_then(|earlier| earlier.denied),
        });
    }

    /// Puts earlier limits back, except where a limit has grown further since.
    pub(crate) fn restore(&mut self, earlier: Self) {
        for earlier in earlier.0 {
            let since = self.get(&earlier.container, earlier.resource);
            if since.is_none_or(|since| since.to < earlier.to) {
                self.retain(|limit| !limit.is_of(&earlier.container, earlier.resource));
                self.0.push(earlier);
            }
        }
    }

    /// Keeps only so much of a limit.
    pub(crate) fn lower(&mut self, container: &str, resource: Resource, to: u64, now: Timestamp) {
        if let Some(limit) = self.0.iter_mut().find(|limit| limit.is_of(container, resource)) {
            (limit.to, limit.renewed) = (to, now);
        }
    }

    pub(super) fn retain(&mut self, keeps: impl FnMut(&TemporaryLimit) -> bool) {
        self.0.retain(keeps);
    }

    /// Takes out those that end.
    pub(super) fn extract(&mut self, ends: impl Fn(&TemporaryLimit) -> bool) -> Vec<TemporaryLimit> {
        self.0.extract_if(.., |limit| ends(limit)).collect()
    }

    /// Lays the limits over lower ones.
    pub(super) fn lift(&self, targets: &mut [NamedRequirements]) {
        for limit in &self.0 {
            if let Some(target) = targets.iter_mut().find(|target| target.name == limit.container) {
                target.resources.lift(limit.resource, limit.to);
            }
        }
    }
}

#[cfg(test)]
mod tests;
