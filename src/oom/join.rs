//! Counters and log → one [`OomKill`] for each kill. Pure: times are arguments, counted from any fixed moment.
//!
//! In come kills from the log, with the time they were logged at, and rises of containers' counters, with the two times
//! they were read at; out comes every kill once, with what is certain of it told apart from what is not. A counter says for
//! certain that a container lost a process; the log says which process and why, but often not where. So:
//!
//! * A kill whose cgroup the log names, or `/proc` still knew, is told at once. Its container's counter has risen, or
//!   will, and that rise is then spoken for.
//! * A kill without a cgroup is held until every counter was read again ([`HOLD`]), then given a rise of that time that
//!   nobody spoke for. If that leaves no choice the container is known; if it does, the container is certain and the victim
//!   one of several.
//! * A rise for which no kill was logged is told alone once the log had its time ([`LOG_DELAY`]).
//!
//! The kernel counts a kill just before it logs it (`__oom_kill_process`), so a kill belongs to the rise between whose two
//! reads it was logged. It counts the first victim of a group twice and logs it twice; the second time speaks for a rise,
//! and is no kill.
//!
//! Feed the counters of one level only, those of containers (a v2 counter also counts what is below it), and read each at
//! least every second. Must never tell more kills for a container than its counter rose by and the log named, nor place a
//! victim where it merely may have been.

mod evidence;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::kill::Kill;
use super::summary::Limit;
use crate::cgroup::CgroupPath;

pub use evidence::{Evidence, OomKill};

/// By then every counter was read after a kill, and what was logged before that read is known.
pub const HOLD: Duration = Duration::from_secs(2);
/// By then what the kernel logged with a kill was read; 156 ms was the longest seen, on a stalled machine.
pub const LOG_DELAY: Duration = Duration::from_millis(250);
/// How far the time of a record may be off: its clock is not the one counters are read by.
const SLACK: Duration = Duration::from_millis(50);
/// How long a told kill speaks for a rise that is still to be noticed.
const CLAIM: Duration = Duration::from_secs(10);
/// Kills held at most: the oldest is then decided early.
const MOST_HELD: usize = 4096;

/// Joins both sides.
#[derive(Debug)]
pub struct Joiner {
    has_log: bool,
    held: Vec<Held>,
    /// Kills that were among several for a rise. Rises they did not get may be theirs.
    undecided: Vec<Held>,
    rises: Vec<Rise>,
    claims: Vec<Claim>,
}

/// A logged kill without a cgroup.
#[derive(Debug, Clone)]
struct Held {
    kill: Kill,
    logged: Duration,
}

/// One kill counted in a cgroup, between two reads of its counter.
#[derive(Debug)]
struct Rise {
    cgroup: CgroupPath,
    after: Duration,
    by: Duration,
}

/// One kill that was told for a cgroup and is to be counted there.
#[derive(Debug)]
struct Claim {
    cgroup: CgroupPath,
    logged: Duration,
}

impl Rise {
    fn is_ripe(&self, now: Duration) -> bool {
        self.by + LOG_DELAY <= now
    }

    fn spans(&self, logged: Duration, slack: Duration) -> bool {
        self.after <= logged + slack && logged <= self.by + slack
    }

    fn is_of(&self, claim: &Claim, slack: Duration) -> bool {
        claim.cgroup.below(&self.cgroup).is_some() && self.spans(claim.logged, slack)
    }
}

impl Held {
    /// Whether this kill can be the one that was counted there then: in time, and below the limit that was hit, if known.
    fn may_be(&self, rise: &Rise) -> bool {
        let below_limit = match &self.kill.limit {
            Limit::Cgroup(limit) => rise.cgroup.below(limit).is_some(),
            Limit::Node | Limit::Unknown => true,
        };
        below_limit && rise.spans(self.logged, SLACK)
    }

    fn is_restricted(&self) -> bool {
        matches!(self.kill.limit, Limit::Cgroup(_))
    }
}

