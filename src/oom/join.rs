//! CounterTree and log → one [`OomKill`] for each kill. Pure: times are arguments, counted from any fixed moment.
//!
//! In come kills from the log, with the time they were logged at, and rises of containers' counters, with the two times
//! they were read at; out comes every kill once, with what is certain of it told apart from what is not. A counter says for
//! certain that a container lost a process; the log says which process and why, but often not where. So:
//!
//! * A kill whose cgroup the log names, or `/proc` still knew, is told at once. It will account for one of its container's
//!   rises.
//! * A kill without a cgroup, and a rise, wait until both sides are known up to their time and cannot change any more
//!   ([`Progress`]). Then as many as possible are paired. A kill that is in rises of one container in all such ways was
//!   there; otherwise the container is certain and the victim one of several.
//! * What finds no partner waits longer for one, and is told alone if none comes ([`LATEST`]).
//!
//! The kernel counts a kill just before it logs it (`__oom_kill_process`), so a kill belongs to the rise between whose two
//! reads it was logged. Times say that to a fraction of a second; which of the machine's kills it is ([`super::numbers`]) says
//! it exactly, where that is known. It counts the first victim of a group twice and logs it twice; the second time counts for a rise,
//! and is no kill.
//!
//! No kill may be in two rises: a v2 counter also counts what is below it, so feed of it only what the counters below did
//! not show. Must never tell a kill twice, nor place a victim where it merely may have been.

mod match_group;

use std::sync::Arc;
use std::time::Duration;

use super::kill::{Kill, Level};
use super::numbers::{KillLine, Offset};
use super::report::Confidence;
use crate::model::CgroupPath;
use match_group::{LogState, Logged, MatchGroup, Matched, claim, expire};

pub use match_group::CounterDelta;

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
/// The same where so many kills and rises hang together, and this is how long both sides are known beyond the oldest of
/// them: what looking at them takes grows faster than their number.
const FLOOD: (usize, Duration) = (128, Duration::from_secs(1));
/// Kills and rises waiting at most, for the same reason.
const MOST_WAITING: usize = 1024;

/// Times as they are kept: in microseconds.
pub(super) mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::oom) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(crate::model::micros(*time))
    }

    pub(in crate::oom) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }
}

/// Where in the log a kill stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// When it was logged.
    pub time: Duration,
    pub line: KillLine,
}

/// Up to when each side is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// All that was logged up to this moment was fed.
    pub log: Duration,
    /// Every counter was read since this moment, and its rise was fed.
    pub counters: Duration,
}

impl Progress {
    pub const END: Self = Self {
        log: Duration::MAX,
        counters: Duration::MAX,
    };
}

/// Matches kills of the log with rises of counters.
#[derive(Debug, Default)]
pub struct Joiner {
    has_log: bool,
    /// In the order in which they came.
    logged: Vec<Logged>,
    rises: Vec<CounterDelta>,
    /// Counted and not logged in time.
    unmatched: Vec<CounterDelta>,
    /// Told by a counter alone, while their records may still come: a record of theirs is no second kill.
    told_by_counter: Vec<CounterDelta>,
    /// The records that came for them, until they are asked for.
    known: Vec<u64>,
    /// Second countings that were not logged, until they are asked for.
    again: Vec<CgroupPath>,
    /// Up to where everything was decided that could be.
    settled: Option<Progress>,
    /// Which kills the lines read last are.
    offset: Option<Offset>,
}

impl Joiner {
    /// Begins with nothing known. Without a readable log, rises are told at once.
    pub fn new(has_log: bool) -> Self {
        Self {
            has_log,
            ..Self::default()
        }
    }

    /// Takes a kill that was logged at that time. `found` is the cgroup that `/proc/<pid>/cgroup` showed right after, if it
    /// was asked: `/` is what v1 shows of a process that is already leaving, so it says nothing.
    pub fn logged(&mut self, at: LogPlace, kill: Kill, found: Option<CgroupPath>) -> Option<OomKill> {
        let known = |path: &CgroupPath| *path != CgroupPath::root();
        let named = kill
            .task_cgroup
            .clone()
            .filter(known)
            .or_else(|| container_limit(&kill));
        let (cgroup, confidence) = match (named, found.filter(known)) {
            (Some(cgroup), _) => (cgroup, Confidence::Exact),
            (None, Some(cgroup)) => (cgroup, Confidence::Procfs),
            (None, None) => {
                self.logged.push(Logged::new(at, LogState::Waiting(Arc::new(kill))));
                return None;
            }
        };
        let told = Logged::new(at, LogState::Told(cgroup.clone()));
        if claim(&mut self.told_by_counter, &told).is_some() {
            self.known.extend(kill.seq);
            return None;
        }
        self.logged.push(told);
        Some(OomKill::of(Arc::new(kill), Some(cgroup), confidence, at.time))
    }

