//! No namespace changes what another one's pods get.

use proptest::prelude::*;

use super::arbitrary::{anything, sensible};
use super::*;

/// The same objects in another namespace.
fn moved(mut view: KnownObjects, namespace: &str) -> KnownObjects {
    for pod in &mut view.pods {
        namespace.clone_into(&mut Arc::make_mut(pod).metadata.namespace);
    }
    let owners = view.owners.iter_mut().map(|owner| &mut owner.metadata);
    let vpas = view.vpas.iter_mut().map(|vpa| &mut vpa.metadata);
    let hpas = view.hpas.iter_mut().map(|hpa| &mut hpa.metadata);
    let ranges = view.limit_ranges.iter_mut().map(|range| &mut range.metadata);
    for metadata in owners.chain(vpas).chain(hpas).chain(ranges) {
        namespace.clone_into(&mut metadata.namespace);
    }
    view
}

/// Both lists, one after the other.
fn joined<T>(mut first: Vec<T>, mut second: Vec<T>, swapped: bool) -> Vec<T> {
    if swapped {
        std::mem::swap(&mut first, &mut second);
    }
    first.extend(second);
    first
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn other_namespaces_change_no_decision(
        honest in sensible(), hostile in prop::collection::vec(prop_oneof![anything(), sensible()], 1..3), swapped in any::<bool>(),
    ) {
        let alone = decide_all(&honest);
        let mut both = honest.clone();
        for hostile in hostile {
            // The names of all objects are the same as those of the honest namespace.
            let hostile = moved(hostile, "hostile");
            both.pods = joined(both.pods, hostile.pods, swapped);
            both.owners = joined(both.owners, hostile.owners, swapped);
            both.vpas = joined(both.vpas, hostile.vpas, swapped);
            both.hpas = joined(both.hpas, hostile.hpas, swapped);
            both.limit_ranges = joined(both.limit_ranges, hostile.limit_ranges, swapped);
        }
        let decided = decide_all(&both);
        let beside = both.pods.iter().zip(decided).filter(|(pod, _)| pod.metadata.namespace != "hostile");
        prop_assert_eq!(beside.map(|(_, decision)| decision).collect::<Vec<_>>(), alone);
    }
}

#[test]
fn a_thousand_vpas_leave_a_few_notes() {
    let mut view = view(WEB);
    for number in 0..1000 {
        let mut vpa = view.vpas[0].clone();
        vpa.metadata.name = format!("x{number:04}");
        view.vpas.push(vpa);
    }
    let notes = notes(&decide_one(&view));
    assert_eq!(notes.len(), 9, "{notes:?}");
    assert_eq!(notes[8], "and 992 more VerticalPodAutoscalers target it");
}
