//! The ways in which a demo ends early.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_signal_at_any_moment_removes_everything() {
    for (line, signal) in [
        ("A pod of three", Signal::SIGINT),
        ("CONTAINER", Signal::SIGTERM),
        ("vscaled starts", Signal::SIGINT),
        ("A recommendation arrives", Signal::SIGHUP),
        ("9 steps", Signal::SIGTERM),
        ("Something else writes", Signal::SIGINT),
    ] {
        let mut demo = Demo::start(&[]);
        demo.read_to(line);
        demo.send(signal);
        let ended = demo.end();
        let expected = (Some(1), format!("demo: ended by {signal}\n"));
        assert_eq!(
            (ended.status.code(), ended.errors.clone()),
            expected,
            "{line}: {}",
            ended.output
        );
        ended.nothing_is_left();
    }
}

#[test]
fn an_early_signal_leaves_nothing() {
    for millis in [0, 1, 2, 4, 8, 16, 32] {
        let demo = Demo::start(&[]);
        sleep(Duration::from_millis(millis));
        demo.send(Signal::SIGINT);
        let ended = demo.end();
        assert!(!ended.status.success(), "{}", ended.output);
        ended.nothing_is_left();
    }
}

#[test]
fn a_demo_that_goes_on_ends_well_with_an_interrupt() {
    let mut demo = Demo::start(&["--keep"]);
    let shown = demo.read_to("vpa.yaml");
    assert!(shown.contains("export VSCALED_SOCKET=/"), "{shown}");
    // The suggested commands work as printed, in a shell without further settings.
    let lines = shown.lines().map(str::trim);
    let typed: Vec<_> = lines
        .filter(|line| line.starts_with("export ") || *line == "vscalectl get" || line.starts_with("vscalectl explain"))
        .collect();
    let mut shell = Command::new("sh");
    shell.args(["-euc", &typed.join("\n")]).env("PATH", "/usr/bin:/bin");
    let printed = crate::support::image::output(&mut shell);
    assert!(
        typed.len() == 4 && printed.matches("shop/web-0").count() >= 1,
        "{typed:?}: {printed}"
    );
    demo.send(Signal::SIGINT);
    let ended = demo.end();
    assert!(ended.status.success(), "{}\n{}", ended.output, ended.errors);
    ended.nothing_is_left();
}

#[test]
fn what_a_killed_demo_leaves_is_removed_by_the_next() {
    let mut demo = Demo::start(&[]);
    demo.read_to("A recommendation arrives");
    demo.send(Signal::SIGKILL);
    let killed = demo.end();
    let started = Instant::now();
    while !processes(killed.pid).is_empty() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{:?}",
            processes(killed.pid)
        );
        sleep(Duration::from_millis(10));
    }
    let mut next = Demo::start(&[]);
    next.read_to("A pod of three");
    next.send(Signal::SIGTERM);
    next.end().nothing_is_left();
    killed.nothing_is_left();
}

#[test]
fn a_daemon_that_dies_ends_the_demo_with_its_status() {
    let mut demo = Demo::start(&[]);
    demo.read_to("A recommendation arrives");
    let processes = processes(demo.child.id());
    let (daemon, _) = processes
        .iter()
        .find(|(_, arguments)| arguments.contains("vscaled run"))
        .unwrap();
    kill(Pid::from_raw(daemon.cast_signed()), Signal::SIGKILL).unwrap();
    let ended = demo.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(
        ended.errors.starts_with("demo: vscaled ended (signal: 9"),
        "{}",
        ended.errors
    );
    ended.nothing_is_left();
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let mut demo = Demo::start(&[]);
    demo.read_to("vscaled starts");
    demo.output = None;
    let ended = demo.end();
    assert!(ended.status.success(), "{}", ended.errors);
    ended.nothing_is_left();
}
