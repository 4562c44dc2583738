//! The container runtime: CRI v1 over its unix socket, and containerd's event service on the same socket.
//!
//! In come a socket ([`discover`]) and, from the actuator, the fields of a container's stored spec that must change. Out
//! come the node's runtime ([`RuntimeInfo`]), its running containers by name ([`ListedContainer`]), what the stored spec
//! of one of them holds, and one stream of what happens to them ([`RuntimeEvent`]). Everything the
//! rest of the program needs is the trait [`ContainerRuntime`]; [`Cri`] is the real one.
//!
//! Never from here: starting, stopping or removing anything; a field that is not to change; huge pages, cpusets, unified
//! keys or `oom_score_adj` (runtimes keep or append what they are sent, so such a field would outlive its reason and
//! defeat the kubelet's own updates); a second attempt (callers know [`RuntimeError::is_retryable`] and own the backoff).

mod answer;
mod cri;
mod discovery;
mod error;
mod events;
pub(crate) mod metrics;
pub mod weight;

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::objects::PodId;
use crate::model::{CriResources, Driver, RuntimeKind};

pub use crate::proto::cri as proto;
#[cfg(any(test, fuzzing))]
pub(crate) use answer::fuzz_answers;
pub use cri::{Cri, Deadlines};
pub use discovery::{DiscoveryError, WELL_KNOWN_SOCKETS, discover};
pub use error::{Call, Problem, RuntimeError};
pub use events::{EventOptions, EventSender, EventStream, Happened, RuntimeEvent};
pub use metrics::RuntimeMetrics;

/// What vscaled needs of a container runtime. Every call ends: with an answer, an error or its deadline.
#[tonic::async_trait]
pub trait ContainerRuntime: Debug + Send + Sync {
    /// Who it is and which cgroup driver it uses.
    ///
    /// Errors: when it is away, hangs, or is not a CRI v1 runtime known here.
    async fn info(&self) -> Result<RuntimeInfo, RuntimeError>;

    /// The pods whose sandbox is ready, in one call: also those whose containers are all down, between two crashes.
    ///
    /// Errors: when the runtime is away, hangs, or answers nonsense.
    async fn list_pods(&self) -> Result<Vec<PodId>, RuntimeError>;

    /// The running containers of pods, in one call however many there are. One the runtime cannot describe
    /// does not hide the others.
    ///
    /// Errors: when the runtime is away, hangs, or the list itself is unusable.
    async fn list_containers(&self) -> Result<Listing, RuntimeError>;

    /// What is stored about the container with this full id, running or not, in one call. A field is none where the stored
    /// spec leaves it out, all of it where the runtime does not tell: then nothing is known of what
    /// its next update would write.
    ///
    /// Errors: [`Problem::NotFound`] once it is removed; when the runtime is away, hangs, or describes another container.
    async fn stored(&self, id: &str) -> Result<Option<CriResources>, RuntimeError>;

    /// Changes the fields that are set, in the runtime's stored spec and in the kernel. The container keeps running.
    ///
    /// What runtimes do besides (containerd `container_update_resources.go`, CRI-O `container_update_resources.go`):
    /// - containerd writes its *whole* stored spec to the cgroup: direct writes that the spec does not know are undone.
    /// - Setting memory sets swap to "none" where a swap controller exists and the stored spec has no
    ///   `memory.swap.max` of its own. containerd's has one, from the kubelet, and writes it last; with CRI-O a
    ///   container that may swap (kubelet `LimitedSwap`) has `memory.swap.max` 0 afterwards: callers restore the file.
    /// - A `memory.high` of the stored spec's unified keys is written again, as it was: callers restore the file.
    /// - On cgroup v1 a new memory limit sets `memory.memsw.limit_in_bytes` too, where that file exists.
    ///
    /// Errors: [`Problem::Invalid`] for values the kernel could not hold (nothing is sent), [`Problem::Refused`] when
    /// the kernel or the runtime refused (the stored spec is as before), [`Problem::Deadline`] when it is unknown
    /// whether it happened: read back.
    async fn update(&self, id: &str, resources: &CriResources) -> Result<(), RuntimeError>;

    /// Runs a command in a container, as the container's own user, and waits for its end; at the deadline the runtime ends it.
    ///
    /// Errors: [`Problem::Deadline`] also when it has ended and left processes that hold its output;
    /// [`Problem::Refused`] when it cannot be started, or printed more than is read.
    async fn exec(&self, id: &str, command: &[String], deadline: Duration) -> Result<Executed, RuntimeError>;

    /// Has a signal sent to the container's first process, by the runtime: CRI has no call for that, but containerd does.
    ///
    /// Errors: [`Problem::Unimplemented`] where the runtime has no such call; and as [`Self::stored`].
    async fn signal(&self, id: &str, signal: u32) -> Result<(), RuntimeError>;

    /// The host's number of the container's first process, if the runtime tells.
    ///
    /// Errors: as [`Self::stored`].
    async fn first_process(&self, id: &str) -> Result<Option<i32>, RuntimeError>;

    /// Starts following what happens, until the stream is dropped.
    fn events(&self) -> EventStream;
}

/// A command that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    pub exit_code: i32,
    /// The beginning of what it printed.
    pub output: String,
}

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

/// A running container as the runtime's list has it: who it is, and nothing of what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: String,
    /// Its name in the pod (label `io.kubernetes.container.name`).
    pub name: String,
    /// As the kubelet labelled it; of a static pod the UID is the hash of its manifest.
    pub pod: PodId,
    /// How often the kubelet had started this container before.
    pub restart_count: u32,
    /// When it was made, shortly before its process started.
    pub created_at: Option<Timestamp>,
}

/// The answer to "which containers run".
#[derive(Debug, Default)]
pub struct Listing {
    /// The running containers of pods, in the runtime's order.
    pub containers: Vec<ListedContainer>,
    /// Entries that do not say whose container it is: one error for each, naming it. The others are unaffected.
    pub unusable: Vec<RuntimeError>,
}
