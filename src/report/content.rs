//! What is delivered: one kill in detail, or, where the room for detail was used up, the count of several.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::oom::{HitLimit, Level, OomReport, ReportedContainer, ReportedPod};

/// A kill or an aggregate of kills, as a destination receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    #[serde(serialize_with = "serialize_shared", deserialize_with = "deserialize_shared")]
    Kill(Arc<OomReport>),
    /// The count of kills whose detail is gone.
    #[serde(rename = "folded")]
    Aggregate(Box<Aggregate>),
}

/// Kills whose detail is gone: the room for it was used up, or one took too much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aggregate {
    pub node: String,
    /// The id of the oldest of them.
    pub first_id: String,
    pub first: Timestamp,
    pub last: Timestamp,
    /// How many there were; at least 1.
    pub count: u64,
    /// The pod, where it is the same for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ReportedPod>,
    /// The container, where it is the same for all; the id is the last one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ReportedContainer>,
    /// The level whose limit was hit; unknown where it is not the same for all.
    pub level: Level,
    /// The limit at the last of them, the highest usage and the highest peak; of different containers nothing.
    #[serde(default)]
    pub limit: HitLimit,
    /// The container's own limit, likewise, where all of them were for want of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_limit: Option<HitLimit>,
}

impl Report {
    /// The idempotency key: the same for the same report across retries and restarts, on all nodes no other's.
    pub fn id(&self) -> Cow<'_, str> {
        match self {
            Self::Kill(kill) => Cow::Borrowed(&kill.id),
            // An aggregate that grows is another report, with another count.
            Self::Aggregate(sum) => Cow::Owned(format!("{}+{}", sum.first_id, sum.count)),
        }
    }

    /// How many kills it tells of.
    pub const fn count(&self) -> u64 {
        match self {
            Self::Kill(_) => 1,
            Self::Aggregate(sum) => sum.count,
        }
    }

    /// When the kill, or the first of them, was.
    pub fn first(&self) -> Timestamp {
        match self {
            Self::Kill(kill) => kill.time,
            Self::Aggregate(sum) => sum.first,
        }
    }

    /// When the kill, or the last of them, was.
    pub fn last(&self) -> Timestamp {
        match self {
            Self::Kill(kill) => kill.time,
            Self::Aggregate(sum) => sum.last,
        }
    }

    /// Whose container it was, where that is certain.
    pub fn pod(&self) -> Option<&ReportedPod> {
        match self {
            Self::Kill(kill) => kill.pod.as_ref(),
            Self::Aggregate(sum) => sum.pod.as_ref(),
        }
    }

    /// The container, where it is certain.
    pub fn container(&self) -> Option<&ReportedContainer> {
        match self {
            Self::Kill(kill) => kill.container.as_ref(),
            Self::Aggregate(sum) => sum.container.as_ref(),
        }
    }

    /// The pod and the container, to complete their names.
    pub(super) fn pod_and_container_mut(&mut self) -> (Option<&mut ReportedPod>, Option<&mut ReportedContainer>) {
        match self {
            Self::Kill(kill) => {
                let kill = Arc::make_mut(kill);
                (kill.pod.as_mut(), kill.container.as_mut())
            }
            Self::Aggregate(sum) => (sum.pod.as_mut(), sum.container.as_mut()),
        }
    }

    /// The level whose limit was hit.
    pub fn level(&self) -> Level {
        match self {
            Self::Kill(kill) => kill.level,
            Self::Aggregate(sum) => sum.level,
        }
    }

    /// The container's own limit, where that was hit as well.
    pub fn container_limit(&self) -> Option<&HitLimit> {
        match self {
            Self::Kill(kill) => kill.container_limit.as_ref(),
            Self::Aggregate(sum) => sum.container_limit.as_ref(),
        }
    }

    /// Whose limit it was: see [`OomReport::limit_of`].
    pub fn limit_of(&self) -> Level {
        match self.container_limit() {
            Some(_) => Level::Container,
            None => self.level(),
        }
    }

    /// The limit that was hit.
    pub fn limit(&self) -> &HitLimit {
        match self {
            Self::Kill(kill) => &kill.limit,
            Self::Aggregate(sum) => &sum.limit,
        }
    }

    /// The kill, unless its detail is gone.
    pub const fn kill(&self) -> Option<&Arc<OomReport>> {
        match self {
            Self::Kill(kill) => Some(kill),
            Self::Aggregate(_) => None,
        }
    }

    /// The report without its detail.
    pub fn into_aggregate(self) -> Aggregate {
        match self {
            Self::Aggregate(sum) => *sum,
            Self::Kill(kill) => Aggregate {
                node: kill.node.clone(),
                first_id: kill.id.clone(),
                first: kill.time,
                last: kill.time,
                count: 1,
                pod: kill.pod.clone(),
                container: kill.container.clone(),
                level: kill.level,
                limit: kill.limit.clone(),
                container_limit: kill.container_limit.clone(),
            },
        }
    }
}

fn serialize_shared<S: Serializer>(kill: &Arc<OomReport>, serializer: S) -> Result<S::Ok, S::Error> {
    kill.as_ref().serialize(serializer)
}

fn deserialize_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<OomReport>, D::Error> {
    OomReport::deserialize(deserializer).map(Arc::new)
}

impl From<OomReport> for Report {
    fn from(kill: OomReport) -> Self {
        Self::Kill(Arc::new(kill))
    }
}

impl From<Arc<OomReport>> for Report {
    fn from(kill: Arc<OomReport>) -> Self {
        Self::Kill(kill)
    }
}

impl Aggregate {
    /// Adds younger kills of the same container and level.
    pub(super) fn add(&mut self, younger: Self) {
        self.count = self.count.saturating_add(younger.count);
        self.first = self.first.min(younger.first);
        let is_last = younger.last >= self.last;
        if is_last {
            self.last = younger.last;
            self.container = younger.container;
        }
        add_limit(&mut self.limit, younger.limit, is_last);
        match (&mut self.container_limit, younger.container_limit) {
            (Some(limit), Some(younger)) => add_limit(limit, younger, is_last),
            (limit, _) => *limit = None,
        }
    }

    /// The count as one of the whole node.
    pub(super) fn of_node(self) -> Self {
        Self {
            pod: None,
            container: None,
            level: Level::Unspecified,
            limit: HitLimit::default(),
            container_limit: None,
            ..self
        }
    }
}

fn add_limit(limit: &mut HitLimit, younger: HitLimit, is_last: bool) {
    if is_last {
        limit.cgroup = younger.cgroup;
        limit.limit_bytes = younger.limit_bytes.or(limit.limit_bytes);
    }
    limit.usage_bytes = limit.usage_bytes.max(younger.usage_bytes);
    limit.peak_bytes = limit.peak_bytes.max(younger.peak_bytes);
}
