//! Random nodes: sensible ones for promises, absurd ones for survival.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{WEB, now, pod_of, view};
use crate::model::objects::{
    Container, ContainerPolicy, ContainerRecommendation, ContainerState, ContainerStatus, ControlledValues, LimitRange,
    LimitRangeItem, OwnerReference, Recommendation, ResizePolicy, ResourcePolicy, Terminated,
};
use crate::model::{Bytes, MilliCpu, QosClass, Requirements, ResourceList};
use crate::sources::KnownObjects;

/// Read once: reading costs more than deciding.
static BASE: LazyLock<KnownObjects> = LazyLock::new(|| view(WEB));
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Small enough for ratios to be rough, large enough for them to vary.
const USUAL: RangeInclusive<u64> = 1..=2000;

fn list(amounts: impl Strategy<Value = u64> + Clone) -> impl Strategy<Value = ResourceList> {
    (option::of(amounts.clone()), option::of(amounts)).prop_map(|(cpu, memory)| ResourceList {
        cpu: cpu.map(MilliCpu::new),
        memory: memory.map(Bytes::new),
    })
}

/// Both lists, the first nowhere above the second.
fn ordered() -> impl Strategy<Value = (ResourceList, ResourceList)> {
    let pair = || (option::of(USUAL), option::of(USUAL), any::<bool>());
    let order = |(low, high, equal): (Option<u64>, Option<u64>, bool)| match (low, high) {
        (Some(low), Some(_)) if equal => (Some(low), Some(low)),
        (Some(low), Some(high)) => (Some(low.min(high)), Some(low.max(high))),
        other => other,
    };
    (pair(), pair()).prop_map(move |(cpu, memory)| {
        let (cpu, memory) = (order(cpu), order(memory));
        let list = |cpu: Option<u64>, memory: Option<u64>| ResourceList {
            cpu: cpu.map(MilliCpu::new),
            memory: memory.map(Bytes::new),
        };
        (list(cpu.0, memory.0), list(cpu.1, memory.1))
    })
}

fn requirements() -> impl Strategy<Value = Requirements> {
    ordered().prop_map(|(requests, limits)| Requirements { requests, limits })
}

fn policy() -> impl Strategy<Value = ContainerPolicy> {
    let name = select(&["a", "b", "*"][..]);
    let values = option::of(select(
        &[ControlledValues::RequestsOnly, ControlledValues::RequestsAndLimits][..],
    ));
    (name, ordered(), values, option::of(select(&["Off", "Auto"][..]))).prop_map(
        |(name, (min_allowed, max_allowed), values, mode)| ContainerPolicy {
            container_name: name.to_owned(),
            mode: mode.map(str::to_owned),
            min_allowed: min_allowed.into(),
            max_allowed: max_allowed.into(),
            controlled_resources: None,
            controlled_values: values,
            startup_boost: None,
        },
    )
}

fn recommendation() -> impl Strategy<Value = ContainerRecommendation> {
    (select(&NAMES[..]), list(USUAL), list(USUAL), list(USUAL)).prop_map(|(name, target, lower_bound, upper_bound)| {
        ContainerRecommendation {
            container_name: name.to_owned(),
            target,
            lower_bound,
            upper_bound,
            uncapped_target: target,
        }
    })
}

fn limit_range() -> impl Strategy<Value = LimitRange> {
    let item = (select(&["Container", "Pod"][..]), list(USUAL), list(USUAL), list(USUAL));
    vec(item, 1..3).prop_map(|items| {
        let mut range = LimitRange::default();
        range.metadata.namespace = "default".to_owned();
        range.spec.limits = items
            .into_iter()
            .map(|(kind, min, max, default)| LimitRangeItem {
                default_request: ResourceList::default(),
                max_ratio: crate::model::objects::Ratios::default(),
                kind: kind.to_owned(),
                min,
                max,
                default,
            })
            .collect();
        range
    })
}

fn killed() -> impl Strategy<Value = ContainerStatus> {
    (select(&NAMES[..]), 0_i64..1200).prop_map(|(name, ran)| ContainerStatus {
        name: name.to_owned(),
        last_state: ContainerState {
            terminated: Some(Terminated {
                reason: "OOMKilled".to_owned(),
                started_at: Some(now() - SignedDuration::from_secs(ran)),
                finished_at: Some(now()),
            }),
            ..ContainerState::default()
        },
        ..ContainerStatus::default()
    })
}

