//! Says a thing once in a while instead of every time it happens.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Allows each key once per period.
#[derive(Debug)]
pub(super) struct Throttle<K> {
    period: Duration,
    last: Mutex<HashMap<K, Instant>>,
}

/// Above so many keys, those whose period is over are forgotten.
const SWEEP_ABOVE: usize = 256;

impl<K: Eq + Hash> Throttle<K> {
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            last: Mutex::default(),
        }
    }

    /// Whether this key's turn has come at `now`; if so, its next one is a period later.
    pub(super) fn allows(&self, key: K, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last
            .get(&key)
            .is_some_and(|before| now.duration_since(*before) < self.period)
        {
            return false;
        }
        if last.len() >= SWEEP_ABOVE {
            last.retain(|_, before| now.duration_since(*before) < self.period);
        }
        last.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_one_turn_per_period() {
        let throttle = Throttle::new(Duration::from_secs(60));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(throttle.allows(1, at(0)));
        assert!(!throttle.allows(1, at(59)));
        assert!(throttle.allows(2, at(59)));
        assert!(throttle.allows(1, at(60)));
        assert!(!throttle.allows(1, at(61)));
    }
}