impl Joiner {
    /// Begins with nothing known. Without a readable log, rises are told at once.
    #[must_use]
    pub const fn new(has_log: bool) -> Self {
        Self {
            has_log,
            held: Vec::new(),
            undecided: Vec::new(),
            rises: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Takes a kill that was logged at that time. `found` is the cgroup that `/proc/<pid>/cgroup` showed right after, if it
    /// was asked: `/` is what v1 shows of a process that is already leaving, so it says nothing.
    pub fn logged(&mut self, logged: Duration, kill: Kill, found: Option<CgroupPath>) -> Option<OomKill> {
        let known = |path: &CgroupPath| *path != CgroupPath::root();
        let named = kill
            .task_cgroup
            .clone()
            .filter(known)
            .or_else(|| container_limit(&kill));
        let (cgroup, evidence): (_, fn(Box<Kill>) -> Evidence) = match (named, found.filter(known)) {
            (Some(cgroup), _) => (cgroup, Evidence::Named),
            (None, Some(cgroup)) => (cgroup, Evidence::Procfs),
            (None, None) => {
                self.held.push(Held { kill, logged });
                let early = self.held.len() > MOST_HELD;
                return early.then(|| self.decide(logged, 0));
            }
        };
        self.claim(logged, cgroup.clone());
        Some(OomKill {
            cgroup: Some(cgroup),
            evidence: evidence(Box::new(kill)),
        })
    }

    /// Takes the second logging of a group's first victim, which was counted a second time, too.
    pub fn logged_again(&mut self, logged: Duration, pid: u32, group: &CgroupPath) -> Option<OomKill> {
        self.claim(logged, group.clone());
        let at = self.held.iter().position(|held| held.kill.pid == pid)?;
        let Held { mut kill, logged } = self.held.remove(at);
        kill.task_cgroup = Some(group.clone());
        kill.group = Some(group.clone());
        self.logged(logged, kill, None)
    }

    /// Takes a rise of a container's counter between two reads: `after` the first and `by` the second, which was just now.
    pub fn counted(&mut self, after: Duration, by: Duration, cgroup: &CgroupPath, kills: NonZeroU64) -> Vec<OomKill> {
        let mut told = Vec::new();
        for _ in 0..kills.get() {
            let cgroup = cgroup.clone();
            let rise = Rise { cgroup, after, by };
            match self.claims.iter().position(|claim| rise.is_of(claim, Duration::ZERO)) {
                Some(at) => drop(self.claims.remove(at)),
                None if self.has_log => self.rises.push(rise),
                None => told.push(OomKill::counter_alone(rise.cgroup)),
            }
        }
        told
    }

    /// Decides what had its time. Call this at [`Self::due`], or at any other time.
    pub fn settle(&mut self, now: Duration) -> Vec<OomKill> {
        let mut told = Vec::new();
        while let Some(at) = self.held.iter().position(|held| held.logged + HOLD <= now) {
            told.push(self.decide(now, at));
        }
        let (held, claims) = (&self.held, &mut self.claims);
        let unwanted = |rise: &mut Rise| rise.is_ripe(now) && !held.iter().any(|held| held.may_be(rise));
        for rise in self.rises.extract_if(.., unwanted) {
            // Only now may a claim take a rise that is slightly out of its time: its own rise may still be to come, and
            // then the kill counted here would have none left.
            match claims.iter().position(|claim| rise.is_of(claim, SLACK)) {
                Some(at) => drop(claims.remove(at)),
                None => told.push(OomKill::counter_alone(rise.cgroup)),
            }
        }
        self.undecided.retain(|old| now <= old.logged + 2 * HOLD);
        self.claims.retain(|claim| now <= claim.logged + CLAIM);
        told
    }

    /// When something can be decided next.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let unwanted = self
            .rises
            .iter()
            .filter(|rise| !self.held.iter().any(|held| held.may_be(rise)));
        let rises = unwanted.map(|rise| rise.by + LOG_DELAY);
        self.held.iter().map(|held| held.logged + HOLD).chain(rises).min()
    }

    /// Speaks for a rise in this cgroup: one that was noticed, else one to come.
    fn claim(&mut self, logged: Duration, cgroup: CgroupPath) {
        let claim = Claim { cgroup, logged };
        match self.rises.iter().position(|rise| rise.is_of(&claim, Duration::ZERO)) {
            Some(at) => drop(self.rises.remove(at)),
            None => self.claims.push(claim),
        }
    }

    /// Gives a held kill a rise. Rises whose own kill may still be on its way through the log are left alone.
    fn decide(&mut self, now: Duration, at: usize) -> OomKill {
        let held = self.held.remove(at);
        let possible: Vec<usize> = (0..self.rises.len())
            .filter(|rise| held.may_be(&self.rises[*rise]) && self.rises[*rise].is_ripe(now))
            .collect();
        // Restricted kills have fewer rises to choose from, so others leave those to them.
        let wanted = |rise: &usize| {
            self.held
                .iter()
                .any(|other| other.is_restricted() && other.may_be(&self.rises[*rise]))
        };
        let Some(&chosen) = possible.iter().min_by_key(|rise| (wanted(rise), self.rises[**rise].by)) else {
            return OomKill::log_alone(held.kill);
        };
        let rivals = |held: &&Held| possible.iter().any(|rise| held.may_be(&self.rises[*rise]));
        let one_cgroup = possible
            .iter()
            .all(|rise| self.rises[*rise].cgroup == self.rises[chosen].cgroup);
        let enough = self.held.iter().filter(rivals).count() < possible.len();
        // A kill that was undecided may have been given a rise of this one's, and this one's cgroup not be among these.
        let untouched = !self
            .undecided
            .iter()
            .any(|old| old.logged.abs_diff(held.logged) <= HOLD);
        if one_cgroup && enough && untouched {
            let cgroup = self.rises.remove(chosen).cgroup;
            return OomKill {
                cgroup: Some(cgroup),
                evidence: Evidence::OnlyCounter(Box::new(held.kill)),
            };
        }
        self.undecided.push(held);
        let rise = self.rises.remove(chosen);
        let rivals = self
            .undecided
            .iter()
            .chain(&self.held)
            .filter(|held| held.may_be(&rise));
        let candidates: Arc<[Kill]> = rivals.map(|held| held.kill.clone()).collect();
        OomKill {
            cgroup: Some(rise.cgroup),
            evidence: Evidence::Ambiguous(candidates),
        }
    }
}

/// The container whose own limit was hit, where the kernel does not show what its victim was in.
fn container_limit(kill: &Kill) -> Option<CgroupPath> {
    let is_container = kill.limit.level() == super::Level::Container;
    kill.limit.cgroup().filter(|_| is_container).cloned()
}

#[cfg(test)]
mod tests;
