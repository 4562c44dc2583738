//! Requests and limits, in manifests and in cgroup files.

use vscaled::model::{
    CgroupVersion, CpuMax, CpuQuota, CpuShares, CpuWeight, CriResources, MemoryLimit, MilliCpu, Requirements, Setting,
    Settings,
};
use vscaled::runtime::proto::LinuxContainerResources;

/// The amounts of a container or a pod: millicores and MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) cpu: u64,
    pub(crate) cpu_limit: Option<u64>,
    pub(crate) memory: u64,
    pub(crate) memory_limit: Option<u64>,
}

impl Amounts {
    /// Requests with limits of twice as much. vscaled keeps the proportion, so it stays two.
    pub(crate) const fn doubled(cpu: u64, memory: u64) -> Self {
        Self {
            cpu,
            cpu_limit: Some(2 * cpu),
            memory,
            memory_limit: Some(2 * memory),
        }
    }

    /// The amounts in requirements that have both requests.
    pub(crate) fn of(resources: &Requirements) -> Self {
        let (requests, limits) = (resources.requests, resources.limits);
        Self {
            cpu: requests.cpu.unwrap().get(),
            cpu_limit: limits.cpu.map(MilliCpu::get),
            memory: requests.memory.unwrap().get() >> 20,
            memory_limit: limits.memory.map(|memory| memory.get() >> 20),
        }
    }

    /// Requests without limits.
    pub(crate) const fn unlimited(cpu: u64, memory: u64) -> Self {
        Self {
            cpu,
            cpu_limit: None,
            memory,
            memory_limit: None,
        }
    }

    /// The amounts of a pod with these containers. A resource has no limit if one container has none.
    pub(crate) fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        let both = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
        let nothing = Self {
            cpu: 0,
            cpu_limit: Some(0),
            memory: 0,
            memory_limit: Some(0),
        };
        all.into_iter().fold(nothing, |sum, one| Self {
            cpu: sum.cpu + one.cpu,
            cpu_limit: both(sum.cpu_limit, one.cpu_limit),
            memory: sum.memory + one.memory,
            memory_limit: both(sum.memory_limit, one.memory_limit),
        })
    }

    /// Raises a pod's cpu limit to the sum of its containers' specs. The kubelet may restart containers with those
    /// specs, and the kernel refuses a container's cpu limit above the pod's on cgroup v1.
    pub(crate) fn admitting(self, specs: impl IntoIterator<Item = Self>, version: CgroupVersion) -> Self {
        let largest = specs.into_iter().filter_map(|spec| spec.cpu_limit).max();
        Self {
            cpu_limit: match version {
                CgroupVersion::V1 => self.cpu_limit.map(|limit| limit.max(largest.unwrap_or(0))),
                CgroupVersion::V2 => self.cpu_limit,
            },
            ..self
        }
    }

    /// The values of the kernel's files for these amounts: the kubelet's arithmetic, and the linear formula for
    /// weights.
    pub(crate) fn settings(self, version: CgroupVersion) -> Settings {
        let shares = self.cpu * 1024 / 1000;
        let quota = self.cpu_limit.map_or(CpuQuota::Max, |cpu| CpuQuota::Micros(cpu * 100));
        let memory = self
            .memory_limit
            .map_or(MemoryLimit::Max, |memory| MemoryLimit::Bytes(memory << 20));
        let period_us = 100_000;
        match version {
            CgroupVersion::V1 => Settings::from_iter([
                Setting::CpuShares(CpuShares::new(shares)),
                Setting::CfsQuota(quota),
                Setting::CfsPeriod(period_us),
                Setting::MemoryLimit(memory),
            ]),
            CgroupVersion::V2 => Settings::from_iter([
                Setting::CpuMax(CpuMax { quota, period_us }),
                Setting::CpuWeight(CpuWeight::new(1 + (shares - 2) * 9999 / 262_142)),
                Setting::MemoryMax(memory),
            ]),
        }
    }

    /// The resources that the kubelet sends to the runtime; zero means "not specified".
    pub(crate) fn cri(self) -> LinuxContainerResources {
        let signed = |number: u64| i64::try_from(number).unwrap();
        LinuxContainerResources {
            cpu_shares: signed(self.cpu * 1024 / 1000),
            cpu_quota: self.cpu_limit.map_or(0, |cpu| signed(cpu * 100)),
            cpu_period: self.cpu_limit.map_or(0, |_| 100_000),
            memory_limit_in_bytes: self.memory_limit.map_or(0, |memory| signed(memory << 20)),
        }
    }

    /// The resources that the runtime stores for these amounts.
    pub(crate) fn stored(self) -> CriResources {
        let cri = self.cri();
        CriResources {
            cpu_shares: Some(cri.cpu_shares),
            cpu_quota: Some(cri.cpu_quota),
            cpu_period: Some(cri.cpu_period),
            memory_limit_in_bytes: Some(cri.memory_limit_in_bytes),
        }
    }

    pub(crate) fn yaml(self) -> String {
        let list = |cpu: Option<u64>, memory: Option<u64>| {
            let cpu = cpu.map(|cpu| format!("cpu: {cpu}m"));
            let memory = memory.map(|memory| format!("memory: {memory}Mi"));
            cpu.into_iter().chain(memory).collect::<Vec<_>>().join(", ")
        };
        format!(
            "{{requests: {{{}}}, limits: {{{}}}}}",
            list(Some(self.cpu), Some(self.memory)),
            list(self.cpu_limit, self.memory_limit)
        )
    }
}

