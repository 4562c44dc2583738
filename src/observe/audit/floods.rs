//! Refusals and kills, without floods of them: who is turned away a thousand times a second, or a pod whose processes are
//! killed all the time, must not push everything else out of the log. Pure: time is an argument.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::line::{of_kill, of_more_kills, of_refusal};
use crate::oom::OomReport;

/// What exceeds its lines is counted for so long.
const WINDOW: SignedDuration = SignedDuration::from_secs(super::WINDOW.as_secs().cast_signed());
/// Kills with a line of their own in each window.
const KILLS: u32 = 60;
/// No more kinds of refusals are remembered: beyond, all that were counted are written down at once.
const MOST: usize = 1024;

/// Somebody was turned away, or asked for something and was refused.
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
    /// About which pod, if the caller may ask about pods at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// What the caller was told.
    pub reason: String,
}

/// What can come in floods.
#[derive(Debug)]
pub(super) enum Frequent {
    Refusal(Refusal),
    Kill(Arc<OomReport>),
}

/// Refusals of the same call to the same user about the same pod share a window; all kills share one.
type Topic = Option<(u32, &'static str, Option<String>)>;

#[derive(Debug)]
struct Counted {
    since: Timestamp,
    written: u32,
    /// The latest of those not written down yet, and how many they are.
    more: Option<(Frequent, u64)>,
}

/// What came in the last while.
#[derive(Debug, Default)]
pub(super) struct Floods {
    seen: HashMap<Topic, Counted>,
}

impl Floods {
    /// The lines to write now that this has happened.
    pub(super) fn record(&mut self, event: Frequent, now: Timestamp) -> Vec<String> {
        let mut lines = self.take_expired(now);
        if self.seen.len() >= MOST {
            lines.extend(self.take_all(now));
        }
        let (topic, most) = match &event {
            Frequent::Refusal(refusal) => (Some((refusal.uid, refusal.call, refusal.pod.clone())), 1),
            Frequent::Kill(_) => (None, KILLS),
        };
        let counted = self.seen.entry(topic).or_insert(Counted {
            since: now,
            written: 0,
            more: None,
        });
        if counted.written < most {
            counted.written += 1;
            lines.push(match &event {
                Frequent::Refusal(refusal) => of_refusal(refusal, 1),
                Frequent::Kill(kill) => of_kill(kill),
            });
        } else {
            let times = counted.more.take().map_or(1, |(_, times)| times + 1);
            counted.more = Some((event, times));
        }
        lines
    }

    /// What was counted in windows that are over. A clock that was set back ends them, too.
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
            Frequent::Refusal(refusal) => of_refusal(&refusal, times),
            Frequent::Kill(_) => of_more_kills(now, times),
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

    fn refusal(uid: u32, second: i64) -> Frequent {
        Frequent::Refusal(Refusal {
            time: at(second),
            uid,
            pid: 7,
            call: "get",
            pod: None,
            reason: "no right".to_owned(),
        })
    }

    fn kill(number: u64) -> Frequent {
        Frequent::Kill(Arc::new(kill_of("web", number)))
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
            assert!(floods.seen.len() <= MOST);
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
