//! Annotations that no webhook wrote: a tenant who may write a pod may write them.

use super::*;
use crate::model::objects::{LimitRange, LimitRangeItem};

/// 200m of 600m, and what a tenant would like to have had before.
const MUCH: &str = r#"{"requests":{"cpu":"64"},"limits":{"cpu":"64"}}"#;

fn tenants(before: &str) -> KnownObjects {
    let mut view = ready_for(boosted(0), 1);
    let pod = pod_of(&mut view);
    let resources = &mut pod.spec.containers[0].resources;
    resources.requests.cpu = Some(MilliCpu::new(200));
    resources.limits.cpu = Some(MilliCpu::new(600));
    annotate(pod, "app", before);
    view
}

/// What the pod's cpu becomes without a recommendation for it.
fn ends_with(mut view: KnownObjects) -> String {
    for vpa in &mut view.vpas {
        vpa.status.recommendation = None;
    }
    cpu(&decide_one(&view), "app")
}

#[test]
fn an_annotation_needs_a_boosting_vpa() {
    let mut view = tenants(MUCH);
    view.vpas.clear();
    assert_eq!(decide_one(&view).reason, Reason::NoVpa);
    for mode in [UpdateMode::Recreate, UpdateMode::Off, UpdateMode::Initial] {
        let mut view = boosted(0);
        view.vpas[0].spec.startup_boost = None;
        set_mode(&mut view, mode);
        let decision = decide_one(&ready_for(view.clone(), 1));
        assert_ne!(decision.reason, Reason::StartupBoostEnded, "{mode:?}");
        assert!(decision.boosts.done.is_empty(), "{mode:?}");
        assert_ne!(decide_one(&view).reason, Reason::StartupBoost, "{mode:?}");
    }
    let mut view = boosted(0);
    view.vpas[0].spec.startup_boost = None;
    let policy = ContainerPolicy {
        container_name: "app".to_owned(),
        startup_boost: for_seconds(0),
        ..ContainerPolicy::default()
    };
    view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
        pod_policy: None,
        container_policies: vec![policy],
    });
    assert_eq!(decide_one(&ready_for(view, 1)).reason, Reason::StartupBoostEnded);
}

#[test]
fn the_end_of_a_boost_never_gives_more_than_there_is() {
    assert_eq!(ends_with(tenants(MUCH)), "200m/600m");
    let wide = r#"{"requests":{"cpu":"1m"},"limits":{"cpu":"64"}}"#;
    assert_eq!(ends_with(tenants(wide)), "1m/600m");
    let mut off = tenants(MUCH);
    set_mode(&mut off, UpdateMode::Off);
    assert_eq!(ends_with(off), "200m/600m");
}

#[test]
fn an_annotated_ratio_widens_no_limit() {
    let mut view = tenants(r#"{"requests":{"cpu":"1m"},"limits":{"cpu":"64"}}"#);
    let said = view.vpas[0].status.recommendation.as_mut().unwrap();
    said.container_recommendations[0].target.cpu = Some(MilliCpu::new(100));
    assert_eq!(cpu(&decide_one(&view), "app"), "100m/300m");
    // Where the spec keeps the boost, a record says what was applied instead.
    let mut applied = view.pods[0].requirements();
    applied.containers[0].resources.requests.cpu = Some(MilliCpu::new(50));
    applied.containers[0].resources.limits.cpu = Some(MilliCpu::new(150));
    let known = Some(&applied).into();
    let later = decide_pod(&view.pods[0], &index(&view), now(), &Options::default(), known);
    assert_eq!(cpu(&later, "app"), "100m/300m");
}

#[test]
fn more_than_the_boost_is_recommended() {
    let mut view = tenants(BEFORE);
    let said = view.vpas[0].status.recommendation.as_mut().unwrap();
    said.container_recommendations[0].target.cpu = Some(MilliCpu::new(400));
    said.container_recommendations[0].lower_bound.cpu = Some(MilliCpu::new(300));
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, cpu(&decision, "app")),
        (Reason::OutOfBounds, "400m/1200m".into())
    );
    assert_eq!(decision.boosts.done, ["app"]);
}

#[test]
fn the_limit_range_holds_at_the_end_of_a_boost() {
    let bounded = |min: u64, max: u64| {
        let mut view = tenants(r#"{"requests":{"cpu":"20m"},"limits":{"cpu":"550m"}}"#);
        let list = |cpu: u64| crate::model::ResourceList {
            cpu: Some(MilliCpu::new(cpu)),
            memory: None,
        };
        let mut range = LimitRange::default();
        range.metadata.namespace = view.pods[0].metadata.namespace.clone();
        range.spec.limits = vec![LimitRangeItem {
            kind: "Container".to_owned(),
            min: list(min),
            max: list(max),
            ..LimitRangeItem::default()
        }];
        view.limit_ranges = vec![range.into()];
        ends_with(view)
    };
    assert_eq!(bounded(50, 500), "50m/500m");
    assert_eq!(bounded(400, 2000), "200m/550m", "up to what the container has");
}
