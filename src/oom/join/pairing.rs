//! Kills and rises that can be each other's → which are.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::{Evidence, LOG_DELAY, OomKill, Progress, SLACK};
use crate::cgroup::CgroupPath;
use crate::oom::kill::Kill;
use crate::oom::summary::Limit;

/// A kill in the log, by the time it was logged.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) at: Duration,
    pub(super) who: Who,
    /// Whether a rise that may have been this one's was given to another kill.
    pub(super) outrun: bool,
}

/// Whether a kill was told.
#[derive(Debug)]
pub(super) enum Who {
    /// It was, for this cgroup, and accounts for a rise there.
    Told(CgroupPath),
    /// It is the second logging of a kill in this group, and accounts for a rise there that is no kill.
    Again(CgroupPath),
    /// It was not: where it happened is not known yet.
    Waiting(Box<Kill>),
}

/// A counter rose between two reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rise {
    /// The cgroup that lost processes: this one, or one below it that no other rise is told of.
    pub cgroup: CgroupPath,
    /// A moment before the first of the two reads.
    pub after: Duration,
    /// A moment after the second.
    pub by: Duration,
    /// How much it rose by.
    pub kills: NonZeroU64,
    /// How much of that the kernel says are groups, whose first victims it counts twice; 0 where it does not say.
    pub again: u64,
}

impl Rise {
    /// Tells those that were counted without being logged, where these were.
    fn told_alone<'a>(&self, logged: impl Iterator<Item = &'a Logged> + Clone, told: &mut Decided) {
        let logged_again = logged.clone().filter(|logged| matches!(logged.who, Who::Again(_)));
        let again = self.again.saturating_sub(count(logged_again));
        let alone = self.kills.get().saturating_sub(count(logged));
        let kills = alone.saturating_sub(again);
        told.kills
            .extend((0..kills).map(|_| OomKill::counter_alone(self.cgroup.clone(), self.by)));
        told.again.extend((kills..alone).map(|_| self.cgroup.clone()));
    }
}

impl Logged {
    /// Whether this can be among the kills that were counted there then.
    fn may_be_in(&self, rise: &Rise) -> bool {
        let in_time = rise.after <= self.at.saturating_add(SLACK) && self.at <= rise.by.saturating_add(LOG_DELAY);
        in_time
            && match &self.who {
                Who::Told(cgroup) | Who::Again(cgroup) => cgroup.below(&rise.cgroup).is_some(),
                Who::Waiting(kill) => match &kill.limit {
                    Limit::Cgroup(limit) => rise.cgroup.below(limit).is_some(),
                    Limit::Node | Limit::Unknown => true,
                },
            }
    }
}

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) kills: Vec<OomKill>,
    /// The cgroups in which the first victim of a group was counted again, and its second logging was lost.
    pub(super) again: Vec<CgroupPath>,
}

/// Kills and rises that have nothing to do with any others.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    pub(super) logged: Vec<Logged>,
    pub(super) rises: Vec<Rise>,
}

impl Pairing {
    /// Takes kills and rises apart into pairings that cannot influence each other.
    pub(super) fn independent(logged: Vec<Logged>, rises: Vec<Rise>) -> Vec<Self> {
        let mut pairings: Vec<Self> = Vec::new();
        for rise in rises {
            let rises = vec![rise];
            pairings.push(Self {
                logged: Vec::new(),
                rises,
            });
        }
        for logged in logged {
            let concerns = |pairing: &mut Self| pairing.rises.iter().any(|rise| logged.may_be_in(rise));
            let mut merged = Self::default();
            for pairing in pairings.extract_if(.., concerns) {
                merged.logged.extend(pairing.logged);
                merged.rises.extend(pairing.rises);
            }
            merged.logged.push(logged);
            pairings.push(merged);
        }
        pairings
    }

