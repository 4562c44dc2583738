//! Kills, the first of each minute one by one and the others counted: a flood of them must not push out of the log what
//! was changed. Pure: time is an argument.

use jiff::{SignedDuration, Timestamp};

use super::line::{of_kill, of_more_kills};
use crate::oom::OomReport;

/// Kills with a line of their own in each minute.
const MOST: u32 = 60;
const WINDOW: SignedDuration = SignedDuration::from_mins(1);

/// The kills of the last minute.
#[derive(Debug, Default)]
pub(super) struct Kills {
    since: Option<Timestamp>,
    written: u32,
    more: u64,
}

impl Kills {
    /// The lines to write now that this has happened.
    pub(super) fn record(&mut self, report: &OomReport, now: Timestamp) -> Vec<String> {
        let mut lines: Vec<String> = self.take_expired(now).into_iter().collect();
        self.since.get_or_insert(now);
        if self.written < MOST {
            self.written += 1;
            lines.push(of_kill(report));
        } else {
            self.more += 1;
        }
        lines
    }

    /// What was counted in a minute that is over.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Option<String> {
        // A clock that was set back ends it, too.
        let is_over = |since: Timestamp| now.duration_since(since).abs() >= WINDOW;
        if self.since.is_some_and(is_over) {
            self.take_all(now)
        } else {
            None
        }
    }

    pub(super) fn take_all(&mut self, now: Timestamp) -> Option<String> {
        let counted = std::mem::take(self).more;
        (counted > 0).then(|| of_more_kills(now, counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::kill_of;

    #[test]
    fn of_a_flood_the_first_are_written_down_and_the_others_are_counted() {
        let (mut kills, start) = (Kills::default(), Timestamp::UNIX_EPOCH);
        let lines: Vec<String> = (0..100)
            .flat_map(|number| kills.record(&kill_of("web", number), start))
            .collect();
        assert_eq!(lines.len(), 60);
        assert!(lines[59].contains(r#""event":"kill""#) && lines[59].contains(r#""id":"web-59""#));
        assert!(!lines[59].contains("comm"), "{}", lines[59]);
        assert_eq!(kills.take_expired(start + SignedDuration::from_secs(59)), None);
        let next = kills.record(&kill_of("web", 100), start + WINDOW);
        assert!(
            next[0].contains(r#""kills":40"#) && next[1].contains("web-100"),
            "{next:?}"
        );
        assert_eq!(kills.take_all(start + WINDOW), None);
    }
}