    /// Takes the second logging of a group's first victim, which was counted a second time, too.
    pub fn logged_again(&mut self, at: LogPlace, pid: u32, group: &CgroupPath) -> Option<OomKill> {
        let again = Logged::new(at, LogState::Again(group.clone()));
        if claim(&mut self.told_by_counter, &again).is_none() {
            self.logged.push(again);
        }
        let is_it = |logged: &mut Logged| matches!(&logged.who, LogState::Waiting(kill) if kill.pid == pid);
        let first = self.logged.extract_if(.., is_it).next()?;
        let LogState::Waiting(kill) = first.who else {
            return None;
        };
        let mut kill = Arc::unwrap_or_clone(kill);
        kill.task_cgroup = Some(group.clone());
        kill.group = Some(group.clone());
        self.logged(first.at, kill, None)
    }

    /// Takes a rise of a counter.
    pub fn counted(&mut self, rise: CounterDelta) -> Vec<OomKill> {
        if self.has_log {
            self.rises.push(rise);
            return Vec::new();
        }
        self.alone(&rise)
    }

    /// The log cannot be read any more: tells everything that waits, and from now on rises at once.
    pub fn log_ended(&mut self) -> Vec<OomKill> {
        self.has_log = false;
        self.decide_up_to(Progress::END)
    }

    pub const fn has_log(&self) -> bool {
        self.has_log
    }

    /// The log can be read: from now on, rises wait for it.
    pub const fn log_began(&mut self) {
        self.has_log = true;
    }

    /// The cgroups in which a group's first victim was counted twice without being logged twice, once for each time;
    /// each is handed out once.
    pub fn take_duplicates(&mut self) -> Vec<CgroupPath> {
        std::mem::take(&mut self.again)
    }

    /// The records of waiting kills whose rise may have been given to another kill. An agent that reads them again
    /// has to know that: [`Self::doubt`].
    pub fn doubted(&self) -> Vec<u64> {
        let doubted = self.logged.iter().filter(|logged| logged.in_doubt);
        let record = |logged: &Logged| match &logged.who {
            LogState::Waiting(kill) => kill.seq,
            LogState::Told(_) | LogState::Again(_) => None,
        };
        doubted.filter_map(record).collect()
    }

    /// A rise that may have been this waiting kill's was given to another one: it is never certain any more where it was.
    pub fn doubt(&mut self, record: u64) {
        for logged in &mut self.logged {
            logged.in_doubt |= matches!(&logged.who, LogState::Waiting(kill) if kill.seq == Some(record));
        }
    }

    /// The kills that were told by counters alone and whose records may still come. An agent that goes on from here
    /// has to know them: [`Self::with_told_by_counter`].
    pub fn told_by_counter(&self) -> &[CounterDelta] {
        &self.told_by_counter
    }

    /// Continues after an agent that told these kills by counters alone.
    #[must_use]
    pub fn with_told_by_counter(self, rises: Vec<CounterDelta>) -> Self {
        Self {
            told_by_counter: rises,
            ..self
        }
    }

