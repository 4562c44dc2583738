//! A temporary limit stays until it is recommended or no longer needed.

use super::{Scene, vpa};
use crate::support::allocator::End;

#[tokio::test]
async fn a_recommendation_ends_a_temporary_limit() {
    let scene = Scene::guarded("4Gi").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    scene.temporary_limit().await;
    // A limit of twice the request: more than the temporary limit.
    scene.agent.write("vpa.yaml", &vpa("web", "4Gi", 600));
    scene
        .agent
        .wait_for("the recommended limit", || scene.limit() == 1200)
        .await;
    let ended = async || {
        let pod = scene.agent.pod("web").await?;
        (pod.state == "InSync" && pod.leases.is_empty()).then_some(())
    };
    scene.agent.until("the loan to end", ended).await;
    assert!(process.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn an_unneeded_temporary_limit_is_taken_back() {
    let scene = Scene::guarded_for("2s").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    let raised = scene.temporary_limit().await;
    assert!(process.lives());
    drop(process);
    let back = || scene.limit() == 128 && scene.pod_limit() == 128;
    scene
        .agent
        .wait_for(&format!("{} to be taken back", raised.to), back)
        .await;
    let ended = async || scene.agent.pod("web").await.filter(|pod| pod.leases.is_empty());
    scene.agent.until("the loan to end", ended).await;
    let told = async || {
        let mut changes = scene.by_the_guard().await.into_iter();
        changes.find(|change| change.cause.contains("temporary memory limit of container"))
    };
    scene.agent.until("the end to be in the history", told).await;
}

#[tokio::test]
async fn an_unwanted_temporary_limit_is_taken_back() {
    let scene = Scene::guarded_for("2s").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    scene.temporary_limit().await;
    scene.agent.remove("vpa.yaml");
    let alone = async || scene.agent.pod("web").await.filter(|pod| pod.vpa.is_none());
    let pod = scene.agent.until("the VPA to be gone", alone).await;
    assert_eq!(pod.leases.len(), 1, "it is needed: {pod:#?}");
    drop(process);
    let back = || scene.limit() == 128 && scene.pod_limit() == 128;
    scene.agent.wait_for("the loan to be taken back", back).await;
}

#[tokio::test]
async fn a_loan_that_is_needed_stays_as_far_as_it_is() {
    let scene = Scene::guarded_for("1s").await;
    // So fast that the guard gives much more than the container needs in the end.
    let mut process = scene.takes_carefully(0, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    // The memory in use shall be seven eighths of the limit, and a temporary limit that is up to a quarter larger stays: with the
    // pages of the process itself, 290 MiB where the guard reads late.
    let lowered = || (200..=290).contains(&scene.limit());
    scene.agent.wait_for("the loan to be lowered", lowered).await;
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(lowered() && process.lives() && scene.kills() == 0);
    assert_eq!(scene.agent.pod("web").await.unwrap().leases.len(), 1);
    // The container uses 200 MiB and had a limit of 128: without the temporary limit, one kill would have happened.
    let report = scene.agent.client().await.report(None).await.unwrap();
    assert_eq!(report.total.unwrap().avoided_kills, 1);
}

#[tokio::test]
async fn an_override_replaces_a_temporary_limit() {
    let scene = Scene::guarded("4Gi").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    scene.temporary_limit().await;
    let change = scene.agent.resize(scene.by_hand("1Gi")).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    assert_eq!(scene.limit(), 1024);
    assert!(scene.agent.pod("web").await.unwrap().leases.is_empty());
    // Lower than the temporary limit before, and more than is in use.
    scene.agent.resize(scene.by_hand("230Mi")).await.unwrap();
    assert_eq!(scene.limit(), 230);
    assert!(process.lives() && scene.kills() == 0);
}
