//! The state of one pod and how it changes: `PodState × PodInput → PodState + Vec<Effect>`.
//!
//! Everything the agent knows about a pod is in [`PodState`], and [`PodState::apply`] is the only way to change it. What must
//! follow from a change (save it, tell the guard, move the least limit, watch lower limits, close files) is not up to each
//! transition: `apply` compares the state before with the state after and derives it, so that nothing can be forgotten. No
//! I/O and no clock: time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::capacity::Headroom;
use super::desired::{DesiredState, GrowthPause};
use super::resize::{Resize, ResizeStatus};
use super::shrink::ShrinkState;
use super::store::{SavedPod, Standing};
use super::work::{OperatorRequest, PassId, RequestId, WorkItem};
use super::worth::Avoided;
use crate::actuate::shrink::{Lowering, Verdict};
use crate::actuate::{ForeignWriters, Grown, HookRun, Job, JobDone, PodHandles};
use crate::control::ControlError;
use crate::decide::PodDecision;
use crate::guard::Report;
use crate::model::objects::{Pod, PodId};
use crate::model::{BoundPod, Bytes, Cause, ChangeRecord, HookEnd, LivePod, NamedRequirements, Target, Withheld};
use crate::plan::LowPodLevel;
use crate::plan::resize::{self, ResizeDecision};

mod decision;
mod effects;
mod guarded;
mod hooks;
mod located;
mod operator;
mod passes;
mod pods;
mod spec;

pub(crate) use super::metrics::PodStatus;
pub(crate) use decision::ends_recommendation;
pub(crate) use located::Located;
pub(crate) use operator::not_running;
pub(crate) use pods::Pods;

/// One moment, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) instant: Instant,
}

impl Now {
    pub(crate) fn read() -> Self {
        Self {
            wall: Timestamp::now(),
            instant: Instant::now(),
        }
    }
}

/// One pod of the node.
#[derive(Debug, Clone)]
pub(crate) struct PodState {
    /// The object, as its source describes it.
    pub(crate) pod: Arc<Pod>,
    pub(crate) decision: PodDecision,
    /// A recommendation that does not count because the node has no room for it.
    pub(crate) no_room: Option<NoRoomFor>,
    /// What the history says of an annotation of its VPA that is not understood.
    unreadable: Option<String>,
    pub(crate) desired: DesiredState,
    pub(crate) resize: Resize,
    /// Where the pod runs, if it does.
    pub(crate) live: Option<Arc<LivePod>>,
    /// The pod that the object described last. What is desired is saved for it alone: an object can claim any UID, and a
    /// manifest without a UID means whichever pod has its name.
    pub(crate) identity: Option<PodId>,
    pub(crate) drift: DriftState,
    pub(crate) shrink: ShrinkState,
    pub(crate) growth: GrowthState,
    hooks: hooks::Hooks,
    /// When a limit was last too low for it, of what was recommended.
    trouble: Option<Timestamp>,
    pub(crate) work: WorkItem,
}

/// Whether a pod's files and its runtime hold what they should, as the latest pass left them.
#[derive(Debug, Clone, Default)]
pub(crate) struct DriftState {
    /// Whether every file was as it should be: then one that differs was changed by somebody else.
    pub(crate) in_sync: bool,
    /// Whether the runtime's stored spec could not be updated yet.
    pub(crate) runtime_sync_pending: bool,
    /// The pod's cgroup allows less memory than its containers' do together.
    pub(crate) low_pod_level: Option<LowPodLevel>,
    /// Who else changes its values.
    pub(crate) writers: ForeignWriters,
    /// Why the pass did not simply succeed; empty where it did.
    pub(crate) last_reason: String,
}

/// What the node has no room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoRoomFor {
    targets: Vec<NamedRequirements>,
    /// The refusal, with the numbers.
    pub(crate) why: String,
    /// Whether the refusal is in the history.
    recorded: bool,
}

/// What the guard could not do for containers, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct GrowthState {
    /// Why containers were not given more memory when they needed it.
    pub(crate) refused: BTreeMap<String, String>,
    /// Containers whose limits are not grown for a while because the API server denied it.
    pauses: BTreeMap<String, GrowthPause>,
    /// When containers were asked for evidence last, if that was not long ago.
    pressed: BTreeMap<String, Timestamp>,
}

