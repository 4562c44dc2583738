//! Annotations, conflicts and bad input, and where decisions differ from upstream on purpose.

use super::*;
use jiff::SignedDuration;

use crate::decide::{EarlierDecisions, decide_pod};
use crate::model::objects::annotation::{ACT, IGNORE};
use crate::model::objects::{PodCondition, UpdateMode};
use crate::model::{Action, QosClass, Reason};

fn set(map: &mut std::collections::BTreeMap<String, String>, key: &str, value: &str) {
    map.insert(key.to_owned(), value.to_owned());
}

#[test]
fn a_pod_out_of_range_keeps_its_ratio() {
    let decision = decide_one(&view(WEB));
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Resize, Reason::OutOfBounds)
    );
    assert_eq!(decision.vpa.as_deref(), Some("web"));
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/600m".into(), "200Mi/600Mi".into())
    );
    assert_eq!(decision.notes, []);
}

#[test]
fn an_ignored_pod_is_left_alone() {
    let mut view = view(WEB);
    set(&mut pod_of(&mut view).metadata.annotations, IGNORE, "true");
    let decision = decide_one(&view);
    assert_eq!((decision.action(), decision.reason), (Action::None, Reason::Ignored));
    assert_eq!(cpu(&decision, "app"), "100m/300m");
}

#[test]
fn the_annotation_of_a_vpa_outranks_its_mode() {
    let mut view = view(WEB);
    set(&mut view.vpas[0].metadata.annotations, ACT, "false");
    let decision = decide_one(&view);
    assert_eq!(
        (decision.vpa.as_deref(), decision.reason),
        (Some("web"), Reason::NotActedOn)
    );

    set(&mut view.vpas[0].metadata.annotations, ACT, "true");
    view.vpas[0].spec.update_policy = Some(crate::model::objects::UpdatePolicy {
        update_mode: Some(UpdateMode::Off),
        ..crate::model::objects::UpdatePolicy::default()
    });
    assert_eq!(decide_one(&view).action(), Action::Resize);
}

#[test]
fn only_the_chosen_modes_and_recommender_are_acted_on() {
    let view = view(WEB);
    let decided = |options| decide(&view.pods, &index(&view), now(), &options).swap_remove(0);
    let declined = |options, why: &str| {
        let decision = decided(options);
        assert_eq!(decision.reason, Reason::NotActedOn);
        assert_eq!(notes(&decision), [why]);
    };
    let in_place_only = Options {
        modes: vec![UpdateMode::InPlace, UpdateMode::InPlaceOrRecreate],
        ..Options::default()
    };
    // No mode means Recreate.
    declined(
        in_place_only,
        "updateModes lacks the VPA's mode, and no annotation vscaled.io/act allows it",
    );
    let recommender = |name: &str| Options {
        recommender: Some(name.to_owned()),
        ..Options::default()
    };
    assert_eq!(decided(recommender("default")).reason, Reason::OutOfBounds);
    declined(
        recommender("mine"),
        "the VPA's recommender is not that of the configuration",
    );
}

#[test]
fn what_a_horizontal_autoscaler_follows_is_left_alone() {
    let hpa = "
kind: HorizontalPodAutoscaler
metadata: {name: scale-web}
spec: {scaleTargetRef: {kind: StatefulSet, name: web}, metrics: [{type: Resource, resource: {name: cpu}}]}
";
    let decision = decide_one(&web_and(hpa));
    assert_eq!(decision.action(), Action::Resize);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("100m/300m".into(), "200Mi/600Mi".into())
    );
    assert_eq!(
        notes(&decision),
        ["cpu is left alone: HorizontalPodAutoscaler scale-web scales on it"]
    );
}

#[test]
fn an_hpa_on_everything_leaves_nothing() {
    let hpa = "
kind: HorizontalPodAutoscaler
metadata: {name: scale-web}
spec:
  scaleTargetRef: {kind: StatefulSet, name: web}
  metrics: [{type: Resource, resource: {name: cpu}}, {type: ContainerResource, containerResource: {name: memory, container: app}}]
";
    assert_eq!(decide_one(&web_and(hpa)).reason, Reason::HpaConflict);
}

