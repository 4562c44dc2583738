use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::kubernetes::events::{PodReference, Severity, Subject};
use crate::model::objects::PodId;

const SECOND: Duration = Duration::from_secs(1);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// That long after the start.
fn at(since: Duration) -> Instant {
    *START + since
}

/// The limits with the rates of a node.
struct Limits {
    events: EventLimits,
    rates: EventRates,
}

impl Limits {
    fn new(now: Instant) -> Self {
        Self {
            events: EventLimits::new(0, usize::MAX),
            rates: EventRates::new(now),
        }
    }

    fn record(&mut self, message: NamedEvent, now: Instant) -> Option<Written> {
        let namespace = message.subject.namespace().to_owned();
        assert_eq!(self.events.add(message, now), 0);
        self.events.next(&namespace, &mut self.rates, now).map(written)
    }

    fn due(&mut self, now: Instant) -> Option<Written> {
        self.events.next("a", &mut self.rates, now).map(written)
    }
}

fn limits() -> Limits {
    Limits::new(*START)
}

fn subject(namespace: &str, pod: u32) -> Subject {
    Subject::Pod(PodReference {
        pod: PodId {
            namespace: namespace.to_owned(),
            name: format!("pod-{pod}"),
            uid: format!("uid-{pod}").into(),
        },
        container: None,
        init: false,
    })
}

fn message_of(pod: u32, reason: &'static str, message: &str) -> NamedEvent {
    NamedEvent {
        subject: subject("a", pod),
        severity: Severity::Normal,
        reason,
        message: message.to_owned(),
        ..NamedEvent::default()
    }
}

/// The number, the text and the count of an Event.
type Written = (Ticket, String, u64);

fn written(event: NamedEvent) -> Written {
    let (_, number) = event.name.rsplit_once('.').unwrap();
    (Ticket::from_str_radix(number, 16).unwrap(), event.message, event.count)
}

fn new(message: &NamedEvent, ticket: Ticket) -> Written {
    (ticket, message.message.clone(), 1)
}

#[test]
fn new_events_are_sent_and_repeats_counted() {
    let mut limits = limits();
    let resized = message_of(1, "Resized", "cpu 1 to 2");
    assert_eq!(
        limits.record(resized.clone(), at(Duration::ZERO)),
        Some(new(&resized, 1))
    );
    for _ in 0..5 {
        assert_eq!(limits.record(resized.clone(), at(SECOND / 2)), None);
    }
    assert_eq!(limits.due(at(SECOND / 2)), None, "not so soon");
    assert_eq!(limits.due(at(SECOND)), Some((1, resized.message, 6)));
    assert_eq!(limits.due(at(30 * SECOND)), None);
    assert_eq!(limits.events.waiting().next(), None);
}

#[test]
fn lasting_repeats_are_counted_ever_more_rarely() {
    let mut limits = limits();
    let resized = message_of(1, "Resized", "cpu 1 to 2");
    let mut written = Vec::new();
    for second in 0..300 {
        let write = limits.record(resized.clone(), at(second * SECOND));
        written.extend(write.filter(|(.., count)| *count > 1).map(|_| second));
    }
    assert_eq!(written, [1, 3, 7, 15, 31, 63, 127, 191, 255]);
}

#[test]
fn the_first_event_of_a_reason_is_always_sent() {
    let mut limits = limits();
    for index in 0..100 {
        limits.record(message_of(1, "Resized", &index.to_string()), at(Duration::ZERO));
    }
    let refused = message_of(1, "Refused", "no room");
    assert_eq!(
        limits.record(refused.clone(), at(Duration::ZERO)),
        Some(new(&refused, 11))
    );
}

#[test]
fn a_flood_about_one_pod_becomes_a_count() {
    let mut limits = limits();
    let new =
        (0..1000).filter_map(|index| limits.record(message_of(1, "Killed", &index.to_string()), at(Duration::ZERO)));
    assert_eq!(new.count(), 10);
    let other = limits.record(message_of(2, "Resized", "x"), at(Duration::ZERO));
    assert_eq!(other, Some((11, "x".to_owned(), 1)));
    assert_eq!(limits.due(at(20 * SECOND)), Some((10, "999".to_owned(), 991)));
    assert_eq!(limits.events.take_held_back(), 0);
}