/// What happened to a pod.
#[derive(Debug)]
pub(crate) enum PodInput {
    /// The source describes it so.
    Described(Arc<Pod>),
    /// This was decided for it.
    Decided {
        decision: Box<PodDecision>,
        took: Duration,
    },
    /// What was decided is to be followed; `refused` says why the node has no room for it.
    Followed {
        refused: Option<String>,
        cause: Option<Cause>,
        delay: Duration,
    },
    /// No room came up for what the node had no room for.
    StillNoRoom(Option<Cause>),
    /// The node was looked at, and the pod runs here, or no longer.
    Located(Box<Located>),
    /// Its memory limits were compared; `repair` says whether a pod's cgroup that is low is to be raised.
    PodLevelRead {
        low: Option<LowPodLevel>,
        repair: bool,
    },
    PodLevelRaised(Box<Grown>),
    /// Its files were written by somebody.
    FilesWritten,
    /// Its files are watched from now on; what was written before was told to nobody.
    FilesWatched,
    TimePassed,
    Swept,
    /// The runtime can be reached again.
    RuntimeReturned,
    /// The node's traits are others than before: every value is planned anew.
    NodeChanged,
    /// Perhaps the node has more room.
    RoomFreed,
    /// The API server may resize in place after all.
    ResizeRetried,
    /// The API server was away and answers again.
    ApiServerReturned,
    Requested(RequestId, OperatorRequest),
    Admitted(RequestId, OperatorRequest, Box<Headroom>),
    /// The guard did something or could not.
    Guard(Box<Report>),
    /// A pass is about to begin; whether containers may be told before.
    PassDue {
        hooks: bool,
    },
    HookEnded(Box<HookRun>, HookEnd),
    /// A pass begins, through the API server or not.
    PassBegan {
        number: u64,
        resize: Box<ResizeDecision>,
    },
    /// A pass ended. Temporary limits that were denied end after `quiet`.
    PassEnded {
        pass: PassId,
        done: Box<JobDone>,
        quiet: SignedDuration,
    },
    /// Watching the lower limits of this pass ended.
    ShrinkWatchEnded(u64, Verdict),
    /// Somebody was killed in this cgroup for a limit that was lowered.
    Killed(Target),
    /// It is its turn to lower memory limits.
    TurnGiven,
}

/// What has to follow from a change of a pod's state. The controller carries them out, all in one place.
#[derive(Debug)]
pub(crate) enum Effect {
    /// What survives a restart has changed.
    SaveState,
    /// What the guard may do for the pod has changed.
    WatchGuard,
    /// The least memory limit of a container moves from one value to another, unless the guard has raised it meanwhile.
    MoveLeastLimit {
        uid: String,
        container: String,
        from: Option<Bytes>,
        to: Option<Bytes>,
    },
    /// Another pod has the name: nothing of the earlier one's least limits counts.
    ForgetLeastLimits(String),
    RunPass(PassId, Box<Job>),
    RunHook(Box<HookRun>),
    /// The pod's cgroup was left below its containers: raise its memory limit alone.
    RaisePodLevel(BoundPod, LowPodLevel),
    /// The pod's cgroups as a pass left them: watch them; without any, stop watching.
    WatchFiles(Option<PodHandles>),
    /// Watch these lower limits, in the place of earlier ones.
    WatchShrink(u64, Vec<Lowering>),
    /// Nothing lower is watched any more.
    EndShrinkWatch,
    /// Keep this in the history, and answer the request with it. What is no news is only answered with.
    Record {
        record: Box<ChangeRecord>,
        news: bool,
        answers: Option<RequestId>,
    },
    Refuse(RequestId, ControlError),
    /// Carry out the next request of an operator.
    AdmitRequest(RequestId, OperatorRequest),
    /// Decide again: what bounds and ratios are measured against has changed.
    Decide,
    /// Something did not happen to the pod.
    Avoided(Avoided),
    /// Watching lower limits came to an end.
    ShrinkEnded(super::shrink::ShrinkEnd),
}

impl PodState {
    /// A pod that was just described.
    pub(crate) fn new(pod: Arc<Pod>, decision: PodDecision) -> Self {
        Self {
            pod,
            decision,
            no_room: None,
            unreadable: None,
            desired: DesiredState::default(),
            resize: Resize::default(),
            live: None,
            identity: None,
            drift: DriftState::default(),
            shrink: ShrinkState::default(),
            growth: GrowthState::default(),
            hooks: hooks::Hooks::default(),
            trouble: None,
            work: WorkItem::default(),
        }
    }

    /// Changes the state, and returns what has to follow, in this order. What makes copies of the state equal to it comes first:
    /// another effect may be an input of its own ([`Effect::AdmitRequest`]).
    #[must_use]
    pub(crate) fn apply(&mut self, input: PodInput, now: Now) -> Vec<Effect> {
        let before = self.clone();
        let mut others = Vec::new();
        self.transition(input, now, &mut others);
        let mut effects = self.derived_from(&before);
        effects.append(&mut others);
        effects
    }

