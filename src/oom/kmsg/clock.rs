//! The kernel log's clock → the wall clock.
//!
//! Records carry `local_clock()`: like CLOCK_MONOTONIC it stands still while the machine is suspended, but it is not slewed
//! by NTP, so the two drift apart (0.6 ms in 12 minutes on one machine).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::errno::Errno;
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// One moment by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    /// CLOCK_MONOTONIC in microseconds.
    pub(super) monotonic_us: i64,
    pub(super) wall: Timestamp,
}

impl Now {
    pub(super) fn read() -> Result<Self, Errno> {
        let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        Ok(Self {
            monotonic_us: monotonic.num_microseconds(),
            wall: Timestamp::now(),
        })
    }
}

/// How far CLOCK_MONOTONIC is ahead of the log's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogClock {
    seen: Option<Seen>,
}

/// The smallest difference seen when a record was read as soon as it was there: the delay of reading only adds to it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    ahead_us: i64,
    at_us: i64,
}

/// NTP slews by at most 500 ppm (`MAXFREQ`, kernel/time/ntp.c), so the smallest difference may grow by one in so many.
const SLEW: i64 = 2000;

impl LogClock {
    /// A record of that time was read as soon as it was there.
    pub(super) fn observe(&mut self, logged_us: u64, now: Now) {
        let ahead = now.monotonic_us.saturating_sub_unsigned(logged_us);
        let least = self.seen.map_or(ahead, |seen| {
            let slewed = now.monotonic_us.saturating_sub(seen.at_us) / SLEW;
            ahead.min(seen.ahead_us.saturating_add(slewed))
        });
        self.seen = Some(Seen {
            ahead_us: least,
            at_us: now.monotonic_us,
        });
    }

    /// When a record of that time was printed, by CLOCK_MONOTONIC in microseconds; never later than now.
    pub(super) fn monotonic_us(self, logged_us: u64, now: Now) -> i64 {
        let logged = self
            .seen
            .map_or(0, |seen| seen.ahead_us)
            .saturating_add_unsigned(logged_us);
        logged.min(now.monotonic_us)
    }

    /// The same by the wall clock, if nobody set it since.
    pub(super) fn wall(self, logged_us: u64, now: Now) -> Timestamp {
        let age = now.monotonic_us.saturating_sub(self.monotonic_us(logged_us, now));
        let age = SignedDuration::from_micros(age);
        now.wall.checked_sub(age).unwrap_or(now.wall)
    }
}

/// CLOCK_MONOTONIC: what the times of [`Notice`](super::Notice)s can be compared with.
///
/// Errors: none on Linux.
pub fn monotonic() -> Result<Duration, Errno> {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(monotonic_us: i64) -> Now {
        Now {
            monotonic_us,
            wall: Timestamp::from_microsecond(1_000_000_000 + monotonic_us).unwrap(),
        }
    }

    fn boot_plus(us: i64) -> Timestamp {
        Timestamp::from_microsecond(1_000_000_000 + us).unwrap()
    }

    #[test]
    fn an_old_record_is_dated_by_its_age() {
        assert_eq!(LogClock::default().wall(2_000, now(5_000)), boot_plus(2_000));
    }

    #[test]
    fn the_clocks_are_apart_by_the_least_that_was_seen() {
        let mut clock = LogClock::default();
        for (logged, read) in [(1_000, 1_900), (2_000, 2_600), (3_000, 9_000)] {
            clock.observe(logged, now(read));
        }
        assert_eq!(
            clock.wall(4_000, now(10_000)),
            boot_plus(4_603),
            "600 µs, and 3 that NTP may have added since"
        );
    }

    #[test]
    fn the_clocks_may_drift_either_way() {
        for drift in [-100_i64, 100] {
            let mut clock = LogClock::default();
            for minute in 0..1000 {
                let logged = minute * 60_000_000;
                clock.observe(u64::try_from(logged).unwrap(), now(logged + minute * drift + 50));
            }
            let off = clock.monotonic_us(60_000_000_000, now(61_000_000_000)) - 60_000_000_000 - 1000 * drift;
            assert!(off.abs() <= 150, "{off} µs off at {drift} µs a minute");
        }
    }

    #[test]
    fn nothing_is_dated_later_than_now_or_beyond_what_can_be_said() {
        assert_eq!(LogClock::default().wall(9_000, now(5_000)), boot_plus(5_000));
        assert_eq!(LogClock::default().wall(u64::MAX, now(5_000)), boot_plus(5_000));
        let beyond = Now {
            monotonic_us: i64::MAX,
            wall: boot_plus(0),
        };
        assert_eq!(LogClock::default().wall(0, beyond), boot_plus(0));
    }
}
