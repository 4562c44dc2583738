//! Overrides reach the runtime, and their end does too.

use vscaled::control::proto;

use super::{APP, Amounts, IDLE, SIDE, Scene};

/// A request for an override of limits.
pub(super) fn limits(container: &str, cpu: Option<&str>, memory: Option<&str>) -> proto::ResizeRequest {
    let amounts = proto::Amounts {
        cpu: cpu.map(str::to_owned),
        memory: memory.map(str::to_owned),
    };
    proto::ResizeRequest {
        pod: "test/web".to_owned(),
        containers: vec![proto::ContainerValues {
            name: container.to_owned(),
            values: Some(proto::Requirements {
                requests: None,
                limits: Some(amounts),
            }),
        }],
        ..proto::ResizeRequest::default()
    }
}

#[tokio::test]
async fn an_override_reaches_the_runtime_and_leaves() {
    let scene = Scene::started(IDLE).await;
    let change = scene
        .agent
        .resize(limits("app", Some("1"), Some("256Mi")))
        .await
        .unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    let by_hand = Amounts {
        cpu_limit: Some(1000),
        memory_limit: Some(256),
        ..APP
    };
    // Kernel and runtime have the values before the call returns.
    assert!(scene.holds(by_hand, SIDE));
    assert_eq!(scene.stored(0).await, by_hand.stored());
    let change = scene.agent.release("test/web").await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert!(scene.holds(APP, SIDE));
    assert_eq!(scene.stored(0).await, APP.stored());
    scene.agent.reaches("web", "NotManaged").await;
}

#[tokio::test]
async fn two_resizes_go_one_after_the_other() {
    let scene = Scene::started(IDLE).await;
    for _ in 0..3 {
        let (one, other) = tokio::join!(
            scene.agent.resize(limits("app", Some("700m"), None)),
            scene.agent.resize(limits("app", Some("900m"), Some("300Mi")))
        );
        for change in [one.unwrap(), other.unwrap()] {
            assert!(
                ["Applied", "Unchanged"].contains(&change.outcome.as_str()),
                "{change:#?}"
            );
        }
        let cpu_limit = scene.stored(0).await.cpu_quota.map(|quota| quota.unsigned_abs() / 100);
        assert!([Some(700), Some(900)].contains(&cpu_limit), "{cpu_limit:?}");
        let both = Amounts {
            cpu_limit,
            memory_limit: Some(300),
            ..APP
        };
        scene.settles(both, SIDE).await;
    }
}
