//! What a pod's status shows of its kubelet: whether it resizes in place, what it has granted so far, and so how much of the node the
//! pod takes. Pure.
//!
//! A kubelet that resizes reports the resources of every container that it has started in the pod's status (`resources`). A
//! new pod has no such status for a moment. If other facts say that the kubelet resizes, the agent waits for the status
//! before it writes.

use std::borrow::Borrow;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::model::objects::{ContainerStatus, Pod, ResizePhase, annotation};
use crate::model::{KubeletVersion, NamedRequirements, PodAmounts, Requirements, Resource, ResourceList};
use crate::plan::{NoRoom, Room, larger, pod_requests};

/// If a container has run for this long without `resources` in its status, its kubelet does not resize. A kubelet reports
/// within seconds of the start.
const REPORTED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// The evidence of a node's version and pods about its kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSupport {
    version: Option<KubeletVersion>,
    /// None if neither the version nor a pod answers that.
    resizes: Option<bool>,
    /// When the kubelet was upgraded while its pods ran.
    upgraded: Option<Timestamp>,
}

impl NodeSupport {
    /// Combines the kubelet's version and the statuses of the node's pods. Without either, a kubelet does not resize. A kubelet
    /// that was `upgraded` while its pods ran has to report those pods anew.
    pub fn of<P: Borrow<Pod>>(
        mut pods: impl Iterator<Item = P> + Clone,
        version: Option<KubeletVersion>,
        upgraded: Option<Timestamp>,
        now: Timestamp,
    ) -> Self {
        let reported = pods.clone().any(|pod| pod.borrow().resizes_in_place());
        let unreported = |pod: P| reported_by(pod.borrow(), upgraded).is_some_and(|at| at <= now);
        let resizes = match version {
            _ if reported => Some(true),
            Some(version) if version >= KubeletVersion::ALWAYS_RESIZES => Some(true),
            Some(version) if version >= KubeletVersion::RESIZES_BY_DEFAULT => pods.any(unreported).then_some(false),
            Some(_) | None => Some(false),
        };
        Self {
            version,
            resizes,
            upgraded,
        }
    }

    /// Whether the kubelet resizes this pod, or may do so: the pod's status does not show it yet.
    pub fn may_resize(&self, pod: &Pod, now: Timestamp) -> bool {
        // Every API server whose kubelets resize counts the generations of a spec. A pod without one is from a manifest.
        let at_the_api_server =
            pod.metadata.generation > 0 && !pod.metadata.annotations.contains_key(annotation::MIRROR);
        let is_late = || self.reports_until(pod).is_some_and(|until| until <= now);
        pod.resizes_in_place() || at_the_api_server && self.resizes != Some(false) && !is_late()
    }

    /// Why the agent waits until the pod's status shows that the kubelet resizes it, as a sentence, and for how long at most: for ever if
    /// the kubelet certainly resizes. `None` once the status shows it.
    pub fn unreported(&self, pod: &Pod, now: Timestamp) -> Option<(String, Option<Duration>)> {
        if pod.resizes_in_place() {
            return None;
        }
        let until = self.reports_until(pod);
        let version = self.version.map_or_else(String::new, |version| format!(" ({version})"));
        let or_until = until.map_or_else(String::new, |until| {
            format!(", or until {until:.0}: a kubelet that reports none by then has resizing in place switched off")
        });
        let why = format!(
            "waits until its kubelet{version} reports the containers' resources in the pod's status, and so takes resizes \
             through pods/resize{or_until}"
        );
        let wait = until.and_then(|until| Duration::try_from(until.duration_since(now)).ok());
        Some((why, wait))
    }

    /// The time by which a kubelet that resizes has reported the pod. `None` if the kubelet certainly resizes, or nothing runs yet.
    fn reports_until(&self, pod: &Pod) -> Option<Timestamp> {
        let is_certain = self.version >= Some(KubeletVersion::ALWAYS_RESIZES);
        reported_by(pod, self.upgraded).filter(|_| !is_certain)
    }
}

/// The time by which a kubelet that resizes has reported the resources of the pod's running containers.
fn reported_by(pod: &Pod, upgraded: Option<Timestamp>) -> Option<Timestamp> {
    let started = |status: &ContainerStatus| status.state.running.as_ref()?.started_at;
    let statuses = pod.status.container_statuses.iter();
    let unreported = statuses.filter(|status| status.resources.is_none());
    let started = unreported.filter_map(started).min()?;
    let started = upgraded.map_or(started, |upgraded| started.max(upgraded));
    Some(started.checked_add(REPORTED_WITHIN).unwrap_or(Timestamp::MAX))
}

