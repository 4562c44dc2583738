//! Counted, and not logged in time → logged late after all, or told alone. Pure.
//!
//! Between counting a kill and logging it, the kernel wakes the victim (`__oom_kill_process` sends its signal in between),
//! and may run it and others first; a busy hypervisor may run nothing at all. Meanwhile the rest of what belongs together
//! is decided without the late one: whatever is found here is never certain, but for what the kernel logged with its cgroup.

use std::cmp::Reverse;
use std::iter::once;

use super::match_group::{CounterDelta, Logged};
use super::{LATEST, PATIENCE, Progress};
use crate::model::CgroupPath;

/// Finds what this was counted in, the innermost first, and takes it off the rises. Returns where that was.
pub(super) fn claim(rises: &mut Vec<CounterDelta>, logged: &Logged) -> Option<CgroupPath> {
    let possible = rises.iter().enumerate();
    let possible = possible.filter(|(_, rise)| logged.may_be_in(rise, LATEST));
    let (at, _) = possible.min_by_key(|(_, rise)| (Reverse(rise.cgroup.segments().count()), rise.by))?;
    let rise = rises.swap_remove(at);
    let cgroup = rise.cgroup.clone();
    rises.extend(rise.without(once(logged)));
    Some(cgroup)
}

/// Hands out those that nothing can belong to any more, neither of what is still to come nor of what is undecided.
pub(super) fn expire(rises: &mut Vec<CounterDelta>, progress: Progress, undecided: &[Logged]) -> Vec<CounterDelta> {
    let is_over = |rise: &mut CounterDelta| {
        let is_known = rise.by.saturating_add(LATEST) < progress.log;
        let is_stuck = rise.by.saturating_add(PATIENCE) < progress.log.max(progress.counters);
        is_stuck || (is_known && !undecided.iter().any(|logged| logged.may_be_in(rise, LATEST)))
    };
    rises.extract_if(.., is_over).collect()
}
