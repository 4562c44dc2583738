//! A cpu burst that a VPA or the configuration wants: every cgroup of the pod has it, whatever happens.

use std::fs;
use std::path::Path;

use vscaled::model::CgroupVersion;

use super::{APP, AT_FIRST, Amounts, ROOMY, Scene, bursts, cpu};
use crate::support::amounts::vpa_manifest;
use crate::support::{skipped, vscalectl};

const SMALLER: [(&str, Amounts); 2] = [("app", Amounts::doubled(40, 64)), ("side", Amounts::doubled(20, 32))];
const LARGER: [(&str, Amounts); 2] = [("app", Amounts::doubled(400, 64)), ("side", Amounts::doubled(200, 32))];

impl Scene {
    /// A VPA with this recommendation, and this burst if it has any.
    fn want_burst(&self, burst: Option<&str>, targets: &[(&str, Amounts)]) {
        let annotations = burst.map(|burst| format!(", annotations: {{vscaled.io/cpu-burst: {burst:?}}}"));
        let vpa = vpa_manifest("web", "web", targets);
        let named = format!("namespace: test{}}}", annotations.unwrap_or_default());
        self.agent
            .write("vpa.yaml", &vpa.replacen("namespace: test}", &named, 1));
    }

    /// Waits until every cgroup has this burst in percent of its quota, and the agent reports InSync.
    async fn bursts_by(&self, percent: u64) {
        let holds = || bursts::held(self) == Some(bursts::quotas(self).map(|quota| quota * percent / 100));
        self.agent.wait_for(&format!("a burst of {percent}%"), holds).await;
        self.agent.reaches("web", "InSync").await;
    }
}

/// A scene with an agent that changes nothing yet; None if the kernel has no bursts.
async fn started() -> Option<Scene> {
    let scene = Scene::started().await;
    if bursts::held(&scene).is_none() {
        skipped("wanted_bursts", "this kernel has none (Linux 5.14 and later)");
        return None;
    }
    Some(scene)
}

#[tokio::test]
async fn a_wanted_burst_goes_with_every_quota_and_back_to_zero() {
    let Some(scene) = started().await else { return };
    scene.want_burst(Some("50%"), &AT_FIRST);
    scene.bursts_by(50).await;
    assert!(scene.holds(&AT_FIRST), "nothing else changes");
    for targets in [&LARGER, &SMALLER, &ROOMY] {
        scene.want_burst(Some("100%"), targets);
        scene.settles(targets).await;
        scene.bursts_by(100).await;
    }
    // An operator's limit.
    let change = scene.agent.resize(scene.by_hand(cpu("300m"))).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert_eq!(bursts::held(&scene).unwrap()[1], 30_000);
    scene.agent.release(&scene.pod.full_name()).await.unwrap();
    scene.settles(&ROOMY).await;
    scene.bursts_by(100).await;
    let history = scene.agent.history().await;
    assert!(history.iter().all(|change| change.outcome == "Applied"), "{history:#?}");

    scene.want_burst(None, &ROOMY);
    scene.bursts_by(0).await;
    scene.want_burst(Some("20%"), &ROOMY);
    scene.bursts_by(20).await;
    scene.agent.remove("vpa.yaml");
    scene.bursts_by(0).await;
    assert!(scene.holds(&ROOMY), "amounts stay without their VPA");
}

#[tokio::test]
async fn a_burst_that_another_process_changes_comes_back() {
    let Some(mut scene) = started().await else { return };
    scene.want_burst(Some("50%"), &AT_FIRST);
    scene.bursts_by(50).await;
    // As a runtime would that knows no bursts.
    bursts::give(&scene, [0, 0, 0]);
    scene.bursts_by(50).await;
    let repair = async || {
        let history = scene.agent.history().await;
        history
            .iter()
            .any(|change| change.cause.starts_with("drift"))
            .then_some(())
    };
    scene.agent.until("a repair", repair).await;
    let old = scene.pod.containers["app"].cgroup.clone();
    scene.node.cgroups().remove(&old);
    scene.node.run_container(&mut scene.pod, "app", APP);
    scene.agent.write("pod.yaml", &scene.pod.manifest());
    scene.bursts_by(50).await;
}

#[tokio::test]
async fn a_burst_survives_agents_and_ends_with_its_annotation() {
    let Some(mut scene) = started().await else { return };
    scene.want_burst(Some("50%"), &ROOMY);
    scene.settles(&ROOMY).await;
    scene.bursts_by(50).await;
    scene.saves("\"burst\":50").await;
    // What the report compares with.
    scene.saves("\"burstStarts\":{\"app\":").await;
    scene.agent.kill();
    bursts::give(&scene, [0, 0, 0]);
    scene.agent.start().await;
    scene.bursts_by(50).await;
    scene.agent.stop();
    assert_ne!(bursts::held(&scene), Some([0, 0, 0]), "stopping leaves it");
    scene.want_burst(None, &ROOMY);
    scene.agent.start().await;
    scene.bursts_by(0).await;
}

