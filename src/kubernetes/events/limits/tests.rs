use proptest::prelude::*;

use super::*;
use crate::kubernetes::events::Severity;

const SECOND: Duration = Duration::from_secs(1);

fn saying(pod: u32, reason: &'static str, message: &str) -> Saying {
    Saying {
        about: About {
            namespace: "a".to_owned(),
            pod: format!("pod-{pod}"),
            uid: format!("uid-{pod}"),
            container: None,
        },
        severity: Severity::Normal,
        reason,
        message: message.to_owned(),
    }
}

#[test]
fn what_is_new_is_written_at_once_and_what_repeats_raises_a_count() {
    let mut limits = Limits::new();
    let resized = saying(1, "Resized", "cpu 1 to 2");
    assert_eq!(
        limits.say(resized.clone(), Time::ZERO),
        Some(Write::New(resized.clone(), 1))
    );
    for _ in 0..5 {
        assert_eq!(limits.say(resized.clone(), SECOND / 2), None);
    }
    assert_eq!(limits.due(SECOND / 2), None, "not so soon");
    let changed = Write::Again {
        saying: resized,
        ticket: 1,
        count: 6,
    };
    assert_eq!(limits.due(SECOND), Some(changed));
    assert_eq!(limits.due(30 * SECOND), None);
    assert_eq!(limits.next_due(30 * SECOND), None);
}

#[test]
fn what_repeats_for_long_is_counted_ever_more_rarely() {
    let mut limits = Limits::new();
    let resized = saying(1, "Resized", "cpu 1 to 2");
    let mut written = Vec::new();
    for second in 0..300 {
        limits.say(resized.clone(), second * SECOND);
        written.extend(limits.due(second * SECOND).map(|_| second));
    }
    assert_eq!(written, [1, 3, 7, 15, 31, 63, 127, 191, 255]);
}

#[test]
fn the_first_of_its_reason_is_written_however_much_else_was_said_about_the_pod() {
    let mut limits = Limits::new();
    for index in 0..100 {
        limits.say(saying(1, "Resized", &index.to_string()), Time::ZERO);
    }
    let refused = saying(1, "Refused", "no room");
    assert_eq!(limits.say(refused.clone(), Time::ZERO), Some(Write::New(refused, 9)));
}

#[test]
fn a_flood_about_one_pod_ends_in_the_count_of_its_last_event_and_leaves_room_for_others() {
    let mut limits = Limits::new();
    let new = (0..1000).filter_map(|index| limits.say(saying(1, "Killed", &index.to_string()), Time::ZERO));
    assert_eq!(new.count(), 8);
    assert!(matches!(
        limits.say(saying(2, "Resized", "x"), Time::ZERO),
        Some(Write::New(..))
    ));
    let Some(Write::Again { saying, count, .. }) = limits.due(20 * SECOND) else {
        panic!("nothing is due")
    };
    assert_eq!((saying.message.as_str(), count), ("999", 993));
    assert_eq!(limits.take_held_back(), 0);
}

#[test]
fn what_was_said_long_ago_is_said_anew() {
    let mut limits = Limits::new();
    let resized = saying(1, "Resized", "cpu 1 to 2");
    limits.say(resized.clone(), Time::ZERO);
    let later = REMEMBERED + SECOND;
    assert_eq!(limits.say(resized.clone(), later), Some(Write::New(resized, 2)));
}

proptest! {
    #[test]
    fn whatever_is_said_the_writes_are_few_and_nothing_is_uncounted(
        said in proptest::collection::vec((0_u32..40, 0_usize..3, 0_u32..5, 0_u64..2000), 0..600)
    ) {
        const REASONS: [&str; 3] = ["Resized", "Refused", "Killed"];
        let mut limits = Limits::new();
        let (mut now, mut writes, mut total) = (Time::ZERO, 0_u32, 0_u64);
        let mut counts = BTreeMap::new();
        for (pod, reason, message, pause) in said {
            now += Duration::from_millis(pause);
            total += 1;
            let said = limits.say(saying(pod, REASONS[reason], &message.to_string()), now);
            for write in said.into_iter().chain(limits.due(now)) {
                writes += 1;
                match write {
                    Write::New(_, ticket) => counts.insert(ticket, 1),
                    Write::Again { ticket, count, .. } => counts.insert(ticket, count),
                };
            }
        }
        prop_assert!(writes <= 40 + 1 + u32::try_from(now.as_secs()).unwrap() / 2);
        // What is left comes due sooner or later; then every saying is in a count or was held back.
        for _ in 0..2000 {
            now += 64 * SECOND;
            if let Some(Write::Again { ticket, count, .. }) = limits.due(now) {
                counts.insert(ticket, count);
            }
        }
        let counted: u64 = counts.values().map(|count| u64::from(*count)).sum();
        prop_assert_eq!(counted + limits.take_held_back(), total);
    }
}
