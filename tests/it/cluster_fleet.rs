//! Promise: a fleet's requests to the API server grow with the number of nodes only, and all agents recover from an
//! outage. The driver of `scripts/bench fleet` with its thousands of agents sends the same requests as a real agent.

#[path = "../../benches/cluster/fleet.rs"]
#[allow(dead_code, reason = "the driver of the benchmark, of which this needs a part")]
mod fleet;
mod host_requests;
#[path = "../../benches/cluster/objects.rs"]
#[allow(dead_code, reason = "the objects of the benchmark, of which this needs a part")]
mod objects;
#[path = "../../benches/cluster/phases.rs"]
#[allow(dead_code, reason = "what the benchmark counts, of which this needs a part")]
mod phases;
#[path = "../../benches/cluster/server.rs"]
#[allow(dead_code, reason = "what the benchmark counts, of which this needs a part")]
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet::{Fleet, Hasty};
use objects::{EVERYWHERE, Shape};
use phases::{Counts, Phases, busiest, each_second};
use server::Server;

use crate::support::cluster::{ApiServer, Release};
use crate::support::fleet::{Calls, Local};

/// A list and a watch of the node's pods, of the node, and of VPAs, LimitRanges and HorizontalPodAutoscalers in two
/// namespaces; a call for each workload; the calls that find out that this API server does not support streaming
/// lists; and one readiness probe.
const AT_THE_START: u64 = 2 * (2 + 2 * 3) + 2 + 4 + 1;

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_asks_little_and_comes_back_whole() {
    let Some(mut cluster) = ApiServer::start(Release::Legacy, "a_fleet") else {
        return;
    };
    let shape = Shape::of(12, 1, 4);
    shape.create(&cluster).await.unwrap();
    let calls = Arc::new(Calls::new());
    let mut phases = Phases::of("local", shape.nodes_as_float(), &calls, &cluster).unwrap();
    let fleet = Fleet::<Local>::start(&cluster, &shape, 5, &calls).await.unwrap();
    let (started, seconds) = phases.end("all start", &cluster).unwrap();
    let at_the_start = started.agents.calls;
    assert!(at_the_start <= 12 * AT_THE_START, "{at_the_start}");
    let counted: u64 = seconds.iter().map(|[calls, ..]| calls).sum();
    assert!((12 * 8..=at_the_start).contains(&counted), "{seconds:?}");
    assert!(started.server.watchers >= 12.0 * 8.0, "{started:?}");

    assert!(
        cluster.memory() < 2 << 30,
        "{} bytes for twelve nodes",
        cluster.memory()
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (rested, _) = phases.end("at rest", &cluster).unwrap();
    let at_rest = rested.agents.calls;
    assert!(at_rest - at_the_start <= 12, "{at_rest} after {at_the_start}");

    let round = shape.recommend_everywhere(&cluster).await.unwrap();
    fleet.heard_of(EVERYWHERE, round).await.unwrap();
    let (heard, _) = phases.end("one VPA concerns every node", &cluster).unwrap();
    assert!(
        heard.server.events - rested.server.events >= 12.0,
        "{heard:?} after {rested:?}"
    );
    assert_eq!(shape.churn(&cluster, 3).await.unwrap(), 3);
    fleet.knows(&shape).await.unwrap();

    tokio::task::block_in_place(|| {
        cluster.stop();
        cluster.launch();
    });
    let round = shape.recommend(&cluster).await.unwrap();
    fleet.heard(&shape, round).await.unwrap();
    let again = calls.answered()[0] - at_rest;
    assert!(again <= 12 * 3 * AT_THE_START, "{again} until all are back");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_come_back_with_a_ready_api_server() {
    let Some(mut cluster) = ApiServer::start(Release::Legacy, "nodes_that_are_told") else {
        return;
    };
    let shape = Shape::of(4, 1, 2);
    shape.create(&cluster).await.unwrap();
    let calls = Calls::new();
    let fleet = Fleet::<Hasty>::start(&cluster, &shape, 4, &calls).await.unwrap();
    let running = Server::now(&cluster).unwrap().watchers;
    tokio::task::block_in_place(|| {
        cluster.stop();
        assert!(!cluster.is_launched());
        // Waits until the agents' next attempts are seconds away.
        std::thread::sleep(Duration::from_secs(5));
        cluster.launch();
    });
    fleet.is_ready();
    assert!(
        server::all_back(&cluster, running, Duration::from_secs(60))
            .await
            .unwrap()
    );
    let round = shape.recommend(&cluster).await.unwrap();
    fleet.heard(&shape, round).await.unwrap();
}

#[test]
fn the_busiest_second_is_found() {
    let begun = Instant::now();
    let sample = |millis: u64, calls: u64| (begun + Duration::from_millis(millis), [calls, 0, calls / 2]);
    let samples = [(0, 0), (500, 1), (900, 10), (1400, 20), (2100, 21)].map(|(at, calls)| sample(at, calls));
    assert_eq!(busiest(&samples), [19, 0, 10]);
    assert_eq!(each_second(&samples), [[10, 0, 5], [10, 0, 5], [1, 0, 0]]);
    assert_eq!((busiest(&[]), each_second(&[])), (Counts::default(), Vec::new()));
}
