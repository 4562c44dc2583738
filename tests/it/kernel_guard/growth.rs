//! A process whose memory use grows towards the limit.

use super::{Scene, plenty, vpa};
use crate::support::allocator::End;
use crate::support::amounts::Amounts;

#[tokio::test]
async fn fast_growth_kills_nothing() {
    let scene = Scene::guarded("4Gi").await;
    let until = plenty();
    let mut process = scene.takes(200, until);
    let end = process.wait();
    assert!(
        matches!(end, End::Satisfied(_)),
        "{end:?} of {until} MiB\n{}",
        scene.agent.log()
    );
    assert_eq!(scene.kills(), 0);
    assert!(scene.limit() >= until && scene.limit() <= 4096);
    assert!(scene.pod_limit() >= scene.limit());
    let lease = scene.temporary_limit().await;
    assert_eq!((lease.container.as_str(), lease.from.as_str()), ("app", "128Mi"));
    let changes = scene.by_the_guard().await;
    println!("{} growths to {} MiB for {until} MiB", changes.len(), scene.limit());
    let steps: Vec<_> = changes[0].steps.iter().map(|step| step.level.as_str()).collect();
    assert_eq!(steps, ["pod", "container"], "{changes:#?}");
    assert!(changes.iter().all(|change| change.outcome == "Applied"), "{changes:#?}");
    scene.agent.reaches("web", "InSync").await;
    assert!(process.lives());
}

#[tokio::test]
async fn growth_after_rest_kills_nothing() {
    // An eighth of this limit lasts for a third of a second, longer than a busy machine keeps the guard from acting.
    let scene = Scene::of(Amounts::doubled(1000, 256));
    scene.agent.write("vpa.yaml", &vpa("web", "4Gi", 256));
    let until = plenty() / 2;
    // The guard sees no growth before the rest.
    let mut resting = scene.takes(0, 448);
    assert!(matches!(resting.wait(), End::Satisfied(_)));
    let scene = scene.started().await;
    // Long enough for the guard to classify the container as idle, with alarms where the kernel has them.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(scene.limit(), 512, "{}", scene.agent.log());
    let mut sudden = scene.takes(200, until);
    let end = sudden.wait();
    assert!(matches!(end, End::Satisfied(_)), "{end:?}\n{}", scene.agent.log());
    assert!(resting.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn without_the_guard_the_same_process_is_killed() {
    let mut scene = Scene::new("4Gi");
    scene.agent.set("--guard", "false");
    scene.agent.start().await;
    scene.guards("web").await;
    let end = scene.takes(200, plenty()).wait();
    assert!(matches!(end, End::Killed(taken) if taken <= 128), "{end:?}");
    assert!(scene.by_the_guard().await.is_empty());
    assert_eq!(scene.limit(), 128);
}

#[tokio::test]
async fn a_process_short_of_its_limit_is_left_alone() {
    let scene = Scene::guarded("4Gi").await;
    let mut process = scene.takes(20, 80);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(process.lives());
    assert!(scene.by_the_guard().await.is_empty());
    assert_eq!(scene.limit(), 128);
}
