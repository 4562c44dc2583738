//! Compares how many kills each cgroup's counter shows with how many of them the agent has reported.
//!
//! In come a tree of counters and the cgroups of reported kills; out come rises of counters, each kill in one rise
//! only. A kill that is counted and not reported when the agent ends is a rise for the next agent, so a checkpoint
//! keeps the reported counts. An unknown cgroup has no reported kill. Pure: the tree is an argument.
//!
//! A counter of cgroup v2 shows kills in the cgroup and everything below, also below cgroups that are gone; one of v1
//! shows kills in the cgroup alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::cgroup::Place;
use crate::model::{CgroupPath, CgroupVersion};
use crate::oom::counters::{Count, Reading};
use crate::oom::numbers::{MachineCount, Numbers};

/// A tree of cgroups with counters.
pub(super) trait CounterTree {
    /// Reads the counter of a cgroup; `None` if the cgroup is gone.
    fn read(&self, cgroup: &CgroupPath) -> Result<Option<Reading>>;
    /// The cgroups directly in this one; none if this one is gone. After the read of a counter that is gone, the list
    /// is new; before, it may lack a cgroup that took the place of a removed one.
    fn children(&self, cgroup: &CgroupPath) -> Result<Vec<CgroupPath>>;
    /// The number of OOM kills on the machine since boot; `None` where the kernel does not count them.
    fn machine_kills(&self) -> Option<u64>;
}

/// The result of one read of all counters.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// By how much counters rose, each with the innermost cgroup whose counter shows these kills.
    pub(super) rises: Vec<(CgroupPath, Count)>,
    /// The numbers among which all of these kills are.
    pub(super) numbers: Numbers,
    /// The first error: a counter could not be read, or the cgroups inside one could not be listed.
    pub(super) failed: Option<Error>,
}

impl Sweep {
    /// What was read, or nothing after an error, which the sweep keeps.
    fn unless_failed<T: Default>(&mut self, read: Result<T>) -> T {
        read.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            T::default()
        })
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct CounterState {
    /// The identity of the cgroup; 0 before the first read of its counter.
    inode: u64,
    /// The count of the last read, without kills that may be in a cgroup inside whose counter could not be read.
    seen: Count,
    /// The reported part of the count, of kills in the log and of others.
    reported: Count,
    /// Whether this agent has read the counter.
    read: bool,
    /// Kills that counters of cgroups inside showed before this one: the sweep reads this one first.
    ahead: u64,
    /// Since when kills are left to later sweeps, because a counter inside cannot be read.
    left_since: Option<Duration>,
    /// When a sweep first found the cgroup gone.
    gone: Option<Duration>,
}

/// Kills wait this long for a counter that cannot be read. Then the cgroup around it has those that are not reported.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// The agent remembers a cgroup this long after the cgroup is gone: the agent may still report kills in it, each with
/// a number of its own.
const KNOWN_WHEN_GONE: Duration = Duration::from_secs(30);

/// The reported kills of one cgroup, as a checkpoint keeps them. Cgroups without reported kills are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCounter {
    cgroup: CgroupPath,
    inode: u64,
    #[serde(flatten)]
    reported: Count,
}

/// The counters of a tree.
#[derive(Debug)]
pub(super) struct KillCounters {
    pub(super) version: CgroupVersion,
    pub(super) root: CgroupPath,
    /// Whether no sweep has read every counter within [`READ_WITHIN`] yet and no earlier agent watched: what the counters show
    /// is no news.
    pub(super) starts: bool,
    first_sweep: Option<Duration>,
    known: BTreeMap<CgroupPath, CounterState>,
    /// As of the last sweep that read every counter.
    machine: MachineCount,
    /// The machine's count if two sweeps in a row found it and read every counter: no counter rises before this one.
    pub(super) quiet_at: Option<u64>,
    /// The number of the first kill that the next sweep can show.
    first: u64,
}

impl KillCounters {
    /// The counters of `root` and everything below, with the saved counts of these cgroups. An agent that `starts`
    /// reports no kill from before its first sweep that reads every counter, or [`READ_WITHIN`] after its first one.
    pub(super) fn new(version: CgroupVersion, root: CgroupPath, saved: &[SavedCounter], starts: bool) -> Self {
        let of_tree = saved.iter().filter(|saved| saved.cgroup.below(&root).is_some());
        let state = |saved: &SavedCounter| CounterState {
            inode: saved.inode,
            seen: saved.reported,
            reported: saved.reported,
            ..CounterState::default()
        };
        let known = of_tree.map(|saved| (saved.cgroup.clone(), state(saved))).collect();
        Self {
            version,
            root,
            starts,
            first_sweep: None,
            known,
            machine: MachineCount::default(),
            quiet_at: None,
            first: 0,
        }
    }

