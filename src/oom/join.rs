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
//!   ([`Progress`]). Then the joiner pairs as many as possible. A kill is certain if all such pairings have it in one
//!   container. Otherwise the container is certain, and the victim is one of several.
//! * A kill without a number whose time is not exact, as after a loss of records, has a certain container only from the
//!   log or `/proc`: the rise that it seems to be in may have come after it.
//! * A kill or a rise without a partner waits longer for one, and is returned alone if none comes ([`LATEST`]). Its
//!   partner may come half a minute later, and is no second kill: a kill that may be this partner waits for the counters,
//!   even if its cgroup is known, and is another kill only if they show one more.
//!
//! The kernel counts a kill just before it logs the kill (`__oom_kill_process`), so a kill belongs to the rise between
//! whose two reads the kernel logged it. Times show that to a fraction of a second. Numbers ([`super::numbers`]) show
//! it exactly, where the agent has them. The kernel counts and logs the first victim of a group twice; the second
//! time accounts for a rise, and is no kill.
//!
//! No kill may be in two rises: a v2 counter also counts kills below its cgroup, so the caller feeds only the part of a
//! rise that the counters below do not show. The joiner must never return a kill twice, nor place a victim where it
//! only may have been: so a kill counts as certain only if no pairing has it elsewhere, however late it was logged ([`LATEST`]).

mod match_group;

use std::sync::Arc;
use std::time::Duration;

use super::kill::{Kill, Level};
use super::numbers::Numbers;
use super::report::Confidence;
use crate::model::CgroupPath;
use match_group::{Logged, MatchGroup};

pub use match_group::CounterDelta;

/// The longest time that the kernel usually takes to log a kill after it counted the kill. A stalled
/// virtual machine took 156 ms.
pub const LOG_DELAY: Duration = Duration::from_millis(250);
/// The longest time on an overloaded machine. No rise is returned alone before.
pub const LATEST: Duration = Duration::from_secs(2);
/// The largest error in the time of a record: the log has another clock than the agent.
pub(super) const SLACK: Duration = Duration::from_millis(50);
/// In a flood, kills and rises form one group without an end. The joiner decides a group of this age with what it
/// knows, and leaves the newer half of this time undecided. One side may be stuck, hence so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a returned kill awaits what would show it once more: a counter that cannot be read, or its record, which the
/// kernel may log seconds after the count.
const AWAITED: Duration = Duration::from_secs(30);
/// [`PATIENCE`] for a group of more kills and rises than this, by the ages of both sides: the time of matching grows
/// faster than the size of the group. A flood decides no kill before the agent has read every counter after that kill.
const FLOODS: [(usize, Duration); 2] = [(1024, SLACK.saturating_mul(2)), (128, Duration::from_secs(1))];

/// Stores times in microseconds.
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

/// The place of a kill in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// The time at which the kernel logged the kill, by CLOCK_MONOTONIC.
    pub time: Duration,
    /// Whether the time is exact to about 50 ms; if not, it is too late by any duration.
    pub is_exact: bool,
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

