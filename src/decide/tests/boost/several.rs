//! Containers whose boosts end one after the other, and VPAs of one workload that boost.

use super::*;

/// `app` is boosted for 30 seconds and `side` for 60, by a policy of its own.
fn two() -> KnownObjects {
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

#[test]
fn an_older_vpa_with_a_boost_controls() {
    let said = |view: &KnownObjects| {
        let decision = decide_one(view);
        (decision.vpa.unwrap(), decision.reason)
    };
    for mode in [UpdateMode::Off, UpdateMode::Initial] {
        let mut view = boosted(30);
        let mut younger = view.vpas[0].clone();
        younger.metadata.name = "younger".to_owned();
        younger.metadata.creation_timestamp = Some(now());
        younger.spec.startup_boost = None;
        set_mode(&mut view, mode);
        view.vpas.push(younger);
        let web = |reason| ("web".to_owned(), reason);
        assert_eq!(said(&view), web(Reason::StartupBoost), "{mode:?}");
        pod_of(&mut view).metadata.annotations.clear();
        assert_eq!(said(&view), web(Reason::NotActedOn), "{mode:?}");
        let boost = view.vpas[0].spec.startup_boost.take();
        assert_eq!(said(&view).0, "younger", "{mode:?}");
        let policy = ContainerPolicy {
            container_name: "other".to_owned(),
            startup_boost: boost,
            ..ContainerPolicy::default()
        };
        view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
            pod_policy: None,
            container_policies: vec![policy],
        });
        assert_eq!(said(&view), web(Reason::NotActedOn), "{mode:?}");
        let annotations = &mut view.vpas[0].metadata.annotations;
        annotations.insert(ACT.to_owned(), "false".to_owned());
        assert_eq!(said(&view).0, "younger", "{mode:?}");
    }
}
