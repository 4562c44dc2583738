//! Recommendations become values.

use super::{AT_FIRST, Amounts, SIDE, Scene};

const LARGER: [(&str, Amounts); 2] = [("app", Amounts::doubled(300, 128)), ("side", Amounts::doubled(80, 48))];
const SMALLER: [(&str, Amounts); 2] = [("app", Amounts::doubled(40, 24)), ("side", Amounts::doubled(20, 16))];

#[tokio::test]
async fn a_recommendation_grows_every_level() {
    let scene = Scene::started().await;
    assert!(scene.holds(&AT_FIRST));
    scene.recommend(&LARGER);
    scene.settles(&LARGER).await;
    assert!(scene.node.all_run(&scene.pod));

    let history = scene.agent.history().await;
    assert_eq!(history.len(), 1, "{history:#?}");
    assert_eq!(
        (history[0].outcome.as_str(), history[0].cause.as_str()),
        ("Applied", "recommendation of VPA web (OutOfBounds)")
    );
    // In every file the parent comes first.
    let mut files: Vec<_> = history[0].steps.iter().map(|step| step.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    for file in files
        .into_iter()
        .filter(|file| !file.contains("shares") && !file.contains("weight"))
    {
        let first = history[0].steps.iter().find(|step| step.file == file).unwrap();
        assert_eq!(first.level, "pod", "{file}: {history:#?}");
    }
}

#[tokio::test]
async fn a_recommendation_shrinks_above_use() {
    let scene = Scene::managed(&LARGER).await;
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
    assert!(scene.node.all_run(&scene.pod));
}

#[tokio::test]
async fn one_container_grows_while_another_shrinks() {
    let scene = Scene::managed(&LARGER).await;
    let crossed = [("app", Amounts::doubled(50, 32)), ("side", Amounts::doubled(400, 160))];
    scene.recommend(&crossed);
    scene.settles(&crossed).await;
    assert!(scene.node.all_run(&scene.pod));
}

#[tokio::test]
async fn the_last_of_many_recommendations_wins() {
    let scene = Scene::managed(&LARGER).await;
    for step in 0..40 {
        let app = Amounts::doubled(100 + 7 * step, 40 + step);
        scene.recommend(&[("app", app), ("side", SIDE)]);
        // In some rounds the agent is in the middle of the previous pass.
        tokio::time::sleep(std::time::Duration::from_millis(step % 7 * 5)).await;
    }
    let last = [("app", Amounts::doubled(777, 99)), ("side", SIDE)];
    scene.recommend(&last);
    scene.settles(&last).await;
    let history = scene.agent.history().await;
    assert!(history.iter().all(|change| change.outcome == "Applied"), "{history:#?}");
    assert!(
        !scene.agent.log().contains("another program"),
        "took its own changes for somebody else's"
    );
}

#[tokio::test]
async fn pods_follow_their_own_recommendations() {
    let mut scene = Scene::started().await;
    let uids = [
        "0a1b2c3d-0000-4000-8000-000000000021",
        "0a1b2c3d-0000-4000-8000-000000000022",
    ];
    let others: Vec<_> = ["api", "db"]
        .into_iter()
        .zip(uids)
        .map(|(name, uid)| scene.node.run(name, uid, &AT_FIRST))
        .collect();
    for pod in &others {
        scene.agent.write(&format!("{}.yaml", pod.name), &pod.manifest());
        let vpa = super::vpa_manifest(pod.name, pod.name, &LARGER);
        scene.agent.write(&format!("vpa-{}.yaml", pod.name), &vpa);
    }
    scene.recommend(&SMALLER);
    scene.settles(&SMALLER).await;
    for pod in &others {
        let wait = || scene.node.holds(pod, &LARGER);
        scene.agent.wait_for(pod.name, wait).await;
        assert!(scene.node.all_run(pod));
    }
}
