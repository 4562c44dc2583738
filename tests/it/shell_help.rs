//! Promise: shells complete `vscalectl`, and both programs have manual pages, generated from the same definitions as
//! `--help`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn vscalectl(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// The completions that bash offers for the last of these words.
fn offered(words: &[&str]) -> BTreeSet<String> {
    let directory = TempDir::new().unwrap();
    let script = directory.path().join("completions");
    fs::write(&script, vscalectl(&["completions", "bash"]).stdout).unwrap();
    // As bash does after the tabulator key: it calls the registered function with the words.
    let ask = r#"
        source "$1"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        function=$(complete -p vscalectl | sed 's/.* -F \([^ ]*\) .*/\1/')
        "$function" vscalectl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let bash = Command::new("bash")
        .args(["--norc", "-euc", ask, "bash"])
        .arg(&script)
        .arg("vscalectl")
        .args(words)
        .output()
        .unwrap();
    assert!(bash.status.success() && bash.stderr.is_empty(), "{bash:?}");
    String::from_utf8(bash.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_refused_key_has_its_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_vscaled"))
        .args(["run", "--workers=65", "--sweep-interval=2h"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    let printed = String::from_utf8(output.stderr).unwrap();
    let keys = printed.lines().map(|line| line.split(": ").take(2).collect::<Vec<_>>());
    assert_eq!(
        keys.collect::<Vec<_>>(),
        [["vscaled", "sweepInterval"], ["vscaled", "workers"]],
        "{printed}"
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let programs: [(&str, &[&str]); 2] = [
        (env!("CARGO_BIN_EXE_vscaled"), &["run", "--print-config"]),
        (env!("CARGO_BIN_EXE_vscalectl"), &["completions", "bash"]),
    ];
    for (program, arguments) in programs {
        let (reader, writer) = std::io::pipe().unwrap();
        // The reader has gone before the first byte.
        drop(reader);
        let output = Command::new(program)
            .args(arguments)
            .env_clear()
            .stdout(writer)
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    assert_eq!(offered(&["expl"]), BTreeSet::from(["explain".to_owned()]));
    let commands = offered(&[""]);
    assert!(
        commands.contains("resize") && commands.contains("watch"),
        "{commands:?}"
    );
    assert!(
        !commands.iter().any(|command| command.starts_with("demo-")),
        "{commands:?}"
    );
    let options = offered(&["resize", "--memory"]);
    let memory = ["--memory-limit", "--memory-request"].map(str::to_owned);
    assert_eq!(options, BTreeSet::from(memory));
    let formats = offered(&["get", "--output", ""]);
    assert_eq!(formats, BTreeSet::from(["json", "table", "yaml"].map(str::to_owned)));
}

#[test]
fn scripts_for_the_other_shells_name_every_command() {
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(vscalectl(&["completions", shell]).stdout).unwrap();
        for command in commands() {
            assert!(script.contains(&command), "{shell} does not know {command}");
        }
    }
}

/// The commands in `--help`.
fn commands() -> Vec<String> {
    let help = String::from_utf8(vscalectl(&["--help"]).stdout).unwrap();
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let named = listed
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    named
        .filter(|name| !name.is_empty() && *name != "help")
        .map(str::to_owned)
        .collect()
}

/// A directory with the manual pages, from the example that cargo builds with `--example man`.
fn manual_pages() -> TempDir {
    let directory = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_vscalectl")).with_file_name("examples/man");
    assert!(Command::new(program).arg(directory.path()).status().unwrap().success());
    directory
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
    below.flatten().collect()
}

#[test]
fn every_command_has_a_manual_page_that_groff_accepts() {
    let directory = manual_pages();
    let pages = files_below(directory.path());
    for command in commands() {
        let page = directory.path().join(format!("man1/vscalectl-{command}.1"));
        assert!(pages.contains(&page), "no page for {command}: {pages:?}");
    }
    for page in ["man1/vscalectl.1", "man8/vscaled.8", "man8/vscaled-run.8"] {
        assert!(pages.contains(&directory.path().join(page)), "no {page}: {pages:?}");
    }
    for page in &pages {
        let groff = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-Kutf8", "-P-cbou"])
            .arg(page)
            .output()
            .unwrap();
        let (text, complaints) = (
            String::from_utf8_lossy(&groff.stdout),
            String::from_utf8_lossy(&groff.stderr),
        );
        assert!(
            groff.status.success() && complaints.is_empty(),
            "{page:?}: {complaints}"
        );
        assert!(text.contains("NAME") && text.contains("SYNOPSIS"), "{page:?}: {text}");
    }
}

#[test]
fn the_page_of_vscalectl_says_what_its_exit_codes_mean() {
    let page = fs::read_to_string(manual_pages().path().join("man1/vscalectl.1")).unwrap();
    assert!(page.contains(".TH vscalectl 1"), "{page}");
    assert!(page.contains("3: no agent answers"), "{page}");
}

#[test]
fn without_a_command_there_is_help_and_no_hidden_command_in_it() {
    for socket in [None, Some("/nowhere/vscaled.sock")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
        command.env_remove("VSCALED_SOCKET");
        let output = command
            .envs(socket.map(|socket| ("VSCALED_SOCKET", socket)))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.starts_with("Shows, explains and changes") && said.contains("explain"),
            "{said}"
        );
        assert!(!said.contains("demo-worker"), "{said}");
    }
}
