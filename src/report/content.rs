//! What is told: one kill in detail, or, where the room for detail was used up, how many there were.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::oom::{HitLimit, Level, OomReport, ReportedContainer, ReportedPod};

/// What a destination is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// One kill.
    Kill(Box<OomReport>),
    /// The count of kills whose detail is gone.
    Folded(Box<Folded>),
}

/// Kills whose detail is gone: the room for it was used up, or one took too much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Folded {
    /// The node's name.
    pub node: String,
    /// The id of the oldest of them.
    pub first_id: String,
    /// When the first was.
    pub first: Timestamp,
    /// When the last was.
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
}

impl Report {
    /// The idempotency key: the same for the same report across retries and restarts, on all nodes no other's.
    #[must_use]
    pub fn id(&self) -> Cow<'_, str> {
        match self {
            Self::Kill(kill) => Cow::Borrowed(&kill.id),
            // What is folded once more is another report, and has another count.
            Self::Folded(folded) => Cow::Owned(format!("{}+{}", folded.first_id, folded.count)),
        }
    }

    /// How many kills it tells of.
    #[must_use]
    pub const fn count(&self) -> u64 {
        match self {
            Self::Kill(_) => 1,
            Self::Folded(folded) => folded.count,
        }
    }

    /// When the kill, or the first of them, was.
    #[must_use]
    pub const fn first(&self) -> Timestamp {
        match self {
            Self::Kill(kill) => kill.time,
            Self::Folded(folded) => folded.first,
        }
    }

    /// When the kill, or the last of them, was.
    #[must_use]
    pub const fn last(&self) -> Timestamp {
        match self {
            Self::Kill(kill) => kill.time,
            Self::Folded(folded) => folded.last,
        }
    }

    /// Whose container it was, where that is certain.
    #[must_use]
    pub const fn pod(&self) -> Option<&ReportedPod> {
        match self {
            Self::Kill(kill) => kill.pod.as_ref(),
            Self::Folded(folded) => folded.pod.as_ref(),
        }
    }

    /// The container, where it is certain.
    #[must_use]
    pub const fn container(&self) -> Option<&ReportedContainer> {
        match self {
            Self::Kill(kill) => kill.container.as_ref(),
            Self::Folded(folded) => folded.container.as_ref(),
        }
    }

    /// Both, to be named.
    pub(super) const fn whose_mut(&mut self) -> (Option<&mut ReportedPod>, Option<&mut ReportedContainer>) {
        match self {
            Self::Kill(kill) => (kill.pod.as_mut(), kill.container.as_mut()),
            Self::Folded(folded) => (folded.pod.as_mut(), folded.container.as_mut()),
        }
    }

    /// The level whose limit was hit.
    #[must_use]
    pub const fn level(&self) -> Level {
        match self {
            Self::Kill(kill) => kill.level,
            Self::Folded(folded) => folded.level,
        }
    }

    /// The limit that was hit.
    #[must_use]
    pub const fn limit(&self) -> &HitLimit {
        match self {
            Self::Kill(kill) => &kill.limit,
            Self::Folded(folded) => &folded.limit,
        }
    }

    /// This without its detail.
    #[must_use]
    pub fn folded(self) -> Folded {
        match self {
            Self::Folded(folded) => *folded,
            Self::Kill(kill) => Folded {
                node: kill.node,
                first_id: kill.id,
                first: kill.time,
                last: kill.time,
                count: 1,
                pod: kill.pod,
                container: kill.container,
                level: kill.level,
                limit: kill.limit,
            },
        }
    }
}

impl From<OomReport> for Report {
    fn from(kill: OomReport) -> Self {
        Self::Kill(Box::new(kill))
    }
}

impl Folded {
    /// Counts younger kills of the same container and level into this.
    pub(super) fn count_in(&mut self, younger: Self) {
        self.count = self.count.saturating_add(younger.count);
        self.first = self.first.min(younger.first);
        if younger.last >= self.last {
            self.last = younger.last;
            self.container = younger.container;
            self.limit.cgroup = younger.limit.cgroup;
            self.limit.limit_bytes = younger.limit.limit_bytes.or(self.limit.limit_bytes);
        }
        self.limit.usage_bytes = self.limit.usage_bytes.max(younger.limit.usage_bytes);
        self.limit.peak_bytes = self.limit.peak_bytes.max(younger.limit.peak_bytes);
    }

    /// Leaves out what distinguishes it from the kills of other containers.
    pub(super) fn coarsened(self) -> Self {
        Self {
            pod: None,
            container: None,
            level: Level::Unknown,
            limit: HitLimit::default(),
            ..self
        }
    }
}