#[test]
fn an_hpa_holds_only_its_container() {
    let hpa = |container: &str, target: &str| {
        let metric = format!("{{name: cpu, container: {container}, target: {{type: {target}}}}}");
        let hpa = format!(
            "kind: HorizontalPodAutoscaler\nmetadata: {{name: h}}\nspec:\n  scaleTargetRef: {{kind: StatefulSet, name: web}}\n  \
             metrics: [{{type: ContainerResource, containerResource: {metric}}}]"
        );
        let decision = decide_one(&web_and(&hpa));
        (cpu(&decision, "app"), notes(&decision).len())
    };
    assert_eq!(hpa("app", "Utilization"), ("100m/300m".to_owned(), 1));
    assert_eq!(hpa("other", "Utilization"), ("200m/600m".to_owned(), 0));
    // The use is compared with an amount, whatever the requests are.
    assert_eq!(hpa("app", "AverageValue"), ("200m/600m".to_owned(), 0));
}

#[test]
fn a_bound_in_fractions_of_bytes_is_refused() {
    let with = |bounds: &str| {
        let mut view = view(WEB);
        let policy = format!(r#"{{"containerPolicies": [{{"containerName": "*", {bounds}}}]}}"#);
        view.vpas[0].spec.resource_policy = Some(serde_json::from_str(&policy).unwrap());
        decide_one(&view)
    };
    for (bounds, field) in [
        (r#""maxAllowed": {"memory": "500m"}"#, "maxAllowed.memory: 500m"),
        (r#""minAllowed": {"memory": "1.5"}"#, "minAllowed.memory: 1500m"),
        (r#""minAllowed": {"cpu": "100u"}"#, "minAllowed.cpu: 100000n"),
    ] {
        let decision = with(bounds);
        assert_eq!(decision.reason, Reason::BoundUnreadable);
        assert!(notes(&decision)[0].contains(field), "{:?}", notes(&decision));
    }
    assert_eq!(with(r#""maxAllowed": {"memory": "1.5Gi"}"#).action(), Action::Resize);
}

#[test]
fn no_container_is_given_less_than_it_can_run_with() {
    let with = |bounds: &str| {
        let mut view = view(WEB);
        let policy = format!(r#"{{"containerPolicies": [{{"containerName": "*", {bounds}}}]}}"#);
        view.vpas[0].spec.resource_policy = Some(serde_json::from_str(&policy).unwrap());
        decide_one(&view)
    };
    for bounds in [
        r#""maxAllowed": {"memory": "4095"}"#,
        r#""maxAllowed": {"memory": "1"}, "controlledValues": "RequestsOnly""#,
    ] {
        let decision = with(bounds);
        assert_eq!(decision.reason, Reason::BelowLeast, "{bounds}");
        assert!(notes(&decision).last().unwrap().contains("below the least"));
    }
    // The kubelet gives each container a quota of at least 1 ms.
    let least = with(r#""maxAllowed": {"memory": "4Ki", "cpu": "3m"}"#);
    assert_eq!((least.action(), cpu(&least, "app")), (Action::Resize, "3m/9m".into()));
    let mut small = view(WEB);
    let has = r#"{"requests": {"cpu": "100m", "memory": "1000"}, "limits": {"cpu": "300m", "memory": "2000"}}"#;
    pod_of(&mut small).spec.containers[0].resources = serde_json::from_str(has).unwrap();
    let policy = r#"{"containerPolicies": [{"containerName": "*", "maxAllowed": {"memory": "1500"}}]}"#;
    small.vpas[0].spec.resource_policy = Some(serde_json::from_str(policy).unwrap());
    assert_eq!(
        decide_one(&small).action(),
        Action::Resize,
        "the container runs with less already"
    );
}

#[test]
fn an_hpa_without_metrics_follows_cpu() {
    for spec in ["", ", targetCPUUtilizationPercentage: 80"] {
        let hpa = format!(
            "kind: HorizontalPodAutoscaler\nmetadata: {{name: h}}\nspec: {{scaleTargetRef: {{kind: StatefulSet, name: web}}{spec}}}"
        );
        assert_eq!(cpu(&decide_one(&web_and(&hpa)), "app"), "100m/300m", "{spec}");
    }
}

#[test]
fn a_container_the_pod_lacks_is_named() {
    let mut view = view(WEB);
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations;
    said[0].container_name = "gone".to_owned();
    let decision = decide_one(&view);
    assert_eq!(decision.reason, Reason::NoRecommendation);
    assert_eq!(
        notes(&decision),
        ["gone: recommended for, but the pod has no such container"]
    );
}

#[test]
fn containers_of_one_name_skip_the_pod() {
    let mut view = view(WEB);
    let twin = view.pods[0].spec.containers[0].clone();
    pod_of(&mut view).spec.containers.push(twin);
    let decision = decide_one(&view);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::DuplicateContainer)
    );
    assert_eq!(notes(&decision), ["app: two containers have this name"]);
}

#[test]
fn an_excluded_container_is_not_changed() {
    let mut view = view(WEB);
    let policy: crate::model::objects::ResourcePolicy =
        serde_json::from_str(r#"{"containerPolicies": [{"containerName": "*", "controlledResources": ["memory"]}]}"#)
            .unwrap();
    view.vpas[0].spec.resource_policy = Some(policy.clone());
    let decision = decide_one(&view);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("100m/300m".into(), "200Mi/600Mi".into())
    );

    let mut off = policy;
    off.container_policies[0].mode = Some("Off".to_owned());
    view.vpas[0].spec.resource_policy = Some(off);
    assert_eq!(decide_one(&view).reason, Reason::NoRecommendation);
}

#[test]
fn policies_that_do_not_count_are_named() {
    let mut view = view(WEB);
    let mut said = |policies: &str| {
        let policy = format!(r#"{{"containerPolicies": [{policies}]}}"#);
        view.vpas[0].spec.resource_policy = Some(serde_json::from_str(&policy).unwrap());
        let decision = decide_one(&view);
        let said = notes(&decision).into_iter().filter(|note| note.contains("policies"));
        (cpu(&decision, "app"), said.collect::<Vec<_>>())
    };
    let both = |name: &str| {
        let policy = |resource| format!(r#"{{"containerName": "{name}", "controlledResources": ["{resource}"]}}"#);
        [policy("memory"), policy("cpu")].join(",")
    };
    let text = |name: &str, counts: &str| {
        format!("app: VerticalPodAutoscaler web has 2 policies for container {name}, and only the {counts} counts")
    };
    assert_eq!(said(&both("app")), ("100m/300m".into(), vec![text("app", "first")]));
    assert_eq!(said(&both("*")), ("200m/600m".into(), vec![text("*", "last")]));
    assert_eq!(said(&format!("{},{}", both("app"), both("other"))).1.len(), 1);
    let one = r#"{"containerName": "app"}, {"containerName": "*"}"#;
    assert_eq!(said(one), ("200m/600m".into(), Vec::new()));
}

#[test]
fn a_recommendation_of_zero_is_never_written() {
    let mut view = view(WEB);
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0];
    said.target.set(Resource::Cpu, Some(0));
    let decision = decide_one(&view);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("100m/300m".into(), "200Mi/600Mi".into())
    );
    assert_eq!(
        notes(&decision),
        ["app: cpu is left alone: its request would become zero"]
    );
}

#[test]
fn a_limit_of_zero_keeps_its_request() {
    let zero = |mut view: KnownObjects| {
        let resources = &mut pod_of(&mut view).spec.containers[0].resources;
        resources.requests.set(Resource::Cpu, Some(0));
        resources.limits.set(Resource::Cpu, Some(0));
        view
    };
    let mut view = zero(view(WEB));
    for values in ["RequestsAndLimits", "RequestsOnly"] {
        let policy = format!(r#"{{"containerPolicies": [{{"containerName": "*", "controlledValues": "{values}"}}]}}"#);
        view.vpas[0].spec.resource_policy = Some(serde_json::from_str(&policy).unwrap());
        let decision = decide_one(&view);
        assert_eq!(
            (decision.reason, cpu(&decision, "app")),
            (Reason::OutOfBounds, "0/0".into())
        );
        assert_eq!(
            notes(&decision),
            ["app: cpu is left alone: its limit is zero, and no request may be above it"]
        );
    }
    let default = "kind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Container, default: {cpu: 500m}}]}";
    assert_eq!(cpu(&decide_one(&zero(web_and(default))), "app"), "200m/200m");
}

#[test]
fn a_default_limit_is_at_least_the_request() {
    let mut view =
        web_and("kind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Container, default: {cpu: 50m}}]}");
    pod_of(&mut view).spec.containers[0].resources.limits.cpu = None;
    let decision = decide_one(&view);
    assert_eq!(cpu(&decision, "app"), "200m/200m");
    assert_eq!(
        notes(&decision),
        [
            "app: cpu limit 100m is raised to the request of 200m",
            "app: cpu gets a limit of 200m: the LimitRange has a default"
        ]
    );
}

#[test]
fn a_target_outside_its_range_settles() {
    let mut view = view(WEB);
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0];
    said.target = view.pods[0].spec.containers[0].resources.requests;
    let decision = decide_one(&view);
    assert_eq!((decision.action(), decision.reason), (Action::None, Reason::AtTarget));
}

#[test]
fn a_young_pod_says_from_when_it_can_be_changed() {
    let mut view = view(WEB);
    view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0]
        .lower_bound = crate::model::ResourceList::default();
    let decision = decide_one(&view);
    assert_eq!(decision.reason, Reason::TooYoung);
    assert_eq!(notes(&decision), ["old enough to be changed from 2026-03-01T23:00:00Z"]);
    pod_of(&mut view).status.start_time = Some(now() - SignedDuration::from_hours(12));
    assert_eq!(decide_one(&view).reason, Reason::LongLived);
}

#[test]
fn pod_level_resources_keep_the_class() {
    let mut view = view(WEB);
    let mut pod_level = view.pods[0].spec.containers[0].resources;
    pod_level.limits.set(Resource::Cpu, Some(500));
    pod_of(&mut view).spec.resources = Some(pod_level);
    let decision = decide_one(&view);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::PodLevelExceeded)
    );
    assert_eq!(
        notes(&decision),
        ["containers would have 600m of cpu, and the pod's own resources allow 500m"]
    );
}

#[test]
fn lone_limits_are_requests_of_new_pods() {
    let mut view = view(WEB);
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0];
    said.target.set(Resource::Memory, None);
    let pod = pod_of(&mut view);
    pod.spec.containers[0].resources.requests = crate::model::ResourceList::default();
    pod.status.qos_class = None;
    let written = decide_one(&view);
    assert_eq!(
        (written.action(), cpu(&written, "app")),
        (Action::Resize, "200m/200m".into())
    );
    assert_eq!(view.pods[0].qos_class(), QosClass::Guaranteed);
    pod_of(&mut view).status.qos_class = Some(QosClass::Burstable);
    assert_eq!(
        decide_one(&view).action(),
        Action::Resize,
        "memory still lacks a request"
    );
}

#[test]
fn a_request_respects_the_smaller_limit() {
    let mut view = view(WEB);
    view.vpas[0].spec.resource_policy = serde_json::from_str(
        r#"{"containerPolicies": [{"containerName": "app", "controlledValues": "RequestsOnly"}]}"#,
    )
    .unwrap();
    let pod = pod_of(&mut view);
    pod.spec.containers[0].resources.limits.set(Resource::Cpu, Some(180));
    pod.status.container_statuses = serde_json::from_str(
        r#"[{"name": "app", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "500m"}}}]"#,
    )
    .unwrap();
    assert_eq!(cpu(&decide_one(&view), "app"), "180m/180m");
}

#[test]
fn a_bound_by_a_kept_limits_ratio_is_explained() {
    let mut view =
        web_and("kind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Container, max: {cpu: 300m}}]}");
    view.vpas[0].spec.resource_policy = serde_json::from_str(
        r#"{"containerPolicies": [{"containerName": "app", "controlledValues": "RequestsOnly"}]}"#,
    )
    .unwrap();
    let decision = decide_one(&view);
    assert_eq!(cpu(&decision, "app"), "100m/300m");
    assert!(notes(&decision)[0].ends_with("although the limit stays"));
}

#[test]
fn a_pending_limit_rises_to_the_request() {
    let mut view = view(WEB);
    let pod = pod_of(&mut view);
    pod.spec.containers[0].resources.limits.set(Resource::Cpu, Some(150));
    pod.status.container_statuses =
        serde_json::from_str(r#"[{"name": "app", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}]"#)
            .unwrap();
    assert_eq!(cpu(&decide_one(&view), "app"), "200m/200m");
}

#[test]
fn requests_stay_within_the_pods_own() {
    let mut view = view(WEB);
    let mut pod_level = Requirements::default();
    pod_level.requests.set(Resource::Cpu, Some(199));
    pod_of(&mut view).spec.resources = Some(pod_level);
    assert_eq!(decide_one(&view).reason, Reason::PodLevelExceeded);
    pod_of(&mut view)
        .spec
        .resources
        .as_mut()
        .unwrap()
        .requests
        .set(Resource::Cpu, Some(200));
    assert_eq!(decide_one(&view).action(), Action::Resize);
}

/// [`WEB`], whose pod requests 100m, with these amounts of cpu recommended: the lower bound, the target and the upper bound. Its memory
/// is as recommended.
fn recommended([lower, target, upper]: [u64; 3]) -> KnownObjects {
    let mut view = view(WEB);
    let requests = view.pods[0].spec.containers[0].resources.requests;
    let recommendation = view.vpas[0].status.recommendation.as_mut().unwrap();
    let said = &mut recommendation.container_recommendations[0];
    for (list, cpu) in [
        (&mut said.lower_bound, lower),
        (&mut said.target, target),
        (&mut said.upper_bound, upper),
    ] {
        *list = requests;
        list.set(Resource::Cpu, Some(cpu));
    }
    view
}

#[test]
fn bounds_belong_to_the_range() {
    for (cpu, reason) in [
        ([50, 109, 400], Reason::InRange),
        // Ten percent are the threshold, and the pod is young.
        ([50, 110, 400], Reason::TooYoung),
        ([100, 200, 400], Reason::TooYoung),
        ([101, 200, 400], Reason::OutOfBounds),
        ([20, 50, 100], Reason::TooYoung),
        ([20, 50, 99], Reason::OutOfBounds),
    ] {
        assert_eq!(decide_one(&recommended(cpu)).reason, reason, "{cpu:?}");
    }
}

#[test]
fn a_smaller_target_replaces_an_ungranted_one() {
    for (target, is_pending, expected) in [
        (95, false, (Reason::InRange, "100m/300m")),
        (95, true, (Reason::AskedTooMuch, "95m/285m")),
        (105, true, (Reason::InRange, "100m/300m")),
    ] {
        let mut view = recommended([50, target, 400]);
        pod_of(&mut view).status.conditions = vec![PodCondition {
            kind: "PodResizePending".to_owned(),
            status: if is_pending { "True" } else { "False" }.to_owned(),
            ..PodCondition::default()
        }];
        let decision = decide_one(&view);
        let (reason, amounts) = expected;
        assert_eq!(
            (decision.reason, cpu(&decision, "app")),
            (reason, amounts.to_owned()),
            "{target}"
        );
    }
}

#[test]
fn a_kill_is_quick_only_within_the_window() {
    let reason_at = |now: &str, finished: &str, own: &str| {
        let mut view = view(WEB);
        view.vpas[0].spec.update_policy = serde_json::from_str(own).unwrap();
        let said = &mut view.vpas[0]
            .status
            .recommendation
            .as_mut()
            .unwrap()
            .container_recommendations[0];
        said.lower_bound = crate::model::ResourceList::default();
        let end = format!(
            r#"[{{"name": "app", "lastState": {{"terminated": {{
                "reason": "OOMKilled", "startedAt": "2026-03-01T11:00:00Z", "finishedAt": "{finished}"}}}}}}]"#
        );
        pod_of(&mut view).status.container_statuses = serde_json::from_str(&end).unwrap();
        decide(&view.pods, &index(&view), now.parse().unwrap(), &Options::default())[0].reason
    };
    let reason = |finished: &str, own: &str| reason_at("2026-03-01T11:15:00Z", finished, own);
    // The kill itself ages, too. A clock that was set back does not age it.
    for (now, expected) in [
        ("2026-03-01T11:14:59Z", Reason::QuickOOM),
        ("2026-03-01T11:15:00Z", Reason::TooYoung),
        ("2026-03-01T11:00:00Z", Reason::QuickOOM),
    ] {
        assert_eq!(reason_at(now, "2026-03-01T11:05:00Z", "{}"), expected, "{now}");
    }
    for own in [
        "{}",
        r#"{"evictAfterOOMSeconds": 0}"#,
        r#"{"evictAfterOOMSeconds": -9223372036854775808}"#,
    ] {
        assert_eq!(reason("2026-03-01T11:09:59Z", own), Reason::QuickOOM, "{own}");
        assert_eq!(reason("2026-03-01T11:10:00Z", own), Reason::TooYoung, "{own}");
    }
    let own = r#"{"evictAfterOOMSeconds": 900}"#;
    assert_eq!(reason("2026-03-01T11:14:59Z", own), Reason::QuickOOM);
    assert_eq!(reason("2026-03-01T11:15:00Z", own), Reason::TooYoung);
    let own = r#"{"evictAfterOOMSeconds": 9223372036854775807}"#;
    assert_eq!(reason("2026-03-01T11:15:00Z", own), Reason::QuickOOM);
}

