//! How often somebody may call. Pure: time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Above so many callers, those who have been quiet long enough to have all their calls back are forgotten.
const SWEEP_ABOVE: usize = 256;

/// Lets each key have so many calls per second, on average over the burst it may save up: two seconds' worth.
#[derive(Debug)]
pub(super) struct Rate<K> {
    /// From one call to the next, at full speed.
    every: Duration,
    /// How far a key may run ahead of that.
    ahead: Duration,
    /// When each key's calls so far would have been made at full speed (the "theoretical arrival time" of ATM's generic
    /// cell rate algorithm).
    due: Mutex<HashMap<K, Instant>>,
}

impl<K: Eq + Hash> Rate<K> {
    /// `per_second` calls; zero counts as one.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            every: Duration::from_secs(1) / per_second.max(1),
            ahead: Duration::from_secs(2),
            due: Mutex::default(),
        }
    }

    /// Whether this key may make a call at `now`; if so it counts.
    pub(super) fn allows(&self, key: K, now: Instant) -> bool {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        if due.len() >= SWEEP_ABOVE {
            due.retain(|_, due| *due > now);
        }
        let next = due.get(&key).map_or(now, |due| (*due).max(now)) + self.every;
        if next.duration_since(now) > self.ahead {
            return false;
        }
        due.insert(key, next);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_fine_and_a_flood_is_slowed_to_the_rate() {
        let (rate, start) = (Rate::new(10), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let allowed = |millis| (0..100).filter(|_| rate.allows("a", at(millis))).count();
        assert_eq!(allowed(0), 20);
        assert_eq!(allowed(100), 1);
        assert_eq!(allowed(1100), 10);
        assert_eq!(allowed(60_000), 20);
        assert!(rate.allows("b", at(0)), "others are not slowed");
    }
}