#[tokio::test]
async fn restoring_a_node_takes_the_burst_back() {
    let Some(mut scene) = started().await else { return };
    let foreign = [0, 0, 5000];
    scene.want_burst(Some("50%"), &ROOMY);
    scene.settles(&ROOMY).await;
    scene.bursts_by(50).await;
    scene.agent.stop();
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert!(scene.holds(&AT_FIRST), "{shown}");
    assert_eq!(bursts::held(&scene), Some([0, 0, 0]), "{shown}");

    // A burst of others is no concern of an agent without a burst.
    scene.agent.remove("vpa.yaml");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    bursts::give(&scene, foreign);
    scene.agent.resize(scene.by_hand(cpu("1"))).await.unwrap();
    scene.agent.stop();
    let (code, shown, error) = scene.agent.restore(&["--yes", "--no-watch"]);
    assert_eq!(code, Some(0), "{shown}{error}");
    assert_eq!(bursts::held(&scene), Some(foreign), "{shown}");
}

#[tokio::test]
async fn a_malformed_burst_is_told_once_and_changes_nothing() {
    let Some(scene) = started().await else { return };
    scene.want_burst(Some("50%"), &AT_FIRST);
    scene.bursts_by(50).await;
    scene.want_burst(Some("150%"), &ROOMY);
    let decided = async || {
        scene
            .agent
            .pod("web")
            .await
            .filter(|pod| pod.reason == "BurstUnreadable")
    };
    scene.agent.until("the decision", decided).await;
    scene.bursts_by(50).await;
    assert!(scene.holds(&AT_FIRST), "no recommendation is followed");
    scene.want_burst(Some("20%"), &LARGER);
    scene.settles(&LARGER).await;
    scene.bursts_by(20).await;
    let history = scene.agent.history().await;
    let told: Vec<_> = history.iter().filter(|change| change.outcome == "Refused").collect();
    assert_eq!(told.len(), 1, "{history:#?}");
    let words = "metadata.annotations[vscaled.io/cpu-burst]: \"150%\": allowed is 0% to 100%";
    assert!(told[0].reason.ends_with(words), "{told:#?}");
}

#[tokio::test]
async fn the_configured_burst_is_shown_at_every_level() {
    let mut scene = Scene::new();
    if bursts::held(&scene).is_none() {
        return skipped("wanted_bursts", "this kernel has none (Linux 5.14 and later)");
    }
    scene.agent.set("--cpu-burst", "40%");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    assert_eq!(bursts::held(&scene), Some([0, 0, 0]), "no VPA");
    scene.recommend(&AT_FIRST);
    scene.bursts_by(40).await;
    let asks = |command: &[&str]| {
        let socket = scene.agent.socket();
        let output = vscalectl(&[&["--socket", socket.to_str().unwrap()], command].concat(), "");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let explained = asks(&["explain", "test/web"]);
    let why = "each cgroup may burst by 40% of its cpu quota: cpuBurst of the configuration";
    assert!(explained.contains(why), "{explained}");
    let files = ["cpu.max.burst", "cpu.cfs_burst_us"];
    let shown = files.iter().map(|file| explained.matches(file).count()).sum::<usize>();
    assert_eq!(shown, 3, "{explained}");
    let top = asks(&["top", "--interval", "100ms", "web"]);
    assert_eq!(top.matches("(burst 40%)").count(), 3, "{top}");
}

/// Copies a cgroup and those below it to plain files, without those of bursts, as a kernel before Linux 5.14 has them.
fn copy_without_bursts(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            copy_without_bursts(&entry.path(), &to.join(name));
        } else if !name.to_str().unwrap().contains("burst")
            // Some files can only be written.
            && let Ok(text) = fs::read(entry.path())
        {
            fs::write(to.join(name), text).unwrap();
        }
    }
}

#[tokio::test]
async fn a_kernel_without_bursts_is_told_once() {
    let mut scene = Scene::new();
    let second = scene
        .node
        .run("second", "0a1b2c3d-0000-4000-8000-000000000012", &AT_FIRST);
    let tree = tempfile::tempdir().unwrap();
    if scene.node.cgroups().version() == CgroupVersion::V2 {
        fs::write(tree.path().join("cgroup.controllers"), "cpu memory").unwrap();
    }
    for directory in scene.node.cgroups().directories(&scene.node.kubepods()) {
        let below = directory.strip_prefix("/sys/fs/cgroup").unwrap();
        copy_without_bursts(&directory, &tree.path().join(below));
    }
    scene.agent.write("second.yaml", &second.manifest());
    scene.agent.set("--cgroup-root", tree.path());
    scene.agent.set("--cpu-burst", "40%");
    scene.agent.start().await;
    for name in ["web", "second"] {
        let vpa = vpa_manifest(name, name, &AT_FIRST);
        scene.agent.write(&format!("{name}-vpa.yaml"), &vpa);
        scene.agent.reaches(name, "InSync").await;
    }
    let said = "this node's kernel has no bursts of cpu (Linux 5.14 and later have them): a burst of 40% has no effect";
    let problems = scene.agent.get().await.agent.unwrap().problems;
    assert_eq!(
        problems.iter().filter(|problem| *problem == said).count(),
        1,
        "{problems:#?}"
    );
    for pod in ["test/web", "test/second"] {
        let notes = scene.agent.client().await.explain(pod.to_owned()).await.unwrap().notes;
        assert_eq!(notes.iter().filter(|note| *note == said).count(), 1, "{notes:#?}");
    }
    assert_eq!(
        scene.agent.log().matches("no bursts of cpu").count(),
        0,
        "told to whoever asks"
    );
    let history = scene.agent.history().await;
    assert!(history.is_empty(), "{history:#?}");
}
