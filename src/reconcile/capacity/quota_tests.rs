use std::sync::Arc;

use jiff::Timestamp;

use super::*;
use crate::actuate::Growable;
use crate::decide::PodDecision;
use crate::guard::{CpuTerms, Terms};
use crate::model::{Bytes, CgroupPath, LivePod};
use crate::reconcile::desired::{InForce, Recommended};
use crate::sources::{KnownObjects, parse_manifests};

const MI: u64 = 1 << 20;

/// Two pods with a memory limit of 100Mi each, in a namespace whose quota leaves 100Mi of limits.
fn view() -> KnownObjects {
    let pod = |name: &str| {
        format!(
            "---\n{{kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {name}}}, spec: {{containers: [{{name: app, \
             resources: {{limits: {{memory: 100Mi}}}}}}]}}}}\n"
        )
    };
    let quota = "---\n{kind: ResourceQuota, metadata: {name: team, namespace: shop}, spec: {hard: {limits.memory: 300Mi}}, \
                 status: {hard: {limits.memory: 300Mi}, used: {limits.memory: 200Mi}}}\n";
    parse_manifests("shop", &[&pod("a"), &pod("b"), quota].concat())
        .unwrap()
        .view
}

fn states(view: &KnownObjects) -> Vec<PodState> {
    let pods = view.pods.iter();
    pods.map(|pod| PodState::new(Arc::clone(pod), PodDecision::undecided(pod)))
        .collect()
}

/// The node's capacity, where the agent patches pods or writes without a patch.
fn node(view: &KnownObjects, states: &[PodState], patches: bool) -> NodeCapacity {
    NodeCapacity::of(
        states.iter(),
        &view.clone().into(),
        ResourceList::default(),
        KubeletVersion::NEWEST,
        patches,
    )
}

fn to(state: &PodState, mebibytes: u64) -> Recommended {
    let mut targets = state.pod.requirements();
    targets.containers[0].resources.limits.memory = Some(Bytes::new(mebibytes * MI));
    Recommended {
        vpa: Some("web".to_owned()),
        at: Timestamp::UNIX_EPOCH,
        targets,
        in_force: InForce::default(),
    }
}

#[test]
fn growth_of_several_pods_beyond_a_quota_is_refused() {
    let view = view();
    let mut states = states(&view);
    let mut capacity = node(&view, &states, false);
    let refused = capacity.admit(&states[0], &to(&states[0], 8192)).unwrap_err();
    assert!(
        refused.contains("exceeded quota: team") && refused.contains("limited: limits.memory=300Mi"),
        "{refused}"
    );
    let grown = to(&states[0], 160);
    assert_eq!(capacity.admit(&states[0], &grown), Ok(()));
    let before = capacity.requests_of(&states[0]);
    states[0].desired.recommended = Some(grown);
    capacity.update(before, &states[0]);
    let refused = capacity.admit(&states[1], &to(&states[1], 160)).unwrap_err();
    assert!(refused.contains("other pods of this node get 60Mi"), "{refused}");
    assert_eq!(capacity.admit(&states[1], &to(&states[1], 140)), Ok(()));
    assert_eq!(
        capacity.admit(&states[0], &to(&states[0], 50)),
        Ok(()),
        "less is always fine"
    );
}

#[test]
fn an_operators_values_beyond_a_quota_are_refused() {
    let view = view();
    let mut states = states(&view);
    let capacity = node(&view, &states, false);
    let values = |mebibytes| Override {
        uid: 0,
        pid: 1,
        reason: String::new(),
        since: Timestamp::UNIX_EPOCH,
        until: None,
        values: to(&states[0], mebibytes).targets,
    };
    let (large, small) = (values(300), values(150));
    let refused = states[0].set_override(large, &capacity).unwrap_err();
    assert!(refused.contains("quota: team"), "{refused}");
    assert!(states[0].desired.is_empty());
    assert!(states[0].set_override(small, &capacity).is_ok());
}

