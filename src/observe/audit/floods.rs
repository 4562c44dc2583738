//! Bounds the lines of refusals and kills, so that a caller with a thousand refusals a second, or a pod with endless kills,
//! does not push other lines out of the log. Pure: time is an argument.

use std::collections::HashMap;
use std::mem;

use jiff::Timestamp;

use super::line::{of_change, of_count, of_kill, of_refusal};
use super::{AuditEvent, WINDOW};

/// The number of kills with a line of their own in each period.
const KILLS: u32 = 60;
/// The most topics in memory. Beyond, the counts are written at once.
const MOST_TOPICS: usize = 1024;

/// The same refusals of one user share a bound, and all kills share one.
type Topic = Option<(u32, &'static str, Option<String>)>;

/// The topics of a period.
#[derive(Debug, Default)]
pub(super) struct Floods {
    since: Timestamp,
    topics: HashMap<Topic, Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    written: u32,
    /// The latest event without a line, and the number of such events.
    more: Option<(AuditEvent, u64)>,
}

impl Floods {
    /// Counts an event; returns the lines to write now.
    pub(super) fn record(&mut self, event: AuditEvent, now: Timestamp) -> Vec<String> {
        let mut lines = self.take_expired(now);
        if self.topics.len() >= MOST_TOPICS {
            lines.extend(self.take_all());
        }
        let (topic, most, text) = match &event {
            AuditEvent::Change(record) => {
                lines.extend(of_change(record));
                return lines;
            }
            AuditEvent::Refusal(refusal) => {
                let topic = (refusal.uid, refusal.call, refusal.pod.clone());
                (Some(topic), 1, of_refusal(refusal, 1))
            }
            AuditEvent::Kill(kill) => (None, KILLS, of_kill(kill)),
        };
        let counted = self.topics.entry(topic).or_default();
        if counted.written < most {
            counted.written += 1;
            lines.push(text);
        } else {
            let times = counted.more.take().map_or(1, |(_, times)| times + 1);
            counted.more = Some((event, times));
        }
        lines
    }

    /// The lines of a period that is over. Setting the clock back ends a period, too.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Vec<String> {
        if now.duration_since(self.since).unsigned_abs() < WINDOW {
            return Vec::new();
        }
        self.since = now;
        self.take_all()
    }

    /// The lines with the counts of events without a line.
    pub(super) fn take_all(&mut self) -> Vec<String> {
        let counted = mem::take(&mut self.topics).into_values();
        let more = counted.filter_map(|counted| counted.more);
        let lines = more.map(|(latest, times)| match latest {
            AuditEvent::Refusal(refusal) => of_refusal(&refusal, times),
            AuditEvent::Kill(_) | AuditEvent::Change(_) => of_count("moreKills", "kills", times),
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Refusal;
    use super::*;
    use crate::report::testing::kill_of;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn refusal(uid: u32, second: i64) -> AuditEvent {
        AuditEvent::Refusal(Box::new(Refusal {
            time: at(second),
            uid,
            pid: 7,
            call: "get",
            pod: None,
            reason: "no right".to_owned(),
        }))
    }

    fn kill(number: u64) -> AuditEvent {
        AuditEvent::Kill(Arc::new(kill_of("web", number)))
    }

    #[test]
    fn the_first_refusal_is_written_at_once_and_the_others_counted() {
        let mut floods = Floods::default();
        let mut lines = Vec::new();
        for second in 0..50 {
            lines.extend(floods.record(refusal(1, second), at(second)));
            lines.extend(floods.take_expired(at(second)));
        }
        assert_eq!(lines.len(), 1);
        assert_eq!(floods.record(refusal(2, 50), at(50)).len(), 1, "another caller");
        let counted = floods.take_expired(at(60));
        assert_eq!(
            counted,
            [concat!(
                r#"{"event":"refusal","time":"1970-01-01T00:00:49Z","uid":1,"pid":7,"call":"get","reason":"no right","times":49}"#,
                "\n"
            )]
        );
        assert!(floods.take_all().is_empty());
    }

    #[test]
    fn callers_beyond_number_cannot_fill_the_memory() {
        let mut floods = Floods::default();
        for uid in 0..5000 {
            floods.record(refusal(uid, 0), at(0));
            floods.record(refusal(uid, 0), at(0));
            assert!(floods.topics.len() <= MOST_TOPICS);
        }
    }

    #[test]
    fn of_a_flood_of_kills_the_first_are_written_down_and_the_others_are_counted() {
        let (mut floods, start) = (Floods::default(), Timestamp::UNIX_EPOCH);
        let lines: Vec<String> = (0..100).flat_map(|number| floods.record(kill(number), start)).collect();
        assert_eq!(lines.len(), 60);
        assert!(lines[59].contains(r#""event":"kill""#) && lines[59].contains(r#""id":"web-59""#));
        assert!(!lines[59].contains("comm"), "{}", lines[59]);
        assert_eq!(floods.take_expired(at(59)), [""; 0]);
        let next = floods.record(kill(100), at(60));
        assert!(
            next[0].contains(r#""kills":40"#) && next[1].contains("web-100"),
            "{next:?}"
        );
        assert_eq!(floods.take_all(), [""; 0]);
    }
}
