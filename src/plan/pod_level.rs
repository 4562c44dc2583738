//! Finds a pod whose cgroup has a lower memory limit than its containers need. Pure.
//!
//! If a kubelet resizes a pod while one of its containers does not run, it leaves that container out of the pod's limit
//! (`updatePodContainersResources`, `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, up to 1.36.3). A container that was
//! killed for want of memory then starts with its new limit in a pod that still has the old one, and is killed again
//! (kubernetes/kubernetes#138760).

use super::hierarchy::in_force;
use crate::model::objects::{Pod, ResizePhase};
use crate::model::{Bytes, PageSize, PodTree, Resource};

/// A pod whose cgroup allows less memory than its containers' cgroups do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display("the pod's cgroup allows {holds} of memory, its containers' cgroups {needs} together")]
pub struct LowPodLevel {
    /// The limit of the pod's cgroup, in bytes.
    pub holds: Bytes,
    /// The sum of the containers' limits, in bytes.
    pub needs: Bytes,
}

impl LowPodLevel {
    /// Compares the pod's cgroup with those of its containers. `None` if the pod may use what its containers may, or
    /// if a container is unbounded.
    ///
    /// No container counts with more than its spec or its status says, so a limit that another process wrote into a cgroup
    /// raises no other. A container that does not run counts with what the kubelet has granted, if that is known. The pod's own
    /// declared limit bounds the sum. While a resize of a pod whose containers all run is under way, its levels are written one
    /// after the other, and differ for a moment. Amounts count in whole pages, as the kernel keeps limits.
    pub fn find(pod: &Pod, held: &PodTree, page: PageSize) -> Option<Self> {
        let holds = held.pod.memory_bytes()?;
        let in_force = in_force(pod);
        let phase = ResizePhase::of(pod);
        let settled = phase == ResizePhase::Settled;
        let mut running = pod.running_containers();
        if matches!(phase, ResizePhase::Accepted | ResizePhase::InProgress)
            && running.all(|container| held.containers.contains_key(&*container.name))
        {
            return None;
        }
        let mut needs = Bytes::ZERO;
        for container in pod.running_containers() {
            let spec = container.resources.limits.memory;
            let reported = in_force.limit(&container.name, Resource::Memory).map(Bytes::new);
            let own = match held.containers.get(&*container.name) {
                Some(settings) => settings.memory_bytes()?.min(spec.max(reported)?),
                None => reported.or(spec.filter(|_| settled)).unwrap_or(Bytes::ZERO),
            };
            needs = needs.saturating_add(page.round_down(own));
        }
        let own = pod.spec.resources.and_then(|resources| resources.limits.memory);
        let needs = own.map_or(needs, |own| needs.min(page.round_down(own)));
        (holds < needs).then(|| Self {
            holds,
            needs: needs.saturating_add(pod.spec.overhead.memory.unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{MemoryLimit, Setting, Settings};

    const MIB: u64 = 1 << 20;

    fn limit(mib: u64) -> Settings {
        [Setting::MemoryMax(MemoryLimit::Bytes(mib * MIB))]
            .into_iter()
            .collect()
    }

    fn pod(text: &str) -> Pod {
        serde_json::from_str(text).unwrap()
    }

    /// A pod of `app` with this limit and `side` with 64Mi, as a kubelet that is done with it describes it.
    fn two(app: &str) -> Pod {
        pod(&format!(
            r#"{{"metadata": {{"name": "web", "namespace": "a", "generation": 2}}, "spec": {{"containers": [
                {{"name": "app", "resources": {{"limits": {{"memory": "{app}"}}}}}},
                {{"name": "side", "resources": {{"limits": {{"memory": "64Mi"}}}}}}]}},
              "status": {{"observedGeneration": 2}}}}"#
        ))
    }

    fn held(pod: u64, containers: &[(&str, u64)]) -> PodTree {
        PodTree {
            pod: limit(pod),
            containers: containers
                .iter()
                .map(|(name, mib)| ((*name).into(), limit(*mib)))
                .collect(),
        }
    }

    #[test]
    fn levels_amid_a_resize_are_not_low() {
        let mut pod = two("128Mi");
        let (low, restarting) = (held(96, &[("app", 128), ("side", 64)]), held(96, &[("side", 64)]));
        assert_eq!(needs(&pod, &low), Some(192));
        pod.status.observed_generation = 1;
        assert_eq!(needs(&pod, &low), None, "the kubelet has not answered yet");
        pod.status.container_statuses =
            serde_json::from_str(r#"[{"name": "app", "resources": {"limits": {"memory": "128Mi"}}}]"#).unwrap();
        assert_eq!(
            needs(&pod, &restarting),
            Some(192),
            "a container that does not run is left out of the limit"
        );
    }

    fn needs(pod: &Pod, held: &PodTree) -> Option<u64> {
        LowPodLevel::find(pod, held, PageSize::KIB_4).map(|low| low.needs.get() / MIB)
    }

    #[test]
    fn limits_between_pages_are_not_low() {
        let limit =
            |bytes| Settings::from_iter([Setting::MemoryMax(MemoryLimit::Bytes(bytes)).in_pages(PageSize::KIB_4)]);
        let mut pod = two("500M");
        let mut levels = held(0, &[("side", 64)]);
        levels.pod = limit(500_000_000 + 64 * MIB);
        assert_eq!(needs(&pod, &levels), None, "one waits to be started again");
        let own: crate::model::Requirements = serde_json::from_str(r#"{"limits": {"memory": "500M"}}"#).unwrap();
        pod.spec.resources = Some(own);
        levels.pod = limit(500_000_000);
        levels.containers.insert("app".into(), limit(500_000_000));
        assert_eq!(needs(&pod, &levels), None, "the pod's own limit");
        levels.pod = limit(499_000_000);
        assert_eq!(needs(&pod, &levels), Some(500_000_000 / MIB));
    }

    #[test]
    fn a_pod_below_its_containers_is_low() {
        let pod = two("512Mi");
        assert_eq!(needs(&pod, &held(576, &[("app", 512), ("side", 64)])), None);
        assert_eq!(needs(&pod, &held(128, &[("app", 512), ("side", 64)])), Some(576));
        assert_eq!(
            needs(&pod, &held(128, &[("side", 64)])),
            Some(576),
            "one waits to be started again"
        );
        assert_eq!(
            needs(&pod, &held(128, &[("app", 64), ("side", 64)])),
            None,
            "not grown yet"
        );
    }

    #[test]
    fn a_foreign_limit_raises_no_other() {
        let pod = two("64Mi");
        assert_eq!(needs(&pod, &held(128, &[("app", 4096), ("side", 64)])), None);
        let mut unbounded = held(128, &[("side", 64)]);
        let max = [Setting::MemoryMax(MemoryLimit::Max)].into_iter().collect();
        unbounded.containers.insert("app".into(), max);
        assert_eq!(needs(&pod, &unbounded), None);
    }

    #[test]
    fn ungranted_amounts_do_not_count() {
        let mut pod = two("512Mi");
        pod.metadata.generation = 3;
        assert_eq!(needs(&pod, &held(128, &[("side", 64)])), None);
    }

    #[test]
    fn only_a_resize_that_moves_hides_levels() {
        let low = held(96, &[("app", 128), ("side", 64)]);
        for (kind, reason, expected) in [
            ("PodResizeInProgress", "", None),
            ("PodResizeInProgress", "Error", Some(192)),
            ("PodResizePending", "Deferred", Some(192)),
        ] {
            let mut pod = two("128Mi");
            let condition = json!({"type": kind, "status": "True", "reason": reason, "observedGeneration": 2});
            pod.status.conditions = serde_json::from_value(json!([condition])).unwrap();
            assert_eq!(needs(&pod, &low), expected, "{kind} {reason}");
        }
    }

    #[test]
    fn a_reported_limit_and_the_overhead_count() {
        let containers = [("app", 512), ("side", 64)];
        let mut pod = two("128Mi");
        assert_eq!(needs(&pod, &held(128, &containers)), Some(192));
        let reported = json!([{"name": "app", "resources": {"limits": {"memory": "512Mi"}}}]);
        pod.status.container_statuses = serde_json::from_value(reported).unwrap();
        assert_eq!(needs(&pod, &held(192, &containers)), Some(576), "not lowered yet");
        pod.spec.overhead.memory = Some(Bytes::new(8 * MIB));
        assert_eq!(needs(&pod, &held(575, &containers)), Some(584));
        assert_eq!(needs(&pod, &held(576, &containers)), None);
    }

    #[test]
    fn a_pods_own_limit_is_never_exceeded() {
        let mut pod = two("512Mi");
        let own: crate::model::Requirements = serde_json::from_str(r#"{"limits": {"memory": "256Mi"}}"#).unwrap();
        pod.spec.resources = Some(own);
        let containers = [("app", 512), ("side", 64)];
        assert_eq!(needs(&pod, &held(128, &containers)), Some(256));
        assert_eq!(needs(&pod, &held(256, &containers)), None);
    }
}
