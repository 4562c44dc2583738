//! Turns events of the log and kills of the joiner into pending kills, each with the values that its files have now.

use std::sync::Arc;
use std::time::Duration;

use super::super::checkpoint::RecordFacts;
use super::super::container_limit::container_limit;
use super::super::node::{NO_LIMIT, NodeIo};
use super::{Attribution, PendingGroup, PendingKill};
use crate::model::CgroupPath;
use crate::oom::clock::Moment;
use crate::oom::join::OomKill;
use crate::oom::kill::Kill;
use crate::oom::kill::Limit;
use crate::oom::kmsg::{LogEvent, Origin};
use crate::oom::parse::Event;
use crate::oom::report::{Candidates, Confidence, HitLimit, KillFacts, OomReport, Role, Victim};

/// A report lists this many candidates at most: in a flood each kill may have hundreds.
pub(super) const MOST_CANDIDATES: usize = 16;

impl Attribution {
    /// Adds an event of the log, and what `/proc` still knew of the victim.
    pub(in crate::oom::watch) fn add_event(
        &mut self,
        log: LogEvent,
        (found, role): (Option<CgroupPath>, Role),
        now: Moment,
        files: &impl NodeIo,
    ) {
        let replayed = log.origin == Origin::Replayed;
        if self.checkpoint.records.is_reported(log.seq) || (replayed && log.place.time < self.checkpoint.log_from) {
            return;
        }
        match log.event {
            Event::Kill(mut kill) => {
                let facts = RecordFacts {
                    wall: log.at,
                    replayed,
                    role,
                };
                self.checkpoint.records.wait(log.seq, facts);
                self.localize_kill(&mut kill);
                match self.joiner.logged(log.place, *kill, found) {
                    Some(kill) => self.add_kill(kill, now, files),
                    None if self.checkpoint.doubted.contains(&log.seq) => self.joiner.doubt(log.seq),
                    None => self.apply_join_results(),
                }
            }
            Event::Again { pid, group } => {
                let group = self.local_path(group);
                if let Some(kill) = self.joiner.logged_again(log.place, pid, &group) {
                    self.add_kill(kill, now, files);
                }
                self.add_duplicate(log.seq, group, now.monotonic);
            }
        }
    }

    /// The kernel logged the first victim of a group again.
    fn add_duplicate(&mut self, record: u64, cgroup: CgroupPath, now: Duration) {
        match self.pending.iter_mut().find(|pending| pending.is_group_of(&cgroup)) {
            Some(pending) => {
                pending.records.push(record);
                pending.again.push(cgroup);
                if let Some(group) = &mut pending.group {
                    group.last = now;
                }
            }
            None => self.mark_reported(&[record], &[], &[cgroup]),
        }
    }

    /// Adds a kill, and reads the files about it now.
    pub(super) fn add_kill(&mut self, kill: OomKill, now: Moment, files: &impl NodeIo) {
        let named = kill.victim().and(kill.cgroup.as_ref());
        let group = named.and_then(|cgroup| self.pending.iter_mut().find(|pending| pending.is_group_of(cgroup)));
        if let Some(group) = group {
            group.add_victim(kill, now.monotonic);
            return;
        }
        let facts = self.checkpoint.records.facts(kill.record);
        let is_live = facts.is_some_and(|facts| !facts.replayed);
        let counted_at_start = self.swept.is_none_or(|swept| kill.at <= swept.first_by);
        let time = facts.map_or_else(|| now.wall_at(kill.at), |facts| facts.wall);
        let while_down = self.continues && facts.map_or(counted_at_start, |facts| facts.replayed);
        let victim = kill.victim();
        let container_limit = victim
            .zip(kill.cgroup.as_ref())
            .and_then(|(victim, cgroup)| container_limit(victim, cgroup, &self.names, files, is_live));
        let (candidates, more_candidates) = match kill.confidence {
            Confidence::Ambiguous => self.candidates(&kill.processes),
            _ => Default::default(),
        };
        let report = OomReport {
            time,
            facts: KillFacts {
                node: self.node.clone(),
                limit: victim.map(|kill| hit_limit(kill, files)).unwrap_or_default(),
                container_limit,
                ..KillFacts::default()
            },
            cgroup: kill.cgroup.as_ref().map(ToString::to_string),
            victim: victim.map(|kill| self.as_victim(kill)),
            confidence: kill.confidence,
            candidates,
            more_candidates,
            while_down,
            ..OomReport::default()
        };
        self.pending.push(PendingKill {
            since: now.monotonic,
            report,
            group: pending_group(&kill, now.monotonic, files),
            records: kill.record.into_iter().collect(),
            counted: kill.cgroup.iter().cloned().collect(),
            again: Vec::new(),
            kill,
        });
    }

