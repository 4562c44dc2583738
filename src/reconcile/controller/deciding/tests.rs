//! Which pods are decided about, and why a pass follows.

use super::*;
use crate::decide::CanaryWait;
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, Node, ObjectMeta, Owner, Running};
use crate::model::{MilliCpu, PodAmounts, Resource, Target};
use crate::reconcile::controller::tests::{controller, inventory_of};
use crate::reconcile::no_room::NoRoomFor;
use crate::reconcile::pod::NodeEvent;
use crate::sources::parse_manifests;

/// A pod whose container runs.
fn pod() -> Pod {
    let manifest = "{kind: Pod, metadata: {name: web, namespace: shop, uid: u1}, spec: {containers: [{name: app}]}}";
    let mut pod = Pod::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
    let mut status = ContainerStatus {
        name: "app".to_owned(),
        container_id: "containerd://a".to_owned(),
        ..ContainerStatus::default()
    };
    status.state.running = Some(Running::default());
    pod.status.container_statuses = vec![status];
    pod
}

fn known<const N: usize>(pods: [Pod; N]) -> KnownObjects {
    KnownObjects {
        pods: pods.map(Arc::new).into(),
        ..KnownObjects::default()
    }
}

fn state() -> PodState {
    let pod = Arc::new(pod());
    PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod))
}

#[test]
fn only_other_containers_need_a_discovery() {
    let is_same = |change: fn(&mut Pod)| {
        let mut changed = pod();
        change(&mut changed);
        have_same_containers(&known([pod()]), &known([changed]))
    };
    assert!(is_same(|_| {}));
    assert!(is_same(|pod| pod.metadata.labels.clear()));
    assert!(is_same(|pod| pod.metadata.resource_version = "7".to_owned()));
    assert!(!is_same(|pod| pod.metadata.uid = "u2".to_owned()));
    assert!(!is_same(|pod| pod.metadata.name = "db".to_owned()));
    assert!(!is_same(
        |pod| pod.spec.containers[0].resources.limits.cpu = Some(MilliCpu::new(1))
    ));
    assert!(!is_same(|pod| pod.status.container_statuses[0].state.running = None));
    assert!(!is_same(
        |pod| pod.status.container_statuses[0].container_id = "containerd://b".to_owned()
    ));
    assert!(!is_same(|pod| {
        pod.status.container_statuses[0].resources = Some(Requirements::default());
    }));
    assert!(!is_same(|pod| {
        pod.status.container_statuses[0].allocated_resources = Some(ResourceList::default());
    }));
    assert!(!is_same(|pod| pod.status.resources = Some(Requirements::default())));
    assert!(!is_same(|pod| pod.status.phase = "Failed".to_owned()));
    let (one, none) = (known([pod()]), KnownObjects::default());
    assert!(!have_same_containers(&one, &none) && have_same_containers(&one, &one));
}

#[test]
fn each_kind_of_object_concerns_its_namespace() {
    let metadata = ObjectMeta {
        namespace: "shop".to_owned(),
        ..ObjectMeta::default()
    };
    let owner = Owner {
        kind: OwnerKind::named("Deployment").unwrap(),
        metadata: metadata.clone(),
        selector: None,
        pods: 3,
    };
    let (mut vpa, mut hpa) = (VerticalPodAutoscaler::default(), HorizontalPodAutoscaler::default());
    let mut range = LimitRange::default();
    (vpa.metadata, hpa.metadata, range.metadata) = (metadata.clone(), metadata.clone(), metadata);
    let of = |owner: &Owner| KnownObjects {
        owners: vec![owner.clone().into()],
        ..KnownObjects::default()
    };
    let none = KnownObjects::default();
    let other = Owner {
        pods: 4,
        ..owner.clone()
    };
    assert!(!decide_alike(&none, &of(&owner)) && !decide_alike(&of(&owner), &of(&other)));
    assert!(decide_alike(&of(&owner), &of(&owner)));
    for other in [
        KnownObjects {
            vpas: vec![vpa.into()],
            ..KnownObjects::default()
        },
        KnownObjects {
            hpas: vec![hpa.into()],
            ..KnownObjects::default()
        },
        KnownObjects {
            limit_ranges: vec![range.into()],
            ..KnownObjects::default()
        },
    ] {
        assert!(!decide_alike(&other, &none));
    }
    assert!(decide_alike(&known([pod()]), &none));
}

#[test]
fn what_waits_is_decided_about_again() {
    let is_open = |change: fn(&mut PodState)| {
        let mut state = state();
        change(&mut state);
        has_open_change(&state)
    };
    assert!(!is_open(|_| {}));
    assert!(is_open(|state| state.decision.reason = Reason::OutOfBounds));
    assert!(is_open(|state| {
        state.decision.canary.waits = Some(CanaryWait {
            since: Timestamp::UNIX_EPOCH,
            targets: PodAmounts::default(),
        });
    }));
    assert!(is_open(|state| {
        let no_room = NoRoomFor::after(None, PodAmounts::default(), String::new(), Timestamp::UNIX_EPOCH);
        state.no_room = Some(no_room);
    }));
}

