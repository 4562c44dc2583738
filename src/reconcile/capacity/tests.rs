use std::sync::Arc;

use jiff::Timestamp;

use super::*;
use crate::decide::{NodePolicies, PodDecision};
use crate::model::objects::ContainerStatus;
use crate::model::{Bytes, CgroupPath, LivePod, MilliCpu, Requirements};
use crate::plan::Capacity;
use crate::reconcile::desired::{InForce, Recommended};

const GI: u64 = 1 << 30;

fn list(cpu: u64, memory: u64) -> ResourceList {
    ResourceList {
        cpu: Some(MilliCpu::new(cpu)),
        memory: Some(Bytes::new(memory)),
    }
}

fn container(limits: ResourceList) -> PodAmounts {
    let resources = Requirements {
        requests: ResourceList::default(),
        limits,
    };
    PodAmounts::from_iter([NamedRequirements::new("app", resources)])
}

fn checked(requests: [ResourceList; 2], limits: [ResourceList; 2]) -> Result<(), String> {
    let small = list(500, GI);
    let account = NodeRequests::from_iter([list(1000, 3 * GI), list(2000, GI), small].map(|take| (0, take)));
    let room = Room {
        capacity: Capacity::of_node_or(None, list(4000, 8 * GI)),
        others: account.others(small),
    };
    let [before, after] = limits.map(container);
    check(room, requests, [&before, &after])
}

#[test]
fn requests_must_fit_beside_everybody_elses() {
    let small = list(500, GI);
    assert_eq!(checked([small, list(1000, 4 * GI)], [small, small]), Ok(()));
    assert_eq!(
        checked([small, list(500, 5 * GI)], [small, small]).unwrap_err(),
        "the node cannot hold it: memory requests would be 9Gi of 8Gi (all this machine has): this pod 5Gi instead of 1Gi, \
         the 2 other pods 4Gi; at most 4Gi is left for this pod"
    );
    let error = checked([small, list(1500, GI)], [small, small]).unwrap_err();
    assert!(error.contains("cpu requests would be 4500m of 4000m"), "{error}");
}

#[test]
fn less_is_always_fine_also_on_a_full_node() {
    let full = list(9000, 90 * GI);
    assert_eq!(checked([full, list(8000, 80 * GI)], [full, full]), Ok(()));
    assert_eq!(checked([full, full], [full, list(9000, 80 * GI)]), Ok(()));
}

#[test]
fn no_container_may_use_more_than_there_is() {
    let small = list(500, GI);
    assert_eq!(checked([small, small], [small, list(4000, 8 * GI)]), Ok(()));
    assert_eq!(
        checked([small, small], [small, list(500, 100 * GI)]).unwrap_err(),
        "the node cannot hold it: container app could use 100Gi of memory, and there is 8Gi (all this machine has)"
    );
    let error = checked([small, small], [small, list(4500, GI)]).unwrap_err();
    assert!(error.contains("could use 4500m of cpu, and there is 4000m"), "{error}");
}

fn requesting(requests: ResourceList) -> PodAmounts {
    let resources = Requirements {
        requests,
        ..Requirements::default()
    };
    PodAmounts::from_iter([NamedRequirements::new("app", resources)])
}

fn recommended(requests: ResourceList) -> Recommended {
    Recommended {
        vpa: Some("web".to_owned()),
        at: Timestamp::UNIX_EPOCH,
        targets: requesting(requests),
        in_force: InForce::default(),
    }
}

/// A pod whose spec requests that.
fn pod(requests: ResourceList) -> PodState {
    let mut pod = Pod::default();
    pod.spec.containers = vec![crate::model::objects::Container {
        name: "app".to_owned(),
        resources: requesting(requests).containers[0].resources,
        ..Default::default()
    }];
    let decision = PodDecision::undecided(&pod);
    PodState::new(Arc::new(pod), decision)
}

