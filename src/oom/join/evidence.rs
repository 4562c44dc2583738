//! A kill, and how well it is known.

use std::sync::Arc;
use std::time::Duration;

use crate::cgroup::{CgroupPath, ContainerPlace, Place, PodPlace};
use crate::oom::kill::{Kill, Level};

/// One kill, told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomKill {
    /// Where a process was killed: a container, a cgroup in one, or one that has nothing to do with pods.
    pub cgroup: Option<CgroupPath>,
    /// Who was killed, and how that is known.
    pub evidence: Evidence,
    /// The cgroup whose counter rose by this kill, or will; `None` where no counter is known to have.
    pub counted_in: Option<CgroupPath>,
    /// The number of the record that this kill uses up; `None` where it is known by a counter alone. Of several
    /// candidates it is any one, so that each record is used up once.
    pub record: Option<u64>,
    /// When it was logged, or the counter seen to have risen.
    pub at: Duration,
}

/// How a kill is known, from the most certain to the least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The kernel logged the process with its cgroup.
    Named(Box<Kill>),
    /// The kernel logged the process, and `/proc` still showed its cgroup.
    Procfs(Box<Kill>),
    /// The kernel logged the process, and this was the only counter that rose.
    OnlyCounter(Box<Kill>),
    /// The counter rose, and so did others: the victim is one of these, unless its record was lost.
    Ambiguous(Arc<[Arc<Kill>]>),
    /// The counter rose, and nothing was logged: the log was lost, or cannot be read.
    CounterAlone,
    /// The kernel logged the process, and no counter rose: it was in none that is watched, or its cgroup is gone.
    LogAlone(Box<Kill>),
}

impl Evidence {
    /// The evidence in the words of reports and metrics.
    #[must_use]
    pub const fn confidence(&self) -> &'static str {
        match self {
            Self::Named(_) => "exact",
            Self::Procfs(_) => "procfs",
            Self::OnlyCounter(_) => "only-counter-that-rose",
            Self::Ambiguous(_) => "ambiguous",
            Self::CounterAlone => "counter-alone",
            Self::LogAlone(_) => "log-alone",
        }
    }
}

impl OomKill {
    pub(super) fn counter_alone(cgroup: CgroupPath, at: Duration) -> Self {
        Self {
            cgroup: Some(cgroup.clone()),
            evidence: Evidence::CounterAlone,
            counted_in: Some(cgroup),
            record: None,
            at,
        }
    }

    /// Logged so late that another one, logged as late, may have been the one that was counted there.
    pub(super) fn late(kill: Arc<Kill>, cgroup: CgroupPath, at: Duration) -> Self {
        Self {
            cgroup: Some(cgroup.clone()),
            record: kill.seq,
            evidence: Evidence::Ambiguous(Arc::from([kill])),
            counted_in: Some(cgroup),
            at,
        }
    }

    pub(super) fn log_alone(kill: Kill, at: Duration) -> Self {
        Self {
            cgroup: None,
            record: kill.seq,
            evidence: Evidence::LogAlone(Box::new(kill)),
            counted_in: None,
            at,
        }
    }

    /// The victim, if it is known.
    #[must_use]
    pub fn victim(&self) -> Option<&Kill> {
        match &self.evidence {
            Evidence::Named(kill) | Evidence::Procfs(kill) | Evidence::OnlyCounter(kill) | Evidence::LogAlone(kill) => {
                Some(kill)
            }
            Evidence::Ambiguous(_) | Evidence::CounterAlone => None,
        }
    }

    /// Whether it is known where this victim was.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        match self.evidence {
            Evidence::Named(_) | Evidence::Procfs(_) | Evidence::OnlyCounter(_) => true,
            Evidence::Ambiguous(_) | Evidence::CounterAlone | Evidence::LogAlone(_) => false,
        }
    }

    /// The level whose limit was hit. Of several candidates, the one they have in common.
    #[must_use]
    pub fn level(&self) -> Level {
        match (&self.evidence, self.victim()) {
            (_, Some(kill)) => kill.limit.level(),
            (Evidence::Ambiguous(candidates), None) => {
                let first = candidates.first().map_or(Level::Unknown, |kill| kill.limit.level());
                let agree = candidates.iter().all(|kill| kill.limit.level() == first);
                if agree { first } else { Level::Unknown }
            }
            (_, None) => Level::Unknown,
        }
    }

    /// The pod and container that lost a process, read from the cgroup's path.
    #[must_use]
    pub fn place(&self) -> (Option<PodPlace>, Option<ContainerPlace>) {
        match self.cgroup.as_ref().and_then(Place::parse) {
            Some(Place::Container(pod, container)) => (Some(pod), Some(container)),
            Some(Place::Pod(pod) | Place::Other(pod)) => (Some(pod), None),
            Some(Place::Kubepods | Place::Qos(_)) | None => (None, None),
        }
    }
}
