//! What lists and lines do to what is known.

use std::sync::Arc;

use super::super::state::{Followed, Heard};
use super::{Thing, bookmark, line, list, thing};

fn sizes(known: &Followed<Thing>) -> Vec<(&str, u32)> {
    known
        .objects
        .iter()
        .map(|(key, thing)| (key.name.as_str(), thing.size))
        .collect()
}

fn listed(things: &[String]) -> Followed<Thing> {
    let mut known = Followed::default();
    assert_eq!(known.list(list(7, things).as_bytes()).unwrap(), ("7".to_owned(), true));
    known
}

/// Whether a line of the watch was news.
fn news(known: &mut Followed<Thing>, kind: &str, object: &str) -> bool {
    match known.hear(line(kind, object).as_bytes()) {
        Heard::Change { news, .. } => news,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_replaces_what_was_known_and_keeps_what_did_not_change() {
    let mut known = listed(&[thing("x", 1, 1), thing("y", 2, 2)]);
    let x = Arc::clone(known.objects.values().next().unwrap());
    let again = list(9, &[thing("x", 8, 1), thing("z", 9, 3)]);
    assert!(known.list(again.as_bytes()).unwrap().1);
    assert_eq!(sizes(&known), [("x", 1), ("z", 3)]);
    assert!(Arc::ptr_eq(&x, known.objects.values().next().unwrap()));
    assert!(!known.list(again.as_bytes()).unwrap().1, "the same list is no news");
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
    assert!(known.objects.is_empty());
    let heard = known.hear(bookmark(15).as_bytes());
    assert!(
        matches!(&heard, Heard::Bookmark(version) if version == "15"),
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
    let why: Vec<_> = known
        .unusable
        .iter()
        .map(|(key, why)| format!("{key}: {why}"))
        .collect();
    assert_eq!(why[1], "a/y: size: at most 99");
    assert!(why[0].starts_with("a/x: size: invalid type"), "{why:?}");
    assert!(
        news(&mut known, "MODIFIED", &thing("x", 5, 1)),
        "to be usable again is news"
    );
    assert!(news(&mut known, "DELETED", &thing("y", 6, 200)));
    assert!(known.unusable.is_empty());
}

#[test]
fn a_bad_object_that_stays_bad_in_a_list_keeps_its_last_good_state() {
    let mut known = listed(&[thing("x", 1, 1)]);
    known.list(list(9, &[thing("x", 8, 500)]).as_bytes()).unwrap();
    assert_eq!(sizes(&known), [("x", 1)]);
    assert_eq!(known.unusable.len(), 1);
}

#[test]
fn what_makes_no_sense_is_called_so() {
    let mut known = listed(&[]);
    for text in [
        "",
        "{",
        "[]",
        r#"{"type":"ADDED","object":{}}"#,
        r#"{"type":"SANG","object":{}}"#,
    ] {
        let heard = known.hear(text.as_bytes());
        assert!(matches!(heard, Heard::Nonsense(_)), "{text}: {heard:?}");
    }
    assert!(known.list(b"<html>").is_err());
}
