//! Attributes kills to containers: turns the facts about unreported kills into reports, each kill in one report, once.
//!
//! In come events of the log, rises of counters, the pods on the node, and the time. Out come reports and the
//! [`Checkpoint`] that counts their kills as reported. A kill counts as reported only from the moment its report is
//! out: the next agent finds the others again. Files are read through [`NodeIo`]; everything else here is pure.
//!
//! A [`PendingKill`] waits for the rest of its group or for the name of its pod.

mod events;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;

use super::checkpoint::Checkpoint;
use super::kill_counters::KillCounters;
use super::node::NodeIo;
use super::own_writes::OwnWrites;
use super::pod_names::{Owner, PodNames};
use crate::model::{CgroupPath, CgroupVersion};
use crate::oom::clock::Moment;
use crate::oom::join::{CounterDelta, Joiner, OomKill, PATIENCE, Progress, SLACK};
use crate::oom::kill::{Kill, Level};
use crate::oom::kmsg::{BootId, record_name};
use crate::oom::report::{Candidates, OomReport, OwnWrite, ReportedPod};

/// Times of sweeps of the counters, by CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub(super) struct SweepTimes {
    /// A moment after the first sweep.
    first_by: Duration,
    /// A moment before the latest sweep that read every counter.
    pub(super) latest_after: Duration,
}

