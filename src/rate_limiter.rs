//! Rate limiters. Time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::share::FairShare;

/// A keyed limiter with more keys than this removes the keys that have all their turns back.
const SWEEP_ABOVE: usize = 256;

/// A burst of turns, and one more turn after each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The number of turns in a burst; 0 counts as 1.
    pub burst: u32,
    pub every: Duration,
}

impl Rate {
    /// A burst of so many turns, and one more after each interval.
    pub const fn new(burst: u32, every: Duration) -> Self {
        Self { burst, every }
    }
}

/// The rate of log lines that repeat what an earlier one says: failures of the same kind, or the refusals of one user.
pub const REPEATED_LINES: Rate = Rate::new(1, Duration::from_secs(60));

/// Limits one caller to a rate (the generic cell rate algorithm of ATM).
#[derive(Debug, Clone, Copy)]
pub struct RateLimiter {
    rate: Rate,
    /// When all turns are back; each turn adds one interval.
    full_at: Instant,
}

impl RateLimiter {
    /// A limiter with all its turns.
    pub const fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// The time of the next turn; in the past if there is a turn now.
    pub fn ready_at(&self) -> Instant {
        let spare = self.rate.every.saturating_mul(self.rate.burst.max(1) - 1);
        self.full_at.checked_sub(spare).unwrap_or(self.full_at)
    }

    /// Uses a turn, even if none is left.
    pub fn use_turn(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.rate.every;
    }

    /// Uses a turn, if one is left.
    pub fn try_use(&mut self, now: Instant) -> bool {
        let ready = self.ready_at() <= now;
        if ready {
            self.use_turn(now);
        }
        ready
    }
}

/// A [`RateLimiter`] for each key.
#[derive(Debug)]
pub struct KeyedRateLimiter<K> {
    rate: Rate,
    limiters: Mutex<HashMap<K, RateLimiter>>,
}

impl<K: Eq + Hash> KeyedRateLimiter<K> {
    /// A limiter with the same rate for all keys.
    pub fn new(rate: Rate) -> Self {
        let limiters = Mutex::default();
        Self { rate, limiters }
    }

    /// Whether a turn of this key is free.
    pub fn is_ready(&self, key: &K, now: Instant) -> bool {
        let limiters = self.limiters.lock();
        limiters.get(key).is_none_or(|limiter| limiter.ready_at() <= now)
    }

    /// Uses a turn of this key, if one is left.
    pub fn try_use(&self, key: K, now: Instant) -> bool {
        let mut limiters = self.limiters.lock();
        if limiters.len() > SWEEP_ABOVE {
            limiters.retain(|_, limiter| limiter.full_at > now);
        }
        let new = RateLimiter::new(self.rate, now);
        limiters.entry(key).or_insert(new).try_use(now)
    }
}

/// Limits all users together to a rate, of which each user has a fair share: see [`share`](crate::share). A quarter of the burst
/// is divided in advance.
#[derive(Debug)]
pub struct FairRateLimiter<K> {
    rate: Rate,
    turns: FairShare<K>,
    /// When the last turn was returned. The user who used most turns gets it back.
    returned_at: Instant,
    period_ends: Instant,
}

impl<K: Ord + Clone> FairRateLimiter<K> {
    /// A limiter with all its turns.
    pub fn new(rate: Rate, now: Instant) -> Self {
        let burst = u64::from(rate.burst.max(1));
        Self {
            rate,
            turns: FairShare::new(burst, burst.div_ceil(4)),
            returned_at: now,
            period_ends: now,
        }
    }

    /// Uses a turn, if one is left for this user.
    pub fn try_use(&mut self, user: &K, now: Instant) -> bool {
        self.return_turns(now);
        self.turns.take(user, 1, 1).is_ok()
    }

    fn return_turns(&mut self, now: Instant) {
        let Rate { burst, every } = self.rate;
        while let Some(user) = self.turns.largest()
            && self.returned_at + every <= now
        {
            self.turns.give_back(&user, 1);
            self.returned_at += every;
        }
        if self.turns.largest().is_none() {
            self.returned_at = now;
        }
        if self.period_ends <= now {
            self.turns.end_period();
            self.period_ends = now + every * burst;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_in_anothers_flood_has_its_part() {
        let start = Instant::now();
        let every = Duration::from_secs(1);
        let mut limiter = FairRateLimiter::new(Rate { burst: 20, every }, start);
        let greedy = (0..100).filter(|_| limiter.try_use(&"greedy", start)).count();
        assert_eq!(
            greedy, 17,
            "a part of a quarter is kept for a user who has not come yet"
        );
        let mut used = [0, 0];
        for second in 0..100 {
            let now = start + every * second;
            for _ in 0..10 {
                used[0] += u32::from(limiter.try_use(&"greedy", now));
                used[1] += u32::from(limiter.try_use(&"honest", now));
            }
            assert!(used[0] + used[1] <= 3 + second, "{used:?} within {second} s");
        }
        assert!(used[1] >= 50, "{used:?}");
    }

    #[test]
    fn an_idle_time_saves_no_more_than_a_burst() {
        let start = Instant::now();
        let every = Duration::from_secs(1);
        let mut limiter = FairRateLimiter::new(Rate { burst: 20, every }, start);
        let used = [start, start + every * 1000].map(|now| (0..100).filter(|_| limiter.try_use(&"a", now)).count());
        assert_eq!(used, [17, 17]);
    }

    #[test]
    fn a_burst_is_fine_and_a_flood_is_slowed_to_the_rate() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let every = Duration::from_millis(100);
        let limiter = KeyedRateLimiter::new(Rate { burst: 20, every });
        let allowed = |millis| (0..100).filter(|_| limiter.try_use("a", at(millis))).count();
        assert_eq!(allowed(0), 20);
        assert_eq!(allowed(100), 1);
        assert_eq!(allowed(1100), 10);
        assert_eq!(allowed(60_000), 20);
        assert!(limiter.try_use("b", at(0)), "others are not slowed");
    }

    #[test]
    fn without_a_burst_each_key_has_one_turn_per_interval() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let every = Duration::from_secs(60);
        let limiter = KeyedRateLimiter::new(Rate { burst: 1, every });
        assert!(limiter.try_use(1, at(0)));
        assert!(!limiter.try_use(1, at(59)));
        assert!(limiter.try_use(2, at(59)));
        assert!(limiter.try_use(1, at(60)));
        assert!(!limiter.try_use(1, at(61)));
    }

    #[test]
    fn keys_with_all_their_turns_are_forgotten() {
        let start = Instant::now();
        let every = Duration::from_secs(1);
        let limiter = KeyedRateLimiter::new(Rate { burst: 1, every });
        for key in 0..10_000 {
            let now = start + every * key;
            assert!(limiter.try_use(key, now));
        }
        assert!(limiter.limiters.lock().len() <= SWEEP_ABOVE + 1);
    }
}
