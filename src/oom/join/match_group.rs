//! Pairs kills with rises that they fit.
//!
//! A rise that the kernel has not logged in time may be logged late ([`claim`]), or is returned alone ([`expire`]). The
//! kernel sends the signal to the victim between counting and logging (`__oom_kill_process`), and may run the victim
//! and others first; a busy hypervisor may run nothing at all. Times decide which rise a kill takes, and any kill may be late:
//! it is certain only if no rise of another cgroup fits it up to [`LATEST`], and every counter was read since.
//!
//! [`matched`] pairs as many as possible, from a table of which kill fits which rise.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::iter::once;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AWAITED, FLOODS, Joiner, LATEST, LOG_DELAY, LogPlace, OomKill, PATIENCE, Progress, SLACK};
use crate::model::CgroupPath;
use crate::oom::kill::{Kill, Limit};
use crate::oom::numbers::Numbers;
use crate::oom::report::Confidence;

/// A kill of the log that still has to account for a rise.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub(super) at: LogPlace,
    pub(super) who: LogState,
    /// Whether a rise that this kill may have been in went to another kill, or neither time nor number show where it
    /// may have been.
    pub(super) in_doubt: bool,
}

/// Whether the joiner has returned a kill.
#[derive(Debug, Clone)]
pub(super) enum LogState {
    /// It has, for this cgroup, and the kill accounts for a rise there.
    Placed(CgroupPath),
    /// This is the second line of a kill in this group. It accounts for a rise there that is no kill.
    Again(CgroupPath),
    /// It has not: the cgroup is known, and a rise that was returned alone may show this kill.
    Held(Box<OomKill>),
    /// It has not: the cgroup of the kill is unknown.
    Waiting(Arc<Kill>),
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

    /// The rest of the rise without these kills.
    pub(super) fn without<'a>(self, logged: impl Iterator<Item = &'a Logged> + Clone) -> Option<Self> {
        let logged_again = logged.clone().filter(|logged| matches!(logged.who, LogState::Again(_)));
        let again = self.again.saturating_sub(count(logged_again));
        let kills = NonZeroU64::new(self.kills.get().saturating_sub(count(logged)))?;
        Some(Self { kills, again, ..self })
    }
}

impl Logged {
    pub(super) const fn new(at: LogPlace, who: LogState) -> Self {
        Self {
            at,
            who,
            in_doubt: !at.is_exact && at.numbers.first != at.numbers.last,
        }
    }

    /// The kill, if its cgroup is unknown.
    pub(super) const fn waiting(&self) -> Option<&Arc<Kill>> {
        match &self.who {
            LogState::Waiting(kill) => Some(kill),
            LogState::Placed(_) | LogState::Again(_) | LogState::Held(_) => None,
        }
    }

    /// Whether the joiner still has to return this kill.
    pub(super) const fn is_undecided(&self) -> bool {
        matches!(self.who, LogState::Waiting(_) | LogState::Held(_))
    }

    /// Whether this kill fits the rise, if the kernel takes up to `delay` to log.
    pub(super) fn may_be_in(&self, rise: &CounterDelta, delay: Duration) -> bool {
        let at = self.at.time;
        // A time that is not exact may be too late by seconds: of an agent without a processor, it is the time of reading.
        let is_exact = self.at.is_exact || self.waiting().is_some();
        let delay = if is_exact { delay } else { delay.max(AWAITED) };
        let in_time = rise.after <= at.saturating_add(SLACK) && at <= rise.by.saturating_add(delay);
        let is_within = |cgroup: &CgroupPath| cgroup.below(&rise.cgroup).is_some();
        in_time
            && self.at.numbers.meets(rise.numbers)
            && match &self.who {
                LogState::Placed(cgroup) | LogState::Again(cgroup) => is_within(cgroup),
                LogState::Held(kill) => kill.cgroup.as_ref().is_some_and(is_within),
                LogState::Waiting(kill) => match &kill.limit {
                    Limit::Cgroup(limit) => rise.cgroup.below(limit).is_some(),
                    Limit::Node | Limit::Unknown => true,
                },
            }
    }

    /// The delay within which this kill may take a rise. A kill with a known cgroup may be late: time only decides
    /// which of the cgroup's rises it takes. A late kill without a cgroup is placed by [`claim`].
    const fn delay(&self) -> Duration {
        if self.waiting().is_some() { LOG_DELAY } else { LATEST }
    }
}

/// What bounds how certain a kill's cgroup can be, beside its group.
#[derive(Debug)]
pub(super) struct Certainty {
    /// The agent has read every counter since this moment: the rise of a later kill may be still to come.
    pub(super) counters_read: Duration,
    /// Earlier rises whose kills the kernel had not logged in time, or that went to a kill by guess: this kill may be
    /// one of those, logged late.
    pub(super) unlogged: Vec<CounterDelta>,
}

