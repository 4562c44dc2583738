//! How long to wait before the next attempt. Pure: chance is an argument.

use std::time::Duration;

/// Doubles with every failure, up to a longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Begins with `first` and never waits longer than `longest`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first: first.min(longest),
            longest,
            next: first.min(longest),
        }
    }

    /// How long to wait now: between half and all of what it has come to, by `chance` from 0 to 1, so that many agents
    /// that lost the same receiver do not all come back at once.
    pub fn wait(&mut self, chance: f64) -> Duration {
        let half = self.next / 2;
        self.next = self.next.saturating_mul(2).min(self.longest);
        half + half.mul_f64(chance.clamp(0.0, 1.0))
    }

    /// All is well again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_doubles_up_to_the_longest_and_begins_again() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(5));
        let waits: Vec<_> = (0..5).map(|_| backoff.wait(1.0)).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5].map(seconds));
        backoff.reset();
        assert_eq!(backoff.wait(0.0), Duration::from_millis(500));
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_the_longest(first in 0u64..1 << 40, longest in 0u64..1 << 40, chances: [f64; 9]) {
            let (first, longest) = (Duration::from_micros(first), Duration::from_micros(longest));
            let mut backoff = Backoff::new(first, longest);
            for chance in chances {
                let waited = backoff.wait(if chance.is_nan() { 0.5 } else { chance });
                prop_assert!(waited <= longest);
            }
        }
    }
}
