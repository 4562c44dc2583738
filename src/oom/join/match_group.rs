//! Pairs kills with rises that they fit, as many as possible.
//!
//! The kernel sends the signal to the victim between counting and logging (`__oom_kill_process`), and may run the victim
//! and others first; a busy hypervisor may run nothing at all. So any kill may be logged late. A kill takes a rise of its
//! time if there is one, else one of up to [`LATEST`] before.
//!
//! A kill is certain if every pairing of as many kills has it in the same cgroup ([`Matching::reach`]).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AWAITED, FLOODS, Joiner, LATEST, LOG_DELAY, LogPlace, OomKill, PATIENCE, Progress, SLACK};
use crate::model::CgroupPath;
use crate::oom::kill::Kill;
use crate::oom::numbers::Numbers;
use crate::oom::report::Confidence;

/// A kill of the log that still has to account for a rise.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub(super) at: LogPlace,
    /// Its cgroup, if the log or `/proc` named it.
    pub(super) cgroup: Option<CgroupPath>,
    /// What the joiner still has to return: a kill without a cgroup, or one that a rise may show that was returned alone.
    pub(super) kill: Option<OomKill>,
    /// Whether this is the second line of a group's first victim. It accounts for a rise that is no kill.
    pub(super) is_again: bool,
}

/// The rise of a counter between two reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CounterDelta {
    /// The cgroup of the counter. The kills were in this cgroup, or in one below that has no rise of its own.
    pub cgroup: CgroupPath,
    /// A moment before the first of the two reads.
    #[serde(rename = "afterUs", with = "super::micros")]
    pub after: Duration,
    /// A moment after the second.
    #[serde(rename = "byUs", with = "super::micros")]
    pub by: Duration,
    /// The numbers among which the kills are.
    #[serde(skip)]
    pub numbers: Numbers,
    /// By how much the counter rose.
    pub kills: NonZeroU64,
    /// How many of these are second counts of a group's first victim; 0 where the kernel does not say.
    #[serde(skip)]
    pub again: u64,
}

impl CounterDelta {
    /// Whether the kernel has logged all kills of this rise before `end`.
    fn is_over(&self, end: Duration) -> bool {
        end == Duration::MAX || self.by.saturating_add(LOG_DELAY) < end
    }

    /// This rise with so many kills left.
    pub(super) fn left(&self, kills: u64, again: u64) -> Option<Self> {
        let kills = NonZeroU64::new(kills)?;
        let rise = self.clone();
        Some(Self { kills, again, ..rise })
    }

    /// Whether no kill can belong to this rise any more, neither a later nor an undecided one.
    pub(super) fn is_alone(&self, progress: Progress, undecided: &[Logged]) -> bool {
        let is_known = self.by.saturating_add(LATEST) < progress.log;
        let is_stuck = self.by.saturating_add(PATIENCE) < progress.log.max(progress.counters);
        is_stuck || (is_known && !undecided.iter().any(|logged| logged.may_be_in(self, LATEST)))
    }

    /// Rises of inner cgroups come first, so that none of them is left for the cgroups around.
    pub(super) fn order(&self) -> (Reverse<usize>, Duration) {
        (Reverse(self.cgroup.segments().count()), self.by)
    }
}

impl Logged {
    /// The kill, if its cgroup is unknown.
    pub(super) fn waiting(&self) -> Option<&Arc<Kill>> {
        self.kill.as_ref().filter(|_| self.cgroup.is_none())?.processes.first()
    }

    /// Whether this kill fits the rise, if the kernel takes up to `delay` to log.
    pub(super) fn may_be_in(&self, rise: &CounterDelta, delay: Duration) -> bool {
        let at = self.at.time;
        // A time that is not exact may be too late by seconds: of an agent without a processor, it is the time of reading.
        let is_exact = self.at.is_exact || self.cgroup.is_none();
        let delay = if is_exact { delay } else { delay.max(AWAITED) };
        let in_time = rise.after <= at.saturating_add(SLACK) && at <= rise.by.saturating_add(delay);
        let is_there = || match (&self.cgroup, self.waiting().and_then(|kill| kill.limit.cgroup())) {
            (Some(cgroup), _) => cgroup.below(&rise.cgroup).is_some(),
            (None, limit) => limit.is_none_or(|limit| rise.cgroup.below(limit).is_some()),
        };
        in_time && self.at.numbers.meets(rise.numbers) && is_there()
    }
}

