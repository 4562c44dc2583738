//! What the kubelet's static managers have assigned to a pod stays.

use super::*;
use crate::decide::StaticManagers;
use crate::model::{Action, QosClass, Reason};

const CPU: StaticManagers = StaticManagers {
    cpu: true,
    memory: false,
};
const BOTH: StaticManagers = StaticManagers {
    cpu: true,
    memory: true,
};

/// [`WEB`] in the Guaranteed class, with so much cpu.
fn guaranteed(cpu: &str) -> NodeView {
    let amounts = format!("{{cpu: {cpu}, memory: 100Mi}}");
    let manifests = WEB.replace(
        "{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 300m, memory: 300Mi}}",
        &format!("{{requests: {amounts}, limits: {amounts}}}"),
    );
    let mut view = view(&manifests);
    pod_of(&mut view).status.qos_class = Some(QosClass::Guaranteed);
    view
}

fn decided(view: &NodeView, managers: StaticManagers) -> PodDecision {
    let options = Options {
        managers,
        ..Options::default()
    };
    decide(&view.pods, &index(view), now(), &options).remove(0)
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
fn a_pod_with_processors_and_memory_of_its_own_is_skipped() {
    let decision = decided(&guaranteed("2"), BOTH);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::StaticallyAssigned)
    );
}

#[test]
fn pods_that_share_processors_are_resized() {
    for (view, managers) in [
        (guaranteed("2"), StaticManagers::default()),
        (guaranteed("1500m"), CPU),
        (view(WEB), BOTH),
    ] {
        let decision = decided(&view, managers);
        assert_eq!(decision.action(), Action::Resize);
        assert!(cpu(&decision, "app").starts_with("200m/"), "{decision:?}");
    }
}
