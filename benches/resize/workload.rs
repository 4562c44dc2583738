//! Pods of one ReplicaSet and their VPA: as manifests, and as cgroups without processes.

use serde_json::{Value, json};

use crate::support::tree::CgroupTree;

/// The factors of the requests, one for each recommendation: up and down, never the same twice.
const FACTORS: [u32; 4] = [2, 4, 3, 6];
/// Requests before the first recommendation; limits are twice as high.
const CPU_MILLI: u32 = 50;
const MEMORY_MI: u32 = 32;

/// Identical pods.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) uids: Vec<String>,
    containers: Vec<String>,
}

impl Workload {
    /// `pods` pods of `containers` containers each.
    pub(crate) fn new(pods: usize, containers: usize) -> Self {
        Self {
            uids: (0..pods)
                .map(|pod| format!("0a1b2c3d-0000-4000-8000-{pod:012x}"))
                .collect(),
            containers: (0..containers).map(|container| format!("c{container}")).collect(),
        }
    }

    /// Creates the cgroups of all pods and containers below `kubepods`.
    pub(crate) fn make_cgroups(&self, tree: &CgroupTree) {
        for (pod, uid) in self.uids.iter().enumerate() {
            for container in 0..self.containers.len() {
                tree.make(&format!("kubepods/burstable/pod{uid}/{}", id(pod, container)));
            }
        }
    }

    /// The pods and their owner. The status has the containers' ids, because the agent has no runtime.
    pub(crate) fn pods(&self) -> String {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "test"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}}});
        let pods = self.uids.iter().enumerate().map(|(pod, uid)| self.pod(pod, uid));
        let documents: Vec<String> = std::iter::once(owner).chain(pods).map(|one| one.to_string()).collect();
        documents.join("\n---\n")
    }

    fn pod(&self, pod: usize, uid: &str) -> Value {
        let containers = self.containers.iter().map(|name| {
            json!({"name": name, "resources": {
                "requests": {"cpu": format!("{CPU_MILLI}m"), "memory": format!("{MEMORY_MI}Mi")},
                "limits": {"cpu": format!("{}m", 2 * CPU_MILLI), "memory": format!("{}Mi", 2 * MEMORY_MI)}}})
        });
        let statuses = self.containers.iter().enumerate().map(
            |(container, name)| json!({"name": name, "containerID": format!("containerd://{}", id(pod, container))}),
        );
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("web-{pod}"), "namespace": "test", "uid": uid, "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true}]},
            "spec": {"containers": containers.collect::<Vec<_>>()},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "containerStatuses": statuses.collect::<Vec<_>>()}})
    }

    /// Whether a round recommends more than the one before.
    pub(crate) const fn raises(round: usize) -> bool {
        let before = FACTORS[(round + FACTORS.len() - 1) % FACTORS.len()];
        FACTORS[round % FACTORS.len()] > before
    }

    /// The VPA with the recommendation of that round. Each recommendation is outside of the bounds of the one before,
    /// so the agent acts at once.
    pub(crate) fn recommendation(&self, round: usize) -> String {
        let factor = FACTORS[round % FACTORS.len()];
        let (cpu, memory) = (CPU_MILLI * factor, MEMORY_MI * factor);
        let amounts = |cpu: u32, memory: u32| json!({"cpu": format!("{cpu}m"), "memory": format!("{memory}Mi")});
        let recommended = self.containers.iter().map(|name| {
            json!({"containerName": name, "target": amounts(cpu, memory),
                "lowerBound": amounts(cpu - 1, memory - 1), "upperBound": amounts(cpu + 1, memory + 1)})
        });
        let vpa = json!({"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
            "metadata": {"name": "web", "namespace": "test"},
            "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"},
                "updatePolicy": {"updateMode": "InPlaceOrRecreate"}},
            "status": {"recommendation": {"containerRecommendations": recommended.collect::<Vec<_>>()}}});
        vpa.to_string()
    }
}

/// A container id like those of runtimes, of 64 hexadecimal digits.
fn id(pod: usize, container: usize) -> String {
    format!("{pod:032x}{container:032x}")
}
