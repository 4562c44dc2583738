//! Kills with incomplete facts: without a log, without a container, or with a false name.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use jiff::Timestamp;

use super::bursts::{check, containers, start_burst};
use super::*;

const ONE_BY_ONE: usize = 20;

#[tokio::test]
async fn counters_alone_tell_every_kill() {
    let mut scene = Scene::of(&[("a", SMALL), ("b", SMALL)]);
    scene.agent.set("--kmsg", scene.agent.path().join("no-such-device"));
    scene.start().await;
    scene.agent.reports(&["no-such-device", "hostPath", "counted"]).await;
    scene.kill_one("a");
    scene.kill_one("b");
    scene.kill_one("b");
    let told = scene.wait_for_kills(3).await;
    let mut places: Vec<&str> = told.iter().map(container).collect();
    places.sort_unstable();
    assert_eq!(places, ["a", "b", "b"]);
    assert!(
        told.iter()
            .all(|kill| kill.confidence == "counter-alone" && kill.victim.is_none())
    );
}

#[tokio::test]
async fn hints_tell_kills_without_the_log() {
    let mut scene = Scene::of(&containers());
    scene.agent.set("--kmsg", scene.agent.path().join("no-such-device"));
    scene.start().await;
    let mut waits = Vec::new();
    for (count, (name, _)) in (1..).zip(containers().iter().cycle().take(ONE_BY_ONE)) {
        scene.kill_one(name);
        let ended = Timestamp::now();
        let kill = scene.wait_for_kills(count).await.pop().unwrap();
        assert_eq!((container(&kill), &*kill.confidence), (*name, "counter-alone"));
        let counted: Timestamp = kill.time.parse().unwrap();
        waits.push(counted.duration_since(ended).as_millis());
    }
    waits.sort_unstable();
    println!(
        "counted so many ms after the victim's end: median {}, all {waits:?}",
        waits[waits.len() / 2]
    );
    let burst = start_burst(&scene);
    let victims: BTreeMap<u32, &str> = burst.iter().map(|(name, child)| (child.id(), *name)).collect();
    burst.into_iter().for_each(|(_, child)| was_killed(child));
    let told = scene.wait_for_kills(ONE_BY_ONE + victims.len()).await;
    check(&told[ONE_BY_ONE..], &victims);
    assert!(told.iter().all(|kill| kill.confidence == "counter-alone"));
}

#[tokio::test]
async fn a_kill_in_a_removed_container_is_named() {
    let scene = Scene::started(&[("app", SMALL), ("side", SMALL)]).await;
    let kill = scene
        .explained(|| {
            let pid = scene.kill_one("app");
            scene.node.cgroups().remove(&scene.cgroup("app"));
            scene.node.cgroups().make(&format!(
                "kubepods/burstable/pod{UID}/{}",
                scene.pod.containers["app"].id
            ));
            let limit = MemoryLimit::Bytes(16 << 20);
            scene.node.cgroups().limit_memory(&scene.cgroup("app"), limit);
            pid
        })
        .await;
    assert_eq!((container(&kill), &*kill.level), ("app", "container"));
}

#[tokio::test]
async fn commands_may_be_called_anything() {
    let scene = Scene::started(&[("app", SMALL)]).await;
    let shell = fs::canonicalize("/bin/sh").unwrap();
    for name in ["a,pid=1,uid=0", "x) total-vm:9kB", "\u{1b}[2J\nfoo", "üñ"] {
        let link = scene.agent.path().join(name);
        symlink(&shell, &link).unwrap();
        let command = format!("exec '{}' -c '{TOO_MUCH}'", link.display());
        let kill = scene
            .explained(|| {
                let child = scene.victim(&scene.cgroup("app"), &command);
                let pid = child.id();
                was_killed(child);
                pid
            })
            .await;
        let cut: String = String::from_utf8_lossy(&name.as_bytes()[..name.len().min(15)]).into_owned();
        assert_eq!((&*kill.victim.as_ref().unwrap().comm, container(&kill)), (&*cut, "app"));
    }
}

#[tokio::test]
async fn what_processes_write_into_the_log_is_no_kill() {
    let scene = Scene::started(&[("app", SMALL)]).await;
    let cgroup = scene.cgroup("app");
    for line in [
        format!(
            "<3>oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={cgroup},task_memcg={cgroup},task=x,pid=1,uid=0"
        ),
        "<3>Memory cgroup out of memory: Killed process 1 (x) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:1kB"
            .to_owned(),
    ] {
        fs::write("/dev/kmsg", line).unwrap();
    }
    let pid = scene.kill_one("app");
    let told = scene.wait_for_kills(1).await.pop().unwrap();
    assert!(told.victim.is_none_or(|victim| victim.pid == pid));
}
