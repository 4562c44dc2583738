//! Whether a container's limit must grow now, and when to look again. Pure.
//!
//! In comes what one look at a container found, and how long acting takes on this node; out comes a [`Verdict`]. A limit grows
//! when memory that cannot be taken back comes so close to it that, at the rate it grows, the limit would be reached
//! before another look and a write could be relied upon. What the kernel can take back (pages of files) is not counted: it is
//! reclaimed at the limit, nobody is killed for it.

use std::time::Duration;

use super::rate::{BytesPerSecond, Rate, grown, time_for};
use crate::model::Bytes;

/// A limit grows for so much time ahead at the present rate.
const AHEAD: Duration = Duration::from_millis(500);
/// A limit grows by this part of itself at least.
const LEAST_STEP: u64 = 4;
/// Use that grows at all counts as close within this part of the limit.
const CLOSE: u64 = 32;
/// The limit is worth a look at what could be taken back from this part of it, and at any time when use grows towards it.
const NEAR: u64 = 8;
/// Looking and writing is relied upon to succeed within so many times as long as it usually takes.
const SAFETY: u32 = 8;
const LEAST_REACTION: Duration = Duration::from_millis(40);
const LONGEST_REACTION: Duration = Duration::from_millis(400);
/// The fastest growth out of nothing that looks are planned for.
const SUDDEN: BytesPerSecond = 2 << 30;
/// The shortest time between two looks at a container whose use grows.
const QUICKEST: Duration = Duration::from_millis(1);
/// The time between two looks after use passed an alarm: enough for a rate.
pub(super) const AGAIN: Duration = Duration::from_millis(2);
/// The shortest time between two looks at a container whose use does not grow.
const RESTING: Duration = Duration::from_millis(10);
/// The same where use stands at the limit with memory that can be taken back: then the kernel slows growth down.
const RECLAIMING: Duration = Duration::from_millis(20);
/// Memory that stays is followed from look to look if they are not further apart than this.
const FOLLOWED: Duration = Duration::from_secs(1);
/// The longest time between two looks.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// What one look found, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When, since the guard started.
    pub at: Duration,
    pub limit: u64,
    /// Memory in use, page cache and kernel memory included.
    pub usage: u64,
    /// How much of that the kernel can take back; read only where [`near`] says so.
    pub reclaimable: Option<u64>,
}

impl Look {
    /// What is in use and not to be taken back, as far as that was read.
    pub fn used(&self) -> u64 {
        self.usage.saturating_sub(self.reclaimable.unwrap_or(0))
    }
}

/// How fast the guard is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long it takes from the moment a look is due until a grown limit is in force.
    pub act: Duration,
    /// The kernel wakes the guard when use passes this many bytes.
    pub tripwire: Option<u64>,
    /// The kernel has just woken the guard because use passed such an amount.
    pub tripped: bool,
    /// The kernel wakes the guard when it has to take memory back at the limit.
    pub told_of_reclaim: bool,
}

/// What follows from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do; look again after this time, or when the kernel says something.
    Wait(Duration),
    Grow(Need),
}

/// Why and how far a limit must grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The rate that use grows at.
    pub rate: BytesPerSecond,
    /// In use, and not to be taken back.
    pub used: Bytes,
    /// The limit that would do for a while.
    pub wanted: Bytes,
    /// The least limit worth having: a look further than the present one.
    pub least: Bytes,
}

/// What was seen of one container.
#[derive(Debug, Clone, Default)]
pub struct Track {
    usage: Rate,
    /// The part that cannot be taken back, and when it was looked at last.
    used: Rate,
    used_at: Option<Duration>,
    rate: BytesPerSecond,
}

/// Whether use is close enough to its limit that it matters what of it can be taken back.
#[must_use]
pub const fn near(limit: u64, usage: u64) -> bool {
    limit.saturating_sub(usage) <= limit / NEAR
}

impl Track {
    /// The rate that use grew at when it was looked at last.
    pub const fn rate(&self) -> BytesPerSecond {
        self.rate
    }

    /// Says what follows from one look. A verdict to grow on a look without [`Look::reclaimable`] is for looking again with it.
    pub fn predict(&mut self, look: Look, pace: Pace) -> Verdict {
        let of_usage = self.usage.observe(look.at, look.usage);
        let used = look.used();
        let rate = if look.reclaimable.is_some() {
            let of_used = self.used.observe(look.at, used);
            let before = self.used_at.replace(look.at);
            // What grew before this was looked at may all be memory that stays.
            match before {
                Some(before) if look.at.saturating_sub(before) <= FOLLOWED => of_used,
                _ => of_used.max(of_usage),
            }
        } else {
            of_usage
        };
        self.rate = rate;
        let room = look.limit.saturating_sub(used);
        let reach = reach(look.limit, rate, pace.act);
        if rate > 0 && room <= reach {
            return Verdict::Grow(need(look.limit, used, rate, reach));
        }
        Verdict::Wait(wait(look, pace, rate, room, reach))
    }
}

/// How long nothing can happen that needs another look.
fn wait(look: Look, pace: Pace, rate: BytesPerSecond, room: u64, reach: u64) -> Duration {
    let pinned = look.limit.saturating_sub(look.usage) < look.limit / 64;
    let untold = match pace.tripwire {
        Some(wire) if look.usage < wire => LONGEST,
        // Half of the time: the other half is for looking twice and acting.
        _ if pinned && pace.told_of_reclaim => LONGEST / 5,
        _ if pinned => time_for(room / 2, SUDDEN).clamp(RECLAIMING, LONGEST / 10),
        _ => time_for(room / 2, SUDDEN).max(RESTING),
    };
    let seen = time_for(room.saturating_sub(reach) / 2, rate).max(QUICKEST);
    // The look before was long ago, so the rate says nothing: look twice.
    let tripped = if pace.tripped { AGAIN } else { LONGEST };
    untold.min(seen).min(tripped)
}

/// The distance from the limit at which to act.
fn reach(limit: u64, rate: BytesPerSecond, act: Duration) -> u64 {
    let reaction = act.saturating_mul(SAFETY).clamp(LEAST_REACTION, LONGEST_REACTION);
    grown(rate, reaction).saturating_add(limit / CLOSE)
}

fn need(limit: u64, used: u64, rate: BytesPerSecond, reach: u64) -> Need {
    let for_a_while = used.saturating_add(grown(rate, AHEAD)).saturating_add(reach);
    let by_a_part = limit.saturating_add(limit / LEAST_STEP);
    // Less than half a reach would be used up before the next look.
    let least = limit.saturating_add((reach / 2).min(limit / CLOSE));
    Need {
        rate,
        used: Bytes::new(used),
        wanted: Bytes::new(for_a_while.max(by_a_part)),
        least: Bytes::new(least),
    }
}

#[cfg(test)]
mod tests;
