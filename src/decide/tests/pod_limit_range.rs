//! LimitRanges for whole pods where upstream's cases leave things open: missing recommendations and bounds.

use super::*;
use crate::decide::{NodePolicies, Note, Refusals};
use crate::model::objects::annotation::{CPU_LIMIT, MIRROR};
use crate::model::objects::{ContainerStatus, LimitRange};
use crate::model::{KubeletVersion, Reason};

/// [`WEB`] with a second container without recommendation, and a maximum of memory for the pod.
fn with_sidecar(sidecar: &str, max: &str) -> KnownObjects {
    let manifests = WEB.replace(
        "limits: {cpu: 300m, memory: 300Mi}}",
        &format!("limits: {{cpu: 300m, memory: 300Mi}}}}\n  - {{name: sidecar, resources: {sidecar}}}"),
    );
    view(&format!(
        "{manifests}---\nkind: LimitRange\nmetadata: {{name: l}}\nspec: {{limits: [{{type: Pod, max: {{memory: {max}}}}}]}}"
    ))
}

#[test]
fn only_recommended_containers_share_the_rest() {
    let sidecar = "{requests: {memory: 50Mi}, limits: {memory: 100Mi}}";
    let decision = decide_one(&with_sidecar(sidecar, "400Mi"));
    assert_eq!(memory(&decision, "sidecar"), "50Mi/100Mi");
    assert_eq!(
        memory(&decision, "app"),
        "100Mi/300Mi",
        "400Mi less 100Mi, in the ratio of one to three"
    );
    assert!(matches!(
        decision.notes[..],
        [Note {
            resource: Some(Resource::Memory),
            ..
        }]
    ));
    assert!(decision.notes[0].to_string().contains(" becomes "));
}

#[test]
fn without_a_request_there_is_no_share() {
    let decision = decide_one(&with_sidecar("{}", "300Mi"));
    assert_eq!(memory(&decision, "app"), "100Mi/300Mi");
    assert_eq!(memory(&decision, "sidecar"), "-/-");
}

#[test]
fn without_a_share_a_resource_is_left() {
    let sidecar = "{requests: {memory: 50Mi}, limits: {memory: 500Mi}}";
    let decision = decide_one(&with_sidecar(sidecar, "400Mi"));
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/600m".into(), "100Mi/300Mi".into())
    );
    assert_eq!(
        notes(&decision),
        [
            "memory is left alone: containers without recommendation take all of the 400Mi that the LimitRange allows a pod",
            "the pod: memory limit 800Mi is above the maximum 400Mi of LimitRange l for a Pod"
        ]
    );
}

#[test]
fn a_partial_recommendation_is_no_obstacle() {
    let mut view = with_sidecar("{requests: {memory: 50Mi}}", "100Mi");
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0];
    said.upper_bound = crate::model::ResourceList::default();
    said.target.set(Resource::Memory, None);
    let decision = decide_one(&view);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/600m".into(), "100Mi/300Mi".into())
    );
}

/// Two containers whose limits equal their requests, with these recommendations, and a maximum of memory for the pod.
fn two(requests: [&str; 2], said: [&str; 2], max: &str) -> KnownObjects {
    let container = |name, request| {
        format!("{{name: {name}, resources: {{requests: {{memory: {request}}}, limits: {{memory: {request}}}}}}}")
    };
    let containers = format!("[{}, {}]", container("a", requests[0]), container("b", requests[1]));
    let said = format!("[{{containerName: a, {}}}, {{containerName: b, {}}}]", said[0], said[1]);
    let range =
        format!("kind: LimitRange\nmetadata: {{name: l}}\nspec: {{limits: [{{type: Pod, max: {{memory: {max}}}}}]}}");
    let mut view = web_and(&range);
    pod_of(&mut view).spec.containers = serde_saphyr::from_str(&containers).unwrap();
    let recommendation = view.vpas[0].status.recommendation.as_mut().unwrap();
    recommendation.container_recommendations = serde_saphyr::from_str(&said).unwrap();
    view
}

#[test]
fn shares_of_a_minimum_leave_others_out() {
    let mut view = with_sidecar("{requests: {memory: 50Mi}, limits: {memory: 50Mi}}", "8Gi");
    view.limit_ranges[0].spec.limits[0].min.memory = Some("300Mi".parse().unwrap());
    let decision = decide_one(&view);
    assert_eq!(memory(&decision, "app"), "250Mi/750Mi");
}

#[test]
fn a_lowered_target_takes_its_range_along() {
    let said = [
        "target: {memory: 1000}, lowerBound: {memory: 100}",
        "target: {memory: 100}, lowerBound: {memory: 90}",
    ];
    // The shares of 300 are 272 and 27; the sum of the lower bounds would fit as it is.
    let decision = decide_one(&two(["270", "28"], said, "300"));
    assert_eq!(decision.reason, Reason::InRange, "{:?}", decision.notes);
}

