//! What the coordinator knows about one pod.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::coordinator::{Order, Reply, answer, not_running};
use super::overrides::Override;
use super::shrinking::Shrinking;
use super::standing::Standing;
use crate::actuate::{ForeignWriters, PodHandles};
use crate::agent::metrics::PodState;
use crate::decide::PodDecision;
use crate::guard::lease::Lease;
use crate::model::objects::Pod;
use crate::model::objects::PodId;
use crate::model::{Cause, ChangeRecord, LivePod, MemoryLimit, NamedRequirements, Resource, ResourceList, Withheld};
use crate::pace::Backoff;
use crate::plan::shrink::Regrets;

pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(5 * 60);

/// One pod of the node.
#[derive(Debug)]
pub(super) struct Entry {
    /// As its source describes it.
    pub(super) pod: Arc<Pod>,
    /// What the latest decision says.
    pub(super) decision: PodDecision,
    /// How long that took.
    pub(super) decided_in: Duration,
    /// What stands for it.
    pub(super) standing: Standing,
    /// Where it lives, if it does.
    pub(super) live: Option<Arc<LivePod>>,
    /// The pod that the object described last. What stands is saved for it alone: an object can claim any UID, and a manifest
    /// without a UID means whichever pod has its name.
    pub(super) last_lived: Option<PodId>,
    /// Its open cgroups, unless a pass has them.
    pub(super) handles: Option<PodHandles>,
    /// Who else changes its values.
    pub(super) foreign: ForeignWriters,
    /// Whether the last pass left every file as it should be.
    pub(super) holds: bool,
    /// Why the kubelet does not let the pod have what is wanted, as far as the last pass knew.
    pub(super) withheld: Option<Withheld>,
    /// Whether the runtime could not be told yet.
    pub(super) owed: bool,
    /// Counts up when what a pass starts from changes: a pass that began before says little about what is now.
    pub(super) epoch: u64,
    /// What runs and what waits.
    pub(super) work: Work,
    /// What is known about its lower memory limits.
    pub(super) shrinking: Shrinking,
    /// What is recommended and does not stand because the node has no room for it.
    pub(super) too_much: Option<TooMuch>,
    /// Why containers were not given more memory when they needed it, by name.
    pub(super) not_saved: BTreeMap<String, String>,
    /// Containers that are lent nothing for a while because the API server denied it.
    pub(super) lending_pauses: BTreeMap<String, LendingPause>,
    /// The latest pass that did anything.
    pub(super) last: Option<Arc<ChangeRecord>>,
}

/// For how long a container is lent nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LendingPause {
    pub(super) until: Timestamp,
    /// How often in a row the API server denied what was lent.
    pub(super) times: u32,
    /// The limits of its spec at the denial: with others the answer may be another.
    pub(super) limits: ResourceList,
    /// The memory limit that was denied.
    pub(super) denied: MemoryLimit,
}

/// What the node has no room for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMuch {
    /// What is recommended.
    pub(super) targets: Vec<NamedRequirements>,
    /// The refusal, with the numbers.
    pub(super) why: String,
}

/// The pass that runs for a pod, and what comes after it.
#[derive(Debug)]
pub(super) struct Work {
    /// The number of the pass that runs now. There is never more than one.
    pub(super) running: Option<u64>,
    /// What the next pass is for.
    pub(super) pending: Option<Pending>,
    /// The operator whose request stands and who waits for how it ends.
    pub(super) waiter: Option<Waiter>,
    /// Requests that came while another operator's was not yet answered, oldest first.
    pub(super) orders: VecDeque<Order>,
    /// Spaces the attempts of a pass that fails.
    pub(super) backoff: Backoff,
    /// When to try again.
    pub(super) retry_at: Option<Instant>,
    /// When the API server last accepted a request.
    pub(super) accepted_at: Option<Instant>,
    /// Whether it failed for want of room on the node.
    pub(super) waits_for_room: bool,
}

impl Work {
    /// When the next pass is to be tried again, or may begin.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let begins = self.pending.as_ref().and_then(|pending| pending.not_before);
        [self.retry_at, begins.filter(|at| *at > now)]
            .into_iter()
            .flatten()
            .min()
    }
}

