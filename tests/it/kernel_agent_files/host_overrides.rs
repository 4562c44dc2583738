//! An override takes precedence until it ends, and then nothing of it remains.

use std::time::Duration;

use vscaled::model::MemoryLimit;

use super::{AT_FIRST, Amounts, SIDE, Scene, UNLIMITED, cpu, memory};

const RECOMMENDED: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];
/// [`super::APP`] with a cpu limit of one.
const ONE_CPU: Amounts = Amounts {
    cpu_limit: Some(1000),
    ..super::APP
};

/// The recommendation with an override of the memory limit.
fn recommended_with_memory(memory_limit: u64) -> [(&'static str, Amounts); 2] {
    let app = Amounts {
        memory_limit: Some(memory_limit),
        ..RECOMMENDED[0].1
    };
    [("app", app), ("side", SIDE)]
}

#[tokio::test]
async fn an_override_wins_until_released() {
    let scene = Scene::managed(&RECOMMENDED).await;
    let change = scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert!(
        change.cause.starts_with("operator (uid 0") && change.cause.ends_with("a test"),
        "{change:#?}"
    );
    assert!(scene.holds(&recommended_with_memory(512)));
    let pod = scene.agent.reaches("web", "InSync").await;
    assert_eq!(pod.r#override.unwrap().reason, "a test");

    // A new recommendation changes the values that the override does not set.
    let next = Amounts::doubled(250, 120);
    scene.recommend(&[("app", next), ("side", SIDE)]);
    let both = Amounts {
        memory_limit: Some(512),
        ..next
    };
    scene.settles(&[("app", both), ("side", SIDE)]).await;

    let released = scene.agent.release("test/web").await.unwrap();
    assert_eq!(released.outcome, "Applied", "{released:#?}");
    assert!(scene.holds(&[("app", next), ("side", SIDE)]));
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_none());
    let error = scene.agent.release("test/web").await.unwrap_err().to_string();
    assert!(error.contains("no override"), "{error}");
    assert!(scene.node.all_run(&scene.pod));
}

#[tokio::test]
async fn an_override_ends_by_itself() {
    let scene = Scene::started().await;
    let mut request = scene.by_hand(cpu("1"));
    request.ttl_us = Some(1_000_000);
    let change = scene.agent.resize(request).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    scene.agent.reaches("web", "NotManaged").await;
    assert!(scene.holds(&AT_FIRST));
    let history = scene.agent.history().await;
    assert_eq!(history.last().unwrap().cause, "override ended", "{history:#?}");
}

#[tokio::test]
async fn a_limit_that_an_override_added_goes_with_it() {
    let (scene, before) = Scene::unlimited().await;
    assert_eq!(before["app"].memory_limit(), Some(MemoryLimit::Max));

    let mut request = scene.by_hand(memory("256Mi"));
    request.containers[0]
        .values
        .as_mut()
        .unwrap()
        .limits
        .as_mut()
        .unwrap()
        .cpu = Some("500m".to_owned());
    let change = scene.agent.resize(request).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    let limited = Amounts {
        cpu_limit: Some(500),
        memory_limit: Some(256),
        ..UNLIMITED[0].1
    };
    assert!(scene.holds(&[("app", limited), ("side", SIDE)]));

    scene.agent.release("test/web").await.unwrap();
    scene.agent.reaches("web", "NotManaged").await;
    assert_eq!(scene.node.held(&scene.pod), before);
}

#[tokio::test]
async fn an_override_and_its_end_survive_the_agent() {
    let mut scene = Scene::managed(&RECOMMENDED).await;
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    scene.agent.stop();
    assert!(scene.holds(&recommended_with_memory(512)), "stopping changed limits");

    // A foreign writer changes a value while no agent runs.
    let foreign = Amounts::doubled(900, 700).settings(scene.node.cgroups().version());
    scene.node.put(&scene.pod.cgroup, &foreign);
    scene.agent.start().await;
    scene.settles(&recommended_with_memory(512)).await;
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_some());

    let mut short = scene.by_hand(memory("600Mi"));
    short.ttl_us = Some(1_000_000);
    scene.agent.resize(short).await.unwrap();
    scene.agent.kill();
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.agent.start().await;
    scene.settles(&RECOMMENDED).await;
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_none());
}

#[tokio::test]
async fn the_last_of_several_resizes_wins() {
    let scene = Scene::started().await;
    let limits: Vec<u64> = (0..8).map(|step| 300 + 100 * step).collect();
    let requests = limits
        .iter()
        .map(|limit| scene.agent.resize(scene.by_hand(cpu(&format!("{limit}m")))));
    let answers = futures::future::join_all(requests).await;
    for answer in answers {
        let change = answer.unwrap();
        assert!(
            ["Applied", "Unchanged"].contains(&change.outcome.as_str()),
            "{change:#?}"
        );
    }
    // Each change starts from the result of the previous one, and none is lost.
    let history = scene.agent.history().await;
    let quota = |change: &vscaled::control::proto::Change| {
        let of_app = |step: &&vscaled::control::proto::Step| step.level == "container" && step.name == "app";
        change
            .steps
            .iter()
            .find(of_app)
            .map(|step| (step.from.clone(), step.to.clone()))
    };
    let chain: Vec<_> = history.iter().filter_map(quota).collect();
    assert_eq!(chain.len(), limits.len(), "{history:#?}");
    assert!(chain.windows(2).all(|pair| pair[0].1 == pair[1].0), "{chain:?}");
    let last: u64 = chain.last().unwrap().1.split(' ').next().unwrap().parse().unwrap();
    let app = Amounts {
        cpu_limit: Some(last / 100),
        ..super::APP
    };
    scene.settles(&[("app", app), ("side", SIDE)]).await;
}

#[tokio::test]
async fn a_refused_resize_leaves_others_alone() {
    let mut scene = Scene::started().await;
    scene.occupy(100).await;
    for _ in 0..5 {
        let (tight, larger) = (scene.by_hand(memory("65Mi")), scene.by_hand(cpu("1")));
        let (tight, larger) = tokio::join!(scene.agent.resize(tight), scene.agent.resize(larger));
        assert_eq!(tight.unwrap().outcome, "Refused");
        assert_eq!(larger.unwrap().outcome, "Applied");
        scene.settles(&[("app", ONE_CPU), ("side", SIDE)]).await;
        scene.agent.release("test/web").await.unwrap();
        scene.agent.reaches("web", "NotManaged").await;
        assert!(scene.holds(&AT_FIRST));
    }
}