impl Certainty {
    /// Whether the kill may be in another cgroup than this one.
    fn may_be_elsewhere(&self, logged: &Logged, cgroup: &CgroupPath) -> bool {
        let mut others = self.unlogged.iter().filter(|rise| rise.cgroup != *cgroup);
        logged.at.time.saturating_add(SLACK) >= self.counters_read || others.any(|rise| logged.may_be_in(rise, LATEST))
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
        let mut without_rise = Vec::new();
        for logged in logged {
            let is_concerned = |group: &mut Self| group.rises.iter().any(|rise| logged.may_be_in(rise, LATEST));
            let whole = groups.extract_if(.., is_concerned).reduce(|mut whole, group| {
                whole.logged.extend(group.logged);
                whole.rises.extend(group.rises);
                whole
            });
            let list = if whole.is_some() {
                &mut groups
            } else {
                &mut without_rise
            };
            let mut group = whole.unwrap_or_default();
            group.logged.push(logged);
            list.push(group);
        }
        groups.extend(without_rise);
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
        let size = self.logged.len() + self.rises.len();
        let flood = FLOODS.iter().find(|(many, _)| size > *many);
        // Without a rise that is over, there is nothing to decide in a flood.
        let is_news = |end: &Duration| self.rises.iter().any(|rise| rise.is_over(*end));
        flood
            .and_then(|(_, within)| until(progress.log.min(progress.counters), *within))
            .filter(is_news)
            .or_else(|| until(progress.log.max(progress.counters), PATIENCE))
    }

    /// Whether the group is complete: rises that come later begin after these kills, and kills that come later were
    /// logged after these rises. If the group has more counted than logged kills, late kills are considered, too. A
    /// kill of this group may also be late for a rise elsewhere: that one waits in [`Joiner::unmatched`].
    fn is_final(&self, progress: Progress) -> bool {
        let is_all_logged = counted(self.rises.iter()) <= count(self.logged.iter());
        let delay = if is_all_logged { LOG_DELAY } else { LATEST };
        let are_known =
            |logged: &Logged| logged.at.time.saturating_add(SLACK) < progress.counters && logged.at.time < progress.log;
        let are_over = |rise: &CounterDelta| rise.by.saturating_add(delay) < progress.log;
        self.logged.iter().all(are_known) && self.rises.iter().all(are_over)
    }

    /// Pairs each kill that the kernel logged before `end` with a rise, except where the rise may still belong to later
    /// kills. The undecided rest goes back to the joiner. Returns the kills that fit no rise.
    pub(super) fn decide(
        mut self,
        end: Duration,
        certainty: &Certainty,
        joiner: &mut Joiner,
        kills: &mut Vec<OomKill>,
    ) -> Vec<Logged> {
        self.sort(end);
        let places = Places::of(&self, end);
        for (at, rise) in self.rises.iter().enumerate() {
            if rise.is_over(end) {
                joiner.unmatched.extend(rise.clone().without(places.kills_in(at)));
            } else {
                joiner.rises.push(rise.clone());
            }
        }
        let (mut late, mut lists) = (Vec::new(), Lists::default());
        for (at, logged) in self.logged.iter().enumerate() {
            match places.rise_of(at) {
                Some(rise) if rise.is_over(end) => match &logged.who {
                    LogState::Held(kill) => kills.push(OomKill::clone(kill)),
                    LogState::Waiting(kill) => {
                        if !places.is_whole {
                            joiner.guessed.push(rise.clone());
                        }
                        kills.push(places.paired(at, kill, certainty, &mut lists));
                    }
                    LogState::Placed(_) | LogState::Again(_) => {}
                },
                None if logged.at.time < end => late.push(logged.clone()),
                Some(_) | None => joiner.logged.push(self.undecided(logged, end)),
            }
        }
        late
    }

    /// Sorts kills and rises: the first ones find partners first.
    fn sort(&mut self, end: Duration) {
        // The newest kills come last: their own rise may be still to come, and they may take another one. Of the
        // others, those with a known cgroup come first, so that none of their rises is left for a kill without one.
        self.logged.sort_by_key(|logged| {
            let is_new = logged.at.time >= end;
            let waits = logged.waiting().is_some();
            (is_new, !is_new && waits, logged.at.time)
        });
        // Rises of inner cgroups come first, so that none of them is left for the cgroups around.
        self.rises
            .sort_by_key(|rise| (Reverse(rise.cgroup.segments().count()), rise.by));
    }

