//! Matches kills in the log with rises of counters: one [`OomKill`] for each kill. Pure: times are arguments, counted
//! from any fixed moment.
//!
//! In come kills of the log with their time, and rises of containers' counters with the two times of reading. Out comes
//! every kill once, marked certain or uncertain. A counter proves that a container lost a process. The log shows which
//! process the kernel killed and why, but often not where. So:
//!
//! * The joiner returns a kill at once if the log names its cgroup, or `/proc` still knew the cgroup. Later this kill
//!   accounts for one rise of its container.
//! * A kill without a cgroup, and a rise, wait until the agent knows everything up to their time on both sides
//!   ([`Progress`]). What the named kills leave of the rises is the surplus of each container. The kills without a
//!   cgroup are the candidates for it. If only one container has a surplus, the candidates were in there. Otherwise the
//!   container of each kill of the surplus is certain, and the victim is one of the candidates.
//! * A kill or a rise without a partner waits longer for one, and is returned alone if none comes ([`LATEST`]).
//!
//! The kernel counts a kill just before it logs the kill (`__oom_kill_process`), so a kill belongs to the rise between
//! whose two reads the kernel logged it. Times show that to a fraction of a second. Numbers ([`super::numbers`]) show
//! it exactly, where the agent has them. The kernel counts and logs the first victim of a group twice; the second
//! time accounts for a rise, and is no kill.
//!
//! No kill may be in two rises: a v2 counter also counts kills below its cgroup, so the caller feeds only the part of a
//! rise that the counters below do not show. The joiner must never return a kill twice, nor place a victim where it
//! only may have been.

mod surplus;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::kill::{Kill, Level, Limit};
use super::numbers::Numbers;
use super::report::Confidence;
use crate::model::CgroupPath;
use surplus::{Group, take_first};

/// The longest time that the kernel usually takes to log a kill after it counted the kill. A stalled
/// virtual machine took 156 ms.
pub const LOG_DELAY: Duration = Duration::from_millis(250);
/// The longest time on an overloaded machine. No rise is returned alone before.
pub const LATEST: Duration = Duration::from_secs(2);
/// The largest error in the time of a record: the log has another clock than the agent.
pub(super) const SLACK: Duration = Duration::from_millis(50);
/// In a flood, kills and rises form one group without an end. The joiner decides a group of this age with what it
/// knows, and leaves the newer half of this time undecided. One side may be stuck, hence so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// [`PATIENCE`] for a group of more kills and rises than this, by the ages of both sides: the time of matching grows
/// faster than the size of the group.
const FLOOD: (usize, Duration) = (128, Duration::from_secs(1));
/// The most kills and rises that may wait, for the same reason.
const MOST_WAITING: usize = 1024;

/// The place of a kill in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// The time at which the kernel logged the kill, by CLOCK_MONOTONIC.
    pub time: Duration,
    pub numbers: Numbers,
}

/// How far the agent has read each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The joiner has every kill that the kernel logged up to this moment.
    pub log: Duration,
    /// The agent has read every counter since this moment, and the joiner has its rise.
    pub counters: Duration,
}

impl Progress {
    pub const END: Self = Self {
        log: Duration::MAX,
        counters: Duration::MAX,
    };
}

/// The rise of a counter between two reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterDelta {
    /// The cgroup of the counter. The kills were in this cgroup, or in one below that has no rise of its own.
    pub cgroup: CgroupPath,
    /// A moment before the first of the two reads.
    pub after: Duration,
    /// A moment after the second.
    pub by: Duration,
    /// The numbers among which the kills are.
    pub numbers: Numbers,
    /// By how much the counter rose.
    pub kills: NonZeroU64,
    /// How many of these are second counts of a group's first victim; 0 where the kernel does not say.
    pub again: u64,
}

/// A kill of the log that still has to account for a rise.
#[derive(Debug, Clone)]
struct Logged {
    at: LogPlace,
    who: LogState,
    /// Whether a rise that this kill may have been in went to another kill, or may have.
    in_doubt: bool,
}

/// Whether the joiner has returned a kill.
#[derive(Debug, Clone)]
enum LogState {
    /// It has, for this cgroup, and the kill accounts for a rise there.
    Placed(CgroupPath),
    /// This is the second line of a kill in this group. It accounts for a rise there that is no kill.
    Again(CgroupPath),
    /// It has not: the cgroup of the kill is unknown.
    Waiting(Arc<Kill>),
}

impl CounterDelta {
    /// Whether the kernel has logged all kills of this rise before `end`.
    fn is_over(&self, end: Duration) -> bool {
        end == Duration::MAX || self.by.saturating_add(LOG_DELAY) < end
    }

    /// The rest of the rise without a kill.
    fn without(self, logged: &Logged) -> Option<Self> {
        let again = self
            .again
            .saturating_sub(matches!(logged.who, LogState::Again(_)).into());
        let kills = NonZeroU64::new(self.kills.get() - 1)?;
        Some(Self { kills, again, ..self })
    }
}

