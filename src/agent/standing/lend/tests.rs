use super::*;
use crate::agent::overrides::Override;
use crate::agent::standing::Recommended;
use crate::model::Bytes;
use crate::sources::parse_manifests;

const MIB: u64 = 1 << 20;

const POD: &str = "
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
  - {name: same, resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}}
";

fn pod() -> Pod {
    Pod::clone(&parse_manifests("test", POD).unwrap().view.pods[0])
}

fn lent(container: &str, from: u64, to: u64) -> Lent<'_> {
    Lent {
        container,
        resource: Resource::Memory,
        from: from * MIB,
        to: to * MIB,
        why: String::new(),
        now: Timestamp::UNIX_EPOCH,
    }
}

fn memory_limits(standing: &Standing, pod: &Pod) -> Vec<Option<u64>> {
    let targets = standing.targets(pod).unwrap();
    targets
        .iter()
        .map(|target| target.resources.limits.memory.map(|limit| limit.get() / MIB))
        .collect()
}

#[test]
fn a_loan_lies_over_the_spec_and_ends_in_it() {
    let pod = pod();
    let mut standing = Standing::default();
    standing.lend(lent("app", 128, 200));
    standing.lend(lent("app", 200, 400));
    assert_eq!(memory_limits(&standing, &pod), [Some(400), Some(64)]);
    assert_eq!(standing.leases.len(), 1);
    assert_eq!(standing.leases[0].from, 128 * MIB, "where it began");
    standing.end_lease("app", Resource::Memory);
    assert!(standing.returning);
    assert_eq!(standing.targets(&pod), Some(pod.requirements()));
}

#[test]
fn a_request_that_equals_its_limit_follows_it() {
    let pod = pod();
    let mut standing = Standing::default();
    standing.lend(lent("same", 64, 100));
    let same = standing.targets(&pod).unwrap().remove(1);
    assert_eq!(same.resources.requests.memory, Some(Bytes::new(100 * MIB)));
    assert_eq!(same.resources.limits.memory, Some(Bytes::new(100 * MIB)));
}

#[test]
fn a_recommendation_that_has_caught_up_ends_the_loan() {
    let pod = pod();
    let mut targets = pod.requirements();
    let mut standing = Standing::default();
    standing.lend(lent("app", 128, 200));
    for (limit, ended) in [(199, 0), (200, 1)] {
        targets[0].resources.limits.memory = Some(Bytes::new(limit * MIB));
        standing.recommended = Some(Recommended {
            vpa: Some("web".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            targets: targets.clone(),
        });
        assert_eq!(standing.end_overtaken(&pod).len(), ended, "{limit}");
        assert_eq!(memory_limits(&standing, &pod)[0], Some(200));
    }
    assert!(!standing.returning);
}

#[test]
fn what_an_operator_sets_is_the_operators() {
    let pod = pod();
    let mut standing = Standing::default();
    standing.lend(lent("app", 128, 400));
    standing.lend(lent("same", 64, 100));
    let resources = serde_json::from_str(r#"{"limits":{"memory":"256Mi"}}"#).unwrap();
    let by_hand = Override {
        uid: 0,
        pid: 1,
        reason: String::new(),
        since: Timestamp::UNIX_EPOCH,
        until: None,
        values: vec![NamedRequirements {
            name: "app".to_owned(),
            resources,
        }],
    };
    standing.set_override(&pod, by_hand).unwrap();
    assert_eq!(memory_limits(&standing, &pod), [Some(256), Some(100)]);
    assert!(standing.is_set_by_hand("app", Resource::Memory));
    assert!(!standing.is_set_by_hand("app", Resource::Cpu) && !standing.is_set_by_hand("same", Resource::Memory));
}
