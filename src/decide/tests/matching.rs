//! The owner chain, and which of several VPAs counts.

use super::*;
use crate::model::objects::{OwnerReference, Shared, VerticalPodAutoscaler};
use crate::model::{Action, Reason};

/// The note that says why no VPA can control the pod.
fn unmatched(view: &KnownObjects) -> String {
    let decision = decide_one(view);
    assert_eq!((decision.reason, &decision.vpa), (Reason::NoVpa, &None));
    match &decision.notes[..] {
        [note] => note.to_string(),
        other => panic!("one note, and that one says why: {other:?}"),
    }
}

fn owned_by(kind: &str, name: &str) -> OwnerReference {
    OwnerReference {
        kind: kind.to_owned(),
        name: name.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }
}

#[test]
fn a_pod_without_a_known_controller_says_why() {
    let mut view = view(WEB);
    let mut with = |owners: Vec<OwnerReference>| {
        pod_of(&mut view).metadata.owner_references = owners;
        unmatched(&view)
    };
    assert_eq!(with(vec![]), "no owner reference of the pod names a controller");
    assert_eq!(
        with(vec![owned_by("Node", "here")]),
        "the pod belongs to its node: a static pod"
    );
    assert_eq!(
        with(vec![owned_by("Rollout", "web")]),
        "no VPA targets the pod's controller Rollout web, of an unknown kind"
    );
    assert_eq!(
        with(vec![owned_by("DaemonSet", "web")]),
        "the pod's owner DaemonSet web is not known"
    );
}

#[test]
fn owners_in_a_circle_end_the_search() {
    let mut view = view(WEB);
    view.owners[0].metadata.owner_references = vec![owned_by("StatefulSet", "web")];
    assert_eq!(unmatched(&view), "the pod's owners own each other in a circle");
}

#[test]
fn a_selector_that_passes_the_pod_by_is_named() {
    let mut view = view(WEB);
    pod_of(&mut view).metadata.labels.clear();
    let unselected = "the workload's selector (of a CronJob its pods' labels) does not select the pod";
    assert_eq!(unmatched(&view), unselected);
    view.owners[0].selector = None;
    assert_eq!(unmatched(&view), unselected);
}

#[test]
fn a_vpa_below_the_topmost_workload_is_named() {
    let web = WEB
        .replace(
            "targetRef: {kind: StatefulSet, name: web}",
            "targetRef: {kind: ReplicaSet, name: lower}",
        )
        .replace("[{kind: StatefulSet, name: web,", "[{kind: ReplicaSet, name: lower,");
    let lower = "
kind: ReplicaSet
metadata:
  name: lower
  ownerReferences: [{kind: StatefulSet, name: web, controller: true}]
spec: {selector: {matchLabels: {app: web}}}
";
    let view = view(&format!("{web}---{lower}"));
    assert_eq!(
        unmatched(&view),
        "VerticalPodAutoscaler web must target StatefulSet web, the topmost workload"
    );
}

#[test]
fn an_unknown_owner_ends_the_search() {
    let mut view = view(WEB);
    view.owners[0].metadata.owner_references = vec![owned_by("Website", "web")];
    let decision = decide_one(&view);
    assert_eq!(decision.action(), Action::Resize);
    assert!(
        notes(&decision)[0].starts_with("Website web owns the workload"),
        "{:?}",
        notes(&decision)
    );
}

