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

/// How much memory the guard may lend within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    pub pod: Bytes,
    pub node: Bytes,
}

/// Why a limit was not grown.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Refusal {
    /// The limit is as high as its bounds allow.
    #[display("its limit is as high as its VPA lets it be ({ceiling})")]
    Ceiling {
        /// The highest limit it may have.
        ceiling: Bytes,
    },
    /// The pod's limit does not grow with the container's.
    #[display("its pod's limit of {limit} stands, of which the other containers leave it {}", mib(*left))]
    Pod {
        limit: Bytes,
        /// The part that the other containers do not use.
        left: Bytes,
    },
    /// The node has too little memory.
    #[display(
        "the node has {} to give beyond its reserve and what other pods may still claim, and {} are needed",
        mib(*left), mib(*needed)
    )]
    Node {
        /// The least memory that the container needs beyond its use.
        needed: Bytes,
        left: Bytes,
    },
    /// The pod has grown too much within the window.
    #[display(
        "its pod was given {} in {growths} growths within {MINUTES} min and may be given {} (guardPodBudget) in {POD_GROWTHS}",
        mib(*given), mib(*budget)
    )]
    PodBudget {
        given: Bytes,
        growths: usize,
        budget: Bytes,
    },
    /// All pods together have grown too much within the window.
    #[display(
        "all pods were given {} in {growths} growths within {MINUTES} min and may be given {} (guardNodeBudget) in {NODE_GROWTHS}",
        mib(*given), mib(*budget)
    )]
    NodeBudget {
        given: Bytes,
        growths: usize,
        budget: Bytes,
    },
    /// The kernel does not show the memory of the node or of the pod.
    #[display("{_0}")]
    Unreadable(String),
}

impl From<CgroupError> for Refusal {
    fn from(error: CgroupError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl Refusal {
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Ceiling { .. } => "ceiling",
            Self::Pod { .. } => "pod",
            Self::Node { .. } => "node",
            Self::PodBudget { .. } => "pod_budget",
            Self::NodeBudget { .. } => "node_budget",
            Self::Unreadable(_) => "unknown",
        }
    }
}

fn mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.get() >> 20)
}

/// The account of memory that the guard has lent.
#[derive(Debug, Clone)]
pub struct Budgets {
    pub(super) budget: Budget,
    page: PageSize,
    /// Growths of the last window, oldest first.
    given: VecDeque<Given>,
    /// The part of its limit that a container does not use yet and will probably take.
    promised: BTreeMap<Guarded, u64>,
}

#[derive(Debug, Clone)]
struct Given {
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

    /// Grants a limit of at least `need.least` (or the ceiling) and at most `need.wanted`, where the node can lend `free`.
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
            return Err(Refusal::Ceiling { ceiling });
        }
        let least = need.least.min(highest).get();
        let to = need.wanted.min(highest).get();
        let others = self.promised.iter().filter(|(other, _)| *other != claimant);
        let promised = others.map(|(_, unused)| *unused).fold(0, u64::saturating_add);
        let left = free.get().saturating_sub(promised);
        let to = to.min(need.used.get().saturating_add(left));
        if to < least {
            return Err(Refusal::Node {
                needed: Bytes::new(least.saturating_sub(need.used.get())),
                left: Bytes::new(left),
            });
        }
        let to = self.within_budgets(claimant, need.limit.get(), least, to)?;
        let whole = to / UNIT * UNIT;
        let to = if whole >= least { whole } else { to };
        self.given.push_back(Given {
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
            let given = Bytes::new(bytes);
            match pod {
                _ if growths < most && to >= least => Ok(to),
                Some(_) => Err(Refusal::PodBudget { given, growths, budget }),
                None => Err(Refusal::NodeBudget { given, growths, budget }),
            }
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
