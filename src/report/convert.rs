//! Reports → messages of the protocol, as `report.proto` describes them. Pure.

use jiff::Timestamp;

use super::content::Report;
use crate::oom::{Victim, proto};

impl From<&Report> for proto::Report {
    /// Without a sequence: that belongs to a stream.
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
                victim: kill.victim.as_ref().map(victim),
                group: kill.group.clone(),
                own_write: kill.own_write.as_ref().map(|write| proto::OwnWrite {
                    time: Some(time(write.time)),
                    what: write.what.clone(),
                }),
                evidence: kill.evidence.clone(),
                confidence: kill.confidence.into(),
                candidates: kill.candidates.iter().map(victim).collect(),
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
    // jiff's nanoseconds have the sign of its seconds; the protocol's are never negative.
    let nanos = time.subsec_nanosecond();
    let (seconds, nanos) = if nanos < 0 {
        (time.as_second() - 1, nanos + 1_000_000_000)
    } else {
        (time.as_second(), nanos)
    };
    prost_types::Timestamp { seconds, nanos }
}

fn victim(victim: &Victim) -> proto::Victim {
    proto::Victim {
        pid: victim.pid,
        comm: victim.comm.clone(),
        role: victim.role.into(),
        memory: victim.memory,
        oom_score_adj: victim.oom_score_adj,
        uid: victim.uid,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::testing::arbitrary_kill;

    /// A report as `vscalectl oom sink` prints what it received.
    fn printed(report: &Report) -> serde_json::Value {
        serde_json::to_value(proto::Report::from(report)).unwrap()
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