    fn transition(&mut self, input: PodInput, now: Now, effects: &mut Vec<Effect>) {
        match input {
            PodInput::Described(pod) => self.describe(pod, now, effects),
            PodInput::Decided { decision, took } => {
                self.decision = *decision;
                self.work.decided_in = took;
                self.record_unreadable(now, effects);
            }
            PodInput::Followed { refused, cause, delay } => self.follow(refused, cause, delay, now),
            PodInput::StillNoRoom(cause) => self.record_no_room(cause, now, effects),
            PodInput::Located(located) => {
                self.locate(*located, now, effects);
                self.record_unreadable(now, effects);
            }
            PodInput::PodLevelRead { low, repair } => self.take_pod_level(low, repair, now, effects),
            PodInput::PodLevelRaised(raised) => self.take_raised_pod_level(*raised, now, effects),
            PodInput::FilesWritten => self.request_if(self.is_enforced(), Cause::Drift, false, now),
            PodInput::FilesWatched => self.request_if(self.drift.in_sync, Cause::Drift, false, now),
            PodInput::TimePassed => self.time_passed(now),
            PodInput::Swept => {
                self.request_if(self.is_enforced(), Cause::Sweep, self.drift.runtime_sync_pending, now);
            }
            PodInput::RuntimeReturned => {
                if self.drift.runtime_sync_pending {
                    self.work.reset_retries();
                    self.work.request_pass(Cause::Retry, true, now.instant);
                }
            }
            PodInput::NodeChanged => {
                if !self.desired.is_empty() {
                    self.restart(Cause::Sweep, now);
                }
            }
            PodInput::RoomFreed => {
                self.request_if(self.resize.status == ResizeStatus::NoRoom, Cause::Retry, true, now);
            }
            PodInput::ResizeRetried => {
                let resizes = !self.desired.is_empty() && resize::supports_in_place_resize(&self.pod);
                self.request_if(resizes, Cause::Retry, true, now);
            }
            PodInput::ApiServerReturned => {
                self.request_if(self.resize.waits_for_api_server(), Cause::ApiServerReturned, true, now);
            }
            PodInput::Requested(id, request) => self.enqueue(id, request, effects),
            PodInput::Admitted(id, request, headroom) => self.admit(id, request, &headroom, now, effects),
            PodInput::Guard(report) => self.take_guard_report(*report, now, effects),
            PodInput::PassDue { hooks } => self.announce(hooks, now, effects),
            PodInput::HookEnded(run, end) => self.end_hook(*run, end, now, effects),
            PodInput::PassBegan { number, resize } => self.begin_pass(number, *resize, now, effects),
            PodInput::PassEnded { pass, done, quiet } => self.end_pass(&pass, *done, quiet, now, effects),
            PodInput::ShrinkWatchEnded(number, verdict) => {
                let ended = self.shrink.watch_ended(number, verdict, now.wall);
                self.follow_shrink(ended, now, effects);
            }
            PodInput::Killed(target) => {
                self.trouble = Some(now.wall);
                let ended = self.shrink.killed(&target, now.wall);
                self.follow_shrink(ended, now, effects);
            }
            PodInput::TurnGiven => {
                self.shrink.begin_turn(now.wall);
                if self.work.running.is_some() || self.work.pending.is_none() {
                    self.restart(Cause::Retry, now);
                }
            }
        }
    }

    fn request_if(&mut self, due: bool, cause: Cause, check_runtime: bool, now: Now) {
        if due {
            self.work.request_pass(cause, check_runtime, now.instant);
        }
    }

    fn time_passed(&mut self, now: Now) {
        if self.work.retry_at.is_some_and(|at| at <= now.instant) {
            self.work.retry_at = None;
            let waits = self.resize.waits_for_api_server();
            let cause = if waits { Cause::ApiServerReturned } else { Cause::Retry };
            self.work.request_pass(cause, true, now.instant);
        }
        if self.desired.override_ends_at().is_some_and(|at| at <= now.wall) && self.desired.end_override() {
            self.restart(Cause::OverrideEnded, now);
        }
        self.end_denied(now);
        self.forget_pressed(now.wall);
        if self.shrink.take_due(now.wall) {
            self.restart(Cause::Retry, now);
        }
    }

    /// When something is due next: on the monotonic clock, and on the wall's.
    pub(crate) fn wakes_at(&self, now: Instant) -> (Option<Instant>, Option<Timestamp>) {
        let dated = [
            self.desired.override_ends_at(),
            self.shrink.retry_at,
            self.decision.next_change(),
            self.denied_end(),
            self.may_press_at(),
        ];
        (self.work.wakes_at(now), dated.into_iter().flatten().min())
    }

