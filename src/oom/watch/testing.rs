//! A kernel for tests: cgroups with counters that behave like the kernel's.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;

use super::kill_counters::CounterTree;
use super::node::NodeIo;
use crate::model::CgroupPath;
use crate::oom::counters::{Count, Reading};
use crate::oom::kill::Limit;
use crate::oom::report::HitLimit;

const UIDS: [&str; 2] = [
    "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c77",
    "6c4b2d1e-7a55-4d6b-9c3e-2f0b8a9d1c78",
];

/// Cgroups with counters.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    counters: RefCell<BTreeMap<CgroupPath, Reading>>,
    /// Whether counters count kills in their own cgroup alone.
    pub(super) local: bool,
    made: u64,
    /// The cgroups of all kills, in order.
    pub(super) killed: RefCell<Vec<CgroupPath>>,
    /// Cgroups with `memory.oom.group`.
    pub(super) groups: BTreeSet<CgroupPath>,
    pub(super) processes: BTreeMap<CgroupPath, Vec<u32>>,
    pub(super) memory: BTreeMap<CgroupPath, HitLimit>,
    /// Cgroups whose counters cannot be read.
    pub(super) unreadable: BTreeSet<CgroupPath>,
    /// Cgroups in which no others can be listed.
    pub(super) unlisted: BTreeSet<CgroupPath>,
    pub(super) own_threads: BTreeSet<u32>,
}

impl Kernel {
    pub(super) fn has(&self, path: &CgroupPath) -> bool {
        self.counters.borrow().contains_key(path)
    }

    pub(super) fn make(&mut self, path: &CgroupPath) {
        let outer: Vec<_> = std::iter::successors(Some(path.clone()), CgroupPath::parent).collect();
        for path in outer {
            self.made += 1;
            let (inode, count) = (self.made, Count::default());
            let fresh = Reading { inode, count };
            self.counters.get_mut().entry(path).or_insert(fresh);
        }
    }

    /// Another cgroup with the same inode replaces this one.
    pub(super) fn replace(&mut self, path: &CgroupPath) {
        let counters = self.counters.get_mut();
        if let Some(reading) = counters.get_mut(path) {
            reading.count = Count::default();
        }
    }

    pub(super) fn remove(&mut self, path: &CgroupPath) {
        self.counters.get_mut().retain(|other, _| other.below(path).is_none());
    }

    pub(super) fn kill(&self, path: &CgroupPath) {
        self.killed.borrow_mut().push(path.clone());
        for (other, reading) in self.counters.borrow_mut().iter_mut() {
            if other == path || (!self.local && path.below(other).is_some()) {
                reading.count.kills += 1;
            }
        }
    }
}

impl CounterTree for Kernel {
    fn read(&self, cgroup: &CgroupPath) -> anyhow::Result<Option<Reading>> {
        ensure!(!self.unreadable.contains(cgroup), "{cgroup}: cannot be read");
        Ok(self.counters.borrow().get(cgroup).copied())
    }

    fn children(&self, cgroup: &CgroupPath) -> anyhow::Result<Vec<CgroupPath>> {
        ensure!(!self.unlisted.contains(cgroup), "{cgroup}: cannot be listed");
        let counters = self.counters.borrow();
        let inside = counters.keys().filter(|path| path.parent().as_ref() == Some(cgroup));
        Ok(inside.cloned().collect())
    }

    fn machine_kills(&self) -> Option<u64> {
        u64::try_from(self.killed.borrow().len()).ok()
    }
}

impl NodeIo for Kernel {
    fn memory(&self, cgroup: &CgroupPath) -> Option<HitLimit> {
        let limited = HitLimit {
            cgroup: Some(cgroup.to_string()),
            limit_bytes: Some(64 << 20),
            ..HitLimit::default()
        };
        let memory = self.memory.get(cgroup).cloned().unwrap_or(limited);
        self.has(cgroup).then_some(memory)
    }

    fn group_of(&self, cgroup: &CgroupPath, _limit: &Limit) -> Option<CgroupPath> {
        self.groups.contains(cgroup).then(|| cgroup.clone())
    }

    fn processes(&self, cgroup: &CgroupPath) -> Option<Vec<u32>> {
        self.has(cgroup)
            .then(|| self.processes.get(cgroup).cloned().unwrap_or_default())
    }

    fn is_own_thread(&self, task: u32) -> bool {
        self.own_threads.contains(&task)
    }
}

pub(super) fn root() -> CgroupPath {
    CgroupPath::new("/kubepods").unwrap()
}

pub(super) fn container(pod: usize, number: usize) -> CgroupPath {
    CgroupPath::new(&format!("/kubepods/burstable/pod{}/{number:064x}", UIDS[pod])).unwrap()
}
