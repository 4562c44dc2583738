//! What was undone, and how long it is left alone.

use jiff::Timestamp;

use super::*;
use crate::model::{MemoryLimit, Target};
use crate::plan::shrink::{FailedShrinks, Holds};

fn app() -> Target {
    Target::Container("app".into())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

const fn limit(mebibytes: u64) -> MemoryLimit {
    MemoryLimit::Bytes(mib(mebibytes).get())
}

#[test]
fn undone_shrinks_wait_ever_longer() {
    let mut regrets = FailedShrinks::default();
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
    regrets.forgive(&app(), limit(200));
    assert!(
        regrets.has_failed(),
        "it came down to the kept limit, and was not tried again"
    );
    regrets.forgive(&app(), limit(100));
    assert!(regrets.is_empty());
    assert_eq!(regrets.note(&app(), limit(200), "again", at(0)), at(120));
}

#[test]
fn a_limit_above_an_undone_one_waits() {
    let mut regrets = FailedShrinks::default();
    regrets.note(&app(), limit(200), "it hurt", at(0));
    // A recommendation raised the limit to 400 meanwhile, and the next one lowers it.
    regrets.put_off(&[(app(), limit(400))], at(10));
    assert!(regrets.waits());
    for seconds in [11, 30_000] {
        let holds = Holds::from([(app(), limit(400))]);
        assert_eq!(regrets.holds(at(seconds)), holds, "no time ends a wait");
    }
    regrets.end_waiting();
    assert_eq!(
        regrets.holds(at(12)),
        Holds::from([(app(), limit(200))]),
        "the pause goes on"
    );
    assert_eq!(
        regrets.note(&app(), limit(200), "again", at(120)),
        at(360),
        "the second time"
    );
}

#[test]
fn the_higher_of_two_kept_limits_counts() {
    let mut regrets = FailedShrinks::default();
    regrets.note(&app(), limit(200), "it hurt", at(0));
    regrets.put_off(&[(app(), limit(150))], at(10));
    assert_eq!(regrets.holds(at(11)), Holds::from([(app(), limit(200))]));
    let waiting = [app(), Target::Pod].map(|target| regrets.put_off_limit(&target));
    assert_eq!(waiting, [Some(150 << 20), None]);
    regrets.forgive(&app(), limit(100));
    assert!(regrets.waits() && !regrets.has_failed(), "it still waits for its turn");
    regrets.note(&Target::Pod, limit(300), "later", at(20));
    regrets.note(&app(), limit(200), "earlier", at(10));
    assert_eq!(regrets.next(at(21)).unwrap().why, "earlier");
    regrets.forget(&app());
    assert_eq!(regrets.holds(at(21)), Holds::from([(Target::Pod, limit(300))]));
}

#[test]
fn a_clock_set_back_ends_pauses() {
    let mut regrets = FailedShrinks::default();
    let year = 365 * 24 * 3600;
    regrets.note(&app(), limit(200), "it hurt", at(year));
    assert!(regrets.holds(at(0)).is_empty() && regrets.next(at(0)).is_none());
    assert_eq!(regrets.holds(at(year - 3600)).len(), 1, "a little is no reason");
    let until = regrets.note(&app(), limit(200), "it hurt", at(0));
    assert_eq!(until, at(240), "how often it happened is still known");
}

#[test]
fn it_is_remembered_over_a_restart() {
    let mut regrets = FailedShrinks::default();
    regrets.note(&app(), limit(200), "it hurt", at(0));
    regrets.note(&Target::Pod, MemoryLimit::Max, "it hurt", at(0));
    let text = serde_json::to_string(&regrets).unwrap();
    let read: FailedShrinks = serde_json::from_str(&text).unwrap();
    assert_eq!(read, regrets, "{text}");
    assert_eq!(
        read.holds(at(1)),
        Holds::from([(app(), limit(200)), (Target::Pod, MemoryLimit::Max)])
    );
}
