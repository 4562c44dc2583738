//! What the kubelet refuses to resize stays, and the other resource follows alone.

use super::*;
use crate::decide::{NodePolicies, Refusals};
use crate::model::objects::ContainerStatus;
use crate::model::{Action, KubeletVersion, QosClass, Reason};

const CPU: NodePolicies = NodePolicies {
    static_cpu: true,
    static_memory: false,
    limited_swap: false,
};
const BOTH: NodePolicies = NodePolicies {
    static_cpu: true,
    static_memory: true,
    limited_swap: false,
};

/// [`WEB`] in the Guaranteed class, with so much cpu.
fn guaranteed(cpu: &str) -> KnownObjects {
    let amounts = format!("{{cpu: {cpu}, memory: 100Mi}}");
    let manifests = WEB.replace(
        "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}",
        &format!("{{requests: {amounts}, limits: {amounts}}}"),
    );
    let mut view = view(&manifests);
    pod_of(&mut view).status.qos_class = Some(QosClass::Guaranteed);
    view
}

fn decided_by(view: &KnownObjects, managers: NodePolicies, kubelet: u32) -> PodDecision {
    decided_beside(view, Refusals::default().beside(managers, KubeletVersion(kubelet)))
}

fn decided_beside(view: &KnownObjects, refusals: Refusals) -> PodDecision {
    let options = Options {
        refusals,
        ..Options::default()
    };
    decide(&view.pods, &index(view), now(), &options).remove(0)
}

fn decided(view: &KnownObjects, managers: NodePolicies) -> PodDecision {
    decided_by(view, managers, 37)
}

#[test]
fn a_pod_with_processors_of_its_own_keeps_them() {
    let decision = decided(&guaranteed("2"), CPU);
    assert_eq!(decision.action(), Action::Resize);
    assert_eq!(
        (cpu(&decision, "app"), memory(&decision, "app")),
        ("2/2".into(), "200Mi/200Mi".into())
    );
    assert_eq!(
        notes(&decision),
        ["cpu is left alone: the kubelet's static cpu manager has assigned it to the pod"]
    );
    let cpu_may_grow = |ceiling: &crate::decide::Ceiling| ceiling.limits.cpu.is_some();
    assert!(!decision.ceilings.iter().any(cpu_may_grow));
}

#[test]
fn a_statically_assigned_pod_is_skipped() {
    let decision = decided(&guaranteed("2"), BOTH);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::StaticallyAssigned)
    );
}

#[test]
fn pods_that_share_processors_are_resized() {
    for (view, managers, kubelet) in [
        (guaranteed("2"), NodePolicies::default(), 37),
        (guaranteed("1500m"), CPU, 32),
        (view(WEB), BOTH, 33),
    ] {
        let decision = decided_by(&view, managers, kubelet);
        assert_eq!(decision.action(), Action::Resize);
        assert!(cpu(&decision, "app").starts_with("200m/"), "{decision:?}");
    }
}

#[test]
fn a_refused_resource_takes_no_other_along() {
    const MEMORY: NodePolicies = NodePolicies {
        static_cpu: false,
        static_memory: true,
        limited_swap: false,
    };
    for (managers, kubelet, wanted) in [
        (CPU, 34, Ok(["140m/140m", "200Mi/200Mi"])),
        (CPU, 37, Ok(["140m/140m", "200Mi/200Mi"])),
        (CPU, 32, Ok(["200m/200m", "200Mi/200Mi"])),
        (MEMORY, 32, Ok(["200m/200m", "100Mi/100Mi"])),
        (MEMORY, 34, Ok(["200m/200m", "100Mi/100Mi"])),
        (CPU, 33, Err(Reason::StaticallyAssigned)),
        (MEMORY, 33, Err(Reason::StaticallyAssigned)),
        (BOTH, 37, Err(Reason::StaticallyAssigned)),
    ] {
        let decision = decided_by(&guaranteed("140m"), managers, kubelet);
        let found = match decision.action() {
            Action::Resize => Ok([cpu(&decision, "app"), memory(&decision, "app")]),
            _ => Err(decision.reason),
        };
        assert_eq!(
            found,
            wanted.map(|amounts| amounts.map(str::to_owned)),
            "{managers:?} {kubelet}"
        );
    }
}

