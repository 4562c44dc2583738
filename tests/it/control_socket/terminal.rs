//! Output on a terminal: colours, and lines that fit. The terminal is a real pseudo-terminal.

use std::fs::File;
use std::io::{ErrorKind, Read};

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::Signal;

use super::agent::Agent;
use crate::support::terminal::Terminal;

/// Runs `vscalectl` on a terminal with this many columns, and returns its output.
fn shown(agent: &Agent, columns: u16, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let size = Winsize {
        ws_row: 50,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    let mut child = agent
        .command(arguments)
        .env("TERM", "xterm")
        .envs(variables.iter().copied())
        .stdin(slave.try_clone().unwrap())
        .stderr(slave.try_clone().unwrap())
        .stdout(slave)
        .spawn()
        .unwrap();
    let (mut screen, mut part) = (Vec::new(), [0; 4096]);
    let mut master = File::from(master);
    loop {
        match master.read(&mut part) {
            Ok(0) => break,
            Ok(read) => screen.extend_from_slice(&part[..read]),
            // The program has closed its end.
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    child.wait().unwrap();
    String::from_utf8(screen).unwrap().replace("\r\n", "\n")
}

/// Removes the colours.
fn plain(text: &str) -> String {
    let mut in_sequence = false;
    let visible = text.chars().filter(|&character| {
        let hidden = in_sequence || character == '\u{1b}';
        in_sequence = hidden && character != 'm';
        !hidden
    });
    visible.collect()
}

fn widest(text: &str) -> usize {
    plain(text).lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn lists_fit_the_terminal_if_there_is_one() {
    let agent = Agent::start();
    for arguments in [
        &["get"][..],
        &["get", "decisions"],
        &["get", "overrides"],
        &["history"],
        &["doctor"],
    ] {
        for columns in [60, 80, 120] {
            let screen = shown(&agent, columns, arguments, &[]);
            assert!(
                widest(&screen) <= columns.into(),
                "{arguments:?} at {columns}:\n{screen}"
            );
        }
    }
    assert!(shown(&agent, 60, &["get"], &[]).contains('…'));
    assert!(!agent.run(&["get"]).text().contains('…'));
}

#[test]
fn an_explanation_fits_the_terminal() {
    let agent = Agent::start();
    for columns in [80, 100, 120] {
        let screen = shown(&agent, columns, &["explain", "shop/web"], &[]);
        let fits = |line: &&str| line.chars().count() <= columns.into();
        let long: Vec<_> = plain(&screen)
            .lines()
            .filter(|line| !fits(line) && !line.contains("/kubepods/") && !line.contains("runtime "))
            .map(str::to_owned)
            .collect();
        assert!(long.is_empty(), "at {columns}: {long:#?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let agent = Agent::start();
    let screen = shown(&agent, 100, &["get"], &[]);
    assert!(screen.contains("\u{1b}[33mOwed\u{1b}[0m"), "{screen:?}");
    assert_eq!(
        shown(&agent, 200, &["get"], &[("NO_COLOR", "1")]),
        agent.run(&["get"]).text()
    );
    assert!(!shown(&agent, 100, &["get"], &[("TERM", "dumb")]).contains('\u{1b}'));
    assert!(!agent.run(&["get"]).text().contains('\u{1b}'));
    let json = shown(&agent, 60, &["get", "-o", "json"], &[]);
    assert!(
        serde_json::from_str::<serde_json::Value>(&json).is_ok() && !json.contains('\u{1b}'),
        "{json}"
    );
}

#[test]
fn the_screen_of_top_follows_keys_and_changes() {
    let mut agent = Agent::start();
    let socket = agent.socket.to_str().unwrap().to_owned();
    let command = agent.command(&["--socket", &socket, "top", "--interval", "100ms"]);
    let top = || {
        let screen = Terminal::run(&command, 30, 120);
        screen.shows(&["shop/web", "shop/db", "2 pods", "sorted by name", "OOM kill"]);
        screen
    };
    let mut screen = top();
    screen.press("s");
    screen.shows(&["sorted by cpu"]);
    agent
        .run(&["resize", "shop/web", "-c", "app", "--cpu-limit", "1"])
        .text();
    screen.until("the change", |text| text.matches("Applied").count() > 1);
    screen.press("q");
    assert_eq!(screen.ends().code(), Some(0));
    screen.is_restored();
    let mut screen = top();
    screen.signal(Signal::SIGTERM);
    assert_eq!(screen.ends().code(), Some(0));
    screen.is_restored();
    let mut screen = top();
    agent.stop();
    assert_eq!(screen.ends().code(), Some(3));
    screen.is_restored();
}
