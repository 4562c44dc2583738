//! What real parts have shown, and models of them had not.

use serde_json::json;

use super::{APP, LARGER, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

#[tokio::test]
async fn after_observing_only_annotated_pods_are_resized() {
    let Some(mut scene) = Scene::new("cluster_today::defects::an_agent_that_observed").await else {
        return;
    };
    let spec = json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]});
    scene.make_pod(WEB, &spec);
    let before = scene.runs(WEB).await;
    let levels = scene.levels(&before);
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", LARGER)]);
    scene.agent.set("--observe-only", "true");
    scene.agent.start().await;
    let decided = async || scene.agent.pod(WEB).await.filter(|pod| pod.action == "resize");
    scene.agent.until("a decision", decided).await;
    scene.agent.stop();

    scene.agent.set("--observe-only", "false");
    scene.agent.set("--update-modes", "");
    scene.agent.start().await;
    scene.agent.reaches(WEB, "NotManaged").await;
    let untouched = scene.object(WEB);
    assert_eq!(untouched["spec"], before["spec"], "nobody allowed that");
    assert_eq!(untouched["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(scene.levels(&untouched), levels);

    scene.annotate_vpa("vscaled.io/act=true");
    let pod = scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    nothing_restarted(&before, &pod);
}

#[tokio::test]
async fn twenty_recommendations_are_twenty_resizes() {
    let Some(mut scene) = Scene::new("cluster_today::defects::twenty_recommendations").await else {
        return;
    };
    let before = scene.follows_app().await;
    let first = before["metadata"]["generation"].as_u64().unwrap();
    for round in 1..=20 {
        if round == 11 {
            // An agent follows ten recommendations of a pod at once, and then one each five seconds.
            scene.agent.stop();
            scene.agent.start().await;
            scene.agent.reaches(WEB, "InSync").await;
        }
        let target = Amounts::doubled(100 + 5 * round, 64 + 2 * (round % 5));
        scene.recommend(&[("app", target)]);
        let pod = scene.app_reaches(target).await;
        assert_eq!(pod["metadata"]["generation"], first + round, "resizes so far");
    }
    let after = scene.object(WEB);
    assert_eq!(after["metadata"]["generation"], first + 20);
    nothing_restarted(&before, &after);
}

impl Scene {
    fn annotate_vpa(&self, annotation: &str) {
        let namespace = format!("--namespace={}", self.namespace);
        let annotate = [
            "annotate",
            "verticalpodautoscaler",
            "web",
            annotation,
            "--overwrite",
            &namespace,
        ];
        self.today.api.kubectl(&annotate, "");
    }
}
