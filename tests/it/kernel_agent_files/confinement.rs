//! The agent as in a pod: root without any capability, in its own cgroup namespace, with the node's hierarchy mounted
//! beside the pod's.

use super::Scene;
use crate::support::amounts::Amounts;

const LARGER: [(&str, Amounts); 2] = [("app", Amounts::doubled(300, 128)), ("side", Amounts::doubled(80, 48))];
const SMALLER: [(&str, Amounts); 2] = [("app", Amounts::doubled(40, 24)), ("side", Amounts::doubled(20, 16))];

/// Mounts the hierarchies at paths of their own, and drops all capabilities of root.
const AS_IN_A_POD: &str = r#"
mount -t tmpfs vscaled-test /mnt
mkdir /mnt/cgroup
mount --rbind /sys/fs/cgroup /mnt/cgroup
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@""#;

#[tokio::test]
async fn limits_move_without_capabilities() {
    let mut scene = Scene::new();
    scene.agent = scene
        .agent
        .with("--cgroup-root", "/mnt/cgroup")
        .wrapped(&["unshare", "--mount", "--cgroup"], AS_IN_A_POD);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", scene.agent.pid())).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000\n"), "{status}");
    for targets in [LARGER, SMALLER] {
        scene.recommend(&targets);
        scene.settles(&targets).await;
    }
    let report = scene.agent.client().await.doctor().await.unwrap();
    let failing: Vec<_> = report.checks.iter().filter(|check| check.status == "fail").collect();
    assert!(failing.is_empty(), "{failing:?}");
}
