//! The temporary limits of a pod. Pure.
//!
//! The guard gives temporary limits above the decided ones. The list of them is their only home: the agent derives the least
//! limits that writers heed ([`crate::actuate::LeastLimits`]) and the state file from the list. A temporary limit ends when the
//! recommendation has reached it, or when the container has been quiet for a while and its use in that time fits below the
//! limit without it. A temporary limit comes down when the use in the quiet time was much lower, and never so far that the
//! guard would grow it again at once. The guard never grows a limit that an operator has set.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::DesiredState;
use crate::guard::{LatestLimit, LatestLimits};
use crate::model::objects::Pod;
use crate::model::{Bytes, Cause, PodAmounts, Resource};
use crate::plan::lift_kept;
use crate::plan::shrink::Holds;
use crate::reconcile::savings::Avoided;
use crate::resize::Resize;

/// The peak use in a quiet time must leave one part in this many of a limit free.
pub(super) const FREE_PART: u64 = 8;
/// A temporary limit comes down if that frees one part in this many of it.
const LOWERED_PART: u64 = 5;

/// A limit that has not grown for this long has stopped growing. A slow kubelet takes a second from a patch to the
/// write; this is longer, with some time to spare.
const GROWTH_ENDS_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// The reason of a limit that no state file has.
const RECOVERED: &str = "an earlier agent was killed before it noted why";

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
    /// The guard gave the limit because the pod was about to reach its limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) for_pod: bool,
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
    /// When the limit ends, regardless of the container's use.
    pub(crate) ends: Timestamp,
    pub(crate) why: String,
}

impl TemporaryLimit {
    pub(crate) fn given(
        container: String,
        resource: Resource,
        (from, to): (u64, u64),
        why: String,
        at: Timestamp,
    ) -> Self {
        Self {
            container,
            resource,
            from,
            to,
            since: at,
            renewed: at,
            why,
            for_pod: false,
            denied: None,
            exceeded: false,
        }
    }

    pub(crate) fn detail(&self) -> String {
        let to = self.resource.quantity(self.to);
        format!(
            "container {} has a temporary {} limit of {to}",
            self.container, self.resource
        )
    }

    /// When the limit ends that the API server has denied, as a sentence.
    pub(crate) fn denied_detail(&self) -> Option<String> {
        let (resource, container, ends) = (self.resource, &self.container, self.denied.as_ref()?.ends);
        Some(format!(
            "the temporary {resource} limit of container {container} ends at {ends:.0}"
        ))
    }

    /// When the limit ends at the earliest, if the container is quiet for this long.
    pub(crate) fn until(&self, quiet: SignedDuration) -> Timestamp {
        self.renewed.checked_add(quiet).unwrap_or(Timestamp::MAX)
    }

    /// The limit after a quiet time, if it comes down; `base` is the limit without this one, `peak` the most of it
    /// that was needed in that time.
    pub(crate) fn after_quiet(&self, base: u64, peak: u64) -> Option<u64> {
        let enough = peak.saturating_add(peak / (FREE_PART - 1)).saturating_add(1);
        let frees = enough <= base || enough.saturating_add(self.to / LOWERED_PART) <= self.to;
        frees.then(|| enough.max(base))
    }

    /// The cause of the pass after the guard has given or raised the limit.
    pub(crate) fn cause(&self) -> Cause {
        Cause::Guard {
            container: self.container.clone(),
            resource: self.resource,
            why: Some(self.why.clone()),
        }
    }

    /// The cause of the pass after the end of the limit.
    pub(crate) fn ended(self) -> Cause {
        Cause::TemporaryLimitEnded {
            container: self.container,
            resource: self.resource,
        }
    }

    /// The cause of the pass after the end of a limit that the API server has denied.
    pub(crate) fn cause_of_denial(&self) -> Cause {
        let (container, denied) = (self.container.clone(), self.denied.as_ref());
        let why = denied.map(|denied| denied.why.clone()).unwrap_or_default();
        Cause::TemporaryLimitDenied { container, why }
    }

    /// What a cpu limit has avoided. It was raised because at least half of the periods were throttled.
    pub(crate) fn avoided_throttling(&self, now: Timestamp) -> Avoided {
        let seconds = now.duration_since(self.since).as_secs_f64();
        Avoided::ThrottledSeconds(seconds.max(0.0) / 2.0)
    }

