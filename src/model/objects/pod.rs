//! Pods: their requests and limits, and what the kubelet reports about them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::hook_variables::{self, HookVariables};
use super::memory_settings::{self, MemorySetting, Variable};
use super::meta::ObjectMeta;
use super::quota;
use crate::model::quantity::Quantities;
use crate::model::{NamedRequirements, PodAmounts, QosClass, Requirements, Resource, ResourceList};

/// The priority from which a pod is critical (`SystemCriticalPriority`, kubernetes `pkg/apis/scheduling`).
const SYSTEM_CRITICAL: i64 = 2_000_000_000;

/// The parts of a Pod that decisions need.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// The parts of a pod's spec that concern its resources.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "DeclaredSpec")]
pub struct PodSpec {
    /// Empty until the pod is scheduled.
    pub node_name: String,
    pub containers: Vec<Container>,
    /// In order. Init containers with `restartPolicy: Always` are sidecars.
    pub init_containers: Vec<Container>,
    /// The names of the containers that `kubectl debug` adds.
    #[serde(skip_serializing)]
    pub ephemeral_containers: Vec<String>,
    /// The amounts that the runtime class adds to the pod's.
    pub overhead: ResourceList,
    /// Pod-level requests and limits (gate PodLevelResources).
    pub resources: Option<Requirements>,
    /// Whether the pod, or a container of it, has huge pages (`hugepages-2Mi` and others).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_huge_pages: bool,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: String,
    pub priority: Option<i64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_class_name: String,
    /// Whether a term of the pod's affinity or anti-affinity may be about pods of other namespaces.
    #[serde(skip_serializing)]
    pub crosses_namespaces: bool,
    /// The time after which the kubelet ends the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// A class may run the containers in a virtual machine, without a cgroup for each of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
}

/// A pod's spec as its manifest has it, or the state file.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeclaredSpec {
    node_name: String,
    containers: Vec<DeclaredContainer>,
    init_containers: Vec<DeclaredContainer>,
    ephemeral_containers: Vec<DeclaredContainer>,
    overhead: ResourceList,
    resources: Option<DeclaredResources>,
    has_huge_pages: bool,
    restart_policy: String,
    priority: Option<i64>,
    priority_class_name: String,
    #[serde(rename = "affinity", deserialize_with = "quota::crosses_namespaces")]
    crosses_namespaces: bool,
    active_deadline_seconds: Option<i64>,
    runtime_class_name: Option<String>,
}

impl From<DeclaredSpec> for PodSpec {
    fn from(declared: DeclaredSpec) -> Self {
        let containers = declared.containers.iter().chain(&declared.init_containers);
        let mut levels = containers.map(|one| &one.resources).chain(&declared.resources);
        let has_huge_pages = declared.has_huge_pages || levels.any(DeclaredResources::has_huge_pages);
        let read = |all: Vec<DeclaredContainer>| all.into_iter().map(Container::from).collect();
        Self {
            node_name: declared.node_name,
            containers: read(declared.containers),
            init_containers: read(declared.init_containers),
            ephemeral_containers: declared.ephemeral_containers.into_iter().map(|one| one.name).collect(),
            overhead: declared.overhead,
            resources: declared.resources.as_ref().map(DeclaredResources::requirements),
            has_huge_pages,
            restart_policy: declared.restart_policy,
            priority: declared.priority,
            priority_class_name: declared.priority_class_name,
            crosses_namespaces: declared.crosses_namespaces,
            active_deadline_seconds: declared.active_deadline_seconds,
            runtime_class_name: declared.runtime_class_name,
        }
    }
}

/// A regular or init container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "DeclaredContainer")]
pub struct Container {
    pub name: String,
    pub resources: Requirements,
    /// The effect of a change of each resource on the container.
    pub resize_policy: Vec<ResizePolicy>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
    /// Whether exit codes of this container may restart it, or all containers, whatever the policies say (`restartPolicyRules`).
    #[serde(skip_serializing)]
    pub has_restart_rules: bool,
    /// The memory settings of the language runtime, or of Redis, in the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_settings: Vec<MemorySetting>,
    /// The hooks that the pod's author declares.
    #[serde(rename = "env", serialize_with = "hook_variables::as_env")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hook_variables: HookVariables,
}

/// A container as its manifest has it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeclaredContainer {
    pub(super) name: String,
    pub(super) resources: DeclaredResources,
    resize_policy: Vec<ResizePolicy>,
    restart_policy: Option<String>,
    restart_policy_rules: Vec<IgnoredAny>,
    pub(super) command: Vec<String>,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<Variable>,
}

/// Requests and limits as a manifest has them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeclaredResources {
    requests: ResourceList,
    limits: Quantities,
}

