//! Turns complete kills into reports.

use std::time::Duration;

use super::super::node::NodeIo;
use super::super::pod_names::{Owner, PodNames};
use super::{Attribution, PendingGroup, PendingKill};
use crate::model::CgroupPath;
use crate::oom::clock::Moment;
use crate::oom::join::OomKill;
use crate::oom::kill::{Level, Limit};
use crate::oom::kmsg::Numbering;
use crate::oom::report::OwnWrite;

/// The longest time between two victims of one group: a slow serial console takes 15 ms for each line.
const GROUP_GOES_ON: Duration = Duration::from_secs(1);
/// The same for a group whose cgroup is gone: all its processes have ended.
const GROUP_IS_GONE: Duration = Duration::from_millis(20);
/// The time between two checks of an incomplete group.
const CHECK_AGAIN: Duration = Duration::from_millis(2);

impl Attribution {
    pub(in crate::oom::watch) fn release(&mut self, now: Moment, files: &impl NodeIo) {
        let mut at = 0;
        while let Some(pending) = self.pending.get(at) {
            if self.is_complete(pending, now.monotonic, files) {
                let pending = self.pending.remove(at);
                self.report(pending, files);
            } else {
                at += 1;
            }
        }
    }

    pub(in crate::oom::watch) fn next_release(&self, now: Duration) -> Option<Duration> {
        let due = |pending: &PendingKill| match &pending.group {
            Some(_) => now + CHECK_AGAIN,
            None => pending.names_due(),
        };
        self.pending.iter().map(due).min()
    }

    fn is_complete(&self, pending: &PendingKill, now: Duration, files: &impl NodeIo) -> bool {
        let named = now >= pending.names_due() || !pending.owner(&self.names).unnamed;
        let whole = |group: &PendingGroup| {
            let is_gone = || now >= group.last + GROUP_IS_GONE;
            now >= group.last + GROUP_GOES_ON || self.is_group_complete(group, files).unwrap_or_else(is_gone)
        };
        named && pending.group.as_ref().is_none_or(whole)
    }

    /// Whether the kernel has killed all of a group: it has logged every process left in the group, and every kill it
    /// counted there. The kernel counts a victim before it kills the victim, so no process is missing from both. Returns
    /// `None` if the cgroup or its counter is gone.
    fn is_group_complete(&self, group: &PendingGroup, files: &impl NodeIo) -> Option<bool> {
        let processes = files.processes(&group.cgroup)?;
        if !processes.iter().all(|pid| group.pids.contains(pid)) {
            return Some(false);
        }
        let tree = self.tree.as_ref()?;
        let cgroup = tree.counted_in(&group.cgroup)?;
        let here = |path: &&CgroupPath| tree.counted_in(path).as_ref() == Some(&cgroup);
        let pending = self.pending.iter();
        let known = pending.flat_map(|pending| pending.counted.iter().chain(&pending.again));
        let known = known.filter(here).fold(tree.reported_in(&cgroup).1, |sum, _| sum + 1);
        let reading = files.read(&cgroup).ok()??;
        Some(reading.kills <= known)
    }

    /// Finishes the report of a kill, and counts the kill as reported.
    fn report(&mut self, pending: PendingKill, files: &impl NodeIo) {
        let id = self.id(&pending);
        let Owner { pod, container, .. } = pending.owner(&self.names);
        let group = pending.group.map(|group| group.pids).filter(|pids| pids.len() > 1);
        let mut report = pending.report;
        report.id = id;
        (report.facts.pod, report.facts.container) = (pod, container);
        report.group = group.unwrap_or_default();
        report.facts.level = level(&pending.kill, &self.names);
        report.evidence = self.own_writes.evidence(&report);
        let invoker = pending.kill.victim().and_then(|kill| kill.invoker);
        report.own_write = self.own_writes.blamed(&report).or_else(|| {
            let is_own = invoker.is_some_and(|invoker| files.is_own_thread(invoker));
            is_own.then(|| OwnWrite {
                time: report.time,
                what: "the agent was lowering a limit when the kernel killed".to_owned(),
            })
        });
        self.reports.push(report);
        self.mark_reported(&pending.records, &pending.counted, &pending.again);
    }

    /// The id of a kill, the same in every agent that finds this kill: the number of its record, unique in this boot;
    /// without a record, the number of the kill in its cgroup. The id of a boot is unique among all nodes.
    fn id(&self, pending: &PendingKill) -> String {
        let boot = &self.checkpoint.boot.0;
        if let Some(record) = pending.kill.record {
            return format!("{boot}-{}", Numbering::name(record));
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
    let levels = kill.processes.iter().map(|kill| match &kill.limit {
        Limit::Cgroup(cgroup) => names.level(cgroup),
        Limit::Node => Level::Node,
        Limit::Unknown => Level::Unspecified,
    });
    let same = |level, other| if level == other { level } else { Level::Unspecified };
    levels.reduce(same).unwrap_or_default()
}
