//! The agent's own lowerings of memory limits, and which kills they are blamed for.
//!
//! In come records of passes; out comes, for a kill, the last time the agent lowered the limit that was hit. Pure.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use crate::model::{ChangeRecord, StepRecord, Target};
use crate::oom::kill::Level;
use crate::oom::report::{OomReport, OwnWrite};

/// A kill within so much time after the agent lowered the limit is blamed on it.
pub const BLAME_WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// More than can be lowered in that time.
const MOST: usize = 4096;

/// A limit that was lowered.
#[derive(Debug)]
struct Lowered {
    pod_uid: String,
    target: Target,
    /// From when on it may have been in force.
    from: Timestamp,
    write: OwnWrite,
}

#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    lowered: VecDeque<Lowered>,
}

impl OwnWrites {
    /// Takes in what a pass did.
    pub(super) fn record(&mut self, record: &ChangeRecord) {
        let stages = &record.stages;
        let took = SignedDuration::try_from(stages.verified + stages.runtime).unwrap_or_default();
        for step in &record.steps {
            let Some(what) = lowering(step) else { continue };
            if self.lowered.len() == MOST {
                self.lowered.pop_front();
            }
            self.lowered.push_back(Lowered {
                pod_uid: record.pod.uid.clone(),
                target: step.target.clone(),
                from: record.at - took,
                write: OwnWrite { time: record.at, what },
            });
        }
    }

    /// The write that a kill is blamed on.
    pub(super) fn blamed(&self, report: &OomReport) -> Option<OwnWrite> {
        let pod = report.pod.as_ref()?;
        let hit = |target: &Target| match (report.level, target) {
            (Level::Pod, Target::Pod) => true,
            (_, Target::Container(name)) if report.limit_of() == Level::Container => {
                report.container.as_ref().is_some_and(|of| of.name == *name)
            }
            _ => false,
        };
        let blamed = |lowered: &&Lowered| {
            lowered.pod_uid == pod.uid
                && hit(&lowered.target)
                && lowered.from <= report.time
                && report.time.duration_since(lowered.write.time) <= BLAME_WINDOW
        };
        self.lowered
            .iter()
            .rev()
            .find(blamed)
            .map(|lowered| lowered.write.clone())
    }

    /// Forgets what nothing is blamed on any more.
    pub(super) fn forget(&mut self, now: Timestamp) {
        // A kill is told some seconds after it happened.
        let old = |lowered: &Lowered| now.duration_since(lowered.write.time) > BLAME_WINDOW * 2;
        while self.lowered.front().is_some_and(old) {
            self.lowered.pop_front();
        }
        // A recommendation for all pods at once makes many, and the next one may be days away.
        if self.lowered.is_empty() {
            self.lowered.shrink_to_fit();
        }
    }
}

/// In words, what a step lowered; `None` unless it lowered a memory limit.
fn lowering(step: &StepRecord) -> Option<String> {
    let file = match step.file {
        Some(file) => file,
        // A unit's or a spec's values: `memory.max=134217728, …`.
        None => MEMORY_LIMITS.into_iter().find(|name| field(&step.to, name).is_some())?,
    };
    let value = |text: &str| match step.file {
        Some(_) => amount(text),
        None => amount(field(text, file)?),
    };
    if !MEMORY_LIMITS.contains(&file) || step.error.is_some() {
        return None;
    }
    let to = value(&step.to)?;
    // What had no limit before, or none that is known, may have been lowered.
    let from = value(&step.from).unwrap_or(u64::MAX);
    (to < from).then(|| {
        let from = if from == u64::MAX {
            "no limit".to_owned()
        } else {
            from.to_string()
        };
        format!("{file} of {} from {from} to {to}", step.target)
    })
}

const MEMORY_LIMITS: [&str; 3] = ["memory.max", "memory.limit_in_bytes", "memory_limit_in_bytes"];

fn field<'t>(fields: &'t str, name: &str) -> Option<&'t str> {
    fields
        .split(", ")
        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// `max` and negative numbers are no limit.
