//! Why the guard may not grow limits of a pod's containers for now. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::desired::{Denied, DesiredState, TemporaryLimit};
use crate::actuate::JobDone;
use crate::actuate::shrink::Lowering;
use crate::model::objects::Pod;
use crate::model::{ContainerName, MemoryLimit, PodAmounts, Resource, ResourceList};

/// How long the guard does not grow a container's limits after the API server's first denial. Doubles with each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(5);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

/// What keeps the guard from growing limits, by container name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Growth {
    /// Why the guard did not grow a memory limit that was about to be reached.
    refused: BTreeMap<ContainerName, NotGrown>,
    /// Until when the guard does not grow limits that the API server denied, as the state file has it.
    pauses: BTreeMap<ContainerName, GrowthPause>,
}

/// A memory limit that the guard did not grow.
#[derive(Debug, Clone)]
struct NotGrown {
    why: String,
    /// The container's memory limit without a temporary one in bytes, at that time.
    limit: Option<u64>,
}

/// A time in which the guard grows no limit of a container, after the API server denied one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GrowthPause {
    until: Timestamp,
    /// How many times in a row the API server denied temporary limits.
    times: u32,
    /// The limits of the container's spec at the denial. The pause ends when the spec has other limits.
    limits: ResourceList,
    /// The memory limit that was denied last, in bytes; zero where only cpu limits were.
    denied: u64,
    /// The explanation for users, with the words of the denial.
    why: String,
}

fn spec_limits(pod: &Pod, container: &str) -> Option<ResourceList> {
    pod.container(container).map(|container| container.resources.limits)
}

impl Growth {
    /// What outlasts the agent: the pauses.
    pub(crate) const fn saved(&self) -> &BTreeMap<ContainerName, GrowthPause> {
        &self.pauses
    }

    /// Takes what an earlier agent saved.
    pub(crate) fn restore(&mut self, pauses: BTreeMap<ContainerName, GrowthPause>) {
        self.pauses.extend(pauses);
    }

    /// Notes why the guard did not grow the memory limit of a container that has these `amounts` without temporary limits. A denial is
    /// known as the reason already.
    pub(crate) fn refuse(&mut self, pod: &Pod, container: &str, why: String, amounts: &PodAmounts, now: Timestamp) {
        if self.denial(pod, container, now).is_none() {
            let limit = amounts.limit(container, Resource::Memory);
            self.refused.insert(container.into(), NotGrown { why, limit });
        }
    }

    /// Notes that the guard has grown a container's memory limit.
    pub(crate) fn succeed(&mut self, container: &str) {
        self.refused.remove(container);
    }

    /// Takes the API server's answer to a pass that `asked` for these targets. Each temporary limit in a patch that was denied ends after a
    /// `quiet` time, and its container gets none for a while; the outcome gets a sentence for each limit of which that is news. Limits
    /// that were denied before need no watch once they are lowered.
    pub(crate) fn pass_ended(
        &mut self,
        pod: &Pod,
        desired: &mut DesiredState,
        asked: Option<&PodAmounts>,
        done: &mut JobDone,
        (now, quiet): (Timestamp, SignedDuration),
    ) {
        let (report, outcome) = (&done.api, &mut done.record.outcome);
        if let Some(why) = report.denied() {
            let denied = desired.deny(pod, asked, why, now, quiet);
            for sentence in denied.iter().filter_map(TemporaryLimit::denied_detail) {
                outcome.add(&sentence);
            }
            self.deny(pod, &denied, why);
        }
        if let Some(accepted) = report.accepted().filter(|_| outcome.is_kept()) {
            for container in desired.accept(&accepted.targets) {
                self.accept(&container);
            }
        }
        if self.takes_back_denied(pod, &done.shrink.lowered, now) {
            done.shrink.lowered.clear();
        }
    }

    /// Notes that the API server denied these temporary limits: the containers get none for a while.
    pub(crate) fn deny(&mut self, pod: &Pod, limits: &[TemporaryLimit], why: &str) {
        let containers: BTreeSet<&str> = limits.iter().map(|limit| &*limit.container).collect();
        for container in containers {
            let denied = limits.iter().filter(|limit| limit.container == container);
            let memory = denied.clone().find(|limit| limit.resource == Resource::Memory);
            let ends = denied.filter_map(|limit| limit.denied.as_ref().map(|Denied { ends, .. }| *ends));
            let Some(ends) = ends.max() else { continue };
            let earlier = self.pauses.get(container);
            let times = earlier.map_or(0, |pause| pause.times);
            let in_force = earlier.filter(|pause| pause.until > ends);
            let denied = memory.map(|limit| limit.to).or(in_force.map(|pause| pause.denied));
            let pause = (FIRST_PAUSE * (1 << times.min(8))).min(LONGEST_PAUSE);
            let until = ends.checked_add(pause).unwrap_or(Timestamp::MAX);
            let pause = GrowthPause {
                until,
                times: times.saturating_add(1),
                limits: spec_limits(pod, container).unwrap_or_default(),
                denied: denied.unwrap_or_default(),
                why: format!("the API server denies a higher limit, no temporary limit before {until:.0}: {why}"),
            };
            self.pauses.insert(container.into(), pause);
        }
    }

    /// Notes that the API server accepts the temporary limits of a container again.
    fn accept(&mut self, container: &str) {
        self.pauses.remove(container);
    }

    /// The pause of a container, if there is one now. It ends when the spec has other limits.
    fn pause(&self, pod: &Pod, container: &str, now: Timestamp) -> Option<&GrowthPause> {
        let pause = self.pauses.get(container).filter(|pause| pause.until > now);
        pause.filter(|pause| spec_limits(pod, container) == Some(pause.limits))
    }

