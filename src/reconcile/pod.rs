//! The state of one pod and how it changes: `PodState × PodInput → PodState + Vec<Effect>`.
//!
//! [`PodState`] holds every fact about a pod, and only [`PodState::apply`] changes a pod's state. Each part of the state changes
//! itself and returns what follows; `PodState` supplies what a part needs of the others, and carries out what follows for them.
//! `apply` compares the state before with the state after, and derives the effects of every change: save the state, update the
//! guard, move the least limits, watch lower limits, close files. No transition can forget these effects. No I/O and no clock:
//! time is an argument.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::desired::{DesiredState, TemporaryLimit};
use super::drift::Drift;
use super::growth::Growth;
use super::hooks::{HookEffect, HookedPod, Hooks};
use super::no_room::NoRoomFor;
use super::shrink::{ShrinkEnd, ShrinkState};
use super::store::{SavedPod, SavedTargets};
use super::work::WorkItem;
use crate::decide::PodDecision;
use crate::model::objects::{Pod, PodId};
use crate::model::{Cause, ChangeRecord, LivePod, Target};
use crate::plan::lift_kept;
use crate::plan::shrink::Holds;
use crate::resize::Resize;

mod clock;
mod derived;
mod described;
pub(crate) mod explained;
mod guarded;
mod located;
mod messages;
mod operator;
mod passes;
mod pods;

pub(crate) use super::metrics::PodStatus;
pub(crate) use guarded::watched_limits;
pub(crate) use located::Located;
pub(crate) use messages::{Check, Effect, LogLine, NodeEvent, PodInput};
pub(crate) use operator::{ended_early, not_running};
pub(crate) use passes::{facts, next_pass, pod_targets};
pub(crate) use pods::Pods;

/// One moment, on the wall clock and on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) instant: Instant,
    /// From 0 to 1, another one at each moment: agents whose passes fail together do not retry together.
    pub(crate) fraction: f64,
}

/// One pod of the node.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodState {
    /// The object as its source describes it.
    pub(crate) pod: Arc<Pod>,
    pub(crate) decision: PodDecision,
    /// The recommendation that the node has no room for, or that a quota does not allow.
    pub(crate) no_room: Option<NoRoomFor>,
    /// The VPA annotation that could not be parsed, as the history has it.
    unreadable: Option<String>,
    pub(crate) desired: DesiredState,
    pub(crate) resize: Resize,
    /// The cgroups and containers of the pod, if it runs here.
    pub(crate) live: Option<Arc<LivePod>>,
    /// The running pod that the object described last. The agent saves the desired state under this identity: an object
    /// can claim any UID, and a manifest without a UID describes any pod of its name.
    pub(crate) identity: Option<PodId>,
    pub(crate) drift: Drift,
    pub(crate) shrink: ShrinkState,
    growth: Growth,
    hooks: Hooks,
    /// When a limit was last too low for the pod.
    pub(crate) trouble: Option<Timestamp>,
    pub(crate) work: WorkItem,
}

/// The moment of a transition, and its effects so far.
#[derive(Debug)]
struct Effects {
    now: Now,
    list: Vec<Effect>,
}

impl Effects {
    fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }
}

impl PodState {
    /// The state of a pod that no input has reached yet.
    pub(crate) fn new(pod: Arc<Pod>, decision: PodDecision) -> Self {
        Self {
            pod,
            decision,
            ..Self::default()
        }
    }

    /// Changes the state, and returns the effects in order. Effects that update copies of the state come first: a later
    /// effect can be an input of its own ([`Effect::AdmitRequest`]).
    pub(crate) fn apply(&mut self, input: PodInput, now: Now) -> Vec<Effect> {
        let before = self.clone();
        let mut others = Effects { now, list: Vec::new() };
        self.take(input, &mut others);
        let is_over = !self.desired.has_amounts() && self.live.is_some() && self.work.running().is_none();
        // Once no amounts are desired, the pod goes back to its spec without the requests that the kubelet has not allocated.
        if is_over && let Some(own) = self.resize.without_requests(&self.pod) {
            self.desired.return_to(own);
            self.restart(Cause::Withdrawn, now);
        }
        let mut effects = derived::effects(&before, self);
        effects.append(&mut others.list);
        effects
    }

