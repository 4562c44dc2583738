//! The kernel log's clock → the wall clock.
//!
//! Records carry `local_clock()`: like CLOCK_MONOTONIC it stands still while the machine is suspended, but it is not slewed
//! by NTP, so the two drift apart (0.6 ms in 12 minutes on one machine).

use jiff::{SignedDuration, Timestamp};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

/// One moment by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    /// CLOCK_MONOTONIC in microseconds.
    pub(super) monotonic_us: i64,
    /// The wall clock.
    pub(super) wall: Timestamp,
}

impl Now {
    /// Reads both clocks.
    pub(super) fn read() -> Result<Self, Errno> {
        let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        Ok(Self {
            monotonic_us: monotonic.tv_sec() * 1_000_000 + monotonic.tv_nsec() / 1000,
            wall: Timestamp::now(),
        })
    }
}

/// How far CLOCK_MONOTONIC is ahead of the log's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogClock {
    /// The smallest difference seen when a record was read as soon as it was there; the delay of reading only adds to it.
    ahead_us: Option<i64>,
}

impl LogClock {
    /// A record of that time was read as soon as it was there.
    pub(super) fn observe(&mut self, logged_us: u64, now: Now) {
        let ahead = now.monotonic_us.saturating_sub_unsigned(logged_us);
        self.ahead_us = Some(self.ahead_us.map_or(ahead, |least| least.min(ahead)));
    }

    /// When a record of that time was printed; never later than now.
    pub(super) fn wall(self, logged_us: u64, now: Now) -> Timestamp {
        let since_logged = now.monotonic_us.saturating_sub_unsigned(logged_us);
        let age = since_logged.saturating_sub(self.ahead_us.unwrap_or(0)).max(0);
        now.wall
            .checked_sub(SignedDuration::from_micros(age))
            .unwrap_or(now.wall)
    }
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
        assert_eq!(clock.wall(4_000, now(10_000)), boot_plus(4_600));
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