    /// A kill to decide later. It is in doubt if it may have been in a rise that is decided now.
    fn undecided(&self, logged: &Logged, end: Duration) -> Logged {
        let mut decided = self.rises.iter().filter(|rise| rise.is_over(end));
        Logged {
            in_doubt: logged.in_doubt || decided.any(|rise| logged.may_be_in(rise, LATEST)),
            ..logged.clone()
        }
    }
}

/// Where each kill of a group may be: what decides which kills are certain.
struct Places<'g> {
    group: &'g MatchGroup,
    /// The rise that each kill takes; the index after the last rise for a kill without.
    rises: Vec<usize>,
    /// The rises that each kill may be in, and the index after the last for none of them.
    possible: Vec<BTreeSet<usize>>,
    /// Whether the group is complete and rests on no guess.
    is_whole: bool,
}

impl<'g> Places<'g> {
    fn of(group: &'g MatchGroup, end: Duration) -> Self {
        let fits = |logged: &Logged| {
            let rises = group.rises.iter();
            rises.map(|rise| logged.may_be_in(rise, logged.delay())).collect()
        };
        let table: Vec<Vec<bool>> = group.logged.iter().map(fits).collect();
        let rises = matched(&table, group.rises.iter().map(|rise| rise.kills.get()).collect());
        let left = count(rises.iter().filter(|rise| **rise == group.rises.len()));
        // Any of the kills may be late, and any may be the one that is left over.
        let possible = group.logged.iter().map(|logged| {
            let late = group.rises.iter().enumerate();
            let late = late.filter(|(_, rise)| logged.may_be_in(rise, LATEST));
            let none = (left > 0 && logged.waiting().is_some()).then_some(group.rises.len());
            late.map(|(at, _)| at).chain(none).collect()
        });
        let mut places = Self {
            group,
            rises,
            possible: possible.collect(),
            is_whole: end == Duration::MAX && !group.logged.iter().any(|logged| logged.in_doubt),
        };
        if places.is_whole {
            places.rule_out(left);
        }
        places
    }

    /// Where as many kills can only be in one rise as it has counted, no other kill was there. If every counted kill is logged,
    /// the kills of a rise that no more kills fit than it has counted are in no other one. Goes on until nothing changes. `left`
    /// kills are in no rise.
    fn rule_out(&mut self, left: u64) {
        let rises = self.group.rises.iter();
        let is_all_logged = left == 0 && counted(rises.clone()) == count(self.possible.iter());
        let each = rises.map(|rise| rise.kills.get()).chain([left]);
        let mut open: Vec<(usize, u64)> = each.enumerate().collect();
        loop {
            let before = open.len();
            open.retain(|(rise, counted)| {
                let here = self.possible.iter_mut().filter(|rises| rises.contains(rise));
                let (alone, others): (Vec<_>, Vec<_>) = here.partition(|rises| rises.len() == 1);
                let is_full = count(alone.iter()) >= *counted;
                let takes_all = is_all_logged && count(alone.iter().chain(&others)) <= *counted;
                for rises in others {
                    if is_full {
                        rises.remove(rise);
                    } else if takes_all {
                        rises.retain(|other| other == rise);
                    }
                }
                !(is_full || takes_all)
            });
            if open.len() == before {
                return;
            }
        }
    }

    /// The rise that a kill takes.
    fn rise_of(&self, at: usize) -> Option<&'g CounterDelta> {
        self.group.rises.get(self.rises[at])
    }

    /// The kills that take a rise.
    fn kills_in(&self, rise: usize) -> impl Iterator<Item = &Logged> + Clone {
        let each = self.group.logged.iter().zip(&self.rises);
        each.filter(move |(_, taken)| **taken == rise).map(|(logged, _)| logged)
    }

    /// Whether the kill may be in no rise of this cgroup.
    fn may_be_elsewhere(&self, at: usize, cgroup: &CgroupPath) -> bool {
        let mut rises = self.possible[at].iter().map(|rise| self.group.rises.get(*rise));
        rises.any(|rise| rise.is_none_or(|rise| rise.cgroup != *cgroup))
    }

    /// The kill in its rise.
    fn paired(&self, at: usize, kill: &Arc<Kill>, certainty: &Certainty, lists: &mut Lists<'g>) -> OomKill {
        let (logged, cgroup) = (&self.group.logged[at], &self.group.rises[self.rises[at]].cgroup);
        let paired = OomKill::of(
            Arc::clone(kill),
            Some(cgroup.clone()),
            Confidence::OnlyCounterThatRose,
            logged.at.time,
        );
        if !(logged.in_doubt || self.may_be_elsewhere(at, cgroup) || certainty.may_be_elsewhere(logged, cgroup)) {
            return paired;
        }
        let list = lists.entry(cgroup).or_insert_with(|| self.candidates(cgroup));
        OomKill {
            confidence: Confidence::Ambiguous,
            processes: Arc::clone(list),
            ..paired
        }
    }

    /// The kills that may be in this cgroup.
    fn candidates(&self, cgroup: &CgroupPath) -> Arc<[Arc<Kill>]> {
        let logged = self.group.logged.iter().zip(&self.possible);
        let is_here = |rise: &usize| self.group.rises.get(*rise).is_some_and(|rise| rise.cgroup == *cgroup);
        let candidates = logged.filter(|(_, rises)| rises.iter().any(is_here));
        candidates.filter_map(|(logged, _)| logged.waiting().cloned()).collect()
    }
}

