//! What was undone, and how long it is left alone.

use jiff::Timestamp;

use super::*;
use crate::model::{CriResources, MemoryLimit, PodTree, PodValues, Setting, Settings, Target};
use crate::plan::shrink::{Holds, Regrets, keep};

fn app() -> Target {
    Target::Container("app".to_owned())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

const fn limit(mebibytes: u64) -> MemoryLimit {
    MemoryLimit::Bytes(mib(mebibytes).get())
}

/// A pod of two containers with these limits; the pod's is their sum.
fn pod(app: u64, side: u64) -> PodValues {
    let of = |mebibytes| Settings::from_iter([Setting::MemoryMax(limit(mebibytes))]);
    let spec = |mebibytes: u64| CriResources {
        memory_limit_in_bytes: Some(i64::try_from(mebibytes << 20).unwrap()),
        ..CriResources::default()
    };
    PodValues {
        tree: PodTree {
            pod: of(app + side),
            containers: [("app".to_owned(), of(app)), ("side".to_owned(), of(side))].into(),
        },
        specs: [("app".to_owned(), spec(app)), ("side".to_owned(), spec(side))].into(),
    }
}

#[test]
fn what_was_undone_is_left_alone_for_longer_each_time_until_it_goes_well() {
    let mut regrets = Regrets::default();
    let mut waits = Vec::new();
    let mut now = at(0);
    for _ in 0..9 {
        let until = regrets.note(&app(), limit(200), "it hurt", now);
        waits.push(until.as_second() - now.as_second());
        assert_eq!(regrets.holds(now), Holds::from([(app(), limit(200))]));
        assert_eq!(regrets.next(now).unwrap().why, "it hurt");
        assert!(regrets.holds(until).is_empty() && regrets.next(until).is_none());
        now = until;
    }
    assert_eq!(waits, [120, 240, 480, 960, 1920, 3840, 7680, 14_400, 14_400]);
    regrets.forgive(&app());
    assert!(regrets.is_empty());
    assert_eq!(regrets.note(&app(), limit(200), "again", at(0)), at(120));
}

#[test]
fn a_clock_that_was_set_back_leaves_nothing_alone_for_as_long_as_it_was_wrong() {
    let mut regrets = Regrets::default();
    let year = 365 * 24 * 3600;
    regrets.note(&app(), limit(200), "it hurt", at(year));
    assert!(regrets.holds(at(0)).is_empty() && regrets.next(at(0)).is_none());
    assert_eq!(regrets.holds(at(year - 3600)).len(), 1, "a little is no reason");
    let until = regrets.note(&app(), limit(200), "it hurt", at(0));
    assert_eq!(until, at(240), "how often it happened is still known");
}

#[test]
fn it_is_remembered_over_a_restart() {
    let mut regrets = Regrets::default();
    regrets.note(&app(), limit(200), "it hurt", at(0));
    regrets.note(&Target::Pod, MemoryLimit::Max, "it hurt", at(0));
    let text = serde_json::to_string(&regrets).unwrap();
    let read: Regrets = serde_json::from_str(&text).unwrap();
    assert_eq!(read, regrets, "{text}");
    assert_eq!(
        read.holds(at(1)),
        Holds::from([(app(), limit(200)), (Target::Pod, MemoryLimit::Max)])
    );
}

#[test]
fn a_limit_that_is_kept_is_kept_at_every_level_and_in_the_runtime() {
    let mut wanted = pod(100, 50);
    keep(
        &Holds::from([(app(), limit(180)), (Target::Pod, limit(200))]),
        &mut wanted,
    );
    assert_eq!(
        wanted.tree,
        PodTree {
            pod: pod(180, 50).tree.pod,
            ..pod(180, 50).tree
        }
    );
    assert_eq!(wanted.specs, pod(180, 50).specs);
}

#[test]
fn what_grows_anyway_is_not_held_back() {
    let mut wanted = pod(300, 50);
    keep(
        &Holds::from([(app(), limit(180)), (Target::Pod, limit(200))]),
        &mut wanted,
    );
    assert_eq!(wanted, pod(300, 50));
    keep(&Holds::default(), &mut wanted);
    assert_eq!(wanted, pod(300, 50));
}

#[test]
fn no_limit_is_kept_as_no_limit() {
    let mut wanted = pod(100, 50);
    keep(&Holds::from([(app(), MemoryLimit::Max)]), &mut wanted);
    assert_eq!(wanted.tree.pod.memory_limit(), Some(MemoryLimit::Max));
    assert_eq!(wanted.tree.containers["app"].memory_limit(), Some(MemoryLimit::Max));
    assert_eq!(wanted.specs["app"].memory_limit_in_bytes, Some(-1));
    assert_eq!(wanted.specs["side"], pod(100, 50).specs["side"]);
}
