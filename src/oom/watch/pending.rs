//! A kill that was found and is not told yet, because more of it is to come: the rest of its group, or names.

use std::time::Duration;

use super::pod_names::{Owner, PodNames};
use crate::model::CgroupPath;
use crate::oom::join::OomKill;
use crate::oom::report::OomReport;

/// How long the report of a kill waits for the agent to learn whose container it is.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

/// A kill, as far as it is known, with everything it counts for.
#[derive(Debug)]
pub(super) struct PendingKill {
    pub(super) kill: OomKill,
    pub(super) since: Duration,
    /// What is known when the kill is found: all but its names, its group and who is to blame.
    pub(super) report: OomReport,
    pub(super) group: Option<PendingGroup>,
    /// The records that are told with it.
    pub(super) records: Vec<u64>,
    /// The kills that are counted with it, each by its cgroup.
    pub(super) counted: Vec<CgroupPath>,
    /// The second countings that are, likewise.
    pub(super) again: Vec<CgroupPath>,
}

/// The group that a kill is part of.
#[derive(Debug)]
pub(super) struct PendingGroup {
    pub(super) cgroup: CgroupPath,
    pub(super) pids: Vec<u32>,
    /// When the last of it was logged or found.
    pub(super) last: Duration,
}

impl PendingKill {
    /// Whether this is the kill of a group that this cgroup is in.
    pub(super) fn is_group_of(&self, cgroup: &CgroupPath) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| cgroup.below(&group.cgroup).is_some())
    }

    /// Takes in another victim of the group.
    pub(super) fn add_victim(&mut self, other: OomKill, now: Duration) {
        let pid = other.victim().map(|kill| kill.pid);
        if let Some(group) = &mut self.group {
            group.pids.extend(pid);
            group.last = now;
        }
        self.records.extend(other.record);
        self.counted.extend(other.cgroup);
    }

    /// Whose cgroup lost a process.
    pub(super) fn owner(&self, names: &PodNames) -> Owner {
        // Where the kernel shows a task that was already leaving, it was in the cgroup whose limit was hit, or below.
        let limit = || self.kill.victim().and_then(|kill| kill.limit.cgroup());
        let cgroup = self.kill.cgroup.as_ref().or_else(limit);
        cgroup.map(|cgroup| names.owner(cgroup)).unwrap_or_default()
    }

    /// Until when to wait for the agent to learn names.
    pub(super) fn names_due(&self) -> Duration {
        self.since + NAMES_WITHIN
    }
}
