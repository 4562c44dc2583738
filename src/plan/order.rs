//! The order in which a plan writes the files of a pod.
//!
//! Input: what the files hold and what they should hold. Output: single writes. After each of them, so also if the plan ends
//! early, these rules hold if they hold at the beginning and at the end:
//! - no container's limit is above its pod's: on v1 the kernel refuses such a quota (`tg_cfs_schedulable_down`,
//!   kernel/sched/core.c), on v2 it would silently not count;
//! - a quota is not below its burst ([`with_follower`]);
//! - `memory.high` is no smaller a part of its limit than it is now;
//! - v1's limit of memory and swap is not below that of memory (`mem_cgroup_resize_max`, mm/memcontrol-v1.c).
//!
//! The writes are first sorted: growing values from the pod down, then shrinking values from the containers up. Then the plan
//! takes, each time, the first write after which the rules hold. There always is one. Nothing bounds a growing value of the
//! pod; after it, a growing value of a container fits. Nothing bounds a shrinking value of a container; after it, a shrinking
//! value of the pod fits. If v1's quota and period both change, one of the two intermediate values fits: the product of the
//! intermediate ratios (new quota by old period, old quota by new period) equals the product of the ratios at both ends. So
//! when one intermediate ratio is below both ends the other is above both, and each bound has only one side.

use crate::model::{
    ControlFile, CpuMax, CpuQuota, MemoryLimit, PageSize, PodTree, Resource, Setting, Settings, Target,
};

use super::followers::with_follower;

/// One value of one file that has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) target: Target,
    pub(super) from: Setting,
    pub(super) to: Setting,
}

/// A container's limit, which must stay within its pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edge<'a> {
    pub(super) container: &'a str,
    pub(super) resource: Resource,
}

/// All writes that lead from `observed` to `desired`, in order. Files that do not exist are left out. Memory limits are
/// whole pages on both sides.
pub(super) fn ordered_writes(observed: &PodTree, desired: &PodTree, page: PageSize) -> Vec<Write> {
    let mut pending = differing(observed, desired);
    let end = observed.clone().overlaid(desired);
    let guarded: Vec<Edge<'_>> = edges(observed)
        .filter(|edge| edge.holds(observed) && edge.holds(&end))
        .collect();
    let mut state = observed.clone();
    let mut ordered = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        // There always is a write that fits, as argued above. If there were none, the kernel would decide.
        let next = pending
            .iter()
            .position(|write| fits(&mut state, write, &guarded))
            .unwrap_or(0);
        let write = pending.remove(next);
        let writes = match state.get(&write.target) {
            Some(held) => with_follower(write, held, page),
            None => vec![write],
        };
        for write in &writes {
            state.set(&write.target, write.to);
        }
        ordered.extend(writes);
    }
    ordered
}

/// Every limit of a container and the pod's limit above it.
pub(super) fn edges(tree: &PodTree) -> impl Iterator<Item = Edge<'_>> {
    tree.containers
        .keys()
        .flat_map(|container| Resource::ALL.map(|resource| Edge { container, resource }))
}

impl Edge<'_> {
    /// Whether the container's limit is within its pod's. The pod's limit binds a container without one.
    pub(super) fn holds(&self, tree: &PodTree) -> bool {
        let Some(container) = tree.containers.get(self.container) else {
            return true;
        };
        match self.resource {
            Resource::Cpu => match (container.cpu_max(), tree.pod.cpu_max()) {
                (Some(own), Some(pod)) => own.quota == CpuQuota::Max || pod.allows(own),
                _ => true,
            },
            Resource::Memory => match (container.memory_limit(), tree.pod.memory_limit()) {
                (Some(own), Some(pod)) => own == MemoryLimit::Max || own <= pod,
                _ => true,
            },
        }
    }
}

/// Whether the rules hold after this write.
fn fits(state: &mut PodTree, write: &Write, guarded: &[Edge<'_>]) -> bool {
    state.set(&write.target, write.to);
    let touched = |edge: &&Edge<'_>| match &write.target {
        Target::Pod => true,
        Target::Container(name) => edge.container == name,
    };
    let fits = guarded.iter().filter(touched).all(|edge| edge.holds(state))
        && state.get(&write.target).is_none_or(memsw_covers_memory);
    state.set(&write.target, write.from);
    fits
}

fn memsw_covers_memory(cgroup: &Settings) -> bool {
    let memsw = cgroup.get(ControlFile::MemswLimit).and_then(Setting::memory);
    match (memsw, cgroup.memory_limit()) {
        (Some(memsw), Some(memory)) => memory <= memsw,
        _ => true,
    }
}

/// The files whose values differ from the desired ones, in the preferred order: growing values of the pod, then the containers'
/// in either direction, then shrinking values of the pod.
fn differing(observed: &PodTree, desired: &PodTree) -> Vec<Write> {
    let (pod_grows, pod_shrinks) = changes(&Target::Pod, &observed.pod, &desired.pod);
    let (mut writes, mut shrinks) = (pod_grows, Vec::new());
    for (name, wanted) in &desired.containers {
        if let Some(standing) = observed.containers.get(name) {
            let (grow, shrink) = changes(&Target::Container(name.clone()), standing, wanted);
            writes.extend(grow);
            shrinks.extend(shrink);
        }
    }
    writes.extend(shrinks);
    writes.extend(pod_shrinks);
    writes
}

/// The files of one cgroup that grow, and those that shrink.
fn changes(target: &Target, observed: &Settings, desired: &Settings) -> (Vec<Write>, Vec<Write>) {
    let mut wanted = desired.clone();
    if let Some(memsw) = following_memsw(observed, desired) {
        wanted.insert(memsw);
    }
    let cpu = observed.cpu_max().zip(wanted.cpu_max());
    let cpu_shrinks = cpu.is_some_and(|(old, new)| !CpuMax::allows(new, old));
    wanted
        .iter()
        // These values follow other ones.
        .filter(|to| to.burst_us().is_none() && to.file() != ControlFile::MemoryHigh)
        .filter_map(|to| observed.get(to.file()).map(|from| (from, to)))
        .filter(|(from, to)| from != to)
        .map(|(from, to)| Write {
            target: target.clone(),
            from,
            to,
        })
        .partition(|write| match (write.from, write.to) {
            (Setting::CpuWeight(old), Setting::CpuWeight(new)) => new >= old,
            (Setting::CpuShares(old), Setting::CpuShares(new)) => new >= old,
            (old, new) => match (old.memory(), new.memory()) {
                (Some(old), Some(new)) => new >= old,
                _ => !cpu_shrinks,
            },
        })
}

/// The limit of memory and swap follows the limit of memory, as with runc and containerd, so that the container gains no swap.
/// An unbounded limit stays unbounded.
fn following_memsw(observed: &Settings, desired: &Settings) -> Option<Setting> {
    if desired.get(ControlFile::MemswLimit).is_some() {
        return None;
    }
    let standing = observed.get(ControlFile::MemswLimit).and_then(Setting::memory)?;
    let limit = desired.memory_limit()?;
    (standing != MemoryLimit::Max).then_some(Setting::MemswLimit(limit))
}