    pub(super) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let ends = self.denied.as_mut().map(|denied| &mut denied.ends);
        [&mut self.since, &mut self.renewed].into_iter().chain(ends)
    }

    pub(crate) fn is_of(&self, container: &str, resource: Resource) -> bool {
        self.container == container && self.resource == resource
    }
}

impl DesiredState {
    /// Raises these amounts to the temporary limits.
    pub(crate) fn with_temporary(&self, mut targets: PodAmounts) -> PodAmounts {
        for limit in &self.temporary {
            if let Some(target) = targets.get_mut(Some(&limit.container)) {
                target.lift(limit.resource, limit.to);
            }
        }
        targets
    }

    /// The temporary memory limits, in bytes.
    pub(crate) fn memory_limits(&self) -> impl Iterator<Item = (&str, Bytes)> {
        let memory = self.temporary.iter().filter(|limit| limit.resource == Resource::Memory);
        memory.map(|limit| (limit.container.as_str(), Bytes::new(limit.to)))
    }

    /// For how long a temporary memory limit may still grow further.
    pub(crate) fn may_grow_for(&self, now: Timestamp) -> Duration {
        let memory = self.temporary.iter().filter(|limit| limit.resource == Resource::Memory);
        let calm = memory.map(|limit| limit.until(GROWTH_ENDS_AFTER)).max();
        let wait = calm.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
        wait.unwrap_or_default()
    }

    pub(crate) fn temporary_limit(&self, container: &str, resource: Resource) -> Option<&TemporaryLimit> {
        self.temporary.iter().find(|limit| limit.is_of(container, resource))
    }

    fn temporary_mut(&mut self, container: &str, resource: Resource) -> Option<&mut TemporaryLimit> {
        self.temporary.iter_mut().find(|limit| limit.is_of(container, resource))
    }

    /// Adds a temporary limit, or grows an earlier one.
    pub(crate) fn grow(&mut self, given: TemporaryLimit) {
        match self.temporary_mut(&given.container, given.resource) {
            Some(limit) => {
                (limit.to, limit.renewed, limit.why) = (given.to, given.renewed, given.why);
                limit.for_pod |= given.for_pod;
            }
            None => self.temporary.push(given),
        }
    }

    /// Turns memory limits that are higher than every saved one, and than those that are kept (`holds`), into temporary limits. Without
    /// anything else desired, the pod goes back to its spec.
    pub(crate) fn recover(&mut self, limits: LatestLimits, pod: &Pod, resize: &Resize, holds: &Holds, now: Timestamp) {
        let resource = Resource::Memory;
        for (container, LatestLimit { to, for_pod }) in limits {
            let mut targets = self.targets_or_spec(pod);
            lift_kept(holds, &mut targets);
            let desired = targets.limit(&container, resource);
            let overridden = self.is_overridden(&container, resource);
            if let Some(from) = desired.filter(|desired| *desired < to.get() && !overridden) {
                let (container, limits) = (container.to_string(), (from, to.get()));
                let given = TemporaryLimit::given(container, resource, limits, RECOVERED.to_owned(), now);
                self.remember_origin(pod, resize);
                self.grow(TemporaryLimit { for_pod, ..given });
            }
        }
        self.begin_return_unless_desired();
        self.scope.resources.insert(resource);
    }

    /// Puts earlier temporary limits back, except where the limit has grown further since.
    pub(super) fn restore_temporary(&mut self, earlier: Vec<TemporaryLimit>) {
        for earlier in earlier {
            match self.temporary_mut(&earlier.container, earlier.resource) {
                Some(since) if since.to >= earlier.to => {}
                Some(since) => *since = earlier,
                None => self.temporary.push(earlier),
            }
        }
    }

    /// Notes a container's memory use. Once it is above the limit before the temporary one, that has avoided a kill.
    pub(crate) fn used(&mut self, container: &str, used: u64) -> Option<Avoided> {
        let limit = self.temporary_mut(container, Resource::Memory);
        let limit = limit.filter(|limit| used > limit.from);
        let is_news = limit.is_some_and(|limit| !std::mem::replace(&mut limit.exceeded, true));
        is_news.then_some(Avoided::Kill)
    }