impl Logged {
    const fn new(at: LogPlace, who: LogState) -> Self {
        let in_doubt = false;
        Self { at, who, in_doubt }
    }

    /// The kill, if its cgroup is unknown.
    const fn waiting(&self) -> Option<&Arc<Kill>> {
        match &self.who {
            LogState::Waiting(kill) => Some(kill),
            LogState::Placed(_) | LogState::Again(_) => None,
        }
    }

    /// Whether this kill fits the rise.
    fn may_be_in(&self, rise: &CounterDelta) -> bool {
        let at = self.at.time;
        rise.after <= at.saturating_add(SLACK)
            && at <= rise.by.saturating_add(LATEST)
            && self.at.numbers.meets(rise.numbers)
            && self.names(rise)
    }

    /// Whether this kill fits the cgroup of the rise.
    fn names(&self, rise: &CounterDelta) -> bool {
        match &self.who {
            LogState::Placed(cgroup) | LogState::Again(cgroup) => cgroup.below(&rise.cgroup).is_some(),
            LogState::Waiting(kill) => match &kill.limit {
                Limit::Cgroup(limit) => rise.cgroup.below(limit).is_some(),
                Limit::Node | Limit::Unknown => true,
            },
        }
    }
}

/// The kills and rises that wait for each other.
#[derive(Debug, Default)]
pub struct Joiner {
    /// Whether the agent reads the log. If not, the joiner returns rises at once.
    pub(super) has_log: bool,
    /// In the order of arrival.
    logged: Vec<Logged>,
    rises: Vec<CounterDelta>,
    /// Rises that were returned alone and whose records may still come: such a record is no second kill.
    reported_by_counter: Vec<CounterDelta>,
    /// The time of the latest of these rises.
    pub(super) counted_alone_up_to: Option<Duration>,
    /// The records that came for them, until the caller takes them.
    pub(super) known_records: Vec<u64>,
    /// The cgroups of groups whose first victim was counted twice and logged once, one for each time,
    /// until the caller takes them.
    pub(super) duplicates: Vec<CgroupPath>,
}

impl Joiner {
    /// Begins without kills and rises.
    pub fn new(has_log: bool) -> Self {
        Self {
            has_log,
            ..Self::default()
        }
    }

