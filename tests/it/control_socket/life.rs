//! Creation, replacement and removal of the socket.

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::Duration;

use futures::FutureExt as _;
use vscaled::control::{Access, Client, ControlSocket, Limits};

use super::agent::{Agent, Answer, vscalectl};

fn bind(path: &std::path::Path) -> anyhow::Result<ControlSocket> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(ControlSocket::bind(path, Access::default()))
}

#[test]
fn a_second_agent_is_refused() {
    let agent = Agent::start();
    let error = bind(&agent.socket).unwrap_err().to_string();
    assert!(error.starts_with("another vscaled is running"), "{error}");
    agent.run(&["get"]).text();
}

#[test]
fn commands_say_how_to_start_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.sock");
    let dead = directory.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    for socket in [missing, dead] {
        let answer = Answer::from(vscalectl(&socket, &["get"]).output().unwrap());
        assert!(answer.error(3).contains("start it with `vscaled run`"), "{answer:?}");
    }
}

#[test]
fn what_is_no_agent_is_not_taken_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream
    });
    let answer = Answer::from(vscalectl(&path, &["get"]).output().unwrap());
    assert!(answer.error(3).contains("closed the connection"), "{answer:?}");
    other.join().unwrap();
}

#[test]
fn stopping_drops_silent_callers() {
    let mut agent = Agent::start();
    let _silent = UnixStream::connect(&agent.socket).unwrap();
    agent.run(&["get"]).text();
    agent.stop();
    assert!(!agent.socket.exists());
    assert!(agent.run(&["get"]).error(3).contains("no vscaled answers"));
}

#[test]
fn stopping_waits_for_no_deaf_caller() {
    let mut agent = Agent::with(Limits {
        grace: Duration::from_secs(3600),
        ..Limits::default()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut client = runtime.block_on(Client::connect(&agent.socket)).unwrap();
    runtime.block_on(client.get()).unwrap();
    // From here on, no task drives the connection.
    agent.stop();
}

#[test]
fn a_stopping_agent_finishes_its_change() {
    let mut agent = Agent::start();
    let resize = agent
        .command(&["resize", "shop/web", "-c", "slow", "--cpu-limit", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_resize(&agent);
    agent.stop.cancel();
    while agent.socket.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    agent.script.release_slow.cancel();
    let answer = Answer::from(resize.wait_with_output().unwrap());
    assert!(answer.text().contains("shop/web: Applied"), "{answer:?}");
    agent.stop();
}

#[test]
fn a_change_goes_on_without_its_caller() {
    let agent = Agent::start();
    let mut watcher = agent.script.changes.watch();
    let mut resize = agent
        .command(&["resize", "shop/web", "-c", "slow", "--cpu-limit", "1"])
        .spawn()
        .unwrap();
    wait_for_resize(&agent);
    resize.kill().unwrap();
    resize.wait().unwrap();
    agent.script.release_slow.cancel();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (change, _) = runtime.block_on(watcher.next()).unwrap();
    assert_eq!(change.outcome, "Applied");
}

#[test]
fn stopping_waits_for_an_orphaned_change() {
    let mut agent = Agent::start();
    let mut watcher = agent.script.changes.watch();
    let mut resize = agent
        .command(&["resize", "shop/web", "-c", "slow", "--cpu-limit", "1"])
        .spawn()
        .unwrap();
    wait_for_resize(&agent);
    resize.kill().unwrap();
    resize.wait().unwrap();
    agent.stop.cancel();
    while agent.socket.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    agent.script.release_slow.cancel();
    agent.stop();
    let (change, _) = watcher.next().now_or_never().flatten().unwrap();
    assert_eq!(change.outcome, "Applied");
}

#[test]
fn a_late_change_does_not_delay_the_stop() {
    let mut agent = Agent::with(Limits {
        grace: Duration::from_millis(50),
        ..Limits::default()
    });
    let resize = agent
        .command(&["resize", "shop/web", "-c", "slow", "--cpu-limit", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_resize(&agent);
    agent.stop();
    let answer = Answer::from(resize.wait_with_output().unwrap());
    assert!(
        answer.error(3).contains("`vscalectl history` shows what was done"),
        "{answer:?}"
    );
}

#[test]
fn a_late_answer_is_announced_as_such() {
    let agent = Agent::with(Limits {
        change_deadline: Duration::from_millis(50),
        ..Limits::default()
    });
    let answer = agent.run(&["resize", "shop/web", "-c", "slow", "--cpu-limit", "1"]);
    assert!(
        answer.error(1).contains("it goes on, and `vscalectl history`"),
        "{answer:?}"
    );
}

fn wait_for_resize(agent: &Agent) {
    while agent.script.resized.lock().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
