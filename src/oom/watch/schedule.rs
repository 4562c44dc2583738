//! When to look at the counters, and at containers that are new. Pure.
//!
//! Once a second anyway, and sooner when something asks for it: of kills that are counted apart from each other it is
//! certain which is which. So looking may take half a second at once, and not more than a fiftieth of the time in the
//! long run: on a node full of kills the counters only have to agree with the log in the end.

use std::time::Duration;

/// Between two looks when nothing asks for any.
const TICK: Duration = Duration::from_secs(1);
/// Looking takes one in so many moments at most,
const SHARE: u32 = 50;
/// but for this much that it did not take before.
const MOST_CREDIT: Duration = Duration::from_millis(500);
/// And never follows sooner than this.
const LEAST: Duration = Duration::from_millis(1);
/// While something is expected, so many looks follow each other as closely: kills come in bursts.
const CLOSE: u32 = 16;

/// The next look. Times are of CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct Schedule {
    next: Duration,
    not_before: Duration,
    /// The time that looking may take without a rest after it, and up to when it is counted.
    credit: (Duration, Duration),
    /// How long after the next look another one is worth while, if something is expected, and how many are as close.
    again: Option<(Duration, u32)>,
}

impl Schedule {
    /// The first look is now.
    pub(super) const fn new(now: Duration) -> Self {
        Self {
            next: now,
            not_before: now,
            credit: (MOST_CREDIT, now),
            again: None,
        }
    }

    /// Asks for a look at that time, or as soon after it as may be.
    pub(super) fn request(&mut self, at: Duration) {
        self.next = self.next.min(at.max(self.not_before));
    }

    /// Something is about to be counted, nobody knows when: asks for looks as close to each other as may be, and for others
    /// after them, each after twice as long. The kernel mostly kills at once, but may print a report first, over a slow line.
    pub(super) fn expect(&mut self, now: Duration) {
        self.request(now + LEAST);
        self.again = Some((LEAST, CLOSE));
    }

    /// Whether further looks follow soon.
    pub(super) const fn is_expecting(&self) -> bool {
        self.again.is_some()
    }

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

/// When to look at containers that are new: at once when asked, and no more often than is fit.
#[derive(Debug, Default)]
pub(super) struct ContainerRefresh {
    due: Option<Duration>,
    not_before: Duration,
    /// How often in a row another look was worth while.
    again: u32,
}

impl ContainerRefresh {
    /// Asks for a look as soon as may be.
    pub(super) fn request(&mut self, now: Duration) {
        let at = now.max(self.not_before);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
        self.again = 0;
    }

    /// When it is due, if it is asked for.
    pub(super) const fn due(&self) -> Option<Duration> {
        self.due
    }

    /// A look was taken, and another is worth while or not: in a second, then after twice as long each time.
    pub(super) fn completed(&mut self, from: Duration, to: Duration, again: bool) {
        self.not_before = to + rest(to.saturating_sub(from), SHARE);
        self.due = again.then(|| to + TICK * (1 << self.again.min(16)));
        self.again += 1;
    }
}

/// How long to rest after work of that long, so that it takes one in about so many moments; never more than a second.
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
    fn looks_are_taken_when_asked_for_and_take_their_share_of_the_time_at_most() {
        let mut schedule = Schedule::new(ms(100));
        assert_eq!(schedule.next(), ms(100));
        schedule.completed(ms(100), ms(101));
        assert_eq!(schedule.next(), ms(1101));
        schedule.request(ms(102));
        assert_eq!(schedule.next(), ms(102));
        schedule.request(ms(300));
        assert_eq!(schedule.next(), ms(102));
        // Of the 500 ms that were saved, 499 are left.
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
    fn what_is_expected_is_looked_for_soon_and_ever_less_often_until_the_clock_takes_over() {
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
        // However often something is expected, looking takes its share of the time at most.
        schedule.completed(ms(5000), ms(5505));
        schedule.expect(ms(5511));
        schedule.expect(ms(5512));
        assert_eq!(schedule.next(), ms(5505 + 5 * 50));
    }

    #[test]
    fn new_containers_are_looked_at_at_once_and_in_a_storm_of_them_now_and_then() {
        let mut refresh = ContainerRefresh::default();
        assert_eq!(refresh.due(), None);
        refresh.request(ms(100));
        assert_eq!(refresh.due(), Some(ms(100)));
        refresh.completed(ms(100), ms(110), false);
        assert_eq!(refresh.due(), None);
        refresh.request(ms(111));
        refresh.request(ms(700));
        assert_eq!(refresh.due(), Some(ms(610)));
        refresh.completed(ms(610), ms(611), true);
        assert_eq!(refresh.due(), Some(ms(1611)));
        refresh.completed(ms(1611), ms(1612), true);
        assert_eq!(refresh.due(), Some(ms(3612)));
        refresh.request(ms(2000));
        assert_eq!(refresh.due(), Some(ms(2000)));
        refresh.completed(ms(2000), ms(2001), true);
        assert_eq!(refresh.due(), Some(ms(3001)));
    }
}
