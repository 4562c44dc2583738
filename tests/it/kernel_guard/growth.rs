//! A process whose memory use grows towards the limit.

use std::fs::File;
use std::time::Duration;

use vscaled::model::{CgroupVersion, MemoryLimit, Setting};

use super::{Scene, plenty, vpa};
use crate::support::agent::Agent;
use crate::support::allocator::{Allocation, Allocator, End};
use crate::support::amounts::Amounts;
use crate::support::skipped;

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
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(scene.limit(), 512, "{}", scene.agent.log());
    let mut sudden = scene.takes(200, until);
    let end = sudden.wait();
    assert!(matches!(end, End::Satisfied(_)), "{end:?}\n{}", scene.agent.log());
    assert!(resting.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn files_at_the_limit_hide_no_growth() {
    let mut scene = Scene::guarded("4Gi").await;
    // On a real file system, because the kernel cannot drop tmpfs pages. Guests of v2lab share this directory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = directory.path().join("read");
    File::create(&file).unwrap().set_len(300 << 20).unwrap();
    let app = scene.pod.containers["app"].cgroup.clone();
    let program = format!(
        "open(F, \"<\", \"{}\") or die; my $block; while (1) {{ sysseek(F, 0, 0); \
         select(undef, undef, undef, 0.004) while (sysread(F, $block, 1 << 20)) }}",
        file.display()
    );
    scene.node.spawn(&app, &format!("exec perl -e '{program}'"));
    let full = || scene.node.cgroups().memory_usage(&app) > 120 << 20;
    scene.agent.wait_for("files to fill the container", full).await;
    // Long enough for the kernel's notices to be noise.
    std::thread::sleep(Duration::from_secs(1));
    let before = wakes(&scene.agent);
    std::thread::sleep(Duration::from_secs(3));
    println!("the guard woke {} times in 3 s", wakes(&scene.agent) - before);
    assert_eq!(scene.limit(), 128, "page cache needs no growth\n{}", scene.agent.log());
    let until = plenty() / 2;
    let end = scene.takes(100, until).wait();
    assert!(
        matches!(end, End::Satisfied(_)),
        "{end:?} of {until} MiB\n{}",
        scene.agent.log()
    );
    assert_eq!(scene.kills(), 0);
}

/// How often the guard's thread has slept.
fn wakes(agent: &Agent) -> u64 {
    let tasks = procfs::process::Process::new(agent.pid()).unwrap().tasks().unwrap();
    let guard = tasks
        .map(Result::unwrap)
        .find(|task| task.stat().unwrap().comm == "guard");
    guard.unwrap().status().unwrap().voluntary_ctxt_switches.unwrap()
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

/// A cgroup of the pod that is no container, like its sandbox, uses most of the pod's 256 MiB.
#[tokio::test]
async fn a_full_pod_grows_with_its_container() {
    let (mut scene, _) = Scene::of_two(|manifest| manifest);
    let sandbox = scene.node.cgroups().make_child(&scene.pod.cgroup, &"f".repeat(64));
    let allocation = Allocation { rate: 200, until: 170 };
    let mut beside = Allocator::start(scene.node.cgroups(), &sandbox, allocation);
    assert!(matches!(beside.wait(), End::Satisfied(_)));
    scene.agent.start().await;
    scene.guards("web").await;
    let mut process = scene.takes(20, 110);
    let end = process.wait();
    assert!(matches!(end, End::Satisfied(_)), "{end:?}\n{}", scene.agent.log());
    assert!(process.lives() && beside.lives());
    assert!(scene.limit() > 128 && scene.pod_limit() == scene.limit() + 128);
    let changes = scene.by_the_guard().await;
    assert!(changes[0].cause.contains("is in a pod that used"), "{changes:#?}");
    scene.agent.reaches("web", "InSync").await;
}

/// A cgroup that is no container stands for a tmpfs that an init container filled: it uses almost half of the pod's 128 MiB.
#[tokio::test]
async fn a_full_pod_of_one_container_grows() {
    let scene = Scene::new("4Gi");
    let init = "{name: init, resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 20m, memory: 16Mi}}}";
    let spec = format!("spec:\n  initContainers: [{init}]\n  containers:");
    let manifest = scene.pod.manifest().replace("spec:\n  containers:", &spec);
    scene.agent.write("pod.yaml", &manifest);
    let left = scene.node.cgroups().make_child(&scene.pod.cgroup, &"f".repeat(64));
    let allocation = Allocation { rate: 200, until: 60 };
    let mut beside = Allocator::start(scene.node.cgroups(), &left, allocation);
    assert!(matches!(beside.wait(), End::Satisfied(_)));
    let scene = scene.started().await;
    let mut process = scene.takes(20, 110);
    let end = process.wait();
    assert!(matches!(end, End::Satisfied(_)), "{end:?}\n{}", scene.agent.log());
    assert!(process.lives() && beside.lives());
    assert!(scene.limit() > 128 && scene.pod_limit() == scene.limit());
    let changes = scene.by_the_guard().await;
    assert!(changes[0].cause.contains("is in a pod that used"), "{changes:#?}");
}

/// As the kubelet's MemoryQoS sets it: nine tenths of the limit.
#[tokio::test]
async fn memory_high_slows_no_growth_down() {
    let scene = Scene::new("4Gi");
    if scene.node.cgroups().version() == CgroupVersion::V1 {
        skipped("memory_high_slows_no_growth_down", "cgroup v1 has none");
        return;
    }
    let high = MemoryLimit::Bytes((128 << 20) / 10 * 9).in_pages(vscaled::cgroup::page_size());
    let app = &scene.pod.containers["app"].cgroup;
    scene.node.cgroups().put(app, Setting::MemoryHigh(high));
    let scene = scene.started().await;
    let mut process = scene.takes(100, 200);
    scene.agent.wait_for("the limit to grow", || scene.limit() > 200).await;
    assert!(matches!(process.wait(), End::Satisfied(_)));
    assert_eq!(scene.kills(), 0);
    let changes = scene.by_the_guard().await;
    assert!(changes[0].cause.contains("(memory.high)"), "{changes:#?}");
}

#[tokio::test]
async fn a_process_short_of_its_limit_is_left_alone() {
    let scene = Scene::guarded("4Gi").await;
    let mut process = scene.takes(20, 80);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    std::thread::sleep(Duration::from_millis(500));
    assert!(process.lives());
    assert!(scene.by_the_guard().await.is_empty());
    assert_eq!(scene.limit(), 128);
}
