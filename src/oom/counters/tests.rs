use std::fs;

use super::*;

fn reading(name: &str, text: &str) -> Result<Option<Reading>> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(name);
    fs::write(&file, text).unwrap();
    read(&file)
}

fn read(file: &Path) -> Result<Option<Reading>> {
    Counter::open(file.to_owned())?.map_or(Ok(None), |counter| counter.read())
}

fn counted(name: &str, text: &str) -> (u64, u64) {
    let count = reading(name, text).unwrap().unwrap().count;
    (count.kills, count.groups)
}

#[test]
fn unknown_counters_are_ignored() {
    let events = "low 0\nhigh 1\nmax 2125\noom 97\noom_kill 3\noom_group_kill 1\nsock_throttled 5\n";
    assert_eq!(counted(EVENTS, events), (3, 1));
    assert_eq!(counted(EVENTS, ""), (0, 0));
    assert_eq!(
        counted(OOM_CONTROL, "oom_kill_disable 0\nunder_oom 1\noom_kill 4\n"),
        (4, 0)
    );
    let without_a_counter = reading(OOM_CONTROL, "oom_kill_disable 1\nunder_oom 0\n").unwrap_err();
    assert!(without_a_counter.to_string().contains("there is no oom_kill counter"));
}

#[test]
fn a_line_that_is_no_counter_is_named() {
    for expected in ["oom_kill", "oom_kill x", "oom_kill -1", ""] {
        for file in [EVENTS, OOM_CONTROL] {
            let refused = reading(file, &format!("low 0\n{expected}\n")).unwrap_err().to_string();
            assert!(refused.contains(&format!("unexpected line {expected:?},")), "{refused}");
        }
    }
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(counted(EVENTS, "oom_kill 3\n").0, 3);
    assert_eq!(counted(OOM_CONTROL, "oom_kill 4\n").0, 4);
    let error = reading(EVENTS, "nonsense\n").unwrap_err().to_string();
    assert!(
        error.contains("memory.events") && error.contains("\"nonsense\""),
        "{error}"
    );
    let gone = read(&dir.path().join("gone").join(EVENTS));
    assert_eq!(gone.unwrap(), None);
    let unreadable = read(dir.path()).unwrap_err().to_string();
    assert!(unreadable.contains("cannot be read"), "{unreadable}");
}
