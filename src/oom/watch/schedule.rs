//! Decides when to read the counters. Pure.
//!
//! The agent reads the counters once a second, and sooner after a request: kills that it counts apart from each other
//! are distinguishable. Sweeps may take half a second in a row, but in the long run no more than a fiftieth of the
//! time. On a node full of kills the counters only have to agree with the log in the end.

use std::time::Duration;

/// The time between two sweeps without a request.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// Sweeps take at most one in so many moments, plus their credit.
pub(super) const SHARE: u32 = 50;
/// The most time that sweeps can save up.
const MOST_CREDIT: Duration = Duration::from_millis(500);
/// The shortest pause between two sweeps.
const LEAST: Duration = Duration::from_millis(1);
/// After a sign of a kill, so many sweeps follow with the shortest pause: kills come in bursts.
const CLOSE: u32 = 16;

/// The time of the next sweep. Times are of CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct Schedule {
    next: Duration,
    not_before: Duration,
    /// The time that a sweep may take without a rest after it, and the moment of that amount.
    credit: (Duration, Duration),
    /// While kills are expected: the pause after the next sweep, and how many more pauses are as short.
    again: Option<(Duration, u32)>,
}

impl Schedule {
    /// The first sweep is now.
    pub(super) const fn new(now: Duration) -> Self {
        Self {
            next: now,
            not_before: now,
            credit: (MOST_CREDIT, now),
            again: None,
        }
    }

    /// Requests a sweep at this time, or as soon as possible after it.
    pub(super) fn request(&mut self, at: Duration) {
        self.next = self.next.min(at.max(self.not_before));
    }

    /// The kernel is about to count a kill. Requests sweeps with the shortest pause, and then more sweeps, each after
    /// twice the pause. The kernel mostly kills at once, but may print a report over a slow console first.
    pub(super) fn expect(&mut self, now: Duration) {
        self.request(now + LEAST);
        self.again = Some((LEAST, CLOSE));
    }

    /// Whether more sweeps follow soon.
    pub(super) const fn is_expecting(&self) -> bool {
        self.again.is_some()
    }

    /// A sweep took from `from` to `to`.
    pub(super) fn completed(&mut self, from: Duration, to: Duration) {
        let (credit, since) = self.credit;
        let credit = MOST_CREDIT.min(credit + from.saturating_sub(since) / SHARE);
        let spent = to.saturating_sub(from);
        self.not_before = to + rest(spent.saturating_sub(credit), SHARE);
        self.credit = (credit.saturating_sub(spent), self.not_before);
        self.next = to + TICK;
        if let Some((pause, close)) = self.again {
            self.request(to + pause);
            self.again = match close.checked_sub(1) {
                Some(close) => Some((pause, close)),
                None => Some((pause * 2, 0)).filter(|(pause, _)| *pause < TICK),
            };
        }
    }

    pub(super) const fn next(&self) -> Duration {
        self.next
    }
}

/// The rest after work of this duration, so that the work takes about one in `share` moments; at most a second.
pub(super) fn rest(work: Duration, share: u32) -> Duration {
    work.saturating_mul(share).clamp(LEAST, TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn requested_sweeps_take_their_share() {
        let mut schedule = Schedule::new(ms(100));
        assert_eq!(schedule.next(), ms(100));
        schedule.completed(ms(100), ms(101));
        assert_eq!(schedule.next(), ms(1101));
        schedule.request(ms(102));
        assert_eq!(schedule.next(), ms(102));
        schedule.request(ms(300));
        assert_eq!(schedule.next(), ms(102));
        // 499 of the saved 500 ms are left.
        schedule.completed(ms(102), ms(603));
        schedule.request(ms(604));
        assert_eq!(schedule.next(), ms(603 + 2 * 50));
        schedule.completed(ms(704), ms(1100));
        schedule.request(ms(1100));
        assert_eq!(
            schedule.next(),
            ms(2100),
            "however long a look takes, there is one each second"
        );
    }

    #[test]
    fn expected_kills_are_swept_for_soon() {
        let mut schedule = Schedule::new(ms(0));
        schedule.completed(ms(0), ms(0));
        schedule.expect(ms(100));
        let mut looks = Vec::new();
        while looks.len() < 30 {
            let next = schedule.next();
            looks.push(next.as_millis());
            schedule.completed(next, next);
        }
        assert_eq!(looks[..4], [101, 102, 103, 104]);
        assert_eq!(looks[16..22], [117, 118, 120, 124, 132, 148]);
        assert_eq!(looks[27..], [2140, 3140, 4140], "once a second again");
        // However often a kill is expected, sweeps take at most their share of the time.
        schedule.completed(ms(5000), ms(5505));
        schedule.expect(ms(5511));
        schedule.expect(ms(5512));
        assert_eq!(schedule.next(), ms(5505 + 5 * 50));
    }
}
