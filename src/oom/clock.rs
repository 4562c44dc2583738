//! Moments by CLOCK_MONOTONIC and by the wall clock, and the clock of the kernel's log.
//!
//! Records carry `local_clock()`. Like CLOCK_MONOTONIC it stops while the machine is suspended. NTP slews
//! CLOCK_MONOTONIC only, so the two drift apart (0.6 ms in 12 minutes on one machine).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};

use crate::model::{QUICK, at_once};

/// CLOCK_MONOTONIC, which every Linux has.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// One moment by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) monotonic: Duration,
    pub(super) wall: Timestamp,
}

impl Moment {
    pub(super) fn now() -> Self {
        let Ok((monotonic, wall)) = at_once(QUICK, monotonic, || Ok::<_, std::convert::Infallible>(Timestamp::now()));
        Self { monotonic, wall }
    }

    /// The time of the wall clock at another moment, earlier or later, as long as no process sets that clock in between.
    pub(super) fn wall_at(&self, monotonic: Duration) -> Timestamp {
        let since = SignedDuration::from_micros(micros(monotonic).saturating_sub(micros(self.monotonic)));
        self.wall.checked_add(since).unwrap_or(self.wall)
    }
}

/// How far CLOCK_MONOTONIC is ahead of the log's clock: the smallest difference between a record's time and the time of
/// reading, with that time, all in microseconds. A delay in reading only adds to the difference.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogClock(Option<(i64, i64)>);

/// NTP slews by at most 500 ppm (`MAXFREQ`, kernel/time/ntp.c), so the difference may grow by one in so many.
pub(super) const SLEW: u32 = 2000;

impl LogClock {
    /// Takes the time of a record that the kernel logged before this moment of CLOCK_MONOTONIC.
    pub(super) fn observe(&mut self, logged_us: u64, by: Duration) {
        let by = micros(by);
        let ahead = by.saturating_sub_unsigned(logged_us);
        let slewed = |since: i64| by.saturating_sub(since) / i64::from(SLEW);
        let known = |(known, at): (i64, i64)| ahead.min(known.saturating_add(slewed(at)));
        self.0 = Some((self.0.map_or(ahead, known), by));
    }

    /// Converts the time of a record to CLOCK_MONOTONIC; never later than `now`.
    pub(super) fn monotonic(self, logged_us: u64, now: Duration) -> Duration {
        let ahead = self.0.map_or(0, |(ahead, _)| ahead);
        let logged = ahead.saturating_add_unsigned(logged_us);
        Duration::from_micros(u64::try_from(logged).unwrap_or(0)).min(now)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(monotonic_us: i64) -> Moment {
        Moment {
            monotonic: Duration::from_micros(u64::try_from(monotonic_us).unwrap()),
            wall: boot_plus(monotonic_us),
        }
    }

    fn boot_plus(us: i64) -> Timestamp {
        Timestamp::from_microsecond(1_000_000_000 + us).unwrap()
    }

    fn wall(clock: LogClock, logged_us: u64, now: Moment) -> Timestamp {
        now.wall_at(clock.monotonic(logged_us, now.monotonic))
    }

    #[test]
    fn an_old_record_is_dated_by_its_age() {
        assert_eq!(wall(LogClock::default(), 2_000, now(5_000)), boot_plus(2_000));
    }

    #[test]
    fn a_later_moment_has_a_later_time() {
        let wall = |other| now(5_000).wall_at(now(other).monotonic);
        assert_eq!([2_000, 5_000, 9_000].map(wall), [2_000, 5_000, 9_000].map(boot_plus));
    }

    #[test]
    fn clocks_differ_by_the_least_seen() {
        let mut clock = LogClock::default();
        for (logged, read) in [(1_000, 1_900), (2_000, 2_600), (3_000, 9_000)] {
            let read = now(read).monotonic;
            clock.observe(logged, read);
        }
        assert_eq!(
            wall(clock, 4_000, now(10_000)),
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
                let read = now(logged + minute * drift + 50).monotonic;
                clock.observe(u64::try_from(logged).unwrap(), read);
            }
            let logged = clock.monotonic(60_000_000_000, now(61_000_000_000).monotonic);
            let off = micros(logged) - 60_000_000_000 - 1000 * drift;
            assert!(off.abs() <= 150, "{off} µs off at {drift} µs a minute");
        }
    }

    #[test]
    fn no_time_is_in_the_future() {
        assert_eq!(wall(LogClock::default(), 9_000, now(5_000)), boot_plus(5_000));
        assert_eq!(wall(LogClock::default(), u64::MAX, now(5_000)), boot_plus(5_000));
        let beyond = Moment {
            monotonic: Duration::MAX,
            wall: boot_plus(0),
        };
        assert_eq!(wall(LogClock::default(), 0, beyond), boot_plus(0));
    }
}