/// A pass that is asked for.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) cause: Cause,
    pub(super) asked: std::time::Instant,
    pub(super) check_runtime: bool,
    /// When it may begin: many nodes act on the same change, and not all at once.
    pub(super) not_before: Option<Instant>,
}

/// An operator who waits for a pass.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) reply: Reply<Arc<ChangeRecord>>,
    /// What stood before, to go back to if the pass is refused.
    pub(super) before: Option<ByHand>,
}

/// What operators change.
#[derive(Debug, Clone)]
pub(super) struct ByHand {
    overridden: Option<Override>,
    origin: Option<Vec<NamedRequirements>>,
    returning: bool,
    regrets: Regrets,
    leases: Vec<Lease>,
}

impl ByHand {
    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            overridden: entry.standing.overridden.clone(),
            origin: entry.standing.origin.clone(),
            returning: entry.standing.returning,
            leases: entry.standing.leases.clone(),
            regrets: entry.shrinking.regrets().clone(),
        }
    }

    /// What was lent then and is not lent any more.
    pub(super) fn loans_without<'a>(&'a self, standing: &'a Standing) -> impl Iterator<Item = &'a Lease> {
        self.leases.iter().filter(|lease| !standing.leases.contains(lease))
    }

    pub(super) fn put_back(self, entry: &mut Entry) {
        entry.standing.overridden = self.overridden;
        entry.standing.origin = self.origin;
        entry.standing.returning = self.returning;
        for lease in self.leases {
            entry.standing.keep_higher(lease);
        }
        entry.shrinking.remember(self.regrets, Timestamp::now());
    }
}

impl Entry {
    pub(super) fn new(pod: Arc<Pod>, decision: PodDecision) -> Self {
        Self {
            pod,
            decision,
            decided_in: Duration::ZERO,
            standing: Standing::default(),
            live: None,
            last_lived: None,
            handles: None,
            foreign: ForeignWriters::default(),
            holds: false,
            withheld: None,
            owed: false,
            epoch: 0,
            work: Work {
                running: None,
                pending: None,
                waiter: None,
                orders: VecDeque::new(),
                backoff: Backoff::new(FIRST_RETRY, LONGEST_RETRY),
                retry_at: None,
                accepted_at: None,
                waits_for_room: false,
            },
            shrinking: Shrinking::default(),
            too_much: None,
            not_saved: BTreeMap::new(),
            lending_pauses: BTreeMap::new(),
            last: None,
        }
    }

    /// Asks for a pass. One that waits already takes this one in: passes start from what is there, not from events.
    pub(super) fn ask(&mut self, cause: Cause, check_runtime: bool) {
        let pending = self.work.pending.get_or_insert_with(|| Pending {
            cause: cause.clone(),
            asked: std::time::Instant::now(),
            check_runtime: false,
            not_before: None,
        });
        // What was only noticed can wait as long.
        if rank(&cause) > rank(&Cause::Kubelet) {
            pending.not_before = None;
        }
        // What somebody decided says more in the history than what was noticed, and is timed from its own moment.
        if rank(&cause) > rank(&pending.cause) {
            pending.cause = cause;
            pending.asked = std::time::Instant::now();
        }
        pending.check_runtime |= check_runtime;
    }

    /// Asks for a pass that begins after a while, unless one is asked for already.
    pub(super) fn ask_after(&mut self, cause: Cause, delay: Duration) {
        let at = Instant::now() + delay;
        let not_before = self
            .work
            .pending
            .as_ref()
            .map_or(Some(at), |pending| pending.not_before);
        self.ask(cause, true);
        if let Some(pending) = &mut self.work.pending {
            pending.not_before = not_before;
        }
    }

    /// Notes which pod lives here; returns whether another one did before, whose standing is dropped.
    pub(super) fn settle_at(&mut self, id: &PodId) -> bool {
        let earlier = self.last_lived.replace(id.clone());
        let another = earlier.is_some_and(|earlier| earlier.uid != id.uid);
        if another {
            // Nothing more will be done to the earlier one.
            self.leave();
            self.standing = Standing::default();
            self.shrinking = Shrinking::default();
        }
        another
    }

