//! The calls that replace vscaled, on the same containers. Each call changes all three containers, one after the
//! other, in cpu shares, cpu quota and memory limit. None of them touches the pod's own cgroup or reads a value back.

use std::process::Command;
use std::time::Instant;

use serde_json::json;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use vscaled::proto::containerd::UpdateTaskRequest;
use vscaled::proto::containerd::tasks_client::TasksClient;
use vscaled::runtime::proto::{LinuxContainerResources, UpdateContainerResourcesRequest};

use crate::common::Samples;
use crate::support::containerd::Containerd;
use crate::support::image::output;
use crate::support::pods::Pod;

/// The containerd namespace in which its CRI keeps containers.
const NAMESPACE: &str = "k8s.io";
/// containerd's name for the expected message, which is JSON (containerd `pkg/oci`, `typeurl`).
const RESOURCES: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

/// The values of a container in one round.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    shares: i64,
    quota: i64,
    memory: i64,
}

impl Amounts {
    const PERIOD: i64 = 100_000;

    /// Never the same in two consecutive rounds, and below the pod's limits from the agent's last pass.
    const fn of(round: usize) -> Self {
        let factor = if round.is_multiple_of(2) { 1 } else { 2 };
        Self {
            shares: 102 * factor,
            quota: 10_000 * factor,
            memory: (32 << 20) * factor,
        }
    }
}

/// Runs the alternatives in turn, this many times each.
pub(crate) async fn measure(
    containerd: &Containerd,
    pod: &Pod,
    rounds: usize,
) -> anyhow::Result<Vec<(&'static str, Samples)>> {
    let (mut by_runc, mut by_task, mut by_cri) = (Samples::default(), Samples::default(), Samples::default());
    let socket = format!("unix://{}", containerd.socket().display());
    let mut tasks = TasksClient::new(Endpoint::from_shared(socket)?.connect().await?);
    let kubelet = containerd.kubelet();
    for round in 0..rounds {
        // Each call finds the values of the previous one, which differ.
        let amounts = |of: usize| Amounts::of(3 * round + of);
        let start = Instant::now();
        for container in &pod.containers {
            output(&mut runc_update(containerd, &container.id, amounts(0)));
        }
        by_runc.push(start.elapsed());

        let start = Instant::now();
        for container in &pod.containers {
            let mut request = Request::new(task_update(&container.id, amounts(1)));
            let namespace = MetadataValue::from_static(NAMESPACE);
            request.metadata_mut().insert("containerd-namespace", namespace);
            tasks.update(request).await?;
        }
        by_task.push(start.elapsed());

        let start = Instant::now();
        for container in &pod.containers {
            let request = cri_update(&container.id, amounts(2));
            kubelet.clone().update_container_resources(request).await?;
        }
        by_cri.push(start.elapsed());
    }
    Ok(vec![
        ("runc update, 3 containers", by_runc),
        ("containerd's task service, 3 containers", by_task),
        ("CRI UpdateContainerResources, 3 containers", by_cri),
    ])
}

fn runc_update(containerd: &Containerd, id: &str, amounts: Amounts) -> Command {
    let mut command = Command::new("runc");
    command
        .arg("--root")
        // The directory of runc's state in the tests' containerd.
        .arg(containerd.socket().with_file_name("oci").join(NAMESPACE))
        .arg("update")
        .args(["--cpu-share", &amounts.shares.to_string()])
        .args(["--cpu-quota", &amounts.quota.to_string()])
        .args(["--cpu-period", &Amounts::PERIOD.to_string()])
        .args(["--memory", &amounts.memory.to_string()])
        // CRI has set the swap limit to the memory limit, and the kernel refuses to raise the memory limit above it.
        .args(["--memory-swap", &amounts.memory.to_string()])
        .arg(id);
    command
}

fn task_update(id: &str, amounts: Amounts) -> UpdateTaskRequest {
    let resources = json!({
        "cpu": {"shares": amounts.shares, "quota": amounts.quota, "period": Amounts::PERIOD},
        "memory": {"limit": amounts.memory, "swap": amounts.memory},
    });
    UpdateTaskRequest {
        container_id: id.to_owned(),
        resources: Some(prost_types::Any {
            type_url: RESOURCES.to_owned(),
            value: resources.to_string().into_bytes(),
        }),
    }
}

fn cri_update(id: &str, amounts: Amounts) -> UpdateContainerResourcesRequest {
    UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(LinuxContainerResources {
            cpu_shares: amounts.shares,
            cpu_quota: amounts.quota,
            cpu_period: Amounts::PERIOD,
            memory_limit_in_bytes: amounts.memory,
        }),
    }
}

/// `containerd 1.6.20 with runc 1.1.5`.
pub(crate) fn versions() -> anyhow::Result<String> {
    let word = |program: &str, at: usize| {
        let text = output(Command::new(program).arg("--version"));
        text.split_whitespace().nth(at).unwrap_or("?").to_owned()
    };
    Ok(format!(
        "containerd {} with runc {}",
        word("containerd", 2),
        word("runc", 2)
    ))
}
