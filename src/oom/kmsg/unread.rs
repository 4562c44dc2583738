//! Finds the new lines in copies of the whole log. Pure.

/// Bytes at the end of the last copy to find again in the next one. The times make lines unlike each other.
const COMPARED: usize = 1024;

/// The end of the last copy.
#[derive(Debug, Default)]
pub(super) struct Unread {
    tail: Vec<u8>,
}

/// The new lines of a copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct New<'t> {
    pub(super) text: &'t [u8],
    /// Whether lines between the last copy and these were overwritten or cleared away.
    pub(super) lost: bool,
}

impl Unread {
    /// The part of a copy that comes after the last copy.
    pub(super) fn after<'t>(&mut self, log: &'t [u8]) -> New<'t> {
        let end = self.end_in(log);
        let new = New {
            text: &log[end.unwrap_or(0)..],
            lost: end.is_none() && !self.tail.is_empty(),
        };
        if !log.is_empty() {
            let from = log.len().saturating_sub(COMPARED);
            log[from..].clone_into(&mut self.tail);
        }
        new
    }

    /// Where in this copy the last copy ends. This copy may begin in the middle of [`Self::tail`].
    fn end_in(&self, log: &[u8]) -> Option<usize> {
        let (_, before) = self.tail.split_last()?;
        let last_line = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let last_line = &self.tail[last_line..];
        let ends = (1..=log.len())
            .rev()
            .filter(|end| *end == log.len() || log[*end - 1] == b'\n');
        let mut ends = ends.filter(|end| log[..*end].ends_with(last_line));
        ends.find(|end| {
            let compared = self.tail.len().min(*end);
            log[..*end].ends_with(&self.tail[self.tail.len() - compared..])
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(number: usize) -> String {
        format!("<6>[{:12}.000000] {}\n", number, "x".repeat(number % 90))
    }

    fn log(numbers: std::ops::Range<usize>) -> Vec<u8> {
        numbers.map(line).collect::<String>().into_bytes()
    }

    #[test]
    fn all_is_new_at_first_and_then_what_was_added() {
        let mut unread = Unread::default();
        let first = log(0..100);
        assert_eq!(
            unread.after(&first),
            New {
                text: &first,
                lost: false
            }
        );
        assert_eq!(unread.after(&first), New { text: b"", lost: false });
        assert_eq!(
            unread.after(&log(40..103)).text,
            log(100..103),
            "its beginning was overwritten"
        );
    }

    #[test]
    fn a_log_that_wrapped_or_was_cleared_between_two_reads_is_new_and_has_lost_lines() {
        let mut unread = Unread::default();
        assert_eq!(unread.after(b""), New { text: b"", lost: false });
        unread.after(&log(0..100));
        let wrapped = log(300..400);
        assert_eq!(
            unread.after(&wrapped),
            New {
                text: &wrapped,
                lost: true
            }
        );
        assert_eq!(unread.after(b""), New { text: b"", lost: true });
        let later = log(401..402);
        assert_eq!(
            unread.after(&later),
            New {
                text: &later,
                lost: true
            }
        );
    }

    #[test]
    fn of_what_was_read_the_last_line_is_enough() {
        let mut unread = Unread::default();
        unread.after(&log(0..100));
        assert_eq!(
            unread.after(&log(99..103)),
            New {
                text: &log(100..103),
                lost: false
            }
        );
    }

    proptest! {
        #[test]
        fn every_line_is_new_once_or_counts_as_lost(reads in prop::collection::vec((0_usize..60, 1_usize..80), 1..20)) {
            let mut unread = Unread::default();
            let (mut end, mut expected) = (0, 0);
            for (added, kept) in reads {
                end += added;
                let from = end.saturating_sub(kept);
                let text = log(from..end);
                let new = unread.after(&text);
                let first_new = expected.max(from);
                prop_assert_eq!(new.text, log(first_new..end));
                prop_assert_eq!(new.lost, expected > 0 && from >= expected);
                expected = end;
            }
        }
    }
}
