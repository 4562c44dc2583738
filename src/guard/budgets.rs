//! The bounds on growth, and one account of the node's memory. Pure.
//!
//! In come needs, one after the other, with the memory that the node has left at that moment; out comes the granted limit or a
//! [`Refusal`]. A container never grows beyond its ceiling, nor into memory that other pods have requested or were promised, nor
//! into the node's reserve, nor by more than the budgets of its pod and of the node allow. The budgets stop the many small
//! growths of a runaway container. One account decides one need at a time, so two pods that race for the last memory cannot both
//! get it.
//!
//! Namespaces share the node's memory and its budget fairly ([`share`](crate::share)): whatever the containers of one namespace
//! do, another one grows up to its share. Half of the budget is divided in advance, because growth cannot be taken back.
//!
//! This module accounts for memory in use at this moment. [`crate::plan::Room`] decides whether the node has room for what a
//! pod *requests*.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::predict::Need;
use super::rate::{BytesPerSecond, grown};
use super::watchlist::Guarded;
use crate::cgroup::CgroupError;
use crate::model::objects::PodId;
use crate::model::{Bytes, PageSize};
use crate::share::{FairShare, LeftOut, max_min_share};

/// The time for which a container is promised memory at its present rate. By then the guard has read its use again.
const HORIZON: Duration = Duration::from_secs(1);
/// How long at most a namespace whose growth was refused counts as one that waits, halved.
const WAITS: Duration = Duration::from_secs(10);
/// The time that a budget is for.
pub const WINDOW: Duration = Duration::from_secs(60 * MINUTES);
const MINUTES: u64 = 60;
/// Growths that one pod may have within a window.
const POD_GROWTHS: usize = 60;
/// Growths that all pods together may have within a window.
const NODE_GROWTHS: u64 = 600;
/// Granted limits are multiples of this, where such a multiple is large enough.
pub(super) const UNIT: u64 = 1 << 20;

/// By how much the guard may grow limits within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    pub pod: Bytes,
    pub node: Bytes,
}

/// Why a limit was not grown.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{why}")]
pub struct Refusal {
    pub kind: RefusalKind,
    pub why: String,
}

/// The bound that a growth would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
pub enum RefusalKind {
    /// The limit is as high as its bounds allow.
    Ceiling,
    /// The pod's limit does not grow with the container's.
    Pod,
    /// The node has too little memory.
    Node,
    /// The pod has grown too much within the window.
    PodBudget,
    /// All pods together have grown too much within the window.
    NodeBudget,
    /// The kernel does not show the memory of the node or of the pod.
    Unreadable,
}

impl Refusal {
    pub(super) const fn new(kind: RefusalKind, why: String) -> Self {
        Self { kind, why }
    }

    pub(super) fn ceiling(ceiling: Bytes) -> Self {
        let why = format!("its limit is the highest that its VPA allows ({ceiling})");
        Self::new(RefusalKind::Ceiling, why)
    }
}

impl From<CgroupError> for Refusal {
    fn from(error: CgroupError) -> Self {
        Self::new(RefusalKind::Unreadable, error.to_string())
    }
}

pub(super) fn mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.get() >> 20)
}

/// The account of memory that the guard has granted.
#[derive(Debug, Clone)]
pub struct Budgets {
    budget: Budget,
    page: PageSize,
    /// Growths of the last window, oldest first.
    given: VecDeque<PastGrowth>,
    /// The node's budget in bytes, by namespace.
    bytes: FairShare<String>,
    /// The node's budget in growths, by namespace.
    growths: FairShare<String>,
    period_ends: Duration,
    /// The part of its limit that a container does not use yet and will probably take.
    promised: BTreeMap<Guarded, u64>,
}

#[derive(Debug, Clone)]
struct PastGrowth {
    at: Duration,
    pod: PodId,
    bytes: u64,
}

impl Budgets {
    /// An account without growths.
    pub const fn new(budget: Budget, page: PageSize) -> Self {
        let node = budget.node.get();
        Self {
            budget,
            page,
            given: VecDeque::new(),
            bytes: FairShare::new(node, node / 2),
            growths: FairShare::new(NODE_GROWTHS, NODE_GROWTHS / 2),
            period_ends: Duration::ZERO,
            promised: BTreeMap::new(),
        }
    }

    /// Replaces the budget, and the namespaces with limits that may grow.
    pub fn set(&mut self, budget: Budget, namespaces: &BTreeSet<String>) {
        self.budget = budget;
        self.bytes.resize(budget.node.get(), budget.node.get() / 2);
        self.bytes.expect(namespaces.iter().cloned());
        self.growths.expect(namespaces.iter().cloned());
    }

    /// Takes growths out of the budgets that are older than the window.
    fn end_old(&mut self, now: Duration) {
        let is_old = |given: &PastGrowth| now.saturating_sub(given.at) > WINDOW;
        while self.given.front().is_some_and(is_old)
            && let Some(given) = self.given.pop_front()
        {
            self.give_back(&given);
        }
        if self.period_ends <= now {
            self.period_ends = now + WAITS / 2;
            self.bytes.end_period();
            self.growths.end_period();
        }
    }

    fn give_back(&mut self, PastGrowth { pod, bytes, .. }: &PastGrowth) {
        self.bytes.give_back(&pod.namespace, *bytes);
        self.growths.give_back(&pod.namespace, 1);
    }

