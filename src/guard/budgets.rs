//! The bounds on growth, and one account of the node's memory. Pure.
//!
//! In come needs, one after the other, with the memory that the node has left at that moment; out comes the granted limit or a
//! [`Refusal`]. A container never grows beyond its ceiling, nor into memory that other pods have requested or were promised, nor
//! into the node's reserve, nor by more than the budgets of its pod and of the node allow. The budgets stop the many small
//! growths of a runaway container. One account decides one need at a time, so two pods that race for the last memory cannot both
//! get it.
//!
//! This module accounts for memory in use at this moment. [`crate::plan::Room`] decides whether the node has room for what a
//! pod *requests*.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::predict::Need;
use super::watchlist::Guarded;
use crate::cgroup::CgroupError;
use crate::model::{Bytes, PageSize};

/// The time that a budget is for.
pub const WINDOW: Duration = Duration::from_secs(60 * MINUTES);
const MINUTES: u64 = 60;
/// Growths that one pod may have within a window.
const POD_GROWTHS: usize = 60;
/// Growths that all pods together may have within a window.
const NODE_GROWTHS: usize = 600;
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
        let why = format!("its limit is as high as its VPA lets it be ({ceiling})");
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
    pub(super) budget: Budget,
    page: PageSize,
    /// Growths of the last window, oldest first.
    given: VecDeque<PastGrowth>,
    /// The part of its limit that a container does not use yet and will probably take.
    promised: BTreeMap<Guarded, u64>,
}

#[derive(Debug, Clone)]
struct PastGrowth {
    at: Duration,
    pod: String,
    bytes: u64,
}

impl Budgets {
    /// An account without growths.
    #[must_use]
    pub const fn new(budget: Budget, page: PageSize) -> Self {
        Self {
            budget,
            page,
            given: VecDeque::new(),
            promised: BTreeMap::new(),
        }
    }

    /// Grants a limit of at least `need.least` (or the ceiling) and at most `need.wanted`, where
    /// the node has `free` memory.
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
        self.given.retain(|given| at.saturating_sub(given.at) <= WINDOW);
        // The kernel counts whole pages, so no limit lies between two of them.
        let highest = self.page.round_down(ceiling);
        if highest <= need.limit {
            return Err(Refusal::ceiling(ceiling));
        }
        let least = need.least.min(highest).get();
        let to = need.wanted.min(highest).get();
        let others = self.promised.iter().filter(|(other, _)| *other != claimant);
        let promised = others.map(|(_, unused)| *unused).fold(0, u64::saturating_add);
        let left = free.get().saturating_sub(promised);
        let to = to.min(need.used.get().saturating_add(left));
        if to < least {
            let (left, needed) = (
                mib(Bytes::new(left)),
                mib(Bytes::new(least.saturating_sub(need.used.get()))),
            );
            let why = format!(
                "the node has {left} to give beyond its reserve and what other pods may still claim, and {needed} are needed"
            );
            return Err(Refusal::new(RefusalKind::Node, why));
        }
        let to = self.within_budgets(claimant, need.limit.get(), least, to)?;
        let whole = to / UNIT * UNIT;
        let to = if whole >= least { whole } else { to };
        self.given.push_back(PastGrowth {
            at,
            pod: claimant.pod.uid.clone(),
            bytes: to - need.limit.get(),
        });
        self.promise(claimant.clone(), Bytes::new(to), need.used);
        Ok(Bytes::new(to))
    }

    fn within_budgets(&self, claimant: &Guarded, limit: u64, least: u64, to: u64) -> Result<u64, Refusal> {
        let within = |budget: Bytes, most: usize, pod: Option<&str>| {
            let given = self.given.iter().filter(|given| pod.is_none_or(|pod| given.pod == pod));
            let (bytes, growths) = given.fold((0_u64, 0), |(bytes, growths), one| {
                (bytes.saturating_add(one.bytes), growths + 1)
            });
            let to = to.min(limit.saturating_add(budget.get().saturating_sub(bytes)));
            if growths < most && to >= least {
                return Ok(to);
            }
            let (kind, whose, key) = match pod {
                Some(_) => (RefusalKind::PodBudget, "its pod was", "guardPodBudget"),
                None => (RefusalKind::NodeBudget, "all pods were", "guardNodeBudget"),
            };
            let (given, budget) = (mib(Bytes::new(bytes)), mib(budget));
            Err(Refusal::new(
                kind,
                format!(
                    "{whose} given {given} in {growths} growths within {MINUTES} min and may be given {budget} ({key}) in {most}"
                ),
            ))
        };
        let in_pod = within(self.budget.pod, POD_GROWTHS, Some(&claimant.pod.uid))?;
        let in_node = within(self.budget.node, NODE_GROWTHS, None)?;
        Ok(in_pod.min(in_node))
    }

    /// Notes that a container will probably take all of its limit, because the limit was grown or use is rising now.
    pub fn promise(&mut self, claimant: Guarded, limit: Bytes, used: Bytes) {
        self.promised.insert(claimant, limit.saturating_sub(used).get());
    }

    /// Removes a promise: the limit is an ordinary one again, or the container is gone.
    pub fn release(&mut self, claimant: &Guarded) {
        self.promised.remove(claimant);
    }

    /// Takes back a growth whose write failed.
    pub fn undo(&mut self, claimant: &Guarded, before: Option<(Bytes, Bytes)>) {
        self.given.pop_back();
        match before {
            Some((limit, used)) => self.promise(claimant.clone(), limit, used),
            None => self.release(claimant),
        }
    }
}

#[cfg(test)]
mod tests;
