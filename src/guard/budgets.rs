//! Who may have how much more: the bounds on growth, and one account of the node's memory. Pure.
//!
//! In come needs, one after the other, with what the node has left at that moment; out comes the limit that is granted, or
//! why none is. A container never grows beyond its ceiling; never into memory that other pods have requested or were
//! promised, nor into the node's reserve; and never by more than the budgets of its pod and of the node allow, which is
//! what stops many small growths of a runaway. Because there is one account and one decision at a time, two pods that race for the
//! last memory cannot both be given it.
//!
//! This is about the memory there is at this moment, and who uses it. Whether the node has room for what a pod is to
//! *request* is another question, and [`crate::plan::Room`] answers it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::predict::Need;
use super::watchlist::Guarded;
use crate::model::{Bytes, PageSize};

/// Budgets are for this long.
pub const WINDOW: Duration = Duration::from_secs(60 * MINUTES);
const MINUTES: u64 = 60;
/// Growths that one pod may have within a window.
const POD_GROWTHS: usize = 60;
/// Growths that all pods together may have within a window.
const NODE_GROWTHS: usize = 600;
/// Limits are granted in units of this, where that is enough.
pub(super) const UNIT: u64 = 1 << 20;

/// What may be given out within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    pub pod: Bytes,
    pub node: Bytes,
}

/// What the node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// What could be given out: available memory, or what the pods' root has room for if that is less, without the reserve.
    pub free: Bytes,
    /// What pods other than the one that asks have requested and do not use yet.
    pub claimed: Bytes,
}

/// Why a limit was not grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Refusal {
    /// It is as high as its bounds let it be.
    #[display("its limit is as high as its VPA lets it be ({ceiling})")]
    Ceiling {
        /// The highest limit it may have.
        ceiling: Bytes,
    },
    /// Its pod's limit does not grow with it.
    #[display("its pod's limit of {limit} stands, of which the other containers leave it {}", mib(*left))]
    Pod {
        limit: Bytes,
        /// What of it the other containers do not use.
        left: Bytes,
    },
    /// The node cannot hold it.
    #[display(
        "the node has {} to give beyond its reserve and what other pods may still claim, and {} are needed",
        mib(*left), mib(*needed)
    )]
    Node {
        /// What was needed beyond what the container uses, at least.
        needed: Bytes,
        /// What there was to give.
        left: Bytes,
    },
    /// Its pod has grown too much lately.
    #[display(
        "its pod was given {} in {growths} growths within {MINUTES} min and may be given {} (guardPodBudget) in {POD_GROWTHS}",
        mib(*given), mib(*budget)
    )]
    PodBudget {
        /// What the pod was given within the window.
        given: Bytes,
        growths: usize,
        /// What it may be given.
        budget: Bytes,
    },
    /// All pods together have grown too much lately.
    #[display(
        "all pods were given {} in {growths} growths within {MINUTES} min and may be given {} (guardNodeBudget) in {NODE_GROWTHS}",
        mib(*given), mib(*budget)
    )]
    NodeBudget {
        /// What they were given within the window.
        given: Bytes,
        growths: usize,
        /// What they may be given.
        budget: Bytes,
    },
}

impl Refusal {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ceiling { .. } => "ceiling",
            Self::Pod { .. } => "pod",
            Self::Node { .. } => "node",
            Self::PodBudget { .. } => "pod_budget",
            Self::NodeBudget { .. } => "node_budget",
        }
    }
}

fn mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.get() >> 20)
}

/// The account of memory and budgets for temporary limits.
#[derive(Debug, Clone)]
pub struct Budgets {
    pub(super) budget: Budget,
    page: PageSize,
    /// Growths of the last window, oldest first.
    given: VecDeque<Given>,
    /// How much of its limit a container does not use yet, and may well take.
    promised: BTreeMap<Guarded, u64>,
}

#[derive(Debug, Clone)]
struct Given {
    at: Duration,
    pod: String,
    bytes: u64,
}

impl Budgets {
    /// An account with nothing given yet.
    #[must_use]
    pub const fn new(budget: Budget, page: PageSize) -> Self {
        Self {
            budget,
            page,
            given: VecDeque::new(),
            promised: BTreeMap::new(),
        }
    }