#[test]
fn a_pass_names_its_vpa_and_version() {
    let mut vpa = VerticalPodAutoscaler::default();
    vpa.metadata.namespace = "shop".to_owned();
    vpa.metadata.name = "web".to_owned();
    vpa.metadata.resource_version = "7".to_owned();
    let mut other = vpa.clone();
    (other.metadata.namespace, other.metadata.resource_version) = ("other".to_owned(), "8".to_owned());
    let all = KnownObjects {
        vpas: vec![other.into(), vpa.into()],
        ..KnownObjects::default()
    };
    let (mut sources, mut state) = (Sources::default(), state());
    sources.replace(Arc::new(all.into()), Vec::new());
    assert_eq!(sources.cause(&state), None);
    state.decision.vpa = Some("web".to_owned());
    state.decision.reason = Reason::OutOfBounds;
    let recommendation = Cause::Recommendation {
        vpa: "web".to_owned(),
        version: "7".to_owned(),
        reason: Reason::OutOfBounds,
    };
    assert_eq!(sources.cause(&state), Some(recommendation));
    state.decision.reason = Reason::StartupBoostEnded;
    let vpa = "web".to_owned();
    assert_eq!(sources.cause(&state), Some(Cause::BoostEnded { vpa }));
}

#[test]
fn the_running_one_of_two_namesakes_counts() {
    let mut next = pod();
    next.metadata.uid = "u2".to_owned();
    let both = known([pod(), next]);
    for (runs, expected) in [(None, "u2"), (Some("u1"), "u1"), (Some("u2"), "u2")] {
        let inventory = runs.map(|uid| inventory_of(&pod().id_with(uid)));
        let chosen = one_of_each_name(&[&both], &inventory.unwrap_or_default());
        let uids: Vec<&str> = chosen.values().map(|pod| pod.metadata.uid.as_str()).collect();
        assert_eq!(uids, [expected], "{runs:?}");
    }
}

#[tokio::test]
async fn the_latest_trouble_of_canaries_counts() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let at = |second| Timestamp::from_second(second).unwrap();
    for (name, goes_first, second) in [("a", true, 2), ("b", true, 1), ("c", false, 3)] {
        let mut pod = pod();
        pod.metadata.name = name.to_owned();
        let (pod, took) = (Arc::new(pod), Duration::ZERO);
        controller.pods.add(&pod);
        let mut decision = Box::new(PodDecision::undecided(&pod));
        decision.vpa = Some("web".to_owned());
        decision.canary.goes_first = goes_first;
        controller.apply(&pod.key(), PodInput::Decided { decision, took });
        let (target, at, lowered) = (Target::Pod, at(second), false);
        controller.apply(&pod.key(), PodInput::OnNode(NodeEvent::Killed { target, at, lowered }));
    }
    let web = ("shop".to_owned(), "web".to_owned());
    assert_eq!(controller.troubles(), [(web, at(2))].into());
}

/// Two pods that request 100m, and a VPA that recommends 600m for each.
fn crowded() -> KnownObjects {
    let workload = "
kind: StatefulSet
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}}
---
kind: VerticalPodAutoscaler
metadata: {name: web, namespace: shop}
spec: {targetRef: {kind: StatefulSet, name: web}}
status: {recommendation: {containerRecommendations: [{containerName: app, target: {cpu: 600m}, lowerBound: {cpu: 500m}}]}}
";
    let pods = ["a", "b"].map(|name| {
        format!(
            "---
kind: Pod
metadata:
  {{name: {name}, namespace: shop, uid: {name}, labels: {{app: web}}, ownerReferences: [{{kind: StatefulSet, name: web, controller: true}}]}}
spec: {{nodeName: here, containers: [{{name: app, resources: {{requests: {{cpu: 100m}}}}}}]}}
status: {{phase: Running}}
"
        )
    });
    parse_manifests("test", &format!("{workload}{}", pods.concat()))
        .unwrap()
        .view
}

#[tokio::test]
async fn who_waits_longest_gets_room_first() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let [a, b] = ["a", "b"].map(|name| PodKey::new("shop", name));
    let on_node = |milli: u64| {
        let mut node = Node::default();
        node.status.allocatable.set(Resource::Cpu, Some(milli));
        let node = Some(node);
        Arc::new(KnownObjects { node, ..crowded() }.into())
    };
    controller.take_view(on_node(200), Vec::new());
    assert!(controller.pods.values().all(|state| state.no_room.is_some()));
    // It has waited for an hour.
    controller.apply(&b, PodInput::ClockSet(jiff::SignedDuration::from_hours(-1)));
    controller.take_view(on_node(1000), Vec::new());
    let follows = [&a, &b].map(|key| controller.pods.get(key).unwrap().desired.recommended.is_some());
    assert_eq!(follows, [false, true]);
}

