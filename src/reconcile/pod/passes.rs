//! The start of a pass, and the changes of state at its end. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Effects, LogLine, Now, PodState};
use crate::actuate::{Job, JobDone};
use crate::model::{BoundPod, Cause, ChangeRecord, Outcome, PodAmounts};
use crate::plan::{PodTargets, lift_kept};
use crate::reconcile::work::{FIRST_RETRY, RequestId};
use crate::resize::{Act, Report};

/// What a pass over this pod showed.
struct EndedPass {
    record: ChangeRecord,
    api: Report,
    /// Whether the pass had the present targets.
    is_current: bool,
}

impl EndedPass {
    /// Whether the pass brought its recommendation into force. One in an emergency leaves that to the next pass.
    fn followed(&self) -> bool {
        let (outcome, api) = (&self.record.outcome, &self.api);
        let has_targets = outcome.holds() && api.retry_after.is_none();
        has_targets || outcome.is_kept() && api.answer.accepted().is_some()
    }
}

impl PodState {
    /// The cause and the targets of the next pass, if one is due and the pod runs here.
    pub(crate) fn next_pass(&self, now: Now) -> Option<(&Cause, PodAmounts)> {
        let pending = self.work.pending().filter(|_| self.work.is_due(now.instant))?;
        BoundPod::new(&self.pod, self.live.as_ref()?)?;
        Some((&pending.cause, self.targets(now.wall).unwrap_or_default()))
    }

    /// How long the API server must not be patched yet: a temporary limit may grow further in a moment, and an undone
    /// shrink is written to the cgroups first.
    pub(crate) fn too_early_to_patch(&self, cause: &Cause, now: Now) -> Option<Duration> {
        let calm = self.desired.may_grow_for(now.wall);
        let grown = self.desired.memory_limits().map(|(name, limit)| (name, limit.get()));
        let holds = self.holds(now.wall);
        let kept = holds.iter();
        let kept = kept.filter_map(|(target, limit)| Some((target.container()?, limit.bounded()?.get())));
        let about_to_lower = self.resize.is_about_to_lower(&self.pod, grown.chain(kept));
        match cause {
            Cause::FailedShrink { .. } if about_to_lower => Some(Duration::ZERO),
            Cause::FailedShrink { .. } => Some(FIRST_RETRY),
            _ => self.resize.too_early(calm, about_to_lower, now.instant),
        }
    }

    /// The targets of a pass, if anything is desired and the pod runs here.
    pub(crate) fn pod_targets(&self, now: Timestamp, through_api: bool) -> Option<PodTargets> {
        let bound = BoundPod::new(&self.pod, self.live.as_ref()?)?;
        if self.desired.is_empty() {
            return None;
        }
        let (spec, mut scope) = (self.pod.requirements(), self.desired.scope.clone());
        let amounts = self.targets(now);
        match &amounts {
            Some(amounts) => scope.widen(&spec, amounts),
            // A burst alone.
            None => scope.resources.clear(),
        }
        Some(PodTargets {
            bound,
            amounts: amounts.unwrap_or(spec),
            burst: self.desired.burst,
            lift_undeclared: self.desired.returning,
            kubelet_unasked: !through_api,
            scope,
            holds: self.holds(now),
        })
    }

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
        let targets = self.pod_targets(now.wall, through_api);
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
    pub(super) fn end_pass(&mut self, number: u64, done: JobDone, quiet: SignedDuration, effects: &mut Effects) {
        let now = effects.now;
        let running = self.work.end(number);
        let live = self.live.clone().filter(|live| live.id.uid == done.record.pod.uid);
        let Some((mut running, live)) = running.zip(live) else {
            return effects.push(Effect::Record {
                is_news: !done.record.steps.is_empty(),
                record: Box::new(done.record),
                answers: None,
            });
        };
        let mut ended = EndedPass {
            record: done.record,
            api: done.api,
            is_current: self.work.is_current(&running),
        };
        let has_flipped = !done.flipped.is_empty();
        let is_resizing = self.resize.withheld().is_none() && self.resize.is_in_flight(&self.pod);
        ended.record.cause = self.drift.cause_of(&ended.record, has_flipped, is_resizing);
        let avoided = self.desired.note_resized(&ended.record, &live);
        effects.list.extend(avoided.map(Effect::Avoided));
        self.desired.scope.quotas.update(done.quotas, &live);
        self.desired.note_bursts(&self.pod, &live, done.bursts, now.wall);
        self.take_api_report(&mut ended, quiet, now);
        if ended.followed() {
            let recommended = running.recommended.take();
            self.desired.bring_into_force(recommended, ended.is_current);
        }
        let mut shrink = done.shrink;
        if self.growth.takes_back_denied(&self.pod, &shrink.lowered, now.wall) {
            shrink.lowered.clear();
        }
        self.shrink.pass_ended(shrink, number);
        self.end_overtaken_override(&ended, effects);
        ended.record.in_flight = ended.record.outcome.holds() && self.resize.is_in_flight(&self.pod);
        // What the pass came to may have changed the targets.
        ended.is_current = self.work.is_current(&running);
        self.drift.ended(&ended.record.outcome, done.foreign, ended.is_current);
        if !ended.is_current {
            // A pass with the new generation is due.
            return self.record(ended.record, None, true, effects);
        }
        self.end_turn(&ended.record.outcome, effects);
        effects.push(Effect::WatchFiles(done.handles));
        let answers = self.schedule_next(&ended, effects);
        let outcome = ended.record.outcome.clone();
        self.record(ended.record, answers, true, effects);
        // A refused override waits for no room.
        self.resize.ended(outcome, ended.api.no_room && self.work.has_failed());
        effects.list.extend(self.work.admit_next());
    }

