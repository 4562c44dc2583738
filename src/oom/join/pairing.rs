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

    /// Decides for each kill logged before `end` which rise it was in. Returns what is left undecided, too.
    pub(super) fn decide(mut self, end: Duration) -> (Decided, Self) {
        // Those that were told come first: a rise of theirs is never left for others.
        self.logged
            .sort_by_key(|logged| (matches!(logged.who, Who::Waiting(_)), logged.at));
        // So do the rises of inner cgroups: what they counted is not left for those around them.
        self.rises
            .sort_by_key(|rise| (Reverse(rise.cgroup.segments().count()), rise.by));
        let assigned = self.assign();
        let is_over = |logged: &Logged| logged.at < end;
        let mut told = Decided::default();
        let mut left = Self::default();
        for (at, rise) in self.rises.iter().enumerate() {
            let holders = || self.logged.iter().zip(&assigned).filter(|(_, held)| **held == Some(at));
            let gone = count(holders().filter(|(holder, _)| is_over(holder)));
            let is_again = |(holder, _): &(&Logged, _)| matches!(holder.who, Who::Again(_));
            let mut again = rise
                .again
                .saturating_sub(count(holders().filter(is_again).filter(|(holder, _)| is_over(holder))));
            let mut open = rise.kills.get().saturating_sub(gone);
            if rise.by.saturating_add(LOG_DELAY) < end {
                let alone = rise.kills.get().saturating_sub(count(holders()));
                let unheard = rise.again.saturating_sub(count(holders().filter(is_again)));
                let kills = alone.saturating_sub(unheard);
                told.kills
                    .extend((0..kills).map(|_| OomKill::counter_alone(rise.cgroup.clone(), rise.by)));
                told.again.extend((kills..alone).map(|_| rise.cgroup.clone()));
                again = again.saturating_sub(alone - kills);
                open -= alone;
            }
            if let Some(kills) = NonZeroU64::new(open) {
                let cgroup = rise.cgroup.clone();
                left.rises.push(Rise {
                    cgroup,
                    kills,
                    again,
                    ..*rise
                });
            }
        }
        for (logged, rise) in self.logged.iter().zip(&assigned).filter(|(logged, _)| is_over(logged)) {
            let Who::Waiting(kill) = &logged.who else { continue };
            told.kills.push(match rise {
                Some(rise) => self.paired(logged, kill, &self.rises[*rise]),
                None => OomKill::log_alone((**kill).clone(), logged.at),
            });
        }
        let is_given = |rise: usize| {
            self.logged
                .iter()
                .zip(&assigned)
                .any(|(holder, held)| *held == Some(rise) && is_over(holder))
        };
        let given: Vec<&Rise> = (0..self.rises.len())
            .filter(|rise| is_given(*rise))
            .map(|rise| &self.rises[rise])
            .collect();
        for mut logged in self.logged.extract_if(.., |logged| logged.at >= end) {
            logged.outrun |= given.iter().any(|rise| logged.may_be_in(rise));
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

    /// Pairs as many kills as possible with rises: a maximum matching by augmenting paths, in which a kill that has a rise
    /// may change to another one but never loses it. Gives each kill the index of its rise.
    fn assign(&self) -> Vec<Option<usize>> {
        let mut assigned = vec![None; self.logged.len()];
        let mut free: Vec<u64> = self.rises.iter().map(|rise| rise.kills.get()).collect();
        for kill in 0..self.logged.len() {
            if let Some(taken) = self.augment(kill, &mut assigned, &free) {
                free[taken] -= 1;
            }
        }
        self.prefer_older(&mut assigned, &mut free);
        assigned
    }

    /// Moves kills to older rises where those are free: newer ones may be needed by what is still to come.
    fn prefer_older(&self, assigned: &mut [Option<usize>], free: &mut [u64]) {
        for (older, rise) in self.rises.iter().enumerate() {
            for (logged, held) in self.logged.iter().zip(assigned.iter_mut()) {
                if let Some(newer) = *held
                    && newer > older
                    && free[older] > 0
                    && logged.may_be_in(rise)
                {
                    (free[older], free[newer]) = (free[older] - 1, free[newer] + 1);
                    *held = Some(older);
                }
            }
        }
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
