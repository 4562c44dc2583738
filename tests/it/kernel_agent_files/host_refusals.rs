//! Refusals by the agent's own rules, and dry runs, leave every value unchanged.

use std::time::Duration;

use vscaled::model::MemoryLimit;

use super::host_operators::DB;
use super::{AT_FIRST, Amounts, ROOMY, SIDE, Scene, cpu, memory};

#[tokio::test]
async fn unusable_requests_are_refused() {
    let scene = Scene::started().await;
    let before = scene.node.held(&scene.pod);
    let refused = async |request| scene.agent.resize(request).await.unwrap_err().to_string();
    for (limits, word) in [
        (cpu("50m"), "cpu request 100m is above the limit 50m"),
        (memory("1"), "below the least the kernel holds"),
        (cpu("-1"), "negative"),
        (cpu("lots"), "not a quantity"),
        (memory("9e99Ei"), "limits.memory"),
    ] {
        let message = refused(scene.by_hand(limits)).await;
        assert!(message.contains(word), "{message}");
    }
    let mut unknown = scene.by_hand(cpu("1"));
    unknown.containers[0].name = "nginx".to_owned();
    let message = refused(unknown).await;
    assert!(
        message.contains("\"nginx\"") && message.contains("app, side"),
        "{message}"
    );
    let mut nobody = scene.by_hand(cpu("1"));
    nobody.pod = "test/nobody".to_owned();
    assert!(refused(nobody).await.contains("test/nobody"));
    assert_eq!(scene.node.held(&scene.pod), before);
    assert!(scene.agent.history().await.is_empty());
}

#[tokio::test]
async fn an_observing_agent_writes_nothing() {
    let mut scene = Scene::new();
    scene.agent = scene
        .agent
        .with("--observe-only", "true")
        .with("--sweep-interval", "1s");
    scene.agent.start().await;
    scene.recommend(&ROOMY);
    let decided = scene
        .agent
        .until("a decision", async || {
            scene.agent.pod("web").await.filter(|pod| pod.action == "resize")
        })
        .await;
    assert_eq!(decided.vpa.as_deref(), Some("web"));
    scene.agent.reports(&["observing only"]).await;
    let message = scene
        .agent
        .resize(scene.by_hand(cpu("1")))
        .await
        .unwrap_err()
        .to_string();
    assert!(message.contains("observeOnly"), "{message}");
    let mut rehearsal = scene.by_hand(cpu("1"));
    rehearsal.dry_run = true;
    let planned = scene.agent.resize(rehearsal).await.unwrap();
    assert_eq!(planned.outcome, "Planned");
    assert!(!planned.steps.is_empty());
    // Nothing happens during two periodic passes.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(scene.holds(&AT_FIRST));
    assert!(scene.agent.history().await.is_empty());
}

#[tokio::test]
async fn a_rehearsal_says_every_step_and_takes_none() {
    let scene = Scene::started().await;
    let mut request = scene.by_hand(memory("512Mi"));
    request.dry_run = true;
    let planned = scene.agent.resize(request.clone()).await.unwrap();
    assert!(scene.holds(&AT_FIRST));
    request.dry_run = false;
    let done = scene.agent.resize(request).await.unwrap();
    let steps = |change: &vscaled::control::proto::Change| {
        let steps = change.steps.iter();
        steps
            .map(|step| {
                (
                    step.level.clone(),
                    step.name.clone(),
                    step.file.clone(),
                    step.to.clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(steps(&planned), steps(&done));
    let held = scene.node.held(&scene.pod);
    assert_eq!(held["app"].memory_limit(), Some(MemoryLimit::Bytes(512 << 20)));
}

#[tokio::test]
async fn observed_decisions_are_carried_out_later() {
    let mut scene = Scene::new();
    let file = scene.agent.path().join("config.yaml");
    let configure = |observe: bool| {
        let text = format!("apiVersion: vscaled.io/v1alpha1\nkind: AgentConfiguration\nobserveOnly: {observe}\n");
        std::fs::write(&file, text).unwrap();
    };
    configure(true);
    scene.agent.set("--config", &file);
    scene.agent.start().await;
    scene.recommend(&ROOMY);
    let decided = async || scene.agent.pod("web").await.filter(|pod| pod.action == "resize");
    scene.agent.until("a decision", decided).await;
    assert!(scene.holds(&AT_FIRST));
    configure(false);
    scene.agent.reload();
    scene.settles(&ROOMY).await;
}

#[tokio::test]
async fn a_reload_shortens_the_sweep_interval() {
    let mut scene = Scene::new();
    let file = scene.agent.path().join("config.yaml");
    let configure = |interval: &str| {
        let text = format!("apiVersion: vscaled.io/v1alpha1\nkind: AgentConfiguration\nsweepInterval: {interval}\n");
        std::fs::write(&file, text).unwrap();
    };
    configure("1h");
    scene.agent.unset("--sweep-interval");
    scene.agent.set("--config", &file);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    // Only a periodic pass detects this.
    for container in scene.pod.containers.values() {
        scene.node.cgroups().remove(&container.cgroup);
    }
    scene.node.cgroups().remove(&scene.pod.cgroup);
    configure("1s");
    scene.agent.reload();
    scene.agent.reaches("web", "NotRunning").await;
}

#[tokio::test]
async fn a_full_node_refuses_until_it_has_room() {
    let mut scene = Scene::started().await;
    let neighbour = scene.with_database().await;
    let node = |cpu: &str| {
        format!("kind: Node\nmetadata: {{name: this-node}}\nstatus: {{allocatable: {{cpu: \"{cpu}\", memory: 100Gi}}}}")
    };
    let theirs = DB.1.cpu;
    let wanted = [("app", Amounts::doubled(500, 96)), ("side", SIDE)];
    let ours = 500 + SIDE.cpu;
    scene
        .agent
        .write("node.yaml", &node(&format!("{}m", ours + theirs - 1)));
    scene.recommend(&wanted);
    let pod = scene.agent.reaches("web", "Refused").await;
    let numbers = format!(
        "would request {ours}m of cpu, {}m of {}m are left",
        ours - 1,
        ours + theirs - 1
    );
    assert!(pod.detail.contains(&numbers), "{}", pod.detail);
    assert!(scene.holds(&AT_FIRST));
    let history = scene.agent.history().await;
    let told = |change: &&vscaled::control::proto::Change| change.reason.contains(&numbers);
    assert_eq!(history.iter().filter(told).count(), 1, "{history:#?}");

    scene.agent.write("node.yaml", &node(&format!("{}m", ours + theirs)));
    scene.settles(&wanted).await;
    assert!(scene.node.holds(&neighbour, &[DB]));
}