    /// Takes the API server's answers to a pass, whose outcome then names the limits that are denied.
    fn take_api_report(&mut self, EndedPass { record, api, .. }: &mut EndedPass, quiet: SignedDuration, now: Now) {
        if let Some(why) = api.answer.denied() {
            self.deny_temporary(why, now.wall, quiet, &mut record.outcome);
        }
        let outcome = &record.outcome;
        let by_hand = self.desired.is_by_hand();
        self.resize.answered(&self.pod, api, outcome, by_hand, now.instant);
        if let Some(accepted) = api.answer.accepted().filter(|_| outcome.is_kept()) {
            for container in self.desired.accept(&accepted.targets) {
                self.growth.accept(&container);
            }
        }
    }

    /// Ends an override that was written ahead of the spec, if the API server denies it now, or another client has changed the
    /// spec since.
    fn end_overtaken_override(&mut self, ended: &EndedPass, effects: &mut Effects) {
        let denied = ended.api.answer.denied().filter(|_| ended.is_current);
        let denied = denied.filter(|_| self.work.request().is_none());
        let Some((why, before)) = denied.and_then(|why| Some((why, self.resize.catch_up()?))) else {
            return self.yield_to_spec(effects);
        };
        let set = self.desired.overridden.as_ref();
        // A denial is not about an override that was in the spec before the API server was away.
        if set.is_none_or(|set| !set.is_in(&before)) {
            // The operator's answer was that the spec follows.
            self.desired.end_override();
            self.record_lost_change(why.to_owned(), effects);
        }
    }

    /// Ends the pod's turn to lower limits after a pass that left nothing to watch, and announces limits that have grown.
    fn end_turn(&mut self, outcome: &Outcome, effects: &mut Effects) {
        if self.drift.is_in_sync() && !self.hooks.is_announcing() {
            self.shrink.end_turn_unless_watched();
        }
        if outcome.holds() {
            let mut targets = self.desired.targets_or_spec(&self.pod);
            lift_kept(&self.holds(effects.now.wall), &mut targets);
            self.follow_hooks(|hooks, of| hooks.pass_ended(of, &targets), effects);
        }
    }

    /// Schedules the next pass; returns the request that the ended pass answers.
    fn schedule_next(&mut self, ended: &EndedPass, effects: &mut Effects) -> Option<RequestId> {
        let (outcome, api, now) = (&ended.record.outcome, &ended.api, effects.now);
        let failed = self.work.ended(outcome, api, now);
        let is_verified = matches!(outcome, Outcome::Applied | Outcome::Unchanged) && !api.unread;
        let is_kept = self.shrink.wakes_at().is_some() || !self.holds(now.wall).is_empty();
        // Where a pass is due, the pod's object may have changed since this one began.
        if is_verified && !is_kept && self.resize.is_known_in(&self.pod) && self.work.pending().is_none() {
            self.desired.end_return(&mut self.resize);
        }
        if let Some(retry_in) = failed.filter(|_| self.resize.is_news(&ended.record)) {
            let outcome = outcome.clone();
            effects.push(Effect::Log(LogLine::PassFailed { outcome, retry_in }));
        }
        match outcome {
            // The pass that follows answers the operator.
            Outcome::Interrupted(_) => None,
            _ => self.answer_request(outcome, now),
        }
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
