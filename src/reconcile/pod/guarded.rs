//! The guard's reports on a pod, and what the guard may do next. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Effect, GrowthState, Now, PodState};
use crate::actuate::shrink::Lowering;
use crate::actuate::{Growable, Grown};
use crate::guard::{Claim, CpuTerms, GuardEvent, Guarded, GuardedPod, Report, Terms};
use crate::model::objects::Pod;
use crate::model::{
    Bytes, Cause, ChangeRecord, KubeletVersion, MemoryLimit, MilliCpu, Outcome, Resource, ResourceList, Target,
};
use crate::plan::pod_requests;
use crate::plan::resize::AcceptedResize;
use crate::reconcile::desired::{AfterQuiet, Denied, GrowthPause, TemporaryLimit, limit_in};
use crate::reconcile::worth::Avoided;

/// How long the guard does not grow a container's limits after the API server's first denial. Doubles with each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(5);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

fn guard_cause(of: &Guarded, resource: Resource, why: Option<String>) -> Cause {
    Cause::Guard {
        container: of.container.clone(),
        resource,
        why,
    }
}

impl GrowthState {
    pub(super) fn pause(&mut self, container: String, pause: GrowthPause) {
        self.refused.insert(container.clone(), pause.why.clone());
        self.pauses.insert(container, pause);
    }
}

fn no_longer_needed(container: &str, resource: Resource) -> Cause {
    let container = container.to_owned();
    Cause::TemporaryLimitEnded { container, resource }
}

/// The limits in the spec of a container.
fn spec_limits(pod: &Pod, container: &str) -> Option<ResourceList> {
    pod.container(container).map(|container| container.resources.limits)
}

impl PodState {
    pub(super) fn take_guard_report(&mut self, report: Report, now: Now, effects: &mut Vec<Effect>) {
        let of = report.of;
        match report.event {
            GuardEvent::Grew { used, to, why, grown } => {
                self.note_usage(&of, used, effects);
                self.grow_memory(&of, to, &why, *grown, now, effects);
            }
            GuardEvent::Refused { why, .. } => {
                self.trouble = Some(now.wall);
                let reason = format!("container {}: memory limit not grown: {why}", of.container);
                self.growth.refused.insert(of.container.clone(), why);
                let cause = guard_cause(&of, Resource::Memory, None);
                let refused = ChangeRecord::new(of.pod, cause, Outcome::Refused { reason });
                self.record_guard(refused, now, effects);
            }
            GuardEvent::Pressure { limit, lent } => {
                self.request_evidence(&of.container, (limit.get(), lent.get()), now, effects);
            }
            GuardEvent::Quiet { peak } if self.hooks.is_leaving_evidence(&of.container) => {
                tracing::debug!(%peak, "lent for evidence that is being left");
            }
            GuardEvent::Quiet { peak } => {
                self.note_usage(&of, peak, effects);
                self.end_quiet_memory(&of, peak, now);
            }
            GuardEvent::Throttled { from, to, why } => {
                self.trouble = Some(now.wall);
                let cause = guard_cause(&of, Resource::Cpu, Some(why.clone()));
                let limits = (from.get(), to.get());
                let given = TemporaryLimit::given(&of.container, Resource::Cpu, limits, why, now.wall);
                self.desired.grow(&self.pod, given);
                self.restart(cause, now);
            }
            GuardEvent::Unthrottled => {
                if let Some(limit) = self.desired.temporary_limit(&of.container, Resource::Cpu) {
                    // It was raised because at least half of the periods were throttled.
                    let seconds = now.wall.duration_since(limit.since).as_secs_f64().max(0.0) / 2.0;
                    effects.push(Effect::Avoided(Avoided::ThrottledSeconds(seconds)));
                }
                self.desired
                    .end_temporary(|limit| limit.is_of(&of.container, Resource::Cpu));
                self.restart(no_longer_needed(&of.container, Resource::Cpu), now);
            }
        }
    }

    /// Notes a container's memory use. Above the limit without the guard's temporary one, the kernel
    /// would have killed a process.
    fn note_usage(&mut self, of: &Guarded, used: Bytes, effects: &mut Vec<Effect>) {
        if self.desired.used(&of.container, used.get()) {
            effects.push(Effect::Avoided(Avoided::Kill));
        }
    }

