//! Promise: an unmodified VPA recommender learns of a kill from the one Event that vscaled writes for it, once, and
//! of no other kill. Its target then rises above the amount that was not enough.
//!
//! The model of the recommender follows its source. `tests/data/recommender` has Events of vscaled from a real API
//! server.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use vscaled::oom::{HitLimit, Level, Role};
use vscaled::report::events::{ContainerFacts, VpaEvents, VpaWindows};
use vscaled::report::log::Pending;

use crate::reports::station::kill;
use crate::support::recommender::{ContainerId, OomInfo, Recommender, parse};

const LIMIT: u64 = 64 << 20;
const RAN_ON: ContainerFacts = ContainerFacts {
    regular: true,
    vpa: true,
    pinned: false,
    survived: Some(true),
};

fn app() -> ContainerId {
    ("shop".to_owned(), "web".to_owned(), "app".to_owned())
}

fn at(minute: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap() + SignedDuration::from_mins(minute)
}

/// A recorded list of Events.
fn recorded(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/recommender")
        .join(name);
    let mut list: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    serde_json::from_value(list["items"].take()).unwrap()
}

/// The Event that reports this kill to the recommender, as the API server stores it; `None` if vscaled writes none.
fn event_of(
    events: &mut VpaEvents,
    number: u64,
    level: Level,
    container_limit: Option<HitLimit>,
    now: Timestamp,
) -> Option<Value> {
    let mut kill = kill(number);
    (kill.facts.level, kill.facts.container_limit) = (level, container_limit);
    let pending = Pending {
        number,
        report: kill.into(),
    };
    let planned = events.decide(&pending, RAN_ON, now).ok()?;
    let mut event = planned.event.body("node-1");
    event["metadata"]["creationTimestamp"] = Value::from(now.to_string());
    Some(event)
}

fn own_limit() -> HitLimit {
    HitLimit {
        limit_bytes: Some(LIMIT),
        usage_bytes: Some(LIMIT - 4096),
        ..HitLimit::default()
    }
}

#[test]
fn recorded_events_are_read_as_one_kill_for_each_that_is_for_the_recommender() {
    for (name, limit) in [
        ("pod-of-one-container.json", 128 << 20),
        ("container-limit.json", 128 << 20),
    ] {
        let events = recorded(name);
        let for_people = events.iter().filter(|event| event["reason"] == "OOMKilled").count();
        assert!(for_people > 0 && events.len() > for_people, "{name}");
        let kills: Vec<OomInfo> = events.iter().flat_map(parse).collect();
        let container = ("test".to_owned(), "web-5c4f-x".to_owned(), "app".to_owned());
        assert_eq!(kills.len(), 1, "{name}: {kills:?}");
        assert_eq!((&kills[0].container, kills[0].bytes), (&container, limit), "{name}");
        let mut recommender = Recommender::knowing(std::slice::from_ref(&container));
        recommender.watch_begins(&events);
        assert_eq!(recommender.containers[&container].oom, limit + (100 << 20), "{name}");
    }
}

#[test]
fn a_kill_in_a_pod_of_one_container_raises_its_sample_and_one_for_others_sake_does_not() {
    let mut events = VpaEvents::new(VpaWindows::default(), Vec::new());
    let mut recommender = Recommender::knowing(&[app()]);
    recommender.measured(&app(), at(0), 36 << 20);
    assert_eq!(
        event_of(&mut events, 1, Level::Pod, None, at(1)),
        None,
        "somebody else's doing"
    );
    let event = event_of(&mut events, 2, Level::Pod, Some(own_limit()), at(2)).unwrap();
    recommender.watched("ADDED", &event);
    let sample = recommender.containers[&app()].oom;
    assert_eq!(sample, LIMIT + (100 << 20));
    assert_eq!(
        recommender.told,
        [OomInfo {
            container: app(),
            at: at(2),
            bytes: LIMIT
        }]
    );
}

#[test]
fn the_same_kill_told_again_and_the_same_events_watched_again_raise_nothing() {
    let mut events = VpaEvents::new(VpaWindows::default(), Vec::new());
    let mut again = VpaEvents::new(VpaWindows::default(), Vec::new());
    let event = event_of(&mut events, 1, Level::Container, None, at(0)).unwrap();
    let name = |event: &Value| event["metadata"]["name"].clone();
    // An agent that ended before it recorded the delivery: the API server already has an Event of that name.
    assert_eq!(
        name(&event),
        name(&event_of(&mut again, 1, Level::Container, None, at(0)).unwrap())
    );
    let mut recommender = Recommender::knowing(&[app()]);
    recommender.watched("ADDED", &event);
    let before = recommender.containers.clone();
    // The watch restarts after a break and sends everything that the API server still has.
    recommender.watch_begins(&[event]);
    assert_eq!(recommender.containers, before);
}

#[test]
fn each_window_has_an_event_of_its_own_because_changes_of_one_are_not_read() {
    let mut events = VpaEvents::new(VpaWindows::default(), Vec::new());
    let mut recommender = Recommender::knowing(&[app()]);
    let mut made = Vec::new();
    for minute in 0..60 {
        let number = u64::try_from(minute).unwrap() + 1;
        made.extend(event_of(&mut events, number, Level::Container, None, at(minute)));
    }
    assert_eq!(made.len(), 6, "one in ten minutes");
    let mut names: Vec<_> = made.iter().map(|event| event["metadata"]["name"].to_string()).collect();
    names.dedup();
    assert_eq!(names.len(), made.len());
    for event in &made {
        recommender.watched("MODIFIED", event);
    }
    assert_eq!(recommender.told, []);
    made.iter().for_each(|event| recommender.watched("ADDED", event));
    assert_eq!(recommender.told.len(), 6);
    assert_eq!(
        recommender.containers[&app()].oom,
        LIMIT + (100 << 20),
        "six equal kills in a window are one sample"
    );
}

#[test]
fn an_event_counts_by_the_api_servers_time_so_that_a_late_one_is_not_too_old() {
    let mut events = VpaEvents::new(VpaWindows::default(), Vec::new());
    let mut recommender = Recommender::knowing(&[app()]);
    recommender.measured(&app(), at(0), LIMIT / 2);
    // The API server was unavailable for two days. The kill was at the beginning, and the agent writes the Event at
    // the end.
    let two_days = 2 * 24 * 60;
    recommender.measured(&app(), at(two_days), LIMIT / 2);
    let mut late = event_of(&mut events, 1, Level::Container, None, at(two_days)).unwrap();
    recommender.watched("ADDED", &late);
    assert_eq!(recommender.containers[&app()].oom, LIMIT + (100 << 20));
    // With the time of the kill, the recommender would have dropped the Event.
    let mut strict = Recommender::knowing(&[app()]);
    strict.measured(&app(), at(two_days), LIMIT / 2);
    late["metadata"]["creationTimestamp"] = json!(at(0).to_string());
    strict.watched("ADDED", &late);
    assert_eq!(strict.containers[&app()].oom, 0);
}

#[test]
fn what_ends_a_container_is_left_to_its_status() {
    let mut events = VpaEvents::new(VpaWindows::default(), Vec::new());
    let mut main = kill(1);
    main.victim.as_mut().unwrap().set_role(Role::Main);
    let pending = Pending {
        number: 1,
        report: main.into(),
    };
    assert!(events.decide(&pending, RAN_ON, at(0)).is_err());
}