    /// Makes a pass due that starts anew: what the pod should have, or where it runs, is something else now. Whatever was
    /// learnt before says nothing any more, also what a pass that runs now will have learnt.
    fn restart(&mut self, cause: Cause, now: Now) {
        self.start_over();
        self.work.request_pass(cause, true, now.instant);
    }

    fn start_over(&mut self) {
        self.work.generation += 1;
        self.drift.writers.forget();
        self.drift.in_sync = false;
        self.resize.status = ResizeStatus::Clear;
        self.work.reset_retries();
    }

    /// Whether its values are compared with what is wanted whenever they may have changed. Not while a failed pass waits
    /// to be tried again: what it wrote and undid looks like a change, and would be the reason for the next one at once.
    /// What only waits for the API server holds what it should meanwhile.
    pub(crate) fn is_enforced(&self) -> bool {
        let holds = self.drift.runtime_sync_pending || self.drift.in_sync;
        !self.desired.is_empty() && (self.work.retry_at.is_none() || holds)
    }

    /// Whether nothing is to be done for it unless somebody tells of something.
    pub(crate) fn is_settled(&self) -> bool {
        let DriftState {
            in_sync,
            runtime_sync_pending,
            writers,
            ..
        } = &self.drift;
        let is_clear = self.resize.status == ResizeStatus::Clear;
        !self.is_enforced() || (*in_sync && !runtime_sync_pending && writers.is_empty() && is_clear)
    }

    /// Whether a memory limit of it was grown in an emergency, and is so still.
    pub(crate) fn has_temporary_memory(&self) -> bool {
        self.desired.memory_limits().next().is_some()
    }

    fn follow_shrink(&mut self, ended: Option<super::shrink::ShrinkEnd>, now: Now, effects: &mut Vec<Effect>) {
        let Some(ended) = ended else { return };
        if let super::shrink::ShrinkEnd::Undone(why) = &ended {
            self.trouble = Some(now.wall);
            self.desired.return_later(&self.pod);
            self.restart(Cause::Regret { why: why.clone() }, now);
        }
        effects.push(Effect::ShrinkEnded(ended));
    }

    /// How the pod is doing.
    pub(crate) fn status(&self, now: Timestamp) -> PodStatus {
        if self.live.is_none() {
            PodStatus::NotRunning
        } else if self.desired.is_empty() && self.no_room.is_none() {
            PodStatus::NotManaged
        } else if self.drift.writers.all_paused(now).next().is_some() {
            PodStatus::Foreign
        } else if self.drift.runtime_sync_pending {
            PodStatus::Owed
        } else if self.work.has_failed() || self.shrink.next_retry(now).is_some() || self.no_room.is_some() {
            PodStatus::Refused
        } else if let Some(withheld) = self.resize.pending() {
            match withheld {
                Withheld::Deferred(_) => PodStatus::Deferred,
                Withheld::Infeasible(_) => PodStatus::Infeasible,
                Withheld::Failed(_) => PodStatus::Refused,
                Withheld::SpecLater(_) if self.resize.written_ahead.is_some() => PodStatus::Owed,
                Withheld::Unanswered(_) | Withheld::Postponed(_) | Withheld::SpecLater(_) => PodStatus::Working,
            }
        } else if self.drift.in_sync && !self.is_announcing() {
            PodStatus::InSync
        } else {
            PodStatus::Working
        }
    }

    /// When it last was in trouble: a container ended, memory or cpu was not enough, or a lower limit was taken back.
    pub(crate) fn in_trouble(&self) -> Option<Timestamp> {
        let ends = self
            .pod
            .statuses()
            .flat_map(|status| [&status.state, &status.last_state]);
        let ended = ends.filter_map(|state| state.terminated.as_ref()?.finished_at);
        ended.chain(self.trouble).max()
    }

    /// Whether anything of it survives a restart.
    fn is_saved(&self) -> bool {
        let waits = self.decision.canary.waits.is_some();
        !self.desired.is_empty() || !self.growth.pauses.is_empty() || !self.growth.pressed.is_empty() || waits
    }

    /// What survives a restart, if there is anything.
    pub(crate) fn saved(&self) -> Option<SavedPod> {
        let pod = self.identity.clone().filter(|_| self.is_saved())?;
        Some(SavedPod {
            pod,
            described: Some(Arc::clone(&self.pod)),
            standing: Standing {
                desired: self.desired.clone(),
                resize: Resize {
                    status: ResizeStatus::Clear,
                    accepted_at: None,
                    ..self.resize.clone()
                },
            },
            regrets: self.shrink.backoffs.clone(),
            pauses: self.growth.pauses.clone(),
            pressed: self.growth.pressed.clone(),
            waits: self.decision.canary.waits.clone(),
        })
    }
}

#[cfg(test)]
mod outages;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