/// The kubelet's grant to the containers: the spec once the kubelet has allocated that. Before, and if it could not
/// write the spec, the amounts `held` at the time of the request, or else those that the kubelet reports.
pub fn granted(pod: &Pod, phase: &ResizePhase, held: Option<&PodAmounts>) -> PodAmounts {
    match (phase, held) {
        (ResizePhase::InProgress | ResizePhase::Settled, _) => pod.requirements(),
        (_, Some(held)) => pod.with_requirements(held).requirements(),
        (_, None) => reported(pod),
    }
}

/// Whether a memory limit comes down from the granted amounts to the wanted ones.
pub(super) fn lowers_memory(granted: &PodAmounts, wanted: &PodAmounts) -> bool {
    granted.iter().any(|(of, has)| {
        let wanted = wanted.get(of).and_then(|wanted| wanted.limits.nonzero().memory);
        wanted.is_some() && wanted < has.limits.memory
    })
}

/// The kubelet's report: allocated requests, and limits in force. Takes the spec's amounts where it reports nothing.
/// The fast path may have changed the limits in force.
fn reported(pod: &Pod) -> PodAmounts {
    let mut all = pod.requirements();
    if let (Some(own), Some(in_force)) = (&mut all.pod, &pod.status.resources) {
        **own = without_overhead(in_force, &pod.spec.overhead).or(**own);
    }
    for NamedRequirements { name, resources } in &mut all.containers {
        let Some(status) = pod.container_status(name) else {
            continue;
        };
        *resources = status.resources.unwrap_or(*resources);
        resources.requests = status.allocated_resources.unwrap_or(resources.requests);
    }
    all
}

/// The pod's own amounts among those `in_force`. The kubelet reads limits and the cpu request from the pod's cgroup, which has the
/// overhead too (`convertToAPIPodLevelResourcesStatus`, kubernetes `pkg/kubelet`).
fn without_overhead(in_force: &Requirements, overhead: &ResourceList) -> Requirements {
    let own = |list: &ResourceList, resource: Resource| {
        let amount = list.get(resource)?;
        Some(amount.saturating_sub(overhead.amount(resource)))
    };
    let limits = ResourceList::from_fn(|resource| own(&in_force.limits, resource));
    let mut requests = in_force.requests;
    requests.set(Resource::Cpu, own(&requests, Resource::Cpu));
    Requirements { requests, limits }
}

/// Whether the node has room for a pod with the `wanted` amounts, beyond the amounts allocated to the pod.
///
/// Errors: [`NoRoom`] with the numbers, for the first resource that does not fit.
pub fn check_room(room: &Room, pod: &Pod, wanted: &PodAmounts, kubelet: KubeletVersion) -> Result<(), NoRoom> {
    room.check(allocated(pod, kubelet), pod_requests(pod, wanted, kubelet))
}

/// Whether a pod would take more of its node with the `wanted` amounts than the kubelet has allocated to the pod.
pub(super) fn grows(pod: &Pod, wanted: &PodAmounts, kubelet: KubeletVersion) -> bool {
    let before = allocated(pod, kubelet);
    let after = pod_requests(pod, wanted, kubelet);
    let grows = |resource| after.amount(resource) > before.amount(resource);
    Resource::ALL.into_iter().any(grows)
}

/// The amounts that the kubelet has allocated to a pod, according to the pod's status.
fn allocated(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    pod_requests(pod, &granted(pod, &ResizePhase::of(pod), None), kubelet)
}

