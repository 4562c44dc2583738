//! Moments by CLOCK_MONOTONIC and by the wall clock, and the clock of the kernel's log.
//!
//! Records carry `local_clock()`. Like CLOCK_MONOTONIC it stops while the machine is suspended. NTP slews
//! CLOCK_MONOTONIC only, so the two drift apart (0.6 ms in 12 minutes on one machine).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};

use super::join::SLACK;

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
        Self {
            monotonic: monotonic(),
            wall: Timestamp::now(),
        }
    }

    /// The time of the wall clock at another moment, as long as no process sets that clock in between.
    pub(super) fn wall_at(&self, monotonic: Duration) -> Timestamp {
        let ago = SignedDuration::try_from(self.monotonic.saturating_sub(monotonic)).unwrap_or_default();
        self.wall.checked_sub(ago).unwrap_or(self.wall)
    }
}

/// How far CLOCK_MONOTONIC is ahead of the log's clock: between two bounds, each with the time of its latest record,
/// all in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogClock {
    /// The smallest difference to the time of reading. A delay in reading only adds to the difference.
    at_most: Option<(i64, i64)>,
    /// The largest difference to a moment before the record.
    at_least: Option<(i64, i64)>,
}

/// NTP slews by at most 500 ppm (`MAXFREQ`, kernel/time/ntp.c), so a bound may move by one in so many.
const SLEW: i64 = 2000;

impl LogClock {
    /// Takes the time of a record that the kernel logged between these moments of CLOCK_MONOTONIC.
    pub(super) fn observe(&mut self, logged_us: u64, after: Duration, by: Duration) {
        let (after, by) = (micros(after), micros(by));
        let (least, most) = (
            after.saturating_sub_unsigned(logged_us),
            by.saturating_sub_unsigned(logged_us),
        );
        let slewed = |since: i64| by.saturating_sub(since) / SLEW;
        let most = self
            .at_most
            .map_or(most, |(known, at)| most.min(known.saturating_add(slewed(at))));
        let least = self
            .at_least
            .map_or(least, |(known, at)| least.max(known.saturating_sub(slewed(at))));
        (self.at_most, self.at_least) = (Some((most, by)), Some((least, by)));
    }

    /// Whether the times of records are exact to [`SLACK`]; if not, they are too late.
    pub(super) fn is_exact(self) -> bool {
        let bounds = self.at_most.zip(self.at_least);
        bounds.is_some_and(|((most, _), (least, _))| most.saturating_sub(least) <= micros(SLACK))
    }

    /// Converts the time of a record to CLOCK_MONOTONIC; never later than `now`.
    pub(super) fn monotonic(self, logged_us: u64, now: Moment) -> Duration {
        let ahead = self.at_most.map_or(0, |(most, _)| most);
        let logged = ahead.saturating_add_unsigned(logged_us);
        Duration::from_micros(u64::try_from(logged).unwrap_or(0)).min(now.monotonic)
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
        now.wall_at(clock.monotonic(logged_us, now))
    }

    #[test]
    fn an_old_record_is_dated_by_its_age() {
        assert_eq!(wall(LogClock::default(), 2_000, now(5_000)), boot_plus(2_000));
    }

    #[test]
    fn clocks_differ_by_the_least_seen() {
        let mut clock = LogClock::default();
        for (logged, read) in [(1_000, 1_900), (2_000, 2_600), (3_000, 9_000)] {
            let read = now(read).monotonic;
            clock.observe(logged, read, read);
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
                clock.observe(u64::try_from(logged).unwrap(), read, read);
            }
            let logged = clock.monotonic(60_000_000_000, now(61_000_000_000));
            let off = micros(logged) - 60_000_000_000 - 1000 * drift;
            assert!(off.abs() <= 150, "{off} µs off at {drift} µs a minute");
        }
    }

    #[test]
    fn records_read_late_are_exact_once_their_bounds_meet() {
        let ms = Duration::from_millis;
        let mut clock = LogClock::default();
        assert!(!clock.is_exact());
        clock.observe(1_000_000, ms(500), ms(4_000));
        assert!(!clock.is_exact(), "logged within three and a half seconds");
        clock.observe(4_020_000, ms(4_000), ms(4_530));
        assert!(!clock.is_exact());
        clock.observe(4_500_000, ms(4_000), ms(4_530));
        assert!(
            clock.is_exact(),
            "30 ms after the end of a copy, and 30 ms before the next"
        );
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
