//! A tenant who writes whatever may stand in a namespace: pods, owners, annotations, labels and VPAs, made up from a seed.

use serde_json::{Map, Value, json};

/// The namespace that is the tenant's.
pub(crate) const NAMESPACE: &str = "tenant";

/// Annotations that the kubelet, the VPA or the agent reads.
const ANNOTATIONS: [&str; 9] = [
    "kubernetes.io/config.hash",
    "kubernetes.io/config.mirror",
    "kubernetes.io/config.source",
    "vscaled.io/applied",
    "vscaled.io/ignore",
    "vscaled.io/before-shrink",
    "vpaCpuStartupBoost/app",
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.namespace",
];

/// Labels by which runtimes and workloads know pods.
const LABELS: [&str; 5] = [
    "app",
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "pod-template-hash",
];

/// Makes objects up. The same seed makes the same ones.
#[derive(Debug)]
pub(crate) struct Tenant {
    seed: u64,
    /// Names, UIDs and ids of containers that are somebody else's, to be used as one's own.
    stolen: Vec<String>,
    /// Names of pods, workloads and containers to be used again.
    names: Vec<String>,
}

impl Tenant {
    pub(crate) fn new(seed: u64, stolen: &[&str], names: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self {
            seed,
            stolen: owned(stolen),
            names: owned(names),
        }
    }

    /// The next number below `bound` (splitmix64).
    fn below(&mut self, bound: usize) -> usize {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn name(&mut self) -> String {
        let index = self.below(self.names.len());
        self.names[index].clone()
    }

    /// Something of somebody else's, or a word that may mean something.
    fn value(&mut self) -> String {
        let record = r#"{"requests": {"cpu": "1m"}, "limits": {"cpu": "64"}}"#;
        let words = ["true", "false", "api", "{}", "", NAMESPACE, record];
        let index = self.below(self.stolen.len() + words.len());
        let stolen = self.stolen.get(index).cloned();
        stolen.unwrap_or_else(|| words[index - self.stolen.len()].to_owned())
    }

    fn values(&mut self, keys: &[&str]) -> Map<String, Value> {
        let mut values = Map::new();
        for key in keys {
            if self.once_in(2) {
                values.insert((*key).to_owned(), self.value().into());
            }
        }
        values
    }

    fn owners(&mut self) -> Vec<Value> {
        let kinds = [
            ("v1", "Node"),
            ("v1", "Pod"),
            ("apps/v1", "StatefulSet"),
            ("apps/v1", "ReplicaSet"),
            ("apps/v1", "DaemonSet"),
        ];
        let mut owners = Vec::new();
        while owners.len() < 2 && !self.once_in(3) {
            let (version, kind) = kinds[self.below(kinds.len())];
            let (name, uid, controls) = (self.name(), self.value(), self.once_in(2));
            owners.push(json!({
                "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controls,
            }));
        }
        owners
    }

    fn amounts(&mut self) -> Value {
        // Small, so that a node has room for all of them, and what they ask for is not refused for its amount.
        let cpu = format!("{}m", 10 + self.below(290));
        let memory = format!("{}Mi", 8 + self.below(200));
        json!({"cpu": cpu, "memory": memory})
    }

    /// A pod of the tenant's with this UID, which the API server gives out. It is said to run on the node.
    pub(crate) fn pod(&mut self, uid: &str, node: &str) -> Value {
        let (name, container, id) = (self.name(), self.name(), self.value());
        let (labels, annotations, owners) = (self.values(&LABELS), self.values(&ANNOTATIONS), self.owners());
        let amounts = self.amounts();
        let resources = json!({"requests": amounts, "limits": amounts});
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": uid, "generation": 1, "labels": labels,
                "annotations": annotations, "ownerReferences": owners,
            },
            "spec": {"nodeName": node, "containers": [{"name": container, "resources": resources}]},
            "status": {
                "phase": "Running", "observedGeneration": 1, "conditions": [],
                "containerStatuses": [{
                    "name": container, "containerID": format!("containerd://{id}"), "ready": true, "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    "resources": resources, "allocatedResources": amounts,
                }],
            },
        })
    }

    /// The same, so that a VPA for this workload, which selects `app: web`, is for it and its container `app`.
    pub(crate) fn pod_of(&mut self, uid: &str, node: &str, kind: &str, workload: &str) -> Value {
        let mut pod = self.pod(uid, node);
        pod["metadata"]["labels"]["app"] = "web".into();
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": workload, "uid": "o", "controller": true}]);
        for container in ["/spec/containers/0/name", "/status/containerStatuses/0/name"] {
            *pod.pointer_mut(container).unwrap() = "app".into();
        }
        pod
    }

    /// A VPA of the tenant's, for whatever has this name.
    pub(crate) fn vpa(&mut self) -> Value {
        let kinds = ["StatefulSet", "Deployment", "DaemonSet", "ReplicaSet"];
        let kind = kinds[self.below(kinds.len())];
        let (name, target, container, amounts) = (self.name(), self.name(), self.name(), self.amounts());
        let annotations = self.values(&["vscaled.io/act", "vscaled.io/canary"]);
        let boost = json!({"cpu": {"type": "Factor", "factor": 1 + self.below(100)}});
        json!({
            "apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": kind, "name": target},
                "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
                "startupBoost": if self.once_in(2) { boost } else { Value::Null },
            },
            "status": {"recommendation": {"containerRecommendations": [
                {"containerName": container, "target": amounts, "lowerBound": amounts, "upperBound": amounts},
            ]}},
        })
    }

    /// A workload of the tenant's.
    pub(crate) fn workload(&mut self, kind: &str) -> Value {
        let (name, owners, app) = (self.name(), self.owners(), self.value());
        json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": "o", "ownerReferences": owners},
            "spec": {"selector": {"matchLabels": {"app": app}}},
        })
    }
}
