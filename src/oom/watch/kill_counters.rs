//! How many kills each cgroup's counter shows, and how many of them were told.
//!
//! In come a tree of counters and the cgroups of kills that were told; out come rises, each kill in one of them only. What
//! is counted and not told when the agent ends is a rise when it is back, so what is kept over restarts is what was told.
//! A cgroup that is not known has had no kill told: it counts from zero. Pure: the tree is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::cgroup::Place;
use crate::model::CgroupPath;
use crate::oom::counters::Reading;
use crate::oom::join::LATEST;
use crate::oom::numbers::Numbers;

/// A tree of cgroups with counters.
pub(super) trait CounterTree {
    /// The counter of a cgroup; `None` if it is gone.
    fn read(&self, cgroup: &CgroupPath) -> Result<Option<Reading>>;
    /// The cgroups directly in one; none if it is gone.
    fn children(&self, cgroup: &CgroupPath) -> Vec<CgroupPath>;
    /// How often any process was killed on the machine since it began; `None` where that is not known.
    fn machine_kills(&self) -> Option<u64>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CounterScope {
    /// Kills in the cgroup and everything below, also below cgroups that are gone: v2.
    Below,
    /// Kills in the cgroup alone: v1, and v2 mounted with `memory_localevents`.
    Local,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Increase {
    /// Where: the innermost cgroup whose counter shows these kills.
    pub(super) cgroup: CgroupPath,
    pub(super) kills: NonZeroU64,
    /// How many of them are second countings of a group's first victim, where the kernel says.
    pub(super) again: u64,
}

/// What one look at all counters found.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) rises: Vec<Increase>,
    /// Which kills of the machine these are among.
    pub(super) numbers: Numbers,
    /// The first counter that could not be read.
    pub(super) failed: Option<Error>,
}

/// Which kills of the machine no counter was read after.
#[derive(Debug, Default)]
struct CountedBefore {
    /// The first of them.
    first: u64,
    /// The machine's count, and when it was found first.
    count: Option<(u64, Duration)>,
}

impl CountedBefore {
    /// The machine's count was this then, and all counters were read after. Its last kill may not be in them yet: the
    /// machine's count is the first to rise.
    fn read(&mut self, count: Option<u64>, at: Duration) {
        let known = self.count.filter(|(known, _)| Some(*known) == count);
        self.count = known.or(count.map(|count| (count, at)));
        let is_over = known.is_some_and(|(_, since)| since + LATEST < at);
        self.first = count.map_or(0, |count| count + u64::from(is_over));
    }
}

/// `oom_kill` and `oom_group_kill`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    kills: u64,
    groups: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct CounterState {
    /// Which cgroup; 0 before its counter was read.
    inode: u64,
    seen: Count,
    /// What was told of it, by whatever evidence.
    told: Count,
    /// Whether that was in this life of the agent.
    read: bool,
    /// Kills that cgroups in it showed before it did itself: it is read first.
    ahead: u64,
    /// When it was found to be gone.
    gone: Option<Duration>,
}

/// A cgroup that is gone is known for so long: kills in it may still be told, each by a number of its own.
const KNOWN_WHEN_GONE: Duration = Duration::from_secs(30);

impl CounterState {
    fn is_known(&mut self, is_there: bool, now: Duration) -> bool {
        is_there || now < self.gone.get_or_insert(now).saturating_add(KNOWN_WHEN_GONE)
    }
}

/// One cgroup's account as it is kept over restarts. KillCounters at zero are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCounter {
    cgroup: CgroupPath,
    inode: u64,
    #[serde(flatten)]
    told: Count,
}

/// The kill_counters of a tree.
#[derive(Debug)]
pub(super) struct KillCounters {
    counting: CounterScope,
    root: CgroupPath,
    known: BTreeMap<CgroupPath, CounterState>,
    counted: CountedBefore,
}

