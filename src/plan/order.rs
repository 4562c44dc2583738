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
//!
//! # Followers
//! Two values follow another value of their cgroup: a burst its quota, `memory.high` its memory limit. Kubernetes does not
//! know these values. Where no burst is desired, the process that set one chose it as a part of the quota or limit of that time,
//! so the value stays the same part. A follower that is unset or unbounded stays so.
//! - The kernel refuses a quota below the burst and a burst above the quota (`tg_set_cfs_bandwidth`,
//!   kernel/sched/core.c). So a burst goes down before its quota and up after it. The burst is rounded down.
//! - Above `memory.high` the kernel slows a container down, so a grown limit has no effect if `memory.high` stays behind. So
//!   `memory.high` goes up before its limit and down after it, unless more is in use then. It is rounded to the nearest page,
//!   so that a limit that goes up and comes back restores it.
//!
//! A plan that ends between the two writes leaves a burst that is too small or a `memory.high` that is too high, never the
//! opposite.

use crate::model::{ControlFile, CpuQuota, MemoryLimit, PageSize, PodTree, Resource, Setting, Settings, Target};

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
        let wanted = desired.get(&write.target).and_then(Settings::burst);
        let writes = match state.get(&write.target) {
            Some(held) => with_follower(write, held, wanted, page),
            None => vec![write],
        };
        for write in &writes {
            state.set(&write.target, write.to);
        }
        ordered.extend(writes);
    }
    ordered.extend(bursts(&state, desired));
    ordered
}

/// The bursts that still differ: those of quotas that stay.
fn bursts(state: &PodTree, desired: &PodTree) -> impl Iterator<Item = Write> {
    desired.targets().filter_map(move |target| {
        let [from, to] = [state, desired].map(|tree| tree.get(&target).and_then(Settings::burst));
        let (from, to) = from.zip(to).filter(|(from, to)| from != to)?;
        Some(Write { target, from, to })
    })
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
        let cpu = container.cpu_max().zip(tree.pod.cpu_max());
        let memory = container.memory_limit().zip(tree.pod.memory_limit());
        match self.resource {
            Resource::Cpu => cpu.is_none_or(|(own, pod)| own.quota == CpuQuota::Max || pod.allows(own)),
            Resource::Memory => memory.is_none_or(|(own, pod)| own == MemoryLimit::Max || own <= pod),
        }
    }
}

/// Whether the rules hold after this write.
fn fits(state: &mut PodTree, write: &Write, guarded: &[Edge<'_>]) -> bool {
    state.set(&write.target, write.to);
    let touched = |edge: &&Edge<'_>| match &write.target {
        Target::Pod => true,
        Target::Container(name) => *edge.container == **name,
    };
    let fits = guarded.iter().filter(touched).all(|edge| edge.holds(state))
        && state.get(&write.target).is_none_or(memsw_covers_memory);
    state.set(&write.target, write.from);
    fits
}

fn memsw_covers_memory(cgroup: &Settings) -> bool {
    let memsw = cgroup.get(ControlFile::MemswLimit).and_then(Setting::memory);
    let both = memsw.zip(cgroup.memory_limit());
    both.is_none_or(|(memsw, memory)| memory <= memsw)
}