    /// How the pod stands.
    pub(super) fn state(&self, now: Timestamp) -> PodState {
        if self.live.is_none() {
            PodState::NotRunning
        } else if self.standing.is_empty() && self.too_much.is_none() {
            PodState::NotManaged
        } else if self.foreign.all_paused(now).next().is_some() {
            PodState::Foreign
        } else if self.owed {
            PodState::Owed
        } else if self.work.backoff.failures() > 0
            || self.shrinking.next_regret(now).is_some()
            || self.too_much.is_some()
        {
            PodState::Refused
        } else if let Some(withheld) = &self.withheld {
            match withheld {
                Withheld::Deferred(_) => PodState::Deferred,
                Withheld::Infeasible(_) => PodState::Infeasible,
                Withheld::Failed(_) => PodState::Refused,
                Withheld::Unanswered(_) | Withheld::Postponed(_) => PodState::Working,
            }
        } else if self.holds {
            PodState::InSync
        } else {
            PodState::Working
        }
    }

    /// Why the latest pass did not simply succeed.
    pub(super) fn last_reason(&self) -> String {
        let last = self.last.as_ref().and_then(|last| last.outcome.reason());
        last.unwrap_or_default().to_owned()
    }

    /// Notes a failed pass; returns how long to wait before the next.
    pub(super) fn back_off(&mut self, now: Instant, at_least: Option<Duration>) -> Duration {
        let wait = self.work.backoff.next(at_least);
        self.work.retry_at = Some(now + wait);
        wait
    }

    /// What the pod should have, or where it lives, is something else now: whatever was learnt before says nothing any
    /// more, also what a pass that runs now will have learnt.
    pub(super) fn start_over(&mut self) {
        self.epoch += 1;
        self.foreign.forget();
        self.holds = false;
        self.withheld = None;
        self.reset_retries();
    }

    /// Whether its values are compared with what is wanted whenever they may have changed. Not while a failed pass waits
    /// to be tried again: what it wrote and undid looks like a change, and would be the reason for the next one at once.
    /// What only waits for the API server holds what it should meanwhile.
    pub(super) fn is_looked_after(&self) -> bool {
        !self.standing.is_empty() && (self.work.retry_at.is_none() || self.owed || self.holds)
    }

    /// Whether a memory limit of it was grown in an emergency, and is so still.
    pub(super) fn has_lent_memory(&self) -> bool {
        let mut leases = self.standing.leases.iter();
        leases.any(|lease| lease.resource == Resource::Memory)
    }

    /// Drops a pass that was asked for only because something was noticed: a failed pass and its undoing, most likely.
    pub(super) fn forget_notices(&mut self) {
        let noticed = |pending: &mut Pending| rank(&pending.cause) <= rank(&Cause::Drift);
        drop(self.work.pending.take_if(noticed));
    }

    /// Nothing of the pod is left on this node: whoever waits for something to be done to it is told so.
    pub(super) fn leave(&mut self) {
        self.work.pending = None;
        self.shrinking.start_over();
        if let Some(waiter) = self.work.waiter.take() {
            if let Some(before) = waiter.before {
                before.put_back(self);
            }
            answer(waiter.reply, Err(not_running(&self.pod)));
        }
        for order in self.work.orders.drain(..) {
            answer(order.reply, Err(not_running(&self.pod)));
        }
    }

    /// Forgets failures: what is wanted, or what is there, has changed.
    pub(super) fn reset_retries(&mut self) {
        self.work.backoff.reset();
        self.work.retry_at = None;
    }
}

const fn rank(cause: &Cause) -> u8 {
    match cause {
        Cause::Sweep => 0,
        Cause::Retry => 1,
        Cause::Drift => 2,
        Cause::AgentStarted => 3,
        Cause::Kubelet => 4,
        Cause::ContainerStarted => 5,
        Cause::OverrideEnded | Cause::LoanEnded | Cause::LoanDenied { .. } => 6,
        Cause::Guard { .. } => 7,
        Cause::Recommendation { .. } | Cause::BoostEnded { .. } => 8,
        Cause::Operator { .. } | Cause::Released { .. } => 9,
        // What hurts now says more than what was decided.
        Cause::Regret { .. } => 10,
    }
}

#[cfg(test)]
mod tests;
