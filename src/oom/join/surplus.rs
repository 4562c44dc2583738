//! The surplus of each container over the kills that are known to be there, and the candidates for it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::{CounterDelta, FLOOD, LATEST, LOG_DELAY, Logged, OomKill, PATIENCE, Progress, SLACK};
use crate::model::CgroupPath;
use crate::oom::report::Confidence;

/// Kills and rises that fit each other and no others.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) logged: Vec<Logged>,
    pub(super) rises: Vec<CounterDelta>,
}

impl Group {
    /// Divides kills and rises into groups that cannot influence each other.
    pub(super) fn independent(logged: Vec<Logged>, rises: Vec<CounterDelta>) -> Vec<Self> {
        let alone = |rise| Self {
            rises: vec![rise],
            ..Self::default()
        };
        let mut groups: Vec<Self> = rises.into_iter().map(alone).collect();
        for logged in logged {
            let is_concerned = |group: &mut Self| group.rises.iter().any(|rise| logged.may_be_in(rise));
            let mut whole = groups.extract_if(.., is_concerned).reduce(|mut whole, group| {
                whole.logged.extend(group.logged);
                whole.rises.extend(group.rises);
                whole
            });
            whole.get_or_insert_default().logged.push(logged);
            groups.extend(whole);
        }
        groups
    }

    /// The time up to which to decide this group now; `None` if it has to wait.
    pub(super) fn due(&self, progress: Progress) -> Option<Duration> {
        if self.is_final(progress) {
            return Some(Duration::MAX);
        }
        let times = self.logged.iter().map(|logged| logged.at.time);
        let began = times.chain(self.rises.iter().map(|rise| rise.by)).min()?;
        let until = |known: Duration, within: Duration| {
            (began.saturating_add(within) < known).then(|| known.saturating_sub(within / 2))
        };
        let (many, within) = FLOOD;
        // Without a rise that is over, there is nothing to decide in a flood.
        let is_news = |end: &Duration| self.rises.iter().any(|rise| rise.is_over(*end));
        let flood = until(progress.log.min(progress.counters), within).filter(is_news);
        flood
            .filter(|_| self.logged.len() + self.rises.len() > many)
            .or_else(|| until(progress.log.max(progress.counters), PATIENCE))
    }

    /// Whether the group is complete: rises that come later begin after these kills, and kills that come later were
    /// logged after these rises. If the group has more counted than logged kills, late kills are considered, too.
    fn is_final(&self, progress: Progress) -> bool {
        let delay = if self.has_all_logged() { LOG_DELAY } else { LATEST };
        let are_known =
            |logged: &Logged| logged.at.time.saturating_add(SLACK) < progress.counters && logged.at.time < progress.log;
        let are_over = |rise: &CounterDelta| rise.by.saturating_add(delay) < progress.log;
        self.logged.iter().all(are_known) && self.rises.iter().all(are_over)
    }

    /// Whether no more kills were counted than logged.
    fn has_all_logged(&self) -> bool {
        counted(&self.rises) <= self.logged.len()
    }

    /// Takes out the kills and rises that are not over by `end`.
    pub(super) fn split_off(&mut self, end: Duration) -> Self {
        Self {
            logged: self.logged.extract_if(.., |logged| logged.at.time >= end).collect(),
            rises: self.rises.extract_if(.., |rise| !rise.is_over(end)).collect(),
        }
    }

    /// Kills that fit one of these rises, which others use up, are not certain any more.
    pub(super) fn doubt_beside(&mut self, rises: &[CounterDelta]) {
        for logged in &mut self.logged {
            logged.in_doubt |= rises.iter().any(|rise| logged.may_be_in(rise));
        }
    }

    /// Divides a group, all of whose kills were logged and counted, by the sweeps that counted them: if as many kills
    /// fit the rises of a sweep as that sweep counted, it counted these. Then they are no candidates for the others.
    pub(super) fn batches(mut self) -> Vec<Self> {
        let mut batches = Vec::new();
        if counted(&self.rises) == self.logged.len() {
            self.rises.sort_by_key(|rise| (rise.by, rise.after));
            while let Some(batch) = self.next_batch() {
                batches.push(batch);
            }
        }
        batches.push(self);
        batches
    }

