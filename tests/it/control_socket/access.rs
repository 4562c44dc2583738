//! Who may call.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::agent::{Agent, Answer};

const NOBODY: u32 = 65534;

/// Runs `vscalectl get` as another user, who may read and execute the copy made for them.
fn get_as_nobody(agent: &Agent) -> Answer {
    let program = readable_copy(agent.directory());
    let output = Command::new(program)
        .args(["get", "--socket"])
        .arg(&agent.socket)
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    Answer::from(output.unwrap())
}

fn readable_copy(directory: &Path) -> PathBuf {
    let copy = directory.join("vscalectl");
    fs::copy(env!("CARGO_BIN_EXE_vscalectl"), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
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
    let answer = get_as_nobody(&agent);
    assert!(
        answer.error(1).contains("may be used by root only: try sudo"),
        "{answer:?}"
    );
}

#[test]
fn nobody_is_refused_even_where_the_file_is_open_to_all() {
    let agent = Agent::start();
    fs::set_permissions(&agent.socket, Permissions::from_mode(0o666)).unwrap();
    let answer = get_as_nobody(&agent);
    assert!(answer.error(1).contains("uid 65534 may not call vscaled"), "{answer:?}");
    assert_eq!(answer.out, "");
    agent.run(&["get"]).text();
}