/// The files whose values differ from the desired ones, in the preferred order: growing values of the pod, then the containers'
/// in either direction, then shrinking values of the pod.
fn differing(observed: &PodTree, desired: &PodTree) -> Vec<Write> {
    let mut writes = Vec::new();
    for target in desired.targets() {
        let (Some(held), Some(desired)) = (observed.get(&target), desired.get(&target)) else {
            continue;
        };
        let mut wanted = desired.clone();
        if let Some(memsw) = following_memsw(held, desired) {
            wanted.insert(memsw);
        }
        let cpu = held.cpu_max().zip(wanted.cpu_max());
        let cpu_grows = cpu.is_none_or(|(old, new)| new.allows(old));
        for to in wanted.iter() {
            let Some(from) = held.get(to.file()).filter(|from| *from != to) else {
                continue;
            };
            let grows = match to {
                Setting::CpuMax(_) | Setting::CfsQuota(_) | Setting::CfsPeriod(_) => cpu_grows,
                Setting::CpuWeight(new) => matches!(from, Setting::CpuWeight(old) if new >= old),
                Setting::CpuShares(new) => matches!(from, Setting::CpuShares(old) if new >= old),
                Setting::MemoryMax(new) | Setting::MemoryLimit(new) | Setting::MemswLimit(new) => {
                    from.memory().is_none_or(|old| new >= old)
                }
                Setting::MemoryMin(new) | Setting::MemoryLow(new) => from.reserved().is_none_or(|old| new >= old),
                // These follow other files.
                Setting::CpuMaxBurst(_) | Setting::CfsBurst(_) | Setting::MemoryHigh(_) => continue,
            };
            let rank = match (&target, grows) {
                (Target::Pod, true) => 0,
                (Target::Container(_), true) => 1,
                (Target::Container(_), false) => 2,
                (Target::Pod, false) => 3,
            };
            let target = target.clone();
            writes.push((rank, Write { target, from, to }));
        }
    }
    writes.sort_by_key(|(rank, _)| *rank);
    writes.into_iter().map(|(_, write)| write).collect()
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

/// The write, with the write of its follower before or after it.
fn with_follower(write: Write, held: &Settings, wanted: Option<Setting>, page: PageSize) -> Vec<Write> {
    let (from, to, goes_first) = if let Some((from, to)) = burst(&write, held, wanted) {
        (from, to, to.burst_us() < from.burst_us())
    } else if let Some((from, to)) = memory_high(&write, held, page) {
        (Setting::MemoryHigh(from), Setting::MemoryHigh(to), to > from)
    } else {
        return vec![write];
    };
    let target = write.target.clone();
    let mut writes = vec![write, Write { target, from, to }];
    if goes_first {
        writes.reverse();
    }
    writes
}

/// The present burst and the one that goes with the new quota, if they differ: the wanted one, or else the same part.
fn burst(write: &Write, held: &Settings, wanted: Option<Setting>) -> Option<(Setting, Setting)> {
    let (old, new) = write.from.quota().zip(write.to.quota())?;
    let from = held.burst()?;
    let kept = |burst| burst_in_proportion(burst, old, new);
    let to = wanted.unwrap_or_else(|| from.map_burst(kept));
    (from != to).then_some((from, to))
}

/// The burst that is the same part of the new quota as this one of the old. Without an old quota that part is unknown: the burst
/// stays as far as the kernel allows it.
fn burst_in_proportion(burst: u64, old: CpuQuota, new: CpuQuota) -> u64 {
    match (old, new) {
        (_, CpuQuota::Max) => burst,
        (CpuQuota::Micros(old), CpuQuota::Micros(new)) if old > 0 => {
            let scaled = u128::from(burst) * u128::from(new) / u128::from(old);
            u64::try_from(scaled).unwrap_or(u64::MAX).min(new)
        }
        (_, CpuQuota::Micros(new)) => burst.min(new),
    }
}

/// The present `memory.high` and the one that goes with the new limit, if they differ. Without an old limit the part is unknown.
/// Without a new limit `memory.high` is unbounded too.
fn memory_high(write: &Write, held: &Settings, page: PageSize) -> Option<(MemoryLimit, MemoryLimit)> {
    let (Setting::MemoryMax(MemoryLimit::Bytes(old)), Setting::MemoryMax(new)) = (write.from, write.to) else {
        return None;
    };
    let Setting::MemoryHigh(from @ MemoryLimit::Bytes(high)) = held.get(ControlFile::MemoryHigh)? else {
        return None;
    };
    let kept = match new {
        MemoryLimit::Max => MemoryLimit::Max,
        MemoryLimit::Bytes(new) => {
            let unit = u128::from(old.max(1)) * u128::from(page.get());
            let pages = (u128::from(high) * u128::from(new) + unit / 2) / unit;
            MemoryLimit::of_bytes(u64::try_from(pages * u128::from(page.get())).unwrap_or(u64::MAX))
        }
    };
    (kept != from).then_some((from, kept))
}
