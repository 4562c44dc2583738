//! Deciding by a record of what was applied, on nodes whose kubelet reports nothing.

use super::*;
use crate::decide::{Action, Reason, decide_pod};
use crate::resources::{MilliCpu, Requirements};

fn decide_with(view: &NodeView, applied: &[NamedRequirements]) -> PodDecision {
    decide_pod(&view.pods[0], &index(view), now(), &Options::default(), Some(applied))
}

fn record(request: u64, limit: u64) -> Vec<NamedRequirements> {
    let mut resources = Requirements::default();
    resources.requests.cpu = Some(MilliCpu::new(request));
    resources.limits.cpu = Some(MilliCpu::new(limit));
    vec![NamedRequirements {
        name: "app".to_owned(),
        resources,
    }]
}

/// [`WEB`] with a recommendation for cpu only.
fn cpu_only() -> NodeView {
    let mut view = view(WEB);
    for said in &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations
    {
        for list in [&mut said.target, &mut said.lower_bound, &mut said.upper_bound] {
            list.memory = None;
        }
    }
    view
}

#[test]
fn what_was_applied_is_what_bounds_are_tested_against() {
    let decision = decide_with(&cpu_only(), &record(160, 480));
    assert_eq!((decision.action(), decision.reason), (Action::None, Reason::TooYoung));
    assert_eq!(
        cpu(&decision, "app"),
        "160m/480m",
        "nothing changes, so the record stands"
    );
}

#[test]
fn limits_keep_the_ratio_of_the_spec_not_of_the_record() {
    let decision = decide_with(&cpu_only(), &record(7, 20));
    assert_eq!(cpu(&decision, "app"), "200m/600m", "the spec's one to three");
}

#[test]
fn deciding_on_the_result_changes_nothing() {
    let view = view(WEB);
    let first = decide_one(&view);
    let second = decide_with(&view, &first.containers);
    assert_eq!((second.action(), &second.containers), (Action::None, &first.containers));
}

#[test]
fn a_container_that_the_record_lacks_has_what_its_spec_says() {
    let view = view(WEB);
    assert_eq!(decide_with(&view, &[]), decide_one(&view));
}

#[test]
fn a_limit_that_has_to_follow_restarts_its_container_too() {
    let mut view = view(WEB);
    pod_of(&mut view).spec.containers[0].resize_policy =
        serde_json::from_str(r#"[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]"#).unwrap();
    let mut applied = record(200, 600);
    applied[0].resources.requests.memory = view.pods[0].spec.containers[0].resources.requests.memory;
    assert_eq!(
        decide_with(&view, &applied).action(),
        Action::Resize,
        "memory alone changes"
    );
    applied[0].resources.limits.cpu = Some(MilliCpu::new(500));
    assert_eq!(decide_with(&view, &applied).reason, Reason::RestartRequired);
}
