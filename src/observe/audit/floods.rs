//! Bounds the lines of changes, refusals and kills, so that a VPA that changes all the time, a caller with a thousand refusals
//! a second, or a pod with endless kills does not push other lines out of the log: namespaces and callers share a rate
//! fairly. What is beyond is counted. Operators' changes have no bound. Pure: time is an argument.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::line::{of_change, of_count, of_kill, of_refusal};
use super::{AuditEvent, WINDOW};
use crate::oom::OomReport;
use crate::rate_limiter::{FairRateLimiter, Rate};

/// The rate of passes, kills and refusals with lines of their own.
const RATE: Rate = Rate::new(1000, Duration::from_secs(1));
/// The most topics in memory. Beyond, the counts are written at once.
const MOST_TOPICS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum User {
    Namespace(String),
    Caller(u32),
}

/// The changes or the kills of a namespace; or the refusals of one UID's call about one pod, or about every pod beyond the rate.
type Topic = (User, &'static str, Option<String>);

#[derive(Debug)]
pub(super) struct Floods {
    since: Timestamp,
    rate: FairRateLimiter<User>,
    /// The latest event of each topic without a line, and the number of such events.
    topics: HashMap<Topic, Option<(AuditEvent, u64)>>,
}

impl Floods {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: Timestamp::default(),
            rate: FairRateLimiter::new(RATE, now),
            topics: HashMap::new(),
        }
    }

    /// Counts an event; returns the lines to write now.
    pub(super) fn record(&mut self, event: AuditEvent, (now, instant): (Timestamp, Instant)) -> Vec<String> {
        let mut lines = self.take_expired(now);
        if self.topics.len() >= MOST_TOPICS {
            lines.extend(self.take_all());
        }
        let mut topic = match &event {
            AuditEvent::Change(record) => (User::Namespace(record.pod.namespace.clone()), "changes", None),
            AuditEvent::Kill(kill) => (User::Namespace(namespace_of(kill).to_owned()), "kills", None),
            AuditEvent::Refusal(refusal) => (User::Caller(refusal.uid), refusal.call, refusal.pod.clone()),
        };
        let is_repeated = matches!(topic.0, User::Caller(_)) && self.topics.contains_key(&topic);
        if !is_repeated && self.rate.try_use(&topic.0, instant) {
            match &event {
                AuditEvent::Change(record) => lines.extend(of_change(record)),
                AuditEvent::Kill(kill) => lines.push(of_kill(kill)),
                AuditEvent::Refusal(refusal) => {
                    lines.push(of_refusal(refusal, 1));
                    self.topics.insert(topic, None);
                }
            }
            return lines;
        }
        topic.2.take_if(|_| !is_repeated);
        let more = self.topics.entry(topic).or_default();
        let times = more.take().map_or(1, |(_, times)| times + 1);
        *more = Some((event, times));
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
        let counted = mem::take(&mut self.topics).into_values().flatten();
        let lines = counted.map(|(latest, times)| match latest {
            AuditEvent::Refusal(refusal) => of_refusal(&refusal, times),
            AuditEvent::Kill(kill) => of_count("moreKills", Some(namespace_of(&kill)), "kills", times),
            AuditEvent::Change(record) => of_count("moreChanges", Some(&record.pod.namespace), "changes", times),
        });
        lines.collect()
    }
}

/// The namespace of a kill; empty for one outside of pods.
fn namespace_of(kill: &OomReport) -> &str {
    kill.facts.pod.as_ref().map_or("", |pod| &pod.namespace)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::super::Refusal;
    use super::super::tests::recommendation;
    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{ChangeRecord, Outcome};
    use crate::report::testing::kill_of;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn both(second: i64) -> (Timestamp, Instant) {
        (at(second), *START + Duration::from_secs(second.unsigned_abs()))
    }

    fn change(namespace: &str) -> AuditEvent {
        let pod = PodId {
            uid: "u".into(),
            namespace: namespace.to_owned(),
            name: "web".to_owned(),
        };
        let cause = recommendation("1");
        AuditEvent::Change(Arc::new(ChangeRecord::new(pod, cause, Outcome::Applied)))
    }

    #[test]
    fn a_busy_vpa_leaves_others_their_lines() {
        let mut floods = Floods::new(*START);
        let mut written = [0, 0];
        for number in 0..60_000 {
            let now = both(number / 200);
            written[0] += floods.record(change("hostile"), now).len();
            if number % 200 == 0 {
                written[1] += floods
                    .record(change("shop"), now)
                    .iter()
                    .filter(|line| line.contains("shop"))
                    .count();
            }
        }
        assert!(written[0] < 1400, "{written:?}");
        assert!(written[1] >= 150, "half of the rate: {written:?}");
        let counted = floods.take_all();
        assert!(
            counted
                .iter()
                .any(|line| line.contains(r#""event":"moreChanges""#) && line.contains("hostile")),
            "{counted:?}"
        );
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
    fn the_first_refusal_is_written_others_counted() {
        let mut floods = Floods::new(*START);
        let mut lines = Vec::new();
        for second in 0..50 {
            lines.extend(floods.record(refusal(1, second), both(second)));
            lines.extend(floods.take_expired(at(second)));
        }
        assert_eq!(lines.len(), 1);
        assert_eq!(floods.record(refusal(2, 50), both(50)).len(), 1, "another caller");
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
    fn each_call_about_each_pod_has_a_line() {
        let mut floods = Floods::new(*START);
        let mut lines = |call: &'static str, pod: Option<&str>| {
            let refusal = Refusal {
                time: at(0),
                uid: 1,
                pid: 7,
                call,
                pod: pod.map(str::to_owned),
                reason: "no right".to_owned(),
            };
            floods.record(AuditEvent::Refusal(Box::new(refusal)), both(0)).len()
        };
        for written in [1, 0] {
            assert_eq!(lines("get", None), written);
            for (call, pod) in [("resize", "shop/web"), ("resize", "shop/db"), ("release", "shop/web")] {
                assert_eq!(lines(call, Some(pod)), written, "{call} {pod}");
            }
        }
    }

    #[test]
    fn callers_beyond_number_cannot_fill_the_memory() {
        let mut floods = Floods::new(*START);
        for uid in 0..5000 {
            floods.record(refusal(uid, 0), both(0));
            floods.record(refusal(uid, 0), both(0));
            assert!(floods.topics.len() <= MOST_TOPICS);
        }
    }

    #[test]
    fn a_flood_of_kills_is_listed_then_counted() {
        let mut floods = Floods::new(*START);
        let lines: Vec<String> = (0..2000)
            .flat_map(|number| floods.record(kill(number), both(0)))
            .collect();
        assert_eq!(lines.len(), 875, "some lines are kept for other namespaces");
        assert!(lines[59].contains(r#""event":"kill""#) && lines[59].contains(r#""id":"web-59""#));
        assert!(!lines[59].contains("comm"), "{}", lines[59]);
        assert_eq!(floods.take_expired(at(59)), [""; 0]);
        let next = floods.record(kill(2000), both(60));
        assert!(
            next[0].contains(r#""kills":1125"#) && next[1].contains("web-2000"),
            "{next:?}"
        );
        assert_eq!(floods.take_all(), [""; 0]);
    }
}
