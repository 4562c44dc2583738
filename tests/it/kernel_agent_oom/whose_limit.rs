//! A pod at its limit because one of its containers is at its own: the report names that container.

use std::fs;

use vscaled::model::CgroupVersion;

use super::*;
use crate::support::victims::holding;

/// A pod with a sandbox, the container `app` of 16 MiB and these others, which hold some memory.
async fn started(others: &[&'static str], as_a_group: bool) -> Scene {
    let mut containers = vec![("app", SMALL)];
    containers.extend(others.iter().map(|name| (*name, Amounts::doubled(1000, 32))));
    let mut scene = Scene::of(&containers);
    let sandbox = scene
        .node
        .cgroups()
        .make(&format!("kubepods/burstable/pod{UID}/{:064x}", 77));
    scene.node.spawn(&sandbox, "exec sleep 1000");
    for name in others {
        let cgroup = scene.cgroup(name);
        scene.node.spawn(&cgroup, &holding(8 << 20));
        let node = &scene.node;
        scene
            .agent
            .wait_for("the others to hold their memory", || {
                node.cgroups().memory_usage(&cgroup) >= 8 << 20
            })
            .await;
    }
    if as_a_group {
        let [directory] = scene
            .node
            .cgroups()
            .directories(&scene.cgroup("app"))
            .try_into()
            .unwrap();
        fs::write(directory.join("memory.oom.group"), "1").unwrap();
    }
    scene.start().await;
    scene
}

/// Makes the kernel kill a process in `app` when the pod has this much memory for it.
async fn killed_with(scene: &Scene, others: &[&str], bytes: u64) -> (OomKill, u64) {
    let used = |cgroup: &CgroupPath| scene.node.cgroups().memory_usage(cgroup);
    let limit = others.iter().map(|name| used(&scene.cgroup(name))).sum::<u64>() + bytes;
    scene
        .node
        .cgroups()
        .limit_memory(&scene.pod.cgroup, MemoryLimit::Bytes(limit));
    let kill = scene.explained(|| scene.kill_one("app")).await;
    (kill, limit / 4096 * 4096)
}

#[tokio::test]
async fn a_container_at_its_own_limit_is_recognised() {
    for others in [&[][..], &["b"], &["b", "c"]] {
        for as_a_group in [false, true] {
            let scene = started(others, as_a_group && is_v2()).await;
            let (kill, limit) = killed_with(&scene, others, 16 << 20).await;
            assert_eq!((container(&kill), &*kill.limit_of), ("app", "container"), "{kill:#?}");
            let own = match &*kill.level {
                // The memory use of the others changes a little, and so does the limit that is reached first.
                "container" if !others.is_empty() => kill.limit.as_ref(),
                level => {
                    assert_eq!(level, "pod");
                    assert_eq!(kill.limit.as_ref().unwrap().limit_bytes, Some(limit));
                    kill.container_limit.as_ref()
                }
            };
            assert_eq!(own.unwrap().limit_bytes, Some(16 << 20));
            assert_eq!(own.unwrap().cgroup, Some(scene.cgroup("app").to_string()));
        }
    }
}

#[tokio::test]
async fn a_limit_used_by_others_is_the_pods() {
    let others = ["b"];
    let scene = started(&others, false).await;
    let (kill, limit) = killed_with(&scene, &others, 10 << 20).await;
    assert_eq!(
        (container(&kill), &*kill.level, &*kill.limit_of),
        ("app", "pod", "pod"),
        "{kill:#?}"
    );
    assert_eq!(kill.limit.unwrap().limit_bytes, Some(limit));
    assert_eq!(kill.container_limit, None);
}

fn is_v2() -> bool {
    BareNode::new().cgroups().version() == CgroupVersion::V2
}
