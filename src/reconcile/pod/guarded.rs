//! The guard's reports on a pod, and the limits that the guard may grow. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Effects, LogLine, Now, PodState};
use crate::actuate::Growable;
use crate::guard::{CpuTerms, GuardEvent, Guarded, GuardedPod, Report, Terms};
use crate::model::{Bytes, Cause, ChangeRecord, MilliCpu, Outcome, Resource};
use crate::reconcile::desired::{Denied, TemporaryLimit};
use crate::reconcile::growth::{Denial, spec_limits};
use crate::reconcile::savings::Avoided;
use crate::resize::Accepted;

impl PodState {
    pub(super) fn take_guard_report(&mut self, Report { of, event }: Report, effects: &mut Effects) {
        let now = effects.now;
        let Guarded { pod, container } = of;
        let cause = |resource, why| Cause::Guard {
            container: container.clone(),
            resource,
            why,
        };
        match event {
            GuardEvent::Grew { used, to, why, grown } => {
                self.note_usage(&container, used, effects);
                let cause = cause(Resource::Memory, Some(why.clone()));
                if grown.outcome == Outcome::Applied {
                    let limits = (grown.from.unwrap_or_default().get(), to.get());
                    self.take_growth(container, limits, why, cause.clone(), now);
                }
                self.record_guard(grown.record(pod, cause), effects);
            }
            GuardEvent::Refused { why, .. } => {
                let reason = format!("container {container}: memory limit not grown: {why}");
                let refused = ChangeRecord::new(pod, cause(Resource::Memory, None), Outcome::Refused(reason));
                let limit = self.desired.without_temporary(&self.pod);
                let limit = limit.limit(&container, Resource::Memory);
                self.growth.refuse(container, why, limit);
                self.record_guard(refused, effects);
            }
            GuardEvent::Pressure { limit, lent } => {
                let limits = (limit.get(), lent.get());
                self.follow_hooks(|hooks, of| hooks.pressure(of, &container, limits), effects);
            }
            GuardEvent::Quiet { peak, .. } if self.hooks.is_leaving_evidence(&container) => {
                effects.push(Effect::Log(LogLine::EvidenceLeft(peak)));
            }
            GuardEvent::Quiet { peak, needed } => {
                self.note_usage(&container, peak, effects);
                self.end_quiet_memory(&container, needed, now);
            }
            // An operator has set the limit meanwhile.
            GuardEvent::Throttled { .. } if self.desired.is_overridden(&container, Resource::Cpu) => {}
            GuardEvent::Throttled { from, to, why } => {
                let cause = cause(Resource::Cpu, Some(why.clone()));
                self.grow(container, Resource::Cpu, (from.get(), to.get()), why, cause, now);
            }
            GuardEvent::Unthrottled => {
                if let Some(limit) = self.desired.temporary_limit(&container, Resource::Cpu) {
                    // It was raised because at least half of the periods were throttled.
                    let seconds = now.wall.duration_since(limit.since).as_secs_f64().max(0.0) / 2.0;
                    effects.push(Effect::Avoided(Avoided::ThrottledSeconds(seconds)));
                }
                self.lower_temporary(&container, Resource::Cpu, None, now);
            }
        }
    }

    /// Takes a memory limit that the guard has raised in the kernel.
    fn take_growth(&mut self, container: String, limits: (u64, u64), why: String, cause: Cause, now: Now) {
        if !self.desired.is_overridden(&container, Resource::Memory) {
            self.growth.succeed(&container);
            return self.grow(container, Resource::Memory, limits, why, cause, now);
        }
        // An operator has set the limit meanwhile. Without an override before, that one may still fail.
        if let Some(before) = self.work.before_override()
            && !before.is_overridden(&container, Resource::Memory)
        {
            let given = TemporaryLimit::given(container, Resource::Memory, limits, why, now.wall);
            before.grow(given);
        }
        self.work.request_pass(cause, true, now.instant);
    }