    /// Grants a limit of at least `need.least` (or the ceiling) and at most `need.wanted`.
    ///
    /// Errors: [`Refusal`]; nothing is changed then.
    pub fn grant(
        &mut self,
        at: Duration,
        claimant: &Guarded,
        limit: Bytes,
        need: &Need,
        ceiling: Bytes,
        node: NodeMemory,
    ) -> Result<Bytes, Refusal> {
        self.expire(at);
        // The kernel counts whole pages: what is left above them is nothing that could be given.
        let highest = self.page.round_down(ceiling);
        if highest <= limit {
            return Err(Refusal::Ceiling { ceiling });
        }
        let least = need.least.min(highest).get();
        let to = need.wanted.min(highest).get();
        let left = self.left(claimant, node);
        let to = to.min(need.used.get().saturating_add(left));
        if to < least {
            return Err(Refusal::Node {
                needed: Bytes::new(least.saturating_sub(need.used.get())),
                left: Bytes::new(left),
            });
        }
        let to = self.within_budgets(claimant, limit.get(), least, to)?;
        let whole = to / UNIT * UNIT;
        let to = if whole >= least { whole } else { to };
        self.given.push_back(Given {
            at,
            pod: claimant.pod.uid.clone(),
            bytes: to - limit.get(),
        });
        self.promise(claimant.clone(), Bytes::new(to), need.used);
        Ok(Bytes::new(to))
    }

    /// What there is to give to this claimant beyond what it uses.
    fn left(&self, claimant: &Guarded, node: NodeMemory) -> u64 {
        let others = self.promised.iter().filter(|(other, _)| *other != claimant);
        let promised: u64 = others.map(|(_, unused)| *unused).fold(0, u64::saturating_add);
        let spoken_for = promised.saturating_add(node.claimed.get());
        node.free.get().saturating_sub(spoken_for)
    }

    fn within_budgets(&self, claimant: &Guarded, limit: u64, least: u64, to: u64) -> Result<u64, Refusal> {
        let within = |budget: Bytes, most: usize, given: &mut dyn Iterator<Item = &Given>| {
            let (bytes, growths) = given.fold((0_u64, 0), |(bytes, growths), one| {
                (bytes.saturating_add(one.bytes), growths + 1)
            });
            let to = to.min(limit.saturating_add(budget.get().saturating_sub(bytes)));
            let allowed = growths < most && to >= least;
            allowed.then_some(to).ok_or((Bytes::new(bytes), growths))
        };
        let of_pod = &mut self.given.iter().filter(|given| given.pod == claimant.pod.uid);
        let budget = self.budget.pod;
        let in_pod = within(budget, POD_GROWTHS, of_pod).map_err(|(given, growths)| Refusal::PodBudget {
            given,
            growths,
            budget,
        })?;
        let budget = self.budget.node;
        let in_node = within(budget, NODE_GROWTHS, &mut self.given.iter())
            .map_err(|(given, growths)| Refusal::NodeBudget { given, growths, budget })?;
        Ok(in_pod.min(in_node))
    }

    /// Notes a limit that its container may well take all of, because it was grown or is being filled right now, and
    /// how much of it is used now.
    pub fn promise(&mut self, claimant: Guarded, limit: Bytes, used: Bytes) {
        self.promised.insert(claimant, limit.saturating_sub(used).get());
    }

    /// Takes back what was promised: the limit is an ordinary one again, or its container is gone.
    pub fn release(&mut self, claimant: &Guarded) {
        self.promised.remove(claimant);
    }

    /// Takes back a growth that could not be carried out.
    pub fn undo(&mut self, claimant: &Guarded, before: Option<(Bytes, Bytes)>) {
        self.given.pop_back();
        match before {
            Some((limit, used)) => self.promise(claimant.clone(), limit, used),
            None => self.release(claimant),
        }
    }

    fn expire(&mut self, at: Duration) {
        while self
            .given
            .front()
            .is_some_and(|given| at.saturating_sub(given.at) > WINDOW)
        {
            self.given.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
