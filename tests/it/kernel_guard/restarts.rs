//! The agent may end at any moment, also in the middle of a growth.

use std::time::{Duration, SystemTime};

use vscaled::model::{Bytes, MemoryLimit};

use super::Scene;
use crate::support::allocator::End;

#[tokio::test]
async fn a_loan_survives_a_restart() {
    let mut scene = Scene::guarded("4Gi").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    let before = scene.temporary_limit().await;
    scene.agent.reaches("web", "InSync").await;
    scene.agent.stop();
    // The guard may have grown it once more before it stopped.
    let limit = scene.limit();
    scene.agent.start().await;
    scene.agent.reaches("web", "InSync").await;
    let after = scene.temporary_limit().await;
    assert_eq!(
        (&after.to, scene.limit()),
        (&Bytes::new(limit << 20).to_string(), limit)
    );
    assert_eq!((&after.container, &after.from), (&before.container, &before.from));
    assert!(!after.reason.contains("killed before it noted"), "{after:?}");
    assert!(process.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn a_killed_guard_leaves_limits_that_hold() {
    let mut scene = Scene::guarded("4Gi").await;
    let nanos = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    let mut random = u64::from(nanos);
    println!("seed {random}");
    for round in 0..8 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mut process = scene.takes(150, 400);
        std::thread::sleep(Duration::from_micros((random >> 33) % 2_500_000));
        scene.agent.kill();
        // The written values are in order: the pod's limit is not below its container's.
        assert!(scene.pod_limit() >= scene.limit(), "round {round}");
        // Without a guard the process may be killed, as it would have been without an agent.
        scene.agent.start().await;
        scene.guards("web").await;
        drop(process);
        process = scene.takes_carefully(150, 400);
        assert!(
            matches!(process.wait(), End::Satisfied(_)),
            "round {round}: {}",
            scene.agent.log()
        );
        scene.agent.reaches("web", "InSync").await;
        assert!(
            scene.limit() >= 400 && scene.pod_limit() >= scene.limit(),
            "round {round}"
        );
    }
}

/// As if the agent had ended before it saved what it knew; it may not have saved anything yet.
fn forget(scene: &Scene) {
    match std::fs::remove_file(scene.agent.state_file()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        removed => removed.unwrap(),
    }
}

#[tokio::test]
async fn an_unnoted_temporary_limit_is_recognised() {
    let mut scene = Scene::new("4Gi");
    scene.agent.set("--guard-quiet-period", "5s");
    scene.agent.start().await;
    scene.guards("web").await;
    let before = (scene.limit(), scene.pod_limit());
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    scene.temporary_limit().await;
    scene.agent.kill();
    let raised = (scene.limit(), scene.pod_limit());
    assert!(raised > before);
    forget(&scene);
    scene.agent.start().await;
    let lease = scene.temporary_limit().await;
    assert!(lease.reason.contains("killed before it noted"), "{lease:?}");
    scene.agent.reaches("web", "InSync").await;
    assert!((scene.limit(), scene.pod_limit()) <= raised && scene.limit() >= 200);
    assert!(process.lives() && scene.kills() == 0);

    drop(process);
    let taken_back = || (scene.limit(), scene.pod_limit()) == before;
    scene.agent.wait_for("the loan to be taken back", taken_back).await;
    scene.agent.reaches("web", "NotManaged").await;
}

#[tokio::test]
async fn a_foreign_higher_limit_is_not_temporary() {
    let mut scene = Scene::guarded("4Gi").await;
    let before = (scene.limit(), scene.pod_limit());
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    scene.temporary_limit().await;
    scene.agent.kill();
    drop(process);
    forget(&scene);
    for cgroup in [&scene.pod.cgroup, &scene.pod.containers["app"].cgroup] {
        scene.node.cgroups().limit_memory(cgroup, MemoryLimit::Bytes(3 << 30));
    }
    scene.agent.start().await;
    let taken_back = || (scene.limit(), scene.pod_limit()) == before;
    scene.agent.wait_for("the limit to be taken back", taken_back).await;
    scene.agent.reaches("web", "NotManaged").await;
}