#[test]
fn a_flood_leaves_other_namespaces_their_events() {
    let mut limits = limits();
    let mut of = |namespace: &str, pod: u32| {
        let message = NamedEvent {
            subject: subject(namespace, pod),
            ..message_of(pod, "Resized", "x")
        };
        limits.record(message, at(Duration::ZERO)).is_some()
    };
    assert_eq!((0..200).filter(|pod| of("hostile", *pod)).count(), 43);
    assert!(of("shop", 1000), "the node has Events for another namespace");
}

#[test]
fn what_was_said_long_ago_is_said_anew() {
    let mut limits = limits();
    let resized = message_of(1, "Resized", "cpu 1 to 2");
    limits.record(resized.clone(), at(Duration::ZERO));
    let later = at(REMEMBERED + SECOND);
    assert_eq!(limits.record(resized.clone(), later), Some(new(&resized, 2)));
}

#[test]
fn a_flood_of_events_is_soon_forgotten() {
    let mut limits = limits();
    for pod in 0..1500 {
        limits.record(message_of(pod, "Resized", "x"), at(2 * pod * SECOND));
        assert!(limits.events.known.len() <= MANY, "after {pod} s");
    }
    assert!(limits.events.tickets > 1400);
}

proptest! {
    #[test]
    fn writes_are_few_and_everything_is_counted(
        said in proptest::collection::vec((0_u32..40, 0_usize..3, 0_u32..5, 0_u64..2000), 0..600)
    ) {
        const REASONS: [&str; 3] = ["Resized", "Refused", "Killed"];
        let mut limits = limits();
        let (mut now, mut writes, mut total) = (at(Duration::ZERO), 0_u32, 0_u64);
        let mut counts = BTreeMap::new();
        for (pod, reason, message, pause) in said {
            now += Duration::from_millis(pause);
            total += 1;
            let new = limits.record(message_of(pod, REASONS[reason], &message.to_string()), now);
            for (ticket, _, count) in new.into_iter().chain(limits.due(now)) {
                writes += 1;
                counts.insert(ticket, count);
            }
        }
        prop_assert!(writes <= 50 + 1 + u32::try_from((now - *START).as_secs()).unwrap() / 2);
        // What is left comes due sooner or later; then every message is in a count or was held back.
        for _ in 0..2000 {
            now += 64 * SECOND;
            if let Some((ticket, _, count)) = limits.due(now) {
                counts.insert(ticket, count);
            }
        }
        let counted: u64 = counts.values().sum();
        prop_assert_eq!(counted + limits.events.take_held_back(), total);
    }
}

#[test]
fn a_continued_event_gets_a_new_text() {
    let now = Instant::now();
    let mut limits = Limits::new(now);
    let lent = |message: &str, story: &str| NamedEvent {
        continues: Some(story.to_owned()),
        ..message_of(1, "TemporaryLimit", message)
    };
    let first = limits.record(lent("grows", "a"), now);
    assert_eq!(first, Some((1, "grows".to_owned(), 1)));
    assert_eq!(limits.record(lent("grows more", "a"), now), None);
    assert_eq!(limits.record(lent("ends", "a"), now), None);
    let other = limits.record(lent("grows", "b"), now);
    assert_eq!(other, Some((2, "grows".to_owned(), 1)));
    let elsewhere = NamedEvent {
        subject: subject("a", 2),
        ..lent("grows", "a")
    };
    assert_eq!(limits.record(elsewhere, now), Some((3, "grows".to_owned(), 1)));
    let due = limits.due(now + FIRST_CHANGE);
    assert_eq!(due, Some((1, "ends".to_owned(), 3)));
}

#[test]
fn a_repeated_message_waits_in_one_place() {
    let mut limits = EventLimits::new(0, 1);
    let mut rates = EventRates::new(*START);
    let resized = message_of(1, "Resized", "cpu 1 to 2");
    for _ in 0..300 {
        assert_eq!(limits.add(resized.clone(), *START), 0);
    }
    assert_eq!(
        limits.add(message_of(2, "Resized", "x"), *START),
        1,
        "the newest is lost"
    );
    let first = limits.next("a", &mut rates, *START).map(written);
    assert_eq!(first, Some(new(&resized, 1)));
    assert_eq!(limits.next("a", &mut rates, *START), None);
    let due = limits.next("a", &mut rates, at(SECOND)).map(written);
    assert_eq!(due, Some((1, resized.message, 300)));
}