/// A pod in namespace `test` with its StatefulSet. The status has the id of each container that has one, as the
/// kubelet writes it. Without ids, only a runtime knows which cgroup belongs to which container.
pub(crate) fn pod_manifest(name: &str, uid: &str, containers: &[(&str, Amounts, Option<&str>)]) -> String {
    let specs: Vec<String> = containers
        .iter()
        .map(|(name, amounts, _)| format!("{{name: {name}, resources: {}}}", amounts.yaml()))
        .collect();
    let statuses: Vec<String> = containers
        .iter()
        .filter_map(|(name, _, id)| Some(format!("{{name: {name}, containerID: \"containerd://{}\"}}", (*id)?)))
        .collect();
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: test
  uid: {uid}
  labels: {{app: {name}}}
  ownerReferences: [{{apiVersion: apps/v1, kind: StatefulSet, name: {name}, uid: set, controller: true}}]
spec:
  containers: [{}]
status:
  phase: Running
  containerStatuses: [{}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {name}, namespace: test}}
spec: {{selector: {{matchLabels: {{app: {name}}}}}}}
",
        specs.join(", "),
        statuses.join(", ")
    )
}

/// The manifest with these variables in one of its containers.
pub(crate) fn with_env(manifest: &str, container: &str, variables: &[(&str, &str)]) -> String {
    let variables = variables
        .iter()
        .map(|(name, value)| format!("{{name: {name}, value: {value:?}}}"));
    let env = variables.collect::<Vec<_>>().join(", ");
    let declared = format!("{{name: {container}, env: [{env}], resources");
    manifest.replacen(&format!("{{name: {container}, resources"), &declared, 1)
}

/// A VPA for the StatefulSet of that name. The bounds equal the target, so vscaled acts on every difference.
pub(crate) fn vpa_manifest(name: &str, targets: &str, containers: &[(&str, Amounts)]) -> String {
    let recommended: Vec<String> = containers
        .iter()
        .map(|(name, Amounts { cpu, memory, .. })| {
            let amounts = format!("{{cpu: {cpu}m, memory: {memory}Mi}}");
            format!("{{containerName: {name}, target: {amounts}, lowerBound: {amounts}, upperBound: {amounts}}}")
        })
        .collect();
    format!(
        "apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {{name: {name}, namespace: test}}
spec:
  targetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: {targets}}}
  updatePolicy: {{updateMode: InPlaceOrRecreate}}
status: {{recommendation: {{containerRecommendations: [{}]}}}}
",
        recommended.join(", ")
    )
}
