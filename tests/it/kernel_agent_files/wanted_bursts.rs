//! A cpu burst that a VPA or the configuration wants: every cgroup of the pod has it, whatever happens.

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
async fn a_malformed_burst_is_told_once_and_changes_none() {
    let Some(scene) = started().await else { return };
    scene.want_burst(Some("50%"), &AT_FIRST);
    scene.bursts_by(50).await;
    scene.want_burst(Some("150%"), &ROOMY);
    scene.settles(&ROOMY).await;
    scene.bursts_by(50).await;
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
