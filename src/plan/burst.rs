//! A cgroup's burst goes with its quota.
//!
//! In comes a write of a quota and what the cgroup holds; out comes what is written together with it. The kernel refuses a
//! quota below the burst and a burst above the quota (`tg_set_cfs_bandwidth`, kernel/sched/core.c), so whoever lowers
//! a quota has to lower the burst before. Nobody declares a burst to Kubernetes: whoever set it meant a part of the quota
//! that was there, so it stays that part, rounded down. Where there is no burst none is written.
//!
//! The two writes stand side by side. A plan that is cut between them leaves a burst that is too small for its quota, never
//! one that is too large.

use crate::model::{CpuQuota, Setting, Settings};

use super::order::Write;

/// The write, with that of the burst before a lower quota or after a higher one.
pub(super) fn with_burst(write: Write, held: &Settings) -> Vec<Write> {
    let beside = write
        .from
        .quota()
        .zip(write.to.quota())
        .zip(held.burst())
        .and_then(|((old, new), from)| {
            let burst = from.burst_us()?;
            let kept = in_proportion(burst, old, new);
            (kept != burst).then(|| Write {
                target: write.target.clone(),
                from,
                to: match from {
                    Setting::CpuMaxBurst(_) => Setting::CpuMaxBurst(kept),
                    _ => Setting::CfsBurst(kept),
                },
            })
        });
    match beside {
        None => vec![write],
        Some(burst) if burst.to.burst_us() < burst.from.burst_us() => vec![burst, write],
        Some(burst) => vec![write, burst],
    }
}

/// The burst that is to the new quota what this one is to the old. No quota takes any burst, so there nothing is known of
/// what it was a part of: it is kept as far as the kernel allows.
fn in_proportion(burst: u64, old: CpuQuota, new: CpuQuota) -> u64 {
    match (old, new) {
        (_, CpuQuota::Max) => burst,
        (CpuQuota::Micros(old), CpuQuota::Micros(new)) if old > 0 => {
            let scaled = u128::from(burst) * u128::from(new) / u128::from(old);
            u64::try_from(scaled).unwrap_or(u64::MAX).min(new)
        }
        (_, CpuQuota::Micros(new)) => burst.min(new),
    }
}