#[test]
fn a_foreign_deferred_resize_is_left_alone() {
    let mut view = view(WEB);
    let reason = |view: &KnownObjects, others_request| {
        let known = EarlierDecisions {
            others_request,
            ..EarlierDecisions::default()
        };
        let decision = decide_pod(&view.pods[0], &index(view), now(), &Options::default(), known);
        (decision.reason, decision.next_change().is_some())
    };
    let mut set = |minutes: i64, answer: &str| {
        let condition = PodCondition {
            kind: "PodResizePending".to_owned(),
            status: "True".to_owned(),
            reason: answer.to_owned(),
            last_transition_time: Some(now() - SignedDuration::from_mins(minutes)),
            ..PodCondition::default()
        };
        pod_of(&mut view).status.conditions = vec![condition];
        [true, false].map(|others| reason(&view, others))
    };
    let (left, ours) = ((Reason::OthersResize, true), (Reason::OutOfBounds, false));
    assert_eq!(set(0, "Deferred"), [left, ours]);
    assert_eq!(set(4, "Deferred"), [left, ours]);
    assert_eq!(set(5, "Deferred"), [ours; 2]);
    assert_eq!(set(4, "Infeasible"), [ours; 2], "no scheduler helps");
    assert_eq!(set(-4, "Deferred"), [ours; 2], "a time to come says nothing");
}