    /// Whether nothing that is still to come can belong here: later rises begin after these kills, and later kills were
    /// logged after these rises.
    pub(super) fn is_final(&self, progress: Progress) -> bool {
        self.logged
            .iter()
            .all(|logged| logged.at.saturating_add(SLACK) < progress.counters)
            && self
                .rises
                .iter()
                .all(|rise| rise.by.saturating_add(LOG_DELAY) < progress.log)
    }

    /// The time of the oldest part.
    pub(super) fn began(&self) -> Duration {
        let logged = self.logged.iter().map(|logged| logged.at);
        logged
            .chain(self.rises.iter().map(|rise| rise.by))
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// Decides for each kill logged before `end` which rise it was in, but for those whose rise may still be that of later
    /// ones. Returns what is left undecided, too.
    pub(super) fn decide(mut self, end: Duration) -> (Decided, Self) {
        let is_old = |logged: &Logged| logged.at < end;
        // All that can be in such a rise is old.
        let is_over = |rise: &Rise| end == Duration::MAX || rise.by.saturating_add(LOG_DELAY) < end;
        // What is newer may take a rise in place of its own, which is still to come, so it comes last. Of the others, those
        // that were told come first: a rise of theirs is never left for others.
        self.logged
            .sort_by_key(|logged| (!is_old(logged), matches!(logged.who, Who::Waiting(_)), logged.at));
        // So do the rises of inner cgroups: what they counted is not left for those around them.
        self.rises
            .sort_by_key(|rise| (Reverse(rise.cgroup.segments().count()), rise.by));
        let held = self.assign();
        let is_decided = |(logged, held): &(&Logged, Option<&Rise>)| is_old(logged) && held.is_none_or(is_over);

        let mut told = Decided::default();
        for (at, rise) in self.rises.iter().enumerate().filter(|(_, rise)| is_over(rise)) {
            let holders = self.logged.iter().zip(&held).filter(|(_, held)| **held == Some(at));
            rise.told_alone(holders.map(|(logged, _)| logged), &mut told);
        }
        let held = || held.iter().map(|held| held.map(|rise| &self.rises[rise]));
        for (logged, rise) in self.logged.iter().zip(held()).filter(is_decided) {
            if let Who::Waiting(kill) = &logged.who {
                told.kills.push(match rise {
                    Some(rise) => self.paired(logged, kill, rise),
                    None => OomKill::log_alone((**kill).clone(), logged.at),
                });
            }
        }
        let decided: Vec<bool> = self.logged.iter().zip(held()).map(|held| is_decided(&held)).collect();
        let (over, left): (Vec<_>, Vec<_>) = self.rises.into_iter().partition(is_over);
        let mut left = Self {
            logged: Vec::new(),
            rises: left,
        };
        for (mut logged, _) in self
            .logged
            .into_iter()
            .zip(decided)
            .filter(|(_, is_decided)| !is_decided)
        {
            logged.outrun |= over.iter().any(|rise| logged.may_be_in(rise));
            left.logged.push(logged);
        }
        (told, left)
    }

    fn paired(&self, logged: &Logged, kill: &Kill, rise: &Rise) -> OomKill {
        let possible: Vec<&Rise> = self.rises.iter().filter(|rise| logged.may_be_in(rise)).collect();
        let is_rival = |rival: &&Logged| possible.iter().any(|rise| rival.may_be_in(rise));
        let counted = possible
            .iter()
            .map(|rise| rise.kills.get())
            .fold(0, u64::saturating_add);
        let one_cgroup = possible.iter().all(|other| other.cgroup == rise.cgroup);
        // More kills than were counted: one of them was somewhere else, and it may be this one.
        let all_counted = count(self.logged.iter().filter(is_rival)) <= counted;
        let told = |evidence| OomKill {
            cgroup: Some(rise.cgroup.clone()),
            evidence,
            counted_in: Some(rise.cgroup.clone()),
            record: kill.seq,
            at: logged.at,
        };
        if one_cgroup && all_counted && !logged.outrun {
            return told(Evidence::OnlyCounter(Box::new(kill.clone())));
        }
        // Rises of one cgroup can change places, so all kills that may be in any of them may be meant.
        let here = || self.rises.iter().filter(|other| other.cgroup == rise.cgroup);
        let is_candidate = |candidate: &&Logged| here().any(|rise| candidate.may_be_in(rise));
        let candidates = self.logged.iter().filter(is_candidate);
        let candidates: Arc<[Kill]> = candidates
            .filter_map(|candidate| match &candidate.who {
                Who::Waiting(kill) => Some((**kill).clone()),
                Who::Told(_) | Who::Again(_) => None,
            })
            .collect();
        told(Evidence::Ambiguous(candidates))
    }

    /// Pairs as many kills as possible with rises, and of all such ways, one in which the first kills and the first rises
    /// have partners. Gives each kill the index of its rise.
    fn assign(&self) -> Vec<Option<usize>> {
        let mut assigned = vec![None; self.logged.len()];
        let mut free: Vec<u64> = self.rises.iter().map(|rise| rise.kills.get()).collect();
        for kill in 0..self.logged.len() {
            if let Some(taken) = self.augment(kill, &mut assigned, &free) {
                free[taken] -= 1;
            }
        }
        self.prefer_first(&mut assigned, &mut free);
        assigned
    }

    /// Moves kills to the first rises that they can fill together: later ones may be needed by what is still to come. A
    /// way that gives the same kills and the first rises partners exists (Mendelsohn and Dulmage, 1958).
    fn prefer_first(&self, assigned: &mut [Option<usize>], free: &mut [u64]) {
        for first in 0..self.rises.len() {
            while free[first] > 0
                && let Some(freed) = self.refill(first, assigned)
            {
                (free[first], free[freed]) = (free[first] - 1, free[freed] + 1);
            }
        }
    }

    /// Fills one more of this rise from later ones, others changing places if they must. Returns the one that has one more
    /// free: the last there is.
    fn refill(&self, first: usize, assigned: &mut [Option<usize>]) -> Option<usize> {
        // Who would move where, so that the rise it has becomes free.
        let mut moves: Vec<Option<(usize, usize)>> = vec![None; self.rises.len()];
        let mut queue = VecDeque::from([first]);
        while let Some(wanted) = queue.pop_front() {
            for (kill, held) in assigned.iter().enumerate() {
                let Some(held) = *held else { continue };
                if held != first && moves[held].is_none() && self.logged[kill].may_be_in(&self.rises[wanted]) {
                    moves[held] = Some((kill, wanted));
                    queue.push_back(held);
                }
            }
        }
        let last = moves.iter().rposition(Option::is_some).filter(|last| *last > first)?;
        let mut freed = last;
        while freed != first {
            let (kill, to) = moves[freed]?;
            assigned[kill] = Some(to);
            freed = to;
        }
        Some(last)
    }

    /// Finds a rise for one more kill, others changing places if they must. Returns the rise that has one free less.
    fn augment(&self, kill: usize, assigned: &mut [Option<usize>], free: &[u64]) -> Option<usize> {
        let mut wanted_by: Vec<Option<usize>> = vec![None; self.rises.len()];
        let mut queue = VecDeque::from([kill]);
        while let Some(seeking) = queue.pop_front() {
            for (at, rise) in self.rises.iter().enumerate() {
                if wanted_by[at].is_some() || !self.logged[seeking].may_be_in(rise) {
                    continue;
                }
                wanted_by[at] = Some(seeking);
                if free[at] > 0 {
                    let mut next = Some(at);
                    while let Some(rise) = next {
                        let mover = wanted_by[rise]?;
                        next = assigned[mover].replace(rise);
                    }
                    return Some(at);
                }
                let holders = assigned.iter().enumerate().filter(|(_, held)| **held == Some(at));
                queue.extend(holders.map(|(holder, _)| holder));
            }
        }
        None
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    items.fold(0, |count, _| count + 1)
}
