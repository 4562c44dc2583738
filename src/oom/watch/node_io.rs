//! What can be found out about a kill right after it, from files that may be gone a moment later.

use super::kill_counters::CounterTree;
use crate::model::CgroupPath;
use crate::oom::kill::Invoker;
use crate::oom::report::Role;
use crate::oom::summary::Limit;

/// The node around a kill.
pub(super) trait NodeIo: CounterTree {
    /// The memory of a cgroup now; `None` if it is gone.
    fn memory(&self, cgroup: &CgroupPath) -> Option<CgroupMemory>;
    /// The cgroup that is killed as a whole when a process in this one is killed for that limit
    /// (`mem_cgroup_get_oom_group`): the outermost with `memory.oom.group` set, up to the one whose limit it is.
    fn group_of(&self, cgroup: &CgroupPath, limit: &Limit) -> Option<CgroupPath>;
    /// The processes in a cgroup and below it; `None` if it is gone.
    fn processes(&self, cgroup: &CgroupPath) -> Option<Vec<u32>>;
    /// Whether this task is one of the agent's own threads.
    fn is_own_thread(&self, invoker: &Invoker) -> bool;
}

/// What a cgroup's files say of its memory. Bytes; `None` without a limit, and where the kernel has no such file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CgroupMemory {
    pub(super) limit: Option<u64>,
    pub(super) usage: Option<u64>,
    /// The most that was ever used.
    pub(super) peak: Option<u64>,
}

/// What `/proc` still knew of a victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcProbe {
    /// Where it was; `/` says nothing.
    pub(super) cgroup: Option<CgroupPath>,
    /// What it was to its container.
    pub(super) role: Role,
}

impl ProcProbe {
    pub(super) const NONE: Self = Self {
        cgroup: None,
        role: Role::Unspecified,
    };
}
