//! Promise: messages about a pod become Events at a real API server, with the deployed rights. A repeated message
//! increases the count of one Event, and the agent writes no message twice.

mod guard;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use vscaled::feed::Feed;
use vscaled::kubernetes::ApiClient;
use vscaled::kubernetes::events::{NamedEvent, PodReference, Posted, Severity, Subject, post};
use vscaled::kubernetes::metrics::{ApiMetrics, EventMetrics};
use vscaled::model::objects::PodId;
use vscaled::model::{Cause, ChangeRecord, Outcome};
use vscaled::observe::metrics::registry;
use vscaled::report::outbox::{ChangeEvents, Outbox};

use crate::cluster_kills::again::Nothing;
use crate::support::cluster::{ApiServer, Release, User};

fn app() -> PodReference {
    PodReference {
        pod: PodId {
            namespace: "default".to_owned(),
            name: "web-0".to_owned(),
            uid: "0a1b".into(),
        },
        container: Some("app".to_owned()),
        init: false,
    }
}

fn refusal(message: &str) -> ChangeRecord {
    ChangeRecord::new(app().pod, Cause::OverrideEnded, Outcome::Refused(message.to_owned()))
}

fn kill_event(count: u64) -> NamedEvent {
    let second = jiff::Timestamp::from_second;
    NamedEvent {
        name: "web-0.kill-1".to_owned(),
        subject: Subject::Pod(app()),
        severity: Severity::Warning,
        reason: "OOMKilled",
        message: "first".to_owned(),
        first: second(1_700_000_000).unwrap(),
        last: second(1_700_000_009).unwrap(),
        count,
        annotations: vec![("offending_containers", "app".to_owned())],
        ..NamedEvent::default()
    }
}

async fn connect(kubeconfig: &Path) -> ApiClient {
    let metrics = ApiMetrics::register(&mut registry());
    ApiClient::connect(Some(kubeconfig), metrics).await.unwrap()
}

/// Waits for this many Events and returns them.
async fn events(cluster: &ApiServer, count: usize) -> Vec<Value> {
    loop {
        let list = cluster.get("/api/v1/namespaces/default/events");
        let items = list["items"].as_array().unwrap();
        if items.len() >= count {
            return items.clone();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_made_once_and_counted() {
    let Some(cluster) = ApiServer::start(Release::Legacy, "cluster_events::events_are_made_once_and_counted") else {
        return;
    };
    let client = connect(&cluster.kubeconfig(User::Agent)).await;
    let refused = post(&client, "node-1", &kill_event(3)).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("{apiGroups: [\"\"], resources: [events], verbs: [create]} in namespace default"),
        "{refused}"
    );

    cluster.grant("deploy/base");
    let written = loop {
        match post(&client, "node-1", &kill_event(3)).await {
            Ok(posted) => break posted,
            // The API server takes a moment to apply new rules.
            Err(error) => assert!(error.to_string().contains("lacks the rule"), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(written, Posted::Created);
    let again = post(&client, "node-1", &kill_event(5)).await.unwrap();
    assert_eq!(again, Posted::Existed { count: 3 });
    let posted = events(&cluster, 1).await;
    assert_eq!(posted.len(), 1, "the same thing is not said twice: {posted:#?}");
    assert_eq!(
        posted[0]["metadata"]["annotations"],
        json!({"offending_containers": "app"})
    );
    assert_eq!(posted[0]["involvedObject"]["fieldPath"], "spec.containers{app}");
    assert_eq!(posted[0]["source"], json!({"component": "vscaled", "host": "node-1"}));
    assert_eq!(
        (&posted[0]["firstTimestamp"], &posted[0]["lastTimestamp"]),
        (&json!("2023-11-14T22:13:20Z"), &json!("2023-11-14T22:13:29Z"))
    );

    let stop = CancellationToken::new();
    let records = Feed::default();
    let outbox = Outbox {
        client,
        node: "node-1".to_owned(),
        metadata: Arc::new(Nothing),
        changes: ChangeEvents::new(EventMetrics::register(&mut registry())),
        kills: Vec::new(),
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(outbox.run(records.listen())));
    for _ in 0..50 {
        records.send(Arc::new(refusal("over and over")), 1);
    }
    let repeated = async || {
        let all = events(&cluster, 2).await;
        assert_eq!(all.len(), 2, "{all:#?}");
        all.into_iter()
            .find(|event| event["message"] == "override ended: over and over" && event["count"] == 50)
    };
    while repeated().await.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.cancel();
}
