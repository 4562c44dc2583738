//! A hostile tenant beside the honest ones: writes what the API server admits into the tenant's own namespace, in a sequence of
//! its own, so that the same seed draws the same events for the others.

use serde_json::{Value, json};

use super::pods::{NODE, Slot};
use crate::support::apimodel::ApiModel;

const NAMESPACE: &str = "hostile";
/// Objects of each kind at one time.
const MOST: u32 = 24;
/// Moves a terminal's cursor, forges a line, and turns text around.
const TEXT: &str = "\u{1b}[2J\r\nOom: Killed process 1 (init)\u{202e}\u{9b}31m";

#[derive(Debug)]
pub(super) struct Tenant {
    random: fastrand::Rng,
}

impl Tenant {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed ^ 0x7e4a_417d),
        }
    }

    /// Writes or removes an object, in a third of all calls. Returns what.
    pub(super) fn acts(&mut self, api: &ApiModel, slots: &[Slot]) -> Option<String> {
        if self.random.u8(..3) != 0 {
            return None;
        }
        let number = self.random.u32(..MOST);
        let victim = &slots[self.random.usize(..slots.len())];
        let name = format!("{}-{number}", victim.pod.name);
        let metadata = json!({"name": name, "namespace": NAMESPACE, "uid": format!("h-{name}"), "generation": 1});
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": victim.pod.name});
        let (plural, object) = match self.random.u8(..5) {
            0 => ("verticalpodautoscalers", self.fat_vpa(&metadata, &target)),
            1 | 2 => ("pods", self.lying_pod(&metadata, victim)),
            3 => {
                let bounds = json!({"type": "Container", "min": {"memory": "1Ti"}, "max": {"cpu": "1m"}, "default": {"cpu": "1"}});
                let spec = json!({"limits": [bounds, {"type": "Pod", "max": {"memory": "1"}}]});
                ("limitranges", json!({"metadata": metadata, "spec": spec}))
            }
            _ => {
                let metric =
                    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}});
                let spec = json!({"scaleTargetRef": target, "metrics": [metric]});
                ("horizontalpodautoscalers", json!({"metadata": metadata, "spec": spec}))
            }
        };
        let full_name = format!("{NAMESPACE}/{name}");
        if self.random.bool() && api.get(plural, &full_name).is_some() {
            api.remove(plural, &full_name);
            return Some(format!("the tenant removes {plural} {name}"));
        }
        api.put(plural, object);
        Some(format!("the tenant writes {plural} {name}"))
    }

    /// A VPA for an honest workload's name, with long and hostile texts and absurd amounts.
    fn fat_vpa(&mut self, metadata: &Value, target: &Value) -> Value {
        let absurd = ["9223372036854775807", "1m", "0", "100Ei"];
        let recommended = (0..40).map(|number| {
            let name = if number == 0 {
                "app".to_owned()
            } else {
                format!("c{number}")
            };
            let amount = absurd[self.random.usize(..absurd.len())];
            let amounts = json!({"cpu": amount, "memory": amount});
            json!({"containerName": name, "target": amounts, "lowerBound": amounts, "upperBound": amounts})
        });
        let recommended: Vec<Value> = recommended.collect();
        let mut vpa = json!({
            "metadata": metadata,
            "spec": {"targetRef": target, "updatePolicy": {"updateMode": "InPlaceOrRecreate"}},
            "status": {"recommendation": {"containerRecommendations": recommended}},
        });
        vpa["metadata"]["annotations"] =
            json!({"vscaled.io/act": TEXT, "vscaled.io/canary": "x".repeat(4000), "x": "y".repeat(8000)});
        vpa
    }

    /// A pod that claims to be the mirror of an honest one: its UID, its containers and its owners.
    fn lying_pod(&mut self, metadata: &Value, victim: &Slot) -> Value {
        let resources = json!({"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "64", "memory": "1Ti"}});
        let (mut containers, mut statuses) = (Vec::new(), Vec::new());
        for (name, container) in &victim.pod.containers {
            containers.push(json!({"name": name, "image": TEXT, "resources": resources}));
            statuses.push(json!({
                "name": name, "containerID": format!("containerd://{}", container.id), "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "resources": resources,
            }));
        }
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": NODE, "containers": containers, "priority": 2_000_001_000},
            "status": {"phase": "Running", "qosClass": "Burstable", "observedGeneration": 1, "conditions": [], "containerStatuses": statuses},
        });
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{}-rs", victim.pod.name), "uid": "o", "controller": true});
        pod["metadata"]["ownerReferences"] = json!([owner]);
        pod["metadata"]["labels"] = json!({"app": victim.pod.name});
        if self.random.bool() {
            let uid = victim.pod.uid;
            pod["metadata"]["annotations"] = json!({
                "kubernetes.io/config.hash": uid, "kubernetes.io/config.mirror": uid, "vscaled.io/applied": TEXT,
                "vpaCpuStartupBoost/app": "{\"requests\":{\"cpu\":\"1m\"}}",
            });
        }
        pod
    }
}