/// The unreported kills, and the kills of earlier reports.
#[derive(Debug, Default)]
pub(super) struct Attribution {
    node: String,
    /// Whether an earlier agent left a checkpoint of this tree. Without one, this agent ignores everything from before its start.
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
    /// The hidden part, once the kernel has logged a kill in a container of this node.
    hidden: Option<String>,
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
        let mut checkpoint = left.unwrap_or_else(|| Checkpoint::new(boot, now));
        if checkpoint.records.drop_numbers_of_device() {
            // The counters show the kills until now.
            checkpoint.log_from = now;
        }
        let mut joiner = Joiner::new(false);
        joiner.reported_by_counter.clone_from(&checkpoint.reported_by_counter);
        Self {
            node,
            continues,
            joiner,
            checkpoint,
            // The next agent has to know that this one ran.
            unsaved: true,
            ..Self::default()
        }
    }

    /// Takes a tree with another root. `namespaced` says whether the kernel logs longer paths than the agent sees.
    pub(super) fn set_tree(&mut self, version: CgroupVersion, root: &CgroupPath, namespaced: bool) {
        if let Some(old) = self.tree.take() {
            self.checkpoint.counters = old.saved();
            // No sweep says which kills of another tree are reported or from before the start.
            (self.swept, self.continues) = (None, false);
        }
        let saved = &self.checkpoint.counters;
        self.tree = Some(KillCounters::new(version, root.clone(), saved, !self.continues));
        self.namespaced = namespaced;
    }

    /// The log cannot be read any more. The caller has swept all counters since it read the last record.
    pub(super) fn log_ended(&mut self, now: Moment, files: &impl NodeIo) {
        let kills = self.joiner.log_ended();
        self.add_kills(kills, now, files);
    }

    /// Reads all counters that may have risen, from `before` on. Returns the first error.
    pub(super) fn sweep(
        &mut self,
        before: Duration,
        files: &impl NodeIo,
        clock: impl FnOnce() -> Moment,
    ) -> Option<Error> {
        let tree = self.tree.as_mut()?;
        self.unsaved |= tree.starts;
        let sweep = tree.sweep(files, before);
        let now = clock();
        let by = now.monotonic;
        let earlier = self.swept.map_or(Duration::ZERO, |swept| swept.latest_after);
        self.swept = Some(SweepTimes {
            first_by: self.swept.map_or(by, |swept| swept.first_by),
            // A counter that could not be read may have risen since the sweep before.
            latest_after: if sweep.failed.is_none() { before } else { earlier },
        });
        for (cgroup, count) in sweep.rises {
            let Some(kills) = NonZeroU64::new(count.kills) else {
                continue;
            };
            tracing::debug!(cgroup = cgroup.as_str(), kills, "a counter of kills rose");
            let kills = self.joiner.counted(CounterDelta {
                cgroup,
                after: earlier,
                by,
                numbers: sweep.numbers,
                kills,
                again: count.groups.min(count.kills),
            });
            self.add_kills(kills, now, files);
        }
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
    }

    /// Takes the results of a call of the joiner.
    fn add_kills(&mut self, kills: impl IntoIterator<Item = OomKill>, now: Moment, files: &impl NodeIo) {
        kills.into_iter().for_each(|kill| self.add_kill(kill, now, files));
        self.listed.clear();
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
        kills.iter().for_each(|cgroup| tree.mark_reported(cgroup, false));
        again.iter().for_each(|group| tree.mark_reported(group, true));
    }

    /// The checkpoint to store together with all reports so far, if it has changed.
    pub(super) fn next_checkpoint(&mut self) -> Option<Checkpoint> {
        std::mem::take(&mut self.unsaved).then(|| Checkpoint {
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
        let pending = self.pending.iter().map(|pending| &pending.kill);
        let pending = pending.filter(|kill| kill.record.is_none());
        // All kills of a rise wait for the same name, and are reported together.
        let is_pending = |rise: &CounterDelta| {
            let mut pending = pending.clone();
            pending.any(|kill| kill.at == rise.by && kill.cgroup.as_ref() == Some(&rise.cgroup))
        };
        let reported = self.joiner.reported_by_counter.iter();
        reported.filter(|rise| !is_pending(rise)).cloned().collect()
    }
}

/// A report waits this long for the agent to learn the names of the pod and the container.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

/// A kill before its report, with everything that the report will count as reported.
#[derive(Debug)]
struct PendingKill {
    kill: OomKill,
    since: Duration,
    /// The report without names, level, group and own write.
    report: OomReport,
    /// The cgroup of the group that the kernel kills as a whole.
    group: Option<CgroupPath>,
    /// The victims known so far.
    pids: Vec<u32>,
    /// The time of the latest victim.
    last: Duration,
    /// Whether the next lines of the log may name a group of which this is the first victim: its cgroup is gone, so no file says.
    may_be_first: bool,
    /// The records of the kill and of its group.
    records: Vec<u64>,
    /// The cgroup of each kill.
    counted: Vec<CgroupPath>,
    /// The group of each second count of a first victim.
    again: Vec<CgroupPath>,
}

impl PendingKill {
    /// Whether this is the kill of a group that this cgroup is in.
    fn is_group_of(&self, cgroup: &CgroupPath) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| cgroup.below(group).is_some())
    }

    /// Whether other victims of a group may follow.
    const fn waits_for_group(&self) -> bool {
        self.group.is_some() || self.may_be_first
    }

    /// Adds another victim of the group.
    fn add_victim(&mut self, other: OomKill, now: Duration) {
        self.pids.extend(other.victim().map(|kill| kill.pid));
        self.last = now;
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

/// The longest time between two victims of one group: a slow serial console takes 15 ms for each line.
const GROUP_GOES_ON: Duration = Duration::from_secs(1);
/// The longest gap when the group's cgroup is gone: all its processes have ended.
const GROUP_IS_GONE: Duration = Duration::from_millis(20);
/// The time between two checks of an incomplete group.
const CHECK_AGAIN: Duration = Duration::from_millis(2);

impl Attribution {
    /// Reports the pending kills that are complete; the log is read up to `read`.
    pub(super) fn release(&mut self, now: Moment, read: Duration, files: &impl NodeIo) {
        let now = now.monotonic;
        // The log may be stuck.
        let read = read.max(now.saturating_sub(PATIENCE));
        for pending in &mut self.pending {
            pending.may_be_first &= read < pending.since + GROUP_IS_GONE;
        }
        let is_complete = |pending| self.is_complete(pending, now, read, files);
        let mut each = self.pending.iter().map(is_complete).collect::<Vec<_>>().into_iter();
        let complete = self.pending.extract_if(.., |_| each.next() == Some(true));
        let complete: Vec<PendingKill> = complete.collect();
        complete.into_iter().for_each(|pending| self.report(pending, files));
    }

    pub(super) fn next_release(&self, now: Duration) -> Option<Duration> {
        let due = |pending: &PendingKill| {
            if pending.waits_for_group() {
                now + CHECK_AGAIN
            } else {
                pending.names_due()
            }
        };
        self.pending.iter().map(due).min()
    }

    /// Whether a kill waits for the rest of its group.
    pub(super) fn has_group_pending(&self) -> bool {
        self.pending.iter().any(PendingKill::waits_for_group)
    }

    fn is_complete(&self, pending: &PendingKill, now: Duration, read: Duration, files: &impl NodeIo) -> bool {
        let is_named = || now >= pending.names_due() || !pending.owner(&self.names).unnamed;
        let whole = |group| {
            let is_whole = self.is_group_complete(group, &pending.pids, files);
            is_whole.unwrap_or_else(|| read >= pending.last + GROUP_IS_GONE)
        };
        let is_over = read >= pending.last + GROUP_GOES_ON;
        !pending.may_be_first && is_named() && (is_over || pending.group.as_ref().is_none_or(whole))
    }

    /// Whether the kernel has killed all of a group: it has logged every process left in the group, and every kill it
    /// counted there. The kernel counts a victim before it kills the victim, so no process is missing from both. Returns
    /// `None` if the cgroup or its counter is gone.
    fn is_group_complete(&self, group: &CgroupPath, pids: &[u32], files: &impl NodeIo) -> Option<bool> {
        let processes = files.processes(group)?;
        if !processes.iter().all(|pid| pids.contains(pid)) {
            return Some(false);
        }
        let tree = self.tree.as_ref()?;
        let cgroup = tree.counted_in(group)?;
        let here = |path: &&CgroupPath| path.below(&cgroup).is_some();
        let pending = self.pending.iter();
        let known = pending.flat_map(|pending| pending.counted.iter().chain(&pending.again));
        let known = known.filter(here).fold(tree.reported_in(&cgroup).1, |sum, _| sum + 1);
        let reading = files.read(&cgroup).ok()??;
        Some(reading.count.kills <= known)
    }

    /// Finishes the report of a kill, and counts the kill as reported.
    fn report(&mut self, pending: PendingKill, files: &impl NodeIo) {
        let id = self.id(&pending);
        let Owner { pod, container, .. } = pending.owner(&self.names);
        let group = Some(pending.pids).filter(|pids| pids.len() > 1);
        let mut report = pending.report;
        report.id = id;
        report.facts.node.clone_from(&self.node);
        (report.facts.pod, report.facts.container) = (pod, container);
        report.group = group.unwrap_or_default();
        report.facts.level = level(&pending.kill, &self.names);
        let killed = pending.kill.at;
        report.evidence = self.own_writes.evidence(&report, killed);
        let invoker = pending.kill.victim().and_then(|kill| kill.invoker);
        report.own_write = self.own_writes.blamed(&report, killed).or_else(|| {
            let is_own = invoker.is_some_and(|invoker| files.is_own_thread(invoker));
            is_own.then(|| OwnWrite {
                time: report.time,
                what: "the agent was lowering a limit when the kernel killed".to_owned(),
            })
        });
        let pod = report.facts.pod.as_ref().map(ReportedPod::full_name);
        tracing::debug!(id = report.id, pod, "a kill has its report");
        self.reports.push(report);
        self.mark_reported(&pending.records, &pending.counted, &pending.again);
    }

    /// The id of a kill, the same in every agent that finds this kill: the number of its record, unique in this boot;
    /// without a record, the number of the kill in its cgroup. The id of a boot is unique among all nodes.
    fn id(&self, pending: &PendingKill) -> String {
        let boot = &self.checkpoint.boot.0;
        if let Some(record) = pending.kill.record {
            return format!("{boot}-{}", record_name(record));
        }
        let cgroup = pending.kill.cgroup.as_ref();
        // A cgroup whose counter was never read has no inode here, only a path.
        let path = cgroup.map_or(0, |cgroup| crc32fast::hash(cgroup.as_str().as_bytes()));
        let counted = cgroup.zip(self.tree.as_ref());
        let (inode, number) = counted.map_or((0, 0), |(cgroup, tree)| tree.reported_in(cgroup));
        format!("{boot}-count-{path:08x}-{inode}-{}", number + 1)
    }
}

/// The level whose limit was hit. Unspecified if the candidates have different ones.
fn level(kill: &OomKill, names: &PodNames) -> Level {
    let levels = kill.processes.iter().map(|kill| match kill.limit.cgroup() {
        Some(cgroup) => names.level(cgroup),
        None => kill.limit.level(),
    });
    let same = |level, other| if level == other { level } else { Level::Unspecified };
    levels.reduce(same).unwrap_or_default()
}

#[cfg(test)]
mod tests;
