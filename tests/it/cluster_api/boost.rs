//! Startup boosts where the kubelet does not resize in place: the spec keeps the boosted values, and the pod keeps
//! its annotation.

use std::time::Duration;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use vscaled::kubernetes::metrics::ApiMetrics;
use vscaled::kubernetes::{Annotations, ApiClient};
use vscaled::model::objects::PodId;

use super::{APP, AT_FIRST, Amounts, Scene};
use crate::support::cluster::{User, objects};

const ANNOTATION: &str = "vpaCpuStartupBoost/app";
const BEFORE: [(&str, Amounts); 1] = [(
    "app",
    Amounts {
        cpu: 40,
        cpu_limit: Some(80),
        ..APP
    },
)];

impl Scene {
    fn object(&self) -> Value {
        self.cluster.get(&format!("{}/{}", objects::PODS, self.pod.name))
    }

    fn becomes_ready(&self) {
        let mut status = self.object()["status"].clone();
        status["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        self.cluster.put_status(objects::PODS, self.pod.name, &status);
    }
}

#[tokio::test]
async fn a_boost_ends_in_the_kernel_and_stays_ended() {
    let Some(mut scene) = Scene::new("cluster_api::boost::a_boost_ends") else {
        return;
    };
    let before = objects::resources(BEFORE[0].1).to_string();
    let mark = format!("{ANNOTATION}={before}");
    scene
        .cluster
        .kubectl(&["--namespace=test", "annotate", "pod", scene.pod.name, &mark], "");
    let mut vpa = objects::vpa("Off");
    vpa["spec"]["startupBoost"] = json!({"cpu": {"type": "Quantity", "quantity": "60m", "durationSeconds": 5}});
    scene.cluster.apply(&vpa);
    scene.agent.start().await;
    let explained = async || {
        let reply = scene.agent.client().await.explain(scene.pod.full_name()).await.ok()?;
        let words = "app: cpu keeps its startup boost until the pod has been ready for 5 s";
        reply.notes.iter().any(|note| note == words).then_some(())
    };
    scene.agent.until("the boost to be explained", explained).await;
    assert!(scene.node.holds(&scene.pod, &AT_FIRST));

    scene.becomes_ready();
    scene.settles(&BEFORE).await;
    let says = || scene.object()["metadata"]["annotations"]["vscaled.io/applied"].clone();
    let applied = format!(r#"{{"app":{before}}}"#);
    let applied: Value = serde_json::from_str(&applied).unwrap();
    let said = || says().as_str().and_then(|said| serde_json::from_str(said).ok()) == Some(applied.clone());
    scene.agent.wait_for("the pod to say what is applied", said).await;
    assert!(scene.object()["metadata"]["annotations"].get(ANNOTATION).is_some());
    assert!(scene.node.all_run(&scene.pod));

    // The spec still has the boosted values. The agent ignores them.
    scene.agent.kill();
    scene.agent.start().await;
    scene.settles(&BEFORE).await;
}

#[tokio::test]
async fn deployed_rights_remove_an_annotation_and_change_no_spec() {
    let Some(scene) = Scene::new("cluster_api::boost::the_rights") else {
        return;
    };
    let name = scene.pod.name;
    let mark = format!("{ANNOTATION}={{}}");
    scene
        .cluster
        .kubectl(&["--namespace=test", "annotate", "pod", name, &mark], "");
    let before = scene.object();
    let kubeconfig = scene.cluster.kubeconfig(User::Agent);
    let metrics = ApiMetrics::register(&mut Registry::default());
    let client = ApiClient::connect(Some(&kubeconfig), metrics).await.unwrap();
    let pod = PodId {
        uid: scene.pod.uid.into(),
        namespace: "test".to_owned(),
        name: name.to_owned(),
    };
    let removed = Annotations::from([(ANNOTATION.to_owned(), None)]);
    client.annotate(&pod, &removed, Duration::from_secs(30)).await.unwrap();
    let after = scene.object();
    assert_eq!(after["metadata"]["annotations"].get(ANNOTATION), None);
    assert_eq!(after["spec"], before["spec"]);
    let may = ["auth", "can-i", "patch", "pods", "--namespace=test"];
    let refused = scene.cluster.try_kubectl(User::Agent, &may, "");
    assert!(refused.is_err(), "{refused:?}");
}