/// The amounts that a pod takes of its node: the allocated ones, and until the kubelet has answered those of the spec.
/// A resize that waits for room takes none.
pub fn reserved(pod: &Pod, kubelet: KubeletVersion) -> ResourceList {
    let allocated = allocated(pod, kubelet);
    match ResizePhase::of(pod) {
        ResizePhase::Accepted => larger(allocated, pod_requests(pod, PodAmounts::NONE, kubelet)),
        ResizePhase::Withheld(_) | ResizePhase::InProgress | ResizePhase::Settled => allocated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::{ContainerState, Running};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    #[test]
    fn a_limit_of_zero_lowers_no_memory() {
        let limited = |memory: &str| -> PodAmounts {
            serde_json::from_str(&format!(r#"[{{"name":"app","limits":{{"memory":"{memory}"}}}}]"#)).unwrap()
        };
        assert!(lowers_memory(&limited("2Gi"), &limited("1Gi")));
        assert!(!lowers_memory(&limited("1Gi"), &limited("0")));
    }

    /// A pod from an API server whose container started at zero, without resources in its status.
    fn unreported() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.generation = 1;
        let running = Running {
            started_at: Some(at(0)),
        };
        pod.status.container_statuses = vec![ContainerStatus {
            state: ContainerState {
                running: Some(running),
                ..ContainerState::default()
            },
            ..ContainerStatus::default()
        }];
        pod
    }

    fn reported() -> Pod {
        let mut pod = unreported();
        pod.status.container_statuses[0].resources = Some(Requirements::default());
        pod
    }

    /// What is known of a node with these pods and this kubelet.
    fn node(pods: &[&Pod], version: Option<u32>, now: i64) -> NodeSupport {
        NodeSupport::of(pods.iter().copied(), version.map(KubeletVersion), None, at(now))
    }

    /// Whether a pod may be resized now, and until when it waits for that, if it does.
    fn support(node: &NodeSupport, pod: &Pod, now: i64) -> (bool, Option<Option<i64>>) {
        let waits = node.unreported(pod, at(now)).map(|(_, wait)| wait);
        let until = |wait: Option<Duration>| wait.map(|wait| now + wait.as_secs().cast_signed());
        (node.may_resize(pod, at(now)), waits.map(until))
    }

    #[test]
    fn a_resizing_kubelet_is_awaited_for_ever() {
        for (version, now) in [(35, 1), (36, 86_400)] {
            let pod = unreported();
            let node = node(&[&pod], Some(version), now);
            assert_eq!(support(&node, &pod, now), (true, Some(None)), "{version}");
        }
        let pod = reported();
        assert_eq!(support(&node(&[&pod], Some(36), 1), &pod, 1), (true, None));
    }

    #[test]
    fn a_gated_kubelet_is_awaited_a_minute() {
        let pod = unreported();
        assert_eq!(support(&node(&[&pod], Some(33), 1), &pod, 1), (true, Some(Some(60))));
        assert!(!node(&[&pod], Some(34), 60).may_resize(&pod, at(60)));
        let mut pending = unreported();
        pending.status.container_statuses[0].state = ContainerState::default();
        let alone = node(&[&pending], Some(34), 1);
        assert_eq!(support(&alone, &pending, 1), (true, Some(None)), "nothing runs yet");
        // One pod that was never reported tells for all of them.
        assert!(!node(&[&pod, &pending], Some(34), 60).may_resize(&pending, at(60)));
    }

    #[test]
    fn an_upgraded_kubelet_is_awaited_from_then() {
        let pod = unreported();
        let node = |now| NodeSupport::of([&pod].into_iter(), Some(KubeletVersion(34)), Some(at(86_400)), at(now));
        assert_eq!(support(&node(86_400), &pod, 86_400), (true, Some(Some(86_460))));
        assert!(!node(86_460).may_resize(&pod, at(86_460)));
    }

    #[test]
    fn one_reported_pod_tells_for_its_node() {
        let (pod, other) = (unreported(), reported());
        for version in [None, Some(32)] {
            assert!(!node(&[&pod], version, 1).may_resize(&pod, at(1)), "{version:?}");
        }
        for version in [None, Some(34)] {
            let node = node(&[&other, &pod], version, 1);
            assert_eq!(support(&node, &pod, 1), (true, Some(Some(60))), "{version:?}");
        }
    }

    #[test]
    fn a_reported_pod_level_has_no_overhead() {
        let amounts = |cpu: &str, memory: &str| -> Requirements {
            let list = format!(r#"{{"cpu": "{cpu}", "memory": "{memory}"}}"#);
            serde_json::from_str(&format!(r#"{{"requests": {list}, "limits": {list}}}"#)).unwrap()
        };
        let mut pod = Pod::default();
        pod.spec.overhead = amounts("250m", "120Mi").limits;
        pod.spec.resources = Some(amounts("2", "2Gi"));
        let mut in_force = amounts("1250m", "1144Mi");
        in_force.requests = amounts("1250m", "1Gi").requests;
        pod.status.resources = Some(in_force);
        let granted = granted(&pod, &ResizePhase::Accepted, None);
        assert_eq!(granted.pod.as_deref(), Some(&amounts("1", "1Gi")));
    }

    #[test]
    fn a_mirror_pod_is_not_waited_for() {
        let mut manifest = unreported();
        manifest.metadata.generation = 0;
        let mut mirror = unreported();
        mirror
            .metadata
            .annotations
            .insert(annotation::MIRROR.to_owned(), "hash".to_owned());
        for pod in [manifest, mirror] {
            assert!(!node(&[&reported(), &pod], Some(36), 1).may_resize(&pod, at(1)));
        }
    }
}