impl DeclaredResources {
    pub(super) fn requirements(&self) -> Requirements {
        Requirements {
            requests: self.requests,
            limits: ResourceList::named(&self.limits, ""),
        }
    }

    /// Huge pages always have a limit, which equals the request.
    fn has_huge_pages(&self) -> bool {
        self.limits.0.keys().any(|name| name.starts_with("hugepages-"))
    }
}

impl From<DeclaredContainer> for Container {
    fn from(declared: DeclaredContainer) -> Self {
        Self {
            memory_settings: memory_settings::read(&declared),
            hook_variables: hook_variables::read(&declared.env),
            name: declared.name,
            resources: declared.resources.requirements(),
            resize_policy: declared.resize_policy,
            restart_policy: declared.restart_policy,
            has_restart_rules: !declared.restart_policy_rules.is_empty(),
        }
    }
}

impl Container {
    /// Whether this init container runs for the pod's whole life.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }

    /// Whether changing this resource restarts the container.
    pub fn restarts_for(&self, resource: Resource) -> bool {
        let restarts = |policy: &ResizePolicy| policy.restart_policy == "RestartContainer";
        let mut policies = self.resize_policy.iter();
        policies.any(|policy| policy.resource_name == resource.name() && restarts(policy))
    }
}

/// The effect of a change of one resource on its container.
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
    /// The generation of the spec that this status is about. 0 if the kubelet does not report it (before 1.34).
    pub observed_generation: i64,
    pub conditions: Vec<PodCondition>,
    /// Pod-level requests and limits in force, from kubelets that can resize them in place (KEP-5419). After a resize amounts may
    /// be absent although they are in force (kubernetes/kubernetes#141814).
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
    /// The generation of the spec that this condition is about. 0 if the kubelet does not report it.
    pub observed_generation: i64,
    pub last_transition_time: Option<Timestamp>,
}

/// The kubelet's report about one container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// The container's name in the spec.
    pub name: String,
    /// `<runtime>://<id>`. Empty until the container is created.
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub restart_count: u64,
    pub state: ContainerState,
    /// The state before the last restart.
    pub last_state: ContainerState,
    /// Resources in force, from kubelets that can resize in place.
    pub resources: Option<Requirements>,
    /// The requests that the kubelet has allocated.
    pub allocated_resources: Option<ResourceList>,
}

impl ContainerStatus {
    /// The container's id without its runtime's name, once the container is created.
    pub fn bare_id(&self) -> Option<&str> {
        let id = self.container_id.rsplit("://").next();
        id.filter(|id| !id.is_empty())
    }
}

/// The state of a container. At most one field is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    pub running: Option<Running>,
    pub terminated: Option<Terminated>,
}