const SWAP: NodePolicies = NodePolicies {
    static_cpu: false,
    static_memory: false,
    limited_swap: true,
};

/// What a pod is given: its cpu and memory, or the reason for nothing.
fn given(decision: &PodDecision) -> Result<[String; 2], Reason> {
    match decision.action() {
        Action::Resize => Ok([cpu(decision, "app"), memory(decision, "app")]),
        _ => Err(decision.reason),
    }
}

#[test]
fn memory_of_a_container_that_may_swap_stays() {
    let decision = decided_by(&view(WEB), SWAP, 37);
    assert!(
        cpu(&decision, "app").starts_with("200m/") && memory(&decision, "app").starts_with("100Mi/"),
        "{decision:?}"
    );
    assert_eq!(
        notes(&decision),
        ["memory is left alone: the kubelet resizes it in no container that may swap (LimitedSwap)"]
    );
    // Older kubelets do not resize, and pods of the other class do not swap.
    for (view, kubelet) in [(view(WEB), 32), (guaranteed("140m"), 37)] {
        let decision = decided_by(&view, SWAP, kubelet);
        assert!(memory(&decision, "app").starts_with("200Mi/"), "{decision:?}");
    }
}

/// After kubernetes/kubernetes#141991.
#[test]
fn a_pod_with_huge_pages_keeps_them() {
    let amounts = "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}";
    let status = format!("status: {{containerStatuses: [{{name: app, resources: {amounts}}}], phase");
    let in_place = |web: &str| view(&web.replacen("status: {phase", &status, 1));
    let huge = WEB.replacen("limits: {cpu: 300m", "limits: {hugepages-2Mi: 64Mi, cpu: 300m", 1);
    let pod_level = "containers:\n  - name: app\n    resources: {requests";
    let own = format!("resources: {{limits: {{hugepages-1Gi: 1Gi, memory: 1Gi}}}}\n  {pod_level}");
    let of_pod = WEB.replacen(pod_level, &own, 1);
    for (huge, kubelet) in [(&huge, 32), (&huge, 37), (&of_pod, 37)] {
        let decision = decided_by(&in_place(huge), NodePolicies::default(), kubelet);
        assert_eq!(given(&decision), Err(Reason::KubeletRefuses), "{kubelet}");
        let why = "kubelets before 1.38 set the pod's limits of huge pages to 0 with every resize";
        assert_eq!(
            notes(&decision),
            ["cpu", "memory"].map(|one| format!("{one} is left alone: {why}"))
        );
        assert!(decision.ceilings.is_empty(), "the guard raises nothing");
    }
    // Without such a status the agent writes the files itself, and none of huge pages.
    for (view, kubelet) in [(in_place(&huge), 38), (in_place(WEB), 37), (view(&huge), 37)] {
        let decision = decided_by(&view, NodePolicies::default(), kubelet);
        assert_eq!(
            given(&decision),
            Ok(["200m/600m", "200Mi/600Mi"].map(str::to_owned)),
            "{kubelet}"
        );
    }
}

#[test]
fn a_memory_limit_may_grow_beside_swap() {
    let mut view = view(WEB);
    let policy = r#"{"containerPolicies": [{"containerName": "*", "maxAllowed": {"memory": "1Gi"}}]}"#;
    view.vpas[0].spec.resource_policy = Some(serde_json::from_str(policy).unwrap());
    let decision = decided_by(&view, SWAP, 37);
    assert!(memory(&decision, "app").starts_with("100Mi/"), "{decision:?}");
    assert_eq!(decision.ceilings[0].limits.get(Resource::Memory), Some(1 << 30));
}

#[test]
fn critical_pods_never_swap() {
    let memory_at = |priority| {
        let mut view = view(WEB);
        pod_of(&mut view).spec.priority = Some(priority);
        memory(&decided_by(&view, SWAP, 33), "app")
    };
    assert_eq!(memory_at(1_999_999_999), "100Mi/300Mi");
    assert_eq!(memory_at(2_000_000_000), "200Mi/600Mi");
}

