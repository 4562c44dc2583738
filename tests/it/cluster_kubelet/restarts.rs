//! Restarts of the agent, with and without an API server.

use super::{AT_FIRST, LARGER, SMALLER, Scene, WEB};

impl Scene {
    /// Writes the initial values into one container's cgroup.
    async fn disturb(&self) {
        let pod = self.runs(WEB).await;
        let app = pod.cgroup.child(&pod.containers["app"].id).unwrap();
        let cgroups = self.containerd.cgroups();
        for setting in AT_FIRST[0].1.settings(cgroups.version()).iter() {
            cgroups.put(&app, setting);
        }
    }
}

#[tokio::test]
async fn a_killed_agent_continues() {
    let Some(mut scene) = Scene::resized("cluster_kubelet::restarts::an_agent_that_was_killed").await else {
        return;
    };
    let before = scene.runs(WEB).await;
    scene.agent.kill();
    scene.disturb().await;
    scene.recommend(&SMALLER);
    scene.agent.start().await;
    scene.settles(WEB, &SMALLER).await;
    assert_eq!(scene.runs(WEB).await, before, "nothing was restarted");
}

#[tokio::test]
async fn decisions_hold_after_a_start_without_the_api_server() {
    let Some(mut scene) = Scene::resized("cluster_kubelet::restarts::while_the_api_server_is_away").await else {
        return;
    };
    let pod = scene.runs(WEB).await;
    scene.cluster.stop();
    scene.agent.kill();
    scene.agent.start().await;
    scene.agent.reports(&["cannot be reached"]).await;
    scene
        .agent
        .reports(&["until the sources answer, the saved state applies"])
        .await;
    scene.agent.reaches(WEB, "InSync").await;
    let app = pod.cgroup.child(&pod.containers["app"].id).unwrap();
    let cgroups = scene.containerd.cgroups();
    for setting in AT_FIRST[0].1.settings(cgroups.version()).iter() {
        cgroups.put(&app, setting);
    }
    scene
        .agent
        .wait_for("the values to be put back", || scene.holds(&pod, &LARGER))
        .await;
    // Also for a container that is not in the status at the API server yet: the kubelet starts containers during an
    // outage too.
    scene.kill(&pod.containers["app"]);
    let new = async || {
        let containers = scene.agent.pod(WEB).await?.containers;
        let app = containers.into_iter().find(|container| container.name == "app")?;
        app.id.filter(|id| *id != pod.containers["app"].id)
    };
    let id = scene.agent.until("the new container to be known", new).await;
    let mut again = pod.clone();
    again.containers.get_mut("app").unwrap().id = id;
    scene
        .agent
        .wait_for("the new container to have the values", || scene.holds(&again, &LARGER))
        .await;

    scene.cluster.launch();
    scene.recommend(&SMALLER);
    scene.settles(WEB, &SMALLER).await;
    let content = async || scene.agent.get().await.agent.filter(|agent| agent.problems.is_empty());
    scene.agent.until("no problem to be left", content).await;
}
