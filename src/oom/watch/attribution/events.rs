//! Turns events of the log and kills of the joiner into pending kills, each with the values that its files have now.

use std::sync::Arc;
use std::time::Duration;

use super::super::checkpoint::RecordFacts;
use super::super::node::{NO_LIMIT, NodeIo};
use super::super::pod_names::PodNames;
use super::{Attribution, GROUP_GOES_ON, PendingKill};
use crate::model::CgroupPath;
use crate::oom::clock::Moment;
use crate::oom::join::{OomKill, PATIENCE};
use crate::oom::kill::{Kill, Level, Limit};
use crate::oom::kmsg::{LogEvent, record_name};
use crate::oom::parse::Event;
use crate::oom::report::{Candidates, Confidence, HitLimit, OomReport, Role, Victim};

/// A container is at its limit if at most this fraction of the limit is free: the kernel charges
/// in batches for each CPU.
const FREE_SHARE: u64 = 25;
/// [`FREE_SHARE`] in bytes, for small limits.
const LEAST_FREE: u64 = 1 << 20;
/// A report lists this many candidates at most: in a flood each kill may have hundreds.
pub(super) const MOST_CANDIDATES: usize = 16;

impl Attribution {
    /// Adds an event of the log, and the facts that `/proc` still had about the victim.
    pub(in crate::oom::watch) fn add_event(
        &mut self,
        log: LogEvent,
        (found, role): (Option<CgroupPath>, Role),
        now: Moment,
        files: &impl NodeIo,
    ) {
        let replayed = log.replayed;
        let records = &mut self.checkpoint.records;
        records.are_unknown &= replayed;
        if records.are_unknown {
            // By its time the record may seem to be from after the start: the log has another clock.
            return self.mark_reported(&[log.seq], &[], &[]);
        }
        if records.is_reported(log.seq) || (replayed && log.place.time < self.checkpoint.log_from) {
            return;
        }
        match log.event {
            Event::Kill(mut kill) => {
                self.checkpoint.records.wait(log.seq, RecordFacts { replayed, role });
                self.localize_kill(&mut kill);
                tracing::debug!(
                    record = record_name(log.seq),
                    pid = kill.pid,
                    replayed,
                    cgroup = kill.task_cgroup.as_ref().or(found.as_ref()).map(CgroupPath::as_str),
                    "the kernel logged a kill"
                );
                let kill = self.joiner.logged(log.place, *kill, found);
                self.add_kills(kill, now, files);
            }
            Event::Again { pid, group } => {
                let group = self.local_path(group);
                let kill = self.joiner.logged_again(log.place, pid, &group);
                self.add_kills(kill, now, files);
                self.add_duplicate(log.seq, group, now.monotonic);
            }
        }
    }

    /// The kernel logged the first victim of a group again.
    pub(super) fn add_duplicate(&mut self, record: u64, cgroup: CgroupPath, now: Duration) {
        match self.pending.iter_mut().find(|pending| pending.is_group_of(&cgroup)) {
            Some(pending) => {
                pending.records.push(record);
                pending.again.push(cgroup);
                // A kill may have come after the caller took the time.
                pending.last = pending.last.max(now);
            }
            None => self.mark_reported(&[record], &[], &[cgroup]),
        }
    }

