//! The passes of a pod: the one that runs, the next one, retries, and operators' requests that wait. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::desired::DesiredState;
use super::overrides::Override;
use super::pod::{Effect, Now};
use crate::model::objects::Pod;
use crate::model::{Cause, ControlError, Outcome, PodAmounts, Withheld};
use crate::pace::Backoff;
use crate::plan::shrink::FailedShrinks;
use crate::rate_limiter::{Rate, RateLimiter};
use crate::resize::{Report, Resize};

pub(crate) const FIRST_RETRY: Duration = Duration::from_secs(1);
/// How often a pod follows changed recommendations, and is tried again after changes of others: a VPA or a pod that changes all the time
/// does not keep the node busy.
const FOLLOWED: Rate = Rate::new(10, Duration::from_secs(5));
const LONGEST_RETRY: Duration = Duration::from_secs(5 * 60);

/// The number of an operator's request, by which the controller finds the caller.
pub(crate) type RequestId = u64;

#[derive(Debug, Clone)]
pub(crate) enum OperatorRequest {
    Override(Override),
    Release { uid: u32, pid: i32, reason: String },
}

/// The passes of one pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkItem {
    /// Counts changes of the facts that a pass starts from. The result of a pass with an earlier generation does
    /// not describe the pod now.
    generation: u64,
    running: Option<RunningPass>,
    pending: Option<PendingPass>,
    request: Option<PendingRequest>,
    /// Requests that wait until `request` has its answer, oldest first.
    queued: VecDeque<(RequestId, OperatorRequest)>,
    /// Spaces the retries of a failed pass; `None` unless the latest pass failed.
    backoff: Option<Backoff>,
    /// Spaces passes that did not fail and have to be repeated, and when the next one is due; `None` if the latest pass had a result.
    repeats: Option<(Backoff, Instant)>,
    /// When a pass that failed, or has to be repeated, is tried again.
    pub(super) retry_at: Option<Instant>,
    followed: Option<RateLimiter>,
    /// How long the latest decision took.
    decided_in: Duration,
}

/// A pass that runs.
#[derive(Debug, Clone)]
pub(crate) struct RunningPass {
    number: u64,
    /// The pod's generation when the pass began.
    generation: u64,
    /// The targets of the recommendation that the pass brings into force. Another one may follow meanwhile.
    pub(super) recommended: Option<PodAmounts>,
}

/// A pass that is due.
#[derive(Debug, Clone)]
pub(crate) struct PendingPass {
    pub(crate) cause: Cause,
    pub(super) since: Instant,
    pub(super) check_runtime: bool,
    /// When the pass may begin: nodes that act on the same change spread their passes.
    not_before: Option<Instant>,
}

/// A request whose values are in the desired state and whose pass has not ended.
#[derive(Debug, Clone)]
pub(super) struct PendingRequest {
    pub(super) id: RequestId,
    /// What comes back if the request is refused. `None` if another client has changed the pod since.
    pub(super) before: Option<Before>,
}

/// What a request has replaced.
#[derive(Debug, Clone)]
pub(crate) enum Before {
    /// The desired state and the failed shrinks before an override, which also ends with a failed pass.
    Override(Box<(DesiredState, FailedShrinks)>),
    /// The override that a release has ended.
    Release(Override),
}

impl WorkItem {
    /// The pass that runs. A pod has at most one.
    pub(crate) const fn running(&self) -> Option<&RunningPass> {
        self.running.as_ref()
    }

    pub(crate) const fn pending(&self) -> Option<&PendingPass> {
        self.pending.as_ref()
    }

    /// The request that the next pass answers.
    pub(super) const fn request(&self) -> Option<&PendingRequest> {
        self.request.as_ref()
    }

    /// Makes a pass due, or joins the pass that is due: a pass starts from the files, not from events.
    pub(crate) fn request_pass(&mut self, cause: Cause, check_runtime: bool, now: Instant) {
        let pending = self.pending.get_or_insert_with(|| PendingPass {
            cause: cause.clone(),
            since: now,
            check_runtime,
            not_before: None,
        });
        // An observation can wait as long as the pass that is due.
        if rank(&cause) > rank(&Cause::Kubelet) {
            pending.not_before = None;
        }
        // A decision outranks an observation in the history, and is timed from its own moment.
        if rank(&cause) > rank(&pending.cause) {
            (pending.cause, pending.since) = (cause, now);
        }
        pending.check_runtime |= check_runtime;
    }

