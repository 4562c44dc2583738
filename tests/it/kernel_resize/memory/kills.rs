//! A limit that is not lent again, at which the process is killed.

use vscaled::control::proto;

use super::{Effect, End, NAME, Scene, patches};

#[tokio::test]
async fn a_quota_ends_a_temporary_limit() {
    const QUOTA: &str = "pods \"web-5c4f-x\" is forbidden: exceeded quota: q, requested: limits.memory=150Mi";
    let mut scene = Scene::guarded_for("3s").await;
    scene
        .api
        .fault(patches(None, Effect::Says(403, "Forbidden", QUOTA, None)));
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    let denied = async || {
        let pod = scene.agent.pod(NAME).await?;
        pod.leases
            .iter()
            .any(|lease| lease.reason.contains("exceeded quota"))
            .then_some(())
    };
    scene.agent.until("the loan to be denied", denied).await;
    let lent = scene.limit();
    assert!(lent > 200, "what is in use was taken away: {lent}");
    let ended = async || scene.agent.pod(NAME).await.filter(|pod| pod.leases.is_empty());
    let pod = scene.agent.until("the loan to end", ended).await;
    let not_lent = |why: &String| why.contains("no temporary limit before") && why.contains("exceeded quota");
    assert!(pod.not_grown.iter().any(not_lent), "{pod:#?}");
    let taken_back = async || {
        let history = scene.agent.history().await;
        let said = |change: &proto::Change| change.cause.contains("ended because the API server denies it");
        history.iter().any(said).then_some(())
    };
    scene
        .agent
        .until("the end of the loan to be in the history", taken_back)
        .await;
    assert!(process.lives() && scene.kills() == 0 && scene.limit() <= lent);

    // The limit comes down as soon as less is in use, and the tenant risks the next burst.
    drop(process);
    let back = || scene.limit() == 128;
    scene.agent.wait_for("the limit to come down", back).await;
    assert_eq!(scene.asked(), 128);
    let mut process = scene.takes(100, 200);
    assert!(!matches!(process.wait(), End::Satisfied(_)), "lent again");
    assert_eq!(scene.limit(), 128);

    // A restarted agent gives no temporary limit either.
    scene.agent.kill();
    scene.agent.start().await;
    let knows = async || {
        let pod = scene.agent.pod(NAME).await?;
        pod.not_grown.iter().any(not_lent).then_some(())
    };
    scene.agent.until("the next agent to know of the denial", knows).await;
    let mut process = scene.takes(100, 200);
    assert!(!matches!(process.wait(), End::Satisfied(_)), "lent by the next agent");
    assert_eq!(scene.limit(), 128);
}