#[test]
fn pods_that_are_patched_share_what_a_quota_leaves() {
    let mut view = view();
    for pod in &mut view.pods {
        let status = r#"{"containerStatuses": [{"name": "app", "resources": {"limits": {"memory": "100Mi"}}}]}"#;
        Arc::make_mut(pod).status = serde_json::from_str(status).unwrap();
    }
    let mut states = states(&view);
    let mut capacity = node(&view, &states, true);
    let refused = capacity.admit(&states[0], &to(&states[0], 201)).unwrap_err();
    assert_eq!(
        refused,
        "exceeded quota: team, requested: limits.memory=101Mi, used: limits.memory=200Mi, limited: limits.memory=300Mi"
    );
    let grown = to(&states[0], 160);
    assert_eq!(capacity.admit(&states[0], &grown), Ok(()));
    // Its pass is due, and has patched nothing yet.
    states[0].desired.recommended = Some(grown.clone());
    states[0]
        .work
        .request_pass(crate::model::Cause::Sweep, true, std::time::Instant::now());
    capacity.update(ResourceList::default(), &states[0]);
    let refused = capacity.admit(&states[1], &to(&states[1], 160)).unwrap_err();
    assert!(refused.contains("other pods of this node get 60Mi"), "{refused}");
    assert_eq!(capacity.admit(&states[1], &to(&states[1], 140)), Ok(()));
    // Another node takes the rest before the patch: what was granted is checked again.
    let mut quota = (*view.quotas[0]).clone();
    quota.status.used.limits.memory = Some(Bytes::new(260 * MI));
    view.quotas = vec![Arc::new(quota).into()];
    let full = node(&view, &states, true);
    assert!(full.admit(&states[0], &grown).is_err());
    // While the patch is under way, it may be in `used` already.
    states[0].work.start(1);
    let full = node(&view, &states, true);
    assert_eq!(full.admit(&states[0], &grown), Ok(()));
}

fn no_terms() -> Terms {
    Terms {
        container: "app".into(),
        memory: None,
        not_higher: None,
        for_pod: false,
        cpu: None,
        evidence: None,
    }
}

/// The pod of this state, which the guard watches with these terms.
fn guarded(state: &PodState, terms: Terms) -> GuardedPod {
    GuardedPod {
        live: Arc::new(LivePod {
            id: state.pod.id_with("a"),
            path: CgroupPath::new("/kubepods/poda").unwrap(),
            containers: <_>::default(),
        }),
        growable: Growable {
            pod: Arc::clone(&state.pod),
            targets: state.pod.requirements(),
        },
        containers: vec![terms],
    }
}

#[test]
fn the_guard_grows_limits_within_what_a_quota_leaves() {
    let view = view();
    let states = states(&view);
    let terms = Terms {
        memory: Some(Bytes::new(8192 * MI)),
        ..no_terms()
    };
    let mut guarded = guarded(&states[0], terms);
    node(&view, &states, false).bound_growth(&states[0], &mut guarded);
    assert_eq!(
        guarded.containers[0].memory,
        Some(Bytes::new(150 * MI)),
        "half of what is left"
    );
    let why = guarded.containers[0].not_higher.as_deref().unwrap_or_default();
    assert!(why.contains("no more than 150Mi"), "{why}");
}

#[test]
fn cpu_limits_grow_within_a_quota_as_well() {
    let manifests = r#"
{kind: Pod, metadata: {name: a, namespace: shop, uid: a}, spec: {containers: [{name: app, resources: {limits: {cpu: "1"}}}]}}
---
{kind: ResourceQuota, metadata: {name: team, namespace: shop}, spec: {hard: {limits.cpu: "3"}},
 status: {hard: {limits.cpu: "3"}, used: {limits.cpu: "1"}}}
"#;
    let view = parse_manifests("shop", manifests).unwrap().view;
    let states = states(&view);
    for (ceiling, bounded) in [(4000, 3000), (2000, 2000)] {
        let cpu = CpuTerms {
            limit: MilliCpu::new(1000),
            ceiling: MilliCpu::new(ceiling),
            lent: false,
        };
        let mut guarded = guarded(
            &states[0],
            Terms {
                cpu: Some(cpu),
                ..no_terms()
            },
        );
        node(&view, &states, false).bound_growth(&states[0], &mut guarded);
        let cpu = guarded.containers[0].cpu.unwrap();
        assert_eq!((cpu.ceiling, cpu.limit), (MilliCpu::new(bounded), MilliCpu::new(1000)));
    }
}
