//! Callers that send too much data, invalid data, or no data.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use vscaled::control::{Client, Limits};

use super::agent::Agent;

/// The connection preface of every HTTP/2 client, and an empty settings frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Raises the limit of open files: both ends of every connection belong to this process.
fn allow_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

#[test]
fn a_request_that_is_too_large_is_refused() {
    let agent = Agent::start();
    let status = block_on(async {
        let mut client = Client::connect(&agent.socket).await.unwrap();
        client.explain("x".repeat(65 << 10)).await.unwrap_err()
    });
    assert!(status.to_string().contains("too large"), "{status}");
    agent.run(&["get"]).text();
}

#[test]
fn silent_callers_keep_nobody_out() {
    let agent = Agent::start();
    let greetings = [Vec::new(), PREFACE.to_vec(), [PREFACE, SETTINGS].concat()];
    allow_open_files();
    let hanging: Vec<UnixStream> = (0..1000)
        .map(|number| {
            let mut stream = UnixStream::connect(&agent.socket).unwrap();
            let greeting = &greetings[number % greetings.len()];
            // The server may have closed this connection already.
            assert!(!matches!(stream.write_all(greeting), Err(error) if error.kind() != ErrorKind::BrokenPipe));
            stream
        })
        .collect();
    agent.run(&["get"]).text();
    agent
        .run(&["resize", "shop/web", "-c", "app", "--cpu-limit", "1"])
        .text();
    drop(hanging);
}

#[test]
fn calls_beyond_the_bound_wait() {
    let agent = Agent::with(Limits {
        calls: 1,
        ..Limits::default()
    });
    let slow = agent
        .command(&["resize", "shop/web", "-c", "slow", "--cpu-limit", "1"])
        .stdout(Stdio::null())
        .spawn();
    let mut slow = slow.unwrap();
    while agent.script.resized.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert!(agent.run(&["get"]).error(1).contains("busy: too many calls"));
    agent.script.release_slow.cancel();
    assert!(slow.wait().unwrap().success());
    agent.run(&["get"]).text();
}

#[test]
fn watchers_have_places_of_their_own() {
    let agent = Agent::with(Limits {
        watchers: 1,
        ..Limits::default()
    });
    block_on(async {
        let mut first = Client::connect(&agent.socket).await.unwrap();
        let mut second = Client::connect(&agent.socket).await.unwrap();
        let watch = first.watch().await.unwrap();
        assert!(second.watch().await.unwrap_err().to_string().starts_with("busy"));
        assert!(second.get().await.is_ok());
        drop((watch, first));
        while second.watch().await.is_err() {
            tokio::task::yield_now().await;
        }
    });
}

/// Invalid input at every layer: no HTTP/2 at all, frames of any type and length, headers that decode to nothing.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let noise = || proptest::collection::vec(any::<u8>(), 0..400);
    let frame = (any::<u8>(), any::<u8>(), 0_u8..4, noise()).prop_map(|(kind, flags, stream, payload)| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind % 12, flags, 0, 0, 0, stream];
        [&head[..], &payload].concat()
    });
    let frames = proptest::collection::vec(frame, 1..6).prop_map(|frames| frames.concat());
    prop_oneof![
        noise(),
        noise().prop_map(|noise| [PREFACE, &noise].concat()),
        frames.prop_map(|frames| [PREFACE, SETTINGS, &frames].concat()),
    ]
}

/// A literal header field (RFC 7541, 6.2.2); short ones only.
fn field(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    assert!(name.len() < 127 && value.len() < 127);
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
    [&head[..], payload].concat()
}

/// A call with valid HTTP/2 and gRPC framing and an arbitrary message.
fn call(method: &str, message: &[u8]) -> Vec<u8> {
    let path = format!("/vscaled.control.v1.Control/{method}");
    let fields = [
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", &path),
        field(":authority", "localhost"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
    ];
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let data = [&[0], &length[..], message].concat();
    [
        PREFACE,
        SETTINGS,
        &frame(1, 0x4, &fields.concat()),
        &frame(0, 0x1, &data),
    ]
    .concat()
}

#[test]
fn senseless_messages_are_refused() {
    let agent = Agent::start();
    let methods = ["Get", "Explain", "Resize", "Release", "History", "Doctor", "Nothing"];
    // Half of the inputs begin like a field of a request: a number, a wire type, a length.
    let field_like = (1_u8..9, 0_u8..6, proptest::collection::vec(any::<u8>(), 0..60))
        .prop_map(|(number, wire, rest)| [vec![number << 3 | wire], rest].concat());
    let message = prop_oneof![proptest::collection::vec(any::<u8>(), 0..200), field_like];
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        cases: 400,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(
        &(proptest::sample::select(methods.to_vec()), message),
        |(method, message)| {
            let mut stream = UnixStream::connect(&agent.socket)?;
            if stream.write_all(&call(method, &message)).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).ok();
            }
            Ok(())
        },
    );
    outcome.unwrap();
    agent.run(&["get"]).text();
    let resized = agent.script.resized.lock().unwrap();
    assert!(
        resized.iter().all(|(_, request)| !request.containers.is_empty()),
        "{resized:?}"
    );
}

#[test]
fn who_calls_too_often_is_told_to_wait() {
    let agent = Agent::with(Limits {
        rate: 5,
        ..Limits::default()
    });
    block_on(async {
        let mut client = Client::connect(&agent.socket).await.unwrap();
        let mut refusal = None;
        for _ in 0..1000 {
            refusal = client.get().await.err();
            if refusal.is_some() {
                break;
            }
        }
        let refusal = refusal.expect("a thousand calls at once are too many").to_string();
        assert!(
            refusal.contains("busy: uid 0 calls too often; try again in a moment"),
            "{refusal}"
        );
    });
}

#[test]
fn nonsense_is_survived() {
    let agent = Agent::start();
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        cases: 400,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&nonsense(), |bytes| {
        let mut stream = UnixStream::connect(&agent.socket)?;
        // The server may close the connection at any byte.
        if stream.write_all(&bytes).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok();
        }
        Ok(())
    });
    outcome.unwrap();
    agent.run(&["get"]).text();
    assert!(agent.script.resized.lock().unwrap().is_empty());
}
