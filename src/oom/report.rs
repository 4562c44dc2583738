//! The report of an OOM kill: the form in which the agent stores a kill and delivers it to receivers and to
//! `vscalectl`.
//!
//! A report is plain data that outlives the agent and the cgroups of the kill. So it has names instead of handles, and
//! numbers from the time of the kill. An unknown value is absent, never guessed.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::kill::Level;
pub use super::proto::{
    Confidence, Container as ReportedContainer, Evidence, HitLimit, Memory as ReportedMemory, Pod as ReportedPod, Role,
    Victim,
};
use crate::model::Bytes;

/// One kill. Each receiver gets it at least once, always with the same [`id`](Self::id).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomReport {
    /// The idempotency key: the same for this kill across retries and restarts of the agent,
    /// and unique among all nodes.
    pub id: String,
    /// When the kernel killed, by the wall clock. For a kill without a record, when the agent read the counter's rise.
    pub time: Timestamp,
    #[serde(flatten)]
    pub facts: KillFacts,
    /// The cgroup that lost a process, from the root of the hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The killed process, if it is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim: Option<Victim>,
    /// The ids of all processes of the group, if the kernel killed a cgroup as a whole (`memory.oom.group`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<u32>,
    /// The agent's own change that lowered the limit shortly before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_write: Option<OwnWrite>,
    /// The evidence that a hook of the container left behind shortly before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    pub confidence: Confidence,
    /// The possible victims, with [`Confidence::Ambiguous`].
    #[serde(default, skip_serializing_if = "<[Victim]>::is_empty")]
    pub candidates: Candidates,
    /// The number of possible victims beyond [`Self::candidates`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_candidates: u32,
    /// Whether the kill happened while no agent ran.
    #[serde(default)]
    pub while_down: bool,
}

/// The container that lost a process, and the limit that was hit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KillFacts {
    /// The node's name; empty if the configuration has none.
    pub node: String,
    /// The pod of the container that lost a process; absent if there is none, or none is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ReportedPod>,
    /// The container that lost a process; absent if the victim was in a pod's own cgroup,
    /// or the container is uncertain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ReportedContainer>,
    /// The level whose limit the kernel enforced.
    pub level: Level,
    /// The limit that the kernel enforced, and the usage.
    #[serde(default)]
    pub limit: HitLimit,
    /// The container's own limit, if the container had reached it, too: a container that has used up its limit
    /// brings its pod to the pod's limit, which the kernel enforces first. Then the container's limit caused the
    /// kill at the pod's level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_limit: Option<HitLimit>,
}

impl KillFacts {
    /// The level of the limit that caused the kill: the container, if it had reached
    /// its own limit, else [`Self::level`].
    pub const fn limit_of(&self) -> Level {
        match self.container_limit {
            Some(_) => Level::Container,
            None => self.level,
        }
    }
}

impl ReportedPod {
    /// Its namespace and name, or its UID if the agent has found only its cgroup.
    pub fn full_name(&self) -> String {
        match self.name.as_str() {
            "" => self.uid.clone(),
            name => format!("{}/{name}", self.namespace),
        }
    }
}

impl ReportedMemory {
    /// The sum of its anonymous, file and shared memory.
    pub fn rss(&self) -> Bytes {
        let parts = [self.anon_rss_bytes, self.file_rss_bytes, self.shmem_rss_bytes];
        parts.into_iter().map(Bytes::new).sum()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Possible victims: in a flood many kills share one list.
pub type Candidates = Arc<[Victim]>;

/// The agent's own change that a kill is blamed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnWrite {
    pub time: Timestamp,
    /// The file with its old and its new value, in words.
    pub what: String,
}