    /// Grants a limit of at least `need.least` (or the ceiling) and at most `need.wanted`, where the node has `free` memory. The limit
    /// is in whole pages, and one page higher at least.
    ///
    /// Errors: [`Refusal`]; the account is then unchanged.
    pub fn grant(
        &mut self,
        at: Duration,
        claimant: &Guarded,
        need: &Need,
        ceiling: Bytes,
        free: Bytes,
    ) -> Result<Bytes, Refusal> {
        self.end_old(at);
        // The kernel counts whole pages, so no limit lies between two of them, and one that did would be no growth where limits are tiny.
        let highest = self.page.round_down(ceiling);
        if highest <= need.limit {
            return Err(Refusal::ceiling(ceiling));
        }
        let above = need.least.max(need.limit.saturating_add(Bytes::new(1)));
        let least = self.page.round_up(above).min(highest).get();
        let wanted = need.wanted.min(highest).get().max(least);
        let used = need.used.get();
        let room = self.room(claimant, wanted.saturating_sub(used), free);
        let to = wanted.min(used.saturating_add(room));
        if to < least {
            let namespace = &claimant.pod.namespace;
            // Rounded up: of a tiny limit, less than a mebibyte may be left and needed.
            let [left, needed] = [to, least].map(|limit| limit.saturating_sub(used));
            let (left, needed) = (mib(Bytes::new(left)), mib(Bytes::new(needed.next_multiple_of(UNIT))));
            let why = format!(
                "the node can give {left} to namespace {namespace} beyond its reserve and what other pods may still claim, but \
                 {needed} are needed"
            );
            return Err(Refusal::new(RefusalKind::Node, why));
        }
        let to = self.within_budgets(claimant, need.limit.get(), least, to)?;
        let whole = Some(to / UNIT * UNIT).filter(|whole| *whole >= least);
        let whole = whole.unwrap_or_else(|| self.page.round_down(Bytes::new(to)).get());
        self.bytes.give_back(&claimant.pod.namespace, to - whole);
        self.given.push_back(PastGrowth {
            at,
            pod: claimant.pod.clone(),
            bytes: whole - need.limit.get(),
        });
        self.promised.insert(claimant.clone(), whole.saturating_sub(used));
        Ok(Bytes::new(whole))
    }

    /// The part of so much more memory that a container may have: its namespace's share of what the node has left.
    fn room(&self, claimant: &Guarded, more: u64, free: Bytes) -> u64 {
        let mut promised = BTreeMap::<&str, u64>::new();
        for (other, unused) in self.promised.iter().filter(|(other, _)| *other != claimant) {
            let sum = promised.entry(&other.pod.namespace).or_default();
            *sum = sum.saturating_add(*unused);
        }
        let own = promised.remove(claimant.pod.namespace.as_str()).unwrap_or(0);
        let share = max_min_share(free.get(), own.saturating_add(more), promised.into_values());
        share.saturating_sub(own)
    }

    /// Takes a growth from the budgets.
    fn within_budgets(&mut self, claimant: &Guarded, limit: u64, least: u64, to: u64) -> Result<u64, Refusal> {
        let (pod, budget) = (&claimant.pod, self.budget.pod);
        let of_pod = self.given.iter().filter(|given| given.pod.uid == pod.uid);
        let (given, growths) = of_pod.fold((0_u64, 0), |(bytes, growths), one| {
            (bytes.saturating_add(one.bytes), growths + 1)
        });
        let to = to.min(limit.saturating_add(budget.get().saturating_sub(given)));
        if growths >= POD_GROWTHS || to < least {
            let given = mib(Bytes::new(given));
            let budget = mib(budget);
            let why = format!(
                "its pod's limits were raised {growths} times, by {given}, within {MINUTES} min; allowed are {POD_GROWTHS} times \
                 and {budget} (guardPodBudget)"
            );
            return Err(Refusal::new(RefusalKind::PodBudget, why));
        }
        let namespace = &pod.namespace;
        let of_node = |LeftOut { total, share, users }: LeftOut, text: fn(u64) -> String| {
            let (total, share) = (text(total), text(share));
            let why = format!(
                "{users} namespaces share {total} within {MINUTES} min (guardNodeBudget), and {namespace} may have {share} now"
            );
            Refusal::new(RefusalKind::NodeBudget, why)
        };
        let growths = self.growths.take(namespace, 1, 1);
        growths.map_err(|left_out| of_node(left_out, |growths| format!("{growths} raised limits")))?;
        let [least, most] = [least, to].map(|to| to.saturating_sub(limit));
        let bytes = self.bytes.take(namespace, least, most).map_err(|left_out| {
            self.growths.give_back(namespace, 1);
            of_node(left_out, |bytes| mib(Bytes::new(bytes)))
        })?;
        Ok(limit + bytes)
    }

    /// Notes how much of its limit a container will probably take, by the rate that its use grows at.
    pub fn promise(&mut self, claimant: Guarded, unused: u64, rate: BytesPerSecond) {
        match unused.min(grown(rate, HORIZON)) {
            0 => self.release(&claimant),
            promised => {
                self.promised.insert(claimant, promised);
            }
        }
    }

    /// Removes a promise: the limit is an ordinary one again, or the container is gone.
    pub fn release(&mut self, claimant: &Guarded) {
        self.promised.remove(claimant);
    }

    /// Takes back the latest growth, whose write failed. The container's next reading renews its promise.
    pub fn undo(&mut self, claimant: &Guarded) {
        if let Some(given) = self.given.pop_back() {
            self.give_back(&given);
        }
        self.release(claimant);
    }
}

#[cfg(test)]
mod tests;
