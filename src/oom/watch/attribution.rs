//! Attributes kills to containers: turns everything known of unreported kills into reports, each kill in one report,
//! once.
//!
//! In come events of the log, rises of counters, the pods on the node, and the time. Out come reports and the
//! [`Checkpoint`] that counts their kills as reported. A kill counts as reported only from the moment its report is
//! out: the next agent finds the others again. Files are read through [`NodeIo`]; everything else here is pure.
//!
//! A [`PendingKill`] waits for the rest of its group or for the name of its pod.

mod events;
mod release;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;

use super::checkpoint::{Checkpoint, Records};
use super::kill_counters::KillCounters;
use super::node::NodeIo;
use super::own_writes::OwnWrites;
use super::pod_names::{Owner, PodNames};
use crate::model::{CgroupPath, CgroupVersion};
use crate::oom::clock::Moment;
use crate::oom::join::{CounterDelta, Joiner, OomKill, Progress, SLACK};
use crate::oom::kill::Kill;
use crate::oom::kmsg::{BootId, Numbering};
use crate::oom::report::{Candidates, OomReport};

/// Times of sweeps of the counters, by CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub(super) struct SweepTimes {
    /// A moment after the first sweep.
    first_by: Duration,
    /// A moment before the latest sweep.
    pub(super) latest_after: Duration,
}

/// The unreported kills, and which kills earlier reports told of.
#[derive(Debug)]
pub(super) struct Attribution {
    node: String,
    /// Whether an earlier agent left a checkpoint. Without one, this agent ignores everything from before its start.
    continues: bool,
    /// The reported kills. Of counters, the saved counts until the tree is known.
    pub(super) checkpoint: Checkpoint,
    /// Whether the checkpoint has changed since the last [`Self::next_checkpoint`].
    unsaved: bool,
    pub(super) joiner: Joiner,
    pub(super) tree: Option<KillCounters>,
    pub(super) swept: Option<SweepTimes>,
    /// Whether the agent's cgroup namespace hides the upper part of the paths that the kernel logs.
    namespaced: bool,
    pub(super) names: PodNames,
    pub(super) own_writes: OwnWrites,
    pending: Vec<PendingKill>,
    /// The candidates made of lists of possible victims in this call: many kills share one list.
    listed: Vec<(Arc<[Arc<Kill>]>, Candidates)>,
    pub(super) reports: Vec<OomReport>,
}

