//! Decides whether a container's limit must grow now, and when to read again. Pure.
//!
//! In come one reading of a container and how long a growth takes on this node; out comes a [`Verdict`]. A limit grows when
//! memory that the kernel cannot reclaim would, at its present rate, reach the limit before another reading and a write are
//! certain to be done. Memory that the kernel can reclaim (file pages) does not count: the kernel reclaims it at the limit
//! and kills no process for it.

use std::time::Duration;

use super::rate::{BytesPerSecond, GrowthRate, grown, time_for};
use crate::model::Bytes;

/// A limit grows for so much time ahead at the present rate.
const AHEAD: Duration = Duration::from_millis(500);
/// A limit grows by at least this part of itself.
const LEAST_STEP: u64 = 4;
/// Growing use counts as close to the limit within this part of it.
const CLOSE: u64 = 32;
/// Within this part of the limit the guard reads how much of the use is reclaimable, and also whenever use grows towards the limit.
const NEAR: u64 = 8;
/// A reading and a write are certain to be done within so many times as long as they usually take.
const SAFETY: u32 = 8;
const LEAST_REACTION: Duration = Duration::from_millis(40);
const LONGEST_REACTION: Duration = Duration::from_millis(400);
/// Farther from the limit than this part of the distance at which to act, there is time for another reading before that.
const READ_TWICE: u64 = 2;
/// The fastest sudden growth that the waits between readings allow for.
const SUDDEN: BytesPerSecond = 2 << 30;
/// The same where use is at the limit with reclaimable memory: the kernel has to reclaim what the container takes.
pub(super) const SUDDEN_AT_LIMIT: BytesPerSecond = 512 << 20;
/// The sandbox of a pod uses less than this part of a container's limit.
const SANDBOX: u64 = 64;
/// The shortest time between two readings of a container whose use grows.
const QUICKEST: Duration = Duration::from_millis(1);
/// The time between two readings after use passed an alarm: enough for a rate.
pub(super) const AGAIN: Duration = Duration::from_millis(2);
/// The shortest time between two readings of a container whose use does not grow.
const RESTING: Duration = Duration::from_millis(10);
/// The shortest time where use is at the limit with reclaimable memory.
const RECLAIMING: Duration = Duration::from_millis(20);
/// The longest time between two readings for which the rate of unreclaimable memory is known.
const FOLLOWED: Duration = Duration::from_secs(1);
/// The longest time between two readings.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// One reading of a container, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The time since the guard started.
    pub at: Duration,
    pub limit: u64,
    /// Memory in use, page cache and kernel memory included, and `above_high`.
    pub usage: u64,
    /// The part of the limit above `memory.high`. It counts as used: the kernel slows a container down that uses all of the rest.
    pub above_high: u64,
    /// The reclaimable part of the usage; read only where [`near`] holds.
    pub reclaimable: Option<u64>,
}

impl Reading {
    /// Memory in use that the kernel cannot reclaim, as far as that was read, and [`above_high`](Self::above_high).
    pub fn used(&self) -> u64 {
        self.usage.saturating_sub(self.reclaimable.unwrap_or(0))
    }

    /// As [`used`](Self::used), without [`above_high`](Self::above_high).
    pub fn in_use(&self) -> u64 {
        self.used().saturating_sub(self.above_high)
    }

    /// The limit whose `memory.high` would be what is in use: `memory.high` keeps its share of the limit.
    pub fn needed(&self) -> u64 {
        let high = self.limit.saturating_sub(self.above_high);
        let [used, limit, high] = [self.in_use(), self.limit, high].map(u128::from);
        let needed = (used * limit).checked_div(high);
        needed
            .and_then(|needed| u64::try_from(needed).ok())
            .unwrap_or_else(|| self.used())
    }

    /// How much of a container's temporary limit for its pod counts as used and as needed, where the pod has so much room below its
    /// own limit. With no more than what is needed, the pod has at least twice the room at which the guard acts.
    pub const fn used_by_pod(limit: u64, limit_of_pod: u64, room: u64) -> [u64; 2] {
        let spare = limit_of_pod / (CLOSE / 2);
        [
            limit.saturating_sub(room),
            limit.saturating_sub(room.saturating_sub(spare)),
        ]
    }
}

/// How fast the guard is on this node, and how the kernel wakes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The time from the moment a reading is due until a grown limit is in force.
    pub act: Duration,
    /// The kernel wakes the guard when use passes this many bytes.
    pub tripwire: Option<u64>,
    /// The kernel has just woken the guard because use passed such an amount.
    pub tripped: bool,
    /// The kernel wakes the guard when it has to reclaim at the limit.
    pub notifies_of_reclaim: bool,
}

/// What follows from a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Read again after this time, or when the kernel notifies.
    Wait(Duration),
    Grow(Need),
}

/// Why and how far a limit must grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// When the reading began.
    pub at: Duration,
    pub limit: Bytes,
    /// The rate that use grows at.
    pub rate: BytesPerSecond,
    /// As of [`Reading::used`].
    pub used: Bytes,
    /// The limit that suffices for `AHEAD`.
    pub wanted: Bytes,
    /// The least useful limit: it suffices until the next reading.
    pub least: Bytes,
}

impl Need {
    /// The need of one container where this is its pod's: its limit must grow by as much as the pod's. All of its limit counts as used
    /// but the pod's room. `None` for a container that grows by itself, because it reaches its own limit first, or would
    /// without the sandbox's use.
    pub fn of_container(self, container: &Reading, verdict: &Verdict) -> Option<Self> {
        let limit = Bytes::new(container.limit);
        let used = limit.saturating_sub(self.limit.saturating_sub(self.used));
        let more = |to: Bytes| limit.saturating_add(to.saturating_sub(self.limit));
        let with_sandbox = container.used().saturating_add(container.limit / SANDBOX);
        let grows_itself = matches!(verdict, Verdict::Grow(_)) && with_sandbox >= used.get();
        (!grows_itself).then(|| Self {
            limit,
            used,
            wanted: more(self.wanted),
            least: more(self.least),
            ..self
        })
    }