    /// Why a container's limits may not grow for a while after a denial; `None` where they may, or its spec has other limits since.
    pub(crate) fn denial(&self, pod: &Pod, container: &str, now: Timestamp) -> Option<&String> {
        self.pause(pod, container, now).map(|pause| &pause.why)
    }

    /// Whether one of these lowered limits was denied by the API server. A container that then reaches the limit of its
    /// spec is no reason to undo the shrink.
    pub(crate) fn takes_back_denied(&self, pod: &Pod, lowered: &[Lowering], now: Timestamp) -> bool {
        lowered.iter().any(|lowering| {
            let container = lowering.target.container();
            let pause = container.and_then(|container| self.pause(pod, container, now));
            pause.is_some_and(|pause| lowering.from <= MemoryLimit::Bytes(pause.denied))
        })
    }

    /// The ends of the pauses.
    pub(crate) fn dates(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.pauses.values_mut().map(|pause| &mut pause.until)
    }

    /// Why limits of containers are not grown: denials of the API server, until the guard may grow limits again, and refusals of the
    /// guard, for containers that have no higher memory limit in these `amounts`.
    pub(crate) fn refusals(
        &self,
        pod: &Pod,
        amounts: PodAmounts,
        now: Timestamp,
    ) -> impl Iterator<Item = (&ContainerName, &String)> {
        let denials = self.pauses.keys();
        let denials = denials.filter_map(move |container| Some((container, &self.pause(pod, container, now)?.why)));
        let refusals = self.refused.iter();
        denials.chain(refusals.filter_map(move |(container, NotGrown { why, limit })| {
            let is_raised = amounts.limit(container, Resource::Memory) > *limit;
            (!is_raised).then_some((container, why))
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Bytes, Target};
    use crate::plan::shrink::Before;
    use crate::sources::parse_manifests;

    const MIB: u64 = 1 << 20;

    /// A pod whose container `app` has this memory limit in its spec.
    fn pod(mebibytes: u64) -> Arc<Pod> {
        let manifest = format!(
            "{{kind: Pod, metadata: {{name: web, uid: u}}, spec: {{containers: [{{name: side}}, \
             {{name: app, resources: {{limits: {{memory: {mebibytes}Mi}}}}}}]}}}}"
        );
        Arc::clone(&parse_manifests("test", &manifest).unwrap().view.pods[0])
    }

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + 60 * minute).unwrap()
    }

    /// A temporary limit of `app` that was denied and ends at this minute.
    fn denied(resource: Resource, to: u64, minute: i64) -> TemporaryLimit {
        let denied = Denied {
            ends: at(minute),
            why: String::new(),
        };
        let given = TemporaryLimit::given("app".to_owned(), resource, (1, to), String::new(), at(0));
        TemporaryLimit {
            denied: Some(denied),
            ..given
        }
    }

    /// Whether a limit of `app` that came down from this one was a denied one.
    fn takes_back(growth: &Growth, from: MemoryLimit, minute: i64) -> bool {
        let (target, to) = (Target::Container("app".into()), Bytes::new(128 * MIB));
        let lowering = Lowering {
            target,
            from,
            to,
            before: Before::of_test(),
        };
        growth.takes_back_denied(&pod(128), &[lowering], at(minute))
    }

    #[test]
    fn each_denial_doubles_the_pause_until_acceptance() {
        let pod = pod(128);
        let (mut growth, mut now) = (Growth::default(), 0);
        for _ in 0..2 {
            let mut pauses = Vec::new();
            for _ in 0..6 {
                growth.deny(&pod, &[denied(Resource::Memory, 200 * MIB, now)], "a quota");
                let is_over = |pause: &i64| growth.denial(&pod, "app", at(now + pause)).is_none();
                let pause = (1..).find(is_over).unwrap();
                pauses.push(pause);
                now += pause;
            }
            assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
            growth.accept("app");
            assert_eq!(growth.denial(&pod, "app", at(now - 1)), None);
        }
    }

    #[test]
    fn a_pause_is_of_one_container_and_spec() {
        let mut growth = Growth::default();
        growth.deny(&pod(128), &[denied(Resource::Memory, 200 * MIB, 0)], "a quota");
        assert!(growth.denial(&pod(128), "app", at(1)).is_some());
        assert_eq!(growth.denial(&pod(128), "side", at(1)), None);
        let other = growth.denial(&pod(129), "app", at(1));
        assert_eq!(other, None, "it has another limit since");
    }

    #[test]
    fn only_denied_limits_are_taken_back() {
        let mut growth = Growth::default();
        let bytes = |mebibytes| MemoryLimit::Bytes(mebibytes * MIB);
        assert!(!takes_back(&growth, bytes(200), 0));
        growth.deny(&pod(128), &[denied(Resource::Memory, 200 * MIB, 0)], "a quota");
        // A cpu limit that is denied in the pause says nothing of memory.
        growth.deny(&pod(128), &[denied(Resource::Cpu, 400, 1)], "a quota");
        let froms = [bytes(200), bytes(201), MemoryLimit::Max];
        assert_eq!(froms.map(|from| takes_back(&growth, from, 2)), [true, false, false]);
        assert!(!takes_back(&growth, bytes(200), 60), "the pause is over");
    }

    #[test]
    fn a_growth_ends_its_refusal() {
        let (pod, mut growth) = (pod(128), Growth::default());
        growth.refuse(&pod, "app", "the ceiling".to_owned(), &pod.requirements(), at(0));
        let said = |growth: &Growth| growth.refusals(&pod, pod.requirements(), at(0)).count();
        assert_eq!(said(&growth), 1);
        growth.succeed("app");
        assert_eq!(said(&growth), 0);
    }
}
