//! A tenant who writes arbitrary objects into a namespace, made from a seed: pods, owners, annotations, labels and
//! VPAs.

use serde_json::{Map, Value, json};

/// The tenant's namespace.
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

/// Labels with which runtimes and workloads identify pods.
const LABELS: [&str; 5] = [
    "app",
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "pod-template-hash",
];

/// Generates objects. Equal seeds generate equal objects.
#[derive(Debug)]
pub(crate) struct Tenant {
    seed: u64,
    /// Names, UIDs and container ids of other users, which the tenant uses as its own.
    stolen: Vec<String>,
    /// Names of pods, workloads and containers for later use.
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

    /// A value of another user, or a word with a special meaning.
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
        // Small amounts, so that the node has room for all pods and no amount is refused.
        let cpu = format!("{}m", 10 + self.below(290));
        let memory = format!("{}Mi", 8 + self.below(200));
        json!({"cpu": cpu, "memory": memory})
    }

    /// A pod of the tenant with this UID, which the API server assigns. The pod is bound to the node.
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

    /// Like [`Self::pod`], owned by a workload that selects `app: web`, so that a VPA for the workload covers the
    /// container `app`.
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

    /// A VPA of the tenant for any workload of this name.
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

    /// A workload of the tenant.
    pub(crate) fn workload(&mut self, kind: &str) -> Value {
        let (name, owners, app) = (self.name(), self.owners(), self.value());
        json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": "o", "ownerReferences": owners},
            "spec": {"selector": {"matchLabels": {"app": app}}},
        })
    }
}