/// A valid pod of one to three containers with its workload, VPA and perhaps a LimitRange. Its status has a class if
/// `classed`, and no resources.
pub(super) fn sensible() -> impl Strategy<Value = KnownObjects> {
    let containers = vec(requirements(), 1..=3);
    let vpa = (vec(policy(), 0..3), vec(recommendation(), 1..4));
    let status = (0_i64..100, option::of(killed()), any::<bool>());
    (containers, vpa, option::of(limit_range()), status).prop_map(
        |(containers, (policies, said), range, (hours, killed, classed))| {
            let mut view = BASE.clone();
            let pod = pod_of(&mut view);
            pod.spec.containers = containers
                .into_iter()
                .zip(NAMES)
                .map(|(resources, name)| Container {
                    name: name.to_owned(),
                    resources,
                    ..Container::default()
                })
                .collect();
            pod.status.start_time = Some(now() - SignedDuration::from_hours(hours));
            pod.status.qos_class = None;
            if classed {
                // As the API server does before anything reads the object.
                for container in &mut pod.spec.containers {
                    let resources = &mut container.resources;
                    resources.requests.cpu = resources.requests.cpu.or(resources.limits.cpu);
                    resources.requests.memory = resources.requests.memory.or(resources.limits.memory);
                }
                pod.status.qos_class = Some(pod.computed_qos());
            }
            pod.status.container_statuses = killed.into_iter().collect();
            view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
                pod_policy: None,
                container_policies: policies,
            });
            view.vpas[0].status.recommendation = Some(Recommendation {
                container_recommendations: said,
            });
            view.limit_ranges = range.into_iter().map(Into::into).collect();
            view
        },
    )
}

/// Any amount at all.
fn absurd() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![0_u64..4, Just(u64::MAX), Just(i64::MAX as u64), any::<u64>()]
}

fn absurd_requirements() -> impl Strategy<Value = Requirements> {
    (list(absurd()), list(absurd())).prop_map(|(requests, limits)| Requirements { requests, limits })
}

fn absurd_container() -> impl Strategy<Value = Container> {
    let restart = select(&["RestartContainer", "NotRequired", "?"][..]);
    (select(&["a", "b", ""][..]), absurd_requirements(), restart).prop_map(|(name, resources, restart)| Container {
        name: name.to_owned(),
        resources,
        resize_policy: vec![ResizePolicy {
            resource_name: "cpu".to_owned(),
            restart_policy: restart.to_owned(),
        }],
        ..Container::default()
    })
}

fn time() -> impl Strategy<Value = Option<Timestamp>> {
    prop_oneof![
        Just(None),
        Just(Some(Timestamp::MIN)),
        Just(Some(Timestamp::MAX)),
        Just(Some(now()))
    ]
}

fn absurd_status() -> impl Strategy<Value = ContainerStatus> {
    (
        select(&["a", "b"][..]),
        option::of(absurd_requirements()),
        time(),
        time(),
    )
        .prop_map(|(name, resources, started_at, finished_at)| ContainerStatus {
            name: name.to_owned(),
            resources,
            last_state: ContainerState {
                terminated: Some(Terminated {
                    reason: "OOMKilled".to_owned(),
                    started_at,
                    finished_at,
                }),
                ..ContainerState::default()
            },
            ..ContainerStatus::default()
        })
}

/// A pod that no API server would let through, in the worst of company.
pub(super) fn anything() -> impl Strategy<Value = KnownObjects> {
    let class = option::of(select(
        &[QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort][..],
    ));
    let pod = (
        vec(absurd_container(), 0..4),
        vec(absurd_container(), 0..2),
        option::of(absurd_requirements()),
        vec(absurd_status(), 0..3),
        (time(), class),
    );
    let text = select(&["", "a", "a, b", ", ", "true", "x, \u{0}"][..]);
    let policy =
        (policy(), list(absurd()), list(absurd())).prop_map(|(policy, min_allowed, max_allowed)| ContainerPolicy {
            min_allowed: min_allowed.into(),
            max_allowed: max_allowed.into(),
            ..policy
        });
    let said = (recommendation(), list(absurd()), list(absurd()), list(absurd())).prop_map(
        |(said, target, lower_bound, upper_bound)| ContainerRecommendation {
            target,
            lower_bound,
            upper_bound,
            ..said
        },
    );
    let item = (
        select(&["Container", "Pod"][..]),
        list(absurd()),
        list(absurd()),
        list(absurd()),
    );
    let around = (vec(policy, 0..3), vec(said, 0..4), vec(item, 0..3), text, any::<bool>());
    (pod, around).prop_map(|(pod, (policies, said, items, text, circle))| {
        let mut view = BASE.clone();
        let (containers, init_containers, resources, statuses, (start, class)) = pod;
        let subject = pod_of(&mut view);
        subject.spec.containers = containers;
        subject.spec.init_containers = init_containers;
        subject.spec.resources = resources;
        subject.status.container_statuses = statuses;
        subject.status.start_time = start;
        subject.status.qos_class = class;
        subject.metadata.annotations = BTreeMap::from([("vpaObservedContainers".to_owned(), text.to_owned())]);
        view.vpas[0].spec.resource_policy = Some(ResourcePolicy {
            pod_policy: None,
            container_policies: policies,
        });
        view.vpas[0].status.recommendation = Some(Recommendation {
            container_recommendations: said,
        });
        let mut range = LimitRange::default();
        range.metadata.namespace = "default".to_owned();
        range
            .spec
            .limits
            .extend(items.into_iter().map(|(kind, min, max, default)| LimitRangeItem {
                default_request: ResourceList::default(),
                max_ratio: crate::model::objects::Ratios::default(),
                kind: kind.to_owned(),
                min,
                max,
                default,
            }));
        view.limit_ranges = vec![range.into()];
        if circle {
            view.owners[0].metadata.owner_references = vec![OwnerReference {
                kind: "StatefulSet".to_owned(),
                name: "web".to_owned(),
                controller: Some(true),
                ..OwnerReference::default()
            }];
        }
        view
    })
}
