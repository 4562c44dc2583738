//! Names containers that are in trouble although they were given more, and what is known of the reason. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use crate::control::proto;
use crate::model::{ChangeRecord, Resource, Setting, StepRecord, Withheld};
use crate::oom::{Level, OomReport};
use crate::reconcile::pod::PodState;

/// One sentence for each container whose limit grew and that was killed since, or is throttled still.
///
/// `readings` are two of the pod's use, some enforcement periods apart, where a container was given more cpu.
pub(super) fn remarks(given: &Given, kills: &[Arc<OomReport>], readings: Option<&[proto::Pod; 2]>) -> Vec<String> {
    let containers = given.state.pod.running_containers();
    let remarks = containers.flat_map(|container| {
        let name = container.name.as_str();
        [killed(given, kills, name), throttled(given, readings, name)]
    });
    remarks.flatten().collect()
}

/// A pod, and its latest changes, oldest first.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) state: PodState,
    pub(super) changes: Vec<Arc<ChangeRecord>>,
}

impl Given {
    /// Whether a container of the pod was given more of the resource: only then its trouble is a remark.
    pub(super) fn has_more(&self, resource: Resource) -> bool {
        let mut containers = self.state.pod.running_containers();
        containers.any(|container| grown(&self.changes, &container.name, resource).is_some())
    }
}

fn killed(given: &Given, kills: &[Arc<OomReport>], name: &str) -> Option<String> {
    let uid = &given.state.identity.as_ref()?.uid;
    let grown = grown(&given.changes, name, Resource::Memory)?;
    let is_later = |kill: &&Arc<OomReport>| {
        let (pod, container) = (&kill.facts.pod, &kill.facts.container);
        kill.time > grown
            && pod.as_ref().is_some_and(|pod| **uid == *pod.uid)
            && container.as_ref().is_some_and(|container| container.name == name)
    };
    let last = kills.iter().rfind(is_later)?;
    let count = kills.iter().filter(is_later).count();
    let why = match last.facts.limit_of() {
        Level::Container => why(&given.state, name, Resource::Memory),
        level => format!("the limit that was hit is that of the {level}"),
    };
    Some(format!(
        "container {name} was OOM-killed after its memory limit was raised at {grown:.0} (kills: {count}, the last at {:.0}): {why}",
        last.time
    ))
}

fn throttled(given: &Given, readings: Option<&[proto::Pod; 2]>, name: &str) -> Option<String> {
    let [before, after] = readings?;
    let grown = grown(&given.changes, name, Resource::Cpu)?;
    let usage = |pod: &proto::Pod| {
        let container = pod.containers.iter().find(|container| container.name == name)?;
        let usage = container.usage.as_ref()?;
        Some((usage.periods, usage.throttled_periods))
    };
    let ((periods, throttled), (later, throttled_later)) = (usage(before)?, usage(after)?);
    let periods = later.saturating_sub(periods);
    let throttled = throttled_later.saturating_sub(throttled).min(periods);
    (throttled > 0).then(|| {
        let why = why(&given.state, name, Resource::Cpu);
        format!(
            "container {name} is throttled in {throttled} of {periods} periods, although its cpu limit was raised at {grown:.0}: {why}"
        )
    })
}

/// When a pass raised the container's limit, if none has lowered it since.
fn grown(changes: &[Arc<ChangeRecord>], name: &str, resource: Resource) -> Option<Timestamp> {
    // No bound is above every limit.
    let compare = |(from, to): (Setting, Setting)| {
        let change = match resource {
            Resource::Cpu => to.quota()?.cmp(&from.quota()?),
            Resource::Memory => to.memory()?.cmp(&from.memory()?),
        };
        Some(change).filter(|change| change.is_ne())
    };
    let of_container =
        |step: &&StepRecord| step.target.container() == Some(name) && step.error.is_none() && !step.rollback;
    let latest = |record: &Arc<ChangeRecord>| {
        let mut steps = record.steps.iter().filter(of_container);
        let change = steps.find_map(|step| step.change.files().into_iter().find_map(compare))?;
        Some((record.at, change))
    };
    let held = changes.iter().rev().filter(|record| record.outcome.holds());
    let (at, change) = held.filter_map(latest).next()?;
    change.is_gt().then_some(at)
}

