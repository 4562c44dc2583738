//! Sidecars: init containers that run beside the regular ones.

use super::*;
use crate::model::Reason;
use crate::model::objects::annotation::OBSERVED;

/// [`WEB`] with a sidecar, `mesh`, that has half of what is recommended for it, and a container that only prepares.
fn meshed(policies: &str) -> KnownObjects {
    let init = "  initContainers:
  - {name: setup, resources: {requests: {cpu: 10m, memory: 10Mi}, limits: {cpu: 50m, memory: 50Mi}}}
  - {name: mesh, restartPolicy: Always, resources: {requests: {cpu: 50m, memory: 50Mi}, limits: {cpu: 100m, memory: 100Mi}}}
status: {phase";
    let recommended = "    containerRecommendations:
    - {containerName: mesh, target: {cpu: 100m, memory: 100Mi}, lowerBound: {cpu: 80m, memory: 80Mi}}
    - {containerName: setup, target: {cpu: 1, memory: 1Gi}}
";
    let policies = format!("  resourcePolicy: {{containerPolicies: [{policies}]}}\nstatus:\n");
    let web = WEB
        .replacen("status: {phase", init, 1)
        .replacen("    containerRecommendations:\n", recommended, 1)
        .replacen("status:\n", &policies, 1);
    view(&web)
}

#[test]
fn a_sidecar_follows_like_a_container() {
    let decision = decide_one(&meshed(""));
    assert_eq!(decision.reason, Reason::OutOfBounds);
    let names: Vec<_> = decision
        .amounts
        .containers
        .iter()
        .map(|named| named.name.as_str())
        .collect();
    assert_eq!(names, ["app", "mesh"]);
    assert_eq!(
        (cpu(&decision, "mesh"), memory(&decision, "mesh")),
        ("100m/200m".to_owned(), "100Mi/200Mi".to_owned())
    );
    assert_eq!(
        notes(&decision),
        ["setup: recommended for, but only init containers that are sidecars are resized"],
        "what has ended when the others run cannot be resized"
    );
    assert!(decision.ceilings.iter().any(|ceiling| ceiling.container == "app"));
}

#[test]
fn a_policy_for_a_sidecar_counts() {
    let off = decide_one(&meshed("{containerName: mesh, mode: 'Off'}"));
    assert_eq!(
        (memory(&off, "app"), memory(&off, "mesh")),
        ("200Mi/600Mi".to_owned(), "50Mi/100Mi".to_owned())
    );
    let capped = decide_one(&meshed("{containerName: mesh, maxAllowed: {memory: 60Mi}}"));
    assert_eq!(memory(&capped, "mesh"), "60Mi/120Mi");
}

/// Ends the last run of the sidecar for memory, soon after its start.
fn kill_mesh(view: &mut KnownObjects) {
    let status = serde_json::json!([{"name": "mesh", "lastState": {"terminated": {"reason": "OOMKilled",
        "startedAt": "2026-03-01T11:55:00Z", "finishedAt": "2026-03-01T11:56:00Z"}}}]);
    pod_of(view).status.init_container_statuses = serde_json::from_value(status).unwrap();
}

#[test]
fn a_sidecar_alone_makes_its_pod_due() {
    let mut view = meshed("{containerName: app, mode: 'Off'}");
    assert_eq!(decide_one(&view).reason, Reason::OutOfBounds);
    // The webhook lists regular containers only.
    let annotations = &mut pod_of(&mut view).metadata.annotations;
    annotations.insert(OBSERVED.to_owned(), "app".to_owned());
    assert_eq!(decide_one(&view).reason, Reason::OutOfBounds);
    kill_mesh(&mut view);
    assert_eq!(decide_one(&view).reason, Reason::QuickOOM);
}

#[test]
fn a_killed_sidecar_without_recommendation_does_not_count() {
    let mut view = meshed("");
    kill_mesh(&mut view);
    assert_eq!(decide_one(&view).reason, Reason::QuickOOM);
    let recommendation = view.vpas[0].status.recommendation.as_mut().unwrap();
    recommendation
        .container_recommendations
        .retain(|said| said.container_name == "app");
    recommendation.container_recommendations[0].lower_bound = crate::model::ResourceList::default();
    assert_eq!(decide_one(&view).reason, Reason::TooYoung);
}

#[test]
fn the_class_counts_the_sidecar_as_it_would_be() {
    let same = "requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 100m, memory: 100Mi}";
    let mut view = meshed("{containerName: '*', controlledValues: RequestsOnly}");
    let spec = &mut pod_of(&mut view).spec;
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        container.resources = serde_json::from_value(serde_json::json!({
            "requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "100m", "memory": "100Mi"}}))
        .unwrap();
    }
    pod_of(&mut view).status.qos_class = Some(crate::model::QosClass::Guaranteed);
    view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations
        .retain(|said| said.container_name == "mesh");
    let said = &mut view.vpas[0]
        .status
        .recommendation
        .as_mut()
        .unwrap()
        .container_recommendations[0];
    said.target.set(Resource::Memory, Some(50 << 20));
    said.lower_bound = crate::model::ResourceList::default();
    said.upper_bound.set(Resource::Memory, Some(60 << 20));
    assert_eq!(decide_one(&view).reason, Reason::QoSClassChange, "{same}");
}