/// A node with 1000 of both, of which the first pod takes so much and another so much.
fn node(own: ResourceList, other: ResourceList) -> NodeCapacity {
    let declared = Capacity {
        amounts: list(1000, 1000),
        from: Capacity::ALLOCATABLE,
    };
    NodeCapacity {
        declared: Some(declared),
        any: declared,
        requested: [(0, own), (0, other)].into_iter().collect(),
        kubelet: KubeletVersion::NEWEST,
        patches: false,
        ask_when_full: AskWhenFull::Never,
        page: PageSize::KIB_4,
        refusals: Refusals::default(),
        freed: false,
        quotas: Default::default(),
        containers: BTreeMap::new(),
    }
}

#[test]
fn what_is_recommended_must_fit_beside_what_others_request() {
    let mut state = pod(list(100, 100));
    let mut capacity = node(list(100, 100), list(800, 800));
    let refused = capacity.admit(&state, &recommended(list(201, 100))).unwrap_err();
    assert!(refused.contains("200m of 1000m are left"), "{refused}");
    let fits = recommended(list(200, 200));
    assert_eq!(capacity.admit(&state, &fits), Ok(()));
    let before = capacity.requests_of(&state);
    state.desired.recommended = Some(fits);
    capacity.update(before, &state);
    let others = capacity.requested.others(list(800, 800));
    assert_eq!(others.take, list(200, 200), "from now on it is taken");
    assert!(!capacity.freed);
}

#[test]
fn what_stands_counts_and_not_the_spec() {
    let mut grown = pod(list(100, 100));
    grown.desired.recommended = Some(recommended(list(600, 600)));
    let mut capacity = node(list(600, 600), list(500, 500));
    let before = capacity.requests_of(&grown);
    assert_eq!(before, list(600, 600));
    let less = recommended(list(550, 600));
    assert_eq!(capacity.admit(&grown, &less), Ok(()), "less always fits");
    grown.desired.recommended = Some(less);
    capacity.update(before, &grown);
    assert!(capacity.freed);
}

#[test]
fn what_a_pod_goes_back_to_is_taken_as_well() {
    let mut shrunk = pod(list(700, 700));
    shrunk.desired.recommended = Some(recommended(list(100, 100)));
    let mut capacity = node(list(100, 100), list(200, 200));
    let before = capacity.requests_of(&shrunk);
    shrunk.desired.end_recommendation(&shrunk.pod, &mut shrunk.resize);
    capacity.update(before, &shrunk);
    let other = pod(list(200, 200));
    let refused = capacity.admit(&other, &recommended(list(301, 200))).unwrap_err();
    assert!(refused.contains("300m of 1000m are left"), "{refused}");
}

#[test]
fn a_pod_that_has_ended_takes_nothing() {
    let mut ended = pod(list(100, 100));
    Arc::make_mut(&mut ended.pod).status.phase = "Succeeded".to_owned();
    let machine = list(1000, 1000);
    let capacity = NodeCapacity::of(
        [&ended].into_iter(),
        &NodeView::default(),
        machine,
        KubeletVersion::NEWEST,
        false,
    );
    assert!(capacity.requests_of(&ended).is_empty());
    assert_eq!(capacity.requested, NodeRequests::default());
}

/// The pod, running in a cgroup.
fn running(mut state: PodState) -> PodState {
    state.live = Some(Arc::new(LivePod {
        id: state.pod.id_with("a"),
        path: CgroupPath::new("/kubepods/poda").unwrap(),
        containers: <_>::default(),
    }));
    state
}

#[test]
fn a_pod_claims_all_that_it_requests() {
    let pod = "
kind: Pod
metadata: {name: web, uid: u}
spec:
  overhead: {memory: 16Mi}
  initContainers:
  - {name: mesh, restartPolicy: Always, resources: {requests: {memory: 32Mi}}}
  - {name: setup, resources: {requests: {memory: 200Mi}}}
  containers:
  - {name: app, resources: {requests: {memory: 64Mi}}}
";
    let view = crate::sources::parse_manifests("test", pod).unwrap().view;
    let pod = Arc::clone(&view.pods[0]);
    let decision = PodDecision::undecided(&pod);
    let state = running(PodState::new(pod, decision));
    let claimed = node(list(1, 1), list(1, 1)).claim(&state).unwrap().request;
    assert_eq!(claimed, Bytes::new((32 + 200 + 16) << 20));
}

