//! How long to wait: before an action that many nodes take at the same moment, and before trying again.
//!
//! Thousands of agents see one change, or lose one API server, at the same moment. They must not act in step.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::time::Duration;

/// How many first actions a second all agents of a cluster may take together on one change.
const ACTIONS_PER_SECOND: u32 = 250;

/// The longest time that a change waits on a node.
const LONGEST_SPREAD: Duration = Duration::from_secs(60);

/// Pauses that grow with each failed attempt.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from about `first` to about `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// The pause after one more failure. Where the server asked for a wait (`Retry-After`), the sum of both.
    pub fn next(&mut self, asked_for: Option<Duration>) -> Duration {
        self.next_at(asked_for, fraction())
    }

    /// Pure: the pause after one more failure, with a fraction from 0 to 1 to scatter it.
    pub fn next_at(&mut self, asked_for: Option<Duration>, fraction: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let doubled = self.first.saturating_mul(factor).min(self.longest);
        let pause = doubled.mul_f64(0.5 + fraction / 2.0);
        self.failures = self.failures.saturating_add(1);
        // The requested wait is the least; agents with the same requested wait are scattered above it.
        asked_for.map_or(pause, |floor| floor.saturating_add(pause))
    }

    /// How many attempts in a row have failed.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Starts over with the first pause, after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A duration between half and one and a half of `around`.
pub fn scattered(around: Duration) -> Duration {
    around.mul_f64(0.5 + fraction())
}

/// The time over which nodes spread their first actions on a change of so many pods of the cluster: zero for
/// one pod, seconds for thousands.
pub fn spread_window(pods: u64) -> Duration {
    let others = u32::try_from(pods.saturating_sub(1)).unwrap_or(u32::MAX);
    (Duration::from_secs(others.into()) / ACTIONS_PER_SECOND).min(LONGEST_SPREAD)
}

/// A number from 0 to 1 that differs from process to process and from call to call.
pub fn fraction() -> f64 {
    // The standard library seeds each of these from the system's randomness and a counter.
    part(RandomState::new().hash_one(()))
}

/// The upper half of a hash as a number from 0 to 1.
fn part(hash: u64) -> f64 {
    f64::from(u32::try_from(hash >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

/// When within `window` this node acts on this object. Always the same for the same arguments.
pub fn place_in(window: Duration, node: &str, object: &str) -> Duration {
    // Its keys are fixed, unlike those of a map's hasher.
    let mut hasher = DefaultHasher::new();
    (node, object).hash(&mut hasher);
    window.mul_f64(part(hasher.finish()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(60);

    /// The pause after so many failures.
    fn pause(failures: u32, asked_for: Option<Duration>, fraction: f64) -> Duration {
        let new = Backoff::new(FIRST, LONGEST);
        Backoff { failures, ..new }.next_at(asked_for, fraction)
    }

    proptest! {
        #[test]
        fn no_pause_is_shorter_than_asked_for_or_longer_than_allowed(
            failures in 0_u32..100, asked in proptest::option::of(0_u64..300), fraction in 0.0..=1.0
        ) {
            let asked = asked.map(Duration::from_secs);
            let pause = pause(failures, asked, fraction);
            prop_assert!(pause >= FIRST / 2 && pause >= asked.unwrap_or_default());
            prop_assert!(pause <= LONGEST + asked.unwrap_or_default());
        }

        #[test]
        fn pauses_grow(failures in 0_u32..100, fraction in 0.0..=1.0) {
            let [now, next] = [failures, failures + 1].map(|failures| pause(failures, None, fraction));
            prop_assert!(now <= next);
        }

        #[test]
        fn a_place_in_the_window_stays_the_same(pods: u64, node: String, object: String) {
            let window = spread_window(pods);
            let place = place_in(window, &node, &object);
            prop_assert!(window <= LONGEST_SPREAD && place <= window);
            prop_assert_eq!(place, place_in(window, &node, &object));
            prop_assert!(spread_window(pods.saturating_add(1)) >= window);
        }
    }

    #[test]
    fn each_failure_doubles_the_pause_until_a_success() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        for _ in 0..2 {
            let pauses = [(); 8].map(|()| backoff.next_at(None, 1.0).as_secs());
            assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
            backoff.reset();
        }
    }

    #[test]
    fn agents_that_fail_together_do_not_come_back_together() {
        let waits: Vec<_> = (0..1000)
            .map(|_| Backoff::new(FIRST, LONGEST).next(Some(LONGEST)))
            .collect();
        assert!(waits.iter().all(|wait| *wait >= LONGEST + FIRST / 2));
        let early = waits
            .iter()
            .filter(|wait| **wait < LONGEST + FIRST.mul_f64(0.75))
            .count();
        assert!((300..700).contains(&early), "{early}");
    }

    #[test]
    fn thousands_are_spread_over_seconds() {
        assert_eq!(place_in(spread_window(1), "node-1", "u"), Duration::ZERO);
        assert_eq!(spread_window(0), Duration::ZERO);
        assert!(spread_window(10) < Duration::from_millis(50));
        let window = spread_window(5000);
        assert!(
            (Duration::from_secs(10)..Duration::from_secs(30)).contains(&window),
            "{window:?}"
        );
        let mut seconds = vec![0; 30];
        for node in 0..5000 {
            let place = place_in(window, &format!("node-{node}"), &format!("uid-{node}"));
            seconds[usize::try_from(place.as_secs()).unwrap()] += 1;
        }
        let most = seconds.iter().max().unwrap();
        assert!(*most < 2 * ACTIONS_PER_SECOND, "{seconds:?}");
    }
}