impl Attribution {
    /// Continues from the checkpoint of an earlier agent; without one, begins now.
    pub(super) fn new(boot: BootId, node: String, left: Option<Checkpoint>, now: Duration) -> Self {
        let continues = left.is_some();
        let checkpoint = left.unwrap_or_else(|| Checkpoint::new(boot, now));
        let mut joiner = Joiner::new(false);
        joiner.reported_by_counter.clone_from(&checkpoint.reported_by_counter);
        Self {
            node,
            continues,
            joiner,
            checkpoint,
            // The next agent has to know that this one ran.
            unsaved: true,
            tree: None,
            swept: None,
            namespaced: false,
            names: PodNames::default(),
            own_writes: OwnWrites::default(),
            pending: Vec::new(),
            listed: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// Sets the root of the tree. `namespaced` says whether the kernel logs longer paths than the agent sees.
    pub(super) fn set_tree(&mut self, version: CgroupVersion, root: &CgroupPath, namespaced: bool) {
        if self.tree.as_ref().is_some_and(|tree| tree.root == *root) {
            return;
        }
        if let Some(old) = self.tree.take() {
            self.checkpoint.counters = old.saved();
        }
        self.tree = Some(KillCounters::new(version, root.clone(), &self.checkpoint.counters));
        self.namespaced = namespaced;
    }

    /// The log is open, and numbers its records like this.
    pub(super) fn log_began(&mut self, numbering: Numbering, now: Duration) {
        let known = self.checkpoint.records.any();
        if known.is_some_and(|record| Numbering::of(record) != numbering) {
            // The records of the other source cannot be found in this one. The counters tell of the kills until now.
            self.checkpoint.records = Records::default();
            self.checkpoint.doubted.clear();
            self.checkpoint.log_from = now;
            self.unsaved = true;
        }
        self.joiner.has_log = true;
    }

    /// The log cannot be read any more. The caller has swept all counters since it read the last record.
    pub(super) fn log_ended(&mut self, now: Moment, files: &impl NodeIo) {
        let kills = self.joiner.log_ended();
        self.add_kills(kills, now, files);
    }

    /// Reads all counters that may have risen, from `before` on. Returns the error for the first unreadable one.
    pub(super) fn sweep(
        &mut self,
        before: Duration,
        files: &impl NodeIo,
        clock: impl FnOnce() -> Moment,
    ) -> Option<Error> {
        let tree = self.tree.as_mut()?;
        let begins = self.swept.is_none() && !self.continues;
        let sweep = if begins {
            tree.start_at_current(files, before)
        } else {
            tree.sweep(files, before)
        };
        let now = clock();
        let by = now.monotonic;
        let swept = self.swept.replace(SweepTimes {
            first_by: self.swept.map_or(by, |swept| swept.first_by),
            latest_after: before,
        });
        self.unsaved |= begins;
        for (cgroup, count) in sweep.rises {
            let Some(kills) = NonZeroU64::new(count.kills).filter(|_| !begins) else {
                continue;
            };
            let kills = self.joiner.counted(CounterDelta {
                cgroup,
                after: swept.map_or(Duration::ZERO, |swept| swept.latest_after),
                by,
                numbers: sweep.numbers,
                kills,
                again: count.groups.min(count.kills),
            });
            self.add_kills(kills, now, files);
        }
        self.apply_join_results();
        if !self.joiner.has_log {
            // The agent reports these kills now, and must not report them again from the log.
            self.checkpoint.log_from = by + SLACK;
        }
        sweep.failed
    }

    /// Reports every kill about which nothing can change any more.
    pub(super) fn decide(&mut self, progress: Progress, now: Moment, files: &impl NodeIo) {
        let kills = self.joiner.decide_up_to(progress);
        self.add_kills(kills, now, files);
        self.apply_join_results();
    }

    fn add_kills(&mut self, kills: Vec<OomKill>, now: Moment, files: &impl NodeIo) {
        kills.into_iter().for_each(|kill| self.add_kill(kill, now, files));
        self.listed.clear();
    }

    fn apply_join_results(&mut self) {
        let records = std::mem::take(&mut self.joiner.known_records);
        let again = std::mem::take(&mut self.joiner.duplicates);
        self.mark_reported(&records, &[], &again);
    }

    /// Counts records, kills in these cgroups, and second counts of these groups' first victims as reported.
    fn mark_reported(&mut self, records: &[u64], kills: &[CgroupPath], again: &[CgroupPath]) {
        self.unsaved |= !(records.is_empty() && kills.is_empty() && again.is_empty());
        let reported = &mut self.checkpoint.records;
        records.iter().for_each(|record| reported.mark_reported(*record));
        let Some(tree) = &mut self.tree else { return };
        kills.iter().for_each(|cgroup| tree.mark_reported(cgroup));
        again.iter().for_each(|group| tree.mark_counted_twice(group));
    }

    /// The checkpoint to store together with all reports so far, if it has changed.
    pub(super) fn next_checkpoint(&mut self) -> Option<Checkpoint> {
        std::mem::take(&mut self.unsaved).then(|| Checkpoint {
            doubted: self.still_doubted(),
            counters: match &self.tree {
                Some(tree) => tree.saved(),
                None => self.checkpoint.counters.clone(),
            },
            reported_by_counter: self.reported_by_counter(),
            ..self.checkpoint.clone()
        })
    }

    /// The rises whose kills were reported without a record.
    fn reported_by_counter(&self) -> Vec<CounterDelta> {
        let mut rises = self.joiner.reported_by_counter.clone();
        for pending in self.pending.iter().filter(|pending| pending.kill.record.is_none()) {
            let kill = &pending.kill;
            let of = |rise: &CounterDelta| Some(&rise.cgroup) == kill.cgroup.as_ref() && rise.by == kill.at;
            if let Some(at) = rises.iter().position(of) {
                match NonZeroU64::new(rises[at].kills.get() - 1) {
                    Some(left) => rises[at].kills = left,
                    None => drop(rises.remove(at)),
                }
            }
        }
        rises
    }

    /// The unreported records of uncertain kills: the next agent finds these kills again and must not be more certain.
    fn still_doubted(&self) -> Vec<u64> {
        let doubted = self.checkpoint.doubted.iter();
        let unread = doubted.filter(|record| !self.checkpoint.records.is_reported(**record));
        let pending = self.pending.iter().filter(|pending| !pending.kill.is_certain());
        let pending = pending.flat_map(|pending| &pending.records);
        let mut doubted: Vec<u64> = unread.chain(pending).copied().chain(self.joiner.doubted()).collect();
        doubted.sort_unstable();
        doubted.dedup();
        doubted
    }
}

/// A report waits this long for the agent to learn the names of the pod and the container.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

/// A kill before its report, with everything that the report will count as reported.
#[derive(Debug)]
struct PendingKill {
    kill: OomKill,
    since: Duration,
    /// The report without names, group and own write.
    report: OomReport,
    group: Option<PendingGroup>,
    /// The records of the kill and of its group.
    records: Vec<u64>,
    /// The cgroup of each kill.
    counted: Vec<CgroupPath>,
    /// The group of each second count of a first victim.
    again: Vec<CgroupPath>,
}

/// The group of a kill.
#[derive(Debug)]
struct PendingGroup {
    cgroup: CgroupPath,
    pids: Vec<u32>,
    /// The time of the latest addition.
    last: Duration,
}

impl PendingKill {
    /// Whether this is the kill of a group that this cgroup is in.
    fn is_group_of(&self, cgroup: &CgroupPath) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| cgroup.below(&group.cgroup).is_some())
    }

    /// Adds another victim of the group.
    fn add_victim(&mut self, other: OomKill, now: Duration) {
        let pid = other.victim().map(|kill| kill.pid);
        if let Some(group) = &mut self.group {
            group.pids.extend(pid);
            group.last = now;
        }
        self.records.extend(other.record);
        self.counted.extend(other.cgroup);
    }

    /// The pod and container that lost a process.
    fn owner(&self, names: &PodNames) -> Owner {
        // A task that was already exiting was in the cgroup whose limit was hit, or below.
        let limit = || self.kill.victim().and_then(|kill| kill.limit.cgroup());
        let cgroup = self.kill.cgroup.as_ref().or_else(limit);
        cgroup.map(|cgroup| names.owner(cgroup)).unwrap_or_default()
    }

    /// The time at which the report waits for names no longer.
    fn names_due(&self) -> Duration {
        self.since + NAMES_WITHIN
    }
}

#[cfg(test)]
mod tests;
