//! What the log says → kills that are known, each with what its files still say.

use std::sync::Arc;
use std::time::Duration;

use super::super::container_limit::container_limit;
use super::super::node::{NO_LIMIT, NodeIo, ProcProbe};
use super::{Attribution, PendingGroup, PendingKill, RecordFacts};
use crate::model::CgroupPath;
use crate::oom::clock::Moment;
use crate::oom::join::{LogPlace, OomKill};
use crate::oom::kill::Kill;
use crate::oom::kmsg::{LogEvent, Origin};
use crate::oom::message::Limit;
use crate::oom::parse::Event;
use crate::oom::report::{Candidates, Confidence, HitLimit, KillFacts, OomReport, Role, Victim};

/// In a flood every kill may be any of hundreds; what a report lists must stay something that can be sent and kept.
pub(super) const MOST_CANDIDATES: usize = 16;

impl Attribution {
    /// Adds something from the log, and what `/proc` knew of the victim right after.
    pub(in crate::oom::watch) fn add_event(
        &mut self,
        told: LogEvent,
        probe: ProcProbe,
        now: Moment,
        around: &impl NodeIo,
    ) {
        let replayed = told.origin == Origin::Replayed;
        if self.told.records.is_told(told.seq) || (replayed && told.logged < self.told.log_from) {
            return;
        }
        let place = LogPlace {
            time: told.logged,
            line: told.line,
        };
        match told.event {
            Event::Kill(mut kill) => {
                self.told.records.wait(told.seq);
                let facts = RecordFacts {
                    wall: told.at,
                    replayed,
                    role: probe.role,
                };
                self.waiting.insert(told.seq, facts);
                self.localize_kill(&mut kill);
                match self.joiner.logged(place, *kill, probe.cgroup) {
                    Some(kill) => self.open(kill, now, around),
                    None if self.told.doubted.contains(&told.seq) => self.joiner.doubt(told.seq),
                    None => self.apply_join_results(),
                }
            }
            Event::Again { pid, group } => {
                let group = self.local_path(group);
                if let Some(kill) = self.joiner.logged_again(place, pid, &group) {
                    self.open(kill, now, around);
                }
                self.add_duplicate(told.seq, group, now.monotonic);
            }
        }
    }

    /// The first victim of a group was logged again.
    fn add_duplicate(&mut self, record: u64, cgroup: CgroupPath, now: Duration) {
        match self.open.iter_mut().find(|open| open.is_group_of(&cgroup)) {
            Some(open) => {
                open.records.push(record);
                open.again.push(cgroup);
                if let Some(group) = &mut open.group {
                    group.last = now;
                }
            }
            None => {
                self.told.records.mark_told(record);
                if let Some(tree) = &mut self.tree {
                    tree.mark_counted_twice(&cgroup);
                }
                self.unsaved = true;
            }
        }
    }

    /// A kill was found. Whatever is to be read about it is read now.
    pub(super) fn open(&mut self, kill: OomKill, now: Moment, around: &impl NodeIo) {
        let named = kill.victim().and(kill.cgroup.as_ref());
        let group = named.and_then(|cgroup| self.open.iter_mut().find(|open| open.is_group_of(cgroup)));
        if let Some(group) = group {
            group.add_victim(kill, now.monotonic);
            return;
        }
        let facts = kill.record.and_then(|record| self.waiting.get(&record));
        let is_live = facts.is_some_and(|facts| !facts.replayed);
        let counted_at_start = self.swept.is_none_or(|swept| kill.at <= swept.first_by);
        let time = facts.map_or_else(|| now.wall_at(kill.at), |facts| facts.wall);
        let while_down = self.continues && facts.map_or(counted_at_start, |facts| facts.replayed);
        let victim = kill.victim();
        let container_limit = victim
            .zip(kill.cgroup.as_ref())
            .and_then(|(victim, cgroup)| container_limit(victim, cgroup, &self.names, around, is_live));
        let (candidates, more_candidates) = match kill.confidence {
            Confidence::Ambiguous => self.candidates(&kill.processes),
            _ => Default::default(),
        };
        let report = OomReport {
            id: String::new(),
            time,
            facts: KillFacts {
                node: self.node.clone(),
                limit: victim.map(|kill| hit_limit(kill, around)).unwrap_or_default(),
                container_limit,
                ..KillFacts::default()
            },
            cgroup: kill.cgroup.as_ref().map(ToString::to_string),
            victim: victim.map(|kill| self.as_victim(kill)),
            group: Vec::new(),
            own_write: None,
            evidence: None,
            confidence: kill.confidence,
            candidates,
            more_candidates,
            while_down,
        };
        self.open.push(PendingKill {
            since: now.monotonic,
            report,
            group: open_group(&kill, now.monotonic, around),
            records: kill.record.into_iter().collect(),
            counted: kill.cgroup.iter().cloned().collect(),
            again: Vec::new(),
            kill,
        });
    }

    /// The first of those who may be meant, and how many more there are.
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

    /// A process as it is reported.
    fn as_victim(&self, kill: &Kill) -> Victim {
        let facts = kill.seq.and_then(|record| self.waiting.get(&record));
        Victim {
            pid: kill.pid,
            comm: kill.comm.clone(),
            role: facts.map_or(Role::Unspecified, |facts| facts.role),
            memory: Some(kill.memory),
            oom_score_adj: kill.oom_score_adj,
            uid: kill.uid,
        }
    }

    /// Makes the paths in a record those that we see.
    fn localize_kill(&self, kill: &mut Kill) {
        kill.task_cgroup = kill.task_cgroup.take().map(|path| self.local_path(path));
        kill.group = kill.group.take().map(|path| self.local_path(path));
        if let Limit::Cgroup(path) = &mut kill.limit {
            *path = self.local_path(path.clone());
        }
    }

    /// In a cgroup namespace (a kubelet in a container: kind) paths begin further down than those in the log. The
    /// outermost place where the root of all pods may be is where it is: all further in is made by containers.
    fn local_path(&self, path: CgroupPath) -> CgroupPath {
        let Some(tree) = self.tree.as_ref().filter(|_| self.namespaced) else {
            return path;
        };
        let text = path.as_str();
        let inner = text
            .match_indices('/')
            .filter_map(|(at, _)| CgroupPath::new(&text[at..]).ok())
            .find(|inner| inner.below(tree.root()).is_some());
        inner.unwrap_or(path)
    }
}

fn open_group(kill: &OomKill, now: Duration, around: &impl NodeIo) -> Option<PendingGroup> {
    let (victim, cgroup) = (kill.victim()?, kill.cgroup.as_ref()?);
    let group = victim.group.clone();
    let cgroup = group.or_else(|| around.group_of(cgroup, &victim.limit))?;
    Some(PendingGroup {
        cgroup,
        pids: vec![victim.pid],
        last: now,
    })
}

/// The limit that was hit: as the kernel logged it, else as the files have it.
fn hit_limit(kill: &Kill, around: &impl NodeIo) -> HitLimit {
    let Some(cgroup) = kill.limit.cgroup() else {
        return HitLimit::default();
    };
    let memory = around.memory(cgroup).unwrap_or_default();
    let logged = kill.usage.map(|usage| usage.limit.get());
    HitLimit {
        cgroup: Some(cgroup.to_string()),
        limit_bytes: logged.or(memory.limit_bytes).filter(|limit| *limit < NO_LIMIT),
        usage_bytes: kill.usage.map(|usage| usage.usage.get()),
        ..memory
    }
}
