//! After a limit was lowered: whether the container suffers from it.
//!
//! A limit that the kernel accepts can still be wrong: the container grows and is about to be killed, or it reads again and
//! again what the kernel had to drop. Both show within seconds, and each is a reason to undo the shrink.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::model::{Bytes, WatchReading};

/// How long the agent watches a lowered limit.
pub const WATCH_PERIOD: Duration = Duration::from_secs(60);
/// The interval of readings, by the time since the limit was lowered. Most failures happen at once.
const LOOKS: [(Duration, Duration); 3] = [
    (Duration::from_secs(2), Duration::from_millis(20)),
    (Duration::from_secs(10), Duration::from_millis(100)),
    (WATCH_PERIOD, Duration::from_millis(500)),
];
/// The least time between two readings, however fast a container grows.
const SHORTEST: Duration = Duration::from_millis(2);
/// Rates are taken over at least this long, and at most about twice as long.
const RATE_OVER: Duration = Duration::from_secs(1);
/// The least time between two readings that are kept for rates: the agent may watch all pods of a node at once.
const KEPT_EVERY: Duration = Duration::from_millis(125);
/// One part in so many of the limit must stay free of what the kernel cannot reclaim.
const ROOM: u64 = 64;
/// The agent raises a limit that its container will fill within this time at its present growth: to read, decide and raise
/// takes time, on a busy node in particular.
const REACTION: Duration = Duration::from_secs(1);
/// The least time over which growth is measured.
const SLOPE_OVER: Duration = Duration::from_millis(50);
/// A container may not read again more than one part in so many of the limit in each second.
const REFAULT_SHARE: u64 = 32;
/// A container may not stall for more than this many thousandths of the time.
const STALL_MILLI: u128 = 100;

/// The next step of the watch after a shrink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchStep {
    /// Read again, not before then.
    LookAt(Instant),
    /// Raise the limit again, now.
    RaiseAgain(Trouble),
    Done,
}

/// The harm after a limit was lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Trouble {
    #[display("{_0} processes were OOM killed")]
    Killed(u64),
    /// Memory that the kernel cannot reclaim nearly fills the limit, or will in a moment.
    #[display("{} bytes that cannot be reclaimed nearly fill the limit of {} bytes", held.get(), limit.get())]
    Full { held: Bytes, limit: Bytes },
    /// The container reads again and again what the kernel had to drop.
    #[display(
        "{} bytes a second are read again because they had to be dropped ({} before), under the limit of {} bytes",
        rate.get(),
        before.get(),
        limit.get()
    )]
    Refaults {
        /// Bytes read again in each second.
        rate: Bytes,
        /// The rate before the limit was lowered, if the agent saw it.
        before: Bytes,
        limit: Bytes,
    },
    /// All processes stall for want of memory.
    #[display("its processes waited for memory for {}.{} % of the time", milli / 10, milli % 10)]
    Stalled { milli: u128 },
}

/// Readings of a cgroup from before its limit was lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    pub last: WatchReading,
    /// When it was read. Other passes and calls to the runtime may lie between that and the watch.
    pub at: Instant,
    /// The most that it was seen to hold. Growth up to there is not new.
    pub most: Bytes,
    /// Bytes read again in each second.
    pub refaults: Bytes,
}

/// The watch of one cgroup whose limit was lowered.
#[derive(Debug, Clone)]
pub struct Watch {
    limit: Bytes,
    began: Instant,
    before: Before,
    /// The memory held at the last reading.
    last: (Instant, Bytes),
    /// The latest readings, the oldest first.
    recent: VecDeque<(Instant, WatchReading)>,
}

impl Watch {
    /// Begins at `now` to watch a limit that was lowered to `limit`.
    pub fn new(limit: Bytes, now: Instant, before: Before) -> Self {
        Self {
            limit,
            began: now,
            before,
            last: (before.at, before.last.memory.held()),
            recent: VecDeque::from([(before.at, before.last)]),
        }
    }