#[test]
fn only_granted_memory_is_claimed() {
    let mut state = running(pod(list(100, 100)));
    state.desired.recommended = Some(recommended(list(100, 10 << 40)));
    let claimed = |state: &PodState| {
        let capacity = NodeCapacity {
            patches: true,
            ..node(list(100, 100), list(1, 1))
        };
        capacity.claim(state).unwrap().request.get()
    };
    assert_eq!(claimed(&state), 10 << 40, "the agent itself admits and writes it");
    let object = Arc::make_mut(&mut state.pod);
    object.status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(requesting(list(100, 100)).containers[0].resources),
        ..Default::default()
    }];
    assert!(object.resizes_in_place());
    assert_eq!(claimed(&state), 100);
}

#[test]
fn a_patch_that_fits_is_taken_for_others() {
    let resizing = || {
        let mut state = pod(list(100, 100));
        Arc::make_mut(&mut state.pod).status.container_statuses = vec![ContainerStatus {
            name: "app".to_owned(),
            resources: Some(requesting(list(100, 100)).containers[0].resources),
            ..Default::default()
        }];
        state
    };
    for (wanted, taken) in [(900, 900), (901, 100)] {
        let mut capacity = NodeCapacity {
            patches: true,
            ..node(list(100, 100), list(100, 100))
        };
        let mut others = |targets: ResourceList| {
            let facts = capacity.reserve(&resizing(), &requesting(targets));
            assert!(facts.yields.is_empty());
            facts.room.unwrap().others.take
        };
        assert_eq!(others(list(wanted, 100)), list(100, 100));
        assert_eq!(others(list(200, 100)), list(taken, 100), "the next pod");
    }
}

#[test]
fn a_node_that_nobody_describes_refuses_nothing() {
    let capacity = NodeCapacity {
        declared: None,
        ..node(list(1, 1), list(900, 900))
    };
    let wanted = recommended(list(9000, 9000));
    assert_eq!(capacity.admit(&pod(list(1, 1)), &wanted), Ok(()));
}

#[test]
fn assigned_amounts_are_refused_by_name() {
    let amounts = serde_json::json!({"cpu": "2", "memory": "1Gi"});
    let resources = serde_json::json!({"requests": amounts, "limits": amounts});
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "uid": "u"}, "spec": {"containers": [{"name": "app", "resources": resources}]},
    }))
    .unwrap();
    let set = |policies, limits: ResourceList| {
        let limits = Requirements {
            requests: limits,
            limits,
        };
        let values = PodAmounts::from_iter([NamedRequirements::new("app", limits)]);
        let kubelet = KubeletVersion::NEWEST;
        let mut capacity = NodeCapacity::of([].into_iter(), &NodeView::default(), list(8000, 8 * GI), kubelet, false);
        capacity.refusals = Refusals::default().beside(policies, KubeletVersion::NEWEST);
        let mut state = PodState::new(Arc::new(pod.clone()), PodDecision::undecided(&pod));
        let set = state.set_override(Override::by_root(values), &capacity).map(drop);
        assert_eq!(state.desired.is_empty(), set.is_err());
        set
    };
    let only = |cpu, memory| ResourceList { cpu, memory };
    let (cpu, memory) = (
        only(Some(MilliCpu::new(3000)), None),
        only(None, Some(Bytes::new(2 * GI))),
    );
    let managers = |static_cpu, static_memory| NodePolicies {
        static_cpu,
        static_memory,
        ..NodePolicies::default()
    };
    let error = set(managers(true, false), cpu).unwrap_err();
    assert!(
        error.starts_with("container app: requests.cpu 3 is refused: the kubelet's static cpu manager"),
        "{error}"
    );
    let error = set(managers(true, true), memory).unwrap_err();
    assert!(
        error.contains("requests.memory 2Gi") && error.contains("static memory manager"),
        "{error}"
    );
    assert_eq!(set(managers(true, false), memory), Ok(()));
    assert_eq!(set(managers(false, false), cpu), Ok(()));
}

