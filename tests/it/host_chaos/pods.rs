//! The pods at the API server and in the kernel, and the kubelet that creates and writes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use vscaled::cgroup::{CgroupDir, Hierarchy};
use vscaled::model::objects::Pod;
use vscaled::model::{CgroupPath, Settings};

use super::action::Size;
use crate::support::amounts::Amounts;
use crate::support::apimodel::{ApiModel, objects};
use crate::support::bare::{BareNode, BarePod};

pub(super) const NODE: &str = "node-1";
pub(super) const CONTAINERS: [&str; 2] = ["app", "side"];
/// The pod in which the kernel kills processes. Its memory limits do not change, because the agent rightly undoes a
/// shrink that precedes a kill.
pub(super) const KILLED: usize = 2;
/// The pod whose override is certain: an operator gets an answer, sends no other request, and the pod is never
/// replaced.
pub(super) const CERTAIN: usize = 1;
/// The pod of the container runtime. The pod stays, and its containers restart. Its memory limits do not change: on
/// cgroup v1 runc limits swap too, and this kubelet, unlike a real one, does not raise the swap limit first.
pub(super) const REAL: usize = 3;
/// The pod that may get temporary memory limits. Its recommended memory does not change, and operators do not touch
/// it, so the limit is the recommended or the temporary one.
pub(super) const GUARDED: usize = 4;
pub(super) const NAMES: [&str; 5] = ["web", "db", "prey", "real", "lent"];
/// The initial amounts of each container.
pub(super) const AT_FIRST: Size = Size { cpu: 150, memory: 64 };

/// The amounts of containers, by name.
pub(super) type Sizes = BTreeMap<&'static str, Amounts>;

/// A sequence of pods with the same name.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: usize,
    pub(super) pod: BarePod,
    /// The number of this pod in the sequence.
    pub(super) incarnation: u32,
    pub(super) recommended: [Size; 2],
    /// The number of foreign writes since the last recommendation.
    pub(super) foreign: u32,
}

impl Slot {
    /// All pods, with the pod of the container runtime.
    pub(super) fn all(node: &mut BareNode, api: &ApiModel, real: &BarePod) -> Vec<Self> {
        announce(api, real);
        let slots = NAMES.into_iter().enumerate().map(|(number, name)| {
            let pod = match number {
                REAL => real.clone(),
                _ => run(node, api, name, number, 0, AT_FIRST),
            };
            Self::new(number, name, pod, api)
        });
        slots.collect()
    }

    fn new(number: usize, name: &'static str, pod: BarePod, api: &ApiModel) -> Self {
        api.put("deployments", objects::workload(name, name, None));
        api.put(
            "replicasets",
            objects::workload(&format!("{name}-rs"), name, Some(name)),
        );
        let recommended = [AT_FIRST; 2];
        api.put("verticalpodautoscalers", vpa(name, recommended));
        Self {
            number,
            pod,
            incarnation: 0,
            recommended,
            foreign: 0,
        }
    }

    pub(super) fn recommend(&mut self, api: &ApiModel, sizes: [Size; 2]) {
        self.recommended = sizes.map(|size| match self.number {
            KILLED | REAL | GUARDED => Size {
                memory: AT_FIRST.memory,
                ..size
            },
            _ => size,
        });
        self.foreign = 0;
        api.put("verticalpodautoscalers", vpa(self.pod.name, self.recommended));
    }

    /// The kubelet restarts a container with the granted amounts.
    pub(super) fn restart(&mut self, node: &mut BareNode, api: &ApiModel, container: &'static str) {
        node.cgroups().remove(&self.pod.containers[container].cgroup);
        node.reap();
        let granted = self.granted(api, container);
        node.run_container(&mut self.pod, container, start_amounts(granted));
        self.restarted(node, api, container);
    }

    /// The amounts that the kubelet has granted a container.
    pub(super) fn granted(&self, api: &ApiModel, container: &str) -> Amounts {
        let object = api.get("pods", &self.pod.full_name()).unwrap();
        let statuses = object["status"]["containerStatuses"].as_array().unwrap();
        let status = statuses.iter().find(|status| status["name"] == container).unwrap();
        granted_in(status)
    }

    /// Handles a restarted container: writes the granted amounts and updates the pod's status, with no sync of the
    /// kubelet in between, which may have granted other amounts since the container started.
    pub(super) fn restarted(&self, node: &BareNode, api: &ApiModel, container: &'static str) {
        let cgroup = &self.pod.containers[container].cgroup;
        let id = format!("containerd://{}", self.pod.containers[container].id);
        api.change("pods", &self.pod.full_name(), |pod| {
            let statuses = pod["status"]["containerStatuses"].as_array_mut().unwrap();
            let status = statuses.iter_mut().find(|status| status["name"] == container).unwrap();
            // The next writer completes values that the pod's cgroup does not permit now, as with a real kubelet.
            for setting in granted_in(status).settings(node.cgroups().version()).iter() {
                node.cgroups().try_put(cgroup, setting);
            }
            status["containerID"] = id.into();
            status["restartCount"] = (status["restartCount"].as_u64().unwrap() + 1).into();
        });
    }