#[test]
fn memory_that_would_swap_after_the_change_stays() {
    const AMOUNTS: &str = "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}";
    const REQUESTS_ONLY: &str =
        "  resourcePolicy: {containerPolicies: [{containerName: '*', controlledValues: RequestsOnly}]}\n";
    let memory_of = |manifests: &str| memory(&decided_by(&view(manifests), SWAP, 37), "app");
    let bare = WEB.replacen(AMOUNTS, "{requests: {cpu: 100m}, limits: {cpu: 300m}}", 1);
    assert_eq!(memory_of(&bare), "-/-");
    let equal = AMOUNTS.replacen("100Mi", "300Mi", 1);
    let equal = WEB.replacen(AMOUNTS, &equal, 1);
    assert_eq!(memory_of(&equal), "200Mi/200Mi", "no swap before, and none then");
    let requests_only = equal.replacen("status:\n", &format!("{REQUESTS_ONLY}status:\n"), 1);
    assert_eq!(memory_of(&requests_only), "300Mi/300Mi");
}

#[test]
fn a_limit_that_no_api_server_lowers_stays() {
    const WORDS: &str = "Forbidden: memory limits cannot be decreased unless resizePolicy is RestartContainer";
    let mut view = view(&WEB.replacen("memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi", LARGE, 1));
    let pod = pod_of(&mut view);
    pod.status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(pod.spec.containers[0].resources),
        ..ContainerStatus::default()
    }];
    let decided = |refusals: &Refusals, kubelet: u32| {
        let refusals = refusals.beside(NodePolicies::default(), KubeletVersion(kubelet));
        given(&decided_beside(&view, refusals)).unwrap()
    };
    let lowered = ["200m/600m", "200Mi/225Mi"];
    let mut refusals = Refusals::default();
    // Whoever may deny in one namespace says something about that one only.
    assert!(refusals.learn_denial("other", WORDS, now()) && !refusals.learn_denial("default", "a quota", now()));
    assert_eq!(decided(&refusals, 33), lowered);
    assert!(refusals.learn_denial("default", WORDS, now()) && !refusals.learn_denial("default", WORDS, now()));
    assert_eq!(decided(&refusals, 33), ["200m/600m", "800Mi/900Mi"]);
    assert_eq!(
        decided(&refusals, 34),
        lowered,
        "no API server of this kubelet has the rule"
    );
    refusals.retain_namespaces(|namespace| namespace == "other");
    assert_eq!(decided(&refusals, 33), lowered);
    refusals.forget();
    assert_eq!(refusals, Refusals::default());
}

/// More memory than is recommended.
const LARGE: &str = "memory: 800Mi}, limits: {cpu: 300m, memory: 900Mi";

/// Kubelets' words: about a policy, about amounts, and of kubelets to come.
const STATIC: &str = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
const SIZE: &str = "Node didn't have enough capacity: memory, requested: 9663676416, capacity: 2147483648";
const UNKNOWN: &str = "Resize of something is not supported.";
const ALL: [Resource; 2] = Resource::ALL;

#[test]
fn the_other_resource_is_asked_for_alone() {
    let (web, mut refusals) = (view(WEB), Refusals::default());
    let both = given(&decided_beside(&web, refusals.clone())).unwrap();
    refusals.learn(&web.pods[0], &ALL, UNKNOWN);
    let [cpu, memory] = given(&decided_beside(&web, refusals.clone())).unwrap();
    assert!(cpu == both[0] && memory.starts_with("100Mi/"), "{cpu} {memory}");
    // Cpu is refused alone, too: then it is the turn of memory alone.
    refusals.learn(&web.pods[0], &[Resource::Cpu], UNKNOWN);
    let [cpu, memory] = given(&decided_beside(&web, refusals.clone())).unwrap();
    assert!(cpu.starts_with("100m/") && memory == both[1], "{cpu} {memory}");
    refusals.learn(&web.pods[0], &[Resource::Memory], UNKNOWN);
    assert_eq!(
        given(&decided_beside(&web, refusals.clone())),
        Err(Reason::KubeletRefuses)
    );
    // Nothing is asked for any more, so nothing is learned any more.
    let known = refusals.clone();
    for changed in [&ALL[..], &ALL[..1], &ALL[1..], &[]] {
        refusals.learn(&web.pods[0], changed, UNKNOWN);
    }
    assert_eq!(refusals, known);
    refusals.forget();
    assert_eq!(
        given(&decided_beside(&web, refusals)),
        Ok(both),
        "a kubelet that starts anew is asked again"
    );
}

