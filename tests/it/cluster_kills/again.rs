//! An agent that lost its record of acknowledgements.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use serde_json::json;
use vscaled::feed::Feed;
use vscaled::kubernetes::ApiClient;
use vscaled::kubernetes::events::PodReference;
use vscaled::kubernetes::metrics::{ApiMetrics, EventMetrics};
use vscaled::model::objects::PodUid;
use vscaled::observe::metrics::registry;
use vscaled::oom::KillFacts;
use vscaled::report::events::{ContainerFacts, PodEvents};
use vscaled::report::log::{Bounds, KillLog};
use vscaled::report::outbox::{ChangeEvents, KillEvents, Outbox, PodMetadata};
use vscaled::report::{Destination, Destinations, Report};

use crate::reports::station::{Station, kill};
use crate::support::cluster::{ApiServer, Release, User};

/// A cluster without any objects.
#[derive(Debug)]
pub(crate) struct Nothing;

impl PodMetadata for Nothing {
    fn wait_until_known(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }

    fn complete_names(&self, _: &mut KillFacts) {}

    fn is_init(&self, _: &PodReference) -> bool {
        false
    }

    fn has_pod(&self, _: &PodUid) -> bool {
        true
    }

    fn container_facts(&self, _: &Report) -> Option<ContainerFacts> {
        None
    }
}

/// Writes kills to a kill log without acknowledgements.
fn keep(directory: &Path, numbers: std::ops::RangeInclusive<u64>) {
    let (mut log, _) = KillLog::open(
        directory,
        Bounds::default(),
        Destinations::from_iter([Destination::PodEvents]),
    );
    log.commit(numbers.map(|number| kill(number).into()).collect(), None);
}

async fn deliver(cluster: &ApiServer, directory: &Path) {
    let kubeconfig = cluster.kubeconfig(User::Admin);
    let metrics = ApiMetrics::register(&mut registry());
    let client = ApiClient::connect(Some(&kubeconfig), metrics).await.unwrap();
    let station = Station::with(directory, Bounds::default(), &[Destination::PodEvents], None);
    let plan = Box::new(PodEvents::new(512));
    let outbox = Outbox {
        client,
        node: "node-1".to_owned(),
        metadata: Arc::new(Nothing),
        changes: ChangeEvents::new(EventMetrics::register(&mut registry())),
        kills: vec![KillEvents::new(station.handle.queue(Destination::PodEvents), plan)],
    };
    station.handle.spawn(outbox.run(Feed::default().listen()));
    station.settled().await;
    station.finish().await;
}

#[tokio::test]
async fn what_an_event_told_already_is_left_out_of_the_next_one() {
    let test = "cluster_kills::again::what_an_event_told_already";
    let Some(cluster) = ApiServer::start(Release::Legacy, test) else {
        return;
    };
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    keep(first.path(), 1..=5);
    // The disk's state before any delivery.
    let journal = "kills.log";
    fs::copy(first.path().join(journal), second.path().join(journal)).unwrap();
    deliver(&cluster, first.path()).await;
    keep(second.path(), 6..=7);
    deliver(&cluster, second.path()).await;

    let list = cluster.get("/api/v1/namespaces/shop/events");
    let mut counts: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["count"].as_u64())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [Some(2), Some(5)], "{list:#}");
}
