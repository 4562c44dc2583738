//! Pods in a private containerd, created through CRI as a kubelet creates them.

use std::collections::HashMap;
use std::path::PathBuf;

use tonic::Status;
use vscaled::model::{CgroupPath, MemoryLimit};
use vscaled::runtime::proto::{self, LinuxContainerResources};

use super::containerd::Containerd;
use super::image::BUSYBOX;

#[derive(Debug, Clone)]
pub(crate) struct ContainerSpec {
    pub(crate) name: &'static str,
    /// The script for `/bin/sh -c`.
    pub(crate) script: &'static str,
    pub(crate) resources: LinuxContainerResources,
    /// Directories of this machine in the container: the path in it, the directory, and whether it is writable.
    pub(crate) mounts: Vec<(String, PathBuf, bool)>,
}

#[derive(Debug, Clone)]
pub(crate) struct PodSpec {
    pub(crate) name: &'static str,
    pub(crate) uid: &'static str,
    /// The limit that the kubelet writes into the pod's own cgroup before the sandbox starts.
    pub(crate) memory_limit: MemoryLimit,
    pub(crate) containers: Vec<ContainerSpec>,
}

/// A running pod.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) sandbox_id: String,
    pub(crate) cgroup: CgroupPath,
    pub(crate) containers: Vec<Container>,
}

/// A running container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) pid: i32,
    pub(crate) cgroup: CgroupPath,
}

impl Containerd {
    /// Creates the pod's cgroup, sandbox and containers, and starts them.
    pub(crate) async fn run(&self, spec: &PodSpec) -> Pod {
        match self.try_run(spec).await {
            Ok(pod) => pod,
            Err(status) => panic!("{status}\ncontainerd's log:\n{}", self.log()),
        }
    }

    /// Like [`Self::run`], for a runtime that may refuse.
    pub(crate) async fn try_run(&self, spec: &PodSpec) -> Result<Pod, Status> {
        let cgroup = self.cgroups().make(&format!("kubepods/burstable/pod{}", spec.uid));
        self.cgroups().limit_memory(&cgroup, spec.memory_limit);
        let config = sandbox(spec, &cgroup);
        let request = proto::RunPodSandboxRequest {
            config: Some(config.clone()),
        };
        let sandbox_id = self
            .kubelet()
            .run_pod_sandbox(request)
            .await?
            .into_inner()
            .pod_sandbox_id;
        let mut containers = Vec::new();
        for container in &spec.containers {
            containers.push(self.run_container(&sandbox_id, &config, container, 0).await?);
        }
        Ok(Pod {
            sandbox_id,
            cgroup,
            containers,
        })
    }

    /// Starts a container of a running pod again, as the kubelet does after a container ended: a new container with
    /// the same name.
    pub(crate) async fn restart(&self, pod: &mut Pod, spec: &PodSpec, index: usize, attempt: u32) {
        let config = sandbox(spec, &pod.cgroup);
        let container = &spec.containers[index];
        match self.run_container(&pod.sandbox_id, &config, container, attempt).await {
            Ok(container) => pod.containers[index] = container,
            Err(status) => panic!("{status}\ncontainerd's log:\n{}", self.log()),
        }
    }

    async fn run_container(
        &self,
        sandbox_id: &str,
        sandbox: &proto::PodSandboxConfig,
        spec: &ContainerSpec,
        attempt: u32,
    ) -> Result<Container, Status> {
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(container(sandbox, spec, attempt)),
            sandbox_config: Some(sandbox.clone()),
        };
        let id = self
            .kubelet()
            .create_container(request)
            .await?
            .into_inner()
            .container_id;
        let start = proto::StartContainerRequest {
            container_id: id.clone(),
        };
        self.kubelet().start_container(start).await?;
        let pid = self.pid(&id);
        Ok(Container {
            cgroup: self.cgroups().of_process(pid),
            id,
            pid,
        })
    }

    /// Kills a container.
    pub(crate) async fn end(&self, container: &Container) {
        let request = proto::StopContainerRequest {
            container_id: container.id.clone(),
            timeout: 0,
        };
        self.expect(self.kubelet().stop_container(request).await);
    }

    /// Ends and removes a pod as the kubelet does: containers, sandbox, then the cgroup.
    pub(crate) async fn remove_pod(&self, pod: &Pod) {
        for container in &pod.containers {
            self.end(container).await;
        }
        let pod_sandbox_id = pod.sandbox_id.clone();
        let stop = proto::StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        };
        self.expect(self.kubelet().stop_pod_sandbox(stop).await);
        let remove = proto::RemovePodSandboxRequest { pod_sandbox_id };
        self.expect(self.kubelet().remove_pod_sandbox(remove).await);
        self.cgroups().remove(&pod.cgroup);
    }
}

fn labels(spec: &PodSpec) -> HashMap<String, String> {
    HashMap::from([
        ("io.kubernetes.pod.name".to_owned(), spec.name.to_owned()),
        ("io.kubernetes.pod.namespace".to_owned(), "test".to_owned()),
        ("io.kubernetes.pod.uid".to_owned(), spec.uid.to_owned()),
    ])
}

/// The host's network, which needs no network plugin, and a pid namespace for each container, as is usual.
fn namespaces() -> Option<proto::NamespaceOption> {
    Some(proto::NamespaceOption {
        network: proto::NamespaceMode::Node.into(),
        pid: proto::NamespaceMode::Container.into(),
        ..proto::NamespaceOption::default()
    })
}

fn sandbox(spec: &PodSpec, cgroup: &CgroupPath) -> proto::PodSandboxConfig {
    proto::PodSandboxConfig {
        metadata: Some(proto::PodSandboxMetadata {
            name: spec.name.to_owned(),
            uid: spec.uid.to_owned(),
            namespace: "test".to_owned(),
            attempt: 0,
        }),
        labels: labels(spec),
        linux: Some(proto::LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_string(),
            security_context: Some(proto::LinuxSandboxSecurityContext {
                namespace_options: namespaces(),
            }),
        }),
        ..proto::PodSandboxConfig::default()
    }
}

fn mount((container_path, host_path, writable): &(String, PathBuf, bool)) -> proto::Mount {
    proto::Mount {
        container_path: container_path.clone(),
        host_path: host_path.display().to_string(),
        readonly: !writable,
    }
}

fn container(sandbox: &proto::PodSandboxConfig, spec: &ContainerSpec, attempt: u32) -> proto::ContainerConfig {
    let mut labels = sandbox.labels.clone();
    labels.insert("io.kubernetes.container.name".to_owned(), spec.name.to_owned());
    proto::ContainerConfig {
        metadata: Some(proto::ContainerMetadata {
            name: spec.name.to_owned(),
            attempt,
        }),
        image: Some(proto::ImageSpec { image: BUSYBOX.into() }),
        command: vec!["/bin/sh".to_owned(), "-c".to_owned(), spec.script.to_owned()],
        labels,
        mounts: spec.mounts.iter().map(mount).collect(),
        linux: Some(proto::LinuxContainerConfig {
            resources: Some(spec.resources),
            security_context: Some(proto::LinuxContainerSecurityContext {
                namespace_options: namespaces(),
            }),
        }),
        ..proto::ContainerConfig::default()
    }
}