    /// Takes a kill of the log. `found` is the cgroup that `/proc/<pid>/cgroup` showed right after. v1 shows `/` for a
    /// process that is already exiting, so `/` counts as unknown. `in_doubt` says that an earlier agent may have
    /// returned the rise of this kill with another one, so that this one is never certain without a cgroup.
    pub fn logged(&mut self, at: LogPlace, kill: Kill, found: Option<CgroupPath>, in_doubt: bool) -> Option<OomKill> {
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
                let waiting = Logged::new(at, LogState::Waiting(Arc::new(kill)));
                self.logged.push(Logged { in_doubt, ..waiting });
                return None;
            }
        };
        let placed = Logged::new(at, LogState::Placed(cgroup.clone()));
        if self.was_reported_by_counter(&placed) {
            self.known_records.extend(kill.seq);
            return None;
        }
        self.logged.push(placed);
        Some(OomKill::of(Arc::new(kill), Some(cgroup), confidence, at.time))
    }

    /// Takes the second line of a group's first victim, which the kernel also counted a second time.
    pub fn logged_again(&mut self, at: LogPlace, pid: u32, group: &CgroupPath) -> Option<OomKill> {
        let again = Logged::new(at, LogState::Again(group.clone()));
        if !self.was_reported_by_counter(&again) {
            self.logged.push(again);
        }
        let is_it = |logged: &mut Logged| logged.waiting().is_some_and(|kill| kill.pid == pid);
        let first = self.logged.extract_if(.., is_it).next()?;
        let LogState::Waiting(kill) = first.who else {
            return None;
        };
        let mut kill = Arc::unwrap_or_clone(kill);
        kill.task_cgroup = Some(group.clone());
        kill.group = Some(group.clone());
        self.logged(first.at, kill, None, false)
    }

    /// Takes a rise of a counter.
    pub fn counted(&mut self, rise: CounterDelta) -> Vec<OomKill> {
        if self.has_log {
            self.rises.push(rise);
            return Vec::new();
        }
        self.kills_without_record(rise)
    }

    /// The log cannot be read any more. Returns everything that waits, and from now on rises at once.
    pub fn log_ended(&mut self) -> Vec<OomKill> {
        self.has_log = false;
        self.decide_up_to(Progress::END)
    }

    /// Whether a kill or a rise waits for progress.
    pub fn is_waiting(&self) -> bool {
        !self.rises.is_empty() || self.has_kills_waiting()
    }

    /// Whether a kill waits for the counters.
    pub fn has_kills_waiting(&self) -> bool {
        self.logged.iter().any(|logged| logged.waiting().is_some())
    }

    /// Returns the kills about which nothing can change any more.
    pub fn decide_up_to(&mut self, progress: Progress) -> Vec<OomKill> {
        let crowded = self.logged.len() + self.rises.len() > MOST_WAITING;
        let mut kills = Vec::new();
        let logged = std::mem::take(&mut self.logged);
        for group in Group::independent(logged, std::mem::take(&mut self.rises)) {
            let due = if crowded {
                Some(Duration::MAX)
            } else {
                group.due(progress)
            };
            match due {
                Some(end) => self.decide(group, end, progress.counters, &mut kills),
                None => self.put_back(group),
            }
        }
        let read = if self.has_log { progress.log } else { progress.counters };
        if progress != Progress::END {
            // The agent would have read their records by now.
            self.reported_by_counter
                .retain(|rise| rise.by.saturating_add(LATEST) >= read);
        }
        kills
    }

    fn put_back(&mut self, group: Group) {
        self.logged.extend(group.logged);
        self.rises.extend(group.rises);
    }

    /// Decides what happened before `end`, and puts the rest back.
    fn decide(&mut self, mut group: Group, end: Duration, counted: Duration, kills: &mut Vec<OomKill>) {
        let mut later = Group::default();
        let is_whole = end == Duration::MAX && !group.logged.iter().any(|logged| logged.in_doubt);
        let batches = if is_whole {
            group.batches()
        } else {
            // Also the named kills after `end`, if their rises are read: earlier kills must not take these.
            group.place_named(end.max(counted.saturating_sub(SLACK)));
            later = group.split_off(end);
            vec![group]
        };
        for mut batch in batches {
            batch.place_named(end);
            later.doubt_beside(&batch.rises);
            kills.extend(batch.assign(is_whole));
            for logged in batch.logged {
                match logged.waiting() {
                    _ if later.rises.iter().any(|rise| logged.may_be_in(rise)) => {
                        later.logged.push(Logged {
                            in_doubt: true,
                            ..logged
                        });
                    }
                    Some(kill) if self.was_reported_by_counter(&logged) => self.known_records.extend(kill.seq),
                    Some(kill) => {
                        let kill = Arc::clone(kill);
                        kills.push(OomKill::of(kill, None, Confidence::LogAlone, logged.at.time));
                    }
                    None => {}
                }
            }
            for rise in batch.rises {
                if rise.by.saturating_add(LATEST) < end {
                    kills.extend(self.kills_without_record(rise));
                } else {
                    later.rises.push(rise);
                }
            }
        }
        self.put_back(later);
    }

    /// Whether the kill of this record was returned without the record.
    fn was_reported_by_counter(&mut self, logged: &Logged) -> bool {
        let rises = &mut self.reported_by_counter;
        take_first(rises, logged, |rise| logged.may_be_in(rise), |rise| rise.by).is_some()
    }

    /// The kills of a rise without records.
    fn kills_without_record(&mut self, rise: CounterDelta) -> Vec<OomKill> {
        let total = rise.kills.get();
        let kills = total.saturating_sub(rise.again);
        self.duplicates.extend((kills..total).map(|_| rise.cgroup.clone()));
        self.counted_alone_up_to = self.counted_alone_up_to.max(Some(rise.by));
        let kill = OomKill {
            cgroup: Some(rise.cgroup.clone()),
            confidence: Confidence::CounterAlone,
            processes: Arc::default(),
            record: None,
            at: rise.by,
        };
        self.reported_by_counter.push(rise);
        (0..kills).map(|_| kill.clone()).collect()
    }
}

/// The cgroup whose limit was hit, if it is a container: the victim was in there.
fn container_limit(kill: &Kill) -> Option<CgroupPath> {
    let is_container = kill.limit.level() == Level::Container;
    kill.limit.cgroup().filter(|_| is_container).cloned()
}

/// A kill with its cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup that lost a process: a container, a cgroup in one, or one outside all pods. Its counter has risen,
    /// or will. `None` with [`Confidence::LogAlone`].
    pub cgroup: Option<CgroupPath>,
    pub confidence: Confidence,
    /// The killed process; with [`Confidence::Ambiguous`] the possible ones, unless the record
    /// was lost; none with [`Confidence::CounterAlone`].
    pub processes: Arc<[Arc<Kill>]>,
    /// The number of the record that this kill uses up; `None` with [`Confidence::CounterAlone`]. Each record is used
    /// up once: with several possible processes this is the record of any one of them.
    pub record: Option<u64>,
    /// The time of the record, or of the read that showed the rise.
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

    /// The killed process, if it is certain.
    pub fn victim(&self) -> Option<&Kill> {
        let is_known = self.confidence != Confidence::Ambiguous;
        self.processes.first().filter(|_| is_known).map(AsRef::as_ref)
    }

    /// Whether the victim and its cgroup are certain.
    pub const fn is_certain(&self) -> bool {
        matches!(
            self.confidence,
            Confidence::Exact | Confidence::Procfs | Confidence::OnlyCounterThatRose
        )
    }
}

#[cfg(test)]
mod tests;
