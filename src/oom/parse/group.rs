//! A cgroup that is killed as a whole (`memory.oom.group`).
//!
//! The kernel logs the chosen victim, then the name of the group, then every process in it, the chosen one a second time
//! (`oom_kill_process`, from Linux 4.19 to at least 7.2). Nothing marks the end. The next kill of its own begins with a
//! report, unless reports are being kept back: then a kill after the name may be a stranger's, and is not explained.

use std::collections::HashSet;

use crate::cgroup::CgroupPath;
use crate::oom::kill::{Invoker, Kill};
use crate::oom::message::LimitUsage;
use crate::oom::summary::Limit;
use crate::oom::within;

/// The kill of a group, from its name on.
#[derive(Debug)]
pub(super) struct Group {
    cgroup: CgroupPath,
    victims: HashSet<u32>,
    limit: Limit,
    usage: Option<LimitUsage>,
    invoker: Option<Invoker>,
    certain: bool,
    last: Option<u64>,
}

impl Group {
    /// A group was named. `chosen` is the latest kill before it.
    pub(super) fn open(at: Option<u64>, cgroup: CgroupPath, chosen: Option<Kill>, may_suppress: bool) -> Self {
        let is_member = |kill: &Kill| {
            kill.task_cgroup
                .as_ref()
                .is_none_or(|task| task.below(&cgroup).is_some())
        };
        let chosen = chosen.filter(is_member);
        let was_reported = chosen.as_ref().is_some_and(|kill| kill.task_cgroup.is_some());
        Self {
            victims: chosen.iter().map(|kill| kill.pid).collect(),
            limit: chosen.as_ref().map_or(Limit::Unknown, |kill| kill.limit.clone()),
            usage: chosen.as_ref().and_then(|kill| kill.usage),
            invoker: chosen.and_then(|kill| kill.invoker),
            cgroup,
            certain: was_reported && !may_suppress,
            last: at,
        }
    }

    /// Takes the next kill. Returns whether it is the first of this process.
    pub(super) fn insert(&mut self, at: Option<u64>, pid: u32) -> bool {
        self.last = at;
        self.victims.insert(pid)
    }

    /// Whether a kill at this time is too late to belong here.
    pub(super) fn is_over(&self, at: Option<u64>) -> bool {
        !within(self.last, at)
    }

    /// Whether every kill up to the next report belongs here.
    pub(super) const fn is_certain(&self) -> bool {
        self.certain
    }

    pub(super) const fn cgroup(&self) -> &CgroupPath {
        &self.cgroup
    }

    pub(super) const fn limit(&self) -> &Limit {
        &self.limit
    }

    pub(super) const fn usage(&self) -> Option<LimitUsage> {
        self.usage
    }

    pub(super) const fn invoker(&self) -> Option<&Invoker> {
        self.invoker.as_ref()
    }
}
