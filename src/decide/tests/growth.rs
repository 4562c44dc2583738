//! How far limits may grow in an emergency.

use super::*;

/// `cpu/memory` up to which the limits of `app` may grow, `-` where they must not.
fn ceiling(view: &KnownObjects) -> String {
    let decision = decide_one(view);
    let text = |resource| {
        let ceiling = decision.ceilings.iter().find(|ceiling| ceiling.container == "app")?;
        ceiling.limits.text(resource)
    };
    let [cpu, memory] = Resource::ALL.map(|resource| text(resource).unwrap_or_else(|| "-".to_owned()));
    format!("{cpu}/{memory}")
}

fn with_policy(policy: &str) -> KnownObjects {
    let policy = format!("  resourcePolicy: {{containerPolicies: [{{containerName: '*', {policy}}}]}}\nstatus:\n");
    view(&WEB.replacen("status:\n", &policy, 1))
}

#[test]
fn growth_ends_at_the_upper_bound() {
    assert_eq!(ceiling(&view(WEB)), "1200m/1200Mi");
}

#[test]
fn max_allowed_is_never_passed() {
    assert_eq!(ceiling(&with_policy("maxAllowed: {memory: 600Mi}")), "1200m/600Mi");
    assert_eq!(ceiling(&with_policy("maxAllowed: {memory: 4Gi}")), "1200m/4Gi");
}

#[test]
fn max_allowed_counts_before_there_is_a_recommendation() {
    let mut view = with_policy("maxAllowed: {memory: 4Gi}");
    view.vpas[0].status.recommendation = None;
    assert_eq!(ceiling(&view), "-/4Gi");
}

#[test]
fn what_the_vpa_does_not_manage_does_not_grow() {
    for policy in ["mode: 'Off'", "controlledValues: RequestsOnly"] {
        assert_eq!(ceiling(&with_policy(policy)), "-/-", "{policy}");
    }
    assert_eq!(ceiling(&with_policy("controlledResources: [memory]")), "-/1200Mi");
    let off = WEB.replacen("  targetRef", "  updatePolicy: {updateMode: 'Off'}\n  targetRef", 1);
    assert_eq!(ceiling(&view(&off)), "-/-");
}

#[test]
fn unlimited_and_restarting_never_grow() {
    let mut unlimited = view(WEB);
    pod_of(&mut unlimited).spec.containers[0].resources.limits.memory = None;
    assert_eq!(ceiling(&unlimited), "1200m/-");
    let restarts = WEB.replacen(
        "    resources: {requests",
        "    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]\n    resources: {requests",
        1,
    );
    assert_eq!(ceiling(&view(&restarts)), "1200m/-");
}

#[test]
fn limit_ranges_and_the_pods_own_limit_bound_it() {
    let range = "
kind: LimitRange
metadata: {name: bounds}
spec: {limits: [{type: Container, max: {memory: 600Mi}}, {type: Pod, max: {cpu: 900m}}]}
";
    assert_eq!(ceiling(&web_and(range)), "900m/600Mi");
    let own = WEB.replacen(
        "spec:\n  nodeName",
        "spec:\n  resources: {limits: {memory: 500Mi}}\n  nodeName",
        1,
    );
    assert_eq!(ceiling(&view(&own)), "1200m/500Mi");
    let range = "kind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Pod, max: {memory: 400Mi}}]}";
    assert_eq!(
        ceiling(&view(&format!("{own}---\n{range}"))),
        "1200m/500Mi",
        "it bounds the pod's own limit alone"
    );
}

#[test]
fn growth_keeps_a_limit_ranges_ratio() {
    let with_ratio = |web: &str, kind: &str, ratio: u64| {
        let item = format!("{{type: {kind}, maxLimitRequestRatio: {{memory: {ratio}}}}}");
        let range = format!("kind: LimitRange\nmetadata: {{name: l}}\nspec: {{limits: [{item}]}}");
        ceiling(&view(&format!("{web}---\n{range}")))
    };
    let equal = WEB.replacen("memory: 300Mi", "memory: 100Mi", 1);
    for kind in ["Container", "Pod"] {
        assert_eq!(with_ratio(WEB, kind, 4), "1200m/400Mi", "{kind}");
        assert_eq!(
            with_ratio(&equal, kind, 2),
            "1200m/400Mi",
            "the request grows with its limit"
        );
    }
    let limits = "limits: {cpu: 300m, memory: 300Mi}}";
    let amounts = "{requests: {memory: 50Mi}, limits: {memory: 100Mi}}";
    let other = format!("{limits}\n  - {{name: other, resources: {amounts}}}");
    let two = WEB.replacen(limits, &other, 1);
    assert_eq!(
        with_ratio(&two, "Pod", 4),
        "1200m/500Mi",
        "four times 150Mi, less 100Mi"
    );
}

#[test]
fn containers_share_what_a_pods_maximum_leaves() {
    let limits = "limits: {cpu: 300m, memory: 300Mi}}";
    let other = format!("{limits}\n  - {{name: other, resources: {{limits: {{cpu: 200m}}}}}}");
    let range = "kind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Pod, max: {cpu: 900m}}]}";
    let one_grows = format!("{}---\n{range}", WEB.replacen(limits, &other, 1));
    // A third of what the pod may have beside the other, in whole millicores, three times.
    assert_eq!(ceiling(&view(&one_grows)), "699m/1200Mi");
    let policy = "  resourcePolicy: {containerPolicies: [{containerName: '*', maxAllowed: {cpu: 2}}]}\nstatus:\n";
    let both_grow = one_grows.replacen("status:\n", policy, 1);
    assert_eq!(ceiling(&view(&both_grow)), "500m/1200Mi");
    let policy = "  resourcePolicy: {containerPolicies: [{containerName: other, maxAllowed: {cpu: 250m}}]}\nstatus:\n";
    let other_has_little_room = one_grows.replacen("status:\n", policy, 1);
    assert_eq!(ceiling(&view(&other_has_little_room)), "650m/1200Mi");
}

#[test]
fn what_a_horizontal_autoscaler_follows_does_not_grow() {
    let hpa = "
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {kind: StatefulSet, name: web}
  metrics: [{type: Resource, resource: {name: memory, target: {type: Utilization, averageUtilization: 80}}}]
";
    assert_eq!(ceiling(&web_and(hpa)), "1200m/-");
}
