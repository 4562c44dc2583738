//! The resources of the pod as a whole, which newer kubelets resize in place, with a status that has lost keys.

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::{LARGER, NAME, Scene, resources};

fn own(memory: [u64; 2]) -> Value {
    let [request, limit] = memory.map(|mebibytes| json!({"memory": format!("{mebibytes}Mi")}));
    json!({"requests": request, "limits": limit})
}

fn pod_limit(scene: &Scene) -> Option<MemoryLimit> {
    scene.node.held(&scene.pod)["pod"].memory_limit()
}

#[tokio::test]
async fn pod_level_resources_follow_containers() {
    let mut scene = Scene::new().await;
    let mut pod = scene.object();
    pod["spec"]["resources"] = own([100, 200]);
    // A status that has lost keys (kubernetes/kubernetes#141814).
    pod["status"]["resources"] = json!({"requests": {"memory": "100Mi"}});
    scene.api.put("pods", pod);
    scene.api.kubelet(|kubelet| kubelet.writes = None);
    let limit = |mebibytes: u64| MemoryLimit::Bytes(mebibytes << 20);
    scene.node.cgroups().limit_memory(&scene.pod.cgroup, limit(200));
    scene.start().await;
    scene.recommend(&LARGER);
    // Unset amounts of the pod come with the change, as the API server of 1.37 fills them in.
    let mut wanted = own([164, 328]);
    (wanted["requests"]["cpu"], wanted["limits"]["cpu"]) = (json!("300m"), json!("600m"));
    let followed = || scene.object()["spec"]["resources"] == wanted;
    scene
        .agent
        .wait_for("the pod's own resources to follow", followed)
        .await;
    scene.agent.reaches(NAME, "InSync").await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
    assert_eq!(pod_limit(&scene), Some(limit(328)));
}
