//! The agent refuses impossible changes with a reason, and every value stays unchanged.

use std::time::Duration;

use super::{AT_FIRST, Amounts, ROOMY, SIDE, Scene, cpu, memory};
use crate::support::mounts;

#[tokio::test]
async fn a_limit_below_use_is_refused_with_numbers() {
    let mut scene = Scene::managed(&ROOMY).await;
    scene.occupy(100).await;
    let before = scene.node.held(&scene.pod);

    // More cpu and a larger second container in one recommendation: all or nothing.
    let tight = [("app", Amounts::doubled(300, 32)), ("side", Amounts::doubled(90, 64))];
    scene.recommend(&tight);
    let pod = scene.agent.reaches("web", "Refused").await;
    let limit = 64_u64 << 20;
    assert!(
        pod.detail.contains(&format!("wanted limit of {limit} bytes")),
        "{}",
        pod.detail
    );
    let usage: u64 = pod
        .detail
        .split_once(" bytes are in use")
        .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{}", pod.detail));
    assert!(usage >= 100 << 20, "{}", pod.detail);
    assert_eq!(scene.node.held(&scene.pod), before);

    let request = scene.by_hand(memory("65Mi"));
    let refused = scene.agent.resize(request).await.unwrap();
    assert_eq!(refused.outcome, "Refused", "{refused:#?}");
    assert!(refused.reason.contains(&format!("{} bytes", 65 << 20)), "{refused:#?}");
    assert_eq!(scene.node.held(&scene.pod), before);
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_none());
    assert!(scene.node.all_run(&scene.pod));

    // The agent retries a refused change when another change follows.
    let fitting = [("app", Amounts::doubled(300, 80)), ("side", Amounts::doubled(90, 64))];
    scene.recommend(&fitting);
    scene.settles(&fitting).await;
}

#[tokio::test]
async fn a_refusal_stays_beside_the_guards() {
    let mut scene = Scene::managed(&ROOMY).await;
    scene.occupy(100).await;
    scene.recommend(&[("app", Amounts::doubled(300, 32)), ("side", SIDE)]);
    scene.agent.reaches("web", "Refused").await;
    // The memory use approaches the current limit, which is above the VPA's new maximum.
    scene.occupy(70).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let pod = scene.agent.pod("web").await.unwrap();
    assert_eq!(pod.state, "Refused");
    assert!(pod.detail.contains("wanted limit of"), "{}", pod.detail);
}

#[tokio::test]
async fn what_is_refused_is_done_once_it_can_be() {
    let mut scene = Scene::managed(&ROOMY).await;
    scene.occupy(100).await;
    let tight = [("app", Amounts::doubled(300, 32)), ("side", SIDE)];
    scene.recommend(&tight);
    scene.agent.reaches("web", "Refused").await;
    scene.node.end_last_process();
    scene.settles(&tight).await;
}

#[tokio::test]
async fn a_read_only_cgroup_mount_is_named() {
    let mut scene = Scene::new();
    let mounts: Vec<String> = mounts::all()
        .iter()
        .filter(|mount| mount.is_cgroup())
        .map(|mount| mount.point.display().to_string())
        .map(|point| format!("mount --bind {point} {point} && mount -o remount,bind,ro {point}"))
        .collect();
    let script = format!("{} && exec \"$@\"", mounts.join(" && "));
    scene.agent = scene.agent.wrapped(&["unshare", "--mount"], &script);
    scene.agent.start().await;
    scene.recommend(&ROOMY);
    let pod = scene.agent.reaches("web", "Refused").await;
    assert!(pod.detail.contains("read-only (EROFS)"), "{}", pod.detail);
    assert!(pod.detail.contains("/sys/fs/cgroup"), "{}", pod.detail);
    assert!(scene.holds(&AT_FIRST));
    let change = scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    assert!(change.reason.contains("read-only (EROFS)"), "{change:#?}");
    assert!(scene.holds(&AT_FIRST));
}
