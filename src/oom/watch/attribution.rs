//! Attributes kills to containers: all that is known of kills that are not told yet → reports, each kill in one of them, once.
//!
//! In come what the log says, what the counters show, who lives on the node, and the time; out come reports and, to be
//! kept with them, the [`Checkpoint`] that says they were told. Until a report is out, nothing of its kill counts as told:
//! an agent that ends before finds it again. What has to be read from files is behind [`NodeIo`]; apart from that
//! this is pure.
//!
//! A [`PendingKill`] was found and is not told yet, because more of it is to come: the rest of its group, or names.

mod events;
mod release;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;
use jiff::Timestamp;

use super::checkpoint::{Checkpoint, Records};
use super::kill_counters::{CounterScope, KillCounters};
use super::node::NodeIo;
use super::own_writes::OwnWrites;
use super::pod_names::{NodePods, Owner, PodNames};
use crate::model::CgroupPath;
use crate::oom::clock::Moment;
use crate::oom::join::{CounterDelta, Joiner, OomKill, Progress};
use crate::oom::kill::Kill;
use crate::oom::kmsg::{BootId, Numbering};
use crate::oom::numbers::Offset;
use crate::oom::report::{Candidates, OomReport, Role};

/// How far the time of a record may be off.
const SLACK: Duration = Duration::from_millis(50);

/// What is known of a record that waits, beside what it says.
#[derive(Debug, Clone)]
struct RecordFacts {
    wall: Timestamp,
    /// Whether it was in the log before this agent read it.
    replayed: bool,
    role: Role,
}

#[derive(Debug, Clone, Copy)]
struct SweepTimes {
    /// A moment after the first sweep.
    first_by: Duration,
    /// A moment before the latest.
    latest_after: Duration,
}

/// What is known of kills that are not told yet, and which kills were told.
#[derive(Debug)]
pub(super) struct Attribution {
    node: String,
    /// Whether there was an agent before this one. If not, whatever is counted and logged already is none of ours.
    continues: bool,
    /// What was told. Of counters, what was saved until the tree is known.
    told: Checkpoint,
    unsaved: bool,
    joiner: Joiner,
    /// The records that wait, by number.
    waiting: HashMap<u64, RecordFacts>,
    tree: Option<KillCounters>,
    swept: Option<SweepTimes>,
    /// Whether our cgroup namespace hides the upper part of the paths that the kernel logs.
    namespaced: bool,
    names: PodNames,
    own_writes: OwnWrites,
    open: Vec<PendingKill>,
    /// Lists of possible victims that were made of others just now.
    listed: Vec<(Arc<[Arc<Kill>]>, Candidates)>,
    reports: Vec<OomReport>,
}

