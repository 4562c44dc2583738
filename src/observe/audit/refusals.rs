//! Refusals, without their repetitions: somebody who is turned away a thousand times a second must not push everything
//! else out of the log. Pure: time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::line::of_refusal;

/// Refusals of the same call to the same user are one within this time of the first.
const WINDOW: Duration = super::WINDOW;
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

#[derive(Debug)]
struct Counted {
    since: Timestamp,
    /// The latest of those not written down yet, and how many they are.
    more: Option<(Refusal, u64)>,
}

/// The refusals of the last while.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    seen: HashMap<(u32, &'static str, Option<String>), Counted>,
}

impl Refusals {
    /// The lines to write now that this has happened.
    pub(super) fn record(&mut self, refusal: Refusal, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        if self.seen.len() >= MOST {
            lines = self.take_all();
        }
        let key = (refusal.uid, refusal.call, refusal.pod.clone());
        if let Some(counted) = self.seen.get_mut(&key) {
            let times = counted.more.take().map_or(1, |(_, times)| times + 1);
            counted.more = Some((refusal, times));
        } else {
            lines.push(of_refusal(&refusal, 1));
            let counted = Counted { since: now, more: None };
            self.seen.insert(key, counted);
        }
        lines
    }

    /// What was counted in windows that are over.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Vec<String> {
        let window = SignedDuration::try_from(WINDOW).unwrap_or(SignedDuration::MAX);
        self.take_if(|counted| now.duration_since(counted.since) >= window)
    }

    pub(super) fn take_all(&mut self) -> Vec<String> {
        self.take_if(|_| true)
    }

    fn take_if(&mut self, is_over: impl Fn(&Counted) -> bool) -> Vec<String> {
        let ended = self.seen.extract_if(|_, counted| is_over(counted));
        let more = ended.filter_map(|(_, counted)| counted.more);
        more.map(|(refusal, times)| of_refusal(&refusal, times)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn refusal(uid: u32, second: i64) -> Refusal {
        Refusal {
            time: at(second),
            uid,
            pid: 7,
            call: "get",
            pod: None,
            reason: "no right".to_owned(),
        }
    }

    #[test]
    fn the_first_is_written_at_once_and_the_others_counted() {
        let mut refusals = Refusals::default();
        let mut lines = Vec::new();
        for second in 0..50 {
            lines.extend(refusals.record(refusal(1, second), at(second)));
            lines.extend(refusals.take_expired(at(second)));
        }
        assert_eq!(lines.len(), 1);
        assert_eq!(refusals.record(refusal(2, 50), at(50)).len(), 1, "another caller");
        let counted = refusals.take_expired(at(60));
        assert_eq!(
            counted,
            [concat!(
                r#"{"event":"refusal","time":"1970-01-01T00:00:49Z","uid":1,"pid":7,"call":"get","reason":"no right","times":49}"#,
                "\n"
            )]
        );
        assert!(refusals.take_all().is_empty());
    }

    #[test]
    fn callers_beyond_number_cannot_fill_the_memory() {
        let mut refusals = Refusals::default();
        for uid in 0..5000 {
            refusals.record(refusal(uid, 0), at(0));
            refusals.record(refusal(uid, 0), at(0));
            assert!(refusals.seen.len() <= MOST);
        }
    }
}