    /// Adds a kill, and reads the files about it now.
    pub(super) fn add_kill(&mut self, kill: OomKill, now: Moment, files: &impl NodeIo) {
        tracing::debug!(
            record = kill.record.map(record_name), cgroup = kill.cgroup.as_ref().map(CgroupPath::as_str),
            confidence = ?kill.confidence, candidates = kill.processes.len(),
            "a kill is attributed to a cgroup"
        );
        // The caller may have had to wait after it took the time: the next lines of the log come after the kill.
        let since = now.monotonic.max(kill.at);
        if let Some(group) = self.pending_with_group_of(&kill) {
            group.add_victim(kill, since);
            return;
        }
        let facts = self.checkpoint.records.facts(kill.record);
        let is_live = facts.is_some_and(|facts| !facts.replayed) && since <= kill.at.saturating_add(PATIENCE);
        let counted_at_start = self.swept.is_none_or(|swept| kill.at <= swept.first_by);
        let while_down = self.continues && facts.map_or(counted_at_start, |facts| facts.replayed);
        let report = OomReport {
            time: now.wall_at(kill.at),
            while_down,
            ..self.report_of(&kill, is_live, files)
        };
        let group = pending_group(&kill, files);
        let is_gone = |cgroup: &CgroupPath| files.memory(cgroup).is_none();
        let pending = PendingKill {
            since,
            report,
            may_be_first: group.is_none() && kill.victim().and(kill.cgroup.as_ref()).is_some_and(is_gone),
            group,
            pids: kill.victim().map(|kill| kill.pid).into_iter().collect(),
            last: since,
            records: kill.record.into_iter().collect(),
            counted: kill.cgroup.iter().cloned().collect(),
            again: Vec::new(),
            kill,
        };
        let is_unnamed = pending.owner(&self.names).unnamed;
        let group = pending.group.as_ref().map(CgroupPath::as_str);
        tracing::debug!(
            is_unnamed,
            group,
            "a kill waits for the name of its pod and the rest of its group"
        );
        self.pending.push(pending);
    }

    /// The report of a kill without its time, from the log and the files.
    fn report_of(&mut self, kill: &OomKill, is_live: bool, files: &impl NodeIo) -> OomReport {
        let mut report = OomReport {
            cgroup: kill.cgroup.as_ref().map(ToString::to_string),
            confidence: kill.confidence,
            ..OomReport::default()
        };
        if let Some(victim) = kill.victim() {
            report.victim = Some(self.as_victim(victim));
            report.facts.limit = hit_limit(victim, files);
            let container_limit = |cgroup| container_limit(victim, cgroup, &self.names, files, is_live);
            report.facts.container_limit = kill.cgroup.as_ref().and_then(container_limit);
        } else if kill.confidence == Confidence::Ambiguous {
            (report.candidates, report.more_candidates) = self.candidates(&kill.processes);
        }
        report
    }

    /// The pending kill of the group that a kill is in. Where the group's cgroup was gone before the agent read the line
    /// of the first victim, only the lines of the others name the group.
    fn pending_with_group_of(&mut self, kill: &OomKill) -> Option<&mut PendingKill> {
        let (victim, cgroup) = (kill.victim()?, kill.cgroup.as_ref()?);
        let is_first = |pending: &PendingKill, group: &CgroupPath| {
            let known = pending.kill.victim().and(pending.kill.cgroup.as_ref());
            let goes_on = kill.at <= pending.kill.at.saturating_add(GROUP_GOES_ON);
            pending.group.is_none() && goes_on && known.is_some_and(|first| first.below(group).is_some())
        };
        // The kernel logs the first victim just before the name of the group: earlier kills there are others.
        let pending = self.pending.iter_mut().rfind(|pending| {
            let logged = victim.group.as_ref();
            pending.is_group_of(cgroup) || logged.is_some_and(|group| is_first(pending, group))
        })?;
        pending.group = pending.group.take().or_else(|| victim.group.clone());
        Some(pending)
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
            role: facts.map_or(Role::Unspecified, |facts| facts.role).into(),
            memory: Some(kill.memory),
            oom_score_adj: kill.oom_score_adj,
            uid: kill.uid,
        }
    }

    /// Turns the paths in a record into paths that the agent sees.
    fn localize_kill(&mut self, kill: &mut Kill) {
        kill.task_cgroup = kill.task_cgroup.take().map(|path| self.local_path(path));
        kill.group = kill.group.take().map(|path| self.local_path(path));
        if let Limit::Cgroup(path) = &mut kill.limit {
            *path = self.local_path(path.clone());
        }
    }

    /// In a cgroup namespace (kind runs the kubelet in a container) paths begin further down than in the log. The root
    /// of all pods is at the outermost place where it can be: containers made everything further in. A path with another hidden part
    /// is of another node on this machine, and stays as it is: outside of all pods.
    fn local_path(&mut self, path: CgroupPath) -> CgroupPath {
        let Some(tree) = self.tree.as_ref().filter(|_| self.namespaced) else {
            return path;
        };
        let text = path.as_str();
        let mut places = text
            .match_indices('/')
            .filter_map(|(at, _)| Some((&text[..at], CgroupPath::new(&text[at..]).ok()?)));
        let Some((hidden, inner)) = places.find(|(_, inner)| inner.below(&tree.root).is_some()) else {
            return path;
        };
        if self.names.container(&inner).is_some() {
            self.hidden = Some(hidden.to_owned());
        }
        let is_local = self.hidden.as_deref().is_none_or(|own| own == hidden);
        if is_local { inner } else { path }
    }
}

