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

/// The machine's count of kills, and the time at which the agent first found this count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MachineCount(Option<(u64, Duration)>);

impl MachineCount {
    /// Takes the count. Returns whether it is the same as before.
    pub(super) fn update(&mut self, count: Option<u64>, now: Duration) -> bool {
        let is_same = self.0.map(|(known, _)| known) == count;
        if !is_same {
            self.0 = count.map(|count| (count, now));
        }
        is_same
    }

    /// The count, if the kernel had also logged all of these kills and counted them in their cgroups by then.
    pub(super) fn complete_at(self, time: Duration) -> Option<u64> {
        let (count, since) = self.0?;
        (since + LATEST < time).then_some(count)
    }
}

/// Numbers the lines of kills.
#[derive(Debug, Default)]
pub(super) struct LineNumbers {
    /// The number of the kill in the next line, once that is known.
    next: Option<u64>,
    /// As of the last end of the log after a line.
    machine: MachineCount,
    /// Whether the reader read no line since then.
    is_at_end: bool,
}

impl LineNumbers {
    /// Takes a line that the kernel logged at this time. Returns the number of the kill.
    pub(super) fn line(&mut self, logged: Duration) -> Numbers {
        let is_at_end = std::mem::replace(&mut self.is_at_end, false);
        if let Some(kills) = self.machine.complete_at(logged).filter(|_| is_at_end) {
            // Earlier lines reported all these kills, and this line is the first one since.
            if self.next.take_if(|next| *next <= kills).is_some() {
                // The line of the last of them was not read: this is its line, logged late, or that one is lost.
                return Numbers {
                    first: kills,
                    last: kills + 1,
                };
            }
            self.next = Some(kills + 1);
        }
        let number = self.next;
        self.next = number.map(|number| number + 1);
        number.map_or(Numbers::ANY, |number| Numbers {
            first: number,
            last: number,
        })
    }

    /// Lines were lost, so the numbers may be higher.
    pub(super) const fn lost(&mut self) {
        self.next = None;
        self.is_at_end = false;
    }

    /// Whether to read the machine's count at the log's end.
    pub(super) const fn wants_count(&self) -> bool {
        !self.is_at_end
    }

    /// The reader reached the log's end, and then read the machine's count.
    pub(super) fn at_end(&mut self, count: Option<u64>, now: Duration) {
        self.is_at_end = count.is_some();
        self.machine.update(count, now);
        // More lines than kills: the reader took another line for that of a kill.
        self.next = self.next.filter(|next| count.is_none_or(|count| *next <= count + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn number(number: u64) -> Numbers {
        Numbers {
            first: number,
            last: number,
        }
    }

    #[test]
    fn the_first_line_after_quiet_has_a_number() {
        let mut lines = LineNumbers::default();
        assert_eq!(lines.line(s(1)), Numbers::ANY);
        lines.at_end(Some(41), s(2));
        assert_eq!(lines.line(s(3)), Numbers::ANY, "it may be the 41st");
        lines.at_end(Some(41), s(3));
        assert_eq!([lines.line(s(9)), lines.line(s(9))], [number(42), number(43)]);
        lines.at_end(Some(44), s(9));
        assert_eq!(lines.line(s(10)), number(44), "it was counted and not yet logged");
    }

    #[test]
    fn a_late_line_may_have_either_number() {
        let mut lines = LineNumbers::default();
        lines.at_end(Some(41), s(0));
        assert_eq!(lines.line(s(3)), number(42));
        lines.at_end(Some(43), s(3));
        assert_eq!(lines.line(s(9)), Numbers { first: 43, last: 44 });
        assert_eq!(lines.line(s(9)), Numbers::ANY);
        lines.at_end(Some(44), s(9));
        assert_eq!(lines.line(s(20)), number(45));
    }

    #[test]
    fn after_a_loss_numbers_are_unknown() {
        let mut lines = LineNumbers::default();
        lines.at_end(Some(5), s(0));
        assert_eq!(lines.line(s(9)), number(6));
        lines.lost();
        assert_eq!(lines.line(s(10)), Numbers::ANY);
        lines.at_end(Some(11), s(10));
        assert_eq!(lines.line(s(20)), number(12));
    }

    #[test]
    fn lines_that_contradict_the_count_begin_anew() {
        let mut lines = LineNumbers::default();
        lines.at_end(Some(5), s(0));
        assert_eq!([lines.line(s(9)), lines.line(s(9))], [number(6), number(7)]);
        lines.at_end(Some(6), s(9));
        assert_eq!(lines.line(s(10)), Numbers::ANY);
        lines.at_end(Some(7), s(10));
        assert_eq!(lines.line(s(20)), number(8));
    }
}
