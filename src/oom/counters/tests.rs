use std::fs;

use super::*;

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
