//! Counters and log → one [`OomKill`] for each kill. Pure: times are arguments, counted from any fixed moment.
//!
//! In come kills from the log, with the time they were logged at, and rises of containers' counters, with the two times
//! they were read at; out comes every kill once, with what is certain of it told apart from what is not. A counter says for
//! certain that a container lost a process; the log says which process and why, but often not where. So:
//!
//! * A kill whose cgroup the log names, or `/proc` still knew, is told at once. It will account for one of its container's
//!   rises.
//! * A kill without a cgroup, and a rise, wait until both sides are known up to their time and cannot change any more
//!   ([`Progress`]). Then as many as possible are paired. A kill for which all possible rises are one container's was
//!   there; otherwise the container is certain and the victim one of several.
//! * What finds no partner waits longer for one, and is told alone if none comes ([`LATEST`]).
//!
//! The kernel counts a kill just before it logs it (`__oom_kill_process`), so a kill belongs to the rise between whose two
//! reads it was logged. It counts the first victim of a group twice and logs it twice; the second time accounts for a rise,
//! and is no kill.
//!
//! No kill may be in two rises: a v2 counter also counts what is below it, so feed of it only what the counters below did
//! not show. Must never tell a kill twice, nor place a victim where it merely may have been.

mod evidence;
mod groups;
mod late;
mod matching;
mod pairing;

use std::sync::Arc;
use std::time::Duration;

use super::kill::{Kill, Level};
use crate::cgroup::CgroupPath;

pub use evidence::{Evidence, OomKill};
use late::Unclaimed;
pub use pairing::Rise;
use pairing::{Logged, Pairing, Who};

/// How long the kernel takes at most, in the ordinary course of things, to log a kill that it counted; a stalled virtual
/// machine was seen to take 156 ms.
pub const LOG_DELAY: Duration = Duration::from_millis(250);
/// How long it may take on a machine that has no time for it. What is counted is not told alone before.
pub const LATEST: Duration = Duration::from_secs(2);
/// How far the time of a record may be off: its clock is not the one counters are read by.
const SLACK: Duration = Duration::from_millis(50);
/// In a flood everything hangs together, without an end. What is this old is decided by what is known, up to half of it. So
/// long, because one side may be stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where so many kills and rises hang together, and this is how long both sides are known beyond the oldest of them:
/// what looking at them takes grows faster than their number.
const FLOOD: (usize, Duration) = (128, Duration::from_secs(1));
/// Kills and rises waiting at most, for the same reason.
const MOST_WAITING: usize = 1024;

/// Up to when each side is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// All that was logged up to this moment was fed: [`Notice::UpTo`](super::kmsg::Notice::UpTo).
    pub log: Duration,
    /// Every counter was read since this moment, and its rise was fed.
    pub counters: Duration,
}

impl Progress {
    /// Nothing more will come.
    pub const END: Self = Self {
        log: Duration::MAX,
        counters: Duration::MAX,
    };
}

/// Joins both sides.
#[derive(Debug)]
pub struct Joiner {
    has_log: bool,
    /// In the order in which they came.
    logged: Vec<Logged>,
    rises: Vec<Rise>,
    /// Counted and not logged in time.
    unclaimed: Unclaimed,
    /// Told by a counter alone, while their records may still come: a record of theirs is no second kill.
    told_alone: Unclaimed,
    /// The records that came for them, until they are asked for.
    known: Vec<u64>,
    /// Second countings that were not logged, until they are asked for.
    again: Vec<CgroupPath>,
    /// Up to where everything was decided that could be.
    settled: Option<Progress>,
}

impl Joiner {
    /// Begins with nothing known. Without a readable log, rises are told at once.
    #[must_use]
    pub const fn new(has_log: bool) -> Self {
        Self {
            has_log,
            logged: Vec::new(),
            rises: Vec::new(),
            unclaimed: Unclaimed::new(Vec::new()),
            told_alone: Unclaimed::new(Vec::new()),
            known: Vec::new(),
            again: Vec::new(),
            settled: None,
        }
    }

