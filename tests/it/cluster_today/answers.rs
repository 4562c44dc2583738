//! What the kubelet and the API server answer.

use serde_json::json;

use super::{APP, LARGER, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;

#[tokio::test]
async fn a_resize_that_the_node_has_no_room_for_is_done_when_there_is_room() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_resize_that_the_node_has_no_room_for").await else {
        return;
    };
    // The pod that is in the way has what the larger one lacks.
    let cores = scene.allocatable_cpu();
    let (large, in_the_way) = (cores * 6 / 10, cores / 2);
    scene.make_pod(
        WEB,
        &json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]}),
    );
    let other = json!({"requests": {"cpu": format!("{in_the_way}m"), "memory": "64Mi"}});
    scene.make_pod_of(
        "in-the-way",
        &json!([]),
        &json!({"containers": [{"name": "app", "resources": other}]}),
    );
    let before = scene.runs(WEB).await;
    scene.runs("in-the-way").await;
    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    let target = Amounts::doubled(large, 96);
    scene.recommend(&[("app", target)]);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        pod.detail.contains("the node has no room").then_some(())
    };
    scene.agent.until("the lack of room to be named", says).await;
    let object = scene.object(WEB);
    assert_eq!(
        scene.levels(&object),
        scene.levels(&before),
        "nothing is written until there is room"
    );

    scene.delete(&scene.pods(), "in-the-way");
    let after = scene.is_resized(WEB, "app", &objects::resources(target)).await;
    nothing_restarted(&before, &after);
    scene.agent.reaches(WEB, "InSync").await;
}

#[tokio::test]
async fn a_resize_by_a_user_is_taken_back_to_the_recommendation() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_resize_by_a_user").await else {
        return;
    };
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    let levels = scene.levels(&resized);

    let foreign = objects::resources(Amounts::doubled(150, 80));
    scene.resize(WEB, &json!({"containers": [{"name": "app", "resources": foreign}]}));
    let after = scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    let generation = |pod: &serde_json::Value| pod["metadata"]["generation"].as_u64().unwrap();
    assert!(
        generation(&after) >= generation(&resized) + 2,
        "the foreign resize was never there"
    );
    assert_eq!(scene.levels(&after), levels);
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn a_quota_that_refuses_leaves_every_level_as_it_was_and_is_named() {
    let Some(mut scene) = Scene::new("cluster_today::answers::a_quota").await else {
        return;
    };
    scene.make_pod(
        WEB,
        &json!({"containers": [{"name": "app", "resources": objects::resources(APP)}]}),
    );
    let before = scene.runs(WEB).await;
    let hard = json!({"requests.memory": "80Mi"});
    scene.apply(
        "v1",
        "ResourceQuota",
        "small",
        json!({}),
        &json!({"spec": {"hard": hard}}),
    );
    // Without its controller, nothing but the API server's status makes a quota count.
    let quotas = scene.collection("api/v1") + "/resourcequotas";
    let status = json!({"hard": hard, "used": {"requests.memory": "64Mi"}});
    scene.today.api.put_status(&quotas, "small", &status);
    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", LARGER)]);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        pod.detail.contains("exceeded quota").then_some(pod)
    };
    scene.agent.until("the quota to be named", says).await;
    let after = scene.object(WEB);
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(scene.levels(&after), scene.levels(&before));
    scene.delete(&quotas, "small");
}

impl Scene {
    /// The node's cpu in thousandths of a core.
    fn allocatable_cpu(&self) -> u64 {
        let node = self.today.api.get("/api/v1/nodes/node-1");
        let cpu = node["status"]["allocatable"]["cpu"].as_str().unwrap();
        match cpu.strip_suffix('m') {
            Some(millis) => millis.parse().unwrap(),
            None => cpu.parse::<u64>().unwrap() * 1000,
        }
    }
}
