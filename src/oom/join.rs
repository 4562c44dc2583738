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
//!   ([`Progress`]). Then the joiner pairs as many as possible. A kill is certain if every rise that it may be in is of
//!   one container. Otherwise the container is certain, and the victim is one of several.
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
//! only may have been: so a kill counts as certain only if no other rise fits it that far, however late it was logged ([`LATEST`]).

mod match_group;

use std::sync::Arc;
use std::time::Duration;

use super::kill::{Kill, Level};
use super::numbers::Numbers;
use super::report::Confidence;
use crate::model::CgroupPath;
use match_group::{Certainty, LogState, Logged, MatchGroup, claim, expire};

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
    /// Rises that the kernel has not logged in time.
    unmatched: Vec<CounterDelta>,
    /// Rises that were returned alone and whose records may still come: such a record is no second kill. A
    /// checkpoint has to keep these.
    pub(super) reported_by_counter: Vec<CounterDelta>,
    /// The records that came for them, until the caller takes them.
    pub(super) known_records: Vec<u64>,
    /// Rises that went to a kill which may have been in another one: a later kill may have been in these.
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
        let named = kill.task_cgroup.clone().filter(known);
        let named = named.or_else(|| container_limit(&kill));
        let (cgroup, confidence) = match (named, found.filter(known)) {
            (Some(cgroup), _) => (cgroup, Confidence::Exact),
            (None, Some(cgroup)) => (cgroup, Confidence::Procfs),
            (None, None) => {
                self.logged.push(Logged::new(at, LogState::Waiting(Arc::new(kill))));
                return None;
            }
        };
        let kill = OomKill::of(Arc::new(kill), Some(cgroup.clone()), confidence, at.time);
        // The counters decide, and numbers do not: an earlier late kill may have taken the rise of this one.
        let any = LogPlace {
            numbers: Numbers::ANY,
            ..at
        };
        let held = Logged::new(any, LogState::Held(Box::new(kill.clone())));
        let mut reported = self.reported_by_counter.iter();
        if reported.any(|rise| held.may_be_in(rise, AWAITED)) {
            self.logged.push(held);
            return None;
        }
        self.logged.push(Logged::new(at, LogState::Placed(cgroup)));
        Some(kill)
    }

    /// Takes the second line of a group's first victim, which the kernel also counted a second time.
    pub fn logged_again(&mut self, at: LogPlace, pid: u32, group: &CgroupPath) -> Option<OomKill> {
        let again = |at| Logged::new(at, LogState::Again(group.clone()));
        // A rise that was returned long before may be of an earlier kill: the counters decide, also of a line that is read late.
        let read_at_once = LogPlace { is_exact: true, ..at };
        if claim(&mut self.reported_by_counter, &again(read_at_once), LATEST).is_none() {
            self.logged.push(again(at));
        }
        let is_it = |logged: &mut Logged| logged.waiting().is_some_and(|kill| kill.pid == pid);
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
        self.kills_without_record(&rise, Duration::MAX)
    }

    /// The log cannot be read any more. Returns everything that waits, and from now on rises at once.
    pub fn log_ended(&mut self) -> Vec<OomKill> {
        self.has_log = false;
        self.decide(Progress::END)
    }

    /// Whether a kill or a rise waits for progress.
    pub fn is_waiting(&self) -> bool {
        !self.rises.is_empty() || !self.unmatched.is_empty() || self.has_kills_waiting()
    }

    /// Whether a kill waits for the counters.
    pub fn has_kills_waiting(&self) -> bool {
        self.logged.iter().any(Logged::is_undecided)
    }

    /// Returns the kills about which nothing can change any more.
    pub fn decide_up_to(&mut self, progress: Progress) -> Vec<OomKill> {
        self.counters_read = progress.counters;
        self.decide(progress)
    }

    fn decide(&mut self, progress: Progress) -> Vec<OomKill> {
        let (mut kills, mut late) = (Vec::new(), Vec::new());
        let logged = std::mem::take(&mut self.logged);
        let unlogged = self.unmatched.iter().chain(&self.reported_by_counter);
        let certainty = Certainty {
            counters_read: self.counters_read,
            unlogged: unlogged.chain(&self.guessed).cloned().collect(),
        };
        for group in MatchGroup::independent(logged, std::mem::take(&mut self.rises)) {
            match group.due(progress) {
                Some(end) => late.extend(group.decide(end, &certainty, self, &mut kills)),
                None => {
                    self.logged.extend(group.logged);
                    self.rises.extend(group.rises);
                }
            }
        }
        kills.extend(self.place_late(late, progress));
        let read = if self.has_log { progress.log } else { progress.counters };
        for rise in expire(&mut self.unmatched, progress, &self.logged) {
            kills.extend(self.kills_without_record(&rise, read));
        }
        if progress != Progress::END {
            // The agent would have read their records by now.
            let may_be_read = |rise: &CounterDelta, delay| rise.by.saturating_add(delay) >= read;
            self.reported_by_counter.retain(|rise| may_be_read(rise, AWAITED));
            self.guessed.retain(|rise| may_be_read(rise, LATEST));
        }
        kills
    }

    /// Places kills without a partner among the rises that were not logged in time, also those that were returned alone.
    /// Kills with a known cgroup come first, and wait for their own rise until every counter was read.
    fn place_late(&mut self, mut late: Vec<Logged>, progress: Progress) -> Vec<OomKill> {
        late.sort_by_key(|logged| logged.waiting().is_some());
        let mut kills = Vec::new();
        for logged in late {
            let claimed = claim(&mut self.unmatched, &logged, LATEST);
            if claimed.is_none() && self.may_have_other_rise(&logged, progress) {
                self.logged.push(logged);
            } else {
                kills.extend(self.place(&logged, claimed));
            }
        }
        kills
    }

    /// Whether a late kill may be in a rise that is not read or not decided yet.
    fn may_have_other_rise(&self, logged: &Logged, progress: Progress) -> bool {
        let at = logged.at.time;
        let is_unread = logged.waiting().is_none() && at.saturating_add(SLACK) >= progress.counters;
        let may_be_read = is_unread && at.saturating_add(AWAITED) > progress.log;
        may_be_read || self.rises.iter().any(|rise| logged.may_be_in(rise, LATEST))
    }

    /// Places a late kill in the rise that it `claimed`. Returns the kill, unless it was returned before.
    fn place(&mut self, logged: &Logged, claimed: Option<CounterDelta>) -> Option<OomKill> {
        match &logged.who {
            LogState::Placed(_) | LogState::Again(_) => None,
            LogState::Held(kill) => {
                let is_known = claimed.is_none() && self.claim_reported(logged, kill.record).is_some();
                (!is_known).then(|| OomKill::clone(kill))
            }
            LogState::Waiting(kill) => {
                let of = |cgroup, confidence| OomKill::of(Arc::clone(kill), cgroup, confidence, logged.at.time);
                if let Some(rise) = claimed {
                    // The kill in this rise may also be another one that the kernel logs as late.
                    let placed = of(Some(rise.cgroup.clone()), Confidence::Ambiguous);
                    self.guessed.push(rise);
                    return Some(placed);
                }
                let Some(reported) = self.claim_reported(logged, kill.seq) else {
                    return Some(of(None, Confidence::LogAlone));
                };
                self.guessed.push(reported);
                None
            }
        }
    }

    /// Takes a kill off a rise that was returned alone: its record is of no other kill.
    fn claim_reported(&mut self, logged: &Logged, record: Option<u64>) -> Option<CounterDelta> {
        let rise = claim(&mut self.reported_by_counter, logged, AWAITED)?;
        self.known_records.extend(record);
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
            earlier.cgroup != rise.cgroup || earlier.by.saturating_add(LATEST) >= rise.by || read < rise.by
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
}

#[cfg(test)]
mod tests;
