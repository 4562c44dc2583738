use std::fs;

use proptest::prelude::*;

use super::*;

fn kills(count: u64) -> Change {
    NonZeroU64::new(count).map_or(Change::None, Change::Kills)
}

#[test]
fn unknown_keys_are_ignored_and_missing_ones_are_zero() {
    let events =
        MemoryEvents::parse("low 0\nhigh 1\nmax 2125\noom 97\noom_kill 3\noom_group_kill 1\nsock_throttled 5\n")
            .unwrap();
    assert_eq!(
        (
            events.high,
            events.max,
            events.oom,
            events.oom_kill,
            events.oom_group_kill
        ),
        (1, 2125, 97, 3, 1)
    );
    assert_eq!(MemoryEvents::parse("").unwrap(), MemoryEvents::default());
    let control = OomControl::parse("oom_kill_disable 0\nunder_oom 1\noom_kill 4\n").unwrap();
    assert_eq!(
        (control.oom_kill_disable, control.under_oom, control.oom_kill),
        (false, true, Some(4))
    );
    assert_eq!(
        OomControl::parse("oom_kill_disable 1\nunder_oom 0\n").unwrap().oom_kill,
        None
    );
}

#[test]
fn a_line_that_is_no_counter_is_named() {
    for line in ["oom_kill", "oom_kill x", "oom_kill -1", ""] {
        let expected = UnexpectedLine(line.to_owned());
        assert_eq!(MemoryEvents::parse(&format!("low 0\n{line}\n")), Err(expected.clone()));
        assert_eq!(OomControl::parse(&format!("under_oom 0\n{line}\n")), Err(expected));
    }
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, text: &str| {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        Reading::of(&file)
    };
    assert_eq!(of(EVENTS, "oom_kill 3\n").unwrap().kills, 3);
    assert_eq!(of(OOM_CONTROL, "oom_kill 4\n").unwrap().kills, 4);
    assert!(matches!(
        of(OOM_CONTROL, "under_oom 0\n"),
        Err(CounterError::NoCounter { .. })
    ));
    let error = of(EVENTS, "nonsense\n").unwrap_err().to_string();
    assert!(
        error.contains("memory.events") && error.contains("\"nonsense\""),
        "{error}"
    );
    let gone = Reading::of(&dir.path().join("gone").join(EVENTS));
    assert!(matches!(gone, Err(CounterError::Gone { .. })));
    assert!(matches!(Reading::of(dir.path()), Err(CounterError::Read { .. })));
}

#[test]
fn kills_before_the_first_look_are_told_apart_from_new_ones() {
    let reading = Reading { inode: 1, kills: 2 };
    assert_eq!(Baseline::first(reading, FirstSight::Made).1, kills(2));
    let (baseline, change) = Baseline::first(reading, FirstSight::Found);
    assert_eq!(change, Change::PreExisting(NonZeroU64::new(2).unwrap()));
    assert_eq!(baseline.next(reading).1, Change::None);
}

#[test]
fn another_cgroup_at_the_same_path_starts_anew() {
    let baseline = Baseline::restored(Reading { inode: 1, kills: 5 });
    assert_eq!(baseline.next(Reading { inode: 2, kills: 7 }).1, kills(7));
    assert_eq!(
        baseline.next(Reading { inode: 1, kills: 2 }).1,
        kills(2),
        "an inode may be used again"
    );
    assert_eq!(baseline.next(Reading { inode: 1, kills: 7 }).1, kills(2));
}

proptest! {
    #[test]
    fn however_often_a_counter_is_read_every_kill_counts_once(steps in proptest::collection::vec((0..4_u64, any::<bool>()), 0..50)) {
        let (mut baseline, change) = Baseline::first(Reading { inode: 1, kills: 0 }, FirstSight::Made);
        prop_assert_eq!(change, Change::None);
        let (mut now, mut told, mut happened) = (baseline.reading(), 0, 0);
        for (new_kills, recreated) in steps {
            if recreated {
                now = Reading { inode: now.inode + 1, kills: 0 };
            }
            now.kills += new_kills;
            happened += new_kills;
            let (next, change) = baseline.next(now);
            if let Change::Kills(count) = change {
                told += count.get();
            }
            baseline = next;
        }
        prop_assert_eq!(told, happened);
    }
}