impl Attribution {
    /// Goes on where an earlier agent left off; without one, begins here.
    pub(super) fn new(boot: BootId, node: String, left: Option<Checkpoint>, now: Duration) -> Self {
        let continues = left.is_some();
        let told = left.unwrap_or_else(|| Checkpoint::new(boot, now));
        Self {
            node,
            continues,
            joiner: Joiner::new(false).with_told_by_counter(told.told_by_counter.clone()),
            told,
            // An agent that goes on from here has to know that it does.
            unsaved: true,
            waiting: HashMap::new(),
            tree: None,
            swept: None,
            namespaced: false,
            names: PodNames::default(),
            own_writes: OwnWrites::default(),
            open: Vec::new(),
            listed: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// The record up to which the log was told.
    pub(super) const fn position(&self) -> Option<u64> {
        self.told.records.up_to()
    }

    /// Takes in who lives here.
    pub(super) fn set_node_pods(&mut self, residents: &NodePods, now: Duration) {
        self.names.update(residents, now);
    }

    /// The tree's root, once it is known. `namespaced` says whether the kernel logs longer paths than we see.
    pub(super) fn set_tree(&mut self, counting: CounterScope, root: &CgroupPath, namespaced: bool) {
        if self.tree.as_ref().is_some_and(|tree| tree.root() == root) {
            return;
        }
        if let Some(old) = self.tree.take() {
            self.told.counters = old.saved();
        }
        self.tree = Some(KillCounters::new(counting, root.clone(), &self.told.counters));
        self.namespaced = namespaced;
    }

    pub(super) const fn own_writes(&mut self) -> &mut OwnWrites {
        &mut self.own_writes
    }

    /// The log can be read, and its records have such numbers.
    pub(super) fn log_began(&mut self, numbering: Numbering, now: Duration) {
        let known = self.told.records.any();
        if known.is_some_and(|record| Numbering::of(record) != numbering) {
            // The records of another source: which of these they are is not known. The counters tell of what was before.
            self.told.records = Records::default();
            self.told.doubted.clear();
            self.told.log_from = now;
            self.unsaved = true;
        }
        self.joiner.log_began();
    }

    /// The log cannot be read any more. All counters must have been swept since the last record was read.
    pub(super) fn log_ended(&mut self, now: Moment, around: &impl NodeIo) {
        for kill in self.joiner.log_ended() {
            self.open(kill, now, around);
        }
        self.listed.clear();
    }

    /// Looks at all counters that may have risen, from `before` on. Returns whether one could not be read.
    pub(super) fn sweep(
        &mut self,
        before: Duration,
        around: &impl NodeIo,
        clock: impl FnOnce() -> Moment,
    ) -> Option<Error> {
        let tree = self.tree.as_mut()?;
        let begins = self.swept.is_none() && !self.continues;
        let sweep = if begins {
            tree.start_at_current(around, before)
        } else {
            tree.sweep(around, before)
        };
        let now = clock();
        let by = now.monotonic;
        let swept = self.swept.replace(SweepTimes {
            first_by: self.swept.map_or(by, |swept| swept.first_by),
            latest_after: before,
        });
        self.unsaved |= begins;
        for risen in sweep.rises.into_iter().filter(|_| !begins) {
            let told = self.joiner.counted(CounterDelta {
                cgroup: risen.cgroup,
                after: swept.map_or(Duration::ZERO, |swept| swept.latest_after),
                by,
                numbers: sweep.numbers,
                kills: risen.kills,
                again: risen.again,
            });
            told.into_iter().for_each(|kill| self.open(kill, now, around));
        }
        self.apply_join_results();
        if !self.joiner.has_log() {
            // What is counted now is told now. When the log can be read, it must not be told from there.
            self.told.log_from = by + SLACK;
        }
        sweep.failed
    }

    /// Which kills the lines of the log are, as far as it is known by now.
    pub(super) const fn set_offset(&mut self, offset: Option<Offset>) {
        self.joiner.set_offset(offset);
    }

    /// Decides what cannot change any more.
    pub(super) fn decide(&mut self, progress: Progress, now: Moment, around: &impl NodeIo) {
        for kill in self.joiner.decide_up_to(progress) {
            self.open(kill, now, around);
        }
        self.listed.clear();
        self.apply_join_results();
    }

    pub(super) fn apply_join_results(&mut self) {
        for record in self.joiner.take_known() {
            self.told.records.mark_told(record);
            self.waiting.remove(&record);
            self.unsaved = true;
        }
        for group in self.joiner.take_duplicates() {
            if let Some(tree) = &mut self.tree {
                tree.mark_counted_twice(&group);
                self.unsaved = true;
            }
        }
    }

    /// Whether a kill waits for the counters.
    pub(super) fn waits_for_counters(&self) -> bool {
        self.joiner.has_kills_waiting()
    }

    /// Whether anything waits for the counters or the log.
    pub(super) fn is_waiting(&self) -> bool {
        self.joiner.is_waiting()
    }

    pub(super) const fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Hands out what is to be told now.
    pub(super) fn drain_reports(&mut self) -> Vec<OomReport> {
        std::mem::take(&mut self.reports)
    }

    /// What to keep together with everything handed out so far, if there is news for it.
    pub(super) fn next_checkpoint(&mut self) -> Option<Checkpoint> {
        std::mem::take(&mut self.unsaved).then(|| Checkpoint {
            doubted: self.still_doubted(),
            counters: match &self.tree {
                Some(tree) => tree.saved(),
                None => self.told.counters.clone(),
            },
            told_by_counter: self.told_by_counter(),
            ..self.told.clone()
        })
    }

    /// The kills that were told by counters alone, without those that are not told yet.
    fn told_by_counter(&self) -> Vec<CounterDelta> {
        let mut rises = self.joiner.told_by_counter().to_vec();
        for open in self.open.iter().filter(|open| open.kill.record.is_none()) {
            let of = |rise: &CounterDelta| Some(&rise.cgroup) == open.kill.cgroup.as_ref() && rise.by == open.kill.at;
            if let Some(at) = rises.iter().position(of) {
                match NonZeroU64::new(rises[at].kills.get() - 1) {
                    Some(left) => rises[at].kills = left,
                    None => drop(rises.remove(at)),
                }
            }
        }
        rises
    }

    /// The records of kills that are not told, and of which an agent that finds them again must not be more certain.
    fn still_doubted(&self) -> Vec<u64> {
        let doubted = self.told.doubted.iter();
        let unread = doubted.filter(|record| !self.told.records.is_told(**record));
        let open = self.open.iter().filter(|open| !open.kill.is_certain());
        let open = open.flat_map(|open| &open.records);
        let mut doubted: Vec<u64> = unread.chain(open).copied().chain(self.joiner.doubted()).collect();
        doubted.sort_unstable();
        doubted.dedup();
        doubted
    }
}

/// How long the report of a kill waits for the agent to learn whose container it is.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

/// A kill, as far as it is known, with everything it counts for.
#[derive(Debug)]
pub(super) struct PendingKill {
    pub(super) kill: OomKill,
    pub(super) since: Duration,
    /// What is known when the kill is found: all but its names, its group and who is to blame.
    pub(super) report: OomReport,
    pub(super) group: Option<PendingGroup>,
    /// The records that are told with it.
    pub(super) records: Vec<u64>,
    /// The kills that are counted with it, each by its cgroup.
    pub(super) counted: Vec<CgroupPath>,
    /// The second countings that are, likewise.
    pub(super) again: Vec<CgroupPath>,
}

/// The group that a kill is part of.
#[derive(Debug)]
pub(super) struct PendingGroup {
    pub(super) cgroup: CgroupPath,
    pub(super) pids: Vec<u32>,
    /// When the last of it was logged or found.
    pub(super) last: Duration,
}

impl PendingKill {
    /// Whether this is the kill of a group that this cgroup is in.
    pub(super) fn is_group_of(&self, cgroup: &CgroupPath) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| cgroup.below(&group.cgroup).is_some())
    }

    /// Takes in another victim of the group.
    pub(super) fn add_victim(&mut self, other: OomKill, now: Duration) {
        let pid = other.victim().map(|kill| kill.pid);
        if let Some(group) = &mut self.group {
            group.pids.extend(pid);
            group.last = now;
        }
        self.records.extend(other.record);
        self.counted.extend(other.cgroup);
    }

    /// Whose cgroup lost a process.
    pub(super) fn owner(&self, names: &PodNames) -> Owner {
        // Where the kernel shows a task that was already leaving, it was in the cgroup whose limit was hit, or below.
        let limit = || self.kill.victim().and_then(|kill| kill.limit.cgroup());
        let cgroup = self.kill.cgroup.as_ref().or_else(limit);
        cgroup.map(|cgroup| names.owner(cgroup)).unwrap_or_default()
    }

    /// Until when to wait for the agent to learn names.
    pub(super) fn names_due(&self) -> Duration {
        self.since + NAMES_WITHIN
    }
}

#[cfg(test)]
mod tests;
