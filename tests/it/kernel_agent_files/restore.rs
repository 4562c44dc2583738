//! Removing vscaled from a node: every value returns to that of the pod's spec.

use std::time::Duration;

use vscaled::model::MemoryLimit;

use super::{AT_FIRST, Amounts, SIDE, Scene, memory};
use crate::support::victims::holding;

const OTHER: &str = "0a1b2c3d-0000-4000-8000-000000000013";
const RECOMMENDED: [(&str, Amounts); 2] = [("app", Amounts::doubled(200, 96)), ("side", SIDE)];

#[tokio::test]
async fn restore_shows_then_restores() {
    let mut scene = Scene::managed(&RECOMMENDED).await;
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    let (code, _, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert!(
        code == Some(1) && error.contains("another vscaled is running"),
        "{error}"
    );
    scene.agent.stop();
    let held = scene.node.held(&scene.pod);

    let (code, shown, error) = scene.agent.restore(&[]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{shown}");
    assert!(
        shown.contains("test/web: Planned") && shown.contains("add --yes to do it"),
        "{shown}"
    );
    assert_eq!(scene.node.held(&scene.pod), held, "a rehearsal wrote something");

    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert!(scene.holds(&AT_FIRST), "{shown}");
    assert!(scene.node.all_run(&scene.pod));
    let audit = std::fs::read_to_string(scene.agent.path().join("state/audit.jsonl")).unwrap();
    assert!(audit.contains("\"reason\":\"vscaled restore\""), "{audit}");

    let (code, shown, _) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert!(
        code == Some(0) && shown.contains("test/web: as its spec says"),
        "{shown}"
    );

    // The override is gone too: a new agent starts without any.
    scene.agent.remove("vpa.yaml");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    assert!(scene.holds(&AT_FIRST));
}

#[tokio::test]
async fn added_limits_go_and_memory_in_use_stays() {
    let (mut scene, before) = Scene::unlimited().await;
    scene.agent.resize(scene.by_hand(memory("256Mi"))).await.unwrap();
    scene.agent.stop();
    assert_ne!(scene.node.held(&scene.pod), before);
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch", "-o", "json"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert_eq!(scene.node.held(&scene.pod), before);
}

#[tokio::test]
async fn a_pod_above_its_spec_stays_and_is_named() {
    let mut scene = Scene::started().await;
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    scene.occupy(200).await;
    scene.agent.stop();
    let held = scene.node.held(&scene.pod);
    for arguments in [&[][..], &["--yes", "--no-watch"]] {
        let (code, shown, error) = scene.agent.restore(arguments);
        assert_eq!(code, Some(1), "{shown}{error}");
        assert!(error.contains("cannot be restored now: test/web (1 of 1)"), "{error}");
        assert_eq!(scene.node.held(&scene.pod), held);
    }
    assert!(scene.node.all_run(&scene.pod));
}

#[tokio::test]
async fn a_limit_that_does_harm_goes_up_again() {
    let mut scene = Scene::started().await;
    let cgroup = scene.pod.containers["app"].cgroup.clone();
    let bytes = 118_u64 << 20;
    // The process starts to allocate when the spec's limit of 128 MiB is in force, up to just below it.
    let start = scene.agent.path().join("grow");
    let grow = format!(
        "while ! test -e {}; do sleep 0.01; done; {}",
        start.display(),
        holding(bytes)
    );
    scene.node.spawn(&cgroup, &grow);
    scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    scene.agent.stop();
    let held = scene.node.held(&scene.pod);
    let grow_under_watch = || {
        let cgroups = scene.node.cgroups();
        while cgroups.settings(&cgroup).memory_limit() != Some(MemoryLimit::Bytes(128 << 20)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The process starts after the pass, so that the shrink watch detects it, and allocates fast, within the
        // watch's minute.
        std::thread::sleep(Duration::from_millis(500));
        cgroups.free_cpu([&scene.pod.cgroup, &cgroup]);
        std::fs::write(start, "").unwrap();
    };
    let (code, shown, error) = std::thread::scope(|threads| {
        threads.spawn(grow_under_watch);
        scene.agent.restore(&["--yes"])
    });
    assert_eq!(code, Some(1), "{shown}{error}");
    assert!(
        shown.contains("caused trouble") && shown.contains("restoring the earlier ones: Applied"),
        "{shown}{error}"
    );
    let now = scene.node.held(&scene.pod);
    for name in ["pod", "app"] {
        assert_eq!(now[name].memory_limit(), held[name].memory_limit(), "{name}");
    }
    assert_eq!(scene.node.cgroups().oom_kills(&cgroup), 0);
    assert!(scene.node.all_run(&scene.pod));
}

#[tokio::test]
async fn only_pods_that_vscaled_wrote_to_are_written() {
    let mut scene = Scene::new();
    let other = scene.node.run("other", OTHER, &AT_FIRST);
    scene.agent.write("other.yaml", &other.manifest());
    // This pod's kubelet uses other weights and quotas than vscaled.
    let version = scene.node.cgroups().version();
    let theirs = Amounts::doubled(130, 80).settings(version);
    scene.node.put(&other.cgroup, &theirs);
    let held = scene.node.held(&other);
    scene.agent.start().await;
    scene.recommend(&RECOMMENDED);
    scene.settles(&RECOMMENDED).await;
    // After the VPA is gone, the written values stay, also through a restart.
    scene.agent.remove("vpa.yaml");
    scene.agent.reaches("web", "NotManaged").await;
    scene.agent.stop();
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    scene.agent.stop();
    assert!(scene.holds(&RECOMMENDED));

    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(1), "{shown}{error}");
    assert!(scene.holds(&AT_FIRST), "{shown}");
    assert!(
        shown.contains("left as they are, because nothing in stateDir says that vscaled wrote to them: test/other"),
        "{shown}"
    );
    assert_eq!(scene.node.held(&other), held);
}
