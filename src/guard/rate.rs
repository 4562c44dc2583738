//! The rate at which memory use grows. Pure.
//!
//! In come readings of a counter, each with its time; out comes a rate that rises quickly: the steepest slope between now and
//! any reading of the last second, and for a while longer the steepest earlier one. The rate never underestimates a growth that
//! goes on, and falls within seconds after a growth has ended.

use std::collections::VecDeque;
use std::time::Duration;

const KEPT: usize = 24;
/// Readings closer together than this give no rate: the kernel charges memory in batches
/// for each processor (`MEMCG_CHARGE_BATCH`, mm/memcontrol.c).
pub(super) const CLOSEST: Duration = Duration::from_millis(2);
/// Readings older than this count only where there is no other.
const OLDEST: Duration = Duration::from_secs(1);
/// The time in which a rate that has ended is halved.
const HALF_LIFE: Duration = Duration::from_millis(500);

/// A rate of growth in bytes per second.
pub type BytesPerSecond = u64;

/// The readings of one counter.
#[derive(Debug, Clone, Default)]
pub struct GrowthRate {
    /// Time and bytes, oldest first.
    readings: VecDeque<(Duration, u64)>,
    /// The steepest recent rate, and its time.
    steepest: Option<(Duration, BytesPerSecond)>,
}

impl GrowthRate {
    /// Adds one reading and returns the rate. Times never go back.
    pub fn observe(&mut self, at: Duration, bytes: u64) -> BytesPerSecond {
        let is_old = |(next, _): &(Duration, u64)| at.saturating_sub(*next) > OLDEST;
        while self.readings.len() >= KEPT || self.readings.get(1).is_some_and(is_old) {
            self.readings.pop_front();
        }
        let seen = self.since_any(at, bytes);
        let fade = |(then, rate)| faded(rate, at.saturating_sub(then));
        let left = self.steepest.map_or(0, fade);
        if seen >= left {
            self.steepest = Some((at, seen));
        }
        // Keep only the first of readings in quick succession.
        let is_close = |(last, _): &(Duration, u64)| at.saturating_sub(*last) < CLOSEST;
        if self.readings.len() < 2 || !self.readings.back().is_some_and(is_close) {
            self.readings.push_back((at, bytes));
        }
        seen.max(left)
    }

    fn since_any(&self, at: Duration, bytes: u64) -> BytesPerSecond {
        let rates = self.readings.iter().filter_map(|(then, before)| {
            let time = at.checked_sub(*then).filter(|time| *time >= CLOSEST)?;
            Some(per_second(bytes.saturating_sub(*before), time))
        });
        rates.max().unwrap_or(0)
    }
}

/// What remains of a rate so long after its last reading.
fn faded(rate: BytesPerSecond, since: Duration) -> BytesPerSecond {
    let halves = u32::try_from(since.as_millis() / HALF_LIFE.as_millis()).unwrap_or(u32::MAX);
    rate.checked_shr(halves).unwrap_or(0)
}

pub(super) fn per_second(bytes: u64, time: Duration) -> BytesPerSecond {
    let rate = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The bytes that grow in this time at this rate. Saturates.
pub(super) fn grown(rate: BytesPerSecond, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The time to grow by so many bytes at this rate; without end at rate 0.
pub(super) fn time_for(bytes: u64, rate: BytesPerSecond) -> Duration {
    if rate == 0 {
        return Duration::MAX;
    }
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn one_look_says_nothing() {
        assert_eq!(GrowthRate::default().observe(ms(5), 500 * MIB), 0);
    }

    #[test]
    fn a_burst_after_rest_is_seen_at_once() {
        let mut rate = GrowthRate::default();
        for second in 0..10 {
            assert_eq!(rate.observe(ms(second * 1000), 100 * MIB), 0);
        }
        rate.observe(ms(9100), 100 * MIB);
        assert_eq!(rate.observe(ms(9110), 105 * MIB), 500 * MIB);
    }

    #[test]
    fn ended_growth_is_forgotten_within_seconds() {
        let mut rate = GrowthRate::default();
        rate.observe(ms(0), 0);
        rate.observe(ms(100), 50 * MIB);
        assert!(rate.observe(ms(600), 50 * MIB) >= 250 * MIB);
        assert!(rate.observe(ms(20_000), 50 * MIB) < MIB);
        assert_eq!(rate.observe(ms(60_000), 50 * MIB), 0);
    }

    #[test]
    fn a_rate_halves_twice_a_second() {
        let left = [0, 499, 500, 999, 1000, 5000].map(|millis| faded(800, ms(millis)));
        assert_eq!(left, [800, 800, 400, 400, 200, 0]);
        assert_eq!(faded(u64::MAX, Duration::MAX), 0);
    }

    #[test]
    fn memory_that_is_given_back_is_no_growth() {
        let mut rate = GrowthRate::default();
        rate.observe(ms(0), 100 * MIB);
        assert_eq!(rate.observe(ms(100), 10 * MIB), 0);
    }

    proptest! {
        #[test]
        fn a_steady_growth_is_never_underestimated(
            rate in 1_u64..(4 << 30), steps in prop::collection::vec(2_u64..400, 2..60),
        ) {
            let mut seen = GrowthRate::default();
            let mut now = Duration::ZERO;
            seen.observe(now, 0);
            for step in steps {
                now += ms(step);
                let found = seen.observe(now, grown(rate, now));
                // Both ends are whole bytes.
                let slack = per_second(1, ms(2)) + 1;
                prop_assert!(found + slack >= rate, "{found} of {rate}");
            }
        }

        #[test]
        fn a_rate_is_at_most_the_whole_counter(
            readings in prop::collection::vec((0_u64..50, 0_u64..(1 << 40)), 1..100),
        ) {
            let mut seen = GrowthRate::default();
            let (mut now, mut largest) = (Duration::ZERO, 0);
            for (step, bytes) in readings {
                now += ms(step);
                largest = bytes.max(largest);
                prop_assert!(seen.observe(now, bytes) <= per_second(largest, CLOSEST));
            }
            prop_assert!(seen.readings.len() <= KEPT);
        }

        #[test]
        fn time_and_amount_agree(rate in 1_u64..(1 << 40), bytes in 0_u64..(1 << 40)) {
            let back = grown(rate, time_for(bytes, rate));
            prop_assert!(back <= bytes && bytes - back <= rate / 1_000_000_000 + 1);
        }
    }
}
