//! Access rights of real users in real groups.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use vscaled::control::{Access, Group, Limits};

use super::agent::{Agent, Answer};

const NOBODY: u32 = 65534;
/// A number is enough: the kernel has no names of groups.
const OPERATORS: u32 = 54_321;
const READERS: u32 = 54_322;

const READS: [&[&str]; 7] = [
    &["get"],
    &["explain", "shop/web"],
    &["history"],
    &["report"],
    &["get", "overrides"],
    &["get", "decisions"],
    &["resize", "shop/web", "-c", "app", "--cpu-limit", "1", "--dry-run"],
];
const CHANGES: [&[&str]; 2] = [
    &["resize", "shop/web", "-c", "app", "--cpu-limit", "1"],
    &["release", "shop/web"],
];

fn group(gid: u32, name: &str) -> Option<Group> {
    let name = name.to_owned();
    Some(Group { gid, name })
}

fn agent_with_groups() -> Agent {
    let access = Access {
        operators: group(OPERATORS, "ops"),
        readers: group(READERS, "look"),
    };
    Agent::open_to(Limits::default(), access)
}

/// Runs `vscalectl` as the user nobody with these supplementary groups. The user may read and execute a copy of the
/// program.
fn as_nobody(agent: &Agent, groups: &[u32], arguments: &[&str]) -> Answer {
    let program = readable_copy(agent.directory());
    let groups = match groups {
        [] => "--clear-groups".to_owned(),
        groups => {
            let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
            format!("--groups={}", groups.join(","))
        }
    };
    let output = Command::new("setpriv")
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), groups])
        .arg("--")
        .arg(program)
        .args(arguments)
        .arg("--socket")
        .arg(&agent.socket)
        .output();
    Answer::from(output.unwrap())
}

fn readable_copy(directory: &Path) -> PathBuf {
    let copy = directory.join("vscalectl");
    if !copy.exists() {
        // A separate process makes the copy: a file that a fork of this process holds open for writing cannot be
        // executed.
        let program = env!("CARGO_BIN_EXE_vscalectl");
        let copied = Command::new("install").args(["-m", "755", program]).arg(&copy).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn the_socket_belongs_to_root_alone() {
    let agent = Agent::start();
    let metadata = fs::metadata(&agent.socket).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    assert_eq!((metadata.uid(), metadata.gid()), (0, 0));
}

#[test]
fn nobody_cannot_open_the_socket() {
    let agent = Agent::start();
    let answer = as_nobody(&agent, &[], &["get"]);
    assert!(
        answer.error(1).contains("may be used by root only: try sudo"),
        "{answer:?}"
    );
}

#[test]
fn user_nobody_is_refused_at_an_open_socket() {
    let agent = Agent::start();
    fs::set_permissions(&agent.socket, Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(agent.socket.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let answer = as_nobody(&agent, &[], &["get"]);
    assert!(answer.error(1).contains("uid 65534 may not call vscaled"), "{answer:?}");
    assert_eq!(answer.out, "");
    agent.run(&["get"]).text();
}

#[test]
fn a_groups_socket_is_closed_to_others() {
    // Every machine has this group (Debian and others: /etc/group).
    let daemon = nix::unistd::Group::from_name("daemon").unwrap().unwrap().gid.as_raw();
    let access = Access {
        operators: group(daemon, "daemon"),
        readers: None,
    };
    let agent = Agent::open_to(Limits::default(), access);
    let metadata = fs::metadata(&agent.socket).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o660, daemon));
    as_nobody(&agent, &[daemon], &["get"]).text();
    let answer = as_nobody(&agent, &[], &["get"]);
    assert!(
        answer
            .error(1)
            .contains("may be used by root and members of the group daemon only"),
        "{answer:?}"
    );
    // The kernel refused the connection, so the agent saw no call.
    assert!(agent.script.turned_away.lock().unwrap().is_empty());
}

#[test]
fn operators_may_make_every_call() {
    let agent = agent_with_groups();
    for arguments in READS.iter().chain(&CHANGES) {
        as_nobody(&agent, &[OPERATORS], arguments).text();
    }
    let resized = agent.script.resized.lock().unwrap();
    let callers: Vec<u32> = resized.iter().map(|(caller, _)| caller.uid).collect();
    assert_eq!(callers, [NOBODY; 2], "with and without --dry-run");
    assert!(agent.script.turned_away.lock().unwrap().is_empty());
}

#[test]
fn readers_may_look_and_change_nothing() {
    let agent = agent_with_groups();
    for arguments in READS {
        as_nobody(&agent, &[7, READERS], arguments).text();
    }
    agent.script.resized.lock().unwrap().clear();
    for arguments in CHANGES {
        let answer = as_nobody(&agent, &[READERS], arguments);
        assert!(
            answer
                .error(1)
                .contains("uid 65534 may only read: to change anything, only root and members of the group ops may"),
            "{answer:?}"
        );
    }
    assert!(agent.script.resized.lock().unwrap().is_empty());
    let turned_away = agent.script.turned_away.lock().unwrap();
    let calls: Vec<_> = turned_away
        .iter()
        .map(|(caller, call, _)| (caller.uid, *call))
        .collect();
    assert_eq!(calls, [(NOBODY, "resize"), (NOBODY, "release")]);
}

#[test]
fn callers_in_no_group_may_do_nothing() {
    let agent = agent_with_groups();
    assert_eq!(fs::metadata(&agent.socket).unwrap().mode() & 0o7777, 0o666);
    for arguments in READS.iter().chain(&CHANGES) {
        let answer = as_nobody(&agent, &[7], arguments);
        assert!(
            answer
                .error(1)
                .contains("uid 65534 may not call vscaled: only root and members"),
            "{answer:?}"
        );
        assert_eq!(answer.out, "");
    }
    let turned_away = agent.script.turned_away.lock().unwrap();
    assert_eq!(turned_away.len(), READS.len() + CHANGES.len());
    assert!(agent.script.resized.lock().unwrap().is_empty());
}