    /// Makes a pass due after a while, within a rate, unless a pass is due already. Passes that begin at once although they had a turn
    /// later do not lengthen the wait of the next one.
    pub(crate) fn request_pass_after(&mut self, cause: Cause, delay: Duration, now: Instant) {
        let known = self.pending.as_ref().map(|pending| pending.not_before);
        self.request_pass(cause, true, now);
        if let Some(pending) = &mut self.pending {
            let followed = self.followed.get_or_insert(RateLimiter::new(FOLLOWED, now));
            pending.not_before = known.unwrap_or_else(|| {
                let (ready, latest) = (followed.ready_at(), now + FOLLOWED.every);
                if ready <= latest {
                    followed.use_turn(now);
                }
                let at = ready.min(latest).max(now + delay);
                (at > now).then_some(at)
            });
        }
    }

    /// Drops the pass that is due.
    pub(super) fn cancel(&mut self) {
        self.pending = None;
    }

    /// Whether a pass is due that may begin.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let begins = |pending: &PendingPass| pending.not_before.is_none_or(|at| at <= now);
        self.running.is_none() && self.pending.as_ref().is_some_and(begins)
    }

    /// Begins the pass that is due, if it may begin. It brings the targets of a recommendation into force.
    pub(super) fn begin(&mut self, number: u64, recommended: Option<PodAmounts>, now: Instant) -> Option<PendingPass> {
        let begins = self.is_due(now);
        let pending = self.pending.take_if(|_| begins)?;
        self.running = Some(RunningPass {
            number,
            generation: self.generation,
            recommended,
        });
        Some(pending)
    }

    /// Whether a pass that follows the recommendation of `desired` runs, is due or is tried again.
    pub(super) fn follows(&self, desired: &DesiredState, pod: &Pod, resize: &Resize) -> bool {
        let runs = self.running.as_ref().is_some_and(|pass| pass.recommended.is_some());
        let is_due = self.pending.is_some() || self.retry_at.is_some();
        // A failed pass may have left a part of its targets.
        let has_failed = self.has_failed() && desired.recommended.is_some();
        runs || is_due && (has_failed || desired.recommended_in_force(pod, resize).is_some())
    }

    /// Takes the pass that runs, if it has this number.
    pub(super) fn end(&mut self, number: u64) -> Option<RunningPass> {
        self.running.take_if(|running| running.number == number)
    }

    /// Whether the facts that the pass started from have not changed since.
    pub(super) fn is_current(&self, pass: &RunningPass) -> bool {
        self.generation == pass.generation
    }

    /// Notes a change of the facts that a pass starts from.
    pub(super) fn start_over(&mut self) {
        self.generation += 1;
        self.reset_retries();
    }

    pub(super) fn note_decided(&mut self, took: Duration) {
        self.decided_in = took;
    }

    /// How long the decision took that is the cause of a pass.
    pub(super) fn decided_in(&self, cause: &Cause) -> Duration {
        match cause {
            Cause::Recommendation { .. } | Cause::BoostEnded { .. } => self.decided_in,
            _ => Duration::ZERO,
        }
    }

    /// When the next pass is retried, or may begin.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let begins = self.pending.as_ref().and_then(|pending| pending.not_before);
        self.retry_at.into_iter().chain(begins).min()
    }

    /// What happens next to the pod, as a sentence, if a pass runs, is due or is retried.
    pub(super) fn next_step(&self, now: Instant) -> Option<String> {
        let begins = self.pending.as_ref().and_then(|pending| pending.not_before);
        if let Some(wait) = begins.and_then(|at| at.checked_duration_since(now)) {
            let wait = wait.as_secs();
            return Some(format!(
                "A pass begins in {wait} s: a recommendation that many nodes follow or that changes often, or a change that is tried often, waits for its turn."
            ));
        }
        if self.running.is_some() || self.pending.is_some() {
            return Some("A pass over this pod runs now.".to_owned());
        }
        Some(match self.retry_at?.saturating_duration_since(now).as_secs() {
            0 => "The next attempt comes within a second.".to_owned(),
            wait => format!("The next attempt is in {wait} s, or at once when the decision changes."),
        })
    }

    /// Schedules the next pass after one with this outcome. Returns the wait if that one failed.
    pub(super) fn ended(&mut self, outcome: &Outcome, api: &Report, now: Now) -> Option<Duration> {
        let (wait, mut failed) = (api.retry_after, None);
        match outcome {
            Outcome::Applied | Outcome::Unchanged if api.unread => drop(self.back_off(wait, now)),
            // The watch has not shown the API server's object yet, or the API server has not taken the spec.
            Outcome::Withheld(Withheld::Unanswered(_) | Withheld::SpecLater(_)) if wait.is_some() => {
                self.forget_failures();
                self.repeat(wait, now);
            }
            // The kubelet reports when its answer changes. No pass ends with the outcome of a hook.
            Outcome::Applied | Outcome::Unchanged | Outcome::Withheld(_) | Outcome::Hook(_) => self.reset_retries(),
            // Discovery looks up which containers run now, and another pass follows if they are others.
            Outcome::Interrupted(_) => self.repeat(None, now),
            Outcome::RuntimeOwed(_) => failed = Some(self.back_off(wait, now)),
            Outcome::Refused(_) | Outcome::RolledBack(_) | Outcome::Incomplete(_) => {
                // Changes of other pods repeat such a pass.
                self.backoff.take_if(|_| api.no_room);
                failed = Some(self.back_off(wait, now));
                // The failed pass and its undo are the likely reason of an observation. One without room wrote nothing.
                self.pending
                    .take_if(|pending| !api.no_room && rank(&pending.cause) <= rank(&Cause::Drift));
            }
        }
        if outcome.is_kept() {
            // The API server is patched later.
            let again = wait.map(|wait| now.instant + wait + FIRST_RETRY.mul_f64(0.5 + now.fraction));
            self.retry_at = self.retry_at.or(again);
        }
        failed
    }

    /// Whether a retry is due; true once. Ends the wait of a pass that may begin.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        if let Some(pending) = &mut self.pending {
            pending.not_before.take_if(|at| *at <= now);
        }
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    /// Notes a failed pass; returns the wait before the next one.
    pub(super) fn back_off(&mut self, at_least: Option<Duration>, now: Now) -> Duration {
        let backoff = self.backoff.get_or_insert(Backoff::new(FIRST_RETRY, LONGEST_RETRY));
        let wait = backoff.next_at(at_least, now.fraction);
        self.retry_at = Some(now.instant + wait);
        wait
    }

    /// Notes a pass that did not fail and has to be repeated. The pauses grow with the repetitions, and not with passes that come
    /// before the next one is due.
    fn repeat(&mut self, at_least: Option<Duration>, now: Now) {
        let first = || (Backoff::new(FIRST_RETRY, LONGEST_RETRY), now.instant);
        let (known, due) = self.repeats.take().unwrap_or_else(first);
        let mut grown = known.clone();
        let at = now.instant + grown.next_at(at_least, now.fraction);
        let is_early = now.instant < due;
        self.repeats = Some((if is_early { known } else { grown }, at));
        self.retry_at = Some(at);
    }

    /// Forgets failures and repetitions, after a change of the desired or the observed values.
    pub(super) fn reset_retries(&mut self) {
        self.forget_failures();
        self.repeats = None;
    }

    /// Forgets failures alone.
    fn forget_failures(&mut self) {
        (self.backoff, self.retry_at) = (None, None);
    }

    /// Queues a request. Returns the effect that carries it out, unless another one has no answer yet.
    pub(super) fn enqueue(&mut self, id: RequestId, request: OperatorRequest) -> Option<Effect> {
        self.queued.push_back((id, request));
        self.admit_next()
    }

    /// The effect that carries out the oldest queued request, if no other one waits for a pass.
    pub(super) fn admit_next(&mut self) -> Option<Effect> {
        if self.request.is_some() {
            return None;
        }
        let (id, request) = self.queued.pop_front()?;
        Some(Effect::AdmitRequest { id, request })
    }

    /// The effects of a refusal: the answer, and the next request.
    pub(super) fn refuse(&mut self, request: RequestId, why: String) -> impl Iterator<Item = Effect> {
        let error = ControlError::Refused(why);
        [Effect::Refuse { request, error }].into_iter().chain(self.admit_next())
    }

    /// Notes a request that is in the desired state, with what it has replaced: the next pass answers.
    pub(super) fn wait_for_answer(&mut self, id: RequestId, before: Before) {
        let before = Some(before);
        self.request = Some(PendingRequest { id, before });
    }

    /// Takes the request that an ended pass answers.
    pub(super) fn take_request(&mut self) -> Option<PendingRequest> {
        self.request.take()
    }

    /// Takes the override that waits for its pass, to refuse it. Neither the override before it comes back, nor one that is being
    /// released.
    pub(super) fn take_override(&mut self) -> Option<RequestId> {
        let before = self.request.as_mut().and_then(|request| request.before.take());
        match before? {
            Before::Override(_) => self.request.take().map(|request| request.id),
            Before::Release(_) => None,
        }
    }

    /// Takes all requests without an answer. Returns their numbers, and what the one that waits for its pass has replaced.
    pub(super) fn take_requests(&mut self) -> (Vec<RequestId>, Option<Before>) {
        let ids = self.requests().collect();
        self.queued.clear();
        (ids, self.request.take().and_then(|request| request.before))
    }

    /// The desired state to go back to if the pass of an override fails.
    pub(super) fn before_override(&mut self) -> Option<&mut DesiredState> {
        match self.request.as_mut()?.before.as_mut()? {
            Before::Override(before) => Some(&mut before.0),
            Before::Release(_) => None,
        }
    }

    /// Every date of requests without an answer, and of what comes back if they are refused, that is compared with the wall clock.
    pub(super) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let queued = self.queued.iter_mut().filter_map(|(_, request)| match request {
            OperatorRequest::Override(overridden) => Some(overridden),
            OperatorRequest::Release { .. } => None,
        });
        let before = self.request.as_mut().and_then(|request| request.before.as_mut());
        let (replaced, ended) = match before {
            Some(Before::Override(before)) => (Some(&mut **before), None),
            Some(Before::Release(ended)) => (None, Some(ended)),
            None => (None, None),
        };
        let replaced = replaced.into_iter();
        let replaced = replaced.flat_map(|(desired, backoffs)| desired.dates().chain(backoffs.dates()));
        queued.chain(ended).flat_map(Override::dates).chain(replaced)
    }

    /// The requests without an answer.
    pub(crate) fn requests(&self) -> impl Iterator<Item = RequestId> {
        let pending = self.request.as_ref().map(|request| request.id);
        pending.into_iter().chain(self.queued.iter().map(|(id, _)| *id))
    }

    /// Whether the latest pass failed.
    pub(crate) const fn has_failed(&self) -> bool {
        self.backoff.is_some()
    }
}

