//! The start of a pass, and the changes of state at its end. Pure.

use std::mem;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Effects, LogLine, Now, PodState};
use crate::actuate::{Job, JobDone, PodHandles};
use crate::model::{BoundPod, Cause, ChangeRecord, LivePod, Outcome, PodAmounts};
use crate::plan::{PodTargets, lift_kept};
use crate::reconcile::work::{Before, FIRST_RETRY, PendingRequest, RequestId};
use crate::resize::{Act, Facts, Report};

/// The cause and the targets of the pod's next pass, if one is due and the pod runs here.
pub(crate) fn next_pass(state: &PodState, now: Now) -> Option<(&Cause, PodAmounts)> {
    let pending = state.work.pending().filter(|_| state.work.is_due(now.instant))?;
    BoundPod::new(&state.pod, state.live.as_ref()?)?;
    Some((&pending.cause, state.targets(now.wall).unwrap_or_default()))
}

/// The facts about the resize of a pass with this cause, as far as the pod's state has them. It is too early to patch while a temporary
/// limit may grow further in a moment, and an undone shrink is written to the cgroups first.
pub(crate) fn facts(state: &PodState, cause: &Cause, now: Now) -> Facts {
    let calm = state.desired.may_grow_for(now.wall);
    let grown = state.desired.memory_limits().map(|(name, limit)| (name, limit.get()));
    let holds = state.holds(now.wall);
    let kept = holds.iter();
    let kept = kept.filter_map(|(target, limit)| Some((target.container()?, limit.bounded()?.get())));
    let about_to_lower = state.resize.is_about_to_lower(&state.pod, grown.chain(kept));
    let mut by_hand = state.desired.targets_by_hand(&state.pod, &state.resize);
    if let Some(targets) = &mut by_hand {
        state.shrink.lift_kept(&state.pod, &holds, targets);
    }
    let too_early = match cause {
        Cause::FailedShrink { .. } if about_to_lower => Some(Duration::ZERO),
        Cause::FailedShrink { .. } => Some(FIRST_RETRY),
        _ => state.resize.too_early(calm, about_to_lower, now.instant),
    };
    Facts {
        too_early,
        by_hand,
        ..Facts::default()
    }
}

/// The targets of a pass over the pod, if anything is desired and the pod runs here.
pub(crate) fn pod_targets(state: &PodState, now: Timestamp, through_api: bool) -> Option<PodTargets> {
    let bound = BoundPod::new(&state.pod, state.live.as_ref()?)?;
    if state.desired.is_empty() {
        return None;
    }
    let (spec, mut scope) = (state.pod.requirements(), state.desired.scope.clone());
    let amounts = state.targets(now);
    match &amounts {
        Some(amounts) => scope.widen(&spec, amounts),
        // A burst alone.
        None => scope.resources.clear(),
    }
    Some(PodTargets {
        bound,
        amounts: amounts.unwrap_or(spec),
        burst: state.desired.burst,
        lift_undeclared: state.desired.returning,
        kubelet_unasked: !through_api,
        scope,
        holds: state.holds(now),
    })
}

impl PodState {
    pub(super) fn begin_pass(&mut self, number: u64, resize: Act, effects: &mut Effects) {
        let now = effects.now;
        let through_api = resize != Act::Direct;
        if self.desired.is_empty() {
            // What made the pass due is not wanted any more.
            self.work.cancel();
            return;
        }
        let recommended = self.desired.recommended.as_ref();
        let recommended = recommended.map(|recommended| recommended.targets.clone());
        let targets = pod_targets(self, now.wall, through_api);
        let begun = targets.and_then(|targets| Some((targets, self.work.begin(number, recommended, now.instant)?)));
        let Some((targets, pending)) = begun else { return };
        if self.desired.has_amounts() {
            self.desired.scope = targets.scope.clone();
        }
        let is_new = !targets.amounts.same(&self.pod.requirements());
        // On the way back, too, a limit that waits for its turn may get into the spec.
        if through_api && self.desired.is_by_hand() {
            self.desired.remember_origin(&self.pod, &self.resize);
        }
        self.resize.begins(&self.pod, &resize, is_new);
        let job = Box::new(Job {
            resize,
            accepted_generation: self.resize.accepted().map(|accepted| accepted.generation),
            asked: pending.since,
            decided_in: self.work.decided_in(&pending.cause),
            held_before: self.drift.is_in_sync(),
            foreign: self.drift.writers().clone(),
            // Every pass retries an update of the runtime that failed.
            check_runtime: pending.check_runtime || self.drift.owes_runtime(),
            seen: self.shrink.seen().clone(),
            watched: self.shrink.watch().unwrap_or_default().1,
            ..Job::new(targets, pending.cause)
        });
        effects.push(Effect::RunPass { pass: number, job });
    }

