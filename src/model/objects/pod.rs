//! Pods: what they ask for, what they got, how they fare.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::memory_settings::{self, MemorySetting, Variable};
use super::meta::ObjectMeta;
use crate::model::{NamedRequirements, QosClass, Requirements, Resource, ResourceList};

/// A Pod, as much of it as decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace, UID, labels, owners.
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// The parts of a pod's spec that concern its resources.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node the pod is bound to; empty while unscheduled.
    pub node_name: String,
    pub containers: Vec<Container>,
    /// Init containers, in order; those with `restartPolicy: Always` are sidecars.
    pub init_containers: Vec<Container>,
    /// What the runtime class adds to the pod's cgroup.
    pub overhead: ResourceList,
    /// Pod-level requests and limits (gate PodLevelResources).
    pub resources: Option<Requirements>,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: String,
    pub priority: Option<i64>,
}

/// A regular or init container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "DeclaredContainer")]
pub struct Container {
    pub name: String,
    pub resources: Requirements,
    /// What a change of each resource does to the container.
    pub resize_policy: Vec<ResizePolicy>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
    /// What its process sets of its runtime's memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_settings: Vec<MemorySetting>,
}

/// A container as its manifest has it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeclaredContainer {
    name: String,
    pub(super) resources: Requirements,
    resize_policy: Vec<ResizePolicy>,
    restart_policy: Option<String>,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<Variable>,
}

impl From<DeclaredContainer> for Container {
    fn from(declared: DeclaredContainer) -> Self {
        Self {
            memory_settings: memory_settings::read(&declared),
            name: declared.name,
            resources: declared.resources,
            resize_policy: declared.resize_policy,
            restart_policy: declared.restart_policy,
        }
    }
}

impl Container {
    /// Whether this init container runs beside the regular ones for the pod's whole life.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    /// Whether changing this resource restarts the container.
    pub fn restarts_for(&self, resource: Resource) -> bool {
        self.resize_policy
            .iter()
            .any(|policy| policy.resource_name == resource.to_string() && policy.restart_policy == "RestartContainer")
    }
}

/// What a change of one resource does to its container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResizePolicy {
    /// `cpu` or `memory`.
    pub resource_name: String,
    /// `NotRequired` or `RestartContainer`.
    pub restart_policy: String,
}

/// The parts of a pod's status that decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// The class at creation; it never changes.
    pub qos_class: Option<QosClass>,
    /// When the kubelet acknowledged the pod.
    pub start_time: Option<Timestamp>,
    /// The generation of the spec this is about; 0 where the kubelet does not say (before 1.34).
    pub observed_generation: i64,
    /// Conditions, such as Ready and PodResizePending.
    pub conditions: Vec<PodCondition>,
    /// Pod-level requests and limits in force; set by kubelets that can resize them in place (KEP-5419). Amounts may be missing
    /// after a resize (kubernetes/kubernetes#141814): that is no word about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Requirements>,
    /// One for each regular container that exists.
    pub container_statuses: Vec<ContainerStatus>,
    /// One for each init container that exists.
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// One condition of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    pub message: String,
    /// The generation of the spec this is about; 0 where the kubelet does not say.
    pub observed_generation: i64,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
}

/// What the kubelet reports about one container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// The container's name in the spec.
    pub name: String,
    /// `<runtime>://<id>`; empty until the container was created.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// How often the container was restarted.
    pub restart_count: u64,
    pub state: ContainerState,
    /// The state before the last restart.
    pub last_state: ContainerState,
    /// Resources in force; set by kubelets that can resize in place.
    pub resources: Option<Requirements>,
    /// Requests the kubelet has admitted.
    pub allocated_resources: Option<ResourceList>,
}

impl ContainerStatus {
    /// The container's id without its runtime's name, once it was created.
    pub fn bare_id(&self) -> Option<&str> {
        let id = self.container_id.as_str();
        let id = id.rsplit_once("://").map_or(id, |(_, id)| id);
        (!id.is_empty()).then_some(id)
    }
}

/// The state of a container; at most one field is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    pub running: Option<Running>,
    pub terminated: Option<Terminated>,
}

/// Since when a container runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Running {
    pub started_at: Option<Timestamp>,
}

/// The end of a container's last run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// `OOMKilled`, `Error`, `Completed`, …
    pub reason: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