    fn next_batch(&mut self) -> Option<Self> {
        let mut sweeps = self
            .rises
            .chunk_by(|one, other| (one.after, one.by) == (other.after, other.by));
        let fits = |sweep: &[CounterDelta], logged: &Logged| sweep.iter().any(|rise| logged.may_be_in(rise));
        let is_full =
            |sweep: &&[CounterDelta]| counted(sweep) == self.logged.iter().filter(|logged| fits(sweep, logged)).count();
        let rises = sweeps.find(is_full)?.to_vec();
        let logged = self.logged.extract_if(.., |logged| fits(&rises, logged)).collect();
        let of = (rises[0].after, rises[0].by);
        self.rises.retain(|rise| (rise.after, rise.by) != of);
        Some(Self { logged, rises })
    }

    /// Takes the kills from before `end` whose cgroup is known off the rises. Leaves those that fit none.
    pub(super) fn place_named(&mut self, end: Duration) {
        self.logged.sort_by_key(|logged| Reverse(logged.at.time));
        let rises = &mut self.rises;
        let is_placed = |logged: &mut Logged| {
            // The rises before the latest one may have kills that the kernel logged late.
            let order = |rise: &CounterDelta| {
                let is_late = logged.at.numbers.last <= rise.numbers.first;
                (
                    !logged.may_be_in(rise),
                    is_late,
                    rise.after > logged.at.time,
                    Reverse(rise.after),
                )
            };
            let is_old_name = logged.at.time < end && logged.waiting().is_none();
            is_old_name && take_first(rises, logged, |rise| logged.names(rise), order).is_some()
        };
        self.logged.extract_if(.., is_placed).for_each(drop);
    }

    /// Assigns the kills without a cgroup to the rises, and removes both. The kills are certain if they can only have
    /// been in one container.
    pub(super) fn assign(&mut self, is_whole: bool) -> Vec<OomKill> {
        let mut cgroups = self.rises.iter().map(|rise| &rise.cgroup);
        let first = cgroups.next();
        let is_certain = is_whole && self.has_room() && cgroups.all(|cgroup| Some(cgroup) == first);
        self.logged.sort_by_key(|logged| logged.at.time);
        let candidates: Arc<[Arc<_>]> = self
            .logged
            .iter()
            .filter_map(|logged| logged.waiting().cloned())
            .collect();
        // Those whose limit is known fit fewer rises.
        self.logged
            .sort_by_key(|logged| logged.waiting().map(|kill| kill.limit.cgroup().is_none()));
        let mut kills = Vec::new();
        // The numbers of kills and counters decide how many kills there were: those that fit no rise any more take
        // what is left.
        for fits_by_time in [true, false] {
            let rises = &mut self.rises;
            self.logged.retain(|logged| {
                let Some(kill) = logged.waiting() else { return true };
                let fits = |rise: &CounterDelta| {
                    if fits_by_time {
                        logged.may_be_in(rise)
                    } else {
                        logged.names(rise)
                    }
                };
                let taken = take_first(rises, logged, fits, |rise| rise.by);
                let Some(cgroup) = taken else { return true };
                let certain = OomKill::of(
                    Arc::clone(kill),
                    Some(cgroup),
                    Confidence::OnlyCounterThatRose,
                    logged.at.time,
                );
                kills.push(if is_certain && fits_by_time {
                    certain
                } else {
                    OomKill {
                        confidence: Confidence::Ambiguous,
                        processes: Arc::clone(&candidates),
                        ..certain
                    }
                });
                false
            });
        }
        kills
    }

    /// Whether the rises have room for all kills without a cgroup.
    fn has_room(&self) -> bool {
        self.logged.iter().filter(|logged| logged.waiting().is_some()).count() <= counted(&self.rises)
    }
}

/// The number of kills in these rises.
fn counted(rises: &[CounterDelta]) -> usize {
    let kills = rises
        .iter()
        .map(|rise| usize::try_from(rise.kills.get()).unwrap_or(usize::MAX));
    kills.fold(0, usize::saturating_add)
}

/// Takes a kill off the innermost and, of these, the first rise that it fits. Returns the cgroup of that rise.
pub(super) fn take_first<K: Ord>(
    rises: &mut Vec<CounterDelta>,
    logged: &Logged,
    fits: impl Fn(&CounterDelta) -> bool,
    order: impl Fn(&CounterDelta) -> K,
) -> Option<CgroupPath> {
    let fitting = rises.iter().enumerate().filter(|(_, rise)| fits(rise));
    let depth = |rise: &CounterDelta| Reverse(rise.cgroup.segments().count());
    let (at, _) = fitting.min_by_key(|(_, rise)| (depth(rise), order(rise)))?;
    let rise = rises.swap_remove(at);
    let cgroup = rise.cgroup.clone();
    rises.extend(rise.without(logged));
    Some(cgroup)
}