    /// Hands an input to the parts of the state that it concerns.
    fn take(&mut self, input: PodInput, effects: &mut Effects) {
        let now = effects.now;
        match input {
            PodInput::Described(pod) => self.describe(pod, effects),
            PodInput::Removed => {
                if !self.desired.is_empty() {
                    effects.push(Effect::Log(LogLine::Removed));
                }
                self.stop_running(&ended_early(), effects);
                // The pod keeps its values.
                *self = Self::new(Arc::clone(&self.pod), PodDecision::undecided(&self.pod));
            }
            PodInput::Decided { decision, took } => {
                // A recommendation whose VPA has gone waits for no room.
                let lost_vpa = self.decision.vpa.is_some() && decision.vpa.is_none();
                self.no_room.take_if(|_| lost_vpa);
                self.decision = *decision;
                self.work.note_decided(took);
                self.record_unreadable(effects);
                // A pause may be over.
                let pauses = !self.growth.saved().is_empty();
                effects.list.extend(pauses.then_some(Effect::WatchGuard));
            }
            PodInput::Followed { refused, cause, delay } => self.follow(refused, (cause, delay), effects),
            PodInput::StillNoRoom(cause) => self.record_no_room(cause, effects),
            PodInput::Located(located) => self.locate(*located, effects),
            PodInput::PodLevelRead { low, repair } => self.take_pod_level(low, repair, effects),
            PodInput::PodLevelRaised { uid, raised } => self.take_raised_pod_level(&uid, *raised, effects),
            PodInput::TimePassed => self.time_passed(effects),
            PodInput::Requested { id, request } => effects.list.extend(self.work.enqueue(id, request)),
            PodInput::Admitted { id, request, capacity } => self.admit(id, request, &capacity, effects),
            PodInput::RequestsRefused(why) => {
                self.stop_running(&why, effects);
                self.restart(Cause::Retry, now);
            }
            PodInput::ClockSet(by) => self.move_dates(by),
            PodInput::Check(check) => self.check(check, now),
            PodInput::OnNode(event) => self.take_event(event, effects),
        }
    }

    /// Makes a pass due that compares the pod's values with the desired ones, where that may help.
    fn check(&mut self, check: Check, now: Now) {
        let is_managed = !self.desired.is_empty();
        let (helps, cause) = match check {
            Check::FilesWritten => (self.is_enforced(), Cause::Drift),
            Check::Swept => (self.is_enforced(), Cause::Sweep),
            Check::RuntimeReturned => (self.drift.owes_runtime(), Cause::Retry),
            Check::NodeChanged => (is_managed, Cause::Sweep),
            Check::RoomFreed => (self.resize.has_no_room(), Cause::Retry),
            Check::ResizeRetried => (is_managed && self.pod.resizes_in_place(), Cause::Retry),
            Check::ApiServerReturned => (self.resize.waits_for_api_server(), Cause::ApiServerReturned),
        };
        match check {
            _ if !helps => {}
            Check::FilesWritten => self.work.request_pass(cause, false, now.instant),
            Check::Swept => self.work.request_pass(cause, self.drift.owes_runtime(), now.instant),
            Check::RuntimeReturned => {
                self.work.reset_retries();
                self.work.request_pass(cause, true, now.instant);
            }
            Check::NodeChanged => self.restart(cause, now),
            Check::ResizeRetried => self.work.request_pass(cause, true, now.instant),
            // Any pod that changes may have freed room, and the pass's own call may be what finds the API server away, all the time.
            Check::RoomFreed | Check::ApiServerReturned => {
                self.work.request_pass_after(cause, Duration::ZERO, now.instant);
            }
        }
    }