    /// The need where the limit must first grow by this much, which serves nothing by itself and is never used.
    #[must_use]
    pub fn after(self, growth: Bytes) -> Self {
        let [used, wanted, least] = [self.used, self.wanted, self.least].map(|amount| amount.saturating_add(growth));
        Self {
            used,
            wanted,
            least,
            ..self
        }
    }
}

/// The readings of one container or pod.
#[derive(Debug, Clone, Default)]
pub struct Track {
    usage: GrowthRate,
    /// The part that the kernel cannot reclaim, and when it was last read.
    used: GrowthRate,
    used_at: Option<Duration>,
    rate: BytesPerSecond,
}

/// Whether use is so close to the limit that its reclaimable part matters.
pub const fn near(limit: u64, usage: u64) -> bool {
    limit.saturating_sub(usage) <= limit / NEAR
}

/// Whether use is at the limit: what the container takes then comes out of reclaimable memory, and use as a whole does not move.
pub const fn is_pinned(limit: u64, usage: u64) -> bool {
    limit.saturating_sub(usage) < limit / 64
}

/// Whether so much of the use is reclaimable that it could hide growth, or look like it.
pub(super) const fn has_cache(limit: u64, reclaimable: u64) -> bool {
    reclaimable > limit / 64
}

impl Track {
    /// The rate of growth at the latest reading.
    pub const fn rate(&self) -> BytesPerSecond {
        self.rate
    }

    /// The verdict on one reading. After a verdict to grow without [`Reading::reclaimable`], the caller
    /// reads that and calls again.
    pub fn predict(&mut self, reading: Reading, pace: Pace) -> Verdict {
        // A higher limit has a larger part above `memory.high`, and that is no growth.
        let taken = |amount: u64| amount.saturating_sub(reading.above_high);
        let of_usage = self.usage.observe(reading.at, taken(reading.usage));
        let used = reading.used();
        let (mut rate, mut may_be_cache) = (of_usage, false);
        if let Some(reclaimable) = reading.reclaimable {
            let of_used = self.used.observe(reading.at, taken(used));
            let before = self.used_at.replace(reading.at);
            let is_known = before.is_some_and(|before| reading.at.saturating_sub(before) <= FOLLOWED);
            // All that grew since the reading before may be unreclaimable.
            rate = if is_known { of_used } else { of_used.max(of_usage) };
            may_be_cache = !is_known && has_cache(reading.limit, reclaimable);
        }
        self.rate = rate;
        let room = reading.limit.saturating_sub(used);
        let reach = reach(reading.limit, rate, pace.act);
        if rate > 0 && room <= reach {
            // A second reading tells whether the page cache grew, or the rest.
            if may_be_cache && room > reach / READ_TWICE {
                return Verdict::Wait(AGAIN);
            }
            return Verdict::Grow(need(reading, used, rate, reach));
        }
        Verdict::Wait(wait(reading, pace, rate, room, reach))
    }

    /// By how much memory in use may rise before this latest reading is too old: a quarter of the room, and less where that would
    /// use up what a growing container leaves to a growth.
    pub fn slack(&self, reading: Reading, act: Duration) -> u64 {
        let room = reading.limit.saturating_sub(reading.used());
        let ahead = room.saturating_sub(reach(reading.limit, self.rate, act));
        if self.rate == 0 {
            room / 4
        } else {
            (room / 4).min(ahead / 2)
        }
    }
}

/// How long the limit cannot be reached.
fn wait(reading: Reading, pace: Pace, rate: BytesPerSecond, room: u64, reach: u64) -> Duration {
    let pinned = is_pinned(reading.limit, reading.usage);
    let untold = match pace.tripwire {
        Some(wire) if reading.usage < wire => LONGEST,
        // Half of the time: the other half is for two readings and a write.
        // Without page cache the first notice comes with the kill.
        _ if pinned && pace.notifies_of_reclaim && room > reading.limit / CLOSE => LONGEST / 5,
        _ if pinned => time_for(room / 2, SUDDEN_AT_LIMIT).clamp(RECLAIMING, LONGEST / 10),
        _ => time_for(room / 2, SUDDEN).max(RESTING),
    };
    let seen = time_for(room.saturating_sub(reach) / 2, rate).max(QUICKEST);
    // The reading before was long ago, so the rate is unknown: read twice.
    let tripped = if pace.tripped { AGAIN } else { LONGEST };
    untold.min(seen).min(tripped)
}

/// The distance from the limit at which to act.
fn reach(limit: u64, rate: BytesPerSecond, act: Duration) -> u64 {
    let reaction = act.saturating_mul(SAFETY).clamp(LEAST_REACTION, LONGEST_REACTION);
    grown(rate, reaction).saturating_add(limit / CLOSE)
}

fn need(Reading { at, limit, .. }: Reading, used: u64, rate: BytesPerSecond, reach: u64) -> Need {
    let for_a_while = used.saturating_add(grown(rate, AHEAD)).saturating_add(reach);
    let by_a_part = limit.saturating_add(limit / LEAST_STEP);
    // The container would use up less than half a reach before the next reading.
    let least = limit.saturating_add((reach / 2).min(limit / CLOSE));
    Need {
        at,
        limit: Bytes::new(limit),
        rate,
        used: Bytes::new(used),
        wanted: Bytes::new(for_a_while.max(by_a_part)),
        least: Bytes::new(least),
    }
}

#[cfg(test)]
mod tests;