    pub(super) fn saved(&self) -> Vec<SavedCounter> {
        let is_reported = |(_, state): &(&CgroupPath, &CounterState)| state.reported != Count::default();
        let saved = self.known.iter().filter(is_reported);
        let saved = saved.map(|(cgroup, state)| SavedCounter {
            cgroup: cgroup.clone(),
            inode: state.inode,
            reported: state.reported,
        });
        saved.collect()
    }

    /// Reads all counters that may have risen. A counter of v2 is read before those below
    /// it: the kernel counts from the inside out, so the inner counters show all kills of the outer one but those
    /// in cgroups that are gone.
    pub(super) fn sweep(&mut self, tree: &impl CounterTree, now: Duration) -> Sweep {
        let mut sweep = Sweep::default();
        let kills = tree.machine_kills();
        let root = self.root.clone();
        match self.version {
            CgroupVersion::V2 => drop(self.descend(tree, &root, now, &mut sweep)),
            CgroupVersion::V1 => {
                let mut cgroups = vec![root];
                while let Some(cgroup) = cgroups.pop() {
                    let risen = self.read(tree, &cgroup, &mut sweep).filter(|count| count.kills > 0);
                    cgroups.extend(sweep.unless_failed(tree.children(&cgroup)));
                    sweep.rises.extend(risen.map(|count| (cgroup, count)));
                }
            }
        }
        self.known.retain(|cgroup, state| {
            let is_gone = matches!(tree.read(cgroup), Ok(None));
            !is_gone || now < state.gone.get_or_insert(now).saturating_add(KNOWN_WHEN_GONE)
        });
        sweep.numbers = Numbers {
            first: self.first,
            last: tree.machine_kills().unwrap_or(u64::MAX),
        };
        self.quiet_at = None;
        if sweep.failed.is_none() {
            let is_same = self.machine.update(kills, now);
            self.quiet_at = kills.filter(|_| is_same);
            // The kernel raises the machine's count first, so this sweep may have missed the last kill.
            let is_complete = self.machine.complete_at(now).is_some();
            self.first = kills.map_or(0, |kills| kills + u64::from(is_complete));
        }
        if self.starts {
            self.known.values_mut().for_each(|state| state.reported = state.seen);
            sweep.rises.clear();
            let first = *self.first_sweep.get_or_insert(now);
            self.starts = sweep.failed.is_some() && now < first.saturating_add(READ_WITHIN);
        }
        sweep
    }

    /// The agent has reported a kill in this cgroup, or accounted for the second count of a group's first victim.
    pub(super) fn mark_reported(&mut self, cgroup: &CgroupPath, is_second: bool) {
        for cgroup in self.counting(cgroup) {
            let reported = &mut self.known.entry(cgroup).or_default().reported;
            reported.kills += 1;
            reported.groups += u64::from(is_second);
        }
    }

    /// The inode of a cgroup and the number of reported kills in it: together unique for the next kill.
    pub(super) fn reported_in(&self, cgroup: &CgroupPath) -> (u64, u64) {
        let state = self.known.get(cgroup).copied().unwrap_or_default();
        (state.inode, state.reported.kills)
    }

    /// The innermost cgroup whose counter shows kills in this one.
    pub(super) fn counted_in(&self, cgroup: &CgroupPath) -> Option<CgroupPath> {
        self.counting(cgroup).into_iter().next()
    }

    /// The cgroups whose counters show a kill in this one, the innermost first.
    fn counting(&self, cgroup: &CgroupPath) -> Vec<CgroupPath> {
        let outwards = std::iter::successors(Some(cgroup.clone()), CgroupPath::parent);
        let in_tree = outwards.take_while(|path| path.below(&self.root).is_some());
        if self.version == CgroupVersion::V1 {
            return in_tree.take(1).collect();
        }
        let is_read = |path: &CgroupPath| {
            let around = path.parent().filter(|_| *path != self.root);
            around.is_none_or(|around| self.has_counters_inside(&around))
        };
        in_tree.filter(is_read).collect()
    }