    fn take_event(&mut self, event: NodeEvent, effects: &mut Effects) {
        let now = effects.now;
        match event {
            NodeEvent::Guard(report) => self.take_guard_report(*report, effects),
            NodeEvent::PassDue(is_allowed) => {
                let cause = self.work.pending().map(|pending| pending.cause.clone());
                let mut targets = self.desired.targets(&self.pod).unwrap_or_default();
                lift_kept(&self.shrink.holds(now.wall), &mut targets);
                let due =
                    |hooks: &mut Hooks, of: HookedPod<'_>| hooks.pass_due(of, is_allowed, cause.as_ref(), &targets);
                self.follow_hooks(due, effects);
            }
            NodeEvent::HookEnded { run, end } => self.follow_hooks(|hooks, of| hooks.ended(of, &run, end), effects),
            NodeEvent::PassBegan { number, resize } => self.begin_pass(number, *resize, effects),
            NodeEvent::PassEnded { pass, done, quiet } => self.end_pass(pass, *done, quiet, effects),
            NodeEvent::ShrinkWatchEnded { number, verdict } => {
                let ended = self.shrink.watch_ended(number, verdict, now.wall);
                self.follow_shrink(ended, effects);
            }
            NodeEvent::Killed { target, at, lowered } => {
                self.trouble = self.trouble.max(Some(at));
                if lowered {
                    let ended = self.shrink.killed(&target, now.wall);
                    self.follow_shrink(ended, effects);
                }
            }
            NodeEvent::TurnGiven => {
                self.shrink.begin_turn(now.wall);
                if self.work.running().is_some() || self.work.pending().is_none() {
                    self.restart(Cause::Retry, now);
                }
            }
        }
    }

    fn time_passed(&mut self, effects: &mut Effects) {
        let now = effects.now;
        // The failed pass may have been of an override that its failure ended.
        if self.work.take_due(now.instant) && !self.desired.is_empty() {
            let waits = self.resize.waits_for_api_server();
            let cause = if waits { Cause::ApiServerReturned } else { Cause::Retry };
            self.work.request_pass(cause, true, now.instant);
        }
        if self.desired.override_ends_at().is_some_and(|at| at <= now.wall) {
            self.desired.end_override();
            self.restart(Cause::OverrideEnded, now);
        }
        let is_over = |limit: &TemporaryLimit| limit.denied.as_ref().is_some_and(|denied| denied.ends <= now.wall);
        for limit in self.desired.end_temporary(is_over) {
            self.restart(limit.cause_of_denial(), now);
            effects.push(Effect::Log(LogLine::Denied(limit)));
        }
        self.hooks.time_passed(now.wall);
        if self.decision.take_due(now.wall) {
            effects.push(Effect::Decide);
        }
        if self.shrink.take_due(now.wall) {
            self.restart(Cause::Retry, now);
        }
    }

    /// When the next input from the clock is due, on the monotonic clock and on the wall clock.
    pub(crate) fn wakes_at(&self) -> (Option<Instant>, Option<Timestamp>) {
        let dated = [
            self.desired.next_end(),
            self.shrink.wakes_at(),
            self.decision.next_change(),
            self.hooks.wakes_at(),
        ];
        (self.work.wakes_at(), dated.into_iter().flatten().min())
    }

    /// Makes a pass due after a change of what the pod should have or where it runs.
    /// Resets what earlier passes recorded.
    fn restart(&mut self, cause: Cause, now: Now) {
        self.start_over();
        self.work.request_pass(cause, true, now.instant);
    }

    fn start_over(&mut self) {
        self.drift.start_over();
        self.resize.start_over();
        self.work.start_over();
    }

    /// Whether a pass compares the pod's values with the desired ones whenever they may have changed. Not while a
    /// failed pass waits for its retry: what that pass wrote and undid looks like a change, and would start the next
    /// pass at once. A pod that only waits for the API server holds its desired values meanwhile.
    pub(crate) fn is_enforced(&self) -> bool {
        let holds = self.drift.owes_runtime() || self.drift.is_in_sync();
        !self.desired.is_empty() && (self.work.retry_at.is_none() || holds)
    }