    /// Takes a kill that was logged at that time. `found` is the cgroup that `/proc/<pid>/cgroup` showed right after, if it
    /// was asked: `/` is what v1 shows of a process that is already leaving, so it says nothing.
    pub fn logged(&mut self, at: Duration, kill: Kill, found: Option<CgroupPath>) -> Option<OomKill> {
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
                let who = Who::Waiting(Arc::new(kill));
                self.logged.push(Logged { at, who, outrun: false });
                return None;
            }
        };
        let told = Logged {
            at,
            who: Who::Told(cgroup.clone()),
            outrun: false,
        };
        if self.told_alone.claim(&told).is_some() {
            self.known.extend(kill.seq);
            return None;
        }
        self.logged.push(told);
        Some(OomKill {
            cgroup: Some(cgroup.clone()),
            counted_in: Some(cgroup),
            record: kill.seq,
            at,
            evidence: evidence(Box::new(kill)),
        })
    }

    /// Takes the second logging of a group's first victim, which was counted a second time, too.
    pub fn logged_again(&mut self, at: Duration, pid: u32, group: &CgroupPath) -> Option<OomKill> {
        let again = Logged {
            at,
            who: Who::Again(group.clone()),
            outrun: false,
        };
        if self.told_alone.claim(&again).is_none() {
            self.logged.push(again);
        }
        let is_it = |logged: &mut Logged| matches!(&logged.who, Who::Waiting(kill) if kill.pid == pid);
        let first = self.logged.extract_if(.., is_it).next()?;
        let Who::Waiting(kill) = first.who else { return None };
        let mut kill = Arc::unwrap_or_clone(kill);
        kill.task_cgroup = Some(group.clone());
        kill.group = Some(group.clone());
        self.logged(first.at, kill, None)
    }

    /// Takes a rise of a counter.
    pub fn counted(&mut self, rise: Rise) -> Vec<OomKill> {
        if self.has_log {
            self.rises.push(rise);
            return Vec::new();
        }
        self.alone(&rise)
    }

    /// The log cannot be read any more: tells everything that waits, and from now on rises at once.
    pub fn log_ended(&mut self) -> Vec<OomKill> {
        self.has_log = false;
        self.settle(Progress::END)
    }

    /// The log can be read: from now on, rises wait for it.
    pub const fn log_began(&mut self) {
        self.has_log = true;
    }

    /// The cgroups in which a group's first victim was counted twice without being logged twice, once for each time;
    /// each is handed out once.
    pub fn take_counted_again(&mut self) -> Vec<CgroupPath> {
        std::mem::take(&mut self.again)
    }

    /// The records of waiting kills whose rise may have been given to another kill. An agent that reads them again has to
    /// know that: [`Self::doubt`].
    #[must_use]
    pub fn doubted(&self) -> Vec<u64> {
        let doubted = self.logged.iter().filter(|logged| logged.outrun);
        let record = |logged: &Logged| match &logged.who {
            Who::Waiting(kill) => kill.seq,
            Who::Told(_) | Who::Again(_) => None,
        };
        doubted.filter_map(record).collect()
    }

    /// A rise that may have been this waiting kill's was given to another one: it is never certain any more where it was.
    pub fn doubt(&mut self, record: u64) {
        for logged in &mut self.logged {
            logged.outrun |= matches!(&logged.who, Who::Waiting(kill) if kill.seq == Some(record));
        }
    }

    /// The kills that were told by counters alone and whose records may still come. An agent that goes on from here has to
    /// know them: [`Self::with_told_alone`].
    #[must_use]
    pub fn told_alone(&self) -> &[Rise] {
        self.told_alone.rises()
    }

    /// Continues after an agent that told these kills by counters alone.
    #[must_use]
    pub fn with_told_alone(self, rises: Vec<Rise>) -> Self {
        Self {
            told_alone: Unclaimed::new(rises),
            ..self
        }
    }

    /// The records of kills that were told by counters alone, each handed out once.
    pub fn take_known(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.known)
    }

    /// Whether anything waits for progress.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.rises.is_empty() || self.unclaimed.len() > 0 || self.has_kills_waiting()
    }

    /// Whether a kill waits for counters to be read.
    #[must_use]
    pub fn has_kills_waiting(&self) -> bool {
        self.logged.iter().any(|logged| matches!(logged.who, Who::Waiting(_)))
    }

    /// Decides what cannot change any more. Without progress since the last time, nothing is looked at.
    pub fn settle(&mut self, progress: Progress) -> Vec<OomKill> {
        let crowded = self.logged.len() + self.rises.len() + self.unclaimed.len() > MOST_WAITING;
        if self.settled.replace(progress) == Some(progress) && !crowded {
            return Vec::new();
        }
        let mut told = Vec::new();
        let mut unplaced = Vec::new();
        let logged = std::mem::take(&mut self.logged);
        for pairing in Pairing::independent(logged, std::mem::take(&mut self.rises)) {
            let end = if crowded {
                Some(Duration::MAX)
            } else {
                pairing.due(progress)
            };
            let left = match end {
                Some(end) => {
                    let (decided, left) = pairing.decide(end);
                    told.extend(decided.kills);
                    unplaced.extend(decided.unplaced);
                    self.unclaimed.add(decided.unclaimed);
                    left
                }
                None => pairing,
            };
            self.logged.extend(left.logged);
            self.rises.extend(left.rises);
        }
        told.extend(self.place(unplaced));
        let known = if crowded { Progress::END } else { progress };
        for rise in self.unclaimed.expire(known, &self.logged) {
            told.extend(self.alone(&rise));
        }
        let read = if self.has_log { progress.log } else { progress.counters };
        if progress != Progress::END {
            self.told_alone.forget_before(read);
        }
        told
    }

    /// Looks for what these were counted in among what was not logged in time. What was told comes first, as ever.
    fn place(&mut self, mut unplaced: Vec<Logged>) -> Vec<OomKill> {
        unplaced.sort_by_key(|logged| matches!(logged.who, Who::Waiting(_)));
        let mut told = Vec::new();
        for logged in unplaced {
            match (self.unclaimed.claim(&logged), &logged.who) {
                (None, _) if self.rises.iter().any(|rise| logged.may_be_in(rise, LATEST)) => self.logged.push(logged),
                (Some(cgroup), Who::Waiting(kill)) => told.push(OomKill::late(Arc::clone(kill), cgroup, logged.at)),
                (None, Who::Waiting(kill)) if self.told_alone.claim(&logged).is_some() => self.known.extend(kill.seq),
                (None, Who::Waiting(kill)) => told.push(OomKill::log_alone((**kill).clone(), logged.at)),
                (_, Who::Told(_) | Who::Again(_)) => {}
            }
        }
        told
    }

    /// Tells what a counter alone shows.
    fn alone(&mut self, rise: &Rise) -> Vec<OomKill> {
        let total = rise.kills.get();
        let kills = total.saturating_sub(rise.again);
        self.again.extend((kills..total).map(|_| rise.cgroup.clone()));
        self.told_alone.add(vec![rise.clone()]);
        (0..kills)
            .map(|_| OomKill::counter_alone(rise.cgroup.clone(), rise.by))
            .collect()
    }
}

/// The container whose own limit was hit, where the kernel does not show what its victim was in.
fn container_limit(kill: &Kill) -> Option<CgroupPath> {
    let is_container = kill.limit.level() == Level::Container;
    kill.limit.cgroup().filter(|_| is_container).cloned()
}

#[cfg(test)]
mod tests;