impl KillCounters {
    /// The kill_counters of `root` and everything below, from what was saved of them. What was saved
    /// of anything else means nothing.
    pub(super) fn new(counting: CounterScope, root: CgroupPath, saved: &[SavedCounter]) -> Self {
        let of_tree = saved.iter().filter(|saved| saved.cgroup.below(&root).is_some());
        let state = |saved: &SavedCounter| CounterState {
            inode: saved.inode,
            seen: saved.told,
            told: saved.told,
            ..CounterState::default()
        };
        let known = of_tree.map(|saved| (saved.cgroup.clone(), state(saved))).collect();
        Self {
            counting,
            root,
            known,
            counted: CountedBefore::default(),
        }
    }

    pub(super) fn saved(&self) -> Vec<SavedCounter> {
        let told = self.known.iter().filter(|(_, state)| state.told != Count::default());
        let saved = told.map(|(cgroup, state)| SavedCounter {
            cgroup: cgroup.clone(),
            inode: state.inode,
            told: state.told,
        });
        saved.collect()
    }

    pub(super) const fn root(&self) -> &CgroupPath {
        &self.root
    }

    /// Takes everything that is counted now as told: it happened before anybody watched.
    pub(super) fn start_at_current(&mut self, tree: &impl CounterTree, now: Duration) -> Sweep {
        let sweep = self.sweep(tree, now);
        for account in self.known.values_mut() {
            account.told = account.seen;
        }
        sweep
    }

    /// Looks at all counters that may have risen, at that time. A counter that counts what is below it is read before those below: the
    /// kernel counts from the inside out, so what it shows they show as well, and the rest was in cgroups that are gone.
    pub(super) fn sweep(&mut self, tree: &impl CounterTree, now: Duration) -> Sweep {
        let mut sweep = Sweep::default();
        let kills = tree.machine_kills();
        let root = self.root.clone();
        match self.counting {
            CounterScope::Below => drop(self.descend(tree, &root, &mut sweep, now)),
            CounterScope::Local => {
                let mut there = BTreeSet::new();
                let mut cgroups = vec![root];
                while let Some(cgroup) = cgroups.pop() {
                    let risen = self.read(tree, &cgroup, &mut sweep);
                    sweep.rises.extend(risen.and_then(|count| count.rise(&cgroup)));
                    cgroups.extend(tree.children(&cgroup));
                    there.insert(cgroup);
                }
                self.known
                    .retain(|cgroup, state| state.is_known(there.contains(cgroup), now));
            }
        }
        sweep.numbers = Numbers {
            first: self.counted.first,
            last: tree.machine_kills().unwrap_or(u64::MAX),
        };
        if sweep.failed.is_none() {
            self.counted.read(kills, now);
        }
        sweep
    }

    /// A kill in this cgroup was told.
    pub(super) fn mark_told(&mut self, cgroup: &CgroupPath) {
        self.each_counting(cgroup, |told| told.kills += 1);
    }

    /// The second counting of a group's first victim is accounted for.
    pub(super) fn mark_counted_twice(&mut self, group: &CgroupPath) {
        self.each_counting(group, |told| {
            told.kills += 1;
            told.groups += 1;
        });
    }

    /// Which cgroup this is, and how many kills in it were told: a number for the next one that is never used again.
    pub(super) fn told_in(&self, cgroup: &CgroupPath) -> (u64, u64) {
        let account = self.known.get(cgroup).copied().unwrap_or_default();
        (account.inode, account.told.kills)
    }

    /// The cgroup whose counter shows kills in this one.
    pub(super) fn counted_in(&self, cgroup: &CgroupPath) -> Option<CgroupPath> {
        match self.counting {
            CounterScope::Below => self.chain(cgroup).pop(),
            CounterScope::Local => cgroup.below(&self.root).map(|_| cgroup.clone()),
        }
    }

    fn each_counting(&mut self, cgroup: &CgroupPath, add: impl Fn(&mut Count)) {
        let counting = match self.counting {
            CounterScope::Below => self.chain(cgroup),
            CounterScope::Local => self.counted_in(cgroup).into_iter().collect(),
        };
        for cgroup in counting {
            add(&mut self.known.entry(cgroup).or_default().told);
        }
    }