    /// Whether no pass is necessary until another input arrives.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_enforced() || self.drift.is_settled() && self.resize.is_clear()
    }

    /// Undoes a shrink that ended in trouble.
    fn follow_shrink(&mut self, ended: Option<ShrinkEnd>, effects: &mut Effects) {
        let Some(ended) = ended else { return };
        if let Err(why) = &ended {
            self.trouble = Some(effects.now.wall);
            if !self.desired.has_amounts() {
                // The pod had completed the way back to its spec.
                self.desired.remember_origin(&self.pod, &self.resize);
                self.desired.begin_return_unless_desired();
            }
            self.restart(Cause::FailedShrink { why: why.clone() }, effects.now);
        }
        effects.push(Effect::ShrinkEnded(ended));
    }

    /// Applies a transition of the hooks, and its effects in order.
    fn follow_hooks(
        &mut self,
        transition: impl FnOnce(&mut Hooks, HookedPod<'_>) -> Vec<HookEffect>,
        effects: &mut Effects,
    ) {
        let now = effects.now;
        let of = HookedPod {
            pod: &self.pod,
            live: self.live.as_deref(),
            now,
        };
        let followed = transition(&mut self.hooks, of);
        for effect in followed {
            match effect {
                HookEffect::Run(run) => effects.push(Effect::RunHook(run)),
                HookEffect::Record { cause, outcome } => {
                    if let Some(live) = &self.live {
                        let record = ChangeRecord::new(live.id.clone(), cause, outcome);
                        self.record(record, None, false, effects);
                    }
                }
                HookEffect::EndTemporaryLimit { container, limits } => {
                    if let Some(cause) = self.desired.lower_unused(&container, limits, now.wall) {
                        self.restart(cause, now);
                    }
                }
                HookEffect::Shrink { container, cause } => {
                    self.restart(cause, now);
                    self.shrink.forget_seen(&[Target::Container(container), Target::Pod]);
                }
            }
        }
    }

    /// The limits that are kept although lower ones are desired.
    pub(crate) fn holds(&self, now: Timestamp) -> Holds {
        self.hooks.holds(self.shrink.holds(now))
    }

    /// When the pod was last in trouble: a container ended, memory or cpu was not enough, or a shrink was undone.
    pub(crate) fn in_trouble(&self) -> Option<Timestamp> {
        let ended = self.pod.terminations().filter_map(|end| end.finished_at);
        ended.chain(self.trouble).max()
    }

    /// The part of the state that survives a restart, if there is one. [`Self::restore`] is the inverse.
    pub(crate) fn saved(&self) -> Option<SavedPod> {
        let (pauses, evidence_at) = (self.growth.saved(), self.hooks.saved());
        let canary = &self.decision.canary;
        let waits = canary.waits.clone().filter(|_| !canary.is_observed);
        let state = SavedTargets::of(&self.desired, &self.resize, &self.pod);
        let is_saved = waits.is_some() || !state.desired.is_empty() || !pauses.is_empty() || !evidence_at.is_empty();
        Some(SavedPod {
            pod: self.identity.clone().filter(|_| is_saved)?,
            described: Some(Arc::clone(&self.pod)),
            state,
            failed_shrinks: self.shrink.saved(),
            pauses: pauses.clone(),
            evidence_at: evidence_at.clone(),
            waits,
        })
    }
}

// The types inside of messages, for the tests below.
#[cfg(test)]
use {
    super::capacity::NodeCapacity,
    super::savings::Avoided,
    super::work::{OperatorRequest, RequestId},
    crate::actuate::shrink::{Lowering, Verdict},
    crate::actuate::{ForeignWriters, Grown, HookRun, Job, JobDone},
    crate::guard::Report,
    crate::model::{Bytes, HookEnd, PodAmounts, Reason, Resource, Withheld},
    crate::plan::LowPodLevel,
    crate::resize::Act,
    jiff::SignedDuration,
    std::collections::BTreeMap,
};

#[cfg(test)]
mod input_tests;
#[cfg(test)]
mod result_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