/// Kills and rises that fit each other and no others.
#[derive(Debug, Default)]
pub(super) struct MatchGroup {
    pub(super) logged: Vec<Logged>,
    pub(super) rises: Vec<CounterDelta>,
}

impl MatchGroup {
    /// Divides kills and rises into groups that cannot influence each other.
    pub(super) fn independent(logged: Vec<Logged>, rises: Vec<CounterDelta>) -> Vec<Self> {
        let alone = |rise| Self {
            rises: vec![rise],
            ..Self::default()
        };
        let mut groups: Vec<Self> = rises.into_iter().map(alone).collect();
        let mut without_rises = Vec::new();
        for logged in logged {
            let is_concerned = |group: &mut Self| group.rises.iter().any(|rise| logged.may_be_in(rise, LATEST));
            let mut whole = Self::default();
            for group in groups.extract_if(.., is_concerned) {
                whole.logged.extend(group.logged);
                whole.rises.extend(group.rises);
            }
            whole.logged.push(logged);
            // No later kill joins a group without a rise.
            let list = if whole.rises.is_empty() {
                &mut without_rises
            } else {
                &mut groups
            };
            list.push(whole);
        }
        groups.append(&mut without_rises);
        groups
    }

    /// The time up to which to decide this group now; `None` if it has to wait.
    pub(super) fn due(&self, progress: Progress) -> Option<Duration> {
        if self.is_final(progress) {
            return Some(Duration::MAX);
        }
        let times = self.logged.iter().map(|logged| logged.at.time);
        let began = times.chain(self.rises.iter().map(|rise| rise.by)).min()?;
        let size = self.logged.len() + self.rises.len();
        let floods = FLOODS.iter().filter(|(many, _)| size > *many);
        let floods = floods.map(|(_, within)| (progress.log.min(progress.counters), *within));
        let stages = floods.chain([(progress.log.max(progress.counters), PATIENCE)]);
        let old = stages.filter(|(known, within)| began.saturating_add(*within) < *known);
        old.map(|(known, within)| known.saturating_sub(within / 2)).max()
    }

    /// Whether the group is complete: rises that come later begin after these kills, and kills that come later were
    /// logged after these rises. If the group has more counted than logged kills, late kills are considered, too.
    fn is_final(&self, progress: Progress) -> bool {
        let counted = self.rises.iter().map(|rise| rise.kills.get());
        let counted = counted.fold(0, u64::saturating_add);
        let unlogged = self.logged.iter().fold(counted, |left, _| left.saturating_sub(1));
        let delay = if unlogged == 0 { LOG_DELAY } else { LATEST };
        let are_known =
            |logged: &Logged| logged.at.time.saturating_add(SLACK) < progress.counters && logged.at.time < progress.log;
        let are_over = |rise: &CounterDelta| rise.by.saturating_add(delay) < progress.log;
        self.logged.iter().all(are_known) && self.rises.iter().all(are_over)
    }

    /// Pairs each kill that the kernel logged before `end` with a rise, except where the rise may still belong to later
    /// kills. The undecided rest goes back to the joiner. Returns the kills that fit no rise.
    pub(super) fn decide(mut self, end: Duration, joiner: &mut Joiner, kills: &mut Vec<OomKill>) -> Vec<Logged> {
        let matching = self.matched(end);
        let is_whole = end == Duration::MAX && !self.logged.iter().any(|logged| joiner.is_in_doubt(logged));
        let uncertain = self.uncertain(&matching, joiner, is_whole);
        for (at, rise) in self.rises.iter().enumerate() {
            if !rise.is_over(end) {
                joiner.rises.push(rise.clone());
                continue;
            }
            let each = self.logged.iter().zip(&matching.taken);
            let again = each.filter(|(logged, taken)| logged.is_again && **taken == Some(at));
            let again = again.fold(rise.again, |left, _| left.saturating_sub(1));
            joiner.rises.extend(rise.left(matching.free[at], again));
            let is_guess = !is_whole && matching.free[at] < rise.kills.get();
            joiner.guessed.extend(is_guess.then(|| rise.clone()));
        }
        let (mut late, mut lists) = (Vec::new(), HashMap::new());
        for (at, logged) in self.logged.iter().enumerate() {
            let rise = matching.taken[at].map(|rise| &self.rises[rise]);
            let Some(over) = rise.filter(|rise| rise.is_over(end)) else {
                let is_late = rise.is_none() && logged.at.time < end;
                let list = if is_late { &mut late } else { &mut joiner.logged };
                list.push(logged.clone());
                continue;
            };
            let Some(mut kill) = logged.kill.clone() else { continue };
            if logged.cgroup.is_none() {
                kill.cgroup = Some(over.cgroup.clone());
                kill.confidence = Confidence::OnlyCounterThatRose;
            }
            if uncertain[at] {
                let is_late = !logged.may_be_in(over, LOG_DELAY);
                joiner.guessed.extend((is_whole && is_late).then(|| over.clone()));
                kill.confidence = Confidence::Ambiguous;
                let list = lists.entry(&over.cgroup);
                let list = list.or_insert_with(|| self.candidates(&over.cgroup, &matching, &uncertain));
                kill.processes = Arc::clone(list);
            }
            kills.push(kill);
        }
        late
    }

