//! Remembers the agent's own writes that lowered memory limits, and blames kills on them.
//!
//! In come records of passes; out comes, for a kill, the last write that lowered the limit that was hit. Also remembers
//! the evidence that hooks left behind. Pure. Compares times by CLOCK_MONOTONIC: another process may set the wall clock between a
//! write and a kill.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::objects::PodUid;
use crate::model::{
    Cause, Change, ChangeRecord, ContainerName, CriResources, Evidence as HookEvidence, MemoryLimit, Outcome,
    StepRecord, Target,
};
use crate::oom::clock::Moment;
use crate::oom::kill::Level;
use crate::oom::report::{Evidence, OomReport, OwnWrite};

/// A kill within this time after a write is blamed on the write.
pub const BLAME_WINDOW: Duration = Duration::from_secs(60);
/// A kill within this time after a hook gets the hook's evidence.
const EVIDENCE_WINDOW: Duration = Duration::from_secs(3600);

/// The agent's latest writes and hooks.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    /// The passes that lowered a limit, each with the moment of its end.
    lowered: Vec<(Duration, Arc<ChangeRecord>)>,
    /// The latest hooks that were to leave evidence, by the UID of the pod and the name of the container.
    evidence: BTreeMap<(PodUid, ContainerName), RequestedEvidence>,
}

/// When the agent requested evidence from a hook; when the hook ended, and the evidence.
type RequestedEvidence = (Moment, Option<(Moment, HookEvidence)>);

/// The moment of a record that arrives now.
fn moment_of(record: &ChangeRecord, now: Moment) -> Moment {
    let ago = Duration::try_from(now.wall.duration_since(record.at)).unwrap_or_default();
    Moment {
        monotonic: now.monotonic.saturating_sub(ago),
        wall: record.at,
    }
}

impl OwnWrites {
    /// Takes the record of a pass or a hook, which has just ended.
    pub(super) fn record(&mut self, record: &Arc<ChangeRecord>, now: Moment) {
        let at = moment_of(record, now);
        if let Cause::Hook { container, .. } = &record.cause {
            let of = (record.pod.uid.clone(), ContainerName::from(container.as_str()));
            let earlier = self.evidence.remove(&of);
            let known = match &record.outcome {
                Outcome::Hook(end) => match end.evidence.clone() {
                    Some(left) => Some((earlier.map_or(at, |(asked, _)| asked), Some((at, left)))),
                    // Another hook ended, or this one did not run.
                    None => earlier.filter(|(_, ended)| ended.is_some()),
                },
                _ => Some((at, None)),
            };
            self.evidence.extend(known.map(|known| (of, known)));
        }
        if record.steps.iter().any(|step| lowering(step).is_some()) {
            self.lowered.push((at.monotonic, Arc::clone(record)));
        }
    }

    /// The write that a kill at this time is blamed on.
    pub(super) fn blamed(&self, report: &OomReport, killed: Duration) -> Option<OwnWrite> {
        let facts = &report.facts;
        let pod = facts.pod.as_ref()?;
        let hit = |target: &Target| match (facts.level, target) {
            (Level::Pod, Target::Pod) => true,
            (_, Target::Container(name)) if facts.limit_of() == Level::Container => {
                facts.container.as_ref().is_some_and(|of| *of.name == **name)
            }
            _ => false,
        };
        let blamed = |(at, record): &&(Duration, Arc<ChangeRecord>)| {
            // The lower limit may have applied from the first write on.
            let took = record.stages.verified + record.stages.runtime;
            record.pod.uid == *pod.uid
                && at.saturating_sub(took) <= killed
                && killed.saturating_sub(*at) <= BLAME_WINDOW
        };
        self.lowered.iter().rev().filter(blamed).find_map(|(_, record)| {
            let mut steps = record.steps.iter().rev().filter(|step| hit(&step.target));
            let what = steps.find_map(lowering)?;
            Some(OwnWrite { time: record.at, what })
        })
    }

