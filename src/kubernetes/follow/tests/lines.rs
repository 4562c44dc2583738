//! What lists and lines do to what is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::SharedList;
use super::super::state::{Followed, WatchResult};
use super::{Thing, bookmark, line, nothing, thing, thing_in};
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::error::Problem;
use crate::kubernetes::kept::ObjectMemory;
use crate::kubernetes::object::Object;
use crate::kubernetes::splitter::{LARGEST_OBJECT, RawObject};
use crate::observe::log::LogFormat;
use crate::observe::log::tests::logged;

fn piece(text: &str) -> RawObject {
    RawObject::Object(text.as_bytes().to_vec())
}

fn sizes(known: &Followed<Thing>) -> Vec<(&str, u32)> {
    known
        .objects()
        .map(|thing| (thing.metadata.name.as_str(), thing.size))
        .collect()
}

/// Whether a list was news.
fn list(known: &mut Followed<Thing>, things: &[String]) -> bool {
    known.begin_list();
    let mut news = false;
    let call = Call::new(Verb::List, Thing::KINDS[0]);
    for thing in things {
        let applied = known.apply(&piece(thing), &call).unwrap();
        news |= matches!(applied, WatchResult::Change { news: true, .. });
    }
    known.end_list() || news
}

fn listed(things: &[String]) -> Followed<Thing> {
    let mut known = nothing();
    assert!(list(&mut known, things));
    known
}

fn problems(known: &Followed<Thing>) -> Vec<String> {
    known.problems().collect()
}

fn hear(known: &mut Followed<Thing>, line: &RawObject) -> Result<WatchResult, Problem> {
    known.apply(line, &Call::new(Verb::Watch, Thing::KINDS[0]))
}

