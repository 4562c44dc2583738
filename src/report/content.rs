//! The content of a report: one kill in detail, or, where the log had no room for the detail, the count of several.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::oom::{HitLimit, KillFacts, OomReport, proto};

/// A kill or an aggregate of kills, as a destination receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::From)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    #[from(OomReport, Arc<OomReport>)]
    Kill(Arc<OomReport>),
    /// The count of kills whose detail is gone.
    #[serde(rename = "folded")]
    Aggregate(Box<Aggregate>),
}

/// Kills whose detail is gone: the log had no room for it, or one kill took too much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aggregate {
    /// The id of the oldest of them.
    pub first_id: String,
    pub first: Timestamp,
    pub last: Timestamp,
    /// How many there were; at least 1.
    pub count: u64,
    /// The pod, container (with the id of the last one) and level of all of them; the limit at the last of them, the highest
    /// usage and the highest peak; the same of the container's own limit, where all of them hit that.
    #[serde(flatten)]
    pub facts: KillFacts,
}

impl Report {
    /// The idempotency key: the same for the same report across retries and restarts; no other report on any node has it.
    pub fn id(&self) -> Cow<'_, str> {
        match self {
            Self::Kill(kill) => Cow::Borrowed(&kill.id),
            // An aggregate that grows is another report, with another count.
            Self::Aggregate(sum) => Cow::Owned(format!("{}+{}", sum.first_id, sum.count)),
        }
    }

    /// How many kills the report is about.
    pub const fn count(&self) -> u64 {
        match self {
            Self::Kill(_) => 1,
            Self::Aggregate(sum) => sum.count,
        }
    }

    /// The time of the kill, or of the first of them.
    pub fn first(&self) -> Timestamp {
        match self {
            Self::Kill(kill) => kill.time,
            Self::Aggregate(sum) => sum.first,
        }
    }

    /// The time of the kill, or of the last of them.
    pub fn last(&self) -> Timestamp {
        match self {
            Self::Kill(kill) => kill.time,
            Self::Aggregate(sum) => sum.last,
        }
    }

    /// The container, where it is certain, and the limit that was hit.
    pub fn facts(&self) -> &KillFacts {
        match self {
            Self::Kill(kill) => &kill.facts,
            Self::Aggregate(sum) => &sum.facts,
        }
    }

    /// The namespace of the pod, empty if that is not known.
    pub(super) fn namespace(&self) -> &str {
        self.facts().pod.as_ref().map_or("", |pod| &pod.namespace)
    }

    pub(super) fn facts_mut(&mut self) -> &mut KillFacts {
        match self {
            Self::Kill(kill) => &mut Arc::make_mut(kill).facts,
            Self::Aggregate(sum) => &mut sum.facts,
        }
    }

    /// The kill, unless its detail is gone.
    pub const fn kill(&self) -> Option<&Arc<OomReport>> {
        match self {
            Self::Kill(kill) => Some(kill),
            Self::Aggregate(_) => None,
        }
    }

    /// The count of these kills and of younger ones of the same container and level.
    pub(super) fn merged(self, younger: Self) -> Self {
        let mut sum = self.into_aggregate();
        sum.add(younger.into_aggregate());
        Self::Aggregate(Box::new(sum))
    }

    /// The report without its detail.
    pub fn into_aggregate(self) -> Aggregate {
        match self {
            Self::Aggregate(sum) => *sum,
            Self::Kill(kill) => Aggregate {
                first_id: kill.id.clone(),
                first: kill.time,
                last: kill.time,
                count: 1,
                facts: kill.facts.clone(),
            },
        }
    }
}

impl Aggregate {
    /// Adds younger kills of the same container and level.
    fn add(&mut self, younger: Self) {
        self.count = self.count.saturating_add(younger.count);
        self.first = self.first.min(younger.first);
        let is_last = younger.last >= self.last;
        if is_last {
            self.last = younger.last;
            self.facts.container = younger.facts.container;
        }
        add_limit(&mut self.facts.limit, younger.facts.limit, is_last);
        match (&mut self.facts.container_limit, younger.facts.container_limit) {
            (Some(limit), Some(younger)) => add_limit(limit, younger, is_last),
            (limit, _) => *limit = None,
        }
    }
}

fn add_limit(limit: &mut HitLimit, younger: HitLimit, is_last: bool) {
    if is_last {
        limit.cgroup = younger.cgroup;
        limit.limit_bytes = younger.limit_bytes.or(limit.limit_bytes);
    }
    limit.usage_bytes = limit.usage_bytes.max(younger.usage_bytes);
    limit.peak_bytes = limit.peak_bytes.max(younger.peak_bytes);
}

