//! A memory limit does not come down below what a heap of fixed size needs.

use proptest::prelude::*;

use super::{WEB, decide_one, memory, notes, pod_of, view};
use crate::model::{Bytes, Reason};
use crate::sources::KnownObjects;

const MIB: u64 = 1 << 20;

/// [`WEB`] with these amounts in MiB, and a heap.
fn web(request: u64, limit: u64, target: u64, heap: &str) -> KnownObjects {
    let recommended = [("150Mi", target * 3 / 4), ("200Mi", target), ("400Mi", target * 5 / 4)];
    let manifests = recommended.into_iter().fold(WEB.to_owned(), |manifests, (from, to)| {
        manifests.replace(&format!("memory: {from}"), &format!("memory: {to}Mi"))
    });
    let from = "resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}";
    let to = format!(
        "args: ['{heap}']\n    resources: {{requests: {{cpu: 100m, memory: {request}Mi}}, limits: {{cpu: 300m, memory: {limit}Mi}}}}"
    );
    view(&manifests.replace(from, &to))
}

#[test]
fn request_and_limit_stop_at_the_heap() {
    let decision = decide_one(&web(400, 800, 100, "-Xmx512m"));
    assert_eq!(memory(&decision, "app"), "288Mi/576Mi");
    let notes = notes(&decision);
    assert!(
        notes[0].starts_with("app: -Xmx \"512m\" in args fixes the Java heap"),
        "{notes:?}"
    );
    assert_eq!(
        notes[1],
        "app: memory request 100Mi becomes 288Mi: the memory limit keeps room for the container's fixed heap"
    );
}

#[test]
fn a_limit_that_is_too_low_already_stays() {
    let decision = decide_one(&web(400, 560, 100, "-Xmx512m"));
    assert_eq!(memory(&decision, "app"), "400Mi/560Mi");
}

#[test]
fn growth_is_not_held_up() {
    let decision = decide_one(&web(300, 600, 390, "-Xmx512m"));
    assert_eq!(memory(&decision, "app"), "390Mi/780Mi");
}

#[test]
fn a_share_of_the_limit_holds_nothing_up() {
    let decision = decide_one(&web(400, 800, 100, "-XX:MaxRAMPercentage=75"));
    assert_eq!(memory(&decision, "app"), "100Mi/200Mi");
}

#[test]
fn requests_only_leaves_requests_free() {
    let mut view = web(400, 800, 100, "-Xmx512m");
    let policy = "{containerPolicies: [{containerName: app, controlledValues: RequestsOnly}]}";
    view.vpas[0].spec.resource_policy = serde_saphyr::from_str(policy).unwrap();
    assert_eq!(memory(&decide_one(&view), "app"), "100Mi/800Mi");
}

proptest! {
    #[test]
    fn no_shrink_goes_below_the_heap(
        request in 1_u64..4000, more in 0_u64..4000, target in 1_u64..4000, heap in 1_u64..4000,
    ) {
        let limit = request + more;
        let mut view = web(request, limit, target, &format!("-Xmx{heap}m"));
        // The spec of most pods has been resized before: their amounts are no whole MiB.
        let odd = &mut pod_of(&mut view).spec.containers[0].resources;
        odd.limits.memory = Some(Bytes::new(limit * MIB + 1234));
        let decision = decide_one(&view);
        let becomes = decision.amounts.containers[0].resources.limits.memory.unwrap().get();
        let needed = heap * MIB + (heap * MIB / 10).max(64 * MIB);
        prop_assert!(becomes >= needed.min(limit * MIB + 1234), "{becomes}");
        pod_of(&mut view).spec.containers[0].resources = decision.amounts.containers[0].resources;
        let again = decide_one(&view);
        prop_assert!(matches!(again.reason, Reason::InRange | Reason::TooYoung | Reason::AtTarget), "{again:?}");
    }
}
