//! How long to wait before trying again: doubled each time, scattered, and never shorter than was asked for.
//!
//! Scattered, because thousands of agents lose the same API server at the same moment, and must not all come back at one.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pauses between attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from about `first` to about `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// The pause after one more failure, at least as long as the other side asked for.
    pub fn next(&mut self, asked_for: Option<Duration>) -> Duration {
        let pause = pause(self.first, self.longest, self.failures, asked_for, fraction());
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Something succeeded.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A duration scattered by half of itself to either side.
#[must_use]
pub fn scattered(around: Duration) -> Duration {
    around.mul_f64(0.5 + fraction())
}

/// Pure: the pause after so many failures, with a fraction from 0 to 1 to scatter it.
fn pause(first: Duration, longest: Duration, failures: u32, asked_for: Option<Duration>, fraction: f64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    let pause = doubled.min(longest).mul_f64(0.5 + fraction / 2.0);
    // What was asked for is a floor; those who were all asked for the same are scattered above it.
    asked_for.map_or(pause, |floor| floor.saturating_add(pause))
}

/// A number from 0 to 1 that differs from process to process and from call to call.
fn fraction() -> f64 {
    // The standard library seeds each of these from the system's randomness and a counter.
    let bits = RandomState::new().hash_one(()) >> 32;
    f64::from(u32::try_from(bits).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(60);

    proptest! {
        #[test]
        fn no_pause_is_shorter_than_asked_for_or_longer_than_allowed(
            failures in 0_u32..100, asked in proptest::option::of(0_u64..300), fraction in 0.0..=1.0
        ) {
            let asked = asked.map(Duration::from_secs);
            let pause = pause(FIRST, LONGEST, failures, asked, fraction);
            prop_assert!(pause >= FIRST / 2 && pause >= asked.unwrap_or_default());
            prop_assert!(pause <= LONGEST + asked.unwrap_or_default());
        }

        #[test]
        fn pauses_grow(failures in 0_u32..100, fraction in 0.0..=1.0) {
            let [now, next] = [failures, failures + 1].map(|failures| pause(FIRST, LONGEST, failures, None, fraction));
            prop_assert!(now <= next);
        }
    }

    #[test]
    fn fractions_differ_and_stay_in_range() {
        let many: Vec<_> = (0..1000).map(|_| fraction()).collect();
        assert!(many.iter().all(|fraction| (0.0..=1.0).contains(fraction)));
        assert!(many.iter().any(|fraction| *fraction < 0.3) && many.iter().any(|fraction| *fraction > 0.7));
    }
}
