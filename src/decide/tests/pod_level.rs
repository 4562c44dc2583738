//! The pod's own resources, where its kubelet resizes them in place.

use jiff::SignedDuration;

use super::*;
use crate::decide::{NodePolicies, Refusals};
use crate::model::objects::{Container, LimitRange};
use crate::model::{Action, KubeletVersion, QosClass, Reason};

/// [`WEB`] in a pod with resources of its own, of which the kubelet says that it can resize them.
fn own(resources: &str, policy: &str) -> KnownObjects {
    let policy = format!("  resourcePolicy: {{podPolicy: {{{policy}}}}}\nstatus:\n");
    let mut view = view(&WEB.replacen("status:\n", &policy, 1));
    let pod = pod_of(&mut view);
    pod.spec.resources = Some(serde_json::from_str(resources).unwrap());
    pod.status.resources = Some(Requirements::default());
    view
}

/// `request/limit` of the pod's own memory after the decision.
fn pod_memory(decision: &PodDecision) -> String {
    assert_eq!(decision.amounts.containers.len(), 1);
    amounts(decision.amounts.pod.as_deref().unwrap(), Resource::Memory)
}

/// What a kubelet that resizes in place says of the container in [`WEB`].
const STATUS: &str = r#"[{"name": "app", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"},
    "limits": {"cpu": "300m", "memory": "300Mi"}}}]"#;

const ROOMY: &str = r#"{"requests": {"memory": "150Mi"}, "limits": {"memory": "500Mi"}}"#;

#[test]
fn the_pods_own_amounts_change_by_as_much_as_its_containers() {
    let decision = decide_one(&own(ROOMY, ""));
    assert_eq!(
        (decision.action(), memory(&decision, "app")),
        (Action::Resize, "200Mi/600Mi".to_owned())
    );
    assert_eq!(
        pod_memory(&decision),
        "250Mi/800Mi",
        "100Mi more are requested, 300Mi more allowed"
    );
    let mut view = own(ROOMY, "");
    let pod = pod_of(&mut view);
    *pod = pod.with_requirements(&decision.amounts);
    assert_eq!(decide_one(&view).action(), Action::None, "and then they stay");
}

#[test]
fn a_binding_pod_limit_grows_with_the_request() {
    let mut view = own(
        r#"{"requests": {"memory": "100Mi"}, "limits": {"memory": "100Mi"}}"#,
        "",
    );
    pod_of(&mut view).spec.containers[0].resources.limits = crate::model::ResourceList::default();
    assert_eq!(
        pod_memory(&decide_one(&view)),
        "200Mi/200Mi",
        "what is equal stays equal"
    );
}

#[test]
fn the_pod_policy_bounds_what_the_pod_gets() {
    let capped = decide_one(&own(ROOMY, "maxAllowed: {memory: 190Mi}"));
    assert_eq!(capped.reason, Reason::PodLevelExceeded);
    let off = decide_one(&own(ROOMY, "mode: 'Off'"));
    assert_eq!(
        (off.reason, pod_memory(&off)),
        (Reason::PodLevelExceeded, "150Mi/500Mi".to_owned())
    );
    let raised = decide_one(&own(ROOMY, "minAllowed: {memory: 300Mi}"));
    assert_eq!(pod_memory(&raised), "300Mi/800Mi");
}

#[test]
fn a_limit_range_bounds_the_pods_own_amounts() {
    let within = |range: &str| {
        let mut view = own(ROOMY, "");
        let range = format!("{{metadata: {{name: l}}, spec: {{limits: [{{type: Pod, {range}}}]}}}}");
        let range: LimitRange = serde_saphyr::from_str(&range).unwrap();
        view.limit_ranges.push(range.into());
        let side = r#"{"name": "side", "resources": {"requests": {"memory": "10Mi"}, "limits": {"memory": "300Mi"}}}"#;
        let containers = &mut pod_of(&mut view).spec.containers;
        containers.push(serde_json::from_str(side).unwrap());
        let decision = decide_one(&view);
        let of_pod = amounts(decision.amounts.pod.as_deref().unwrap(), Resource::Memory);
        (decision.action(), memory(&decision, "app"), of_pod)
    };
    for (range, of_pod) in [
        ("max: {memory: 700Mi}", "250Mi/700Mi"),
        ("min: {memory: 300Mi}", "300Mi/800Mi"),
        ("maxLimitRequestRatio: {memory: 2800m}", "250Mi/700Mi"),
    ] {
        let expected = (Action::Resize, "200Mi/600Mi".to_owned(), of_pod.to_owned());
        assert_eq!(within(range), expected, "{range}");
    }
}