    /// Removes the pod and creates another with the same name.
    pub(super) fn replace(&mut self, node: &mut BareNode, api: &ApiModel) {
        api.remove("pods", &self.pod.full_name());
        node.cgroups().remove(&self.pod.cgroup);
        node.reap();
        self.incarnation += 1;
        self.foreign = 0;
        self.pod = run(node, api, self.pod.name, self.number, self.incarnation, AT_FIRST);
    }

    /// The amounts in the spec.
    pub(super) fn spec(&self, api: &ApiModel) -> Sizes {
        let object = api.get("pods", &self.pod.full_name()).unwrap();
        let containers = object["spec"]["containers"].as_array().unwrap().iter();
        CONTAINERS
            .into_iter()
            .zip(
                containers
                    .map(|container| Amounts::of(&serde_json::from_value(container["resources"].clone()).unwrap())),
            )
            .collect()
    }

    /// Whether the kubelet reports that the pod has the amounts of its spec.
    pub(super) fn is_confirmed(&self, api: &ApiModel) -> bool {
        let object = api.get("pods", &self.pod.full_name()).unwrap();
        let spec = object["spec"]["containers"].as_array().unwrap().iter();
        let statuses = object["status"]["containerStatuses"].as_array().unwrap().iter();
        object["status"]["observedGeneration"] == object["metadata"]["generation"]
            && object["status"]["conditions"].as_array().is_some_and(Vec::is_empty)
            && spec
                .zip(statuses)
                .all(|(spec, status)| spec["resources"] == status["resources"])
    }
}

/// The granted amounts in a container's status.
fn granted_in(status: &Value) -> Amounts {
    Amounts::of(&serde_json::from_value(status["resources"].clone()).unwrap())
}

/// The amounts at a container's start: less cpu than any pod's cgroup permits.
pub(super) fn start_amounts(granted: Amounts) -> Amounts {
    Amounts {
        cpu_limit: Some(10),
        ..granted
    }
}

/// A pod that no writer may change at any level.
pub(super) fn bystander(node: &mut BareNode, api: &ApiModel) -> BarePod {
    run(node, api, "bystander", 9, 0, Size { cpu: 170, memory: 70 })
}

fn run(
    node: &mut BareNode,
    api: &ApiModel,
    name: &'static str,
    number: usize,
    incarnation: u32,
    size: Size,
) -> BarePod {
    let uid = format!("0a1b2c3d-0000-4000-8{number:03x}-{incarnation:012x}");
    let amounts = Amounts::doubled(size.cpu, size.memory);
    let pod = node.run(name, uid.leak(), &CONTAINERS.map(|container| (container, amounts)));
    announce(api, &pod);
    pod
}

fn announce(api: &ApiModel, pod: &BarePod) {
    let replica_set = format!("{}-rs", pod.name);
    api.put("pods", objects::running_pod(pod, pod.name, &replica_set, NODE));
}

/// Writes like the kubelet: the pod before its containers when it grows, and after them when it shrinks.
pub(super) fn kubelet_writes(node: &BareNode, api: &ApiModel) {
    let (kubepods, version) = (node.kubepods(), node.cgroups().version());
    let hierarchy = Hierarchy::discover(None).unwrap();
    let write = move |cgroup: &CgroupPath, settings: &Settings| {
        // A cgroup that is gone, or whose containers hold more, waits for the next sync.
        let Ok(cgroup) = CgroupDir::open(&hierarchy, cgroup) else {
            return;
        };
        for setting in settings.iter() {
            cgroup
                .write(setting)
                .map_or_else(|error| eprintln!("the kubelet: {error}"), drop);
        }
    };
    let sync = move |pod: &Pod| {
        let at = kubepods.child("burstable").unwrap();
        let at = at.child(&format!("pod{}", pod.metadata.uid)).unwrap();
        let all: Vec<_> = pod
            .spec
            .containers
            .iter()
            .map(|container| Amounts::of(&container.resources))
            .collect();
        let whole = Amounts::sum(all.iter().copied()).settings(version);
        write(&at, &whole);
        for (amounts, status) in all.iter().zip(&pod.status.container_statuses) {
            let id = status.container_id.as_str();
            let container = at.child(id.strip_prefix("containerd://").unwrap()).unwrap();
            write(&container, &amounts.settings(version));
        }
        write(&at, &whole);
    };
    api.kubelet(|kubelet| kubelet.writes = Some(Arc::new(sync)));
}

fn vpa(name: &str, sizes: [Size; 2]) -> Value {
    let targets = sizes.map(|Size { cpu, memory }| Amounts::doubled(cpu, memory));
    let mut vpa = objects::vpa(
        name,
        &std::array::from_fn::<_, 2, _>(|index| (CONTAINERS[index], targets[index])),
    );
    if name == NAMES[GUARDED] {
        let policy = json!({"containerName": "*", "maxAllowed": {"memory": "1Gi"}});
        vpa["spec"]["resourcePolicy"] = json!({"containerPolicies": [policy]});
    }
    vpa
}
