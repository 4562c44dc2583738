use proptest::prelude::*;

use super::*;
use crate::oom::Level;
use crate::report::content::Report;
use crate::report::proto;
use crate::report::testing::{arbitrary_kill, kill_of};

fn there_and_back(report: &Report) -> Result<Report, BadMessage> {
    proto::Report::from(report).try_into()
}

#[test]
fn a_level_of_a_newer_agent_is_not_known_and_the_report_is_used_all_the_same() {
    let mut message = proto::Report::from(&Report::from(kill_of("web", 1)));
    message.level = 99;
    assert_eq!(Report::try_from(message).unwrap().level(), Level::Unknown);
}

#[test]
fn what_is_no_report_is_refused_with_the_field() {
    let good = proto::Report::from(&Report::from(kill_of("web", 1)));
    let refused = |change: fn(&mut proto::Report)| {
        let mut message = good.clone();
        change(&mut message);
        Report::try_from(message).unwrap_err()
    };
    assert_eq!(refused(|message| message.id.clear()), BadMessage::Field("id"));
    assert_eq!(refused(|message| message.count = 7), BadMessage::Field("count"));
    assert_eq!(refused(|message| message.time = None), BadMessage::Field("time"));
    assert_eq!(
        refused(|message| message.confidence = 99),
        BadMessage::Field("confidence")
    );
    let absurd = |message: &mut proto::Report| {
        message.time = Some(prost_types::Timestamp {
            seconds: i64::MAX,
            nanos: 0,
        });
    };
    assert_eq!(refused(absurd), BadMessage::Field("time"));
}

proptest! {
    #[test]
    fn every_report_survives_the_protocol(kill in arbitrary_kill(), count in 1u64.., before_1970: bool) {
        let mut kill = kill;
        if before_1970 {
            kill.time = jiff::Timestamp::from_microsecond(-kill.time.as_microsecond() / 1000).unwrap();
        }
        let report = Report::from(kill);
        prop_assert_eq!(there_and_back(&report).unwrap(), report.clone());
        let mut folded = report.into_aggregate();
        folded.count = count;
        let folded = Report::Aggregate(Box::new(folded));
        prop_assert_eq!(there_and_back(&folded).unwrap(), folded);
    }
}
