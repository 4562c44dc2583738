//! Bounds the lines of refusals and kills, so that a caller with a thousand refusals a second, or a pod with endless kills,
//! does not push other lines out of the log. Pure: time is an argument.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::line::{Line, of_kill};
use crate::oom::OomReport;

/// The period in which events beyond the bound are counted.
const WINDOW: SignedDuration = SignedDuration::from_secs(super::WINDOW.as_secs().cast_signed());
/// The number of kills with a line of their own in each period.
const KILLS: u32 = 60;
/// The most topics in memory. Beyond, the counts are written at once.
const MOST_TOPICS: usize = 1024;

/// A refused caller or a refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// The time of the refusal.
    pub time: Timestamp,
    /// The user id of the caller.
    pub uid: u32,
    /// The process id of the caller.
    pub pid: i32,
    /// The call that was refused.
    pub call: &'static str,
    /// The pod of the request, if the caller may name pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The answer to the caller.
    pub reason: String,
}

/// An event that may come in floods.
#[derive(Debug)]
pub(super) enum FloodEvent {
    Refusal(Refusal),
    Kill(Arc<OomReport>),
}

/// The same refusals of one user share a bound, and all kills share one.
type Topic = Option<(u32, &'static str, Option<String>)>;

#[derive(Debug)]
struct Counted {
    since: Timestamp,
    written: u32,
    /// The latest event without a line, and the number of such events.
    more: Option<(FloodEvent, u64)>,
}

/// The topics of the last period.
#[derive(Debug, Default)]
pub(super) struct Floods {
    seen: HashMap<Topic, Counted>,
}

impl Floods {
    /// Counts an event; returns the lines to write now.
    pub(super) fn record(&mut self, event: FloodEvent, now: Timestamp) -> Vec<String> {
        let mut lines = self.take_expired(now);
        if self.seen.len() >= MOST_TOPICS {
            lines.extend(self.take_all(now));
        }
        let (topic, most) = match &event {
            FloodEvent::Refusal(refusal) => (Some((refusal.uid, refusal.call, refusal.pod.clone())), 1),
            FloodEvent::Kill(_) => (None, KILLS),
        };
        let counted = self.seen.entry(topic).or_insert(Counted {
            since: now,
            written: 0,
            more: None,
        });
        if counted.written < most {
            counted.written += 1;
            lines.push(match &event {
                FloodEvent::Refusal(refusal) => Line::Refusal { refusal, times: 1 }.text(),
                FloodEvent::Kill(kill) => of_kill(kill),
            });
        } else {
            let times = counted.more.take().map_or(1, |(_, times)| times + 1);
            counted.more = Some((event, times));
        }
        lines
    }

    /// The lines for topics whose period is over. Setting the clock back ends a period, too.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Vec<String> {
        self.take_if(now, |counted| now.duration_since(counted.since).abs() >= WINDOW)
    }

    pub(super) fn take_all(&mut self, now: Timestamp) -> Vec<String> {
        self.take_if(now, |_| true)
    }

    fn take_if(&mut self, now: Timestamp, is_over: impl Fn(&Counted) -> bool) -> Vec<String> {
        let ended = self.seen.extract_if(|_, counted| is_over(counted));
        let more = ended.filter_map(|(_, counted)| counted.more);
        more.map(|(latest, times)| match latest {
            FloodEvent::Refusal(refusal) => {
                let refusal = &refusal;
                Line::Refusal { refusal, times }.text()
            }
            FloodEvent::Kill(_) => Line::MoreKills {
                time: now,
                kills: times,
            }
            .text(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::kill_of;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn refusal(uid: u32, second: i64) -> FloodEvent {
        FloodEvent::Refusal(Refusal {
            time: at(second),
            uid,
            pid: 7,
            call: "get",
            pod: None,
            reason: "no right".to_owned(),
        })
    }

    fn kill(number: u64) -> FloodEvent {
        FloodEvent::Kill(Arc::new(kill_of("web", number)))
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
        assert!(floods.take_all(at(60)).is_empty());
    }

    #[test]
    fn callers_beyond_number_cannot_fill_the_memory() {
        let mut floods = Floods::default();
        for uid in 0..5000 {
            floods.record(refusal(uid, 0), at(0));
            floods.record(refusal(uid, 0), at(0));
            assert!(floods.seen.len() <= MOST_TOPICS);
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
        assert_eq!(floods.take_all(at(60)), [""; 0]);
    }
}