    /// Pairs as many kills as possible with rises. The first ones find partners first.
    fn matched(&mut self, end: Duration) -> Matching {
        // The newest kills come last: their own rise may be still to come, and they may take another one. Of the
        // others, those with a known cgroup come first, so that none of their rises is left for a kill without one.
        self.logged.sort_by_key(|logged| {
            let is_new = logged.at.time >= end;
            (is_new, !is_new && logged.cgroup.is_none(), logged.at.time)
        });
        self.rises.sort_by_key(CounterDelta::order);
        let mut matching = Matching {
            fits: Vec::new(),
            free: self.rises.iter().map(|rise| rise.kills.get()).collect(),
            taken: vec![None; self.logged.len()],
        };
        let old = self.logged.partition_point(|logged| logged.at.time < end);
        for (delay, kills) in [(LOG_DELAY, self.logged.len()), (LATEST, old)] {
            let fits = |logged: &Logged| {
                // A kill with a known cgroup may be late: time only decides which of the cgroup's rises it takes.
                let delay = if logged.cgroup.is_some() { LATEST } else { delay };
                let fits = |rise: &usize| logged.may_be_in(&self.rises[*rise], delay);
                (0..self.rises.len()).filter(fits).collect()
            };
            matching.fits = self.logged.iter().map(fits).collect();
            matching.extend(kills);
        }
        matching
    }

    /// Whether each kill without a cgroup may be in another cgroup than that of the rise that it takes, or is late for
    /// this rise. In a group that is not whole, it may be in each rise that it fits.
    fn uncertain(&self, matching: &Matching, joiner: &Joiner, is_whole: bool) -> Vec<bool> {
        let without = (0..self.logged.len()).filter(|kill| matching.taken[*kill].is_none());
        // A kill of such a rise may be the one without a rise.
        let wanted = matching.reach(without.collect(), |_, _| true);
        let mut known = HashMap::new();
        let is_uncertain = |(kill, logged): (usize, &Logged)| {
            let Some(own) = matching.taken[kill].filter(|_| logged.cgroup.is_none()) else {
                return false;
            };
            let rise = &self.rises[own];
            let may_be_elsewhere = || {
                let is_open = |mover, to: usize| mover != kill || self.rises[to].cgroup != rise.cgroup;
                let reached = matching.reach(vec![kill], is_open);
                let mut others = (0..reached.len()).filter(|other| reached[*other].is_some());
                others.any(|other| other == own || matching.free[other] > 0 || !is_whole)
            };
            let is_late = !logged.may_be_in(rise, LOG_DELAY);
            let fits = (own, &matching.fits[kill]);
            let is_guess = is_late || joiner.is_in_doubt(logged) || wanted[own].is_some();
            is_guess || *known.entry(fits).or_insert_with(may_be_elsewhere)
        };
        self.logged.iter().enumerate().map(is_uncertain).collect()
    }

    /// The kills that may be in this cgroup.
    fn candidates(&self, cgroup: &CgroupPath, matching: &Matching, uncertain: &[bool]) -> Arc<[Arc<Kill>]> {
        let is_here = |rise: &usize| self.rises[*rise].cgroup == *cgroup;
        let each = self.logged.iter().enumerate().filter(|(kill, _)| {
            let may_be_here = uncertain[*kill] || matching.taken[*kill].is_none_or(|rise| is_here(&rise));
            may_be_here && matching.fits[*kill].iter().any(is_here)
        });
        each.filter_map(|(_, logged)| logged.waiting().cloned()).collect()
    }
}

