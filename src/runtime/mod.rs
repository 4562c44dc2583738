//! The container runtime: CRI v1 over its unix socket, and containerd's event service on the same socket.
//!
//! In come a socket ([`discover`]) and the fields of a container's stored spec that must change. Out come the node's runtime
//! ([`RuntimeInfo`]), its running containers by name ([`ListedContainer`]), the stored spec of a container, and one stream of
//! events ([`RuntimeEvent`]). Discovery uses [`Cri`], the client itself; passes need only the trait [`ContainerRuntime`].
//!
//! This module never starts, stops or removes a container, and never retries: callers know [`RuntimeError::is_retryable`] and
//! own the backoff. It never sends a field that is not to change, and never huge pages, cpusets, unified keys or
//! `oom_score_adj`: runtimes keep or append those fields, which would defeat the kubelet's own updates later.

pub(crate) mod answer;
mod cri;
mod discovery;
mod error;
mod events;
pub(crate) mod metrics;
#[cfg(test)]
pub(crate) mod testing;
pub mod weight;

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::objects::PodId;
use crate::model::{CriResources, Driver, RuntimeKind};

pub use crate::proto::cri as proto;
pub use cri::{Cri, Deadlines};
pub use discovery::{DiscoveryError, WELL_KNOWN_SOCKETS, discover};
pub use error::{Problem, RuntimeError};
pub use events::{EventStream, RuntimeEvent};
pub use metrics::RuntimeMetrics;

/// The calls about one container, and about the runtime itself. Every call ends with an answer, an error or its deadline.
#[tonic::async_trait]
pub trait ContainerRuntime: Debug + Send + Sync {
    /// The runtime's name, version and cgroup driver.
    ///
    /// Errors: the runtime is away, hangs, or is not a CRI v1 runtime that the agent supports.
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError>;

    /// The stored spec of the container with this full id, running or not, in one call. A field is `None` where the
    /// stored spec leaves it out. The whole is `None` where the runtime does not show its spec: the values of its
    /// next update are then unknown.
    ///
    /// Errors: [`Problem::NotFound`] once the container is removed; the runtime is away, hangs, or describes another container.
    async fn stored(&self, id: &str) -> Result<Option<CriResources>, RuntimeError>;

    /// Changes the fields that are set, in the runtime's stored spec and in the kernel. The container keeps running.
    ///
    /// Side effects of runtimes (containerd `container_update_resources.go`, CRI-O `container_update_resources.go`):
    /// - containerd writes its *whole* stored spec to the cgroup, and so undoes direct writes that the spec does not know.
    /// - Setting memory sets swap to "none" where a swap controller exists and the stored spec has no
    ///   `memory.swap.max` of its own. containerd's has one, from the kubelet, and writes it last; with CRI-O a
    ///   container that may swap (kubelet `LimitedSwap`) has `memory.swap.max` 0 afterwards: callers restore the file.
    /// - containerd writes a `memory.high` of the stored spec's unified keys again, as it was: callers restore the file.
    /// - On cgroup v1 a new memory limit sets `memory.memsw.limit_in_bytes` too, where that file exists.
    /// - runc writes every limit of its own state again, also those that the call leaves out; crun writes those of the call alone.
    /// - CRI-O from 1.33 refuses a memory limit of -1 and one below the memory in use, docker one below 6 MiB.
    ///
    /// Errors: [`Problem::Unusable`] for values that the kernel could not hold (nothing is sent), [`Problem::Refused`] when
    /// the kernel or the runtime refused (the stored spec is as before), [`Problem::Deadline`] when the runtime may or may
    /// not have made the change: read back.
    async fn update(&self, id: &str, resources: &CriResources) -> Result<(), RuntimeError>;

    /// Runs a command in a container, as the container's own user, and waits for its end. The runtime ends
    /// the command at the deadline.
    ///
    /// Errors: [`Problem::Deadline`] also when the command has ended and left processes that hold its output;
    /// [`Problem::Refused`] when the command cannot be started, or prints more than the agent reads.
    async fn exec(&self, id: &str, command: &[String], deadline: Duration) -> Result<Executed, RuntimeError>;

    /// Has the runtime send a signal to the container's first process. CRI has no such call; containerd has one.
    ///
    /// Errors: [`Problem::Unimplemented`] where the runtime has no such call; and as [`Self::stored`].
    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError>;

    /// The host's process id of the container's first process, if the runtime shows it.
    ///
    /// Errors: as [`Self::stored`].
    async fn first_process(&self, id: &str) -> Result<Option<i32>, RuntimeError>;
}

/// A command that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    pub exit_code: i32,
    /// The beginning of its output.
    pub output: String,
}

/// A runtime's name, version and conventions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// The runtime's own name, e.g. `containerd`.
    pub name: String,
    pub version: String,
    /// Decides how the runtime's cgroups are called.
    pub kind: RuntimeKind,
    /// The cgroup driver, if the runtime reports it (`RuntimeConfig`: containerd from 2.0, CRI-O from 1.28). `None` is
    /// never a default: the caller examines the tree.
    pub cgroup_driver: Option<Driver>,
}

/// A pod in the runtime's list, by its ready sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPod {
    /// The sandbox's id. The runtime reports its start as that of a container.
    pub sandbox: String,
    pub pod: PodId,
}

/// A running container in the runtime's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: String,
    /// Its name in the pod (label `io.kubernetes.container.name`).
    pub name: String,
    /// The pod in the kubelet's labels. A static pod's UID is the hash of its manifest.
    pub pod: PodId,
    /// How often the kubelet had started this container before.
    pub restart_count: u32,
    /// When the runtime made the container, shortly before its process started.
    pub created_at: Option<Timestamp>,
}

/// A list of the runtime: the pods of the node, or their running containers.
#[derive(Debug)]
pub struct Listing<T> {
    /// In the runtime's order.
    pub entries: Vec<T>,
    /// Entries that do not name their pod or container: one error for each, with the entry's id.
    pub unusable: Vec<RuntimeError>,
}