    /// The evidence of a hook in the container of a kill at this time, or that the hook had not ended.
    pub(super) fn evidence(&self, report: &OomReport, killed: Duration) -> Option<Evidence> {
        let (pod, container) = (report.facts.pod.as_ref()?, report.facts.container.as_ref()?);
        let (asked, ended) = self
            .evidence
            .get(&(pod.uid.as_str().into(), ContainerName::from(container.name.as_str())))?;
        let ended = ended.as_ref().filter(|(at, _)| at.monotonic <= killed);
        let at = ended.map_or(*asked, |(at, _)| *at);
        let is_recent = killed >= at.monotonic && killed.saturating_sub(at.monotonic) <= EVIDENCE_WINDOW;
        is_recent.then(|| Evidence {
            time: at.wall.to_string(),
            path: ended.and_then(|(_, evidence)| evidence.path.clone()),
            exit_code: ended.and_then(|(_, evidence)| evidence.exit_code),
            unfinished: ended.is_none().then_some(true),
        })
    }

    /// Forgets writes and evidence that are too old for any kill.
    pub(super) fn forget(&mut self, now: Duration) {
        // The agent reports a kill some seconds after it happened.
        self.lowered
            .retain(|(at, _)| now.saturating_sub(*at) <= BLAME_WINDOW * 2);
        self.evidence
            .retain(|_, (asked, _)| now.saturating_sub(asked.monotonic) <= EVIDENCE_WINDOW * 2);
    }
}

/// Describes the memory limit that a step lowered. Returns `None` for any other step.
fn lowering(step: &StepRecord) -> Option<String> {
    if step.error.is_some() {
        return None;
    }
    let (name, from, to) = match &step.change {
        Change::Spec { from, to } => (
            "memory_limit_in_bytes",
            // An unknown limit counts as none, because the step may have lowered it.
            stored_limit(from).unwrap_or(MemoryLimit::Max),
            stored_limit(to)?,
        ),
        change => {
            let (file, from, to) = change.memory_limit()?;
            (file.name(), from, to)
        }
    };
    let words = |limit| match limit {
        MemoryLimit::Bytes(bytes) => bytes.to_string(),
        MemoryLimit::Max => "no limit".to_owned(),
    };
    (to < from).then(|| format!("{name} of {} from {} to {}", step.target, words(from), words(to)))
}

