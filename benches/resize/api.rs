//! From a VPA's status at the API server to every level of the pod, where the kubelet resizes in place.
//!
//! The API server and the kubelet are the tests' models (`support::apimodel`). Watches, patches and cgroups are real,
//! and the kubelet takes 310 ms, like a measured real one. The benchmark waits for the kubelet between two rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vscaled::control::proto;

use crate::common::{Samples, Table};
use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::apimodel::{ApiModel, Link};
use crate::support::bare::BareNode;

pub(crate) const NODE: &str = "node-1";
const NAME: &str = "web-1";
const UID: &str = "0a1b2c3d-0000-4000-8000-000000000081";
/// The time until a kubelet of 1.36 with containerd had written a cgroup.
const KUBELET: Duration = Duration::from_millis(310);
/// The pause before a changed recommendation: the agent follows one every five seconds in the long run.
const BETWEEN: Duration = Duration::from_secs(5);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<()> {
    let mut node = BareNode::new();
    let kubepods = node.kubepods();
    let at_first = Amounts::doubled(100, 64);
    let pod = node.run(NAME, UID, &[("app", at_first)]);
    let api = ApiModel::start(NODE, &json!({"cpu": "4", "memory": "8Gi"})).await;
    api.kubelet(|kubelet| kubelet.delay = KUBELET / 2);
    let writes = |_: &vscaled::model::objects::Pod| {};
    api.kubelet(|kubelet| kubelet.writes = Some(Arc::new(writes)));
    api.put("replicasets", owner());
    api.put("pods", object(NAME, UID, &pod.containers["app"].id, at_first));
    api.put("verticalpodautoscalers", vpa(at_first));
    let mut agent = Agent::new(&kubepods)
        .with("--source", "kubernetes")
        .with("--node-name", NODE)
        .with("--kubeconfig", api.kubeconfig());
    agent.start().await;
    agent.reaches(NAME, "NotManaged").await;

    let (mut verified, mut inside, mut asked) = (Samples::default(), Samples::default(), Samples::default());
    // A dry run precedes the first patch.
    for round in 0..=rounds {
        let target = if round % 2 == 0 {
            Amounts::doubled(200, 100)
        } else {
            Amounts::doubled(250, 120)
        };
        tokio::time::sleep(BETWEEN + Duration::from_millis(fastrand::u64(..150))).await;
        let start = Instant::now();
        api.put("verticalpodautoscalers", vpa(target));
        while !node.holds(&pod, &[("app", target)]) {
            anyhow::ensure!(start.elapsed() < PATIENCE, "waited in vain\n{}", agent.log());
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        let took = start.elapsed();
        let settled = || api.get("pods", NAME).is_some_and(|pod| is_settled(&pod));
        agent.wait_for("the kubelet to follow", settled).await;
        agent.reaches(NAME, "InSync").await;
        if round > 0 {
            verified.push(took);
            if let Some(change) = agent
                .history()
                .await
                .into_iter()
                .rev()
                .find(|change| change.cause.contains("VPA"))
            {
                let stages = change.stages.unwrap_or_default();
                inside.push(Duration::from_micros(stages.verified_us));
                asked.push(Duration::from_micros(stages.ask_us));
            }
        }
    }
    let mut by_hand = Samples::default();
    for round in 0..rounds {
        let memory = if round % 2 == 0 { "256Mi" } else { "320Mi" };
        let request = pod.limits_by_hand(proto::Amounts {
            cpu: None,
            memory: Some(memory.to_owned()),
        });
        let start = Instant::now();
        let change = agent.resize(request).await?;
        by_hand.push(start.elapsed());
        anyhow::ensure!(change.outcome == "Applied", "{change:?}");
        let settled = || api.get("pods", NAME).is_some_and(|pod| is_settled(&pod));
        agent.wait_for("the kubelet to follow", settled).await;
    }
    agent.release(&pod.full_name()).await?;
    let mut table = Table::new(
        "api",
        "A VPA's status at the API server → every level, past a kubelet that takes 310 ms",
    );
    table.row("status written → all levels hold it", verified);
    table.row("decided → verified, in the agent", inside);
    table.row("of that at the API server", asked);
    table.row("called at the socket → all levels, answered", by_hand);
    table.print()?;

    let mut table = Table::new(
        "outage",
        "Limits set and released by hand while the API server is known to be away → every level",
    );
    for (how, link) in [("refuses connections", Link::Cut), ("says nothing", Link::Silent)] {
        api.link(link);
        agent.reports(&["cannot be reached"]).await;
        let (mut set, mut released) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let start = Instant::now();
            let request = pod.limits_by_hand(proto::Amounts {
                cpu: None,
                memory: Some("256Mi".to_owned()),
            });
            let change = agent.resize(request).await?;
            set.push(start.elapsed());
            anyhow::ensure!(change.outcome == "SpecLater", "{change:?}");
            let start = Instant::now();
            agent.release(&pod.full_name()).await?;
            released.push(start.elapsed());
        }
        table.row(format!("it {how}: set, answered"), set);
        table.row(format!("it {how}: released, answered"), released);
        api.link(Link::Up);
        agent.reaches(NAME, "InSync").await;
    }
    table.print()?;
    Ok(())
}

fn is_settled(pod: &Value) -> bool {
    pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
        && pod["status"]["conditions"].as_array().is_some_and(Vec::is_empty)
}

fn resources(amounts: Amounts) -> Value {
    let list = |cpu: u64, memory: u64| json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
    json!({
        "requests": list(amounts.cpu, amounts.memory),
        "limits": list(2 * amounts.cpu, 2 * amounts.memory),
    })
}

/// The owner of all pods.
pub(crate) fn owner() -> Value {
    let selector = json!({"selector": {"matchLabels": {"app": "web"}}});
    json!({"metadata": {"name": "web", "namespace": "test", "uid": "o"}, "spec": selector})
}

/// A pod of one container.
pub(crate) fn object(name: &str, uid: &str, id: &str, amounts: Amounts) -> Value {
    let has = resources(amounts);
    json!({
        "metadata": {"name": name, "namespace": "test", "uid": uid, "generation": 1, "labels": {"app": "web"},
            "annotations": {}, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true}
            ]},
        "spec": {"nodeName": NODE, "containers": [{"name": "app", "resources": has}]},
        "status": {
            "phase": "Running", "qosClass": "Burstable", "observedGeneration": 1, "conditions": [],
            "containerStatuses": [{
                "name": "app", "containerID": format!("containerd://{id}"), "state": {"running": {}},
                "resources": has, "allocatedResources": has["requests"],
            }],
        },
    })
}

/// The VPA of all pods.
pub(crate) fn vpa(amounts: Amounts) -> Value {
    let target = &resources(amounts)["requests"];
    let recommended = json!([{"containerName": "app", "target": target, "lowerBound": target, "upperBound": target}]);
    json!({
        "metadata": {"name": "web", "namespace": "test"},
        "spec": {"targetRef": {"kind": "ReplicaSet", "name": "web"}, "updatePolicy": {"updateMode": "InPlaceOrRecreate"}},
        "status": {"recommendation": {"containerRecommendations": recommended}},
    })
}