/// The state of a container that runs.
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

    /// Regular containers, then sidecars: the containers that run for the pod's whole life and can be resized.
    pub fn running_containers(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.spec.init_containers.iter().filter(|init| init.is_sidecar());
        self.spec.containers.iter().chain(sidecars)
    }

    /// The regular container or sidecar of that name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.running_containers().find(|container| container.name == name)
    }

    /// The pod's own requests and limits, if its kubelet can resize them in place.
    pub fn resizable_pod_level(&self) -> Option<Requirements> {
        self.spec.resources.filter(|_| self.status.resources.is_some())
    }

    /// The spec's requests and limits of regular containers, then of sidecars, then the pod's own if they can be resized.
    pub fn requirements(&self) -> PodAmounts {
        let named = |container: &Container| NamedRequirements::new(&container.name, container.resources);
        PodAmounts {
            containers: self.running_containers().map(named).collect(),
            pod: self.resizable_pod_level().map(Box::new),
        }
    }

    /// A copy of the pod with these requests and limits in its spec.
    #[must_use]
    pub fn with_requirements(&self, all: &PodAmounts) -> Self {
        let mut pod = self.clone();
        for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
            container.resources = *all.container(&container.name).unwrap_or(&container.resources);
        }
        pod.spec.resources = pod.pod_level_in(all);
        pod
    }

    /// The pod's own requests and limits: these, or else those of the spec.
    pub fn pod_level_in(&self, amounts: &PodAmounts) -> Option<Requirements> {
        amounts.pod.as_deref().copied().or(self.spec.resources)
    }

    /// A container that the kubelet restarts with each change of the pod's own limit: a container without a limit of its own in these
    /// `amounts` has the pod's (`containerResourcesFromRequirements`, kubernetes `pkg/kubelet/kuberuntime`).
    pub fn restarts_with_pod_limit(&self, resource: Resource, amounts: &PodAmounts) -> Option<&Container> {
        self.running_containers().find(|one| {
            let own = amounts.container(&one.name).unwrap_or(&one.resources);
            own.limits.amount(resource) == 0 && one.restarts_for(resource)
        })
    }

    /// The statuses of regular containers, then of init containers.
    pub fn statuses(&self) -> impl Iterator<Item = &ContainerStatus> {
        let Self { status, .. } = self;
        status.container_statuses.iter().chain(&status.init_container_statuses)
    }

    /// The ends of its containers' runs that the status shows.
    pub fn terminations(&self) -> impl Iterator<Item = &Terminated> {
        let states = self.statuses().flat_map(|status| [&status.state, &status.last_state]);
        states.filter_map(|state| state.terminated.as_ref())
    }

    /// Whether no container of the pod will run again.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether the kubelet never lets the pod swap, and evicts others to make room for its resize (`IsCriticalPod`, kubernetes
    /// `pkg/kubelet/types`; static pods are critical, too, but never resized through the API server).
    pub fn is_critical(&self) -> bool {
        self.spec.priority >= Some(SYSTEM_CRITICAL)
    }

    /// The status of the container of that name.
    pub fn container_status(&self, name: &str) -> Option<&ContainerStatus> {
        self.statuses().find(|status| status.name == name)
    }

    /// Whether the container of that name has ended and does not start again. Where exit codes may restart containers, that is not known
    /// (`ShouldContainerBeRestarted` and `ShouldAllContainersRestart`, kubernetes `pkg/kubelet/container`).
    pub fn has_completed(&self, name: &str) -> bool {
        if self.all_containers().any(|container| container.has_restart_rules) {
            return false;
        }
        let ended = self.container_status(name);
        let ended = ended.and_then(|status| status.state.terminated.as_ref());
        let own = self.container(name).and_then(|own| own.restart_policy.as_deref());
        ended.is_some_and(|ended| match own.unwrap_or(&self.spec.restart_policy) {
            "Never" => true,
            "OnFailure" => ended.reason == "Completed",
            _ => false,
        })
    }

    /// The condition of that type, if it is true and about the present spec. Kubelets before 1.34 do not say which spec a condition
    /// is about: there it counts.
    pub fn resize_condition(&self, kind: &str) -> Option<&PodCondition> {
        let is_about = |observed: i64| observed == 0 || observed >= self.metadata.generation;
        let mut conditions = self.status.conditions.iter();
        conditions.find(|condition| {
            condition.kind == kind && condition.status == "True" && is_about(condition.observed_generation)
        })
    }

    /// The class that the spec gives the pod: from pod-level resources if they are set, else from all containers.
    pub fn computed_qos(&self) -> QosClass {
        self.qos_with(&self.requirements())
    }

    /// The class that the spec gives the pod once its regular containers and sidecars have these amounts. Pod-level resources without
    /// amounts are none, as from 1.37 on.
    ///
    /// `ComputePodQOS` (kubernetes `pkg/apis/core/v1/helper/qos/qos.go`).
    pub fn qos_with(&self, amounts: &PodAmounts) -> QosClass {
        let init = self.spec.init_containers.iter().filter(|init| !init.is_sidecar());
        let running = amounts.containers.iter().map(|named| &named.resources);
        let pod_level = self.pod_level_in(amounts);
        match pod_level.filter(|own| *own != Requirements::default()) {
            Some(pod_level) => QosClass::of([&pod_level]),
            None => QosClass::of(running.chain(init.map(|container| &container.resources))),
        }
    }

    /// The pod's class: the one in its status, or else the one that its spec gives.
    pub fn qos_class(&self) -> QosClass {
        self.status.qos_class.unwrap_or_else(|| self.computed_qos())
    }

    /// Whether these amounts of regular containers and sidecars exceed the pod's own (these, or
    /// `spec.resources`). No regular container's limit may exceed the pod's, and the [total](Self::total) of all requests may not
    /// exceed the pod's request (`validatePodResourceConsistency`, kubernetes `pkg/apis/core/validation`). Returns the resource,
    /// the containers' amount, and the pod's.
    pub fn exceeded_by(&self, amounts: &PodAmounts) -> Option<(Resource, u64, u64)> {
        let pod_level = self.pod_level_in(amounts)?;
        let requests = self.total(amounts, |has| has.requests);
        Resource::ALL.into_iter().find_map(|resource| {
            let regular = self.spec.containers.iter();
            let regular = regular.map(|own| amounts.container(&own.name).unwrap_or(&own.resources));
            let limits = regular.map(|has| has.limits.amount(resource));
            let bound = |list: ResourceList| list.get(resource).unwrap_or(u64::MAX);
            let limit = (limits.max()?, bound(pod_level.limits));
            let sum = (requests.amount(resource), bound(pod_level.requests));
            let exceeded = [limit, sum].into_iter().find(|(to, bound)| to > bound);
            exceeded.map(|(to, bound)| (resource, to, bound))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn a_container_completes_by_its_restart_policy() {
        for (of_pod, own, reason, completed) in [
            ("Never", None, "Error", true),
            ("OnFailure", None, "Completed", true),
            ("OnFailure", None, "Error", false),
            ("Always", None, "Completed", false),
            ("Always", Some("Never"), "Error", true),
            ("Never", Some("Always"), "Completed", false),
        ] {
            let spec = json!({"restartPolicy": of_pod, "containers": [{"name": "app", "restartPolicy": own}]});
            let ended = json!({"name": "app", "state": {"terminated": {"reason": reason}}});
            let mut pod = pod(&spec, &json!({"containerStatuses": [ended]}));
            assert_eq!(pod.has_completed("app"), completed, "{of_pod} {own:?} {reason}");
            assert!(!pod.has_completed("side"));
            pod.spec.containers[0].has_restart_rules = true;
            assert!(!pod.has_completed("app"), "exit codes may restart it");
        }
    }

    #[test]
    fn huge_pages_of_each_level_outlast_the_agent() {
        let huge = json!({"limits": {"hugepages-2Mi": "2Mi"}});
        for (spec, has_any) in [
            (json!({"containers": [{"name": "app", "resources": huge}]}), true),
            (json!({"initContainers": [{"name": "setup", "resources": huge}]}), true),
            (json!({"resources": huge}), true),
            (json!({"containers": [{"name": "app"}], "resources": {}}), false),
            (json!({"resources": {"limits": {"nvidia.com/gpu": "${GPUS}"}}}), false),
        ] {
            let found = pod(&spec, &json!({}));
            assert_eq!(found.spec.has_huge_pages, has_any, "{spec}");
            let saved = serde_json::to_value(&found).unwrap();
            assert_eq!(serde_json::from_value::<Pod>(saved).unwrap(), found);
        }
    }

    #[test]
    fn priority_and_phase_have_their_bounds() {
        let none = json!({});
        for (priority, critical) in [
            (json!(2_000_000_000), true),
            (json!(1_999_999_999), false),
            (Value::Null, false),
        ] {
            let spec = json!({ "priority": priority });
            assert_eq!(pod(&spec, &none).is_critical(), critical, "{spec}");
        }
        for (phase, ended) in [("Succeeded", true), ("Failed", true), ("Running", false), ("", false)] {
            assert_eq!(pod(&none, &json!({ "phase": phase })).has_ended(), ended, "{phase}");
        }
    }

    #[test]
    fn containers_may_not_exceed_their_pod() {
        let spec = json!({"resources": {"requests": {"cpu": "300m"}, "limits": {"cpu": "500m"}}, "containers": [
            {"name": "app", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}}},
            {"name": "side", "resources": {"requests": {"cpu": "200m"}}}]});
        let mut pod = pod(&spec, &json!({}));
        let mut amounts = pod.requirements();
        assert_eq!(pod.exceeded_by(&amounts), None);
        amounts.containers[1].resources.requests.set(Resource::Cpu, Some(201));
        assert_eq!(pod.exceeded_by(&amounts), Some((Resource::Cpu, 301, 300)));
        amounts.containers[0].resources.limits.set(Resource::Cpu, Some(501));
        assert_eq!(pod.exceeded_by(&amounts), Some((Resource::Cpu, 501, 500)));
        pod.spec.resources = None;
        assert_eq!(pod.exceeded_by(&amounts), None);
    }

    #[test]
    fn a_policy_restarts_for_its_resource_alone() {
        let policy = |resource: &str, policy: &str| json!({"resourceName": resource, "restartPolicy": policy});
        let policies = json!([policy("memory", "RestartContainer"), policy("cpu", "NotRequired")]);
        let spec = json!({"containers": [
            {"name": "app", "resizePolicy": policies, "resources": {"limits": {"memory": "1Gi"}}},
            {"name": "side", "resizePolicy": policies}]});
        let pod = pod(&spec, &json!({}));
        assert!(pod.spec.containers[0].restarts_for(Resource::Memory));
        assert!(!pod.spec.containers[0].restarts_for(Resource::Cpu));
        let restarts = |resource| {
            let found = pod.restarts_with_pod_limit(resource, PodAmounts::NONE);
            found.map(|container| container.name.as_str())
        };
        assert_eq!(
            (restarts(Resource::Memory), restarts(Resource::Cpu)),
            (Some("side"), None)
        );
    }
}
