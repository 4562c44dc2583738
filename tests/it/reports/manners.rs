//! Misbehaving receivers: bounded effects, a clear reason, and no lost report.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use vscaled::report::grpc::GrpcOptions;

use super::receiver::{Manner, Receiver, eventually};
use super::station::{Station, ids, options};

/// Replaces a misbehaving receiver by a good one, which must get every report. Returns the reason of the failure.
async fn recovers(first: Manner, hasty: bool) -> String {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(first).await;
    let patience = Duration::from_millis(if hasty { 50 } else { 30_000 });
    let station = Station::start(
        &directory,
        GrpcOptions {
            patience,
            ..options(&receiver.address)
        },
    );
    station.kill(1..=300).await;
    let error = station.failure().await;
    assert!(
        error.chars().count() < 500 && !error.chars().any(char::is_control),
        "{error:?}"
    );
    let (address, before) = receiver.vanish().await;
    let receiver = Receiver::at(&address, Manner::BySequence, None).await;
    station.settled().await;
    let mut all: Vec<String> = before.reports.into_iter().map(|report| report.id).collect();
    all.extend(receiver.ids());
    all.sort();
    all.dedup();
    let mut expected = ids(1..=300);
    expected.sort();
    assert_eq!(all, expected);
    station.finish().await;
    error
}

#[tokio::test]
async fn a_silent_receiver_is_tried_again() {
    let error = recovers(Manner::Silent, true).await;
    assert!(
        error.contains("has not acknowledged any of 64 reports for 50ms"),
        "{error}"
    );
}

#[tokio::test]
async fn a_strange_receiver_is_left() {
    let error = recovers(Manner::OnlyStrange, false).await;
    assert!(error.contains("times a report that was not sent to it"), "{error}");
}

#[tokio::test]
async fn a_talkative_receiver_is_left() {
    let error = recovers(Manner::Fat, false).await;
    assert!(error.contains("too large"), "{error}");
}

#[tokio::test]
async fn one_that_refuses_says_why_in_bounded_words() {
    let rude = Status::resource_exhausted(format!("no\u{1b}[2Jroom\n{}", "x".repeat(4000)));
    let error = recovers(Manner::EndAfter(0, Err(rude)), false).await;
    assert!(error.contains("no [2Jroom x"), "{error}");
}

#[tokio::test]
async fn an_ended_stream_is_opened_again() {
    let error = recovers(Manner::EndAfter(100, Ok(())), false).await;
    assert!(error.ends_with("ended the stream"), "{error}");
}

#[tokio::test]
async fn strange_acknowledgements_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Manner::TwiceAndStrange).await;
    let station = Station::start(&directory, options(&receiver.address));
    station.kill(1..=200).await;
    station.settled().await;
    assert_eq!(receiver.ids(), ids(1..=200));
    assert_eq!(receiver.got.lock().unwrap().hellos.len(), 1, "on one connection");
    station.finish().await;
}

/// A server that does not speak gRPC.
async fn no_grpc_server(greeting: &'static [u8]) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // A client that has disconnected does not read the greeting.
            stream.write_all(greeting).await.ok();
        }
    });
    (address, AbortOnDropHandle::new(serving))
}

#[tokio::test]
async fn garbage_is_no_receiver() {
    for greeting in [
        &b""[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x01\x02\xff\xfe garbage",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (address, _serving) = no_grpc_server(greeting).await;
        let station = Station::start(&directory, options(&address));
        station.kill(1..=3).await;
        let error = station.failure().await;
        assert!(error.contains(&address), "{error}");
        eventually("another attempt", || {
            station.metric(r#"vscaled_report_connections_total{destination="grpc",outcome="failed"}"#) >= 3
        })
        .await;
        assert_eq!(station.handle.status().borrow().reports, 3);
        station.finish().await;
    }
}
