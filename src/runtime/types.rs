//! What a runtime tells about itself and its containers, typed and checked.

use jiff::Timestamp;

use crate::model::{CriResources, Driver, RuntimeKind};

use super::error::RuntimeError;

/// A runtime's name, version and conventions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// What it calls itself, e.g. `containerd`.
    pub name: String,
    /// Its version, in its own words.
    pub version: String,
    /// Whose cgroup names it uses.
    pub kind: RuntimeKind,
    /// Who creates cgroups, if the runtime tells (`RuntimeConfig`: containerd from 2.0, CRI-O from 1.28). `None` is "not
    /// told", never a default: look at the tree.
    pub cgroup_driver: Option<Driver>,
}

/// A pod with a sandbox, whether or not a container of it runs just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimePod {
    /// The pod's UID; of a static pod this is the hash of its manifest.
    pub uid: String,
    pub name: String,
    pub namespace: String,
}

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    /// The runtime itself does not know.
    Unknown,
}

/// A running container as the runtime's list has it: who it is, and nothing of what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: String,
    /// Its name in the pod (label `io.kubernetes.container.name`).
    pub name: String,
    /// The pod's UID as the kubelet labelled it; of a static pod this is the hash of its manifest.
    pub pod_uid: String,
    pub pod_name: String,
    pub pod_namespace: String,
    /// The sandbox it runs in; events name sandboxes as they name containers.
    pub sandbox_id: String,
    /// How often the kubelet had started this container before.
    pub restart_count: u32,
    /// When it was made, shortly before its process started.
    pub created_at: Option<Timestamp>,
}

/// A container of a pod, with what the runtime has stored about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeContainer {
    pub id: String,
    /// Its name in the pod (label `io.kubernetes.container.name`).
    pub name: String,
    /// The pod's UID as the kubelet labelled it; of a static pod this is the hash of its manifest.
    pub pod_uid: String,
    pub pod_name: String,
    pub pod_namespace: String,
    /// Where it is in its life.
    pub state: ContainerState,
    /// Its first process, as the runtime's PID namespace numbers it, while it runs. `None` when the runtime does not
    /// tell: CRI has no field for it, containerd and CRI-O add it to verbose answers.
    pub pid: Option<i32>,
    /// What the runtime has stored; a field is `None` when the stored spec leaves it out. `None` altogether when the
    /// runtime does not report it: then nothing is known of what its next update would write.
    pub resources: Option<CriResources>,
    /// How often the kubelet had started this container before.
    pub restart_count: u32,
    pub started_at: Option<Timestamp>,
}

/// The answer to "which containers run".
#[derive(Debug, Default)]
pub struct Listing {
    /// The running containers of pods, in the runtime's order.
    pub containers: Vec<ListedContainer>,
    /// Entries that do not say whose container it is: one error for each, naming it. The others are unaffected.
    pub unusable: Vec<RuntimeError>,
}
