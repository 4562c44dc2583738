//! One kill at a time: the limit that was hit, and the role of the victim.

use super::*;
use crate::support::victims::holding;

#[tokio::test]
async fn a_container_over_its_limit_is_fully_reported() {
    let scene = Scene::started(&[("app", SMALL)]).await;
    let kill = scene.explained(|| scene.kill_one("app")).await;
    let pod = kill.pod.as_ref().unwrap();
    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("test", "web", UID));
    assert_eq!(container(&kill), "app");
    assert_eq!(kill.container.as_ref().unwrap().id, scene.pod.containers["app"].id);
    assert_eq!((&*kill.level, &*kill.confidence), ("container", "exact"));
    let limit = kill.limit.as_ref().unwrap();
    assert_eq!(limit.cgroup, kill.cgroup);
    assert_eq!(limit.limit_bytes, Some(16 << 20));
    assert!(limit.usage_bytes.unwrap() <= 16 << 20 && limit.usage_bytes.unwrap() > 8 << 20);
    let victim = kill.victim.as_ref().unwrap();
    assert_eq!(victim.comm, "sh");
    assert!(victim.memory.as_ref().unwrap().anon_rss_bytes > 0);
    assert!(kill.own_write.is_none() && kill.group.is_empty() && !kill.while_down);
    let at: jiff::Timestamp = kill.time.parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs() < 60);
}

#[tokio::test]
async fn a_full_pod_is_named_whoever_pays() {
    let scene = Scene::started(&[("a", Amounts::doubled(1000, 64)), ("b", Amounts::doubled(1000, 64))]).await;
    scene.limit_pod(48);
    // The kernel kills the largest process: the one in A holds 28 MiB, while the one in B allocates the rest and
    // more.
    let kill = scene
        // On a busy machine the kernel frees the memory of the first process late, and kills the second as well. The
        // test cannot protect the second: a negative score needs CAP_SYS_RESOURCE, which root does not have
        // everywhere.
        .explained_of(2, || {
            let holder = scene.victim(&scene.cgroup("a"), &holding(28 << 20));
            let pid = holder.id();
            wait_for_usage(&scene.node, &scene.cgroup("a"), 28 << 20);
            let mut asking = scene.victim(&scene.cgroup("b"), &holding(24 << 20));
            was_killed(holder);
            asking.kill().unwrap();
            asking.wait().unwrap();
            pid
        })
        .await;
    assert_eq!((container(&kill), &*kill.level, &*kill.limit_of), ("a", "pod", "pod"));
    assert_eq!(kill.limit.as_ref().unwrap().cgroup, Some(scene.pod.cgroup.to_string()));
    assert_eq!(kill.limit.as_ref().unwrap().limit_bytes, Some(48 << 20));
}

fn wait_for_usage(node: &BareNode, cgroup: &CgroupPath, bytes: u64) {
    for _ in 0..30_000 {
        if node.cgroups().memory_usage(cgroup) >= bytes {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{cgroup} never used {bytes} bytes");
}

/// Runs a shell command in the container in its own pid namespace, as runtimes do, and waits until it runs, so that an agent that
/// starts then knows the first process from the beginning.
async fn contain(scene: &mut Scene, command: &str) {
    let (cgroup, ready) = (scene.cgroup("app"), scene.agent.path().join("ready"));
    let first = format!(
        "exec unshare --pid --fork --kill-child sh -c 'touch {}; {command}'",
        ready.display()
    );
    scene.node.spawn(&cgroup, &first);
    scene.agent.wait_for("the container to run", || ready.exists()).await;
}

#[tokio::test]
async fn children_differ_from_first_processes() {
    let mut scene = Scene::of(&[("app", SMALL)]);
    contain(&mut scene, "exec sleep 1000").await;
    scene.start().await;
    let kill = scene.explained(|| scene.kill_one("app")).await;
    assert_eq!(kill.victim.unwrap().role, "child");
    assert!(scene.node.all_run(&scene.pod), "the container did not survive");
}

#[tokio::test]
async fn the_first_process_is_known() {
    let mut scene = Scene::of(&[("app", SMALL)]);
    let go = scene.agent.path().join("go");
    let waits = format!("while ! [ -e {} ]; do sleep 0.05; done; {TOO_MUCH}", go.display());
    contain(&mut scene, &waits).await;
    scene.start().await;
    std::fs::write(&go, "").unwrap();
    let kill = scene.wait_for_kills(1).await.pop().unwrap();
    // Except where the kernel did not log the victim.
    if let Some(victim) = kill.victim {
        assert_eq!((&*victim.comm, &*victim.role), ("sh", "main"));
    }
}