    /// Whether the agent reads the counters of the cgroups in this one. Inside a container it reads none.
    fn has_counters_inside(&self, cgroup: &CgroupPath) -> bool {
        let place = Place::parse_below(&self.root, cgroup);
        matches!(place, Some(Place::Kubepods | Place::Qos(_) | Place::Pod(_)))
    }

    /// Reads one counter. Returns by how much the counter rose, `None` if it did not and shows all reported kills.
    fn read(&mut self, tree: &impl CounterTree, cgroup: &CgroupPath, sweep: &mut Sweep) -> Option<Count> {
        let reading = sweep.unless_failed(tree.read(cgroup))?;
        let now = reading.count;
        if now == Count::default() && !self.known.contains_key(cgroup) {
            return None;
        }
        let state = self.known.entry(cgroup.clone()).or_default();
        // A counter never falls: a lower count is that of another cgroup of this name. The kills that were reported and
        // not yet seen were in this new one.
        if (state.inode != 0 && state.inode != reading.inode) || (state.read && now.kills < state.seen.kills) {
            let reported = state.reported.beyond(state.seen);
            *state = CounterState {
                reported,
                ..CounterState::default()
            };
        }
        (state.inode, state.read, state.gone) = (reading.inode, true, None);
        let rise = now.beyond(state.seen);
        state.seen = now;
        // The kernel counts a kill before it logs the kill. So a kill that was reported and not counted was in another
        // cgroup.
        let shows_all = state.reported.kills <= now.kills;
        state.reported.kills = state.reported.kills.min(now.kills);
        state.reported.groups = state.reported.groups.min(now.groups);
        (rise.kills > 0 || !shows_all).then_some(rise)
    }

    /// Reads the counter of a cgroup and, if it rose, those inside. Returns by how much the counter rose. After an error
    /// inside, the kills that no counter there shows are left to the next sweep, at every level: they may be in a cgroup
    /// that was not read. This ends after [`READ_WITHIN`]. A kill that was reported and not counted is taken back at every
    /// level, too: the next agent would find a kill inside at this one alone.
    fn descend(
        &mut self,
        tree: &impl CounterTree,
        cgroup: &CgroupPath,
        now: Duration,
        sweep: &mut Sweep,
    ) -> Option<Count> {
        let mut risen = self.read(tree, cgroup, sweep)?;
        let mut here = risen;
        if self.has_counters_inside(cgroup) {
            let failed_outside = sweep.failed.take();
            let ahead = self.known.get(cgroup).map_or(0, |state| state.ahead);
            let mut below = Count {
                kills: ahead,
                groups: 0,
            };
            let mut read = BTreeSet::new();
            // Kills in none of the listed cgroups may be in a new one.
            for _ in 0..2 {
                let new = sweep.unless_failed(tree.children(cgroup)).into_iter();
                for child in new.filter(|child| read.insert(child.clone())) {
                    let rise = self.descend(tree, &child, now, sweep).unwrap_or_default();
                    below.kills += rise.kills;
                    below.groups += rise.groups;
                }
                if below.kills >= risen.kills {
                    break;
                }
            }
            let state = self.known.entry(cgroup.clone()).or_default();
            state.ahead = below.kills.saturating_sub(risen.kills);
            here = risen.beyond(below);
            let is_unclear = sweep.failed.is_some() && here.kills > 0;
            let since = is_unclear.then(|| state.left_since.unwrap_or(now));
            state.left_since = since.filter(|since| now < since.saturating_add(READ_WITHIN));
            if state.left_since.is_some() {
                state.seen = state.seen.beyond(here);
                (risen, here) = (risen.beyond(here), Count::default());
            } else if is_unclear {
                // The kernel's log may have had the others.
                let unreported = state.seen.beyond(state.reported).beyond(below);
                here.kills = here.kills.min(unreported.kills);
            }
            sweep.failed = failed_outside.or_else(|| sweep.failed.take());
        }
        sweep.rises.extend((here.kills > 0).then(|| (cgroup.clone(), here)));
        Some(risen)
    }
}

impl Count {
    const fn beyond(self, other: Self) -> Self {
        Self {
            kills: self.kills.saturating_sub(other.kills),
            groups: self.groups.saturating_sub(other.groups),
        }
    }
}

#[cfg(test)]
mod tests;
