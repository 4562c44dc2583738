//! Which kill of the machine something is: an order without a clock.
//!
//! The kernel kills one process at a time, under `oom_lock`; it counts each in `/proc/vmstat`, then in its cgroup, and then
//! logs it (`__oom_kill_process`, mm/oom_kill.c). So the line of the machine's n-th kill is the n-th such line ever
//! logged, and a counter of a cgroup that rose between two reads of the machine's count shows kills with numbers
//! between these. Both are told here as ranges, which hold however long the kernel was stalled in between.

use std::time::Duration;

use super::join::LATEST;

/// Some of the machine's kills since it began: the first and the last that may be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    pub first: u64,
    pub last: u64,
}

impl Numbers {
    /// Nothing is known of which they are.
    pub const ANY: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// Whether a kill may be among both.
    pub const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self::ANY
    }
}

/// A line that tells of a kill, as the log was read: which one of those read without a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct KillLine {
    /// So often lines were lost before. 0 is where nothing is known of the lines before.
    pub run: u32,
    /// So many such lines were read, this one included.
    pub line: u64,
}

/// By how much the numbers of kills are ahead of the lines read in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    pub(super) run: u32,
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Offset {
    /// The numbers that the kill of a line of this run may have.
    pub const fn numbers(self, line: KillLine) -> Option<Numbers> {
        if line.run != self.run || line.run == 0 {
            return None;
        }
        Some(Numbers {
            first: line.line.saturating_add(self.least),
            last: line.line.saturating_add(self.most),
        })
    }
}

/// Counts the lines of kills, and finds out which kills they are.
#[derive(Debug)]
pub(super) struct LineNumbers {
    offset: Offset,
    read: u64,
    /// The machine's count as it was found at the log's end, and when that was found first.
    count: Option<(u64, Duration)>,
    /// Whether lines were read since.
    news: bool,
}

impl Default for LineNumbers {
    fn default() -> Self {
        let offset = Offset {
            run: 1,
            least: 0,
            most: u64::MAX,
        };
        Self {
            offset,
            read: 0,
            count: None,
            news: true,
        }
    }
}

impl LineNumbers {
    pub(super) const fn offset(&self) -> Offset {
        self.offset
    }

    /// A line was read that was logged at that time.
    pub(super) fn line(&mut self, logged: Duration) -> KillLine {
        self.read += 1;
        self.news = true;
        // What was counted that long before is in earlier lines.
        if let Some((kills, _)) = self.count.filter(|(_, since)| *since + LATEST < logged) {
            self.at_least(kills + 1);
        }
        KillLine {
            run: self.offset.run,
            line: self.read,
        }
    }

    /// Lines were lost, so the numbers may go on further up.
    pub(super) const fn lost(&mut self) {
        self.offset.run += 1;
        self.offset.most = u64::MAX;
        self.news = true;
    }

    /// Whether it helps to know the machine's count at the log's end.
    pub(super) const fn wants_count(&self) -> bool {
        self.news || self.offset.least != self.offset.most
    }

    /// The log was read to its end after the machine's count was `before`, and before it was `after`. The last kill that
    /// is counted may not be logged yet.
    pub(super) fn at_end(&mut self, before: u64, after: u64, now: Duration) {
        self.news = false;
        if self.count.is_none_or(|(kills, _)| kills != before) {
            self.count = Some((before, now));
        }
        let most = after.saturating_sub(self.read);
        if self.offset.least > most {
            // A line that was none of the kernel's, or one that was not read.
            self.lost();
            self.offset.least = 0;
        }
        self.offset.most = self.offset.most.min(most);
        self.at_least(before.saturating_sub(1));
    }

    /// The line read last is that of this kill, or of a later one.
    const fn at_least(&mut self, kill: u64) {
        let least = kill.saturating_sub(self.read);
        if least > self.offset.least {
            self.offset.least = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn numbers(lines: &LineNumbers, line: KillLine) -> (u64, u64) {
        let numbers = lines.offset().numbers(line).unwrap();
        (numbers.first, numbers.last)
    }

    #[test]
    fn a_line_is_the_kill_that_is_counted_at_the_logs_end_or_the_one_before() {
        let mut lines = LineNumbers::default();
        let first = lines.line(s(1));
        assert_eq!(numbers(&lines, first), (1, u64::MAX));
        lines.at_end(40, 41, s(2));
        assert_eq!(numbers(&lines, first), (39, 41));
        lines.at_end(41, 41, s(2));
        assert_eq!(numbers(&lines, first), (40, 41), "the 41st may be about to be logged");
        let second = lines.line(s(3));
        assert_eq!(numbers(&lines, second), (41, 42), "it may be the one");
        lines.at_end(41, 42, s(3));
        let third = lines.line(s(9));
        assert_eq!(numbers(&lines, third), (42, 43), "the 41st was logged seconds ago");
        lines.at_end(42, 42, s(9));
        assert_eq!(
            [first, second, third].map(|line| numbers(&lines, line)),
            [(40, 40), (41, 41), (42, 42)]
        );
    }

    #[test]
    fn what_follows_a_loss_is_later_by_an_unknown_number() {
        let mut lines = LineNumbers::default();
        lines.at_end(5, 5, s(0));
        let before = lines.line(s(9));
        lines.at_end(6, 6, s(9));
        assert_eq!(numbers(&lines, before), (6, 6));
        lines.lost();
        let after = lines.line(s(10));
        assert_eq!(
            lines.offset().numbers(before),
            None,
            "what was known of it does not change any more"
        );
        assert_eq!(numbers(&lines, after), (7, u64::MAX));
        lines.at_end(11, 11, s(10));
        assert_eq!(numbers(&lines, after), (10, 11));
    }

    #[test]
    fn lines_that_contradict_the_count_begin_anew() {
        let mut lines = LineNumbers::default();
        lines.at_end(5, 5, s(0));
        let forged = [lines.line(s(9)), lines.line(s(9))];
        lines.at_end(6, 6, s(9));
        assert!(forged.iter().all(|line| lines.offset().numbers(*line).is_none()));
        let next = lines.line(s(10));
        lines.at_end(7, 7, s(10));
        assert_eq!(numbers(&lines, next), (6, 7));
    }
}