const fn rank(cause: &Cause) -> u8 {
    match cause {
        Cause::Sweep | Cause::Hook { .. } => 0,
        Cause::Retry => 1,
        Cause::Drift | Cause::DriftInFlight => 2,
        Cause::AgentStarted => 3,
        Cause::Kubelet | Cause::ApiServerReturned => 4,
        Cause::ContainerStarted | Cause::PodLevel | Cause::OverrideKept { .. } => 5,
        Cause::OverrideEnded
        | Cause::TemporaryLimitEnded { .. }
        | Cause::TemporaryLimitDenied { .. }
        | Cause::Withdrawn
        | Cause::ChangeLost => 6,
        Cause::Guard { .. } => 7,
        Cause::Recommendation { .. } | Cause::BoostEnded { .. } => 8,
        Cause::Operator { .. } | Cause::Released { .. } => 9,
        // A failed shrink outranks a decision.
        Cause::FailedShrink { .. } => 10,
    }
}

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tests {
    use super::*;

    impl WorkItem {
        /// Begins a pass at once.
        pub(crate) fn start(&mut self, number: u64) {
            let now = Instant::now();
            self.request_pass(Cause::Sweep, false, now);
            self.begin(number, None, now).unwrap();
        }

        /// Whether a pass runs whose facts have not changed since it began.
        pub(crate) fn runs_current(&self) -> bool {
            self.running.as_ref().is_some_and(|pass| self.is_current(pass))
        }

        /// Notes a failed pass.
        pub(crate) fn fail(&mut self) {
            self.back_off(None, Now::read());
        }
    }

    fn recommended() -> Cause {
        Cause::Recommendation {
            vpa: "web".to_owned(),
            version: "7".to_owned(),
            reason: crate::model::Reason::NoVpa,
        }
    }

    #[test]
    fn a_restless_recommendation_has_a_rate() {
        let start = Instant::now();
        let (mut work, mut passes) = (WorkItem::default(), 0);
        for change in 0..900 {
            let now = start + Duration::from_millis(333) * change;
            work.request_pass_after(recommended(), Duration::ZERO, now);
            if work.is_due(now) {
                work.pending = None;
                passes += 1;
            }
        }
        assert!((60..=70).contains(&passes), "{passes} within 300 s");
    }

    #[test]
    fn passes_that_begin_at_once_lengthen_no_wait() {
        let (mut work, now) = (WorkItem::default(), Instant::now());
        for _ in 0..100 {
            work.request_pass_after(Cause::Retry, Duration::ZERO, now);
            work.request_pass(Cause::ContainerStarted, true, now);
            assert!(work.is_due(now));
            work.pending = None;
        }
        work.request_pass_after(Cause::Retry, Duration::ZERO, now);
        assert_eq!(work.wakes_at(), Some(now + FOLLOWED.every));
    }

    #[test]
    fn only_a_first_action_waits_for_its_place() {
        let now = Instant::now();
        let not_before = |causes: &[Cause]| {
            let mut work = WorkItem::default();
            work.request_pass_after(recommended(), Duration::from_secs(20), now);
            for cause in causes {
                work.request_pass(cause.clone(), false, now);
            }
            work.pending.unwrap().not_before
        };
        assert_eq!(not_before(&[]), Some(now + Duration::from_secs(20)));
        assert!(not_before(&[Cause::Drift, Cause::Sweep, Cause::Kubelet]).is_some());
        let operator = Cause::Operator {
            uid: 0,
            pid: 1,
            reason: String::new(),
        };
        for urgent in [
            operator,
            Cause::ContainerStarted,
            Cause::FailedShrink { why: String::new() },
        ] {
            assert_eq!(not_before(&[urgent]), None);
        }
        let mut work = WorkItem::default();
        work.request_pass(Cause::ContainerStarted, true, now);
        work.request_pass_after(recommended(), Duration::from_secs(20), now);
        assert_eq!(work.pending.unwrap().not_before, None, "it was to begin at once");
    }

    #[test]
    fn a_pass_without_a_wait_has_no_time() {
        let (mut work, now) = (WorkItem::default(), Instant::now());
        work.request_pass_after(recommended(), Duration::ZERO, now);
        assert_eq!((work.is_due(now), work.wakes_at()), (true, None));
    }

    #[test]
    fn a_decision_outranks_an_observation_that_is_due() {
        let (mut work, now) = (WorkItem::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        work.request_pass(Cause::Sweep, true, now);
        work.request_pass(recommended(), false, later);
        work.request_pass(Cause::Drift, false, later + Duration::from_secs(1));
        let pending = work.pending().unwrap();
        assert_eq!((&pending.cause, pending.since), (&recommended(), later));
        assert!(pending.check_runtime, "the first one asked for that");
    }

    #[test]
    fn a_failed_pass_drops_only_its_own_traces() {
        for (cause, no_room, stays) in [
            (Cause::Sweep, false, false),
            (Cause::Drift, false, false),
            (Cause::Kubelet, false, true),
            (recommended(), false, true),
            (Cause::Retry, false, false),
            (Cause::Retry, true, true),
        ] {
            let mut work = WorkItem::default();
            work.request_pass(cause, false, Instant::now());
            let failed = Outcome::Refused(String::new());
            let api = Report {
                no_room,
                ..Report::default()
            };
            assert!(work.ended(&failed, &api, Now::read()).is_some());
            assert_eq!(work.pending().is_some(), stays);
        }
    }

    #[test]
    fn failed_passes_are_tried_again_ever_later() {
        let failed: [fn(String) -> Outcome; 4] = [
            Outcome::RuntimeOwed,
            Outcome::Refused,
            Outcome::RolledBack,
            Outcome::Incomplete,
        ];
        for outcome in failed.map(|outcome| outcome(String::new())) {
            let mut work = WorkItem::default();
            let now = Now {
                fraction: 1.0,
                ..Now::read()
            };
            let waits = [(); 10].map(|()| {
                let wait = work.ended(&outcome, &Report::default(), now).unwrap();
                assert_eq!(work.retry_at, Some(now.instant + wait));
                wait.as_secs()
            });
            assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300], "{outcome:?}");
            assert_eq!(work.ended(&Outcome::Applied, &Report::default(), now), None);
            assert!(!work.has_failed() && work.retry_at.is_none());
        }
    }

    #[test]
    fn passes_amid_a_wait_do_not_prolong_it() {
        let (mut work, mut now) = (WorkItem::default(), Now::read());
        let until = now.instant + Duration::from_secs(60);
        for _ in 0..20 {
            work.repeat(Some(until - now.instant), now);
            let late = work.retry_at.unwrap() - until;
            assert!(late <= 2 * FIRST_RETRY, "{late:?}");
            now.instant += FIRST_RETRY;
        }
    }

    #[test]
    fn failing_agents_retry_at_other_times() {
        let wait = |_| WorkItem::default().back_off(Some(Duration::from_secs(7)), Now::read());
        let waits: std::collections::BTreeSet<_> = (0..50).map(wait).collect();
        assert!(
            waits.len() > 40 && waits.iter().all(|wait| *wait > Duration::from_secs(7)),
            "{waits:?}"
        );
    }
}
