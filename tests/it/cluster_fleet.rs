//! Promise: what a fleet costs the API server grows with the nodes and with nothing else, and after an outage all of them come
//! back; and what `scripts/bench fleet` measures with thousands is what an agent asks for.

#[path = "../../benches/cluster/fleet.rs"]
#[allow(dead_code, reason = "the driver of the benchmark, of which this needs a part")]
mod fleet;
mod host_requests;
#[path = "../../benches/cluster/objects.rs"]
#[allow(dead_code, reason = "the objects of the benchmark, of which this needs a part")]
mod objects;

use std::time::Duration;

use fleet::Fleet;
use objects::{EVERYWHERE, Shape};

use crate::support::cluster::ApiServer;
use crate::support::fleet::{Calls, Local};

/// A list and a watch: of the node's pods, of itself, and of VPAs, LimitRanges and HorizontalPodAutoscalers in two namespaces; a
/// call for each workload; and those by which it learns that this API server begins no watch with a list.
const AT_THE_START: u64 = 2 * (2 + 2 * 3) + 2 + 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_asks_little_at_its_start_nothing_at_rest_and_comes_back_whole() {
    let Some(mut cluster) = ApiServer::start("a_fleet") else {
        return;
    };
    let shape = Shape::of(12, 1, 4);
    shape.create(&cluster).await.unwrap();
    let calls = Calls::new();
    let fleet = Fleet::<Local>::start(&cluster, &shape, &calls).await;
    fleet.knows(&shape).await;
    let at_the_start = calls.answered()[0];
    assert!(at_the_start <= 12 * AT_THE_START, "{at_the_start}");

    assert!(
        cluster.memory() < 2 << 30,
        "{} bytes for twelve nodes",
        cluster.memory()
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    let at_rest = calls.answered()[0];
    assert!(at_rest - at_the_start <= 12, "{at_rest} after {at_the_start}");

    let round = shape.recommend_everywhere(&cluster).await.unwrap();
    fleet.heard_of(EVERYWHERE, round).await;
    assert_eq!(shape.churn(&cluster, 3).await.unwrap(), 3);
    fleet.knows(&shape).await;

    tokio::task::block_in_place(|| {
        cluster.stop();
        cluster.launch();
    });
    let round = shape.recommend(&cluster).await.unwrap();
    fleet.heard(&shape, round).await;
    let again = calls.answered()[0] - at_rest;
    assert!(again <= 12 * 3 * AT_THE_START, "{again} until all are back");
}
