//! One OOM kill as it is told to the world: to the spool, to recommenders, to the API, to people at the socket.
//!
//! Plain data that outlives the agent and the cgroups it speaks of, so everything in it is resolved: names instead of
//! handles, numbers read at the time. What is not known is absent, never guessed.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::kill::Level;
pub use super::proto::{
    Confidence, Container as ReportedContainer, Evidence, HitLimit, Memory as ReportedMemory, Pod as ReportedPod, Role,
};
use crate::model::Bytes;

/// One kill. Told at least once to every receiver; the same kill always under the same [`id`](Self::id).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomReport {
    /// The idempotency key: the same for the same kill across retries and restarts of the agent, on all nodes no other's.
    pub id: String,
    /// When the kernel killed, by the wall clock; where only a counter tells, when its rise was seen.
    pub time: Timestamp,
    #[serde(flatten)]
    pub facts: KillFacts,
    /// The cgroup that lost a process, from the root of the hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Who was killed, where that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim: Option<Victim>,
    /// The process ids killed with this one because `memory.oom.group` is set, this one's included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group: Vec<u32>,
    /// The change of the agent's own that lowered the limit within the time this kill is blamed on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_write: Option<OwnWrite>,
    /// What a hook of the container left behind shortly before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// How the kill is known.
    pub confidence: Confidence,
    /// Who may have been the victim, where [`Confidence::Ambiguous`].
    #[serde(default, skip_serializing_if = "is_nobody", with = "shared")]
    pub candidates: Candidates,
    /// How many more may have been.
    #[serde(default, skip_serializing_if = "is_none")]
    pub more_candidates: u32,
    /// Seen when the agent started: it happened while no agent ran.
    #[serde(default)]
    pub while_down: bool,
}

/// Whose container lost a process, and for want of which limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KillFacts {
    /// The node's name; empty if the agent was not told.
    pub node: String,
    /// Whose container lost a process; absent where it belonged to no pod, or no pod is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ReportedPod>,
    /// The container that lost a process; absent with a victim in a pod's own cgroup, or where it is not certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ReportedContainer>,
    /// The level whose limit the kernel enforced.
    pub level: Level,
    /// The limit that the kernel enforced and how full it was.
    #[serde(default)]
    pub limit: HitLimit,
    /// The container's own limit, where it was hit as well: a container that has used up its limit brings its pod to the
    /// pod's limit, which the kernel enforces first. Then a kill at the pod's level is for want of this limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_limit: Option<HitLimit>,
}

impl KillFacts {
    /// Whose limit it was for want of which the kernel killed: the container's where it stood at its
    /// own, else that of [`Self::level`].
    pub const fn limit_of(&self) -> Level {
        match self.container_limit {
            Some(_) => Level::Container,
            None => self.level,
        }
    }
}

impl ReportedPod {
    /// Its namespace and name, or its UID where only a cgroup told of it.
    pub fn full_name(&self) -> String {
        match self.name.as_str() {
            "" => self.uid.clone(),
            name => format!("{}/{name}", self.namespace),
        }
    }
}

impl ReportedMemory {
    /// What it held of its own, of files and shared, together.
    pub fn rss(&self) -> Bytes {
        let parts = [self.anon_rss_bytes, self.file_rss_bytes, self.shmem_rss_bytes];
        parts.into_iter().map(Bytes::new).sum()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde passes it")]
const fn is_none(count: &u32) -> bool {
    *count == 0
}

fn is_nobody(candidates: &[Victim]) -> bool {
    candidates.is_empty()
}

/// The process that the kernel killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// Its id in the host's pid namespace.
    pub pid: u32,
    /// Its command: at most 15 bytes of its own choosing, not to be trusted.
    pub comm: String,
    /// Whether it was the container's first process.
    pub role: Role,
    /// What it held; absent where the kernel did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ReportedMemory>,
    /// `oom_score_adj`, since Linux 5.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Its user, since Linux 5.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// Processes that may have been a victim: in a flood many kills have the same.
pub type Candidates = Arc<[Victim]>;

/// Values that several hold, kept as if one did.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize + ?Sized, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    pub(crate) fn deserialize<'de, T: ?Sized, D: Deserializer<'de>>(from: D) -> Result<Arc<T>, D::Error>
    where
        Box<T>: Deserialize<'de>,
    {
        Box::deserialize(from).map(Arc::from)
    }
}

/// A change of the agent's own that a kill is blamed on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnWrite {
    pub time: Timestamp,
    /// Which file, what it held, and what was written, in words.
    pub what: String,
}