    /// The next step, given the newest reading.
    pub fn next(&mut self, reading: &WatchReading, now: Instant) -> WatchStep {
        if let Some(trouble) = self.trouble(reading, now) {
            return WatchStep::RaiseAgain(trouble);
        }
        let held = reading.memory.held();
        let (at, earlier) = std::mem::replace(&mut self.last, (now, held));
        let left = time_to_fill(earlier, held, now.saturating_duration_since(at), self.limit);
        let hurry = left.map(|left| (left / 4).max(SHORTEST));
        let kept = self.recent.back();
        if kept.is_none_or(|(at, _)| now.saturating_duration_since(*at) >= KEPT_EVERY) {
            self.recent.push_back((now, *reading));
        }
        // Keeps the youngest reading that is old enough to take a rate from. One from long before hides a sudden growth.
        let age = |at: Instant| now.saturating_duration_since(at);
        while let Some((next, _)) = self.recent.get(1)
            && (age(*next) >= RATE_OVER || age(self.recent[0].0) > RATE_OVER * 2)
        {
            self.recent.pop_front();
        }
        self.pace(now).map_or(WatchStep::Done, |pace| {
            WatchStep::LookAt(now + hurry.map_or(pace, |hurry| hurry.min(pace)))
        })
    }

    /// The time until the next reading, also after one that failed; `None` at the end of the watch.
    pub fn pace(&self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.began);
        let pace = LOOKS.iter().find(|(until, _)| since < *until);
        pace.map(|(_, pace)| *pace)
    }

    fn trouble(&self, reading: &WatchReading, now: Instant) -> Option<Trouble> {
        let killed = reading.kills.saturating_sub(self.before.last.kills);
        if killed > 0 {
            return Some(Trouble::Killed(killed));
        }
        let (limit, held) = (self.limit, reading.memory.held());
        let room = Bytes::new(limit.get() / ROOM);
        let (at, earlier) = self.recent.front()?;
        let over = now.saturating_duration_since(*at);
        // What the container held before also fits now.
        if held > self.before.most {
            let base = earlier.memory.held().max(self.before.most);
            // A container that has most of its limit left may well stop growing: a process that starts allocates at once.
            let half_full = held.get() > limit.get() / 2;
            let soon =
                half_full && time_to_fill(base, held, over.max(SLOPE_OVER), limit).is_some_and(|left| left < REACTION);
            if soon || held.saturating_add(room) > limit {
                return Some(Trouble::Full { held, limit });
            }
        }
        if over < RATE_OVER {
            return None;
        }
        let rate = rate(earlier.memory.refaults, reading.memory.refaults, over);
        let usual = self.before.refaults.get().saturating_mul(2);
        let bound = usual.saturating_add(limit.get() / REFAULT_SHARE);
        // If usage is below the limit, the limit is not why the kernel drops memory.
        if rate.get() > bound && reading.memory.usage.saturating_add(room) > limit {
            let before = self.before.refaults;
            return Some(Trouble::Refaults { rate, before, limit });
        }
        let stalled = reading.stalled?.saturating_sub(earlier.stalled?);
        let milli = stalled.as_micros() * 1000 / over.as_micros().max(1);
        (milli > STALL_MILLI).then_some(Trouble::Stalled { milli })
    }
}

/// The time until the limit is full at the growth over this time. `None` without growth.
fn time_to_fill(before: Bytes, held: Bytes, over: Duration, limit: Bytes) -> Option<Duration> {
    let grown = u128::from(held.saturating_sub(before).get());
    let left = u128::from(limit.saturating_sub(held).get());
    let micros = (over.as_micros() * left).checked_div(grown)?;
    Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

/// Bytes read again in each second, between two counts.
pub(super) fn rate(earlier: Bytes, later: Bytes, over: Duration) -> Bytes {
    let bytes = u128::from(later.saturating_sub(earlier).get());
    let per_second = bytes * 1_000_000 / over.as_micros().max(1);
    Bytes::new(u64::try_from(per_second).unwrap_or(u64::MAX))
}
