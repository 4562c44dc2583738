//! Values in the kernel that another program changes.

use vscaled::model::{Bytes, CgroupPath, MemoryLimit, Setting};

use super::{LARGER, Scene, WEB, nothing_restarted};

/// Lowers a memory limit, as another program does.
fn lower(cgroup: &CgroupPath) {
    let foreign = Setting::MemoryMax(MemoryLimit::Bytes(100 << 20));
    let file = cgroup.under("/sys/fs/cgroup".as_ref()).join("memory.max");
    std::fs::write(file, foreign.to_write()).unwrap();
}

#[tokio::test]
async fn anothers_limit_is_put_back_and_specs_stay() {
    let Some(mut scene) = Scene::new("cluster_today::drift::a_limit").await else {
        return;
    };
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(LARGER).await;
    let levels = scene.levels(&resized);
    let limit = levels["app"].memory_limit().and_then(MemoryLimit::bounded);
    assert_eq!(limit.map(Bytes::get), Some(192 << 20));
    let pod = scene.today.pod_cgroup(&resized);
    for cgroup in [&scene.cgroup(&resized, "app"), &pod] {
        lower(cgroup);
        scene
            .agent
            .wait_for("the limit to be put back", || scene.levels(&resized) == levels)
            .await;
    }
    // The same for what was written while no agent ran.
    scene.agent.stop();
    lower(&pod);
    scene.agent.start().await;
    scene
        .agent
        .wait_for("the limit to be put back", || scene.levels(&resized) == levels)
        .await;
    let after = scene.object(WEB);
    assert_eq!(after["metadata"]["generation"], resized["metadata"]["generation"]);
    nothing_restarted(&before, &after);
}
