//! Values that follow another one of their cgroup: a burst its quota, `memory.high` its memory limit.
//!
//! In comes a write of a quota or a limit and what the cgroup holds; out comes that write with the one of its follower
//! beside it. Nobody declares these to Kubernetes: whoever set one meant a part of the value that was there, so it stays
//! that part. A follower that is not set, or unbounded, stays so.
//! - The kernel refuses a quota below the burst and a burst above the quota (`tg_set_cfs_bandwidth`,
//!   kernel/sched/core.c): a burst goes down before its quota and up after it, rounded down.
//! - Above `memory.high` the kernel slows a container down, so one that stays behind a grown limit makes the growth
//!   worthless: it goes up before its limit, and down after it unless more is in use then. Rounded to the nearest
//!   page, because a limit that goes up and comes back then brings it back to the page.
//!
//! A plan that is cut between the two writes leaves a burst that is too small, never one that is too large, and a
//! `memory.high` that is too high, never one that is too low.

use crate::model::{ControlFile, CpuQuota, MemoryLimit, PageSize, Setting, Settings};

use super::order::Write;

/// The write, with that of its follower before or after it.
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

/// The burst that is there and the one that goes with the new quota, where they differ.
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

/// The burst that is to the new quota what this one is to the old. No quota takes any burst, so there nothing is known of
/// what it was a part of: it is kept as far as the kernel allows.
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

/// The `memory.high` that is there and the one that goes with the new limit, where they differ. Without an old limit
/// nothing is known of what it was a part of; without a new one it is unbounded as well.
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