fn amount(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::objects::PodId;
    use crate::model::{Cause, Outcome, Stages, Via};
    use crate::oom::report::{Candidates, Confidence, HitLimit, ReportedContainer, ReportedPod};

    fn step(target: Target, file: Option<&'static str>, from: &str, to: &str) -> StepRecord {
        StepRecord {
            target,
            via: Via::Cgroup,
            file,
            from: from.to_owned(),
            to: to.to_owned(),
            took: Duration::ZERO,
            error: None,
            rollback: false,
        }
    }

    fn app() -> Target {
        Target::Container("app".to_owned())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn written(steps: Vec<StepRecord>) -> OwnWrites {
        let mut writes = OwnWrites::default();
        writes.record(&ChangeRecord {
            sequence: 1,
            at: at(1000),
            pod: PodId {
                uid: "u".to_owned(),
                namespace: "n".to_owned(),
                name: "p".to_owned(),
            },
            cause: Cause::Drift,
            outcome: Outcome::Applied,
            steps,
            stages: Stages {
                verified: Duration::from_secs(2),
                ..Stages::default()
            },
        });
        writes
    }

    fn kill(level: Level, second: i64) -> OomReport {
        OomReport {
            id: String::new(),
            node: String::new(),
            time: at(second),
            pod: Some(ReportedPod {
                namespace: "n".to_owned(),
                name: "p".to_owned(),
                uid: "u".to_owned(),
            }),
            container: Some(ReportedContainer {
                name: "app".to_owned(),
                id: "i".to_owned(),
            }),
            cgroup: None,
            level,
            limit: HitLimit::default(),
            container_limit: None,
            victim: None,
            group: Vec::new(),
            own_write: None,
            confidence: Confidence::Exact,
            candidates: Candidates::default(),
            more_candidates: 0,
            while_down: false,
        }
    }

    #[test]
    fn a_kill_soon_after_the_limit_it_hit_was_lowered_is_blamed_on_that() {
        let writes = written(vec![step(app(), Some("memory.max"), "max", "1000")]);
        for (level, second, blamed) in [
            (Level::Container, 997, false),
            (Level::Container, 999, true),
            (Level::Container, 1060, true),
            (Level::Container, 1061, false),
            (Level::Pod, 1001, false),
            (Level::Unknown, 1001, false),
        ] {
            assert_eq!(
                writes.blamed(&kill(level, second)).is_some(),
                blamed,
                "{level:?} {second}"
            );
        }
        let what = writes.blamed(&kill(Level::Container, 1001)).unwrap().what;
        assert_eq!(what, "memory.max of container app from no limit to 1000");
    }

    #[test]
    fn only_memory_limits_that_went_down_count_by_whatever_way() {
        let (old, new) = ("cpu.max=1 2, memory.max=9", "cpu.max=1 2, memory.max=5");
        let stored = ("memory_limit_in_bytes=9", "cpu_quota=1, memory_limit_in_bytes=5");
        for (step, counts) in [
            (step(app(), Some("memory.limit_in_bytes"), "9", "5"), true),
            (step(app(), Some("memory.max"), "5", "9"), false),
            (step(app(), Some("memory.max"), "5", "max"), false),
            (step(app(), Some("cpu.weight"), "9", "5"), false),
            (step(app(), None, old, new), true),
            (step(app(), None, new, old), false),
            (step(app(), None, stored.0, stored.1), true),
            (step(app(), None, "cpu_quota=2", "cpu_quota=1"), false),
        ] {
            let writes = written(vec![step.clone()]);
            assert_eq!(
                writes.blamed(&kill(Level::Container, 1001)).is_some(),
                counts,
                "{step:?}"
            );
        }
    }

    #[test]
    fn old_writes_are_forgotten() {
        let mut writes = written(vec![step(app(), Some("memory.max"), "9", "5")]);
        writes.forget(at(1100));
        assert_eq!(writes.lowered.len(), 1);
        writes.forget(at(1200));
        assert_eq!(writes.lowered.len(), 0);
    }
}