impl Pod {
    /// `namespace/name`, for people.
    pub fn full_name(&self) -> String {
        self.metadata.full_name()
    }

    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }

    /// Regular containers, then sidecars: those that run for the pod's whole life, and can be resized.
    pub fn running_containers(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.spec.init_containers.iter().filter(|init| init.is_sidecar());
        self.spec.containers.iter().chain(sidecars)
    }

    /// The regular container or sidecar of that name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.running_containers().find(|container| container.name == name)
    }

    /// The pod's own requests and limits, where its kubelet can resize them in place.
    pub fn resizable_pod_level(&self) -> Option<Requirements> {
        self.spec.resources.filter(|_| self.status.resources.is_some())
    }

    /// Requests and limits of the regular containers, then of sidecars, then the pod's own where they can be resized,
    /// as the spec has them.
    pub fn requirements(&self) -> Vec<NamedRequirements> {
        let named = |container: &Container| NamedRequirements {
            name: container.name.clone(),
            resources: container.resources,
        };
        let pod_level = self.resizable_pod_level().map(NamedRequirements::of_pod);
        self.running_containers().map(named).chain(pod_level).collect()
    }

    /// The same pod with these requests and limits in its spec.
    #[must_use]
    pub fn with_requirements(&self, all: &[NamedRequirements]) -> Self {
        let mut pod = self.clone();
        for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
            if let Some(named) = all.iter().find(|named| named.name == container.name) {
                container.resources = named.resources;
            }
        }
        pod.spec.resources = pod.pod_level_in(all);
        pod
    }

    /// The pod's own requests and limits in a list, or else in the spec.
    pub fn pod_level_in(&self, list: &[NamedRequirements]) -> Option<Requirements> {
        let (_, pod_level) = NamedRequirements::split(list);
        pod_level.copied().or(self.spec.resources)
    }

    /// Gives back what its lists have room for and do not hold: they grow by fours as they are read, and most hold one.
    pub fn shrink_to_fit(&mut self) {
        self.metadata.owner_references.shrink_to_fit();
        for containers in [&mut self.spec.containers, &mut self.spec.init_containers] {
            containers.shrink_to_fit();
        }
        let status = &mut self.status;
        for statuses in [&mut status.container_statuses, &mut status.init_container_statuses] {
            statuses.shrink_to_fit();
        }
        status.conditions.shrink_to_fit();
    }

    /// The statuses of regular containers, then of init containers.
    pub fn statuses(&self) -> impl Iterator<Item = &ContainerStatus> {
        let Self { status, .. } = self;
        status.container_statuses.iter().chain(&status.init_container_statuses)
    }

    /// The status of the container of that name.
    pub fn container_status(&self, name: &str) -> Option<&ContainerStatus> {
        self.statuses().find(|status| status.name == name)
    }

    /// The condition of that type, if it holds and is about the spec as it is. Kubelets before 1.34 do not say which spec
    /// they mean: then it counts.
    pub fn resize_condition(&self, kind: &str) -> Option<&PodCondition> {
        let about_this = |observed: i64| observed == 0 || observed >= self.metadata.generation;
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| {
            condition.kind == kind && condition.status == "True" && about_this(condition.observed_generation)
        })
    }

    /// The class the spec gives the pod: from pod-level resources where they are set, else from all containers.
    pub fn computed_qos(&self) -> QosClass {
        self.qos_with(&self.requirements())
    }

    /// The class that the spec gives the pod once its regular containers and sidecars have these amounts.
    ///
    /// `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`).
    pub fn qos_with(&self, containers: &[NamedRequirements]) -> QosClass {
        let init = self.spec.init_containers.iter().filter(|init| !init.is_sidecar());
        let running = containers.iter().map(|named| &named.resources);
        match self.pod_level_in(containers) {
            Some(pod_level) => QosClass::of([&pod_level]),
            None => QosClass::of(running.chain(init.map(|container| &container.resources))),
        }
    }

    /// The pod's class: the one the API recorded, else the one its spec gives.
    pub fn qos_class(&self) -> QosClass {
        self.status.qos_class.unwrap_or_else(|| self.computed_qos())
    }

    /// Whether these amounts of the regular containers and sidecars would leave the pod's own (`spec.resources`, or the list's): no container's limit
    /// may pass the pod's, nor all requests together the pod's request (`validatePodResources`, kubernetes
    /// `pkg/apis/core/validation`). Returns the resource, what the containers would have, and what the pod allows.
    pub fn exceeded_by(&self, containers: &[NamedRequirements]) -> Option<(Resource, u64, u64)> {
        let pod_level = self.pod_level_in(containers)?;
        let (containers, _) = NamedRequirements::split(containers);
        Resource::ALL.into_iter().find_map(|resource| {
            let limits = containers.iter().map(|named| named.resources.limits.amount(resource));
            let requests = containers.iter().map(|named| named.resources.requests.amount(resource));
            let bound = |list: ResourceList| list.get(resource).unwrap_or(u64::MAX);
            let limit = (limits.max()?, bound(pod_level.limits));
            let sum = (requests.fold(0, u64::saturating_add), bound(pod_level.requests));
            let exceeded = [limit, sum].into_iter().find(|(to, bound)| to > bound);
            exceeded.map(|(to, bound)| (resource, to, bound))
        })
    }
}