/// A pod that the kubelet resizes in place, with a hundred of both.
fn resizing() -> PodState {
    let mut state = pod(list(100, 100));
    Arc::make_mut(&mut state.pod).status.container_statuses = vec![ContainerStatus {
        name: "app".to_owned(),
        resources: Some(requesting(list(100, 100)).containers[0].resources),
        ..Default::default()
    }];
    state
}

#[test]
fn a_patch_on_its_way_is_requested() {
    let capacity = NodeCapacity {
        patches: true,
        ..node(list(100, 100), list(1, 1))
    };
    let mut state = resizing();
    state.desired.recommended = Some(recommended(list(400, 400)));
    assert_eq!(capacity.requests_of(&state), list(100, 100), "it is not requested yet");
    state.work.start(1);
    assert_eq!(capacity.requests_of(&state), list(100, 100), "nor in a refused pass");
    let own = requesting(list(100, 100));
    let patch = serde_json::json!({"targets": requesting(list(400, 400)), "held": own, "before": own});
    state.resize = serde_json::from_value(serde_json::json!({ "asking": patch })).unwrap();
    assert_eq!(capacity.requests_of(&state), list(400, 400));
    let asked = requesting(list(300, 300));
    let request = serde_json::json!({"targets": asked, "generation": 2, "held": asked});
    state.resize = serde_json::from_value(serde_json::json!({ "asked": request })).unwrap();
    assert_eq!(capacity.requests_of(&state), list(300, 300));
    state.resize = serde_json::from_value(serde_json::json!({"writtenAhead": own})).unwrap();
    assert_eq!(capacity.requests_of(&state), list(100, 100), "a recommendation waits");
    let by_hand = Override::by_root(requesting(list(500, 500)));
    state.desired.put_override(by_hand);
    assert_eq!(
        capacity.requests_of(&state),
        list(500, 500),
        "while the API server is away"
    );
    Arc::make_mut(&mut state.pod).status.phase = "Failed".to_owned();
    assert!(capacity.requests_of(&state).is_empty());
}

#[test]
fn lower_priorities_may_yield_their_requests() {
    let nothing = ResourceList::default;
    for (ask_when_full, priority, yields) in [
        (AskWhenFull::Never, 5, nothing()),
        (AskWhenFull::Always, 0, list(100, 100)),
        (AskWhenFull::Priority, 5, list(100, 100)),
        (AskWhenFull::Priority, 3, nothing()),
    ] {
        let mut capacity = NodeCapacity {
            patches: true,
            requested: [(priority, list(100, 100)), (3, list(100, 100))].into_iter().collect(),
            ask_when_full,
            ..node(list(1, 1), list(1, 1))
        };
        let mut state = resizing();
        Arc::make_mut(&mut state.pod).spec.priority = Some(priority);
        let facts = capacity.reserve(&state, &requesting(list(2000, 100)));
        assert_eq!(facts.yields, yields, "{ask_when_full:?} {priority}");
        assert_eq!(facts.room.unwrap().others.take, list(100, 100));
    }
}

#[test]
fn a_patched_pod_finds_its_room_in_its_pass() {
    let full = recommended(list(2000, 100));
    for (patches, is_admitted) in [(true, true), (false, false)] {
        let capacity = NodeCapacity {
            patches,
            ..node(list(100, 100), list(100, 100))
        };
        assert_eq!(capacity.admit(&resizing(), &full).is_ok(), is_admitted);
    }
}