/// The limit in a runtime's stored spec. A negative one means no limit.
fn stored_limit(spec: &CriResources) -> Option<MemoryLimit> {
    let limit = u64::try_from(spec.memory_limit_in_bytes?);
    Some(limit.map_or(MemoryLimit::Max, MemoryLimit::Bytes))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{CpuWeight, HookEnd, Setting, Settings, Stages, Step};
    use crate::oom::report::{Candidates, Confidence, HitLimit, KillFacts, ReportedContainer, ReportedPod};

    /// A change of the container.
    fn step(change: Change) -> StepRecord {
        let target = Target::Container("app".into());
        StepRecord::planned(&Step { target, change })
    }

    fn file(from: Setting, to: Setting) -> StepRecord {
        step(Change::File { from, to })
    }

    fn max(bytes: u64) -> Setting {
        Setting::MemoryMax(MemoryLimit::Bytes(bytes))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn clocks(second: u64) -> Moment {
        Moment {
            monotonic: seconds(second),
            wall: at(second.try_into().unwrap()),
        }
    }

    fn pod() -> PodId {
        PodId {
            uid: "u".into(),
            namespace: "n".to_owned(),
            name: "p".to_owned(),
        }
    }

    fn written(steps: Vec<StepRecord>) -> OwnWrites {
        let mut writes = OwnWrites::default();
        let record = ChangeRecord {
            sequence: 1,
            at: at(1000),
            pod: pod(),
            cause: Cause::Drift,
            outcome: Outcome::Applied,
            in_flight: false,
            steps,
            stages: Stages {
                verified: seconds(1),
                runtime: seconds(1),
                ..Stages::default()
            },
        };
        // It arrives a little later.
        writes.record(&Arc::new(record), clocks(1003));
        writes
    }

    fn kill(level: Level) -> OomReport {
        OomReport {
            id: String::new(),
            // By a wall clock that has been set.
            time: at(9_999_999),
            facts: KillFacts {
                node: String::new(),
                pod: Some(ReportedPod {
                    namespace: "n".to_owned(),
                    name: "p".to_owned(),
                    uid: "u".to_owned(),
                }),
                container: Some(ReportedContainer {
                    name: "app".to_owned(),
                    id: "i".to_owned(),
                }),
                level,
                limit: HitLimit::default(),
                container_limit: None,
            },
            cgroup: None,
            victim: None,
            group: Vec::new(),
            own_write: None,
            evidence: None,
            confidence: Confidence::Exact,
            candidates: Candidates::default(),
            more_candidates: 0,
            while_down: false,
        }
    }

    #[test]
    fn a_kill_after_a_lowered_limit_is_blamed() {
        let writes = written(vec![file(Setting::MemoryMax(MemoryLimit::Max), max(1000))]);
        for (level, second, blamed) in [
            (Level::Container, 997, false),
            (Level::Container, 998, true),
            (Level::Container, 1060, true),
            (Level::Container, 1061, false),
            (Level::Pod, 1001, false),
            (Level::Unspecified, 1001, false),
        ] {
            assert_eq!(
                writes.blamed(&kill(level), seconds(second)).is_some(),
                blamed,
                "{level:?} {second}"
            );
        }
        let blamed = writes.blamed(&kill(Level::Container), seconds(1001)).unwrap();
        assert_eq!(blamed.time, at(1000));
        assert_eq!(blamed.what, "memory.max of container app from no limit to 1000");
    }

    #[test]
    fn only_the_limit_that_was_hit_is_blamed() {
        let of_container = written(vec![file(max(9), max(5))]);
        let blames = |writes: &OwnWrites, report: &OomReport| writes.blamed(report, seconds(1001)).is_some();
        let mut other = kill(Level::Container);
        other.facts.container.as_mut().unwrap().name = "other".to_owned();
        assert!(!blames(&of_container, &other));
        let mut other = kill(Level::Container);
        other.facts.pod.as_mut().unwrap().uid = "v".to_owned();
        assert!(!blames(&of_container, &other));
        let mut stood_at_its_own = kill(Level::Pod);
        stood_at_its_own.facts.container_limit = Some(HitLimit::default());
        assert!(blames(&of_container, &stood_at_its_own));

        let mut step = file(max(9), max(5));
        step.target = Target::Pod;
        let of_pod = written(vec![step]);
        assert!(blames(&of_pod, &kill(Level::Pod)));
        assert!(!blames(&of_pod, &kill(Level::Container)));
    }

    #[test]
    fn the_latest_write_that_succeeded_is_blamed() {
        let mut failed = file(max(5), max(3));
        failed.error = Some("refused".to_owned());
        let writes = written(vec![file(max(9), max(7)), file(max(7), max(5)), failed]);
        let blamed = writes.blamed(&kill(Level::Container), seconds(1001)).unwrap();
        assert_eq!(blamed.what, "memory.max of container app from 7 to 5");
    }

    #[test]
    fn only_lowered_memory_limits_count() {
        let unbounded = Setting::MemoryMax(MemoryLimit::Max);
        let v1 = |bytes| Setting::MemoryLimit(MemoryLimit::Bytes(bytes));
        let weight = |weight| Setting::CpuWeight(CpuWeight::new(weight));
        let unit = |from, to| {
            let [from, to] = [from, to].map(|bytes| Settings::from_iter([weight(1), max(bytes)]));
            step(Change::Unit { from, to })
        };
        let stored = |quota, bytes| CriResources {
            cpu_quota: quota,
            memory_limit_in_bytes: bytes,
            ..CriResources::default()
        };
        let spec = |from, to| step(Change::Spec { from, to });
        for (step, counts) in [
            (file(v1(9), v1(5)), true),
            (file(max(5), max(9)), false),
            (file(max(5), unbounded), false),
            (file(weight(9), weight(5)), false),
            (unit(9, 5), true),
            (unit(5, 9), false),
            (spec(stored(None, Some(9)), stored(Some(1), Some(5))), true),
            (spec(stored(None, None), stored(None, Some(5))), true),
            (spec(stored(None, Some(9)), stored(None, Some(-1))), false),
            (spec(stored(Some(2), None), stored(Some(1), None)), false),
        ] {
            let writes = written(vec![step.clone()]);
            assert_eq!(
                writes.blamed(&kill(Level::Container), seconds(1001)).is_some(),
                counts,
                "{step:?}"
            );
        }
    }

    #[test]
    fn a_kill_has_the_evidence_of_a_hook() {
        let mut writes = OwnWrites::default();
        let mut hook = |second: u64, outcome: Outcome| {
            let (moment, container) = ("on-memory-pressure", "app".to_owned());
            let mut record = ChangeRecord::new(pod(), Cause::Hook { moment, container }, outcome);
            record.at = clocks(second).wall;
            writes.record(&Arc::new(record), clocks(second));
            let seen = [999, 1001, 1005, 1009, 5000].map(|second| {
                let evidence = writes.evidence(&kill(Level::Container), seconds(second))?;
                Some((evidence.time, evidence.path, evidence.unfinished))
            });
            seen.map(|seen| match seen {
                None => "nothing".to_owned(),
                Some((time, path, None)) => format!("{} at {time}", path.unwrap()),
                Some((time, path, unfinished)) => format!("{path:?} {unfinished:?} since {time}"),
            })
        };
        let ended = |evidence| {
            Outcome::Hook(HookEnd {
                how: Ok("ended".to_owned()),
                output: String::new(),
                evidence,
            })
        };
        let left = HookEvidence {
            path: Some("/dump".to_owned()),
            exit_code: Some(0),
        };
        let since = format!("None Some(true) since {}", at(1000));
        let dump = format!("/dump at {}", at(1005));
        let (since, dump, none) = (since.as_str(), dump.as_str(), "nothing");
        assert_eq!(hook(1000, Outcome::Unchanged), [none, since, since, since, none]);
        assert_eq!(hook(1005, ended(Some(left))), [none, since, dump, dump, none]);
        // Another hook of the container changes nothing, and a hook that did not run leaves nothing.
        assert_eq!(hook(1006, ended(None)), [none, since, dump, dump, none]);
        hook(1000, Outcome::Unchanged);
        assert_eq!(hook(1001, ended(None)), [none; 5]);
    }

    #[test]
    fn evidence_counts_for_an_hour() {
        let mut writes = OwnWrites::default();
        let (moment, container) = ("on-memory-pressure", "app".to_owned());
        let mut record = ChangeRecord::new(pod(), Cause::Hook { moment, container }, Outcome::Unchanged);
        record.at = at(1000);
        writes.record(&Arc::new(record), clocks(1000));
        let has = |writes: &OwnWrites, second| writes.evidence(&kill(Level::Container), seconds(second)).is_some();
        assert_eq!(
            [1000, 4600, 4601].map(|second| has(&writes, second)),
            [true, true, false]
        );
        for (now, kept) in [(8200, true), (8201, false)] {
            writes.forget(seconds(now));
            assert_eq!(has(&writes, 1001), kept, "{now}");
        }
    }

    #[test]
    fn old_writes_are_forgotten() {
        let mut writes = written(vec![file(max(9), max(5))]);
        writes.forget(seconds(1120));
        assert_eq!(writes.lowered.len(), 1);
        writes.forget(seconds(1121));
        assert_eq!(writes.lowered.len(), 0);
    }
}
