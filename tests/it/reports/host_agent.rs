//! A complete agent that reports kills.

use std::path::Path;

use vscaled::model::CgroupPath;
use vscaled::report::log::{Bounds, KillLog};
use vscaled::report::{Destination, Destinations};

use super::receiver::{eventually, socket_in};
use super::sink::Sink;
use super::station::kill;
use super::tls::{self, Authority};
use crate::support::agent::Agent;

/// Writes a kill log as an earlier agent leaves it before delivery.
fn leave(state: &Path) {
    std::fs::create_dir(state).unwrap();
    let grpc = Destinations::from_iter([Destination::Grpc]);
    let (mut log, _) = KillLog::open(state, Bounds::default(), grpc);
    log.commit(vec![kill(1).into(), kill(2).into()], None);
}

#[tokio::test]
async fn an_agent_delivers_what_an_earlier_one_left() {
    let sockets = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--listen", &format!("unix://{}", socket_in(&sockets).display())]);
    let mut agent = Agent::new(&CgroupPath::new("/vscaled-test-none").unwrap())
        .with("--node-name", "node-1")
        .with("--http-address", "127.0.0.1:0")
        .with("--report-grpc-endpoint", &sink.address);
    leave(&agent.state_directory());
    agent.start().await;
    eventually("the log to be empty", || {
        let grpc = Destinations::from_iter([Destination::Grpc]);
        agent.log().contains("connected to the receiver") && {
            // The agent holds the lock, so the test reads a copy.
            let copy = tempfile::tempdir().unwrap();
            let journal = agent.state_directory().join("kills.log");
            std::fs::copy(journal, copy.path().join("kills.log")).unwrap();
            KillLog::open(copy.path(), Bounds::default(), grpc).0.pending() == 0
        }
    })
    .await;
    agent.stop();
    let (lines, _) = sink.interrupt();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].contains("kill-2"), "{lines:?}");
}

#[tokio::test]
async fn the_systems_authorities_are_the_default() {
    let authority = Authority::new();
    let receiver = tls::receiver(tls::server(&authority.sign("127.0.0.1", false))).await;
    // Instead of the file in the image.
    let system = authority.file("ca-certificates.crt", &authority.pem());
    let mut agent = Agent::new(&CgroupPath::new("/vscaled-test-none").unwrap())
        .with("--report-grpc-endpoint", &receiver.address)
        .with_variables(vec![("SSL_CERT_FILE", system.into())]);
    leave(&agent.state_directory());
    agent.start().await;
    eventually("both reports to arrive", || receiver.ids().len() == 2).await;
    agent.stop();
}
