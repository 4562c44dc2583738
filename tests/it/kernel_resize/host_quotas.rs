//! Quotas and LimitRanges are held where the kubelet does not resize, here one of 1.30. `cluster_today::answers` and
//! `cluster_today::security` have kubelets that resize.

use serde_json::json;
use vscaled::model::MemoryLimit;

use super::host_others::limits;
use super::{APP, AT_FIRST, LARGER, NAME, NODE, Scene, resources};
use crate::support::apimodel::{Effect, Fault};

impl Scene {
    /// A node whose kubelet does not resize, before the agent starts.
    async fn of_an_old_kubelet() -> Self {
        let scene = Self::new().await;
        scene.api.change("nodes", NODE, |node| {
            node["status"]["nodeInfo"] = json!({"kubeletVersion": "v1.30.2"});
        });
        scene.api.change("pods", NAME, |pod| {
            let status = pod["status"]["containerStatuses"][0].as_object_mut().unwrap();
            status.remove("resources");
            status.remove("allocatedResources");
        });
        scene
    }

    fn quota(&self, hard: &str) {
        let [hard, used] = [hard, "128Mi"].map(|amount| json!({"limits.memory": amount}));
        let namespace = self.object()["metadata"]["namespace"].clone();
        let quota = json!({
            "metadata": {"name": "team", "namespace": namespace},
            "spec": {"hard": hard}, "status": {"hard": hard, "used": used},
        });
        self.api.put("resourcequotas", quota);
    }

    /// Recommends and requests more than a quota of 150Mi allows: both are refused, and no value changes.
    async fn refuses_beyond_the_quota(&self) {
        self.recommend(&LARGER);
        self.reaches_with_detail("Refused", "used: limits.memory=128Mi, limited: limits.memory=150Mi")
            .await;
        assert!(self.holds(&AT_FIRST));
        let refused = self
            .agent
            .resize(limits(&self.pod, None, Some("256Mi")))
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("exceeded quota: team"), "{refused}");
        assert!(self.holds(&AT_FIRST));
    }
}

#[tokio::test]
async fn a_quota_bounds_direct_writes() {
    let mut scene = Scene::of_an_old_kubelet().await;
    scene.quota("150Mi");
    scene.start().await;
    scene.refuses_beyond_the_quota().await;
    scene.quota("1Gi");
    scene.settles(&LARGER).await;
    assert_eq!(
        (scene.spec(), scene.api.calls("patch pods/resize")),
        (resources(APP), 0)
    );
}

#[tokio::test]
async fn a_missing_right_to_quotas_is_named() {
    let mut scene = Scene::of_an_old_kubelet().await;
    scene.quota("150Mi");
    for verb in ["list", "watch"] {
        scene.api.fault(Fault {
            verb,
            resource: "resourcequotas",
            times: None,
            effect: Effect::Forbidden,
        });
    }
    scene.start().await;
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    scene
        .agent
        .reports(&["resourcequotas", "the role lacks the rule"])
        .await;
    let checks = scene.agent.client().await.doctor().await.unwrap().checks;
    assert!(
        checks.iter().any(|check| check.found.contains("resourcequotas")),
        "{checks:#?}"
    );
}

#[tokio::test]
async fn a_limit_range_bounds_direct_writes() {
    let mut scene = Scene::of_an_old_kubelet().await;
    let namespace = scene.object()["metadata"]["namespace"].clone();
    let most = json!({"type": "Container", "max": {"memory": "192Mi"}});
    let range = json!({"metadata": {"name": "most", "namespace": namespace}, "spec": {"limits": [most]}});
    scene.api.put("limitranges", range);
    scene.start().await;
    scene.recommend(&LARGER);
    let limit = || scene.node.held(&scene.pod)["app"].memory_limit();
    let highest = Some(MemoryLimit::Bytes(192 << 20));
    scene
        .agent
        .wait_for("the highest limit of the range", || limit() == highest)
        .await;
}
