//! A kill, and how well it is known.

use std::sync::Arc;
use std::time::Duration;

use crate::model::CgroupPath;
use crate::oom::kill::Kill;
use crate::oom::report::Confidence;

/// A kill with its cgroup, reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup that lost a process, and whose counter rose by it, or will: a container, a cgroup in one, or one that has
    /// nothing to do with pods. `None` with [`Confidence::LogAlone`].
    pub cgroup: Option<CgroupPath>,
    /// How the kill is known.
    pub confidence: Confidence,
    /// The process that was killed; with [`Confidence::Ambiguous`] those that may have been, unless the record
    /// was lost; none with [`Confidence::CounterAlone`].
    pub processes: Arc<[Arc<Kill>]>,
    /// The number of the record that this kill uses up; `None` where it is known by a counter alone. Of several processes
    /// the record is that of any one, so that each record is used up once.
    pub record: Option<u64>,
    /// When it was logged, or the counter seen to have risen.
    pub at: Duration,
}

impl OomKill {
    pub(super) fn of(kill: Arc<Kill>, cgroup: Option<CgroupPath>, confidence: Confidence, at: Duration) -> Self {
        Self {
            cgroup,
            confidence,
            record: kill.seq,
            processes: Arc::from([kill]),
            at,
        }
    }

    pub(super) fn counter_alone(cgroup: CgroupPath, at: Duration) -> Self {
        Self {
            cgroup: Some(cgroup),
            confidence: Confidence::CounterAlone,
            processes: Arc::default(),
            record: None,
            at,
        }
    }

    /// The process that was killed, if it is known.
    pub fn victim(&self) -> Option<&Kill> {
        let is_known = self.confidence != Confidence::Ambiguous;
        self.processes.first().filter(|_| is_known).map(AsRef::as_ref)
    }

    /// Whether it is known where this victim was.
    pub const fn is_certain(&self) -> bool {
        matches!(
            self.confidence,
            Confidence::Exact | Confidence::Procfs | Confidence::OnlyCounterThatRose
        )
    }
}
