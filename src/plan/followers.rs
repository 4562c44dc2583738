//! Values that follow another value of their cgroup: a burst its quota, `memory.high` its memory limit.
//!
//! Input: a write of a quota or a limit, and what the cgroup holds. Output: that write, and the write of its follower.
//! Kubernetes does not know these values. The process that set one chose it as a part of the quota or limit of that time, so
//! the value stays the same part. A follower that is unset or unbounded stays so.
//! - The kernel refuses a quota below the burst and a burst above the quota (`tg_set_cfs_bandwidth`,
//!   kernel/sched/core.c). So a burst goes down before its quota and up after it. The burst is rounded down.
//! - Above `memory.high` the kernel slows a container down, so a grown limit has no effect if `memory.high` stays behind. So
//!   `memory.high` goes up before its limit and down after it, unless more is in use then. It is rounded to the nearest page,
//!   so that a limit that goes up and comes back restores it.
//!
//! A plan that ends between the two writes leaves a burst that is too small or a `memory.high` that is too high, never the
//! opposite.

use crate::model::{ControlFile, CpuQuota, MemoryLimit, PageSize, Setting, Settings};

use super::order::Write;

/// The write, with the write of its follower before or after it.
pub(super) fn with_follower(write: Write, held: &Settings, page: PageSize) -> Vec<Write> {
    let follow = |from, to| Write {
        target: write.target.clone(),
        from,
        to,
    };
    if let Some((from, to)) = burst(&write, held) {
        let burst = follow(from, to);
        return if to.burst_us() < from.burst_us() {
            vec![burst, write]
        } else {
            vec![write, burst]
        };
    }
    if let Some((from, to)) = memory_high(&write, held, page) {
        let high = follow(Setting::MemoryHigh(from), Setting::MemoryHigh(to));
        return if to > from {
            vec![high, write]
        } else {
            vec![write, high]
        };
    }
    vec![write]
}

/// The present burst and the one that goes with the new quota, if they differ.
fn burst(write: &Write, held: &Settings) -> Option<(Setting, Setting)> {
    let (old, new) = write.from.quota().zip(write.to.quota())?;
    let from = held.burst()?;
    let burst = from.burst_us()?;
    let kept = burst_in_proportion(burst, old, new);
    let to = match from {
        Setting::CpuMaxBurst(_) => Setting::CpuMaxBurst(kept),
        _ => Setting::CfsBurst(kept),
    };
    (kept != burst).then_some((from, to))
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