/// The group of a kill.
fn pending_group(kill: &OomKill, files: &impl NodeIo) -> Option<CgroupPath> {
    let (victim, cgroup) = (kill.victim()?, kill.cgroup.as_ref()?);
    let group = victim.group.clone();
    group.or_else(|| files.group_of(cgroup, &victim.limit))
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

/// The limit of the container that lost a process, if the container stood at that limit when the kernel killed at the
/// pod's limit. `is_live` says that the kill happened just now, so that the files still show the usage.
///
/// A pod's limit is the sum of its containers' limits, and its sandbox uses some memory of it. So a container that uses
/// up its own limit brings its pod to the pod's limit a little earlier: in a pod of one container always. The
/// container's usage at that moment is the pod's usage less the usage of everything else in the pod now: only the
/// victim's container has lost memory since.
fn container_limit(
    kill: &Kill,
    cgroup: &CgroupPath,
    names: &PodNames,
    files: &impl NodeIo,
    is_live: bool,
) -> Option<HitLimit> {
    let pod = kill.limit.cgroup().filter(|pod| names.level(pod) == Level::Pod)?;
    let container = container_in(pod, cgroup)?;
    // A group that is larger than the container frees memory of other containers, too.
    let is_larger = |group: &CgroupPath| group.below(&container).is_none();
    if kill.group.as_ref().is_some_and(is_larger) {
        return None;
    }
    let pod_limit = kill.usage.map(|usage| usage.limit);
    let pod_limit = pod_limit.or_else(|| files.memory(pod)?.limit_bytes)?;
    let pod_usage = kill.usage.map_or(pod_limit, |usage| usage.usage);
    let is_only = names.is_only_container(pod, &container);
    let Some(memory) = files.memory(&container) else {
        // The runtime has removed the container's cgroup. The pod's usage was that of its only container.
        return is_only.then(|| HitLimit {
            cgroup: Some(container.to_string()),
            usage_bytes: Some(pod_usage),
            ..HitLimit::default()
        });
    };
    let limit = memory.limit_bytes.filter(|limit| *limit <= pod_limit)?;
    // The usage long after the kill, or after the end of the pod, is no sign of the usage at the kill.
    let read = is_live.then(|| other_usage(pod, &container, names, files));
    let Some(Ok((others, sandbox))) = read.filter(|_| files.memory(pod).is_some()) else {
        let usage_bytes = None;
        return (is_only && limit == pod_limit).then_some(HitLimit { usage_bytes, ..memory });
    };
    let used = pod_usage.saturating_sub(others);
    let free = sandbox.saturating_add(LEAST_FREE.max(limit / FREE_SHARE));
    (used.saturating_add(free) >= limit).then_some(HitLimit {
        usage_bytes: Some(used),
        ..memory
    })
}

/// The cgroup directly in the pod's that holds this one.
fn container_in(pod: &CgroupPath, cgroup: &CgroupPath) -> Option<CgroupPath> {
    let name = cgroup.below(pod)?.split('/').find(|name| !name.is_empty())?;
    pod.child(name).ok()
}

/// The usage in bytes of a pod's other cgroups, and of those among them that are no containers. The latter is 0 while
/// the agent does not know the containers.
fn other_usage(
    pod: &CgroupPath,
    container: &CgroupPath,
    names: &PodNames,
    files: &impl NodeIo,
) -> anyhow::Result<(u64, u64)> {
    let (mut all, mut sandbox) = (0_u64, 0_u64);
    for other in files.children(pod)?.into_iter().filter(|other| other != container) {
        let Some(memory) = files.memory(&other) else { continue };
        let usage = memory.usage_bytes.unwrap_or(0);
        all = all.saturating_add(usage);
        if memory.limit_bytes.is_none() && names.container(container).is_some() && names.container(&other).is_none() {
            sandbox = sandbox.saturating_add(usage);
        }
    }
    Ok((all, sandbox))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::super::pod_names::NodePods;
    use super::super::super::testing::{Kernel, container};
    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{ContainerId, LiveContainer, LivePod};
    use crate::oom::parse_log;

    const MIB: u64 = 1 << 20;

    /// A pod of these containers, each with its limit and usage in mebibytes, and a sandbox that uses one.
    struct Scene {
        kernel: Kernel,
        names: PodNames,
    }

    fn pod() -> CgroupPath {
        container(0, 0).parent().unwrap()
    }

    fn memory(cgroup: &CgroupPath, limit: Option<u64>, usage: u64) -> HitLimit {
        HitLimit {
            cgroup: Some(cgroup.to_string()),
            limit_bytes: limit.map(|limit| limit * MIB),
            usage_bytes: Some(usage * MIB),
            peak_bytes: None,
        }
    }

    fn scene(containers: &[(Option<u64>, u64)]) -> Scene {
        let mut kernel = Kernel::default();
        let sandbox = container(0, 0);
        kernel.make(&sandbox);
        let used = memory(&sandbox, None, 1);
        kernel.memory.insert(sandbox, used);
        let mut live = indexmap::IndexMap::new();
        for (number, (limit, usage)) in (1..).zip(containers) {
            let path = container(0, number);
            kernel.make(&path);
            kernel.memory.insert(path.clone(), memory(&path, *limit, *usage));
            live.insert(
                format!("c{number}").into(),
                LiveContainer {
                    id: ContainerId::of_test(&format!("{number:064x}")),
                    path,
                },
            );
        }
        let live = LivePod {
            id: PodId {
                uid: "u".into(),
                namespace: "n".to_owned(),
                name: "p".to_owned(),
            },
            path: pod(),
            containers: live,
        };
        let mut names = PodNames::default();
        names.update(
            &NodePods {
                tree: None,
                pods: vec![Arc::new(live)],
            },
            Duration::ZERO,
        );
        Scene { kernel, names }
    }

    /// A kill in the first container when the pod's usage is at its limit, in mebibytes.
    fn kill_at(pod_limit: u64) -> Kill {
        let log = format!(
            "memory: usage {kib}kB, limit {kib}kB, failcnt 1\n\
             oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={},task_memcg={},\
             task=x,pid=7,uid=0\n\
             Memory cgroup out of memory: Killed process 7 (x) total-vm:4kB, anon-rss:3kB, file-rss:2kB, shmem-rss:0kB\n",
            pod(),
            container(0, 1),
            kib = pod_limit * 1024,
        );
        let [kill] = parse_log(log.as_bytes()).try_into().unwrap();
        kill
    }

    fn found(scene: &Scene, pod_limit: u64, is_live: bool) -> Option<Option<u64>> {
        let kill = kill_at(pod_limit);
        assert_eq!(kill.usage.unwrap().limit, pod_limit * MIB);
        let found = container_limit(&kill, &container(0, 1), &scene.names, &scene.kernel, is_live)?;
        assert_eq!(found.cgroup.as_deref(), Some(container(0, 1).as_str()));
        Some(found.limit_bytes.map(|limit| limit / MIB))
    }

    #[test]
    fn a_lone_container_stands_at_its_limit() {
        // The kernel has already freed its memory.
        assert_eq!(found(&scene(&[(Some(64), 0)]), 64, true), Some(Some(64)));
        assert_eq!(found(&scene(&[(Some(64), 0)]), 64, false), Some(Some(64)));
    }

    #[test]
    fn one_of_several_stands_at_its_limit() {
        assert_eq!(
            found(&scene(&[(Some(64), 10), (Some(64), 63)]), 128, true),
            Some(Some(64))
        );
        let three = [(Some(100), 0), (Some(50), 50), (Some(50), 49)];
        assert_eq!(found(&scene(&three), 200, true), Some(Some(100)));
    }

    #[test]
    fn little_free_memory_is_none() {
        // A 25th of the limit, and the sandbox's mebibyte.
        assert_eq!(
            found(&scene(&[(Some(100), 0), (Some(150), 104)]), 200, true),
            Some(Some(100))
        );
        assert_eq!(found(&scene(&[(Some(100), 0), (Some(150), 105)]), 200, true), None);
        // A mebibyte, and that of the sandbox.
        assert_eq!(
            found(&scene(&[(Some(10), 0), (Some(95), 91)]), 100, true),
            Some(Some(10))
        );
        assert_eq!(found(&scene(&[(Some(10), 0), (Some(95), 92)]), 100, true), None);
    }

    #[test]
    fn a_limit_that_others_used_is_the_pods() {
        let pod_limit_below_the_sum = [(Some(64), 0), (Some(64), 60)];
        assert_eq!(found(&scene(&pod_limit_below_the_sum), 100, true), None);
        let with_an_unlimited_one = [(Some(128), 0), (None, 100)];
        assert_eq!(found(&scene(&with_an_unlimited_one), 128, true), None);
        assert_eq!(
            found(&scene(&[(None, 0), (Some(64), 10)]), 128, true),
            None,
            "it has none"
        );
        assert_eq!(
            found(&scene(&[(Some(256), 0)]), 128, true),
            None,
            "its own is not what held it back"
        );
    }

    #[test]
    fn usage_seconds_after_a_kill_is_no_sign() {
        for (late, is_sign) in [(5, true), (6, false)] {
            let Scene { kernel, names } = scene(&[(Some(64), 0), (Some(64), 63)]);
            let mut attribution = Attribution {
                names,
                ..Attribution::default()
            };
            let facts = RecordFacts {
                replayed: false,
                role: Role::default(),
            };
            attribution.checkpoint.records.wait(7, facts);
            let kill = OomKill {
                cgroup: Some(container(0, 1)),
                confidence: Confidence::Exact,
                processes: Arc::from([Arc::new(kill_at(128))]),
                record: Some(7),
                at: Duration::from_secs(1),
            };
            let now = Moment {
                monotonic: Duration::from_secs(1 + late),
                wall: jiff::Timestamp::UNIX_EPOCH,
            };
            attribution.add_kill(kill, now, &kernel);
            let found = &attribution.pending[0].report.facts.container_limit;
            assert_eq!(found.is_some(), is_sign, "{late}");
        }
    }

    #[test]
    fn only_a_lone_container_is_certain_later() {
        assert_eq!(found(&scene(&[(Some(64), 0), (Some(64), 63)]), 128, false), None);
    }

    #[test]
    fn a_removed_container_is_known_only_if_alone() {
        let mut one = scene(&[(Some(64), 0)]);
        one.kernel.remove(&container(0, 1));
        assert_eq!(found(&one, 64, true), Some(None));
        let mut two = scene(&[(Some(64), 0), (Some(64), 63)]);
        two.kernel.remove(&container(0, 1));
        assert_eq!(found(&two, 128, true), None);
    }

    #[test]
    fn a_larger_group_keeps_its_limit() {
        let one = scene(&[(Some(64), 0)]);
        let limit = |kill: &Kill| container_limit(kill, &container(0, 1), &one.names, &one.kernel, true);
        let mut kill = kill_at(64);
        kill.group = Some(pod());
        assert_eq!(limit(&kill), None);
        kill.group = Some(container(0, 1));
        assert!(limit(&kill).is_some());
        kill.limit = Limit::Cgroup(container(0, 1));
        assert_eq!(limit(&kill), None);
    }
}
