//! What is delivered: one kill in detail, or, where the room for detail was used up, the count of several.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::oom::{HitLimit, KillFacts, OomReport};

/// A kill or an aggregate of kills, as a destination receives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    #[serde(with = "crate::oom::shared")]
    Kill(Arc<OomReport>),
    /// The count of kills whose detail is gone.
    #[serde(rename = "folded")]
    Aggregate(Box<Aggregate>),
}

/// Kills whose detail is gone: the room for it was used up, or one took too much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aggregate {
    /// The id of the oldest of them.
    pub first_id: String,
    pub first: Timestamp,
    pub last: Timestamp,
    /// How many there were; at least 1.
    pub count: u64,
    /// What is the same for all: pod, container (the id is the last one's) and level; the limit at the last of them, the
    /// highest usage and the highest peak; the container's own limit, likewise, where all of them were for want of it.
    #[serde(flatten)]
    pub facts: KillFacts,
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

    /// Whose container it was, where that is certain, and for want of which limit.
    pub fn facts(&self) -> &KillFacts {
        match self {
            Self::Kill(kill) => &kill.facts,
            Self::Aggregate(sum) => &sum.facts,
        }
    }

    /// The same, to complete names.
    pub(super) fn facts_mut(&mut self) -> &mut KillFacts {
        match self {
            Self::Kill(kill) => &mut Arc::make_mut(kill).facts,
            Self::Aggregate(sum) => &mut sum.facts,
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
                first_id: kill.id.clone(),
                first: kill.time,
                last: kill.time,
                count: 1,
                facts: kill.facts.clone(),
            },
        }
    }
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
            self.facts.container = younger.facts.container;
        }
        add_limit(&mut self.facts.limit, younger.facts.limit, is_last);
        match (&mut self.facts.container_limit, younger.facts.container_limit) {
            (Some(limit), Some(younger)) => add_limit(limit, younger, is_last),
            (limit, _) => *limit = None,
        }
    }

    /// The count as one of the whole node.
    pub(super) fn of_node(self) -> Self {
        let facts = KillFacts {
            node: self.facts.node,
            ..KillFacts::default()
        };
        Self { facts, ..self }
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
