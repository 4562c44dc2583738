//! Numbers the kills of the machine: an order without a clock.
//!
//! The kernel kills one process at a time, under `oom_lock`. The kernel counts each kill in `/proc/vmstat`, then in its
//! cgroup, and then logs the kill (`__oom_kill_process`, mm/oom_kill.c). So the line of the machine's n-th kill is the
//! n-th such line. A counter of a cgroup that rose between two reads of the machine's count shows kills with numbers
//! between these. Ranges of numbers express both, and hold however long the kernel stalls between counting and logging.

use std::time::Duration;

use super::join::LATEST;

/// A range of kills, by their number since boot; both ends belong to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    pub first: u64,
    pub last: u64,
}

impl Numbers {
    pub const ANY: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// Whether the ranges have a kill in common.
    pub const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self::ANY
    }
}

/// A position among the lines of kills that the reader read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct KillLine {
    /// The number of the run, which each loss of lines ends. 0 stands for an unknown position.
    pub run: u32,
    /// The number of such lines up to this one.
    pub line: u64,
}

/// How far the numbers of kills are ahead of the lines of one run: between `least` and `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    pub(super) run: u32,
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Offset {
    /// The possible numbers of the kill in a line. Returns `None` for a line of another run.
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

impl Default for Offset {
    fn default() -> Self {
        Self {
            run: 1,
            least: 0,
            most: u64::MAX,
        }
    }
}

/// The machine's count of kills, and the time at which the agent first found this count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MachineCount(Option<(u64, Duration)>);

impl MachineCount {
    pub(super) fn update(&mut self, count: Option<u64>, now: Duration) {
        if self.0.map(|(known, _)| known) != count {
            self.0 = count.map(|count| (count, now));
        }
    }

    /// The count, if the kernel had also logged all of these kills and counted them in their cgroups by then.
    pub(super) fn complete_at(self, time: Duration) -> Option<u64> {
        let (count, since) = self.0?;
        (since + LATEST < time).then_some(count)
    }
}

/// Counts the lines of kills, and narrows down their [`Offset`].
#[derive(Debug, Default)]
pub(super) struct LineNumbers {
    offset: Offset,
    read: u64,
    /// After the last end of the log.
    machine: MachineCount,
    /// Whether the reader read no line since then.
    is_at_end: bool,
}

impl LineNumbers {
    pub(super) const fn offset(&self) -> Offset {
        self.offset
    }

    /// Takes a line that the kernel logged at this time.
    pub(super) fn line(&mut self, logged: Duration) -> KillLine {
        self.read += 1;
        self.is_at_end = false;
        if let Some(kills) = self.machine.complete_at(logged) {
            // Earlier lines tell of all these kills.
            self.at_least(kills + 1);
        }
        KillLine {
            run: self.offset.run,
            line: self.read,
        }
    }

    /// Lines were lost, so the numbers may be further ahead.
    pub(super) const fn lost(&mut self) {
        self.offset.run += 1;
        self.offset.most = u64::MAX;
        self.is_at_end = false;
    }

    /// Whether the machine's count at the log's end can narrow down the offset.
    pub(super) const fn wants_count(&self) -> bool {
        !self.is_at_end || self.offset.least != self.offset.most
    }

    /// The reader reached the log's end, and then read the machine's count. The kernel may still have to log the last
    /// kill of the count at the end before.
    pub(super) fn at_end(&mut self, count: Option<u64>, now: Duration) {
        let (Some(count), before) = (count, self.machine.0.map_or(0, |(before, _)| before)) else {
            return;
        };
        self.is_at_end = true;
        self.machine.update(Some(count), now);
        let most = count.saturating_sub(self.read);
        if self.offset.least > most {
            // A process forged a line, or the reader missed one.
            self.lost();
            self.offset.least = 0;
        }
        self.offset.most = self.offset.most.min(most);
        self.at_least(before.saturating_sub(1));
    }

    /// The last line tells of this kill or of a later one.
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
        lines.at_end(Some(40), s(2));
        lines.at_end(Some(41), s(2));
        assert_eq!(numbers(&lines, first), (39, 40), "at the first end were 40");
        let mut lines = LineNumbers::default();
        lines.at_end(Some(41), s(0));
        let first = lines.line(s(1));
        assert_eq!(numbers(&lines, first), (1, 42), "it may be a new one");
        lines.at_end(Some(41), s(2));
        assert_eq!(numbers(&lines, first), (40, 41), "the 41st may be about to be logged");
        let second = lines.line(s(2));
        assert_eq!(numbers(&lines, second), (41, 42), "it may be the one");
        let third = lines.line(s(9));
        assert_eq!(numbers(&lines, third), (42, 43), "the 41st was logged seconds ago");
        lines.at_end(Some(42), s(9));
        assert_eq!(
            [first, second, third].map(|line| numbers(&lines, line)),
            [(40, 40), (41, 41), (42, 42)]
        );
    }

    #[test]
    fn what_follows_a_loss_is_later_by_an_unknown_number() {
        let mut lines = LineNumbers::default();
        lines.at_end(Some(5), s(0));
        let before = lines.line(s(9));
        lines.at_end(Some(6), s(9));
        assert_eq!(numbers(&lines, before), (6, 6));
        lines.lost();
        let after = lines.line(s(10));
        assert_eq!(
            lines.offset().numbers(before),
            None,
            "what was known of it does not change any more"
        );
        assert_eq!(numbers(&lines, after), (7, u64::MAX));
        lines.at_end(Some(11), s(10));
        lines.at_end(Some(11), s(10));
        assert_eq!(numbers(&lines, after), (10, 11));
    }

    #[test]
    fn lines_that_contradict_the_count_begin_anew() {
        let mut lines = LineNumbers::default();
        lines.at_end(Some(5), s(0));
        let forged = [lines.line(s(9)), lines.line(s(9))];
        lines.at_end(Some(6), s(9));
        assert!(forged.iter().all(|line| lines.offset().numbers(*line).is_none()));
        let next = lines.line(s(10));
        lines.at_end(Some(7), s(10));
        lines.at_end(Some(7), s(10));
        assert_eq!(numbers(&lines, next), (6, 7));
    }
}