    /// Lowers a temporary memory limit. Without `to`, the limit ends. Returns the cause of the pass that follows.
    fn lower_temporary(&mut self, container: &str, to: Option<u64>, now: Timestamp) -> Cause {
        let (container, resource) = (container.to_owned(), Resource::Memory);
        match (to, self.temporary_mut(&container, resource)) {
            (Some(to), Some(limit)) => (limit.to, limit.renewed) = (to, now),
            _ => drop(self.end_temporary(|limit| limit.is_of(&container, resource))),
        }
        Cause::TemporaryLimitEnded { container, resource }
    }

    /// Takes back the temporary limit `lent` that an `on-memory-pressure` hook had above the limit `before`, unless the limit has
    /// changed since. Returns the cause of the pass that follows if the limit comes down.
    pub(crate) fn lower_unused(&mut self, container: &str, limits: (u64, u64), now: Timestamp) -> Option<Cause> {
        let (before, lent) = limits;
        let limit = self.temporary_limit(container, Resource::Memory);
        let limit = limit.filter(|limit| lent > before && limit.to == lent)?;
        // A part of the temporary limit may be older than the hook.
        let to = (limit.from < before).then_some(before);
        Some(self.lower_temporary(container, to, now))
    }

    /// Ends, lowers or keeps a temporary memory limit after a quiet time in which the container `needed` this much. Returns the cause
    /// of the pass that follows if the limit comes down.
    pub(crate) fn lower_quiet(&mut self, pod: &Pod, container: &str, needed: Bytes, now: Timestamp) -> Option<Cause> {
        let base = self.without_temporary(pod).limit(container, Resource::Memory);
        let base = base.unwrap_or(0);
        let limit = self.temporary_limit(container, Resource::Memory)?;
        let to = limit.after_quiet(base, needed.get())?;
        // Whole mebibytes, like every temporary limit: the kernel holds them exactly, and people can read them.
        let to = (to > base).then(|| to.next_multiple_of(1 << 20).min(limit.to));
        Some(self.lower_temporary(container, to, now))
    }

    /// Notes that the API server denied a patch with these targets, or any patch: each temporary limit in it ends at a time. Returns
    /// the limits of which that is news.
    pub(crate) fn deny(
        &mut self,
        pod: &Pod,
        asked: Option<&PodAmounts>,
        why: &str,
        now: Timestamp,
        quiet: SignedDuration,
    ) -> Vec<TemporaryLimit> {
        let mut denied = Vec::new();
        for limit in self.temporary.iter_mut().filter(|limit| limit.denied.is_none()) {
            let (container, resource) = (&limit.container, limit.resource);
            let spec = pod.container(container);
            let spec = spec.and_then(|container| container.resources.limits.get(resource));
            // The guard may have given the limit, or raised it, since the patch.
            let is_asked = asked.is_none_or(|asked| asked.limit(container, resource) >= Some(limit.to));
            if spec >= Some(limit.to) || !is_asked {
                continue;
            }
            let ends = match resource {
                Resource::Memory => now.checked_add(quiet).unwrap_or(Timestamp::MAX),
                // The kernel never had this limit.
                Resource::Cpu => now,
            };
            let why = why.to_owned();
            limit.denied = Some(Denied { ends, why });
            denied.push(limit.clone());
        }
        denied
    }

    /// Clears the denial of every temporary limit in these targets, which the API server has accepted. Returns the containers of
    /// those limits.
    pub(crate) fn accept(&mut self, targets: &PodAmounts) -> Vec<String> {
        let limits = self.temporary.iter_mut();
        let accepted = limits.filter(|limit| targets.limit(&limit.container, limit.resource) >= Some(limit.to));
        let accepted = accepted.filter_map(|limit| limit.denied.take().map(|_| limit.container.clone()));
        accepted.collect()
    }

    /// Ends temporary limits: the other values come back. A recommendation may end before a pass has taken the limits back.
    pub(crate) fn end_temporary(&mut self, ends: impl Fn(&TemporaryLimit) -> bool) -> Vec<TemporaryLimit> {
        let ended: Vec<_> = self.temporary.extract_if(.., |limit| ends(limit)).collect();
        self.returning |= !ended.is_empty();
        ended
    }

    /// Ends the temporary limits that are not above the limits without them, as [`Self::end_temporary`] does.
    pub(crate) fn end_overtaken(&mut self, pod: &Pod) -> Vec<TemporaryLimit> {
        let base = self.without_temporary(pod);
        self.end_temporary(|limit| base.limit(&limit.container, limit.resource) >= Some(limit.to))
    }
}
