//! The kernel's log through syslog(2), as an unprivileged pod with CAP_SYSLOG reads it.

use std::collections::BTreeMap;

use super::bursts::check;
use super::*;

async fn started(containers: &[(&'static str, Amounts)]) -> Scene {
    let mut scene = Scene::of(containers);
    scene.agent.set("--kmsg", "syslog");
    scene.start().await;
    scene
}

#[tokio::test]
async fn a_kill_has_everything_the_kernel_says() {
    let scene = started(&[("app", SMALL)]).await;
    let kill = scene.explained(|| scene.kill_one("app")).await;
    assert_eq!(
        (container(&kill), &*kill.level, &*kill.confidence),
        ("app", "container", "exact")
    );
    assert_eq!(kill.limit.as_ref().unwrap().limit_bytes, Some(16 << 20));
    assert_eq!(kill.victim.as_ref().unwrap().comm, "sh");
    assert!(kill.id.contains("-time-") && !kill.while_down, "{kill:#?}");
    let at: jiff::Timestamp = kill.time.parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(at).as_secs() < 60);
}

/// Pods with one container each.
const PODS: [(&str, &str); 10] = [
    ("a", "0a1b2c3d-0000-4000-8000-000000000061"),
    ("b", "0a1b2c3d-0000-4000-8000-000000000062"),
    ("c", "0a1b2c3d-0000-4000-8000-000000000063"),
    ("d", "0a1b2c3d-0000-4000-8000-000000000064"),
    ("e", "0a1b2c3d-0000-4000-8000-000000000065"),
    ("f", "0a1b2c3d-0000-4000-8000-000000000066"),
    ("g", "0a1b2c3d-0000-4000-8000-000000000067"),
    ("h", "0a1b2c3d-0000-4000-8000-000000000068"),
    ("i", "0a1b2c3d-0000-4000-8000-000000000069"),
    ("j", "0a1b2c3d-0000-4000-8000-000000000070"),
];

/// An agent that reads the log through syslog(2), and ten pods.
async fn ten_pods() -> (Scene, [BarePod; 10]) {
    let mut scene = Scene::of(&[("other", SMALL)]);
    scene.agent.set("--kmsg", "syslog");
    let pods = PODS.map(|(name, uid)| scene.node.run(name, uid, &[(name, SMALL)]));
    for pod in &pods {
        scene.agent.write(&format!("{}.yaml", pod.name), &pod.manifest());
        let much = MemoryLimit::Bytes(4 << 30);
        scene.node.cgroups().limit_memory(&pod.cgroup, much);
    }
    scene.start().await;
    for pod in &pods {
        scene.agent.reaches(pod.name, "NotManaged").await;
    }
    (scene, pods)
}

/// Starts a process in the pod's container that the kernel will kill.
fn victim_in(scene: &Scene, pod: &BarePod) -> (&'static str, Child) {
    let cgroup = &pod.containers[pod.name].cgroup;
    (pod.name, scene.victim(cgroup, TOO_MUCH))
}

#[tokio::test]
async fn fifty_kills_in_ten_pods_are_told_once() {
    let (scene, pods) = ten_pods().await;
    let in_turn = (0..5).flat_map(|_| &pods);
    let burst: Vec<_> = in_turn.map(|pod| victim_in(&scene, pod)).collect();
    let victims: BTreeMap<u32, &str> = burst.iter().map(|(name, child)| (child.id(), *name)).collect();
    burst.into_iter().for_each(|(_, child)| was_killed(child));
    let told = scene.wait_for_kills(victims.len()).await;
    check(&told, &victims);
    let with_process = |kill: &&OomKill| kill.victim.is_some() || !kill.candidates.is_empty();
    let known = told.iter().filter(with_process).count();
    assert!(known >= 45, "{known} of {} with a process", told.len());
}

/// Faster than the kernel logs where they happen, and with a read of the counters between any two.
#[tokio::test]
async fn kills_one_by_one_have_a_certain_process() {
    let (scene, pods) = ten_pods().await;
    let mut victims: BTreeMap<u32, &str> = BTreeMap::new();
    // Other processes on the machine may be killed meanwhile, in the same moments.
    for _ in 0..3 {
        let before = victims.len();
        let mut told = Vec::new();
        for pod in (0..3).flat_map(|_| &pods) {
            let (name, child) = victim_in(&scene, pod);
            victims.insert(child.id(), name);
            was_killed(child);
            told = scene.wait_for_kills(victims.len()).await;
        }
        check(&told, &victims);
        let of_round = &told[before..];
        let certain = of_round.iter().filter(|kill| kill.victim.is_some()).count();
        println!("of {certain} of {} it is certain which process it was", of_round.len());
        if certain * 5 >= of_round.len() * 3 {
            return;
        }
    }
    panic!("in no round it is certain of most kills");
}

#[tokio::test]
async fn kills_without_an_agent_are_told_once() {
    let mut scene = started(&[("app", SMALL)]).await;
    scene.kill_one("app");
    let before = scene.wait_for_kills(1).await;
    scene.agent.stop();
    scene.kill_one("app");
    scene.start().await;
    let after = scene.wait_for_kills(2).await;
    assert_eq!(after[0].id, before[0].id);
    assert!(after[1].while_down, "{after:#?}");
}

#[tokio::test]
async fn a_replaced_container_amid_kills_is_reported() {
    let scene = started(&[("app", SMALL), ("other", SMALL)]).await;
    let cgroups = scene.node.cgroups();
    let app = scene.cgroup("app");
    for round in 0..4 {
        scene.kill_one("app");
        let told = scene.wait_for_kills(2 * round + 1).await;
        assert_eq!(container(&told[2 * round]), "app", "{told:#?}");
        // A new cgroup of the same name counts from zero.
        cgroups.remove(&app);
        cgroups.make(&format!(
            "kubepods/burstable/pod{UID}/{}",
            scene.pod.containers["app"].id
        ));
        cgroups.limit_memory(&app, MemoryLimit::Bytes(16 << 20));
        scene.kill_one("app");
        let told = scene.wait_for_kills(2 * round + 2).await;
        assert_eq!(container(&told[2 * round + 1]), "app", "{told:#?}");
    }
}

#[tokio::test]
async fn an_agent_continues_with_the_other_source() {
    let mut scene = started(&[("app", SMALL)]).await;
    scene.kill_one("app");
    scene.wait_for_kills(1).await;
    for source in ["/dev/kmsg", "syslog"] {
        scene.agent.stop();
        scene.agent.set("--kmsg", source);
        scene.start().await;
        let before = scene.reported_kills().await.len();
        let kill = scene.explained(|| scene.kill_one("app")).await;
        assert!(kill.id.contains("-time-"), "{kill:#?}");
        assert!(scene.reported_kills().await.len() > before);
    }
}
