//! A cgroup that is killed as a whole (`memory.oom.group`).
//!
//! The kernel logs the chosen victim, then the name of the group, then every process in it, the chosen one a second time
//! (`oom_kill_process`, from Linux 4.19 to at least 7.2). Nothing marks the end. The next kill outside begins with a report,
//! unless reports are being held back: then a kill after the name may be a stranger's, and is not explained.

use std::collections::HashSet;

use super::Explanation;
use crate::model::CgroupPath;
use crate::oom::kill::Kill;
use crate::oom::summary::Cgroups;
use crate::oom::within;

/// The kill of a group, from its name on.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) cgroup: CgroupPath,
    victims: HashSet<u32>,
    /// What the report of the chosen victim says, if every kill up to the next report belongs here.
    pub(super) explanation: Option<Explanation>,
    last: Option<u64>,
}

impl Group {
    /// A group was named after the kill of `chosen`.
    pub(super) fn new(at: Option<u64>, cgroup: CgroupPath, chosen: Option<Kill>, may_suppress: bool) -> Self {
        let task = |kill: &Kill| kill.task_cgroup.clone();
        let chosen = chosen.filter(|kill| task(kill).is_none_or(|task| task.below(&cgroup).is_some()));
        let victims = chosen.iter().map(|kill| kill.pid).collect();
        let reported = chosen.filter(|kill| kill.task_cgroup.is_some() && !may_suppress);
        let explanation = reported.map(|kill| Explanation {
            cgroups: Cgroups {
                limit: kill.limit,
                task: cgroup.clone(),
            },
            invoker: kill.invoker,
            usage: kill.usage,
        });
        Self {
            cgroup,
            victims,
            explanation,
            last: at,
        }
    }

    /// Adds the next kill. Returns whether it is the first of this process.
    pub(super) fn insert(&mut self, at: Option<u64>, pid: u32) -> bool {
        self.last = at;
        self.victims.insert(pid)
    }

    /// Whether a kill at this time is too late to belong here.
    pub(super) fn is_over(&self, at: Option<u64>) -> bool {
        !within(self.last, at)
    }
}
