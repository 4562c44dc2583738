//! What differs between versions of the kubelet when somebody else resizes a pod: rows of docs/support.md.

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::{APP, HOLDS_60_MB, LARGER, LEAST_FOR_POD_LEVEL, Scene, WEB, kubelet_minor, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

/// The first minor versions of kubelets that tell with an Event that a resize was completed, and that one has begun.
const LEAST_FOR_COMPLETED: u32 = 34;
const LEAST_FOR_STARTED: u32 = 35;

impl Scene {
    /// Runs a pod that the agent does not manage.
    async fn runs_unmanaged(&self, spec: &Value) -> Value {
        self.make_pod_of(WEB, &json!([]), spec);
        self.runs(WEB).await
    }
}

#[tokio::test]
async fn a_resize_has_the_events_of_this_version() {
    let Some(scene) = Scene::new("cluster_today::kubelets::a_resize_has_the_events").await else {
        return;
    };
    let app = json!({"name": "app", "resources": objects::resources(APP)});
    let before = scene.runs_unmanaged(&json!({"containers": [app]})).await;
    let larger = objects::resources(LARGER);
    scene.resize(WEB, &json!({"containers": [{"name": "app", "resources": larger}]}));
    let after = scene.is_resized(WEB, "app", &larger).await;
    nothing_restarted(&before, &after);
    for (reason, least) in [
        ("ResizeCompleted", LEAST_FOR_COMPLETED),
        ("ResizeStarted", LEAST_FOR_STARTED),
    ] {
        let are_there = || !scene.events(WEB, reason).is_empty();
        if kubelet_minor() >= least {
            scene.agent.wait_for(&format!("the Event {reason}"), are_there).await;
        } else {
            assert!(!are_there(), "{:?}", scene.events(WEB, reason));
        }
    }
}

#[tokio::test]
async fn a_limit_below_what_is_in_use_is_refused() {
    let Some(scene) = Scene::new("cluster_today::kubelets::a_limit_below").await else {
        return;
    };
    let command = ["/bin/sh", "-c", HOLDS_60_MB];
    let app = json!({"name": "app", "resources": objects::resources(APP), "command": command});
    let before = scene.runs_unmanaged(&json!({"containers": [app]})).await;
    scene.is_ready(&before, "app").await;
    let levels = scene.levels(&before);
    let smaller = objects::resources(Amounts::doubled(100, 16));
    scene.resize(WEB, &json!({"containers": [{"name": "app", "resources": smaller}]}));
    let message = scene.is_answered(WEB, "Error").await;
    assert!(message.contains("memory"), "{message}");
    let after = scene.object(WEB);
    assert_eq!(scene.levels(&after), levels);
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn newer_kubelets_resize_pod_resources() {
    let Some(scene) = Scene::new("cluster_today::kubelets::a_pods_own_resources").await else {
        return;
    };
    let of_pod = |memory: &str| json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": memory}});
    let spec = json!({"resources": of_pod("128Mi"), "containers": [{"name": "app"}]});
    let before = scene.runs_unmanaged(&spec).await;
    let limit = || scene.levels(&before)[""].memory_limit();
    let at_first = limit();
    let answer = scene.try_resize(WEB, &json!({"resources": of_pod("192Mi")}));
    if kubelet_minor() >= LEAST_FOR_POD_LEVEL {
        answer.unwrap();
        let is_larger = || limit() == Some(MemoryLimit::Bytes(192 << 20));
        scene
            .agent
            .wait_for("the pod's own limit to be raised", is_larger)
            .await;
    } else {
        let refusal = answer.expect_err("the API server knows what this node's kubelet resizes");
        assert!(
            refusal.contains("InPlacePodLevelResourcesVerticalScaling which are not available on node"),
            "{refusal}"
        );
        assert_eq!(limit(), at_first);
    }
    nothing_restarted(&before, &scene.object(WEB));
}
