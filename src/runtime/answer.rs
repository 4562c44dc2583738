//! Pure: turns CRI's messages into typed values, and refuses messages that contradict themselves.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::model::objects::PodId;
use crate::model::{CriResources, Driver, RuntimeKind};

use super::error::Problem;
use super::proto;
use super::{Executed, ListedContainer, ListedPod};

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// How many bytes of a command's output are kept.
const MOST_KEPT: usize = 1 << 10;

/// The kind of the runtime with this name, which decides how its cgroups are called.
pub(super) fn runtime_kind(name: &str) -> Result<RuntimeKind, Problem> {
    match name {
        "containerd" => Ok(RuntimeKind::Containerd),
        "cri-o" => Ok(RuntimeKind::Crio),
        "docker" => Ok(RuntimeKind::Docker),
        "" => Err(Problem::nonsense("runtime_name is empty")),
        other => Err(Problem::Unusable(format!(
            "{other:?} is not a supported runtime; supported are containerd, cri-o and docker (cri-dockerd)"
        ))),
    }
}

/// The driver, if the answer has a `linux` part. Without that part the runtime does not say, although
/// the enumeration's zero is systemd.
pub(super) fn cgroup_driver(answer: &proto::RuntimeConfigResponse) -> Result<Option<Driver>, Problem> {
    let Some(linux) = &answer.linux else { return Ok(None) };
    match proto::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(proto::CgroupDriver::Systemd) => Ok(Some(Driver::Systemd)),
        Ok(proto::CgroupDriver::Cgroupfs) => Ok(Some(Driver::Cgroupfs)),
        Err(unknown) => Err(Problem::nonsense(format!("cgroup_driver is {unknown}"))),
    }
}

/// The pod of a sandbox. A static pod's UID is the hash of its manifest.
pub(super) fn listed_pod(sandbox: proto::PodSandbox) -> Result<ListedPod, Problem> {
    let nonsense = |what: &str| Problem::nonsense(format!("sandbox {:?} has no {what}", sandbox.id));
    let metadata = sandbox.metadata.ok_or_else(|| nonsense("metadata"))?;
    if metadata.uid.is_empty() {
        return Err(nonsense("metadata.uid"));
    }
    let pod = PodId {
        uid: metadata.uid.into(),
        name: metadata.name,
        namespace: metadata.namespace,
    };
    let sandbox = sandbox.id;
    Ok(ListedPod { sandbox, pod })
}

/// Whether the kubelet made the sandbox or container with these labels. Others belong to no pod.
pub(super) fn is_the_kubelets(labels: &HashMap<String, String>) -> bool {
    labels.contains_key(POD_UID)
}

pub(super) fn listed(mut entry: proto::Container) -> Result<ListedContainer, Problem> {
    Ok(ListedContainer {
        name: label(&mut entry.labels, CONTAINER_NAME)?,
        pod: PodId {
            uid: label(&mut entry.labels, POD_UID)?.into(),
            name: label(&mut entry.labels, POD_NAME)?,
            namespace: label(&mut entry.labels, POD_NAMESPACE)?,
        },
        id: entry.id,
        restart_count: entry.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: time(entry.created_at)?,
    })
}

/// The stored spec of the container with the id `asked`, from its status. Runtimes accept the beginning of an id, so
/// the answer may be about another container.
pub(super) fn stored(asked: &str, answer: proto::ContainerStatusResponse) -> Result<Option<CriResources>, Problem> {
    let status = about(asked, answer.status)?;
    match status.resources.and_then(|resources| resources.linux) {
        Some(linux) => Ok(Some(CriResources {
            cpu_shares: specified(linux.cpu_shares),
            cpu_quota: specified(linux.cpu_quota),
            cpu_period: specified(linux.cpu_period),
            memory_limit_in_bytes: specified(linux.memory_limit_in_bytes),
        })),
        None => Ok(of_info(&answer.info)),
    }
}

/// The host's process id of the container's first process, which containerd and CRI-O add to a verbose status.
pub(super) fn first_process(asked: &str, answer: &proto::ContainerStatusResponse) -> Result<Option<i32>, Problem> {
    about(asked, answer.status.clone())?;
    let info = answer.info.get("info");
    let process: Option<Process> = info.and_then(|info| serde_json::from_str(info).ok());
    Ok(process.map(|process| process.pid).filter(|pid| *pid > 0))
}

/// A command's exit code and the beginning of its output. CRI-O has no error for a command that it ended at its deadline, but an exit
/// code that no process has, and this text (`ExecSyncContainer`, `internal/oci/runtime_oci.go`).
pub(super) fn executed(answer: &proto::ExecSyncResponse, limit: Duration) -> Result<Executed, Problem> {
    if answer.exit_code == -1 && answer.stderr == b"command timed out" {
        return Err(Problem::Deadline { limit });
    }
    let mut printed = [&*answer.stdout, &*answer.stderr].concat();
    printed.truncate(MOST_KEPT);
    Ok(Executed {
        exit_code: answer.exit_code,
        output: String::from_utf8_lossy(&printed).trim().to_owned(),
    })
}

fn about(asked: &str, status: Option<proto::ContainerStatus>) -> Result<proto::ContainerStatus, Problem> {
    match status {
        Some(status) if status.id == asked => Ok(status),
        Some(status) => Err(Problem::nonsense(format!("it is about container {:?}", status.id))),
        None => Err(Problem::nonsense("status is missing")),
    }
}

/// Zero, the protocol's default, is "not yet".
fn time(nanoseconds: i64) -> Result<Option<Timestamp>, Problem> {
    let time = specified(nanoseconds).map(|told| Timestamp::from_nanosecond(told.into()));
    time.transpose()
        .map_err(|error| Problem::nonsense(format!("created_at: {error}")))
}

fn label(labels: &mut HashMap<String, String>, key: &str) -> Result<String, Problem> {
    let value = labels.remove(key).filter(|value| !value.is_empty());
    value.ok_or_else(|| Problem::nonsense(format!("{key} is missing")))
}

/// CRI's zero is "not specified".
fn specified(value: i64) -> Option<i64> {
    (value != 0).then_some(value)
}

/// The part of a verbose status that says which process is the first. The rest is skipped, as in [`Info`].
#[derive(Debug, Deserialize)]
struct Process {
    pid: i32,
}

/// The part of a verbose status with the stored spec. The rest is skipped: a container's variables may be hundreds of thousands.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    runtime_spec: RuntimeSpec,
}

#[derive(Debug, Deserialize)]
struct RuntimeSpec {
    linux: Linux,
}

#[derive(Debug, Deserialize)]
struct Linux {
    resources: Value,
}

/// The limits in the OCI runtime specification's `config.json`, which containerd and CRI-O add to a verbose status. The
/// protocol does not require it: a runtime may leave it out or write something else there.
fn of_info(info: &HashMap<String, String>) -> Option<CriResources> {
    let info: Info = serde_json::from_str(info.get("info")?).ok()?;
    let resources = info.runtime_spec.linux.resources;
    let field = |pointer| resources.pointer(pointer).and_then(Value::as_i64).and_then(specified);
    Some(CriResources {
        cpu_shares: field("/cpu/shares"),
        cpu_quota: field("/cpu/quota"),
        cpu_period: field("/cpu/period"),
        memory_limit_in_bytes: field("/memory/limit"),
    })
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;

#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/inputs/runtime.rs"]
pub(crate) mod fuzz;