    /// The records of kills that were told by counters alone, each handed out once.
    pub fn take_known(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.known)
    }

    /// Which kills the lines of the log are, as far as it is known by now.
    pub const fn set_offset(&mut self, offset: Option<Offset>) {
        self.offset = offset;
    }

    /// Whether anything waits for progress.
    pub fn is_waiting(&self) -> bool {
        !self.rises.is_empty() || !self.unmatched.is_empty() || self.has_kills_waiting()
    }

    /// Whether a kill waits for counters to be read.
    pub fn has_kills_waiting(&self) -> bool {
        self.logged
            .iter()
            .any(|logged| matches!(logged.who, LogState::Waiting(_)))
    }

    /// Decides what cannot change any more. Without progress since the last time, nothing is looked at.
    pub fn decide_up_to(&mut self, progress: Progress) -> Vec<OomKill> {
        let crowded = self.logged.len() + self.rises.len() + self.unmatched.len() > MOST_WAITING;
        if self.settled.replace(progress) == Some(progress) && !crowded {
            return Vec::new();
        }
        for logged in &mut self.logged {
            let numbers = self.offset.and_then(|offset| offset.numbers(logged.at.line));
            logged.numbers = numbers.unwrap_or(logged.numbers);
        }
        let mut matched = Matched::default();
        let logged = std::mem::take(&mut self.logged);
        for group in MatchGroup::independent(logged, std::mem::take(&mut self.rises)) {
            let end = if crowded {
                Some(Duration::MAX)
            } else {
                group.due(progress)
            };
            let left = match end {
                Some(end) => group.decide(end, &mut matched),
                None => group,
            };
            self.logged.extend(left.logged);
            self.rises.extend(left.rises);
        }
        self.unmatched.extend(matched.unmatched);
        let mut told = matched.kills;
        told.extend(self.place(matched.unmatched_logged));
        let known = if crowded { Progress::END } else { progress };
        for rise in expire(&mut self.unmatched, known, &self.logged) {
            told.extend(self.alone(&rise));
        }
        let read = if self.has_log { progress.log } else { progress.counters };
        if progress != Progress::END {
            // Their records would have been read by now.
            self.told_by_counter
                .retain(|rise| rise.by.saturating_add(LATEST) >= read);
        }
        told
    }

    /// Looks for what these were counted in among what was not logged in time. What was told comes first, as ever.
    fn place(&mut self, mut unmatched_logged: Vec<Logged>) -> Vec<OomKill> {
        unmatched_logged.sort_by_key(|logged| matches!(logged.who, LogState::Waiting(_)));
        let mut told = Vec::new();
        for logged in unmatched_logged {
            match (claim(&mut self.unmatched, &logged), &logged.who) {
                (None, _) if self.rises.iter().any(|rise| logged.may_be_in(rise, LATEST)) => self.logged.push(logged),
                (Some(cgroup), LogState::Waiting(kill)) => {
                    // Another one that was logged as late may have been the one that was counted there.
                    let kill = Arc::clone(kill);
                    told.push(OomKill::of(kill, Some(cgroup), Confidence::Ambiguous, logged.at.time));
                }
                (None, LogState::Waiting(kill)) if claim(&mut self.told_by_counter, &logged).is_some() => {
                    self.known.extend(kill.seq);
                }
                (None, LogState::Waiting(kill)) => {
                    told.push(OomKill::of(
                        Arc::clone(kill),
                        None,
                        Confidence::LogAlone,
                        logged.at.time,
                    ));
                }
                (_, LogState::Told(_) | LogState::Again(_)) => {}
            }
        }
        told
    }

    /// Tells what a counter alone shows.
    fn alone(&mut self, rise: &CounterDelta) -> Vec<OomKill> {
        let total = rise.kills.get();
        let kills = total.saturating_sub(rise.again);
        self.again.extend((kills..total).map(|_| rise.cgroup.clone()));
        self.told_by_counter.push(rise.clone());
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

/// A kill with its cgroup, reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup that lost a process, and whose counter rose by it, or will: a container, a cgroup in one, or one that has
    /// nothing to do with pods. `None` with [`Confidence::LogAlone`].
    pub cgroup: Option<CgroupPath>,
    /// How the kill is known.
    pub confidence: Confidence,
    /// The process that was killed; with [`Confidence::Ambiguous`] those that may have been, unless the record
    /// was lost; none with [`Confidence::CounterAlone`].
    pub processes: Arc<[Arc<Kill>]>,
    /// The number of the record that this kill uses up; `None` where it is known by a counter alone. Of several processes
    /// the record is that of any one, so that each record is used up once.
    pub record: Option<u64>,
    /// When it was logged, or the counter seen to have risen.
    pub at: Duration,
}

impl OomKill {
    fn of(kill: Arc<Kill>, cgroup: Option<CgroupPath>, confidence: Confidence, at: Duration) -> Self {
        Self {
            cgroup,
            confidence,
            record: kill.seq,
            processes: Arc::from([kill]),
            at,
        }
    }

    fn counter_alone(cgroup: CgroupPath, at: Duration) -> Self {
        Self {
            cgroup: Some(cgroup),
            confidence: Confidence::CounterAlone,
            processes: Arc::default(),
            record: None,
            at,
        }
    }

    /// The process that was killed, if it is known.
    pub fn victim(&self) -> Option<&Kill> {
        let is_known = self.confidence != Confidence::Ambiguous;
        self.processes.first().filter(|_| is_known).map(AsRef::as_ref)
    }

    /// Whether it is known where this victim was.
    pub const fn is_certain(&self) -> bool {
        matches!(
            self.confidence,
            Confidence::Exact | Confidence::Procfs | Confidence::OnlyCounterThatRose
        )
    }
}

#[cfg(test)]
mod tests;