/// The kills and rises that wait for each other.
#[derive(Debug, Default)]
pub struct Joiner {
    /// Whether the agent reads the log. If not, the joiner returns rises at once.
    pub(super) has_log: bool,
    /// The agent has read every counter since this moment.
    counters_read: Duration,
    /// In the order of arrival.
    logged: Vec<Logged>,
    rises: Vec<CounterDelta>,
    /// Rises that were returned alone and whose records may still come: such a record is no second kill. A
    /// checkpoint has to keep these.
    pub(super) reported_by_counter: Vec<CounterDelta>,
    /// The records that came for them, until the caller takes them.
    pub(super) known_records: Vec<u64>,
    /// Rises that went to kills which may have been in others: a later kill may have been in these.
    guessed: Vec<CounterDelta>,
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
    /// process that is already exiting, so `/` counts as unknown.
    pub fn logged(&mut self, at: LogPlace, kill: Kill, found: Option<CgroupPath>) -> Option<OomKill> {
        let known = |path: &CgroupPath| *path != CgroupPath::root();
        // If the limit of a container was hit, the victim was in there.
        let limit = kill.limit.cgroup().filter(|_| kill.limit.level() == Level::Container);
        let named = kill.task_cgroup.clone().filter(known).or_else(|| limit.cloned());
        let (cgroup, confidence) = match (named, found.filter(known)) {
            (Some(cgroup), _) => (Some(cgroup), Confidence::Exact),
            (None, Some(cgroup)) => (Some(cgroup), Confidence::Procfs),
            (None, None) => (None, Confidence::LogAlone),
        };
        let mut logged = Logged {
            at,
            cgroup: cgroup.clone(),
            kill: Some(OomKill {
                cgroup,
                confidence,
                record: kill.seq,
                processes: Arc::from([Arc::new(kill)]),
                at: at.time,
            }),
            is_again: false,
        };
        if logged.cgroup.is_some() {
            // The counters decide, and numbers do not: an earlier late kill may have taken the rise of this one.
            logged.at.numbers = Numbers::ANY;
        }
        let mut reported = self.reported_by_counter.iter();
        let waits = logged.cgroup.is_none() || reported.any(|rise| logged.may_be_in(rise, AWAITED));
        let returned = logged.kill.take_if(|_| !waits).inspect(|_| logged.at = at);
        self.logged.push(logged);
        returned
    }

    /// Takes the second line of a group's first victim, which the kernel also counted a second time.
    pub fn logged_again(&mut self, at: LogPlace, pid: u32, group: &CgroupPath) -> Option<OomKill> {
        let again = Logged {
            at,
            cgroup: Some(group.clone()),
            kill: None,
            is_again: true,
        };
        // A rise that was returned long before may be of an earlier kill: the counters decide, also of a line that is read late.
        let mut read_at_once = again.clone();
        read_at_once.at.is_exact = true;
        if self.claim_reported(&read_at_once, LATEST).is_none() {
            self.logged.push(again);
        }
        let is_it = |logged: &mut Logged| logged.waiting().is_some_and(|kill| kill.pid == pid);
        let first = self.logged.extract_if(.., is_it).next()?;
        let mut kill = Kill::clone(first.waiting()?);
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
        self.kills_without_record(&rise, Duration::MAX)
    }

    /// The log cannot be read any more. Returns everything that waits, and from now on rises at once.
    pub fn log_ended(&mut self) -> Vec<OomKill> {
        self.has_log = false;
        self.decide(Progress::END)
    }

    /// Whether a kill or a rise waits for progress.
    pub fn is_waiting(&self) -> bool {
        !self.rises.is_empty() || self.has_kills_waiting()
    }

    /// Whether a kill waits for the counters.
    pub fn has_kills_waiting(&self) -> bool {
        self.logged.iter().any(|logged| logged.kill.is_some())
    }

    /// Returns the kills about which nothing can change any more.
    pub fn decide_up_to(&mut self, progress: Progress) -> Vec<OomKill> {
        self.counters_read = progress.counters;
        self.decide(progress)
    }

    fn decide(&mut self, progress: Progress) -> Vec<OomKill> {
        let (mut kills, mut late) = (Vec::new(), Vec::new());
        let logged = std::mem::take(&mut self.logged);
        for group in MatchGroup::independent(logged, std::mem::take(&mut self.rises)) {
            match group.due(progress) {
                Some(end) => late.extend(group.decide(end, self, &mut kills)),
                None => {
                    self.logged.extend(group.logged);
                    self.rises.extend(group.rises);
                }
            }
        }
        kills.extend(self.place_late(late, progress));
        let read = if self.has_log { progress.log } else { progress.counters };
        let is_alone = |rise: &mut CounterDelta| rise.is_alone(progress, &self.logged);
        for rise in Vec::from_iter(self.rises.extract_if(.., is_alone)) {
            kills.extend(self.kills_without_record(&rise, read));
        }
        if progress != Progress::END {
            // The agent would have read their records by now.
            for rises in [&mut self.reported_by_counter, &mut self.guessed] {
                rises.retain(|rise| rise.by.saturating_add(AWAITED) >= read);
            }
        }
        kills
    }