#[test]
fn unset_limits_of_the_pod_are_filled_in() {
    let beside = |others: &[&str], resources: &str, kubelet: u32| {
        let mut view = own(resources, "");
        let pod = pod_of(&mut view);
        let others = others
            .iter()
            .map(|container| serde_json::from_str::<Container>(container).unwrap());
        pod.spec.containers.extend(others);
        pod.status.container_statuses = serde_json::from_str(STATUS).unwrap();
        let options = Options {
            refusals: Refusals::default().beside(NodePolicies::default(), KubeletVersion(kubelet)),
            ..Options::default()
        };
        decide(&view.pods, &index(&view), now(), &options).remove(0)
    };
    let decided = |resources: &str, kubelet| beside(&[], resources, kubelet);
    let of_pod = |decision: &PodDecision| {
        let own = decision.amounts.pod.as_deref().unwrap();
        Resource::ALL.map(|resource| amounts(own, resource))
    };
    let requests = r#"{"requests": {"memory": "150Mi"}}"#;
    assert_eq!(of_pod(&decided(requests, 37)), ["200m/600m", "250Mi/600Mi"]);
    assert_eq!(of_pod(&decided(requests, 36)), ["-/-", "250Mi/-"]);
    let bare = beside(&[r#"{"name": "bare"}"#], requests, 37);
    assert_eq!(of_pod(&bare), ["200m/-", "250Mi/-"], "not each container has a limit");
    let all = decided(r#"{"requests": {"cpu": "1", "memory": "1Gi"}}"#, 37);
    assert_eq!(
        all.reason,
        Reason::QoSClassChange,
        "its limits would equal its requests"
    );
}

#[test]
fn filled_in_defaults_count_for_the_pod() {
    let with_default = |request: &str| {
        let mut view = own(ROOMY, "");
        let item = format!("{{type: Container, default: {{memory: 300Mi}}, defaultRequest: {{memory: {request}}}}}");
        let range = format!("{{metadata: {{name: l}}, spec: {{limits: [{item}]}}}}");
        let range: LimitRange = serde_saphyr::from_str(&range).unwrap();
        view.limit_ranges.push(range.into());
        let pod = pod_of(&mut view);
        pod.spec
            .containers
            .push(serde_json::from_str(r#"{"name": "bare"}"#).unwrap());
        pod.status.container_statuses = serde_json::from_str(STATUS).unwrap();
        decide_one(&view).reason
    };
    assert_eq!(with_default("50Mi"), Reason::OutOfBounds, "of 250Mi");
    assert_eq!(with_default("51Mi"), Reason::PodLevelExceeded);
}

#[test]
fn unresized_pod_levels_bound_containers() {
    let mut view = own(ROOMY, "");
    pod_of(&mut view).status.resources = None;
    let decision = decide_one(&view);
    assert_eq!(
        (decision.reason, decision.amounts.containers.len()),
        (Reason::PodLevelExceeded, 1)
    );
}

/// Denials of an API server of 1.33 and of newer ones without the gate.
const DENIALS: [&str; 2] = [
    "Forbidden: pods with pod-level resources cannot be resized",
    "Forbidden: resize of pods with pod-level resources is forbidden when the feature gate is disabled",
];

#[test]
fn a_pod_that_no_api_server_resizes_is_skipped() {
    let mut view = own(r#"{"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}"#, "");
    let pod = pod_of(&mut view);
    pod.status.resources = None;
    pod.status.container_statuses = serde_json::from_str(STATUS).unwrap();
    let decided = |view: &KnownObjects, refusals: &Refusals| {
        let options = Options {
            refusals: refusals.beside(NodePolicies::default(), KubeletVersion(35)),
            ..Options::default()
        };
        decide(&view.pods, &index(view), now(), &options).remove(0)
    };
    for words in DENIALS {
        let mut refusals = Refusals::default();
        // Whoever may deny in one namespace says something about that one only.
        assert!(refusals.learn_denial("other", words, now()));
        assert_eq!(decided(&view, &refusals).action(), Action::Resize, "{words}");
        assert!(refusals.learn_denial("default", words, now()) && !refusals.learn_denial("default", words, now()));
        let skipped = decided(&view, &refusals);
        assert_eq!(
            (skipped.reason, memory(&skipped, "app")),
            (Reason::KubeletRefuses, "100Mi/300Mi".to_owned())
        );
        let said = notes(&skipped).join("\n");
        assert!(said.contains("resizes no pod with spec.resources"), "{said}");
        assert!(!skipped.ceilings.is_empty(), "the guard still grows limits");
        for resources in [None, Some(Requirements::default())] {
            let mut other = view.clone();
            pod_of(&mut other).spec.resources = resources;
            assert_eq!(decided(&other, &refusals).action(), Action::Resize, "{resources:?}");
        }
        refusals.retain_namespaces(|namespace| namespace == "other");
        assert_eq!(decided(&view, &refusals).action(), Action::Resize);
        assert_eq!(
            refusals.sentences(),
            ["pods with spec.resources in namespace other (an API server before 1.36)"]
        );
        refusals.forget_old_denials(now() + SignedDuration::from_hours(23));
        assert_eq!(refusals.sentences().len(), 1);
        for hours in [24, -24] {
            let mut later = refusals.clone();
            later.forget_old_denials(now() + SignedDuration::from_hours(hours));
            assert_eq!(later, Refusals::default(), "an upgraded API server is asked again");
        }
    }
}

/// [`own`] with a container that has no memory limit of its own, and restarts when its memory changes.
fn with_inherited_limit(resources: &str) -> KnownObjects {
    let mut view = own(resources, "");
    let side = r#"{"name": "side", "resources": {"requests": {"memory": "10Mi"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}"#;
    let pod = pod_of(&mut view);
    pod.spec.containers.push(serde_json::from_str(side).unwrap());
    view
}

#[test]
fn a_pod_limit_that_restarts_a_container_stays() {
    let of_pod = |decision: &PodDecision| amounts(decision.amounts.pod.as_deref().unwrap(), Resource::Memory);
    let roomy = decide_one(&with_inherited_limit(
        r#"{"requests": {"memory": "150Mi"}, "limits": {"memory": "700Mi"}}"#,
    ));
    assert_eq!(
        (roomy.action(), memory(&roomy, "app"), of_pod(&roomy)),
        (Action::Resize, "200Mi/600Mi".to_owned(), "250Mi/700Mi".to_owned())
    );
    let narrow = decide_one(&with_inherited_limit(ROOMY));
    assert_eq!(
        (narrow.reason, of_pod(&narrow)),
        (Reason::PodLevelExceeded, "150Mi/500Mi".to_owned())
    );
    let equal = decide_one(&with_inherited_limit(
        r#"{"requests": {"memory": "700Mi"}, "limits": {"memory": "700Mi"}}"#,
    ));
    assert_eq!(
        (equal.action(), of_pod(&equal)),
        (Action::Resize, "700Mi/700Mi".to_owned())
    );
}

#[test]
fn a_sidecars_limit_may_exceed_the_pods() {
    let with_sidecar = |resources: &str| {
        let mut view = own(resources, "");
        let mesh = r#"{"name": "mesh", "restartPolicy": "Always",
            "resources": {"requests": {"memory": "10Mi"}, "limits": {"memory": "2Gi"}}}"#;
        pod_of(&mut view)
            .spec
            .init_containers
            .push(serde_json::from_str(mesh).unwrap());
        view
    };
    let decision = decide_one(&with_sidecar(ROOMY));
    assert_eq!(
        amounts(decision.amounts.pod.as_deref().unwrap(), Resource::Memory),
        "250Mi/800Mi",
        "the API server compares only regular containers"
    );
    let mut fixed = with_sidecar(r#"{"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}"#);
    pod_of(&mut fixed).status.resources = None;
    assert_eq!(decide_one(&fixed).action(), Action::Resize);
}

/// Adds a container of `kind` before the others, with these amounts of memory and this recommendation.
fn add(
    view: &mut KnownObjects,
    name: &str,
    [request, limit, target]: [&str; 3],
    kind: fn(&mut Pod) -> &mut Vec<Container>,
) {
    let container = format!(
        r#"{{"name": "{name}", "restartPolicy": "Always",
            "resources": {{"requests": {{"memory": "{request}"}}, "limits": {{"memory": "{limit}"}}}}}}"#
    );
    kind(pod_of(view)).insert(0, serde_json::from_str(&container).unwrap());
    let recommendation = view.vpas[0].status.recommendation.as_mut().unwrap();
    let recommended = format!(r#"{{"containerName": "{name}", "target": {{"memory": "{target}"}}}}"#);
    let recommended = serde_json::from_str(&recommended).unwrap();
    recommendation.container_recommendations.push(recommended);
}

#[test]
fn a_sidecars_higher_limit_lowers_no_pod_limit() {
    let mut view = own(
        r#"{"requests": {"memory": "300Mi"}, "limits": {"memory": "800Mi"}}"#,
        "",
    );
    add(&mut view, "mesh", ["200Mi", "2Gi", "100Mi"], |pod| {
        &mut pod.spec.init_containers
    });
    let decision = decide_one(&view);
    assert_eq!(memory(&decision, "mesh"), "100Mi/1Gi");
    assert_eq!(
        amounts(decision.amounts.pod.as_deref().unwrap(), Resource::Memory),
        "300Mi/1000Mi",
        "300Mi more for app, 100Mi less requested"
    );
}

#[test]
fn limits_that_fall_and_rise_are_summed_up() {
    let mut view = own(
        r#"{"requests": {"memory": "420Mi"}, "limits": {"memory": "600Mi"}}"#,
        "",
    );
    for name in ["more", "most"] {
        add(&mut view, name, ["100Mi", "300Mi", "200Mi"], |pod| {
            &mut pod.spec.containers
        });
    }
    for name in ["less", "least"] {
        add(&mut view, name, ["60Mi", "600Mi", "10Mi"], |pod| {
            &mut pod.spec.containers
        });
    }
    assert_eq!(
        amounts(decide_one(&view).amounts.pod.as_deref().unwrap(), Resource::Memory),
        "620Mi/620Mi",
        "100Mi less are allowed, but not less than requested"
    );
}

#[test]
fn a_pod_limit_keeps_room_for_inherited_heaps() {
    let with_heap = |resources: &str, heap: &str| {
        let mut view = own(resources, "");
        let app = format!(
            r#"{{"name": "app", "args": ["{heap}"], "resources": {{"requests": {{"cpu": "200m", "memory": "500Mi"}}}}}}"#
        );
        pod_of(&mut view).spec.containers = vec![serde_json::from_str(&app).unwrap()];
        pod_memory(&decide_one(&view))
    };
    let burstable = r#"{"requests": {"memory": "500Mi"}, "limits": {"memory": "600Mi"}}"#;
    assert_eq!(with_heap(burstable, "-Xmx256m"), "200Mi/320Mi", "256Mi and 64Mi");
    assert_eq!(with_heap(burstable, "-Xmx1g"), "200Mi/600Mi", "a heap raises no limit");
    assert_eq!(with_heap(burstable, "serve"), "200Mi/300Mi");
    let equal = r#"{"requests": {"memory": "500Mi"}, "limits": {"memory": "500Mi"}}"#;
    assert_eq!(with_heap(equal, "-Xmx256m"), "320Mi/320Mi");
}

#[test]
fn empty_pod_resources_do_not_decide_the_class() {
    let decided = |class: QosClass, kubelet: u32| {
        let mut view = own("{}", "");
        let pod = pod_of(&mut view);
        pod.status.container_statuses = serde_json::from_str(STATUS).unwrap();
        pod.status.qos_class = Some(class);
        let options = Options {
            refusals: Refusals::default().beside(NodePolicies::default(), KubeletVersion(kubelet)),
            ..Options::default()
        };
        decide(&view.pods, &index(&view), now(), &options).remove(0).reason
    };
    assert_eq!(decided(QosClass::Burstable, 37), Reason::OutOfBounds);
    assert_eq!(
        decided(QosClass::BestEffort, 36),
        Reason::OutOfBounds,
        "before 1.37 the class is that for good"
    );
    assert_eq!(decided(QosClass::BestEffort, 37), Reason::QoSClassChange);
}
