//! Pure: from CRI's messages to typed values, refusing what contradicts itself.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Deserialize;

use crate::model::{CriResources, Driver, RuntimeKind};

use super::error::Problem;
use super::proto;
use super::types::{ContainerState, ListedContainer, RuntimeContainer, RuntimePod};

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Whose cgroup names a runtime of that name uses.
pub(super) fn runtime_kind(name: &str) -> Result<RuntimeKind, Problem> {
    match name {
        "containerd" => Ok(RuntimeKind::Containerd),
        "cri-o" => Ok(RuntimeKind::Crio),
        "docker" => Ok(RuntimeKind::Docker),
        "" => Err(Problem::nonsense("runtime_name is empty")),
        other => Err(Problem::UnknownRuntime { name: other.to_owned() }),
    }
}

/// The driver, unless the answer has no `linux` part: that is "not told", although the enumeration's zero is systemd.
pub(super) fn cgroup_driver(answer: &proto::RuntimeConfigResponse) -> Result<Option<Driver>, Problem> {
    let Some(linux) = &answer.linux else { return Ok(None) };
    match proto::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(proto::CgroupDriver::Systemd) => Ok(Some(Driver::Systemd)),
        Ok(proto::CgroupDriver::Cgroupfs) => Ok(Some(Driver::Cgroupfs)),
        Err(unknown) => Err(Problem::nonsense(format!("cgroup_driver is {unknown}"))),
    }
}

pub(super) fn state(value: i32) -> Result<ContainerState, Problem> {
    match proto::ContainerState::try_from(value) {
        Ok(proto::ContainerState::ContainerCreated) => Ok(ContainerState::Created),
        Ok(proto::ContainerState::ContainerRunning) => Ok(ContainerState::Running),
        Ok(proto::ContainerState::ContainerExited) => Ok(ContainerState::Exited),
        Ok(proto::ContainerState::ContainerUnknown) => Ok(ContainerState::Unknown),
        Err(unknown) => Err(Problem::nonsense(format!("state is {unknown}"))),
    }
}

pub(super) fn pod(sandbox: proto::PodSandbox) -> Result<RuntimePod, Problem> {
    let Some(metadata) = sandbox.metadata else {
        return Err(Problem::nonsense(format!("sandbox {:?} has no metadata", sandbox.id)));
    };
    Ok(RuntimePod {
        uid: filled("a sandbox's metadata.uid", metadata.uid)?,
        name: metadata.name,
        namespace: metadata.namespace,
    })
}

/// Whether the kubelet made the sandbox or container with these labels: others are no pod's, and nobody's business here.
pub(super) fn is_the_kubelets(labels: &HashMap<String, String>) -> bool {
    labels.contains_key(POD_UID)
}

/// One entry of the list.
pub(super) fn listed(mut entry: proto::Container) -> Result<ListedContainer, Problem> {
    Ok(ListedContainer {
        name: label(&mut entry.labels, CONTAINER_NAME)?,
        pod_uid: label(&mut entry.labels, POD_UID)?,
        pod_name: label(&mut entry.labels, POD_NAME)?,
        pod_namespace: label(&mut entry.labels, POD_NAMESPACE)?,
        sandbox_id: filled("pod_sandbox_id", entry.pod_sandbox_id)?,
        id: entry.id,
        restart_count: entry.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: time("created_at", entry.created_at)?,
    })
}

/// The container that was asked for, from its verbose status. Runtimes take the beginning of an id for the whole, so
/// the answer may be about another one.
pub(super) fn container(asked: &str, answer: proto::ContainerStatusResponse) -> Result<RuntimeContainer, Problem> {
    let Some(mut status) = answer.status else {
        return Err(Problem::nonsense("status is missing"));
    };
    if status.id != asked {
        return Err(Problem::nonsense(format!("it is about container {:?}", status.id)));
    }
    let verbose = Verbose::of(&answer.info);
    let state = state(status.state)?;
    Ok(RuntimeContainer {
        name: label(&mut status.labels, CONTAINER_NAME)?,
        pod_uid: label(&mut status.labels, POD_UID)?,
        pod_name: label(&mut status.labels, POD_NAME)?,
        pod_namespace: label(&mut status.labels, POD_NAMESPACE)?,
        id: status.id,
        state,
        pid: verbose.pid.filter(|pid| *pid > 0 && state == ContainerState::Running),
        resources: match status.resources.and_then(|resources| resources.linux) {
            Some(linux) => Some(of_cri(&linux)),
            None => verbose.resources(),
        },
        restart_count: status.metadata.map_or(0, |metadata| metadata.attempt),
        started_at: time("started_at", status.started_at)?,
    })
}

/// Zero, the protocol's default, is "not yet".
fn time(what: &'static str, nanoseconds: i64) -> Result<Option<Timestamp>, Problem> {
    if nanoseconds == 0 {
        return Ok(None);
    }
    Timestamp::from_nanosecond(nanoseconds.into())
        .map(Some)
        .map_err(|error| Problem::nonsense(format!("{what}: {error}")))
}

fn label(labels: &mut HashMap<String, String>, key: &'static str) -> Result<String, Problem> {
    filled(key, labels.remove(key).unwrap_or_default())
}

fn filled(what: &'static str, value: String) -> Result<String, Problem> {
    if value.is_empty() {
        Err(Problem::nonsense(format!("{what} is missing")))
    } else {
        Ok(value)
    }
}

/// CRI's zero is "not specified".
fn of_cri(linux: &proto::LinuxContainerResources) -> CriResources {
    let specified = |value: i64| (value != 0).then_some(value);
    CriResources {
        cpu_shares: specified(linux.cpu_shares),
        cpu_quota: specified(linux.cpu_quota),
        cpu_period: specified(linux.cpu_period),
        memory_limit_in_bytes: specified(linux.memory_limit_in_bytes),
    }
}

/// The part we use of what containerd and CRI-O add to a verbose status. It is outside the protocol: a runtime may
/// leave it out or write something else there, which only means that it does not tell.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verbose {
    pid: Option<i32>,
    runtime_spec: Option<Spec>,
}

/// As much of the OCI runtime specification's `config.json` as matters here.
#[derive(Debug, Deserialize)]
struct Spec {
    linux: Option<SpecLinux>,
}

#[derive(Debug, Deserialize)]
struct SpecLinux {
    resources: Option<SpecResources>,
}

#[derive(Debug, Deserialize)]
struct SpecResources {
    cpu: Option<SpecCpu>,
    memory: Option<SpecMemory>,
}

#[derive(Debug, Default, Deserialize)]
struct SpecCpu {
    shares: Option<i64>,
    quota: Option<i64>,
    period: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
struct SpecMemory {
    limit: Option<i64>,
}

impl Verbose {
    fn of(info: &HashMap<String, String>) -> Self {
        info.get("info")
            .and_then(|json| serde_json::from_str(json).ok())
            .unwrap_or_default()
    }

    fn resources(self) -> Option<CriResources> {
        let resources = self.runtime_spec?.linux?.resources?;
        let cpu = resources.cpu.unwrap_or_default();
        let memory = resources.memory.unwrap_or_default();
        let specified = |value: &i64| *value != 0;
        Some(CriResources {
            cpu_shares: cpu.shares.filter(specified),
            cpu_quota: cpu.quota.filter(specified),
            cpu_period: cpu.period.filter(specified),
            memory_limit_in_bytes: memory.limit.filter(specified),
        })
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