    /// The first of the possible victims, and the number of the others.
    fn candidates(&mut self, possible: &Arc<[Arc<Kill>]>) -> (Candidates, u32) {
        let more = u32::try_from(possible.len().saturating_sub(MOST_CANDIDATES)).unwrap_or(u32::MAX);
        let listed = self.listed.iter().find(|(listed, _)| Arc::ptr_eq(listed, possible));
        if let Some((_, candidates)) = listed {
            return (candidates.clone(), more);
        }
        let first = possible.iter().take(MOST_CANDIDATES);
        let candidates: Candidates = first.map(|kill| self.as_victim(kill)).collect();
        self.listed.push((Arc::clone(possible), candidates.clone()));
        (candidates, more)
    }

    /// A process in the form of a report.
    fn as_victim(&self, kill: &Kill) -> Victim {
        let facts = self.checkpoint.records.facts(kill.seq);
        Victim {
            pid: kill.pid,
            comm: kill.comm.clone(),
            role: facts.map_or(Role::Unspecified, |facts| facts.role),
            memory: Some(kill.memory),
            oom_score_adj: kill.oom_score_adj,
            uid: kill.uid,
        }
    }

    /// Turns the paths in a record into paths that the agent sees.
    fn localize_kill(&self, kill: &mut Kill) {
        kill.task_cgroup = kill.task_cgroup.take().map(|path| self.local_path(path));
        kill.group = kill.group.take().map(|path| self.local_path(path));
        if let Limit::Cgroup(path) = &mut kill.limit {
            *path = self.local_path(path.clone());
        }
    }

    /// In a cgroup namespace (kind runs the kubelet in a container) paths begin further down than in the log. The root
    /// of all pods is at the outermost place where it can be: containers made everything further in.
    fn local_path(&self, path: CgroupPath) -> CgroupPath {
        let Some(tree) = self.tree.as_ref().filter(|_| self.namespaced) else {
            return path;
        };
        let text = path.as_str();
        let inner = text
            .match_indices('/')
            .filter_map(|(at, _)| CgroupPath::new(&text[at..]).ok())
            .find(|inner| inner.below(&tree.root).is_some());
        inner.unwrap_or(path)
    }
}

fn pending_group(kill: &OomKill, now: Duration, files: &impl NodeIo) -> Option<PendingGroup> {
    let (victim, cgroup) = (kill.victim()?, kill.cgroup.as_ref()?);
    let group = victim.group.clone();
    let cgroup = group.or_else(|| files.group_of(cgroup, &victim.limit))?;
    Some(PendingGroup {
        cgroup,
        pids: vec![victim.pid],
        last: now,
    })
}

/// The limit that was hit: from the kernel's log, else from the files.
fn hit_limit(kill: &Kill, files: &impl NodeIo) -> HitLimit {
    let Some(cgroup) = kill.limit.cgroup() else {
        return HitLimit::default();
    };
    let memory = files.memory(cgroup).unwrap_or_default();
    let logged = kill.usage.map(|usage| usage.limit);
    HitLimit {
        cgroup: Some(cgroup.to_string()),
        limit_bytes: logged.or(memory.limit_bytes).filter(|limit| *limit < NO_LIMIT),
        usage_bytes: kill.usage.map(|usage| usage.usage),
        ..memory
    }
}
