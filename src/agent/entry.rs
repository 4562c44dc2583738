//! What the coordinator knows about one pod.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::standing::Standing;
use crate::actuate::{Cause, ChangeRecord, ForeignWriters, LivePod, PodHandles, PodId};
use crate::decide::PodDecision;
use crate::objects::Pod;
use crate::observe::metrics::PodState;

pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(5 * 60);

/// One pod of the node.
#[derive(Debug)]
pub(super) struct Entry {
    /// As its source describes it.
    pub(super) pod: Arc<Pod>,
    /// What the latest decision says.
    pub(super) decision: PodDecision,
    /// What stands for it.
    pub(super) standing: Standing,
    /// Where it lives, if it does.
    pub(super) live: Option<LivePod>,
    /// Its open cgroups, unless a pass has them.
    pub(super) handles: Option<PodHandles>,
    /// Who else changes its values.
    pub(super) foreign: ForeignWriters,
    /// Whether the last pass left every file as it should be.
    pub(super) holds: bool,
    /// Whether the runtime could not be told yet.
    pub(super) owed: bool,
    /// What runs and what waits.
    pub(super) work: Work,
    /// The latest pass that did anything.
    pub(super) last: Option<Arc<ChangeRecord>>,
}

/// The pass that runs for a pod, and what comes after it.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The UID of the pod that a pass runs for now. There is never more than one pass.
    pub(super) running: Option<String>,
    /// What the next pass is for.
    pub(super) pending: Option<Pending>,
    /// Operators who wait for the pass that runs.
    pub(super) waiting: Vec<Waiter>,
    /// How often the pass has failed in a row.
    pub(super) failures: u32,
    /// When to try again.
    pub(super) retry_at: Option<Instant>,
}

/// A pass that is asked for.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) cause: Cause,
    pub(super) asked: std::time::Instant,
    pub(super) check_runtime: bool,
    pub(super) waiting: Vec<Waiter>,
}

/// An operator who waits for a pass.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) reply: oneshot::Sender<Arc<ChangeRecord>>,
    /// What stood before, to go back to if the pass is refused.
    pub(super) before: Option<Standing>,
}

impl Entry {
    pub(super) fn new(pod: Arc<Pod>, decision: PodDecision) -> Self {
        Self {
            pod,
            decision,
            standing: Standing::default(),
            live: None,
            handles: None,
            foreign: ForeignWriters::default(),
            holds: false,
            owed: false,
            work: Work::default(),
            last: None,
        }
    }

    /// Asks for a pass. One that waits already takes this one in: passes start from what is there, not from events.
    pub(super) fn ask(&mut self, cause: Cause, check_runtime: bool, waiter: Option<Waiter>) {
        let pending = self.work.pending.get_or_insert_with(|| Pending {
            cause: cause.clone(),
            asked: std::time::Instant::now(),
            check_runtime: false,
            waiting: Vec::new(),
        });
        // What somebody decided says more in the history than what was noticed.
        if rank(&cause) > rank(&pending.cause) {
            pending.cause = cause;
        }
        pending.check_runtime |= check_runtime;
        pending.waiting.extend(waiter);
    }

    /// Which pod this is, as far as that is known: a manifest without a UID tells once its pod lives.
    pub(super) fn id(&self) -> Option<PodId> {
        let metadata = &self.pod.metadata;
        let described = PodId {
            uid: self.pod.cgroup_uid().to_owned(),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        };
        let live = self.live.as_ref().map(|live| live.id.clone());
        live.or_else(|| (!described.uid.is_empty()).then_some(described))
    }

    /// How the pod stands.
    pub(super) fn state(&self, now: Timestamp) -> PodState {
        if self.live.is_none() {
            PodState::NotRunning
        } else if self.standing.is_empty() {
            PodState::NotManaged
        } else if self.foreign.all_paused(now).next().is_some() {
            PodState::Foreign
        } else if self.owed {
            PodState::Owed
        } else if self.work.failures > 0 {
            PodState::Refused
        } else if self.holds {
            PodState::InSync
        } else {
            PodState::Working
        }
    }

    /// Notes a failed pass; returns how long to wait before the next.
    pub(super) fn back_off(&mut self, now: Instant) -> Duration {
        let doubled = FIRST_RETRY.saturating_mul(1 << self.work.failures.min(16));
        let wait = doubled.min(LONGEST_RETRY);
        self.work.failures = self.work.failures.saturating_add(1);
        self.work.retry_at = Some(now + wait);
        wait
    }

    /// What the pod should have is something else now: whatever was learnt about the old values says nothing any more.
    pub(super) fn wanted_changed(&mut self) {
        self.foreign.forget();
        self.holds = false;
        self.reset_retries();
    }

    /// Forgets failures: what is wanted, or what is there, has changed.
    pub(super) fn reset_retries(&mut self) {
        self.work.failures = 0;
        self.work.retry_at = None;
    }
}

const fn rank(cause: &Cause) -> u8 {
    match cause {
        Cause::Sweep => 0,
        Cause::Retry => 1,
        Cause::Drift => 2,
        Cause::AgentStarted => 3,
        Cause::ContainerStarted => 4,
        Cause::OverrideEnded => 5,
        Cause::Recommendation { .. } => 6,
        Cause::Operator { .. } => 7,
    }
}