    /// Returns the kills without a partner, except those that a rise shows which was returned alone. Kills with a known
    /// cgroup come first, and wait for their own rise until every counter was read.
    fn place_late(&mut self, mut late: Vec<Logged>, progress: Progress) -> Vec<OomKill> {
        late.sort_by_key(|logged| logged.cgroup.is_none());
        let mut kills = Vec::new();
        for logged in late {
            let at = logged.at.time;
            let is_unread = logged.cgroup.is_some() && at.saturating_add(SLACK) >= progress.counters;
            let may_be_read = is_unread && at.saturating_add(AWAITED) > progress.log;
            if may_be_read || self.rises.iter().any(|rise| logged.may_be_in(rise, LATEST)) {
                self.logged.push(logged);
            } else if let Some(kill) = logged.kill.clone() {
                let Some(reported) = self.claim_reported(&logged, AWAITED) else {
                    kills.push(kill);
                    continue;
                };
                self.known_records.extend(kill.record);
                self.guessed.extend(logged.cgroup.is_none().then_some(reported));
            }
        }
        kills
    }

    /// Whether a kill may be in another rise than the waiting ones that it fits.
    fn is_in_doubt(&self, logged: &Logged) -> bool {
        let at = logged.at;
        let is_anywhere = !at.is_exact && at.numbers.first != at.numbers.last;
        let mut earlier = self.reported_by_counter.iter().chain(&self.guessed);
        is_anywhere
            || at.time.saturating_add(SLACK) >= self.counters_read
            || earlier.any(|rise| logged.may_be_in(rise, LATEST))
    }

    /// Takes a kill off the innermost rise that was returned alone and that the kill fits, if the kernel takes up to
    /// `delay` to log: its record is of no other kill. Returns that rise.
    fn claim_reported(&mut self, logged: &Logged, delay: Duration) -> Option<CounterDelta> {
        let possible = self.reported_by_counter.iter().enumerate();
        let possible = possible.filter(|(_, rise)| logged.may_be_in(rise, delay));
        let (at, _) = possible.min_by_key(|(_, rise)| rise.order())?;
        let rise = self.reported_by_counter.swap_remove(at);
        self.reported_by_counter
            .extend(rise.left(rise.kills.get() - 1, rise.again));
        Some(rise)
    }

    /// The kills of a rise without records; the log is read up to `read`.
    fn kills_without_record(&mut self, rise: &CounterDelta, read: Duration) -> Vec<OomKill> {
        let total = rise.kills.get();
        let kills = total.saturating_sub(rise.again);
        self.duplicates.extend((kills..total).map(|_| rise.cgroup.clone()));
        // The kernel logs a kill before it counts the next one, so no earlier kill of this cgroup is still to be logged. In a log
        // that is not read so far, its record may still come.
        self.reported_by_counter.retain(|earlier| {
            let delay = if earlier.cgroup == rise.cgroup { LATEST } else { AWAITED };
            earlier.by.saturating_add(delay) >= rise.by || read < rise.by
        });
        self.reported_by_counter.push(rise.clone());
        (0..kills)
            .map(|_| OomKill {
                cgroup: Some(rise.cgroup.clone()),
                confidence: Confidence::CounterAlone,
                processes: Arc::default(),
                record: None,
                at: rise.by,
            })
            .collect()
    }
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
    /// The killed process, if it is certain.
    pub fn victim(&self) -> Option<&Kill> {
        let is_known = self.confidence != Confidence::Ambiguous;
        self.processes.first().filter(|_| is_known).map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests;