    /// Notes a container's memory use. Above the limit without the guard's temporary one, the kernel
    /// would have killed a process.
    fn note_usage(&mut self, container: &str, used: Bytes, effects: &mut Effects) {
        if self.desired.used(container, used.get()) {
            effects.push(Effect::Avoided(Avoided::Kill));
        }
    }

    /// Ends the temporary limit of an `on-memory-pressure` hook, unless the limit has changed since.
    pub(super) fn end_evidence_limit(&mut self, name: &str, (before, lent): (u64, u64), now: Now) {
        let limit = self.desired.temporary_limit(name, Resource::Memory);
        if let Some(limit) = limit.filter(|limit| lent > before && limit.to == lent) {
            // A part of the temporary limit may be older than the hook.
            let to = (limit.from < before).then_some(before);
            self.lower_temporary(name, Resource::Memory, to, now);
        }
    }

    /// Ends, lowers or keeps a temporary memory limit after a quiet time.
    fn end_quiet_memory(&mut self, name: &str, needed: Bytes, now: Now) {
        let base = self
            .desired
            .without_temporary(&self.pod)
            .limit(name, Resource::Memory)
            .unwrap_or(0);
        let Some(limit) = self.desired.temporary_limit(name, Resource::Memory) else {
            return;
        };
        if let Some(to) = limit.after_quiet(base, needed.get()) {
            // Whole mebibytes, like every temporary limit: the kernel holds them exactly, and people can read them.
            let to = (to > base).then(|| to.next_multiple_of(1 << 20).min(limit.to));
            self.lower_temporary(name, Resource::Memory, to, now);
        }
    }

    fn grow(&mut self, name: String, resource: Resource, limits: (u64, u64), why: String, cause: Cause, now: Now) {
        self.trouble = Some(now.wall);
        let given = TemporaryLimit::given(name, resource, limits, why, now.wall);
        self.desired.remember_origin(&self.pod, &self.resize);
        self.desired.grow(given);
        self.restart(cause, now);
    }

    /// Lowers a temporary limit that is not needed any more, at least not all of it. Without `to`, the limit ends.
    fn lower_temporary(&mut self, name: &str, resource: Resource, to: Option<u64>, now: Now) {
        self.desired.lower_temporary(name, resource, to, now.wall);
        let container = name.to_owned();
        self.restart(Cause::TemporaryLimitEnded { container, resource }, now);
    }

    fn record_guard(&mut self, record: ChangeRecord, effects: &mut Effects) {
        self.trouble = Some(effects.now.wall);
        // The reason of a failed pass stays until another pass ends.
        let is_latest = !self.work.has_failed();
        self.record(record, None, is_latest, effects);
    }

    /// Notes that the API server denied the prepared patch: each temporary limit in it ends at a time, and its container gets none
    /// for a while. The outcome of the pass gets a sentence for each limit of which that is news.
    pub(super) fn deny_temporary(&mut self, why: &str, now: Timestamp, quiet: SignedDuration, outcome: &mut Outcome) {
        let mut denied: BTreeMap<String, Denial> = BTreeMap::new();
        let asked = self.resize.prepared().map(|prepared| &prepared.targets);
        for limit in self.desired.temporary.iter_mut().filter(|limit| limit.denied.is_none()) {
            let (container, resource) = (limit.container.clone(), limit.resource);
            let limits = spec_limits(&self.pod, &container).unwrap_or_default();
            // The guard may have given the limit, or raised it, since the patch.
            let is_asked = asked.is_none_or(|asked| asked.limit(&container, resource) >= Some(limit.to));
            if limits.get(resource) >= Some(limit.to) || !is_asked {
                continue;
            }
            let ends = match resource {
                Resource::Memory => now.checked_add(quiet).unwrap_or(Timestamp::MAX),
                // The kernel never had this limit.
                Resource::Cpu => now,
            };
            let sentence = format!("the temporary {resource} limit of container {container} ends at {ends:.0}");
            outcome.add(&sentence);
            let why = why.to_owned();
            limit.denied = Some(Denied { ends, why });
            let memory = Some(limit.to).filter(|_| resource == Resource::Memory);
            let denial = Denial { limits, memory, ends };
            let of_container = denied.entry(container).or_insert(denial);
            of_container.memory = of_container.memory.or(memory);
            of_container.ends = of_container.ends.max(ends);
        }
        for (container, denial) in denied {
            self.growth.deny(container, denial, why);
        }
    }

