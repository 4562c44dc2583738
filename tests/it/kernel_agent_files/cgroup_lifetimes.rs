//! Cgroups disappear and reappear during a pass. The agent writes to the cgroup that it opened, never to a new one
//! with the same path.

use vscaled::cgroup::{CgroupDir, Hierarchy, Reason};

use super::{APP, AT_FIRST, Amounts, SIDE, Scene, cpu};

const TARGET: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

#[tokio::test]
async fn a_replaced_container_gets_the_values() {
    let mut scene = Scene::managed(&TARGET).await;
    for _ in 0..5 {
        let old = scene.pod.containers["app"].cgroup.clone();
        scene.node.cgroups().remove(&old);
        scene.node.run_container(&mut scene.pod, "app", APP);
        scene.agent.write("pod.yaml", &scene.pod.manifest());
        scene.settles(&TARGET).await;
    }
    let causes: Vec<_> = scene
        .agent
        .history()
        .await
        .into_iter()
        .map(|change| change.cause)
        .collect();
    assert!(causes.contains(&"container started".to_owned()), "{causes:?}");
    assert!(
        !scene.agent.log().contains("another program"),
        "a new container's values are nobody's drift"
    );
}

#[tokio::test]
async fn a_cgroup_made_again_is_another_one() {
    let mut scene = Scene::managed(&TARGET).await;
    let hierarchy = Hierarchy::discover(None).unwrap();
    let container = scene.pod.containers["app"].clone();
    let old = CgroupDir::open(&hierarchy, &container.cgroup).unwrap();
    scene.node.cgroups().remove(&container.cgroup);
    scene.node.run_container_as(&mut scene.pod, "app", &container.id, APP);
    assert_eq!(old.check().unwrap_err().reason, Reason::Recreated);
    // Only the next pass detects the change.
    let change = scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    let app = Amounts {
        cpu_limit: Some(1000),
        ..TARGET[0].1
    };
    scene.settles(&[("app", app), ("side", SIDE)]).await;
}

#[tokio::test]
async fn a_gone_container_does_not_hold_up_others() {
    let mut scene = Scene::managed(&TARGET).await;
    let gone = scene.pod.containers["side"].cgroup.clone();
    scene.node.cgroups().remove(&gone);
    let app = Amounts::doubled(400, 128);
    scene.recommend(&[("app", app), ("side", Amounts::doubled(60, 40))]);
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    scene
        .agent
        .wait_for("the remaining container to have its values", || {
            scene.node.cgroup_holds(&cgroup, app)
        })
        .await;
    scene.node.run_container(&mut scene.pod, "side", SIDE);
    scene.agent.write("pod.yaml", &scene.pod.manifest());
    scene.settles(&[("app", app), ("side", Amounts::doubled(60, 40))]).await;
}

#[tokio::test]
async fn a_pod_removed_amid_a_change_is_gone() {
    let mut scene = Scene::managed(&TARGET).await;
    for round in 0..5 {
        // The removal happens before, during or after the pass.
        scene.recommend(&[("app", Amounts::doubled(300 + round, 128)), ("side", SIDE)]);
        tokio::time::sleep(std::time::Duration::from_millis(round * 8)).await;
        scene.node.cgroups().remove(&scene.pod.cgroup);
        let change = scene.agent.resize(scene.by_hand(cpu("1"))).await;
        assert!(
            !change.is_ok_and(|change| change.outcome == "Applied"),
            "resized what is not there"
        );
        scene.agent.reaches("web", "NotRunning").await;

        // The same pod again, as after a restart of the node.
        scene.pod = scene.node.run("web", super::UID, &AT_FIRST);
        scene.agent.write("pod.yaml", &scene.pod.manifest());
        let target = [("app", Amounts::doubled(300 + round, 128)), ("side", SIDE)];
        scene.settles(&target).await;
    }
}

#[tokio::test]
async fn a_namesake_starts_from_its_own_spec() {
    let mut scene = Scene::managed(&TARGET).await;
    scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    scene.node.cgroups().remove(&scene.pod.cgroup);
    scene.pod = scene.node.run("web", "0a1b2c3d-0000-4000-8000-000000000099", &AT_FIRST);
    scene.agent.write("pod.yaml", &scene.pod.manifest());
    scene.settles(&TARGET).await;
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_none());
}
