//! Containers whose boosts end one after the other.

use super::*;

/// `app` is boosted for 30 seconds and `side` for 60, by a policy of its own.
fn two() -> NodeView {
    let mut view = boosted(30);
    let pod = pod_of(&mut view);
    let mut side = pod.spec.containers[0].clone();
    side.name = "side".to_owned();
    pod.spec.containers.push(side);
    annotate(pod, "side", BEFORE);
    view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
        pod_policy: None,
        container_policies: vec![ContainerPolicy {
            container_name: "side".to_owned(),
            startup_boost: for_seconds(60),
            ..ContainerPolicy::default()
        }],
    });
    view
}

#[test]
fn each_ends_in_its_own_time() {
    let decision = decide_one(&ready_for(two(), 10));
    assert_eq!(decision.reason, Reason::StartupBoost);
    assert_eq!(decision.boosts.next_end, Some(now() + SignedDuration::from_secs(20)));

    let view = ready_for(two(), 40);
    let decision = decide_one(&view);
    assert_eq!(decision.reason, Reason::StartupBoostEnded);
    assert_eq!(
        (cpu(&decision, "app"), cpu(&decision, "side")),
        ("200m/600m".into(), "1/3".into())
    );
    assert_eq!(decision.boosts.next_end, Some(now() + SignedDuration::from_secs(20)));

    let mut view = ready_for(two(), 60);
    pod_of(&mut view).spec.containers[0].resources = decision.amounts.containers[0].resources;
    let decision = decide_one(&view);
    assert_eq!(
        (cpu(&decision, "app"), cpu(&decision, "side")),
        ("200m/600m".into(), "100m/300m".into()),
        "nothing is recommended for the latter"
    );
    assert_eq!(decision.boosts.done, ["app"]);
    assert_eq!(decision.boosts.next_end, None);
}

#[test]
fn a_boost_ends_beside_one_that_lasts() {
    let mut view = ready_for(two(), 40);
    let ended = decide_one(&view).amounts.containers[0].resources;
    pod_of(&mut view).spec.containers[0].resources = ended;
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, decision.boosts.done),
        (Reason::StartupBoost, vec!["app".to_owned()])
    );
}