/// What keeps the container from more of the resource.
fn why(state: &PodState, name: &str, resource: Resource) -> String {
    let notes = state.decision.notes.iter();
    let notes = notes.filter(|note| note.is_about(name, resource));
    let overridden = state.desired.overridden.as_ref();
    let by_hand = overridden.map(|_| "an operator's override is in force");
    let room = state.no_room.as_ref().map(|no_room| no_room.why.as_str());
    let withheld = state.resize.withheld().map(Withheld::reason);
    let known = [by_hand, room, withheld].into_iter().flatten().map(str::to_owned);
    let known: Vec<String> = known.chain(notes.map(ToString::to_string)).collect();
    match known.as_slice() {
        [] => "the recommendation asks for no more".to_owned(),
        known => known.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Fact, Note, PodDecision};
    use crate::model::objects::PodId;
    use crate::model::{Cause, Change, CpuQuota, MemoryLimit, Outcome, PodAmounts, Step, Target};
    use crate::reconcile::overrides::Override;
    use crate::report::testing::kill_of;
    use crate::sources::parse_manifests;

    #[test]
    fn a_limit_lowered_since_has_not_grown() {
        let record = |at: i64, change| {
            let step = Step {
                target: Target::Container("app".into()),
                change,
            };
            let pod = PodId {
                uid: "u".into(),
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
            };
            Arc::new(ChangeRecord {
                at: Timestamp::from_second(at).unwrap(),
                steps: vec![StepRecord::planned(&step)],
                ..ChangeRecord::new(pod, Cause::Retry, Outcome::Applied)
            })
        };
        let quota = |from, to| {
            let [from, to] = [from, to].map(|micros| Setting::CfsQuota(CpuQuota::Micros(micros)));
            Change::File { from, to }
        };
        let memory = |from, to| {
            let [from, to] = [from, to].map(|bytes| Setting::MemoryMax(MemoryLimit::Bytes(bytes)));
            Change::File { from, to }
        };
        let mut changes = vec![record(1, quota(100, 200)), record(2, memory(64, 128))];
        let grew = |changes: &[Arc<ChangeRecord>]| {
            Resource::ALL.map(|resource| grown(changes, "app", resource).map(Timestamp::as_second))
        };
        assert_eq!(grew(&changes), [Some(1), Some(2)]);
        changes.push(record(3, quota(200, 50)));
        assert_eq!(grew(&changes), [None, Some(2)]);
        changes.push(record(4, quota(50, 60)));
        assert_eq!(grew(&changes), [Some(4), Some(2)]);
        assert_eq!(grown(&changes, "other", Resource::Cpu), None);
        let unbounded = |to| {
            let [from, to] = [MemoryLimit::Max, MemoryLimit::Bytes(to)].map(Setting::MemoryMax);
            Change::File { from, to }
        };
        changes.push(record(5, unbounded(64)));
        assert_eq!(grew(&changes), [Some(4), None], "no limit is above every limit");
        changes.pop();
        let undone: [fn(&mut ChangeRecord); 3] = [
            |record| record.steps[0].error = Some("busy".to_owned()),
            |record| record.steps[0].rollback = true,
            |record| record.outcome = Outcome::RolledBack("busy".to_owned()),
        ];
        for undo in undone {
            let mut raised = ChangeRecord::clone(&record(5, memory(128, 256)));
            undo(&mut raised);
            changes.push(Arc::new(raised));
            assert_eq!(grew(&changes), [Some(4), Some(2)], "it did not hold");
            changes.pop();
        }
    }

    /// A pod of which `change` was made at this second.
    fn given(change: Change) -> Given {
        let manifest = "{kind: Pod, metadata: {name: web, uid: u}, spec: {containers: [{name: side}, {name: app}]}}";
        let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let id = PodId {
            uid: "uid-of-web".into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        state.identity = Some(id.clone());
        let step = Step {
            target: Target::Container("app".into()),
            change,
        };
        let record = ChangeRecord {
            at: Timestamp::from_second(1_700_000_000).unwrap(),
            steps: vec![StepRecord::planned(&step)],
            ..ChangeRecord::new(id, Cause::Retry, Outcome::Applied)
        };
        Given {
            state,
            changes: vec![Arc::new(record)],
        }
    }

    #[test]
    fn kills_after_a_raise_have_a_reason() {
        let [from, to] = [64, 128].map(|bytes| Setting::MemoryMax(MemoryLimit::Bytes(bytes)));
        let mut given = given(Change::File { from, to });
        assert_eq!(Resource::ALL.map(|resource| given.has_more(resource)), [false, true]);
        let mut kills: Vec<_> = [0, 3, 5].map(|number| Arc::new(kill_of("web", number))).into();
        kills.push(Arc::new(kill_of("db", 9)));
        let killed = "container app was OOM-killed after its memory limit was raised at 2023-11-14T22:13:20Z (kills: 2, the last at 2023-11-14T22:13:25Z)";
        assert_eq!(
            remarks(&given, &kills, None),
            [format!("{killed}: the recommendation asks for no more")]
        );
        given.state.desired.overridden = Some(Override::by_root(PodAmounts::default()));
        for (resource, text) in [(Resource::Memory, "memory is capped"), (Resource::Cpu, "cpu is capped")] {
            given.state.decision.notes.push(Note {
                container: Some("app".to_owned()),
                resource: Some(resource),
                fact: Fact::Text(text.to_owned()),
            });
        }
        assert_eq!(
            remarks(&given, &kills, None),
            [format!(
                "{killed}: an operator's override is in force; memory is capped"
            )]
        );
        Arc::make_mut(&mut kills[2]).facts.level = Level::Pod;
        assert_eq!(
            remarks(&given, &kills, None),
            [format!("{killed}: the limit that was hit is that of the pod")]
        );
        assert_eq!(remarks(&given, &kills[..1], None), [""; 0], "the kill before the raise");
    }

    #[test]
    fn throttling_after_a_raise_is_told() {
        let [from, to] = [100, 200].map(|micros| Setting::CfsQuota(CpuQuota::Micros(micros)));
        let given = given(Change::File { from, to });
        assert_eq!(Resource::ALL.map(|resource| given.has_more(resource)), [true, false]);
        let reading = |periods, throttled_periods| proto::Pod {
            containers: vec![proto::Container {
                name: "app".to_owned(),
                usage: Some(proto::Usage {
                    periods,
                    throttled_periods,
                    ..proto::Usage::default()
                }),
                ..proto::Container::default()
            }],
            ..proto::Pod::default()
        };
        let told = |later| remarks(&given, &[], Some(&[reading(10, 2), later]));
        assert_eq!(
            told(reading(30, 7)),
            [
                "container app is throttled in 5 of 20 periods, although its cpu limit was raised at 2023-11-14T22:13:20Z: the \
                 recommendation asks for no more"
            ]
        );
        assert_eq!(told(reading(30, 2)), [""; 0]);
        let all = told(reading(30, 32));
        assert!(all[0].contains("throttled in 20 of 20 periods"), "{all:?}");
    }
}