    /// Applies the result of a pass. Only records the steps of a stale pass: another pod has the name, or the pod ended. If
    /// the desired state has changed meanwhile, applies only the changes that the pass made.
    pub(super) fn end_pass(&mut self, number: u64, mut done: JobDone, quiet: SignedDuration, effects: &mut Effects) {
        let running = self.work.end(number);
        let live = self.live.clone().filter(|live| live.id.uid == done.record.pod.uid);
        let Some((mut running, live)) = running.zip(live) else {
            return effects.push(Effect::Record {
                is_news: !done.record.steps.is_empty(),
                record: Box::new(done.record),
                answers: None,
            });
        };
        self.take_changes(&mut done, &live, quiet, effects);
        self.shrink.pass_ended(done.shrink, number);
        let was_current = self.work.is_current(&running);
        let (mut record, api) = (done.record, done.api);
        let has_targets = record.outcome.holds() && api.retry_after.is_none();
        // A pass in an emergency leaves it to the next one to bring the recommendation into force.
        if has_targets || record.outcome.is_kept() && api.accepted().is_some() {
            self.desired.bring_into_force(running.recommended.take(), was_current);
        }
        self.yield_to_spec(api.denied().filter(|_| was_current), effects);
        record.in_flight = record.outcome.holds() && self.resize.is_in_flight(&self.pod);
        // What the pass came to may have changed the targets.
        let is_current = self.work.is_current(&running);
        self.drift.ended(&record.outcome, done.foreign, is_current);
        if is_current {
            self.conclude(record, &api, done.handles, effects);
        } else {
            // A pass with the new generation is due.
            self.record(record, None, true, effects);
        }
    }

    /// Takes the changes that a pass has made, whatever is desired by now.
    fn take_changes(&mut self, done: &mut JobDone, live: &LivePod, quiet: SignedDuration, effects: &mut Effects) {
        let now = effects.now;
        let is_resizing = self.resize.withheld().is_none() && self.resize.is_in_flight(&self.pod);
        done.record.cause = self.drift.cause_of(&done.record, !done.flipped.is_empty(), is_resizing);
        let avoided = self.desired.note_resized(&done.record, live);
        effects.list.extend(avoided.map(Effect::Avoided));
        self.desired.scope.quotas.update(mem::take(&mut done.quotas), live);
        let bursts = mem::take(&mut done.bursts);
        self.desired.note_bursts(&self.pod, live, bursts, now.wall);
        let asked = self.resize.prepared().map(|prepared| &prepared.targets);
        self.growth
            .pass_ended(&self.pod, &mut self.desired, asked, done, (now.wall, quiet));
        let (outcome, by_hand) = (&done.record.outcome, self.desired.is_by_hand());
        self.resize
            .answered(&self.pod, &done.api, outcome, by_hand, now.instant);
    }

    /// Takes what a pass came to whose targets are the present ones.
    fn conclude(&mut self, record: ChangeRecord, api: &Report, handles: Option<PodHandles>, effects: &mut Effects) {
        let now = effects.now;
        if self.drift.is_in_sync() && !self.hooks.is_announcing() {
            self.shrink.end_turn_unless_watched();
        }
        if record.outcome.holds() {
            let mut targets = self.desired.targets_or_spec(&self.pod);
            lift_kept(&self.holds(now.wall), &mut targets);
            self.follow_hooks(|hooks, of| hooks.pass_ended(of, &targets), effects);
        }
        effects.push(Effect::WatchFiles(handles));
        let answers = self.schedule_next(&record, api, effects);
        let outcome = record.outcome.clone();
        self.record(record, answers, true, effects);
        // A refused override waits for no room.
        self.resize.ended(outcome, api.no_room && self.work.has_failed());
        effects.list.extend(self.work.admit_next());
    }

    /// Schedules the next pass; returns the request that the ended pass answers. An override whose values the kernel does not hold is
    /// taken back.
    fn schedule_next(&mut self, record: &ChangeRecord, api: &Report, effects: &mut Effects) -> Option<RequestId> {
        let (outcome, now) = (&record.outcome, effects.now);
        let failed = self.work.ended(outcome, api, now);
        let is_verified = matches!(outcome, Outcome::Applied | Outcome::Unchanged) && !api.unread;
        let is_kept = self.shrink.wakes_at().is_some() || !self.holds(now.wall).is_empty();
        // Where a pass is due, the pod's object may have changed since this one began.
        if is_verified && !is_kept && self.resize.is_known_in(&self.pod) && self.work.pending().is_none() {
            self.desired.end_return(&mut self.resize);
        }
        if let Some(retry_in) = failed.filter(|_| self.resize.is_news(record)) {
            let outcome = outcome.clone();
            effects.push(Effect::Log(LogLine::PassFailed { outcome, retry_in }));
        }
        if matches!(outcome, Outcome::Interrupted(_)) {
            // The pass that follows answers the operator.
            return None;
        }
        let PendingRequest { id, before } = self.work.take_request()?;
        if let (false, Some(before @ Before::Override(_))) = (outcome.is_kept(), before) {
            self.restore_before(before, now);
            self.start_over();
            if let Outcome::Incomplete(_) = outcome {
                // A part of the override is still in the cgroups.
                self.desired.begin_return_unless_desired();
            }
            self.work.retry_at = Some(now.instant + FIRST_RETRY);
        }
        Some(id)
    }

    /// Records why the agent did nothing, if the pod runs.
    pub(super) fn record_refusal(&mut self, cause: Cause, reason: String, effects: &mut Effects) {
        if let Some(live) = &self.live {
            let refused = ChangeRecord::new(live.id.clone(), cause, Outcome::Refused(reason));
            self.record(refused, None, true, effects);
        }
    }

    /// Records an outcome; `is_latest` notes its reason as the pod's latest.
    pub(super) fn record(
        &mut self,
        record: ChangeRecord,
        answers: Option<RequestId>,
        is_latest: bool,
        effects: &mut Effects,
    ) {
        let reason = record.outcome.reason();
        if is_latest && (!record.steps.is_empty() || reason.is_some()) {
            self.drift.note_reason(reason);
        }
        effects.push(Effect::Record {
            is_news: self.resize.is_news(&record),
            record: Box::new(record),
            answers,
        });
    }
}
