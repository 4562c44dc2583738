//! Buckets of tokens: how many Events may be sent now. Pure.

use std::time::{Duration, Instant};

use super::Rate;

/// Holds up to `burst` tokens; one comes back after each interval.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    rate: Rate,
    /// When it will be full again: each token taken puts that off by one interval.
    full_at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(super) const fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// When there is a token to take; in the past if there is one now.
    pub(super) fn ready_at(&self) -> Instant {
        let spare = self.rate.every.saturating_mul(self.rate.burst.max(1) - 1);
        self.full_at.checked_sub(spare).unwrap_or(self.full_at)
    }

    /// Takes a token, whether or not there is one.
    pub(super) fn consume(&mut self, now: Instant) {
        // An interval is not longer than a configuration allows; one that is would never end.
        self.full_at = self.full_at.max(now) + self.rate.every.min(Duration::from_secs(1 << 32));
    }

    /// Whether it is as good as a new one.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

/// A bucket for each of two rates, both of which hold.
#[derive(Debug, Clone)]
pub(super) struct Pair([Bucket; 2]);

impl Pair {
    /// Full buckets.
    pub(super) fn new(rates: [Rate; 2], now: Instant) -> Self {
        Self(rates.map(|rate| Bucket::new(rate, now)))
    }

    /// When there is a token to take in each; in the past if there is one now.
    pub(super) fn ready_at(&self) -> Instant {
        let [first, second] = &self.0;
        first.ready_at().max(second.ready_at())
    }

    /// Takes a token out of each, whether or not there is one.
    pub(super) fn consume(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|bucket| bucket.consume(now));
    }

    /// Whether they are as good as new ones.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.0.iter().all(|bucket| bucket.is_full(now))
    }
}
