//! Receivers that work, disconnect and return.

use std::time::Duration;

use vscaled::report::log::Bounds;
use vscaled::report::{Destination, Link};

use super::receiver::{Manner, Receiver, eventually, socket_in};
use super::station::{Station, ids, options};

#[tokio::test]
async fn ten_thousand_reports_arrive_once() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Manner::BySequence).await;
    let station = Station::start(&directory, options(&receiver.address));
    for first in (1..=10_000).step_by(100) {
        station.kill(first..=first + 99).await;
    }
    station.settled().await;
    assert_eq!(receiver.ids(), ids(1..=10_000));
    // Counted a moment after the log has none of them any more.
    let acknowledged = r#"vscaled_reports_total{destination="grpc",outcome="acknowledged"}"#;
    eventually("each counted once", || station.metric(acknowledged) == 10_000).await;
    assert_eq!(station.metric("vscaled_spool_folded_total"), 0);
    let hello = receiver.got.lock().unwrap().hellos[0].clone();
    assert_eq!((hello.version, hello.node.as_str(), hello.window), (1, "node-1", 64));
    assert_eq!(hello.agent_version, env!("CARGO_PKG_VERSION"));
    station.finish().await;
}

#[tokio::test]
async fn a_unix_receiver_may_acknowledge_by_id() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::at_socket(&socket_in(&directory), Manner::ById);
    let station = Station::start(&directory, options(&receiver.address));
    station.kill(1..=500).await;
    station.settled().await;
    assert_eq!(receiver.ids(), ids(1..=500));
    let first = receiver.got.lock().unwrap().reports[0].clone();
    assert_eq!((first.sequence, first.count), (1, 1));
    assert_eq!(first.pod.unwrap().name, "web");
    station.finish().await;
}

#[tokio::test]
async fn a_returned_receiver_gets_everything() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Manner::BySequence).await;
    let station = Station::start(&directory, options(&receiver.address));
    station.kill(1..=100).await;
    station.settled().await;
    let (address, before) = receiver.vanish().await;
    assert_eq!(before.reports.len(), 100);

    station.kill(101..=4600).await;
    assert!(station.failure().await.contains(&address));
    assert_eq!(station.pending(), 4500);
    eventually("many attempts", || {
        station.metric(r#"vscaled_report_connections_total{destination="grpc",outcome="failed"}"#) >= 5
    })
    .await;
    assert!(station.handle.status().borrow().problems()[0].contains("4500 reports wait"));

    let receiver = Receiver::at(&address, Manner::BySequence, None).await;
    station.settled().await;
    assert_eq!(receiver.ids(), ids(101..=4600));
    assert_eq!(station.link(), Some(Link::Connected));
    assert!(station.handle.status().borrow().problems().is_empty());
    station.finish().await;
}

#[tokio::test]
async fn a_successor_delivers_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Manner::Silent).await;
    let station = Station::start(&directory, options(&receiver.address));
    station.kill(1..=200).await;
    receiver.wait_for(64).await;
    assert_eq!(receiver.ids(), ids(1..=64), "no more than the window is on the way");
    station.finish().await;

    let (address, _) = receiver.vanish().await;
    let receiver = Receiver::at(&address, Manner::BySequence, None).await;
    let station = Station::start(&directory, options(&receiver.address));
    assert_eq!(station.recovered.checkpoint.as_deref(), Some(&b"200"[..]));
    assert_eq!(station.recovered.latest.len(), 200);
    station.settled().await;
    assert_eq!(receiver.ids(), ids(1..=200));
    station.finish().await;
}

#[tokio::test]
async fn a_dead_destination_delays_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Manner::BySequence).await;
    // Nothing takes the queue of Events on pods.
    let destinations = [Destination::Grpc, Destination::PodEvents];
    let bounds = Bounds {
        max_bytes: 4 << 20,
        max_reports: 1000,
    };
    let options = options(&receiver.address);
    let station = Station::with(directory.path(), bounds, &destinations, Some(options));
    for number in 1..=3000 {
        station.kill(number..=number).await;
    }
    eventually("everything told", || station.pending() == 0).await;
    let told: u64 = receiver
        .got
        .lock()
        .unwrap()
        .reports
        .iter()
        .map(|report| report.count)
        .sum();
    assert_eq!(told, 3000);
    // The log keeps undelivered reports within its bounds.
    let log = station.handle.status().borrow().clone();
    assert!(log.reports <= 1000 && log.reports == log.pending_for(Destination::PodEvents));
    assert!(station.metric("vscaled_spool_folded_total") > 0);
    station.finish().await;
}

#[tokio::test]
async fn a_burst_waits_for_the_disk_twice_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let station = Station::with(directory.path(), Bounds::default(), &[Destination::PodEvents], None);
    let syncs = |station: &Station| station.metric("vscaled_spool_syncs_total");
    eventually("a new log", || syncs(&station) == 1).await;
    let kills: Vec<_> = (1..=50).map(|number| station.kill(number..=number)).collect();
    futures::future::join_all(kills).await;
    station.handle.clone().finish(Duration::MAX).await;
    assert!((2..=3).contains(&syncs(&station)));
}
