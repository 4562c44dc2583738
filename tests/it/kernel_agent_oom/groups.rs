//! A container that is killed as a whole (`memory.oom.group`), like every container of a newer kubelet on v2.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;

use vscaled::model::CgroupVersion;

use super::*;

#[tokio::test]
async fn a_group_of_four_is_one_kill() {
    for kernel_log in [true, false] {
        let mut scene = Scene::of(&[("app", SMALL)]);
        if scene.node.cgroups().version() == CgroupVersion::V1 {
            // Writes to the file descriptor, because the test harness captures the output of the print macros.
            writeln!(std::io::stderr(), "SKIPPED oom-group: cgroup v1 has no groups").unwrap();
            return;
        }
        let cgroup = scene.cgroup("app");
        let [directory] = scene.node.cgroups().directories(&cgroup).try_into().unwrap();
        fs::write(directory.join("memory.oom.group"), "1").unwrap();
        if !kernel_log {
            scene.agent.set("--kmsg", scene.agent.path().join("no-such-device"));
        }
        scene.start().await;
        let first = scene.pod.containers["app"].pid;
        let mut group = BTreeSet::from([first]);
        group.extend((0..2).map(|_| scene.node.spawn(&cgroup, "exec sleep 1000")));
        let victim = scene.victim(&cgroup, TOO_MUCH);
        group.insert(victim.id());
        was_killed(victim);
        let told = scene.wait_for_kills(if kernel_log { 1 } else { group.len() }).await;
        if kernel_log && told[0].level != "unknown" {
            assert_eq!(
                told[0].group.iter().copied().collect::<BTreeSet<_>>(),
                group,
                "{told:#?}"
            );
            assert_eq!(told[0].group.len(), group.len());
        }
        // A later report of the group would arrive before this one.
        let other = scene
            .node
            .cgroups()
            .make(&format!("kubepods/burstable/pod{UID}/{:064x}", 99));
        scene.node.cgroups().limit_memory(&other, MemoryLimit::Bytes(16 << 20));
        was_killed(scene.victim(&other, TOO_MUCH));
        scene.wait_for_kills(told.len() + 1).await;
    }
}
