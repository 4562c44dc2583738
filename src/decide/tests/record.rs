//! Deciding by a record of what was applied, on nodes whose kubelet reports nothing.

use super::*;
use crate::decide::decide_pod;
use crate::model::{Action, MilliCpu, Reason};

fn decide_with(view: &KnownObjects, applied: &PodAmounts) -> PodDecision {
    decide_pod(
        &view.pods[0],
        &index(view),
        now(),
        &Options::default(),
        Some(applied).into(),
    )
}

fn record(request: u64, limit: u64) -> PodAmounts {
    let mut resources = Requirements::default();
    resources.requests.cpu = Some(MilliCpu::new(request));
    resources.limits.cpu = Some(MilliCpu::new(limit));
    PodAmounts::from_iter([NamedRequirements::new("app", resources)])
}

/// [`WEB`] with a recommendation for cpu only.
fn cpu_only() -> KnownObjects {
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
    let second = decide_with(&view, &first.amounts);
    assert_eq!((second.action(), &second.amounts), (Action::None, &first.amounts));
}

#[test]
fn without_a_record_the_spec_counts() {
    let view = view(WEB);
    assert_eq!(decide_with(&view, PodAmounts::NONE), decide_one(&view));
}

#[test]
fn a_following_limit_restarts_as_well() {
    let mut view = view(WEB);
    pod_of(&mut view).spec.containers[0].resize_policy =
        serde_json::from_str(r#"[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]"#).unwrap();
    let mut applied = record(200, 600);
    applied.containers[0].resources.requests.memory = view.pods[0].spec.containers[0].resources.requests.memory;
    assert_eq!(
        decide_with(&view, &applied).action(),
        Action::Resize,
        "memory alone changes"
    );
    applied.containers[0].resources.limits.cpu = Some(MilliCpu::new(500));
    assert_eq!(decide_with(&view, &applied).reason, Reason::RestartRequired);
}

/// [`WEB`] with a container that restarts when its memory changes.
fn memory_restarts() -> KnownObjects {
    let mut view = view(WEB);
    pod_of(&mut view).spec.containers[0].resize_policy =
        serde_json::from_str(r#"[{"resourceName": "memory", "restartPolicy": "RestartContainer"}]"#).unwrap();
    view
}

#[test]
fn what_needs_no_restart_is_changed_beside_what_does() {
    let decision = decide_one(&memory_restarts());
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::RestartRequired)
    );
    assert_eq!(cpu(&decision, "app"), "100m/300m", "the whole change is forbidden");
    let (reason, part) = decision.change().unwrap();
    let has = |resource| amounts(part.container("app").unwrap(), resource);
    assert_eq!(
        (reason, has(Resource::Cpu), has(Resource::Memory)),
        (Reason::OutOfBounds, "200m/600m".to_owned(), "100Mi/300Mi".to_owned())
    );
    let said = notes(&decision);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("app: memory is left as it is"), "{said:?}");
}

#[test]
fn a_restarting_resource_triggers_no_change() {
    let view = memory_restarts();
    let first = decide_one(&view);
    let applied = first.change().unwrap().1.clone();
    let again = decide_with(&view, &applied);
    assert_eq!((again.reason, again.change()), (Reason::RestartRequired, None));
    let mut near = view;
    let said = &mut near.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0];
    said.target.cpu = Some(MilliCpu::new(205));
    assert_eq!(
        decide_with(&near, &applied).change(),
        None,
        "within its bounds and near enough"
    );
}
