//! When to look at the counters. Pure.
//!
//! Once a second anyway, sooner when something asks for it, and never so often that looking takes more than a fiftieth of
//! the time: on a node full of kills the log tells of nearly all of them, and the counters only have to agree in the end.

use std::time::Duration;

/// Between two looks when nothing asks for any.
const TICK: Duration = Duration::from_secs(1);
/// Looking takes one in so many moments at most.
const SHARE: u32 = 50;
/// And never follows sooner than this.
const LEAST: Duration = Duration::from_millis(2);

/// The next look. Times are of CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct Schedule {
    next: Duration,
    not_before: Duration,
}

impl Schedule {
    /// The first look is now.
    pub(super) const fn new(now: Duration) -> Self {
        Self {
            next: now,
            not_before: now,
        }
    }

    /// Asks for a look at that time, or as soon after it as may be.
    pub(super) fn ask(&mut self, at: Duration) {
        self.next = self.next.min(at.max(self.not_before));
    }

    /// A look was taken.
    pub(super) fn looked(&mut self, from: Duration, to: Duration) {
        let rest = to.saturating_sub(from).saturating_mul(SHARE).clamp(LEAST, TICK);
        self.not_before = to + rest;
        self.next = to + TICK;
    }

    pub(super) const fn next(&self) -> Duration {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn looks_are_taken_when_asked_for_and_take_their_share_of_the_time_at_most() {
        let mut schedule = Schedule::new(ms(100));
        assert_eq!(schedule.next(), ms(100));
        schedule.looked(ms(100), ms(101));
        assert_eq!(schedule.next(), ms(1101));
        schedule.ask(ms(102));
        assert_eq!(schedule.next(), ms(151));
        schedule.ask(ms(300));
        assert_eq!(schedule.next(), ms(151));
        schedule.looked(ms(151), ms(400));
        schedule.ask(ms(400));
        assert_eq!(
            schedule.next(),
            ms(1400),
            "however long a look takes, there is one each second"
        );
    }
}