    /// The cgroups from the root inwards whose counters show a kill in this one.
    fn chain(&self, cgroup: &CgroupPath) -> Vec<CgroupPath> {
        let Some(below) = cgroup.below(&self.root) else {
            return Vec::new();
        };
        let mut chain = vec![self.root.clone()];
        let mut inner = self.root.clone();
        for name in below.split('/').filter(|name| !name.is_empty()) {
            if !self.has_counters_inside(&inner) {
                break;
            }
            let Ok(child) = inner.child(name) else { break };
            inner = child;
            chain.push(inner.clone());
        }
        chain
    }

    /// Whether the cgroups in this one have counters of interest. What containers make in their own is theirs.
    fn has_counters_inside(&self, cgroup: &CgroupPath) -> bool {
        let place = Place::parse_below(&self.root, cgroup);
        matches!(place, Some(Place::Kubepods | Place::Qos(_) | Place::Pod(_)))
    }

    /// Reads one counter; returns by how much it rose.
    fn read(&mut self, tree: &impl CounterTree, cgroup: &CgroupPath, sweep: &mut Sweep) -> Option<Count> {
        let reading = match tree.read(cgroup) {
            Ok(reading) => reading?,
            Err(error) => {
                sweep.failed.get_or_insert(error);
                return None;
            }
        };
        let now = Count {
            kills: reading.kills,
            groups: reading.groups,
        };
        if now == Count::default() && !self.known.contains_key(cgroup) {
            return None;
        }
        let account = self.known.entry(cgroup.clone()).or_default();
        // A counter only rises: otherwise this is another cgroup of that name. What was told and not seen was in this one.
        if (account.inode != 0 && account.inode != reading.inode) || (account.read && now.kills < account.seen.kills) {
            let told = account.told.beyond(account.seen);
            *account = CounterState {
                told,
                ..CounterState::default()
            };
        }
        (account.inode, account.read, account.gone) = (reading.inode, true, None);
        let rise = now.beyond(account.seen);
        account.seen = now;
        // The kernel counts a kill before it logs it. Told and not counted was somewhere else, whatever the log said.
        account.told.kills = account.told.kills.min(now.kills);
        account.told.groups = account.told.groups.min(now.groups);
        (rise.kills > 0).then_some(rise)
    }

    /// Looks at a cgroup, and inside where it shows news; returns by how much it rose.
    fn descend(
        &mut self,
        tree: &impl CounterTree,
        cgroup: &CgroupPath,
        sweep: &mut Sweep,
        now: Duration,
    ) -> Option<Count> {
        let risen = self.read(tree, cgroup, sweep)?;
        if !self.has_counters_inside(cgroup) {
            sweep.rises.extend(risen.rise(cgroup));
            return Some(risen);
        }
        let children = tree.children(cgroup);
        let mut below = Count::default();
        for child in &children {
            if let Some(rise) = self.descend(tree, child, sweep, now) {
                below.kills += rise.kills;
                below.groups += rise.groups;
            }
        }
        self.forget_children(cgroup, &children, now);
        let account = self.known.entry(cgroup.clone()).or_default();
        let shown = below.kills + account.ahead;
        account.ahead = shown.saturating_sub(risen.kills);
        let here = Count {
            kills: risen.kills.saturating_sub(shown),
            groups: risen.groups.saturating_sub(below.groups),
        };
        sweep.rises.extend(here.rise(cgroup));
        Some(risen)
    }

    /// Forgets cgroups in this one that are gone for long.
    fn forget_children(&mut self, cgroup: &CgroupPath, children: &[CgroupPath], now: Duration) {
        let there: BTreeSet<&str> = children.iter().filter_map(CgroupPath::name).collect();
        self.known.retain(|known, state| {
            let below = known.below(cgroup).and_then(|below| below.split('/').next());
            let is_there = below.is_none_or(|child| child.is_empty() || there.contains(child));
            state.is_known(is_there, now)
        });
    }
}

impl Count {
    const fn beyond(self, other: Self) -> Self {
        Self {
            kills: self.kills.saturating_sub(other.kills),
            groups: self.groups.saturating_sub(other.groups),
        }
    }

    fn rise(self, cgroup: &CgroupPath) -> Option<Increase> {
        Some(Increase {
            cgroup: cgroup.clone(),
            kills: NonZeroU64::new(self.kills)?,
            again: self.groups.min(self.kills),
        })
    }
}

#[cfg(test)]
mod tests;
