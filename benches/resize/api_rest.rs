//! The cost of an idle agent whose pods and VPAs come from an API server.
//!
//! The API server is the tests' model, as in `api`. The pods are as large as real ones, although the agent ignores
//! most of their fields.

use std::collections::BTreeMap;
use std::time::Duration;

use procfs::process::Process;
use serde_json::{Value, json};
use vscaled::plan::shrink::WATCH_PERIOD;

use crate::api::{NODE, object, owner, vpa};
use crate::rest::{Memory, SETTLE, measure_rest};
use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::apimodel::ApiModel;
use crate::support::tree::CgroupTree;

/// The amounts of earlier recommendations, all applied: an agent without earlier work does not represent an idle
/// agent.
const AMOUNTS: [Amounts; 4] = [
    Amounts::doubled(100, 64),
    Amounts::doubled(80, 48),
    Amounts::doubled(60, 40),
    Amounts::doubled(120, 96),
];
/// Without a call for this time, no work at the API server is pending.
const SILENCE: Duration = Duration::from_secs(30);
const AT_FIRST: Amounts = Amounts::doubled(50, 32);

pub(crate) async fn measure(pods: usize, period: Duration) -> anyhow::Result<()> {
    let tree = CgroupTree::new();
    let kubepods = tree.make("kubepods");
    let api = ApiModel::start(NODE, &json!({"cpu": "400", "memory": "800Gi"})).await;
    api.put("replicasets", owner());
    api.put("verticalpodautoscalers", vpa(AT_FIRST));
    let mut length = 0;
    let containers: Vec<_> = (0..pods)
        .map(|pod| {
            let (uid, id) = (format!("0a1b2c3d-0000-4000-8000-{pod:012x}"), format!("{pod:064x}"));
            let container = tree.make(&format!("kubepods/burstable/pod{uid}/{id}"));
            let object = lengthened(object(&format!("web-{pod}"), &uid, &id, AT_FIRST));
            length = object.to_string().len();
            api.put("pods", object);
            container
        })
        .collect();
    let mut agent = Agent::new(&kubepods)
        .with("--source", "kubernetes")
        .with("--node-name", NODE)
        .with("--kubeconfig", api.kubeconfig());
    agent.start().await;
    let process = Process::new(agent.pid())?;
    let all_known = async || (agent.get().await.pods.len() == pods).then_some(());
    agent.until("all pods to be known", all_known).await;
    let fresh = Memory::of(&process)?;
    let all_hold = |amounts: Amounts| {
        let settings = amounts.settings(tree.version());
        containers.iter().all(|container| tree.holds(container, &settings))
    };
    for amounts in AMOUNTS {
        api.put("verticalpodautoscalers", vpa(amounts));
        agent.wait_for("all pods to be resized", || all_hold(amounts)).await;
        for pod in 0..pods {
            agent.reaches(&format!("web-{pod}"), "InSync").await;
        }
    }
    // Waits until no shrink is watched any more.
    tokio::time::sleep(WATCH_PERIOD + SETTLE).await;
    // Events about so many changes are spread over minutes.
    let mut calls = api.all_calls();
    loop {
        tokio::time::sleep(SILENCE).await;
        let before = std::mem::replace(&mut calls, api.all_calls());
        if calls == before {
            break;
        }
    }

    println!("\nat rest with {pods} pods from an API server, {length} bytes each");
    measure_rest(&process, period, &fresh).await?;
    let made = since(&calls, &api.all_calls());
    println!("  {:<44} {made}", "calls to the API server");
    Ok(())
}

/// The calls since then, with their numbers.
fn since(before: &BTreeMap<String, usize>, now: &BTreeMap<String, usize>) -> String {
    let made = now.iter().filter_map(|(call, count)| {
        let more = count - before.get(call).copied().unwrap_or_default();
        (more > 0).then(|| format!("{more} {call}"))
    });
    let made: Vec<_> = made.collect();
    if made.is_empty() {
        "none".to_owned()
    } else {
        made.join(", ")
    }
}

/// Adds the usual content of real pods: the template's environment and mounts, and managed fields.
fn lengthened(mut pod: Value) -> Value {
    let environment =
        (0..20).map(|number| json!({"name": format!("SETTING_{number}"), "value": "a value like many others"}));
    pod["spec"]["containers"][0]["env"] = environment.collect();
    let mounts =
        (0..6).map(|number| json!({"name": format!("volume-{number}"), "mountPath": format!("/var/lib/web/{number}")}));
    pod["spec"]["containers"][0]["volumeMounts"] = mounts.collect();
    let fields = (0..60).map(|number| (format!("f:field-{number}"), json!({".": {}, "f:value": {}})));
    let fields: serde_json::Map<_, _> = fields.collect();
    pod["metadata"]["managedFields"] = json!([{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}]);
    pod
}