impl From<&Report> for proto::Report {
    /// Without a sequence, which belongs to a stream.
    fn from(report: &Report) -> Self {
        let facts = report.facts();
        let common = Self {
            id: report.id().into_owned(),
            node: facts.node.clone(),
            count: report.count(),
            time: Some(time(report.last())),
            pod: facts.pod.clone(),
            container: facts.container.clone(),
            level: facts.level.into(),
            limit: Some(facts.limit.clone()),
            container_limit: facts.container_limit.clone(),
            limit_of: facts.limit_of().into(),
            ..Self::default()
        };
        match report {
            Report::Kill(kill) => Self {
                cgroup: kill.cgroup.clone().unwrap_or_default(),
                victim: kill.victim.clone(),
                group: kill.group.clone(),
                own_write: kill.own_write.as_ref().map(|write| proto::OwnWrite {
                    time: Some(time(write.time)),
                    what: write.what.clone(),
                }),
                evidence: kill.evidence.clone(),
                confidence: kill.confidence.into(),
                candidates: kill.candidates.to_vec(),
                more_candidates: kill.more_candidates,
                while_down: kill.while_down,
                ..common
            },
            Report::Aggregate(sum) => Self {
                first_time: Some(time(sum.first)),
                ..common
            },
        }
    }
}

fn time(time: Timestamp) -> prost_types::Timestamp {
    SystemTime::from(time).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::testing::{arbitrary_kill, kill_of};

    /// A report as `examples/receiver.rs` prints what it received.
    fn printed(report: &Report) -> serde_json::Value {
        serde_json::to_value(proto::Report::from(report)).unwrap()
    }

    /// The count of a kill at this second, of a container with this limit and use.
    fn counted(second: u64, limit: u64, usage: u64) -> Aggregate {
        let mut kill = kill_of("web", second);
        kill.facts.limit = HitLimit {
            limit_bytes: Some(limit),
            usage_bytes: Some(usage),
            peak_bytes: Some(usage + 1),
            ..HitLimit::default()
        };
        kill.facts.container_limit = Some(kill.facts.limit.clone());
        kill.facts.container.as_mut().unwrap().id = format!("container-{second}");
        Report::from(kill).into_aggregate()
    }

    #[test]
    fn an_aggregate_has_the_last_limit_and_highest_use() {
        let mut sum = counted(5, 50, 40);
        for (second, limit, usage, expected) in [
            (7, 30, 20, (2, 5, 7, "container-7", 30, 40)),
            (6, 99, 45, (3, 5, 7, "container-7", 30, 45)),
            (1, 99, 10, (4, 1, 7, "container-7", 30, 45)),
            (7, 60, 10, (5, 1, 7, "container-7", 60, 45)),
        ] {
            sum.add(counted(second, limit, usage));
            let seconds = [sum.first, sum.last].map(|time| time.as_second() - 1_700_000_000);
            let of = |limit: &HitLimit| (limit.limit_bytes.unwrap(), limit.usage_bytes.unwrap());
            let (limit, usage) = of(&sum.facts.limit);
            let id = sum.facts.container.as_ref().unwrap().id.as_str();
            assert_eq!((sum.count, seconds[0], seconds[1], id, limit, usage), expected);
            assert_eq!(sum.facts.limit.peak_bytes, Some(usage + 1));
            assert_eq!(of(sum.facts.container_limit.as_ref().unwrap()), (limit, usage));
        }
        assert_eq!(sum.first_id, "web-5");
        let mut other = counted(9, 1, 1);
        other.facts.container_limit = None;
        sum.add(other);
        assert_eq!(sum.facts.container_limit, None, "not all of them hit it");
    }

    proptest! {
        #[test]
        fn a_message_says_all_that_the_report_says(kill in arbitrary_kill(), count in 2u64.., before_1970: bool) {
            let mut kill = kill;
            if before_1970 {
                kill.time = Timestamp::from_microsecond(-kill.time.as_microsecond() / 1000).unwrap();
            }
            let report = Report::from(kill.clone());
            let said = printed(&report);
            prop_assert_eq!((&said["count"], &said["limitOf"]), (&1.into(), &kill.facts.limit_of().to_string().into()));
            let known = serde_json::to_value(&kill).unwrap();
            for (field, value) in known.as_object().unwrap() {
                match field.as_str() {
                    "time" => {
                        let time: Timestamp = said["time"].as_str().unwrap().parse().unwrap();
                        prop_assert_eq!(time, kill.time);
                    }
                    "ownWrite" => prop_assert_eq!(&said[field]["what"], &value["what"]),
                    _ => prop_assert_eq!(&said[field], value, "{}", field),
                }
            }
            let mut sum = report.into_aggregate();
            sum.count = count;
            let said = printed(&Report::Aggregate(Box::new(sum.clone())));
            let id = format!("{}+{count}", sum.first_id);
            prop_assert_eq!((&said["id"], &said["count"]), (&id.into(), &count.into()));
            let first: Timestamp = said["firstTime"].as_str().unwrap().parse().unwrap();
            prop_assert_eq!(first, sum.first);
            prop_assert_eq!((said.get("victim"), &said["confidence"]), (None, &"unknown".into()));
        }
    }
}