    fn grow_memory(&mut self, of: &Guarded, to: Bytes, why: &str, grown: Grown, now: Now, effects: &mut Vec<Effect>) {
        let cause = || guard_cause(of, Resource::Memory, Some(why.to_owned()));
        let applied = grown.outcome == Outcome::Applied;
        self.trouble = Some(now.wall);
        if applied && self.desired.is_overridden(&of.container, Resource::Memory) {
            // An operator has set the limit meanwhile.
            effects.push(Effect::MoveLeastLimit {
                uid: of.pod.uid.clone(),
                container: of.container.clone(),
                from: Some(to),
                to: None,
            });
            self.work.request_pass(cause(), true, now.instant);
        } else if applied {
            self.growth.refused.remove(&of.container);
            let limits = (grown.from.unwrap_or_default().get(), to.get());
            let given = TemporaryLimit::given(&of.container, Resource::Memory, limits, why.to_owned(), now.wall);
            self.desired.grow(&self.pod, given);
            self.restart(cause(), now);
        }
        let mut record = ChangeRecord::new(of.pod.clone(), cause(), grown.outcome);
        record.steps = grown.steps;
        (record.stages.write, record.stages.verified) = (grown.took, grown.took);
        self.record_guard(record, now, effects);
    }

    /// Ends the temporary limit of an `on-memory-pressure` hook, unless the limit has changed since.
    pub(super) fn end_evidence_limit(&mut self, name: &str, (before, lent): (u64, u64), now: Now) {
        let memory = Resource::Memory;
        let stands = |limit: &&TemporaryLimit| lent > before && limit.to == lent;
        let Some(limit) = self.desired.temporary_limit(name, memory).filter(stands) else {
            return;
        };
        if limit.from < before {
            // A part of the temporary limit is older than the hook.
            self.desired.lower_temporary(name, memory, before, now.wall);
        } else {
            self.desired.end_temporary(|limit| limit.is_of(name, memory));
        }
        self.restart(no_longer_needed(name, memory), now);
    }

    /// Ends, lowers or keeps a temporary memory limit after a quiet time.
    fn end_quiet_memory(&mut self, of: &Guarded, peak: Bytes, now: Now) {
        let (name, memory) = (of.container.as_str(), Resource::Memory);
        let base = limit_in(&self.desired.without_temporary(&self.pod), name, memory);
        let Some(limit) = self.desired.temporary_limit(name, memory) else {
            return;
        };
        match limit.after_quiet(base.unwrap_or(0), peak.get()) {
            AfterQuiet::Keep => return,
            AfterQuiet::Lower(to) => {
                // Whole mebibytes, like every temporary limit: the kernel holds them exactly, and people can read them.
                let to = to.next_multiple_of(1 << 20).min(limit.to);
                self.desired.lower_temporary(name, memory, to, now.wall);
            }
            AfterQuiet::End => drop(self.desired.end_temporary(|limit| limit.is_of(name, memory))),
        }
        self.restart(no_longer_needed(name, memory), now);
    }

    fn record_guard(&mut self, record: ChangeRecord, now: Now, effects: &mut Vec<Effect>) {
        if self.work.has_failed() {
            // The reason of a failed pass stays until another pass ends.
            self.record_beside(record, None, now, effects);
        } else {
            self.record(record, None, now, effects);
        }
    }

    /// Notes that the API server denied a patch: each temporary limit in it ends at a time, and its container gets none
    /// for a while. Returns a sentence for each limit of which that is news.
    pub(super) fn deny_temporary(&mut self, why: &str, now: Timestamp, quiet: SignedDuration) -> Vec<String> {
        let memory_ends = now.checked_add(quiet).unwrap_or(Timestamp::MAX);
        let mut sentences = Vec::new();
        for limit in self.desired.temporary.iter_mut().filter(|limit| limit.denied.is_none()) {
            let container = limit.container.clone();
            let spec = spec_limits(&self.pod, &container).unwrap_or_default();
            if spec.get(limit.resource) >= Some(limit.to) {
                continue;
            }
            let ends = match limit.resource {
                Resource::Memory => memory_ends,
                // The kernel never had this limit.
                Resource::Cpu => now,
            };
            limit.denied = Some(Denied {
                ends,
                why: why.to_owned(),
            });
            let times = self.growth.pauses.get(&container).map_or(0, |pause| pause.times);
            let pause = (FIRST_PAUSE * (1 << times.min(8))).min(LONGEST_PAUSE);
            let until = ends.checked_add(pause).unwrap_or(Timestamp::MAX);
            sentences.push(format!(
                "the {} lent to container {container} ends at {ends:.0}",
                limit.resource
            ));
            let pause = GrowthPause {
                until,
                times: times.saturating_add(1),
                limits: spec,
                denied: limit.to,
                why: format!("the API server denies a higher limit, and none is lent before {until:.0}: {why}"),
            };
            self.growth.pause(container, pause);
        }
        sentences
    }