    /// Clears the denial of every temporary limit in a patch that the API server accepted.
    pub(super) fn accept_temporary(&mut self, accepted: &Accepted) {
        for limit in &mut self.desired.temporary {
            let asked = accepted.targets.limit(&limit.container, limit.resource);
            if asked >= Some(limit.to) && limit.denied.take().is_some() {
                self.growth.accept(&limit.container);
            }
        }
    }

    /// Ends denied temporary limits whose time is over.
    pub(super) fn end_denied(&mut self, effects: &mut Effects) {
        let now = effects.now;
        let over = |limit: &TemporaryLimit| limit.denied.as_ref().is_some_and(|denied| denied.ends <= now.wall);
        for TemporaryLimit { container, denied, .. } in self.desired.end_temporary(over) {
            let why = denied.map(|denied| denied.why).unwrap_or_default();
            effects.push(Effect::Log(LogLine::Denied {
                container: container.clone(),
                why: why.clone(),
            }));
            self.restart(Cause::TemporaryLimitDenied { container, why }, now);
        }
    }

    /// Ends the temporary limits of containers that do not start again: the guard watches containers that run, and sees no quiet time
    /// of others.
    pub(super) fn end_limits_of_completed(&mut self, now: Now) {
        let pod = Arc::clone(&self.pod);
        let has_completed = |limit: &TemporaryLimit| pod.has_completed(&limit.container);
        for TemporaryLimit {
            container, resource, ..
        } in self.desired.end_temporary(has_completed)
        {
            self.restart(Cause::TemporaryLimitEnded { container, resource }, now);
        }
    }

    /// The limits that the guard watches. The guard never grows a limit that an operator has set. It watches a
    /// temporary limit until that ends, also where the limit may not grow further.
    pub(crate) fn guarded(&self, hooks: bool, now: Timestamp) -> Option<GuardedPod> {
        let live = self.live.clone()?;
        let growable = Growable {
            pod: Arc::clone(&self.pod),
            targets: self.desired.targets_or_spec(&self.pod),
        };
        let names = live.containers.keys();
        let mut containers: Vec<_> = names.map(|name| self.terms(name, &growable, hooks, now)).collect();
        containers.retain(|terms| terms.memory.is_some() || terms.cpu.is_some() || terms.evidence.is_some());
        (!containers.is_empty()).then_some(GuardedPod {
            live,
            growable,
            containers,
        })
    }

    fn terms(&self, name: &str, growable: &Growable, hooks: bool, now: Timestamp) -> Terms {
        let ceiling = self.decision.ceilings.iter().find(|ceiling| ceiling.container == name);
        let ceiling = ceiling.filter(|_| self.growth.is_allowed(&self.pod, name, now));
        let temporary = |resource| self.desired.temporary_limit(name, resource).map(|limit| limit.to);
        let highest = |resource| {
            let decided = ceiling.and_then(|ceiling| ceiling.limits.get(resource));
            let free = !self.desired.is_overridden(name, resource);
            decided.or_else(|| temporary(resource)).filter(|_| free)
        };
        let limit = growable.targets.limit(name, Resource::Cpu).map(MilliCpu::new);
        Terms {
            container: name.to_owned(),
            memory: highest(Resource::Memory).map(Bytes::new),
            cpu: limit.zip(highest(Resource::Cpu)).map(|(limit, highest)| CpuTerms {
                limit,
                ceiling: MilliCpu::new(highest),
                lent: temporary(Resource::Cpu).is_some(),
            }),
            evidence: self.hooks.evidence_of(&self.pod, name).filter(|_| hooks),
        }
    }
}