/// Which rise each kill takes. Kills and rises are indices.
#[derive(Debug)]
struct Matching {
    /// The rises that each kill fits.
    fits: Vec<Vec<usize>>,
    /// How many more kills each rise takes.
    free: Vec<u64>,
    taken: Vec<Option<usize>>,
}

impl Matching {
    /// Finds rises for the first `kills`. Each kill takes the first free rise that it can get if others change places:
    /// later kills may need the later rises. No kill and no rise that has a partner loses it (Mendelsohn and Dulmage, 1958).
    fn extend(&mut self, kills: usize) {
        let without = (0..kills).filter(|kill| self.taken[*kill].is_none());
        for kill in without.collect::<Vec<_>>() {
            let Some(first) = self.free.iter().position(|free| *free > 0) else {
                return;
            };
            // In a flood, most kills fit the first free rise.
            if self.fits[kill].contains(&first) {
                self.taken[kill] = Some(first);
                self.free[first] -= 1;
                continue;
            }
            let takers = self.reach(vec![kill], |_, _| true);
            let mut next = (0..takers.len()).find(|rise| takers[*rise].is_some() && self.free[*rise] > 0);
            if let Some(rise) = next {
                self.free[rise] -= 1;
            }
            while let Some((rise, mover)) = next.and_then(|rise| Some((rise, takers[rise]?))) {
                next = self.taken[mover].replace(rise);
            }
        }
    }

    /// The rises that these kills can get if others change places, by steps that are open: for each rise the kill that would
    /// take it.
    fn reach(&self, mut movers: Vec<usize>, is_open: impl Fn(usize, usize) -> bool) -> Vec<Option<usize>> {
        let mut takers = vec![None; self.free.len()];
        while let Some(mover) = movers.pop() {
            for rise in self.fits[mover].iter().copied() {
                if takers[rise].is_none() && is_open(mover, rise) {
                    takers[rise] = Some(mover);
                    movers.extend((0..self.taken.len()).filter(|kill| self.taken[*kill] == Some(rise)));
                }
            }
        }
        takers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How many of these kills can have one of these rises each, by trying everything.
    fn most(possible: &[Vec<bool>], kills: &[usize], rises: &[usize]) -> usize {
        let Some((kill, others)) = kills.split_first() else {
            return 0;
        };
        let alone = most(possible, others, rises);
        let with = rises.iter().enumerate().filter(|(_, rise)| possible[*kill][**rise]);
        let with = with.map(|(at, _)| {
            let left: Vec<usize> = rises[..at].iter().chain(&rises[at + 1..]).copied().collect();
            1 + most(possible, others, &left)
        });
        with.max().unwrap_or(0).max(alone)
    }

    /// The first of these that can all have partners.
    fn first(count: usize, mut most: impl FnMut(&[usize]) -> usize) -> Vec<usize> {
        let mut chosen = Vec::new();
        for next in 0..count {
            chosen.push(next);
            if most(&chosen) < chosen.len() {
                chosen.pop();
            }
        }
        chosen
    }

    proptest! {
        #[test]
        fn the_first_kills_and_rises_have_partners(
            possible in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.4), 5), 0..6),
        ) {
            let fits = |kill: &Vec<bool>| (0..5).filter(|rise| kill[*rise]).collect();
            let mut matching = Matching {
                fits: possible.iter().map(fits).collect(),
                free: vec![1; 5],
                taken: vec![None; possible.len()],
            };
            matching.extend(possible.len());
            let kills: Vec<usize> = (0..possible.len()).collect();
            let with: Vec<usize> = kills.iter().copied().filter(|kill| matching.taken[*kill].is_some()).collect();
            prop_assert_eq!(&with, &first(kills.len(), |kills| most(&possible, kills, &[0, 1, 2, 3, 4])));
            let mut taken: Vec<usize> = matching.taken.iter().copied().flatten().collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, first(5, |rises| most(&possible, &kills, rises)));
            prop_assert!(with.iter().all(|kill| matching.fits[*kill].contains(&matching.taken[*kill].unwrap())));
        }
    }
}
