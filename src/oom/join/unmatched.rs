//! Counted, and not logged in time → logged late after all, or told alone. Pure.
//!
//! Between counting a kill and logging it, the kernel wakes the victim (`__oom_kill_process` sends its signal in between),
//! and may run it and others first; a busy hypervisor may run nothing at all. Meanwhile the rest of what belongs together
//! is decided without the late one: whatever is found here is never certain, but for what the kernel logged with its cgroup.

use std::cmp::Reverse;
use std::iter::once;
use std::time::Duration;

use super::match_group::{CounterDelta, Logged};
use super::{LATEST, PATIENCE, Progress};
use crate::model::CgroupPath;

/// Rises, or what is left of them, for which nothing was logged yet.
#[derive(Debug)]
pub(super) struct UnmatchedDeltas(Vec<CounterDelta>);

impl UnmatchedDeltas {
    pub(super) const fn new(rises: Vec<CounterDelta>) -> Self {
        Self(rises)
    }

    pub(super) fn rises(&self) -> &[CounterDelta] {
        &self.0
    }

    /// Forgets rises whose records would have been read by now: everything logged before `read` was.
    pub(super) fn forget_before(&mut self, read: Duration) {
        self.0.retain(|rise| rise.by.saturating_add(LATEST) >= read);
    }

    pub(super) fn add(&mut self, rises: Vec<CounterDelta>) {
        self.0.extend(rises);
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Finds what this was counted in, the innermost first, and takes it off. Returns where that was.
    pub(super) fn claim(&mut self, logged: &Logged) -> Option<CgroupPath> {
        let possible = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, rise)| logged.may_be_in(rise, LATEST));
        let (at, _) = possible.min_by_key(|(_, rise)| (Reverse(rise.cgroup.segments().count()), rise.by))?;
        let rise = self.0.swap_remove(at);
        let cgroup = rise.cgroup.clone();
        self.0.extend(rise.without(once(logged)));
        Some(cgroup)
    }

    /// Hands out those that nothing can belong to any more, neither of what is still to come nor of what is undecided.
    pub(super) fn expire(&mut self, progress: Progress, undecided: &[Logged]) -> Vec<CounterDelta> {
        let is_over = |rise: &mut CounterDelta| {
            let is_known = rise.by.saturating_add(LATEST) < progress.log;
            let is_stuck = rise.by.saturating_add(PATIENCE) < progress.log.max(progress.counters);
            is_stuck || (is_known && !undecided.iter().any(|logged| logged.may_be_in(rise, LATEST)))
        };
        self.0.extract_if(.., is_over).collect()
    }
}
