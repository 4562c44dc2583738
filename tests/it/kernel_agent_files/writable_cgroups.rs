//! A container with writable cgroups (KEP-5474) sets limits below its own, and the agent leaves those alone.

use vscaled::model::{CgroupPath, MemoryLimit};

use super::{AT_FIRST, ROOMY, Scene};

/// Sets the memory limit of a cgroup that the container created, in MiB.
fn limit(scene: &Scene, cgroup: &CgroupPath, mebibytes: u64) {
    scene
        .node
        .cgroups()
        .limit_memory(cgroup, MemoryLimit::Bytes(mebibytes << 20));
}

#[tokio::test]
async fn limits_below_a_containers_own_are_left_alone() {
    let mut scene = Scene::new();
    let id = scene.pod.containers["app"].id.clone();
    let below = |name: &str| format!("kubepods/burstable/pod{}/{id}/{name}", scene.pod.uid);
    let own = &scene.pod.containers["app"].cgroup;
    scene.node.cgroups().move_below(own, "container");
    // The names of crun's inner cgroup, and of systemd's in a container.
    let nested = ["container", "init.scope"].map(|name| scene.node.cgroups().make(&below(name)));
    for cgroup in &nested {
        limit(&scene, cgroup, 24);
        scene.node.spawn(cgroup, "exec sleep 1000");
    }
    let held = |scene: &Scene| nested.each_ref().map(|cgroup| scene.node.cgroups().settings(cgroup));
    let chosen = held(&scene);
    scene.agent.set("--sweep-interval", "1s");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    for targets in [&ROOMY, &AT_FIRST, &ROOMY] {
        scene.recommend(targets);
        scene.settles(targets).await;
        assert_eq!(held(&scene), chosen);
    }
    let changes = scene.agent.history().await.len();
    limit(&scene, &nested[0], 16);
    let chosen = held(&scene);
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(held(&scene), chosen, "nor is a change of theirs drift");
    assert_eq!(scene.agent.history().await.len(), changes);
    assert!(scene.holds(&ROOMY));
    assert_eq!(chosen[0].memory_limit(), Some(MemoryLimit::Bytes(16 << 20)));
}
