//! Kills that are complete → reports.

use std::time::Duration;

use super::super::node::NodeIo;
use super::super::pod_names::{Owner, PodNames};
use super::{Attribution, PendingGroup, PendingKill};
use crate::model::CgroupPath;
use crate::oom::clock::Moment;
use crate::oom::join::OomKill;
use crate::oom::kill::Level;
use crate::oom::kmsg::Numbering;
use crate::oom::message::Limit;
use crate::oom::report::OwnWrite;

/// How long the kernel may take between the victims of one group: a slow serial console takes 15 ms for each line.
const GROUP_GOES_ON: Duration = Duration::from_secs(1);
/// The same for a group whose cgroup is gone: all its processes had ended then.
const GROUP_IS_GONE: Duration = Duration::from_millis(20);
/// How often to look at a group that is not complete.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

impl Attribution {
    /// Tells every kill of which nothing more is to come.
    pub(in crate::oom::watch) fn release(&mut self, now: Moment, around: &impl NodeIo) {
        let mut at = 0;
        while let Some(open) = self.open.get(at) {
            if self.is_complete(open, now.monotonic, around) {
                let open = self.open.remove(at);
                self.report(open, around);
            } else {
                at += 1;
            }
        }
    }

    pub(in crate::oom::watch) fn next_release(&self, now: Duration) -> Option<Duration> {
        let due = |open: &PendingKill| match &open.group {
            Some(_) => now + LOOK_AGAIN,
            None => open.names_due(),
        };
        self.open.iter().map(due).min()
    }

    fn is_complete(&self, open: &PendingKill, now: Duration, around: &impl NodeIo) -> bool {
        let named = now >= open.names_due() || !open.owner(&self.names).unnamed;
        let whole =
            |group: &PendingGroup| now >= group.last + GROUP_GOES_ON || self.is_group_complete(group, now, around);
        named && open.group.as_ref().is_none_or(whole)
    }

    /// Whether the kernel is done with a group: every process left in it was logged, and so was every kill it counted. It
    /// counts a victim before it kills it, so one that is neither there nor counted was never there.
    fn is_group_complete(&self, group: &PendingGroup, now: Duration, around: &impl NodeIo) -> bool {
        let Some(processes) = around.processes(&group.cgroup) else {
            return now >= group.last + GROUP_IS_GONE;
        };
        if !processes.iter().all(|pid| group.pids.contains(pid)) {
            return false;
        }
        let tree = self.tree.as_ref();
        let counted = tree.and_then(|tree| Some((tree, tree.counted_in(&group.cgroup)?)));
        let Some((tree, cgroup)) = counted else {
            return now >= group.last + GROUP_IS_GONE;
        };
        let here = |path: &&CgroupPath| tree.counted_in(path).as_ref() == Some(&cgroup);
        let known = self.open.iter().flat_map(|open| open.counted.iter().chain(&open.again));
        let known = known.filter(here).fold(tree.told_in(&cgroup).1, |sum, _| sum + 1);
        match around.read(&cgroup) {
            Ok(Some(reading)) => reading.kills <= known,
            Ok(None) | Err(_) => now >= group.last + GROUP_IS_GONE,
        }
    }

    /// Tells a kill, and counts it as told.
    fn report(&mut self, open: PendingKill, around: &impl NodeIo) {
        let id = self.id(&open);
        let Owner { pod, container, .. } = open.owner(&self.names);
        let group = open.group.map(|group| group.pids).filter(|pids| pids.len() > 1);
        let mut report = open.report;
        report.id = id;
        (report.facts.pod, report.facts.container) = (pod, container);
        report.group = group.unwrap_or_default();
        report.facts.level = level(&open.kill, &self.names);
        report.evidence = self.own_writes.evidence(&report);
        let invoker = open.kill.victim().and_then(|kill| kill.invoker.as_ref());
        report.own_write = self.own_writes.blamed(&report).or_else(|| {
            invoker
                .filter(|invoker| around.is_own_thread(invoker))
                .map(|_| OwnWrite {
                    time: report.time,
                    what: "the agent was lowering a limit when the kernel killed".to_owned(),
                })
        });
        self.reports.push(report);
        self.unsaved = true;
        for record in open.records {
            self.told.records.mark_told(record);
            self.waiting.remove(&record);
        }
        let Some(tree) = &mut self.tree else { return };
        open.counted.iter().for_each(|cgroup| tree.mark_told(cgroup));
        open.again.iter().for_each(|group| tree.mark_counted_twice(group));
    }

    /// The same for the same kill, whoever finds it and however often: the number of its record, which no other in this
    /// boot has; without one, which kill of its cgroup it is. A boot's id is no other's on any node.
    fn id(&self, open: &PendingKill) -> String {
        let boot = &self.told.boot.0;
        if let Some(record) = open.kill.record {
            return format!("{boot}-{}", Numbering::name(record));
        }
        let cgroup = open.kill.cgroup.as_ref();
        // Of a cgroup whose counter was never read only the path is known.
        let path = cgroup.map_or(0, |cgroup| crc32fast::hash(cgroup.as_str().as_bytes()));
        let counted = cgroup.zip(self.tree.as_ref());
        let (inode, number) = counted.map_or((0, 0), |(cgroup, tree)| tree.told_in(cgroup));
        format!("{boot}-count-{path:08x}-{inode}-{}", number + 1)
    }
}

/// The level whose limit was hit. Of several candidates, the one they have in common.
fn level(kill: &OomKill, names: &PodNames) -> Level {
    let mut levels = kill.processes.iter().map(|kill| match &kill.limit {
        Limit::Cgroup(cgroup) => names.level(cgroup),
        Limit::Node => Level::Node,
        Limit::Unknown => Level::Unspecified,
    });
    let first = levels.next();
    first
        .filter(|first| levels.all(|level| level == *first))
        .unwrap_or_default()
}
