//! What lists and lines do to what is known.

use std::sync::Arc;

use super::super::state::{Followed, WatchResult};
use super::{Thing, bookmark, line, thing, thing_in};
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::error::Problem;
use crate::kubernetes::object::{LARGEST_KEPT, Object};
use crate::kubernetes::splitter::{LARGEST_OBJECT, RawObject};

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
    let mut known = Followed::default();
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
fn a_list_replaces_what_was_known_and_keeps_what_did_not_change() {
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
fn an_object_that_cannot_be_used_keeps_its_last_good_state_and_hides_no_other() {
    let mut known = listed(&[thing("x", 1, 1), thing("y", 2, 200), thing("z", 3, 3)]);
    assert_eq!(sizes(&known), [("x", 1), ("z", 3)]);
    let broken = thing("x", 4, 1).replace("\"size\":1", "\"size\":\"large\"");
    assert!(news(&mut known, "MODIFIED", &broken));
    assert_eq!(sizes(&known), [("x", 1), ("z", 3)]);
    let why = problems(&known);
    assert_eq!(
        why[1],
        "a/y: size: at most 99; its last usable state stays, if there was one"
    );
    assert!(why[0].starts_with("a/x: size: invalid type"), "{why:?}");
    assert!(
        news(&mut known, "MODIFIED", &thing("x", 5, 1)),
        "to be usable again is news"
    );
    assert!(news(&mut known, "DELETED", &thing("y", 6, 200)));
    assert_eq!(problems(&known), Vec::<String>::new());
}

#[test]
fn a_bad_object_that_stays_bad_in_a_list_keeps_its_last_good_state() {
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
fn an_object_that_says_no_name_or_is_too_large_is_named_as_far_as_it_can_be_and_hides_no_other() {
    let mut known = listed(&[]);
    assert!(news(&mut known, "ADDED", "{}"));
    let beginning = line("ADDED", &thing("fat", 8, 1)).into_bytes();
    let heard = hear(&mut known, &RawObject::TooLarge(beginning)).unwrap();
    assert!(matches!(&heard, WatchResult::Change { news: true, .. }), "{heard:?}");
    assert!(news(&mut known, "ADDED", &thing("x", 9, 1)));
    let why = problems(&known);
    assert!(why[0].starts_with("/?: it has no name"), "{why:?}");
    let larger = format!("a/fat: larger than {LARGEST_OBJECT} bytes");
    assert!(why[1].starts_with(&larger), "{why:?}");
    assert_eq!(sizes(&known), [("x", 1)]);
    assert!(list(&mut known, &[thing("x", 9, 1)]));
    assert_eq!(problems(&known), Vec::<String>::new());
}

#[test]
fn a_namespace_fills_no_more_than_its_share_and_what_is_left_out_is_counted() {
    let many: Vec<_> = (0..10)
        .map(|number| thing_in("many", &format!("n{number}"), 1))
        .collect();
    let mut known = listed(&many);
    assert_eq!(sizes(&known).len(), 4);
    let why = |known: &Followed<Thing>| problems(known).remove(0);
    assert_eq!(
        why(&known),
        "many: 6 things are left out, for a namespace may have 4 of 1 KiB together"
    );
    // Other namespaces have shares of their own, and those that cannot be used count too.
    assert!(news(&mut known, "ADDED", &thing_in("other", "x", 1)));
    for number in 0..10 {
        hear(
            &mut known,
            &piece(&line("ADDED", &thing_in("bad", &format!("n{number}"), 500))),
        )
        .unwrap();
    }
    assert_eq!(problems(&known).len(), 2 + 4);

    assert!(
        !news(&mut known, "MODIFIED", &thing_in("many", "n9", 2)),
        "it has no place"
    );
    hear(&mut known, &piece(&line("DELETED", &thing_in("many", "n9", 1)))).unwrap();
    assert!(why(&known).starts_with("bad: 6 things") && problems(&known)[1].starts_with("many: 5 things"));
    assert!(!known.has_room, "none of those that have a place went");
    assert!(news(&mut known, "DELETED", &thing_in("many", "n0", 1)));
    assert!(known.has_room);
    list(&mut known, &many[1..9]);
    assert!(sizes(&known).len() == 4 && !known.has_room);
    // What goes makes room when the list has ended, for the list after it.
    list(&mut known, &many[..4]);
    assert!(why(&known).starts_with("many: 1 things") && known.has_room);
    list(&mut known, &many[..4]);
    assert!(problems(&known).is_empty() && !known.has_room);
}

#[test]
fn large_objects_fill_a_share_by_their_bytes() {
    let large = |name: &str, bytes: usize| thing_in(&"n".repeat(bytes), name, 1);
    let names: Vec<_> = (0..10).map(|number| large(&number.to_string(), 700)).collect();
    let known = listed(&names);
    assert!((1..=2).contains(&sizes(&known).len()), "{known:?}");
    let known = listed(&[large("x", LARGEST_KEPT)]);
    assert!(sizes(&known).is_empty() && problems(&known)[0].contains("at most 65536 are kept"));
}

#[test]
fn an_object_that_grows_beyond_the_share_keeps_its_last_state() {
    let mut known = listed(&[thing("x", 1, 1)]);
    let labels = |name: &str| format!(r#""annotations":{{}},"ownerReferences":[{{"name":"{name}"}}]"#);
    let grown = thing("x", 2, 2).replace("\"namespace\"", &format!("{},\"namespace\"", labels(&"o".repeat(3000))));
    assert!(news(&mut known, "MODIFIED", &grown));
    assert_eq!(sizes(&known), [("x", 1)]);
    assert!(problems(&known)[0].contains("does not fit"), "{:?}", problems(&known));
    assert!(news(&mut known, "MODIFIED", &thing("x", 3, 3)));
    assert!(sizes(&known) == [("x", 3)] && problems(&known).is_empty());
}
