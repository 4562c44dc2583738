//! What a runtime tells about itself and its containers, typed and checked.

use jiff::Timestamp;

use crate::model::objects::PodId;
use crate::model::{Driver, RuntimeKind};

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