#[test]
fn a_raised_target_takes_its_range_along() {
    let said = [
        "target: {memory: 100}, upperBound: {memory: 390}",
        "target: {memory: 100}, upperBound: {memory: 110}",
    ];
    let mut view = two(["200", "195"], said, "10000");
    view.limit_ranges[0].spec.limits[0].min.memory = Some("400".parse().unwrap());
    // Each gets 200 of the minimum, which the sum of the upper bounds meets as it is.
    let decision = decide_one(&view);
    assert_eq!(decision.reason, Reason::InRange, "{:?}", decision.notes);
}

#[test]
fn without_a_bound_the_target_counts() {
    let said = [
        "target: {memory: 100}, upperBound: {memory: 450}",
        "target: {memory: 100}",
    ];
    let reason = |request| decide_one(&two([request, "100"], said, "500")).reason;
    assert_eq!(
        reason("401"),
        Reason::OutOfBounds,
        "500 less 100 is left for the upper bound"
    );
    assert_eq!(reason("400"), Reason::TooYoung);
}

/// [`WEB`] on a kubelet that resizes in place, with these LimitRanges.
fn resized_with(ranges: &[&str]) -> KnownObjects {
    let ranges = ranges.iter().enumerate().map(|(number, limits)| {
        format!("---\nkind: LimitRange\nmetadata: {{name: range-{number}}}\nspec: {{limits: [{limits}]}}\n")
    });
    let mut view = view(&format!("{WEB}{}", ranges.collect::<String>()));
    let status = r#"[{"name": "app", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"},
        "limits": {"cpu": "300m", "memory": "300Mi"}}}]"#;
    pod_of(&mut view).status.container_statuses = serde_json::from_str(status).unwrap();
    view
}

#[test]
fn a_refused_change_is_skipped_with_its_rule() {
    for (ranges, words) in [
        (
            &["{type: Pod, min: {memory: 50Mi}, maxLimitRequestRatio: {memory: 2}}"][..],
            "",
        ),
        (
            &["{type: Pod, max: {cpu: 10}, maxLimitRequestRatio: {memory: 3}}"][..],
            "",
        ),
        (
            &["{type: Container, min: {cpu: 2}}", "{type: Container, max: {cpu: 1}}"][..],
            "cpu request 333m is below the minimum 2000m of LimitRange range-0 for a Container; LimitRange range-1 contradicts it",
        ),
    ] {
        let decision = decide_one(&resized_with(ranges));
        let notes = notes(&decision).join("; ");
        if words.is_empty() {
            assert_eq!(
                decision.reason,
                Reason::OutOfBounds,
                "the rule is broken already, or holds: {notes}"
            );
        } else {
            assert_eq!(decision.reason, Reason::LimitRangeExceeded, "{notes}");
            assert!(notes.contains(words), "{notes}");
        }
    }
}

#[test]
fn a_mended_breach_hides_no_new_one() {
    let mut view = resized_with(&["{type: Pod, min: {memory: 150Mi}, maxLimitRequestRatio: {cpu: 3}}"]);
    let annotations = &mut view.vpas[0].metadata.annotations;
    annotations.insert(CPU_LIMIT.to_owned(), "request*4".to_owned());
    let decision = decide_one(&view);
    assert_eq!(decision.reason, Reason::LimitRangeExceeded, "memory was below 150Mi");
    let words = "the pod: cpu limit 800m is more than 3.000 times the request 200m";
    assert!(notes(&decision).join("; ").contains(words), "{:?}", decision.notes);
}

#[test]
fn a_ratio_is_kept_from_either_side() {
    let ratio = &["{type: Container, maxLimitRequestRatio: {cpu: 2, memory: '1.5'}}"];
    let decision = decide_one(&resized_with(ratio));
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("200m/400m".to_owned(), "200Mi/300Mi".to_owned())
    );
    let [low, high] = [2, 4].map(|ratio| format!("{{type: Container, maxLimitRequestRatio: {{cpu: {ratio}}}}}"));
    for ranges in [[low.as_str(), high.as_str()], [high.as_str(), low.as_str()]] {
        let decision = decide_one(&resized_with(&ranges));
        assert_eq!(cpu(&decision, "app"), "200m/400m", "the lower ratio counts");
    }
    let mut view = resized_with(ratio);
    let policy = r#"{"containerPolicies": [{"containerName": "*", "controlledValues": "RequestsOnly"}]}"#;
    view.vpas[0].spec.resource_policy = Some(serde_json::from_str(policy).unwrap());
    view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0]
        .target = serde_json::from_str(r#"{"cpu": "10m", "memory": "10Mi"}"#).unwrap();
    let decision = decide_one(&view);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("150m/300m".to_owned(), "200Mi/300Mi".to_owned())
    );
}