#[tokio::test]
async fn freed_room_is_no_namespaces_own() {
    let pod = |namespace: &str, name: &str, requests: u64, target: u64| {
        let metadata = format!("name: {name}, namespace: {namespace}");
        let (least, most) = (target - 50, target + 50);
        format!(
            "
kind: StatefulSet
metadata: {{{metadata}}}
spec: {{selector: {{matchLabels: {{app: {name}}}}}}}
---
kind: VerticalPodAutoscaler
metadata: {{{metadata}}}
spec: {{targetRef: {{kind: StatefulSet, name: {name}}}}}
status: {{recommendation: {{containerRecommendations: [
  {{containerName: app, target: {{cpu: {target}m}}, lowerBound: {{cpu: {least}m}}, upperBound: {{cpu: {most}m}}}}]}}}}
---
kind: Pod
metadata: {{{metadata}, uid: {name}, labels: {{app: {name}}}, ownerReferences: [{{kind: StatefulSet, name: {name}, controller: true}}]}}
spec: {{nodeName: here, containers: [{{name: app, resources: {{requests: {{cpu: {requests}m}}}}}}]}}
status: {{phase: Running}}
---"
        )
    };
    let full = |target_of_a: u64| {
        let a = pod("shop", "a", 700, target_of_a);
        let waiting = [pod("bank", "b", 100, 600), pod("shop", "c", 100, 600)].concat();
        let node = "\nkind: Node\nmetadata: {name: here}\nstatus: {allocatable: {cpu: '1', memory: 1Gi, pods: '9'}}\n";
        let view = parse_manifests("test", &format!("{a}{waiting}{node}")).unwrap().view;
        Arc::new(NodeView::from(view))
    };
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    controller.take_view(full(700), Vec::new());
    let waits = controller.pods.keys_of(|state| state.no_room.is_some());
    assert_eq!(waits, [PodKey::new("bank", "b"), PodKey::new("shop", "c")]);
    controller.take_view(full(100), Vec::new());
    assert_eq!(controller.pods.keys_of(|state| state.no_room.is_some()), waits);
    controller.on_time(tokio::time::Instant::now());
    let waits_on = controller.pods.keys_of(|state| state.no_room.is_some());
    assert_eq!(waits_on, waits[1..], "b has waited longer");
}

#[tokio::test]
async fn an_undecided_pod_is_known_and_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut controller = controller(directory.path());
    let manifest = "
kind: Pod
metadata: {name: web, namespace: shop, uid: u1, ownerReferences: [{kind: Rollout, name: web, controller: true}]}
spec: {nodeName: here, containers: [{name: app, resources: {requests: {cpu: 100m}}}]}
status: {phase: Running}
";
    let vpa = "
kind: VerticalPodAutoscaler
metadata: {name: ours, namespace: shop}
spec: {targetRef: {kind: Rollout, name: web}}
status: {recommendation: {containerRecommendations: [{containerName: app, target: {cpu: 600m}, lowerBound: {cpu: 500m}}]}}
";
    let view = parse_manifests("test", manifest).unwrap().view;
    let undecided = |why: Undecided| KnownObjects {
        undecided_pods: [("u1".to_owned(), why)].into(),
        ..view.clone()
    };
    let decided = |controller: &Controller| {
        let state = controller.pods.get(&PodKey::new("shop", "web")).unwrap();
        let is_recommended = state.desired.recommended.is_some();
        (state.decision.reason, state.decision.vpa.clone(), is_recommended)
    };
    controller.take_view(Arc::new(undecided(Undecided::Awaited).into()), Vec::new());
    assert_eq!(decided(&controller), (Reason::SourcesSilent, None, false));
    controller.take_view(Arc::new(view.clone().into()), Vec::new());
    assert_eq!(decided(&controller), (Reason::NoVpa, None, false));
    // A manifest has a VPA, which counts where the API server refuses its own.
    let vpas = parse_manifests("test", vpa).unwrap().view.vpas;
    for (why, vpa) in [(Undecided::Awaited, None), (Undecided::Refused, Some("ours"))] {
        let vpas = vpas.clone();
        let view = KnownObjects { vpas, ..undecided(why) };
        controller.take_view(Arc::new(view.into()), Vec::new());
        assert_eq!(decided(&controller).1.as_deref(), vpa, "{why:?}");
    }
    assert!(decided(&controller).2);
    controller.pods.changed.clear();
    controller.decides = false;
    controller.take_view(Arc::new(undecided(Undecided::Refused).into()), Vec::new());
    let unknown = (Reason::SourcesSilent, None, false);
    assert_eq!(decided(&controller), unknown, "no pass had begun");
    assert!(controller.decides, "a pod elsewhere may get what it requested");
}