/// A VPA of this target.
fn targeting(view: &KnownObjects, api_version: &str, kind: &str) -> Shared<VerticalPodAutoscaler> {
    let mut vpa = view.vpas[0].clone();
    let target = format!(r#"{{"apiVersion": "{api_version}", "kind": "{kind}", "name": "web"}}"#);
    vpa.spec.target_ref = serde_json::from_str(&target).unwrap();
    vpa.metadata.name = "custom".to_owned();
    vpa
}

#[test]
fn a_workload_of_any_kind_is_found() {
    let owner = |api_version: &str, kind: &str| OwnerReference {
        api_version: api_version.to_owned(),
        ..owned_by(kind, "web")
    };
    // Above a ReplicaSet, as Rollouts are, or above the pod itself, as CloneSets and Sandboxes are.
    for above_pod in [false, true] {
        let mut view = view(WEB);
        view.vpas = vec![targeting(&view, "argoproj.io/v1alpha1", "Rollout")];
        let references = vec![owner("argoproj.io/v1beta1", "Rollout")];
        match above_pod {
            true => pod_of(&mut view).metadata.owner_references = references,
            false => view.owners[0].metadata.owner_references = references,
        }
        let decision = decide_one(&view);
        assert_eq!(
            (decision.action(), decision.vpa.as_deref()),
            (Action::Resize, Some("custom"))
        );
        assert_eq!((&*decision.workload.kind, &*decision.workload.name), ("Rollout", "web"));
        assert_eq!(index(&view).without_target(&view.vpas, &view.pods).count(), 0);
        view.vpas = vec![targeting(&view, "example.com/v1", "Rollout")];
        assert_ne!(decide_one(&view).vpa.as_deref(), Some("custom"), "another group");
        assert_eq!(index(&view).without_target(&view.vpas, &view.pods).count(), 1);
    }
}

#[test]
fn a_custom_kind_of_a_known_name_differs() {
    let mut view = view(WEB);
    let mut owner = owned_by("StatefulSet", "web");
    owner.api_version = "apps.kruise.io/v1beta1".to_owned();
    pod_of(&mut view).metadata.owner_references = vec![owner];
    assert_eq!(
        decide_one(&view).reason,
        Reason::NoVpa,
        "the VPA is that of the other StatefulSet"
    );
    view.vpas = vec![targeting(&view, "apps.kruise.io/v1beta1", "StatefulSet")];
    assert_eq!(decide_one(&view).action(), Action::Resize);
}

#[test]
fn the_older_of_two_vpas_controls() {
    let mut view = view(WEB);
    let mut other = view.vpas[0].clone();
    other.metadata.name = "another".to_owned();
    view.vpas[0].metadata.creation_timestamp = Some(now());
    other.metadata.creation_timestamp = Some(now() + jiff::SignedDuration::from_secs(1));
    view.vpas.push(other);
    let decision = decide_one(&view);
    assert_eq!(decision.vpa.as_deref(), Some("web"));
    assert_eq!(
        notes(&decision),
        ["VerticalPodAutoscaler another targets the workload too, but is younger or later by name"]
    );
    view.vpas[1].metadata.creation_timestamp = view.vpas[0].metadata.creation_timestamp;
    assert_eq!(
        decide_one(&view).vpa.as_deref(),
        Some("another"),
        "by name, if equally old"
    );
}

#[test]
fn vpas_without_a_target_are_found() {
    let mut view = view(WEB);
    assert_eq!(index(&view).without_target(&view.vpas, &view.pods).count(), 0);
    view.owners.clear();
    assert_eq!(index(&view).without_target(&view.vpas, &view.pods).count(), 1);
}

#[test]
fn the_workload_is_the_topmost_known_owner() {
    let workload = |view: &KnownObjects| {
        let target = decide_one(view).workload;
        format!("{} {}", target.kind, target.name)
    };
    assert_eq!(workload(&view(WEB)), "StatefulSet web");
    let alone = |metadata: &str| {
        let pod = format!("{{kind: Pod, metadata: {{name: p, {metadata}}}, spec: {{containers: [{{name: a}}]}}}}");
        workload(&view(&pod))
    };
    let owner = |kind: &str, name: &str| format!("ownerReferences: [{{kind: {kind}, name: {name}, controller: true}}]");
    let replica_set = owner("ReplicaSet", "web-5f4");
    assert_eq!(
        alone(&format!("labels: {{pod-template-hash: 5f4}}, {replica_set}")),
        "Deployment web"
    );
    assert_eq!(alone(&replica_set), "ReplicaSet web-5f4");
    assert_eq!(alone(&owner("Rollout", "web")), "Rollout web");
    assert_eq!(alone(&owner("Node", "here")), "Pod p");
    assert_eq!(alone("uid: u"), "Pod p");
}
