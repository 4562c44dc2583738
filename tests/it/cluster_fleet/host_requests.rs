//! The fleet driver sends the same requests as an agent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use vscaled::kubernetes::Timing;

use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::apimodel::{ApiModel, objects};
use crate::support::bare::{BareNode, BarePod};
use crate::support::fleet::{Calls, Local};

const NODE: &str = "node-1";
const APP: Amounts = Amounts::doubled(100, 64);

#[tokio::test]
async fn what_the_driver_of_the_fleet_asks_for_is_what_an_agent_follows() {
    let mut node = BareNode::new();
    let pod = node.run("web", "0a1b2c3d-0000-4000-8000-0000000000f1", &[("app", APP)]);

    let api = cluster(&pod).await;
    let calls = Calls::new();
    let source = Local::start(calls.connect(api.kubeconfig()).await, NODE, Timing::default());
    let mut states = source.states.clone();
    let known = states.wait_for(|state| {
        state.view.as_ref().is_some_and(|view| {
            let vpas = view.namespaces.values().flat_map(|known| &known.vpas);
            view.pods().count() == 1 && vpas.count() == 1
        })
    });
    known.await.unwrap();
    let by_the_driver = followed(&api);
    assert!(by_the_driver.len() > 6, "{by_the_driver:?}");
    assert!(calls.answered()[0] > 0);

    let api = cluster(&pod).await;
    let mut agent = Agent::new(&node.kubepods())
        .with("--source", "kubernetes")
        .with("--node-name", NODE)
        .with("--kubeconfig", api.kubeconfig());
    agent.start().await;
    let same = || followed(&api) == by_the_driver;
    agent
        .wait_for(&format!("an agent to ask for {by_the_driver:?}"), same)
        .await;
    // No other requests follow.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(followed(&api), by_the_driver);
}

async fn cluster(pod: &BarePod) -> ApiModel {
    let api = ApiModel::start(NODE, &json!({"cpu": "64", "memory": "64Gi"})).await;
    api.put("deployments", objects::workload("web", "web", None));
    api.put("replicasets", objects::workload("web-rs", "web", Some("web")));
    api.put("verticalpodautoscalers", objects::vpa("web", &[("app", APP)]));
    api.put("pods", objects::running_pod(pod, "web", "web-rs", NODE));
    api
}

/// The number of lists and watches of each kind, and of reads of each workload.
fn followed(api: &ApiModel) -> BTreeMap<String, usize> {
    let mut calls = api.all_calls();
    calls.retain(|call, _| {
        let (verb, resource) = call.split_once(' ').unwrap_or_default();
        // An agent reads an object again before it writes to it.
        ["list", "watch"].contains(&verb) || (verb == "get" && resource != "pods")
    });
    calls
}
