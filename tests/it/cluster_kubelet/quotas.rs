//! The agent does not enforce cpu limits that the kubelet does not enforce, and keeps to the quotas and LimitRanges of namespaces.

use http::Method;
use serde_json::json;
use vscaled::control::proto;

use super::{AT_FIRST, LARGER, SMALLER, Scene, WEB};
use crate::support::amounts::Amounts;
use crate::support::cluster::{User, objects};

const QUOTAS: &str = "/api/v1/namespaces/test/resourcequotas";
const NAMESPACE: &str = "test";

/// The same amounts without a cpu limit.
fn unbounded(containers: [(&'static str, Amounts); 2]) -> [(&'static str, Amounts); 2] {
    containers.map(|(name, amounts)| {
        let unbounded = Amounts {
            cpu_limit: None,
            ..amounts
        };
        (name, unbounded)
    })
}

#[tokio::test]
async fn a_kubelet_without_quotas_gets_none() {
    let configured = json!({"cpuCFSQuota": false});
    let Some(mut scene) = Scene::configured("cluster_kubelet::quotas::no_quota", &configured).await else {
        return;
    };
    scene.agent.set("--sweep-interval", "1s");
    scene.agent.start().await;
    scene.agent.reaches(WEB, "NotManaged").await;
    let pod = scene.runs(WEB).await;
    assert!(scene.holds(&pod, &unbounded(AT_FIRST)), "what the kubelet wrote");
    scene.cluster.apply(&objects::vpa("InPlaceOrRecreate"));
    for targets in [LARGER, SMALLER] {
        scene.recommend(&targets);
        let pod = scene.settles(WEB, &unbounded(targets)).await;
        scene.kill(&pod.containers["app"]);
        let restarted = async || {
            scene
                .running(WEB)
                .filter(|now| now.containers["app"] != pod.containers["app"])
        };
        scene.agent.until("the container to run again", restarted).await;
        scene.settles(WEB, &unbounded(targets)).await;
    }
    let passes = scene.agent.history().await.len();
    // Long enough for two periodic passes.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(scene.agent.history().await.len(), passes, "nothing is drift");
}

impl Scene {
    /// Allows the pods of the namespace this much memory. Without its controller, nothing but a quota's status makes it count.
    fn allow_memory(&self, limit: &str) {
        let amounts = |limit: &str| json!({"limits.memory": limit});
        let metadata = json!({"name": "team", "namespace": NAMESPACE});
        let spec = json!({"hard": amounts(limit)});
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec});
        self.cluster.apply(&quota);
        let status = json!({"hard": amounts(limit), "used": amounts("192Mi")});
        self.cluster.put_status(QUOTAS, "team", &status);
    }
}

#[tokio::test]
async fn quotas_and_limit_ranges_bound_direct_writes_once_they_may_be_read() {
    let Some(mut scene) = Scene::new("cluster_kubelet::quotas::quotas_and_limit_ranges").await else {
        return;
    };
    let before = scene.runs(WEB).await;
    scene.allow_memory("250Mi");
    let highest = json!({"type": "Container", "max": {"memory": "256Mi"}});
    scene.cluster.apply(&json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most", "namespace": NAMESPACE},
        "spec": {"limits": [highest]},
    }));
    scene.cluster.grant_without(objects::LEGACY, &["resourcequotas"]);
    let agent = scene.cluster.kubeconfig(User::Agent);
    let taken = || scene.cluster.request_as(&agent, Method::GET, QUOTAS, None).is_err();
    scene.agent.wait_for("the right to be taken away", taken).await;

    // Without the right, nothing bounds the writes, which is told.
    scene.agent.start().await;
    scene.agent.reaches(WEB, "NotManaged").await;
    scene.cluster.apply(&objects::vpa("InPlaceOrRecreate"));
    scene.recommend(&LARGER);
    scene.settles(WEB, &LARGER).await;
    let rule = ["the role lacks the rule", "resources: [resourcequotas], verbs: [list]"];
    scene.agent.reports(&rule).await;
    let checks = scene.agent.client().await.doctor().await.unwrap().checks;
    let is_named = |check: &proto::Check| check.found.contains("resourcequotas");
    assert!(checks.iter().any(is_named), "{checks:#?}");

    // With it, neither a recommendation nor an operator gets more than the quota allows.
    scene.cluster.grant(objects::LEGACY);
    let content = async || scene.agent.get().await.agent.filter(|agent| agent.problems.is_empty());
    scene.agent.until("no problem to be left", content).await;
    scene.recommend(&SMALLER);
    scene.settles(WEB, &SMALLER).await;
    scene.recommend(&LARGER);
    let numbers = "used: limits.memory=192Mi, limited: limits.memory=250Mi";
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.state == "Refused" && pod.detail.contains(numbers)).then_some(())
    };
    scene.agent.until("the quota to be named", says).await;
    let refused = scene.agent.resize(app_limit("256Mi")).await.unwrap_err();
    assert!(refused.to_string().contains("exceeded quota: team"), "{refused}");
    assert!(scene.holds(&before, &SMALLER));
    scene.allow_memory("1Gi");
    scene.settles(WEB, &LARGER).await;

    // What is above the highest limit of the LimitRange is lowered to it, with the request.
    let app = Amounts::doubled(320, 160);
    scene.recommend(&[("app", app), LARGER[1]]);
    let within = Amounts {
        memory: 128,
        memory_limit: Some(256),
        ..app
    };
    scene.settles(WEB, &[("app", within), LARGER[1]]).await;
    assert_eq!(scene.runs(WEB).await, before, "nothing was restarted");
}

/// An operator's request for this memory limit of the app.
fn app_limit(memory: &str) -> proto::ResizeRequest {
    let limits = proto::Amounts {
        cpu: None,
        memory: Some(memory.to_owned()),
    };
    let values = proto::Requirements {
        requests: None,
        limits: Some(limits),
    };
    proto::ResizeRequest {
        pod: format!("{NAMESPACE}/{WEB}"),
        containers: vec![proto::ContainerValues {
            name: "app".to_owned(),
            values: Some(values),
        }],
        ..proto::ResizeRequest::default()
    }
}
