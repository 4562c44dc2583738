//! Containers that were given more, and are in trouble all the same.

use vscaled::control::proto::{Amounts as Limits, Change};

use super::{SMALL, Scene};
use crate::support::amounts::Amounts;
use crate::support::victims::victim;

impl Scene {
    async fn set_by_hand(&self, cpu: Option<&str>, memory: Option<&str>) -> Change {
        let [cpu, memory] = [cpu, memory].map(|amount| amount.map(str::to_owned));
        let change = self.agent.resize(self.pod.limits_by_hand(Limits { cpu, memory })).await;
        change.unwrap()
    }

    async fn notes(&self) -> Vec<String> {
        let explained = self.agent.client().await.explain(self.pod.full_name()).await;
        explained.unwrap().notes
    }

    /// What the savings report says beside the numbers.
    async fn remarks(&self) -> Vec<String> {
        let report = self.agent.client().await.report(None).await.unwrap();
        report.workloads.into_iter().flat_map(|one| one.remarks).collect()
    }
}

#[tokio::test]
async fn a_kill_after_more_memory_is_explained() {
    let scene = Scene::started(&[("app", SMALL), ("side", SMALL)]).await;
    scene.kill_one("app");
    scene.wait_for_kills(1).await;
    let is_about = |note: &&String| note.contains("was OOM-killed after its memory limit was raised");
    assert_eq!(scene.set_by_hand(None, Some("24Mi")).await.outcome, "Applied");
    let before = scene.notes().await;
    assert_eq!(before.iter().find(is_about), None, "the kill came before");
    scene.kill_one("app");
    scene.wait_for_kills(2).await;
    let notes = scene.notes().await;
    let remark = notes.iter().find(is_about).unwrap_or_else(|| panic!("{notes:?}"));
    assert!(
        remark.starts_with("container app ") && remark.contains("kills: 1"),
        "{remark}"
    );
    assert!(remark.contains("an operator's override is in force"), "{remark}");
    assert_eq!(scene.remarks().await, [format!("{}: {remark}", scene.pod.full_name())]);
}

#[tokio::test]
async fn throttling_after_more_cpu_is_explained() {
    let scene = Scene::started(&[("app", Amounts::doubled(25, 64))]).await;
    let mut busy = victim(scene.node.cgroups(), &scene.cgroup("app"), "while :; do :; done");
    let is_about = |note: &&String| note.starts_with("container app is throttled in ");
    assert_eq!(scene.notes().await.iter().find(is_about), None, "it got no more yet");
    assert_eq!(scene.set_by_hand(Some("100m"), None).await.outcome, "Applied");
    let (notes, reported) = (scene.notes().await, scene.remarks().await);
    busy.kill().unwrap();
    busy.wait().unwrap();
    let remark = notes.iter().find(is_about).unwrap_or_else(|| panic!("{notes:?}"));
    assert!(remark.contains("although its cpu limit was raised at"), "{remark}");
    let words = format!("{}: container app is throttled in ", scene.pod.full_name());
    assert!(reported.len() == 1 && reported[0].starts_with(&words), "{reported:?}");
    // Nobody uses it now. The kernel counts the last period later.
    while scene.notes().await.iter().any(|note| is_about(&note)) {}
    assert_eq!(scene.remarks().await, <[String; 0]>::default());
}