    /// Clears the denial of every temporary limit in a patch that the API server accepted.
    pub(super) fn accept_temporary(&mut self, accepted: &AcceptedResize) {
        for limit in &mut self.desired.temporary {
            let asked = limit_in(&accepted.targets, &limit.container, limit.resource);
            if asked >= Some(limit.to) && limit.denied.take().is_some() {
                self.growth.pauses.remove(&limit.container);
                self.growth.refused.remove(&limit.container);
            }
        }
    }

    /// Ends denied temporary limits whose time is over.
    pub(super) fn end_denied(&mut self, now: Now) {
        let over = |limit: &TemporaryLimit| limit.denied.as_ref().is_some_and(|denied| denied.ends <= now.wall);
        for TemporaryLimit { container, denied, .. } in self.desired.end_temporary(over) {
            let why = denied.map(|denied| denied.why).unwrap_or_default();
            tracing::warn!(
                pod = self.pod.full_name(),
                container,
                why,
                "a temporary limit that is denied ends"
            );
            self.restart(Cause::TemporaryLimitDenied { container, why }, now);
        }
    }

    pub(super) fn denied_end(&self) -> Option<Timestamp> {
        let denied = self.desired.temporary.iter().filter_map(|limit| limit.denied.as_ref());
        denied.map(|denied| denied.ends).min()
    }

    /// Whether a container's limits may grow: not for a while after a denial, unless its spec has other limits since.
    fn may_grow(&self, container: &str, now: Timestamp) -> bool {
        let pause = self.growth.pauses.get(container);
        pause.is_none_or(|pause| pause.until <= now || spec_limits(&self.pod, container) != Some(pause.limits))
    }

    /// Whether one of these lowered limits was denied by the API server. A container that then reaches the limit of its
    /// spec is no reason to undo the shrink.
    pub(super) fn takes_back_denied(&self, lowered: &[Lowering], now: Timestamp) -> bool {
        lowered.iter().any(|lowering| {
            let Target::Container(name) = &lowering.target else {
                return false;
            };
            let pause = self.growth.pauses.get(name).filter(|_| !self.may_grow(name, now));
            pause.is_some_and(|pause| lowering.from <= MemoryLimit::Bytes(pause.denied))
        })
    }

    /// The limits that the guard watches. The guard never grows a limit that an operator has set. It watches a
    /// temporary limit until that ends, also where the limit may not grow further.
    pub(crate) fn guarded(&self, hooks: bool, now: Timestamp) -> Option<GuardedPod> {
        let live = self.live.clone()?;
        let targets = self
            .desired
            .targets(&self.pod)
            .unwrap_or_else(|| self.pod.requirements());
        let growable = Growable {
            pod: Arc::clone(&self.pod),
            targets,
        };
        let names = live.containers.keys();
        let terms = names.map(|name| self.terms(name, &growable, hooks, now));
        let containers: Vec<_> = terms
            .filter(|terms| terms.memory.is_some() || terms.cpu.is_some() || terms.evidence.is_some())
            .collect();
        (!containers.is_empty()).then_some(GuardedPod {
            live,
            growable,
            containers,
        })
    }

    fn terms(&self, name: &str, growable: &Growable, hooks: bool, now: Timestamp) -> Terms {
        let mut ceilings = self.decision.ceilings.iter();
        let ceiling = ceilings
            .find(|ceiling| ceiling.container == name)
            .filter(|_| self.may_grow(name, now));
        let temporary = |resource| self.desired.temporary_limit(name, resource).map(|limit| limit.to);
        let highest = |resource| {
            let decided = ceiling.and_then(|ceiling| ceiling.limits.get(resource));
            let free = !self.desired.is_overridden(name, resource);
            decided.or_else(|| temporary(resource)).filter(|_| free)
        };
        let limit = limit_in(&growable.targets, name, Resource::Cpu).map(MilliCpu::new);
        Terms {
            container: name.to_owned(),
            memory: highest(Resource::Memory).map(Bytes::new),
            cpu: limit.zip(highest(Resource::Cpu)).map(|(limit, highest)| CpuTerms {
                limit,
                ceiling: MilliCpu::new(highest),
                lent: temporary(Resource::Cpu).is_some(),
            }),
            evidence: self.evidence_of(name).filter(|_| hooks),
        }
    }

    /// The memory that the pod requests, for the guard's account of the node.
    pub(crate) fn claim(&self, kubelet: KubeletVersion) -> Option<Claim> {
        let live = self.live.as_ref()?;
        let targets = self.desired.without_temporary(&self.pod);
        let request = pod_requests(&self.pod, &targets, kubelet).memory.unwrap_or_default();
        (!request.is_zero()).then(|| Claim {
            uid: live.id.uid.clone(),
            path: live.path.clone(),
            request,
        })
    }
}
