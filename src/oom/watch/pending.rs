//! A kill that was found and is not told yet, because more of it is to come: the rest of its group, or names.

use std::time::Duration;

use jiff::Timestamp;

use super::pod_names::{Owner, PodNames};
use crate::model::CgroupPath;
use crate::oom::join::OomKill;
use crate::oom::kill::{Kill, Level};
use crate::oom::report::{Candidates, HitLimit, OomReport, ReportedMemory, Role, Victim};
use crate::oom::summary::Limit;

/// How long the report of a kill waits for the agent to learn whose container it is.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

/// A kill, as far as it is known, with everything it counts for.
#[derive(Debug)]
pub(super) struct PendingKill {
    pub(super) kill: OomKill,
    pub(super) since: Duration,
    pub(super) time: Timestamp,
    pub(super) while_down: bool,
    pub(super) victim: Option<Victim>,
    pub(super) candidates: Candidates,
    pub(super) more_candidates: u32,
    pub(super) limit: HitLimit,
    pub(super) container_limit: Option<HitLimit>,
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

    /// The report; what blame there is, is not in it yet.
    pub(super) fn report(self, id: String, node: &str, names: &PodNames) -> OomReport {
        let Owner { pod, container, .. } = self.owner(names);
        OomReport {
            id,
            node: node.to_owned(),
            time: self.time,
            pod,
            container,
            cgroup: self.kill.cgroup.as_ref().map(ToString::to_string),
            level: level(&self.kill, names),
            limit: self.limit,
            container_limit: self.container_limit,
            victim: self.victim,
            group: self
                .group
                .map(|group| group.pids)
                .filter(|pids| pids.len() > 1)
                .unwrap_or_default(),
            own_write: None,
            confidence: self.kill.confidence,
            candidates: self.candidates,
            more_candidates: self.more_candidates,
            while_down: self.while_down,
        }
    }
}

/// The level whose limit was hit. Of several candidates, the one they have in common.
fn level(kill: &OomKill, names: &PodNames) -> Level {
    let of = |kill: &Kill| match &kill.limit {
        Limit::Cgroup(cgroup) => names.level(cgroup),
        Limit::Node => Level::Node,
        Limit::Unknown => Level::Unknown,
    };
    let mut levels = kill.processes.iter().map(|kill| of(kill));
    let first = levels.next().unwrap_or(Level::Unknown);
    if levels.all(|level| level == first) {
        first
    } else {
        Level::Unknown
    }
}

/// A process as it is reported.
pub(super) fn victim(kill: &Kill, role: Role) -> Victim {
    Victim {
        pid: kill.pid,
        comm: kill.comm.clone(),
        role,
        memory: Some(ReportedMemory {
            total_vm_bytes: kill.memory.total_vm.get(),
            anon_rss_bytes: kill.memory.anon_rss.get(),
            file_rss_bytes: kill.memory.file_rss.get(),
            shmem_rss_bytes: kill.memory.shmem_rss.get(),
        }),
        oom_score_adj: kill.oom_score_adj,
        uid: kill.uid,
    }
}