#[test]
fn words_about_one_resource_are_no_guess() {
    let web = guaranteed("140m");
    // Both are refused together, then cpu alone: a guess about memory ends with that.
    for (words, known) in [
        (
            "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"",
            2,
        ),
        ("In-place resize of containers with swap is not supported.", 2),
        // From 1.38 on.
        (
            "Resize is infeasible for Guaranteed Pods when memory allocation mode is exclusive",
            2,
        ),
        (UNKNOWN, 1),
        ("Neither cpu nor memory is resized.", 1),
    ] {
        let mut refusals = Refusals::default();
        refusals.learn(&web.pods[0], &ALL, words);
        refusals.learn(&web.pods[0], &[Resource::Cpu], UNKNOWN);
        assert_eq!(refusals.sentences().len(), known, "{words}");
    }
    let of_1_38 = "Resize is infeasible for Guaranteed Pods when CPU allocation mode is exclusive";
    for words in [STATIC, of_1_38] {
        let mut refusals = Refusals::default();
        refusals.learn(&web.pods[0], &ALL, words);
        assert!(refusals.sentences()[0].starts_with("cpu of "), "{words}");
        assert_eq!(
            given(&decided_beside(&web, refusals)),
            Ok(["140m/140m", "200Mi/200Mi"].map(str::to_owned)),
            "memory alone is requested next"
        );
    }
}

#[test]
fn a_guess_ends_only_in_its_class_and_namespace() {
    let (web, other_class) = (view(WEB), guaranteed("140m"));
    let mut other_namespace = (*web.pods[0]).clone();
    other_namespace.metadata.namespace = "other".to_owned();
    for pod in [&*other_class.pods[0], &other_namespace] {
        let mut refusals = Refusals::default();
        refusals.learn(&web.pods[0], &ALL, UNKNOWN);
        refusals.learn(pod, &[Resource::Cpu], UNKNOWN);
        assert_eq!(refusals.sentences().len(), 2, "{:?}", refusals.sentences());
    }
}

#[test]
fn long_words_of_a_kubelet_are_cut() {
    let (web, mut refusals) = (view(WEB), Refusals::default());
    refusals.learn(&web.pods[0], &[Resource::Cpu], &"x".repeat(300));
    assert_eq!(refusals.sentences()[0].matches('x').count(), 200);
}

#[test]
fn a_refusal_holds_for_its_class_and_namespace() {
    let web = guaranteed("140m");
    let mut refusals = Refusals::default();
    refusals.learn(&web.pods[0], &ALL, STATIC);
    let decision = decided_beside(&web, refusals.clone());
    assert_eq!(given(&decision), Ok(["140m/140m".to_owned(), "200Mi/200Mi".to_owned()]));
    let note =
        format!("cpu is left alone: the kubelet has refused it for Guaranteed pods of this namespace ({STATIC})");
    assert_eq!(notes(&decision), [note]);
    assert_eq!(
        refusals.sentences(),
        [format!("cpu of Guaranteed pods in namespace default ({STATIC})")]
    );
    let other_class = given(&decided_beside(&view(WEB), refusals.clone())).unwrap();
    assert!(other_class[0].starts_with("200m/"), "{other_class:?}");
    // Whoever may write a pod's status says something about pods of that namespace only.
    let mut other = guaranteed("140m");
    let mut pod = (*other.pods[0]).clone();
    pod.metadata.namespace = "other".to_owned();
    let mut elsewhere = Refusals::default();
    elsewhere.learn(&pod, &ALL, STATIC);
    pod_of(&mut other);
    assert_eq!(
        given(&decided_beside(&other, elsewhere.clone())),
        Ok(["200m/200m".to_owned(), "200Mi/200Mi".to_owned()])
    );
    elsewhere.retain_namespaces(|namespace| namespace != "other");
    assert_eq!(elsewhere, Refusals::default());
}

#[test]
fn a_refused_amount_says_nothing_of_others() {
    let web = view(WEB);
    let mut refusals = Refusals::default();
    for changed in [&ALL[..], &ALL[1..]] {
        refusals.learn(&web.pods[0], changed, SIZE);
    }
    assert_eq!(refusals, Refusals::default());
}
