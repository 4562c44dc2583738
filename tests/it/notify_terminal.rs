//! `vscaled-notify` on a terminal hands its program the signals that processes send, and each key of the terminal once.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::terminal::Terminal;

/// Counts the signals in a file, and ends on SIGTERM.
const PROGRAM: &str = "trap 'echo INT >>got' INT; trap 'echo HUP >>got' HUP; trap 'exit 0' TERM; touch ready; while :; do sleep 0.02; done";

#[test]
fn one_key_is_one_signal() {
    let helper = Path::new(env!("CARGO_BIN_EXE_vscaled")).with_file_name("vscaled-notify");
    if !helper.exists() {
        eprintln!("SKIPPED notify_terminal: no vscaled-notify is built: scripts/test build does");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let script = "cd \"$0\"; exec \"$1\" --signal SIGUSR1 -- sh -c \"$2\"";
    command
        .arg("-c")
        .arg(script)
        .arg(directory.path())
        .arg(&helper)
        .arg(PROGRAM);
    let mut terminal = Terminal::run(&command, 24, 80);
    let got = || fs::read_to_string(directory.path().join("got")).unwrap_or_default();
    terminal.until("the program to run", |_| directory.path().join("ready").exists());
    terminal.press("\u{3}");
    terminal.until("the key to arrive", |_| got() == "INT\n");
    // A second signal would have been handed on before this one.
    terminal.signal(nix::sys::signal::Signal::SIGHUP);
    terminal.until("a process's signal to be handed on", |_| got().contains("HUP"));
    assert_eq!(got(), "INT\nHUP\n");
}