/// Whether a line of the watch was news.
fn news(known: &mut Followed<Thing>, kind: &str, object: &str) -> bool {
    match hear(known, &piece(&line(kind, object))).unwrap() {
        WatchResult::Change { news, .. } => news,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_replaces_what_was_known() {
    let mut known = listed(&[thing("x", 1, 1), thing("y", 2, 2)]);
    let x = Arc::clone(known.objects().next().unwrap());
    let again = [thing("x", 8, 1), thing("z", 9, 3)];
    assert!(list(&mut known, &again));
    assert_eq!(sizes(&known), [("x", 1), ("z", 3)]);
    assert!(Arc::ptr_eq(&x, known.objects().next().unwrap()));
    assert!(!list(&mut known, &again), "the same list is no news");
}

#[test]
fn lines_add_change_and_remove() {
    let mut known = listed(&[]);
    assert!(news(&mut known, "ADDED", &thing("x", 8, 1)));
    assert!(news(&mut known, "MODIFIED", &thing("x", 9, 2)));
    assert!(
        !news(&mut known, "MODIFIED", &thing("x", 10, 2)),
        "a new version alone is no news"
    );
    assert_eq!(sizes(&known), [("x", 2)]);
    assert!(news(&mut known, "DELETED", &thing("x", 11, 2)));
    assert_eq!(sizes(&known), []);
    let heard = hear(&mut known, &piece(&bookmark(15))).unwrap();
    assert!(
        matches!(&heard, WatchResult::Bookmark(version) if version == "15"),
        "{heard:?}"
    );
}

#[test]
fn an_unusable_object_hides_no_other() {
    let mut known = listed(&[thing("x", 1, 1), thing("y", 2, 200), thing("z", 3, 3)]);
    assert_eq!(sizes(&known), [("x", 1), ("z", 3)]);
    let broken = thing("x", 4, 1).replace("\"size\":1", "\"size\":\"large\"");
    assert!(news(&mut known, "MODIFIED", &broken));
    assert_eq!(sizes(&known), [("x", 1), ("z", 3)]);
    let why = problems(&known);
    assert_eq!(
        why[1],
        "things a/y: size: at most 99; its last usable version stays in use, if there was one"
    );
    assert!(why[0].starts_with("things a/x: size: invalid type"), "{why:?}");
    assert!(
        news(&mut known, "MODIFIED", &thing("x", 5, 1)),
        "to be usable again is news"
    );
    assert!(news(&mut known, "DELETED", &thing("y", 6, 200)));
    assert_eq!(problems(&known), Vec::<String>::new());
}

#[test]
fn a_bad_object_keeps_its_last_good_state() {
    let mut known = listed(&[thing("x", 1, 1)]);
    list(&mut known, &[thing("x", 8, 500)]);
    assert_eq!(sizes(&known), [("x", 1)]);
    assert_eq!(problems(&known).len(), 1);
}

#[test]
fn what_makes_no_sense_is_called_so() {
    let mut known = listed(&[]);
    for text in ["", "{", "[]", r#"{"type":"SANG","object":{}}"#] {
        let heard = hear(&mut known, &piece(text));
        assert!(matches!(heard, Err(Problem::Unreadable(_))), "{text}: {heard:?}");
    }
    assert!(hear(&mut known, &RawObject::Envelope(b"<html>".to_vec())).is_err());
}

#[test]
fn a_nameless_or_large_object_hides_no_other() {
    let mut known = listed(&[]);
    assert!(news(&mut known, "ADDED", "{}"));
    let beginning = line("ADDED", &thing("fat", 8, 1)).into_bytes();
    let heard = hear(&mut known, &RawObject::TooLarge(beginning)).unwrap();
    assert!(matches!(&heard, WatchResult::Change { news: true, .. }), "{heard:?}");
    assert!(news(&mut known, "ADDED", &thing("x", 9, 1)));
    let why = problems(&known);
    assert!(why[0].starts_with("things /?: it has no name"), "{why:?}");
    let larger = format!("things a/fat: larger than {LARGEST_OBJECT} bytes");
    assert!(why[1].starts_with(&larger), "{why:?}");
    assert_eq!(sizes(&known), [("x", 1)]);
    assert!(list(&mut known, &[thing("x", 9, 1)]));
    assert_eq!(problems(&known), Vec::<String>::new());
}

#[test]
fn a_large_object_is_gone_once_deleted() {
    let mut known = listed(&[thing("x", 1, 1), thing("y", 2, 2)]);
    let large = |kind: &str| RawObject::TooLarge(line(kind, &thing("x", 8, 1)).into_bytes());
    hear(&mut known, &large("MODIFIED")).unwrap();
    assert_eq!(sizes(&known), [("x", 1), ("y", 2)]);
    hear(&mut known, &large("DELETED")).unwrap();
    assert_eq!(sizes(&known), [("y", 2)]);
    assert_eq!(problems(&known), Vec::<String>::new());
}

/// A list with memory for about this many things.
fn with_room_for(things: u64) -> Followed<Thing> {
    Followed::new(ObjectMemory::new(things * 800))
}

#[test]
fn objects_without_room_are_listed_again_later() {
    let many: Vec<_> = (0..10)
        .map(|number| thing_in("many", &format!("n{number}"), 1))
        .collect();
    let mut known = with_room_for(8);
    list(&mut known, &many);
    let kept = sizes(&known).len();
    assert!((3..=9).contains(&kept), "{kept}");
    let why = problems(&known).remove(0);
    let named = format!("many: things: n{kept} and {} more are left out", 9 - kept);
    assert!(why.starts_with(&named), "{why}");
    assert!(!known.must_list_again());
    assert!(
        !news(&mut known, "MODIFIED", &thing_in("many", "n9", 2)),
        "it has no place"
    );
    hear(&mut known, &piece(&line("DELETED", &thing_in("many", "n9", 1)))).unwrap();
    assert!(!known.must_list_again(), "none of those that have a place went");
    assert!(news(&mut known, "DELETED", &thing_in("many", "n0", 1)));
    assert!(known.must_list_again());
    list(&mut known, &many[1..9]);
    assert!(sizes(&known).len() == kept && !known.must_list_again());
    list(&mut known, &many[..kept]);
    list(&mut known, &many[..kept]);
    assert!(problems(&known).is_empty() && !known.must_list_again());
}

#[test]
fn a_namespace_leaves_room_for_others_objects() {
    let memory = ObjectMemory::new(64 << 10);
    memory.expect(["greedy".to_owned(), "honest".to_owned()]);
    let (mut greedy, mut honest) = (Followed::new(memory.clone()), Followed::new(memory.clone()));
    let many: Vec<_> = (0..1000)
        .map(|number| thing_in("greedy", &number.to_string(), 1))
        .collect();
    list(&mut greedy, &many);
    assert!(sizes(&greedy).len() < 100 && problems(&greedy)[0].contains("more are left out"));
    let few: Vec<_> = (0..8)
        .map(|number| thing_in("honest", &number.to_string(), 1))
        .collect();
    list(&mut honest, &few);
    assert!(sizes(&honest).len() == 8 && problems(&honest).is_empty());
    drop(greedy);
    list(&mut honest, &many);
    assert!(
        sizes(&honest).len() > 40,
        "what a list held is free once nobody follows it"
    );
}

#[test]
fn an_object_beyond_its_share_keeps_its_state() {
    let mut known = with_room_for(2);
    list(&mut known, &[thing("x", 1, 1)]);
    let labels = |name: &str| format!(r#""annotations":{{}},"ownerReferences":[{{"name":"{name}"}}]"#);
    let grown = thing("x", 2, 2).replace("\"namespace\"", &format!("{},\"namespace\"", labels(&"o".repeat(3000))));
    assert!(news(&mut known, "MODIFIED", &grown));
    assert_eq!(sizes(&known), [("x", 1)]);
    assert!(problems(&known)[0].contains("does not fit"), "{:?}", problems(&known));
    assert!(news(&mut known, "MODIFIED", &thing("x", 3, 3)));
    assert!(sizes(&known) == [("x", 3)] && problems(&known).is_empty());
}

#[test]
fn what_a_broken_list_changed_is_notified() {
    let shared = SharedList::<Thing>::new("things".to_owned(), None, ObjectMemory::new(8 * 800), <_>::default());
    let told = || Vec::from_iter(shared.changes.send_replace(BTreeSet::new()));
    let call = Call::new(Verb::List, Thing::KINDS[0]);
    let hear = |text: &str| shared.with(|known| known.apply(&piece(text), &call).unwrap());
    shared.trouble("reset", false, false);
    shared.with(Followed::begin_list);
    hear(&thing_in("shop", "x", 1));
    shared.trouble("reset", false, false);
    assert_eq!(told(), ["shop"], "its end has not come");
    shared.publish(false);
    assert_eq!(told(), Vec::<String>::new());
    for number in 0..10 {
        hear(&thing_in("many", &format!("n{number}"), 1));
    }
    shared.publish(false);
    assert_eq!(told(), ["many"]);
    let problem = || shared.with(|known| known.problems().next());
    let named = problem();
    assert!(named.is_some());
    let gone = line("DELETED", &thing_in("many", "n9", 1));
    let watch = Call::new(Verb::Watch, Thing::KINDS[0]);
    shared.with(|known| known.apply(&piece(&gone), &watch).unwrap());
    shared.publish(false);
    assert_ne!(problem(), named);
    assert_eq!(told(), ["many"], "fewer are left out");
}

#[test]
fn a_connection_made_again_is_not_in_the_log() {
    let shared = SharedList::<Thing>::new("things".to_owned(), None, ObjectMemory::new(1 << 20), <_>::default());
    let lines = |troubles: &[(&str, bool)]| {
        let text = logged(LogFormat::Text, "info", |_| {
            for (trouble, for_log) in troubles {
                shared.trouble(trouble, *for_log, false);
            }
            shared.publish(false);
        });
        text.lines().count()
    };
    assert_eq!(lines(&[("reset", false)]), 0);
    let warning_and_end = 2;
    assert_eq!(
        lines(&[("reset", false), ("reset", true), ("reset", true)]),
        warning_and_end
    );
    assert_eq!(lines(&[("refused", true), ("reset", true)]), 1 + warning_and_end);
    assert_eq!(lines(&[]), 0);
}
