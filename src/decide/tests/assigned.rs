//! What the kubelet's static managers have assigned to a pod stays.

use super::*;
use crate::decide::StaticManagers;
use crate::model::{Action, KubeletVersion, QosClass, Reason};

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

fn decided_by(view: &NodeView, managers: StaticManagers, kubelet: u32) -> PodDecision {
    let options = Options {
        managers,
        kubelet: KubeletVersion(kubelet),
        ..Options::default()
    };
    decide(&view.pods, &index(view), now(), &options).remove(0)
}

fn decided(view: &NodeView, managers: StaticManagers) -> PodDecision {
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
fn a_pod_with_processors_and_memory_of_its_own_is_skipped() {
    let decision = decided(&guaranteed("2"), BOTH);
    assert_eq!(
        (decision.action(), decision.reason),
        (Action::Skip, Reason::StaticallyAssigned)
    );
}

#[test]
fn pods_that_share_processors_are_resized() {
    for (view, managers, kubelet) in [
        (guaranteed("2"), StaticManagers::default(), 37),
        (guaranteed("1500m"), CPU, 32),
        (view(WEB), BOTH, 33),
    ] {
        let decision = decided_by(&view, managers, kubelet);
        assert_eq!(decision.action(), Action::Resize);
        assert!(cpu(&decision, "app").starts_with("200m/"), "{decision:?}");
    }
}

#[test]
fn what_the_kubelets_policy_refuses_takes_nothing_else_along() {
    const MEMORY: StaticManagers = StaticManagers {
        cpu: false,
        memory: true,
    };
    for (managers, kubelet, wanted) in [
        (CPU, 34, Ok(["140m/140m", "200Mi/200Mi"])),
        (CPU, 37, Ok(["140m/140m", "200Mi/200Mi"])),
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
