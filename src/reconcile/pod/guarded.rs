//! The guard's reports on a pod, and the limits that the guard may grow. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Effect, Effects, LogLine, Now, PodState};
use crate::actuate::Growable;
use crate::guard::{CpuTerms, GuardEvent, Guarded, GuardedPod, Report, Terms};
use crate::model::{Bytes, Cause, ChangeRecord, MilliCpu, Outcome, Resource};
use crate::reconcile::desired::TemporaryLimit;

/// Why a temporary limit may not grow where no decision says how far.
const UNDECIDED: &str = "it has a temporary limit, and no VPA lets its limit grow further now";

impl PodState {
    pub(super) fn take_guard_report(&mut self, Report { of, event }: Report, effects: &mut Effects) {
        let now = effects.now;
        let Guarded { pod, container } = of;
        let record = match event {
            GuardEvent::Grew {
                used,
                to,
                why,
                for_pod,
                grown,
            } => {
                let avoided = self.desired.used(&container, used.get());
                effects.list.extend(avoided.map(Effect::Avoided));
                let limits = (grown.from.unwrap_or_default().get(), to.get());
                let given = TemporaryLimit::given(container.to_string(), Resource::Memory, limits, why, now.wall);
                let cause = given.cause();
                if grown.outcome == Outcome::Applied {
                    self.grow(TemporaryLimit { for_pod, ..given }, now);
                }
                grown.record(pod, cause)
            }
            GuardEvent::Refused { why, .. } => {
                let reason = format!("container {container}: memory limit not raised: {why}");
                let without = self.desired.without_temporary(&self.pod);
                self.growth.refuse(&self.pod, &container, why, &without, now.wall);
                let cause = Cause::Guard {
                    container: container.to_string(),
                    resource: Resource::Memory,
                    why: None,
                };
                ChangeRecord::new(pod, cause, Outcome::Refused(reason))
            }
            unrecorded => return self.take_unrecorded_report(&container, unrecorded, effects),
        };
        self.trouble = Some(now.wall);
        // The reason of a failed pass stays until another pass ends.
        let is_latest = !self.work.has_failed();
        self.record(record, None, is_latest, effects);
    }

    /// Takes a report of which the passes that follow keep the record.
    fn take_unrecorded_report(&mut self, container: &str, event: GuardEvent, effects: &mut Effects) {
        let now = effects.now;
        match event {
            GuardEvent::Grew { .. } | GuardEvent::Refused { .. } => {}
            GuardEvent::Pressure { limit, lent } => {
                let limits = (limit.get(), lent.get());
                self.follow_hooks(|hooks, of| hooks.pressure(of, container, limits), effects);
            }
            GuardEvent::Quiet { peak, .. } if self.hooks.is_leaving_evidence(container) => {
                effects.push(Effect::Log(LogLine::EvidenceLeft(peak)));
            }
            GuardEvent::Quiet { peak, needed } => {
                let avoided = self.desired.used(container, peak.get());
                effects.list.extend(avoided.map(Effect::Avoided));
                if let Some(cause) = self.desired.lower_quiet(&self.pod, container, needed, now.wall) {
                    self.restart(cause, now);
                }
            }
            // An operator has set the limit meanwhile.
            GuardEvent::Throttled { .. } if self.desired.is_overridden(container, Resource::Cpu) => {}
            GuardEvent::Throttled { from, to, why } => {
                let (resource, limits) = (Resource::Cpu, (from.get(), to.get()));
                let given = TemporaryLimit::given(container.to_owned(), resource, limits, why, now.wall);
                self.grow(given, now);
            }
            GuardEvent::Unthrottled => {
                // None if an operator has set the limit meanwhile.
                let is_over = |limit: &TemporaryLimit| limit.is_of(container, Resource::Cpu);
                for limit in self.desired.end_temporary(is_over) {
                    effects.push(Effect::Avoided(limit.avoided_throttling(now.wall)));
                    self.restart(limit.ended(), now);
                }
            }
        }
    }

    /// Takes a limit that the guard has raised: a memory limit in the kernel, a cpu limit not yet.
    fn grow(&mut self, given: TemporaryLimit, now: Now) {
        let cause = given.cause();
        if self.desired.is_overridden(&given.container, given.resource) {
            // An operator has set the limit meanwhile. Without an override before, that one may still fail.
            if let Some(before) = self.work.before_override()
                && !before.is_overridden(&given.container, given.resource)
            {
                before.grow(given);
            }
            return self.work.request_pass(cause, true, now.instant);
        }
        if given.resource == Resource::Memory {
            self.growth.succeed(&given.container);
        }
        self.trouble = Some(now.wall);
        self.desired.remember_origin(&self.pod, &self.resize);
        self.desired.grow(given);
        self.restart(cause, now);
    }
}

/// The limits of a pod that the guard watches. The guard never grows a limit that an operator has set. It watches a
/// temporary limit until that ends, also where the limit may not grow further.
pub(crate) fn watched_limits(state: &PodState, hooks: bool, now: Timestamp) -> Option<GuardedPod> {
    let live = state.live.clone()?;
    let growable = Growable {
        pod: Arc::clone(&state.pod),
        targets: state.desired.targets_or_spec(&state.pod),
    };
    let names = live.containers.keys();
    let mut containers: Vec<_> = names.map(|name| terms(state, name, &growable, hooks, now)).collect();
    containers.retain(|terms| terms.memory.is_some() || terms.cpu.is_some() || terms.evidence.is_some());
    (!containers.is_empty()).then_some(GuardedPod {
        live,
        growable,
        containers,
    })
}

fn terms(state: &PodState, name: &str, growable: &Growable, hooks: bool, now: Timestamp) -> Terms {
    let ceiling = state.decision.ceilings.iter().find(|ceiling| ceiling.container == name);
    let denial = state.growth.denial(&state.pod, name, now);
    let ceiling = ceiling.filter(|_| denial.is_none());
    let given = |resource| state.desired.temporary_limit(name, resource);
    let temporary = |resource| given(resource).map(|limit| limit.to);
    let decided = |resource| ceiling.and_then(|ceiling| ceiling.limits.get(resource));
    let highest = |resource| {
        let free = !state.desired.is_overridden(name, resource);
        decided(resource).or_else(|| temporary(resource)).filter(|_| free)
    };
    let memory = highest(Resource::Memory).map(Bytes::new);
    let not_higher = memory.filter(|_| decided(Resource::Memory).is_none());
    let not_higher = not_higher.map(|_| denial.map_or(UNDECIDED, String::as_str).to_owned());
    let limit = growable.targets.limit(name, Resource::Cpu).map(MilliCpu::new);
    Terms {
        container: name.into(),
        memory,
        not_higher,
        for_pod: given(Resource::Memory).is_some_and(|limit| limit.for_pod),
        cpu: limit.zip(highest(Resource::Cpu)).map(|(limit, highest)| CpuTerms {
            limit,
            ceiling: MilliCpu::new(highest),
            lent: temporary(Resource::Cpu).is_some(),
        }),
        evidence: state.hooks.evidence_of(&state.pod, name).filter(|_| hooks),
    }
}
