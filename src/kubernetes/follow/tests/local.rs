//! Objects about local workloads come before others.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::super::state::Followed;
use crate::kubernetes::call::Kind;
use crate::kubernetes::kept::{KeptObject, ObjectMemory};
use crate::kubernetes::object::{Decoded, Object};
use crate::model::objects::{ObjectMeta, TargetRef};

thread_local! {
    /// How often an object was asked for its target.
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// An object about a workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Autoscaler {
    metadata: ObjectMeta,
    target: TargetRef,
}

impl Object for Autoscaler {
    const KINDS: &'static [Kind] = &[Kind::new("test", "v1", "autoscalers")];

    const MEMORY: u64 = 1 << 20;

    fn target(&self) -> Option<&TargetRef> {
        LOOKS.set(LOOKS.get() + 1);
        Some(&self.target)
    }
}

impl KeptObject for Autoscaler {
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A list with memory for about 60 objects, and with the local workload `web`.
fn followed() -> Followed<Autoscaler> {
    let mut known = Followed::new(ObjectMemory::new(60 * 800));
    known.set_local(&BTreeSet::from(["web".to_owned()]));
    known
}

fn store(known: &mut Followed<Autoscaler>, name: &str, target: &str) {
    store_of_kind(known, name, "Deployment", target);
}

fn store_of_kind(known: &mut Followed<Autoscaler>, name: &str, kind: &str, target: &str) {
    let text =
        format!(r#"{{"metadata":{{"name":"{name}","namespace":"a"}},"target":{{"kind":"{kind}","name":"{target}"}}}}"#);
    known.store(Decoded::parse(&text), true);
}

fn about(known: &Followed<Autoscaler>, target: &str) -> usize {
    known.objects().filter(|object| object.target.name == target).count()
}

#[test]
fn local_objects_replace_all_others() {
    let mut known = followed();
    for number in 0..100 {
        store(&mut known, &format!("m{number:03}"), "oth");
    }
    let all = about(&known, "oth");
    for number in 0..all / 2 {
        store(&mut known, &format!("z{number:03}"), "web");
    }
    // Before the place at which the search for others ended.
    known.remove("a/z000");
    store(&mut known, "a000", "oth");
    for number in 0..100 {
        store(&mut known, &format!("y{number:03}"), "web");
    }
    assert_eq!((about(&known, "web"), about(&known, "oth")), (all, 0));
}

#[test]
fn a_state_kept_for_want_of_room_is_replaced() {
    let mut known = followed();
    store(&mut known, "m", "oth");
    store_of_kind(&mut known, "m", &"D".repeat(60 * 800), "web");
    assert_eq!(about(&known, "oth"), 1, "there is no room for its new state");
    for number in 0..100 {
        store(&mut known, &format!("y{number:03}"), "web");
    }
    assert_eq!(about(&known, "oth"), 0);
}

#[test]
fn objects_without_room_cost_no_search_each() {
    let mut known = followed();
    LOOKS.set(0);
    for number in 0..1000 {
        store(&mut known, &number.to_string(), "web");
    }
    assert!((20..100).contains(&about(&known, "web")));
    assert!(LOOKS.get() < 2 * 1000, "{} looks", LOOKS.get());
}