#[test]
fn a_raised_minimum_makes_others_give_way() {
    let sidecar = "{requests: {memory: 100Mi}, limits: {memory: 100Mi}}";
    let mut view = with_sidecar(sidecar, "400Mi");
    let recommendation = view.vpas[0].status.recommendation.as_mut().unwrap();
    let mut other = recommendation.container_recommendations[0].clone();
    other.container_name = "sidecar".to_owned();
    other.target = serde_json::from_str(r#"{"memory": "10Mi"}"#).unwrap();
    recommendation.container_recommendations.push(other);
    let range = "{spec: {limits: [{type: Container, min: {memory: 100Mi}}]}}";
    let range: LimitRange = serde_saphyr::from_str(range).unwrap();
    view.limit_ranges.push(range.into());
    view.limit_ranges[1].metadata.namespace = "default".to_owned();
    let decision = decide_one(&view);
    assert_eq!(
        (memory(&decision, "sidecar"), memory(&decision, "app")),
        ("100Mi/100Mi".to_owned(), "100Mi/300Mi".to_owned())
    );
}

#[test]
fn an_unreachable_maximum_lowers_no_target() {
    let said = "target: {memory: 75Mi}, upperBound: {memory: 75Mi}";
    let mut view = two(["100Mi", "100Mi"], [said; 2], "90Mi");
    let policy = r#"{"containerPolicies": [{"containerName": "b", "controlledValues": "RequestsOnly"}]}"#;
    view.vpas[0].spec.resource_policy = Some(serde_json::from_str(policy).unwrap());
    let decision = decide_one(&view);
    assert_eq!(
        ["a", "b"].map(|name| memory(&decision, name)),
        ["45Mi/45Mi", "45Mi/100Mi"],
        "the limit of b alone exceeds the maximum: {:?}",
        decision.notes
    );
}

#[test]
fn a_kept_limit_lowers_no_request() {
    let mut view = web_and(
        "kind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Pod, min: {memory: 250Mi}, max: {memory: 500Mi}}]}",
    );
    let policy = r#"{"containerPolicies": [{"containerName": "*", "controlledValues": "RequestsOnly"}]}"#;
    view.vpas[0].spec.resource_policy = Some(serde_json::from_str(policy).unwrap());
    assert_eq!(memory(&decide_one(&view), "app"), "250Mi/300Mi");
}

#[test]
fn a_default_limit_below_a_request_skips() {
    let decided = |memory: &str, kubelet_resizes: bool| {
        let range = format!(
            "kind: LimitRange\nmetadata: {{name: r}}\nspec: {{limits: [{{type: Container, default: {{memory: {memory}}}}}]}}"
        );
        let other =
            "  - {name: other, resources: {requests: {cpu: 10m, memory: 64Mi}, limits: {cpu: 10m}}}\nstatus: {phase";
        let mut view = view(&format!("{}---\n{range}", WEB.replacen("status: {phase", other, 1)));
        let pod = pod_of(&mut view);
        pod.status.container_statuses = vec![ContainerStatus {
            name: "app".to_owned(),
            resources: Some(pod.spec.containers[0].resources).filter(|_| kubelet_resizes),
            ..ContainerStatus::default()
        }];
        decide_one(&view)
    };
    assert_eq!(
        decided("16Mi", false).reason,
        Reason::OutOfBounds,
        "nothing fills it in"
    );
    let range = |memory: &str| decided(memory, true);
    let decision = range("16Mi");
    assert_eq!(decision.reason, Reason::LimitRangeExceeded);
    assert_eq!(
        notes(&decision),
        [
            "container other: memory request 64Mi is above the default limit 16Mi of LimitRange r, which the API server fills in"
        ]
    );
    assert_eq!(range("64Mi").reason, Reason::OutOfBounds);
    let last = |first: &str, last: &str| range(&format!("{first}}}}}, {{type: Container, default: {{memory: {last}"));
    assert_eq!(last("16Mi", "64Mi").reason, Reason::OutOfBounds);
    assert_eq!(last("64Mi", "16Mi").reason, Reason::LimitRangeExceeded);
}

/// [`WEB`] with limits that equal its requests, and a container that declares nothing, where the kubelet resizes; and a LimitRange that
/// came later.
fn with_bare_container(items: &str) -> KnownObjects {
    let equal = "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 100m, memory: 100Mi}}";
    let web = WEB
        .replacen(
            "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}",
            &format!("{equal}\n  - {{name: bare}}"),
            1,
        )
        .replacen(
            "status: {phase",
            &format!("status: {{containerStatuses: [{{name: app, resources: {equal}}}], phase"),
            1,
        );
    view(&format!(
        "{web}---\nkind: LimitRange\nmetadata: {{name: l}}\nspec: {{limits: [{items}]}}"
    ))
}

#[test]
fn defaults_that_admission_fills_in_count() {
    let default = |request: &str| {
        format!(
            "{{type: Container, default: {{cpu: 1, memory: 300Mi}}, defaultRequest: {{cpu: 1, memory: {request}}}}}"
        )
    };
    let mut view = with_bare_container(&default("300Mi"));
    let guaranteed = decide_one(&view);
    assert_eq!(guaranteed.reason, Reason::QoSClassChange, "{:?}", guaranteed.notes);
    let annotations = &mut pod_of(&mut view).metadata.annotations;
    annotations.insert(MIRROR.to_owned(), "hash".to_owned());
    let mirror = decide_one(&view);
    assert_eq!(mirror.reason, Reason::OutOfBounds, "no API server resizes a static pod");
    let burstable = decide_one(&with_bare_container(&default("30Mi")));
    assert_eq!(burstable.reason, Reason::OutOfBounds, "{:?}", burstable.notes);
    let last = format!("{}, {}", default("300Mi"), default("30Mi"));
    assert_eq!(decide_one(&with_bare_container(&last)).reason, Reason::OutOfBounds);
    let max = format!("{}, {{type: Pod, max: {{memory: 400Mi}}}}", default("30Mi"));
    let exceeded = decide_one(&with_bare_container(&max));
    assert_eq!(
        (exceeded.reason, notes(&exceeded)),
        (
            Reason::LimitRangeExceeded,
            vec!["the pod: memory limit 500Mi is above the maximum 400Mi of LimitRange l for a Pod".to_owned()]
        )
    );
}

#[test]
fn the_minimum_of_each_container_adds_up() {
    let decided = |min: &str| {
        let items = format!("{{type: Container, min: {{memory: {min}}}}}, {{type: Pod, max: {{memory: 300Mi}}}}");
        let decision = decide_one(&with_bare_container(&items));
        let contradicts = notes(&decision)
            .iter()
            .any(|note| note.contains("LimitRange l contradicts it"));
        (decision.reason, contradicts)
    };
    assert_eq!(decided("150Mi"), (Reason::OutOfBounds, false));
    assert_eq!(decided("151Mi"), (Reason::LimitRangeExceeded, true));
}

#[test]
fn amounts_that_stay_are_not_checked_from_1_38() {
    let view = with_bare_container("{type: Container, min: {memory: 151Mi}}, {type: Pod, max: {memory: 300Mi}}");
    let decided = |kubelet: u32| {
        let options = Options {
            refusals: Refusals::default().beside(NodePolicies::default(), KubeletVersion(kubelet)),
            ..Options::default()
        };
        decide(&view.pods, &index(&view), now(), &options).remove(0).reason
    };
    assert_eq!(
        [37, 38].map(decided),
        [Reason::LimitRangeExceeded, Reason::OutOfBounds],
        "the bare container stays bare"
    );
}

#[test]
fn defaults_that_no_resize_may_fill_in_skip() {
    let item = "{type: Container, default: {cpu: 1, memory: 300Mi}, defaultRequest: {cpu: 1, memory: 30Mi}}";
    let decided = |view: &KnownObjects, kubelet: u32| {
        let options = Options {
            refusals: Refusals::default().beside(NodePolicies::default(), KubeletVersion(kubelet)),
            ..Options::default()
        };
        let decision = decide(&view.pods, &index(view), now(), &options).remove(0);
        (decision.reason, decision.change().is_some())
    };
    let mut view = with_bare_container(item);
    let bare = &mut pod_of(&mut view).spec.containers[1];
    bare.resize_policy =
        serde_json::from_str(r#"[{"resourceName": "memory", "restartPolicy": "RestartContainer"}]"#).unwrap();
    assert_eq!(decided(&view, 37), (Reason::RestartRequired, false));
    let pod = pod_of(&mut view);
    pod.spec.init_containers.extend(pod.spec.containers.pop());
    assert_eq!(decided(&view, 37), (Reason::LimitRangeExceeded, false));
    pod_of(&mut view).spec.init_containers[0].resize_policy.clear();
    assert_eq!(decided(&view, 37), (Reason::OutOfBounds, true));
    assert_eq!(decided(&view, 35), (Reason::LimitRangeExceeded, false));
}
