//! Further objects that newer kubelets resize in place: sidecars, and the resources of the pod as a whole.

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::{APP, Amounts, LARGER, NAME, Scene, resources};

const MESH: Amounts = Amounts::doubled(20, 16);

/// A recommendation for `app` and for the sidecar `mesh`.
const BOTH: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("mesh", Amounts::doubled(40, 32))];

#[tokio::test]
async fn a_sidecar_is_patched_as_an_init_container() {
    let mut scene = Scene::new().await;
    scene.node.run_container(&mut scene.pod, "mesh", MESH);
    scene.api.kubelet(|kubelet| kubelet.writes = None);
    let mut pod = scene.object();
    let has = resources(MESH);
    pod["spec"]["initContainers"] =
        json!([{"name": "mesh", "image": "none", "restartPolicy": "Always", "resources": has.clone()}]);
    pod["status"]["initContainerStatuses"] = json!([{
        "name": "mesh", "containerID": format!("containerd://{}", scene.pod.containers["mesh"].id), "ready": true,
        "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "resources": has.clone(), "allocatedResources": has["requests"],
    }]);
    scene.api.put("pods", pod);
    scene.node.put(
        &scene.pod.cgroup,
        &Amounts::sum([APP, MESH]).settings(scene.node.cgroups().version()),
    );
    scene.start().await;
    scene.recommend(&BOTH);
    scene.settles(&BOTH).await;
    assert_eq!(scene.spec(), resources(BOTH[0].1));
    assert_eq!(
        scene.object()["spec"]["initContainers"][0]["resources"],
        resources(BOTH[1].1)
    );
    assert_eq!(scene.api.calls("patch pods/resize"), 1, "one transaction");
}

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
    let followed = || scene.object()["spec"]["resources"] == own([164, 328]);
    scene
        .agent
        .wait_for("the pod's own resources to follow", followed)
        .await;
    scene.agent.reaches(NAME, "InSync").await;
    assert_eq!(scene.spec(), resources(LARGER[0].1));
    assert_eq!(pod_limit(&scene), Some(limit(328)));
}