/// The possible victims of each cgroup: in a flood most kills share one list.
type Lists<'g> = HashMap<&'g CgroupPath, Arc<[Arc<Kill>]>>;

/// The number of kills in these rises.
fn counted<'a>(rises: impl Iterator<Item = &'a CounterDelta>) -> u64 {
    rises.map(|rise| rise.kills.get()).fold(0, u64::saturating_add)
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    items.fold(0, |count, _| count + 1)
}

/// Takes a kill off the innermost rise that it fits, if the kernel takes up to `delay` to log. Returns that rise.
pub(super) fn claim(rises: &mut Vec<CounterDelta>, logged: &Logged, delay: Duration) -> Option<CounterDelta> {
    let possible = rises.iter().enumerate();
    let possible = possible.filter(|(_, rise)| logged.may_be_in(rise, delay));
    let (at, _) = possible.min_by_key(|(_, rise)| (Reverse(rise.cgroup.segments().count()), rise.by))?;
    let rise = rises.swap_remove(at);
    rises.extend(rise.clone().without(once(logged)));
    Some(rise)
}

/// Takes out the rises that no kill can belong to any more, neither a later nor an undecided one.
pub(super) fn expire(rises: &mut Vec<CounterDelta>, progress: Progress, undecided: &[Logged]) -> Vec<CounterDelta> {
    let is_over = |rise: &mut CounterDelta| {
        let is_known = rise.by.saturating_add(LATEST) < progress.log;
        let is_stuck = rise.by.saturating_add(PATIENCE) < progress.log.max(progress.counters);
        is_stuck || (is_known && !undecided.iter().any(|logged| logged.may_be_in(rise, LATEST)))
    };
    rises.extract_if(.., is_over).collect()
}

/// Pairs as many kills as possible with rises. Among all such pairings, takes one in which the first kills and the
/// first rises have partners: later kills may need the later rises. `possible` says which kill fits which rise, `free`
/// how many kills each rise takes. Returns the index of each kill's rise, the index after the last for a kill without.
///
/// Each kill takes the first free rise that it can get if others change places. No kill and no rise that has a partner
/// loses it (Mendelsohn and Dulmage, 1958).
fn matched(possible: &[Vec<bool>], mut free: Vec<u64>) -> Vec<usize> {
    let mut held = vec![free.len(); possible.len()];
    for kill in 0..possible.len() {
        let Some(first) = free.iter().position(|free| *free > 0) else {
            break;
        };
        // In a flood, most kills fit the first free rise.
        if possible[kill][first] {
            (held[kill], free[first]) = (first, free[first] - 1);
            continue;
        }
        // Which kill would take each rise, if those that hold the rise took others.
        let mut taker = vec![None; free.len()];
        let mut movers = vec![kill];
        while let Some(mover) = movers.pop() {
            for rise in (0..free.len()).filter(|rise| possible[mover][*rise]) {
                if taker[rise].is_none() {
                    taker[rise] = Some(mover);
                    let is_full = free[rise] == 0;
                    movers.extend((0..kill).filter(|holder| is_full && held[*holder] == rise));
                }
            }
        }
        let Some(mut rise) = (0..free.len()).find(|rise| taker[*rise].is_some() && free[*rise] > 0) else {
            continue;
        };
        free[rise] -= 1;
        while let Some(mover) = taker[rise] {
            rise = std::mem::replace(&mut held[mover], rise);
            if mover == kill {
                break;
            }
        }
    }
    held
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
            let held = matched(&possible, vec![1; 5]);
            let kills: Vec<usize> = (0..possible.len()).collect();
            let with: Vec<usize> = kills.iter().copied().filter(|kill| held[*kill] < 5).collect();
            prop_assert_eq!(&with, &first(kills.len(), |kills| most(&possible, kills, &[0, 1, 2, 3, 4])));
            let mut taken: Vec<usize> = with.iter().map(|kill| held[*kill]).collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, first(5, |rises| most(&possible, &kills, rises)));
            prop_assert!(with.iter().all(|kill| possible[*kill][held[*kill]]));
        }
    }
}
