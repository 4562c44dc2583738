//! What holds for every pod that was boosted.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::arbitrary::sensible;
use super::*;

/// A container of a sensible pod is boosted: what it has is what it had, times a factor.
fn starting() -> impl Strategy<Value = KnownObjects> {
    let since = option::of(0_i64..100);
    let boost = (select(&["a", "b"][..]), 1_u64..9, 0_i64..100, any::<bool>());
    (sensible(), boost, option::of(0_i64..100), since).prop_map(|(mut view, (name, factor, all, known), own, since)| {
        view.vpas[0].spec.startup_boost = for_seconds(all);
        if let Some(own) = own {
            let policies = &mut view.vpas[0].spec.resource_policy.as_mut().unwrap().container_policies;
            policies
                .iter_mut()
                .for_each(|policy| policy.startup_boost = for_seconds(own));
        }
        let pod = pod_of(&mut view);
        if let Some(container) = pod.spec.containers.iter_mut().find(|container| container.name == name) {
            let before = serde_json::to_string(&container.resources).unwrap();
            for list in [&mut container.resources.requests, &mut container.resources.limits] {
                list.cpu = list.cpu.map(|cpu| MilliCpu::new(cpu.get() * factor));
            }
            annotate(pod, name, if known { &before } else { "?" });
        }
        since
            .into_iter()
            .for_each(|since| ready(pod, Some(now() - SignedDuration::from_secs(since))));
        view
    })
}

fn at(view: &KnownObjects, time: Timestamp) -> PodDecision {
    decide_pod(
        &view.pods[0],
        &index(view),
        time,
        &Options::default(),
        EarlierDecisions::default(),
    )
}

fn is_boosted(view: &KnownObjects, container: &str) -> bool {
    let annotations = &view.pods[0].metadata.annotations;
    annotations.contains_key(&format!("{BOOST_PREFIX}{container}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn while_a_boost_lasts_its_cpu_is_not_touched(view in starting(), seconds in 0_i64..200) {
        let decision = at(&view, now() + SignedDuration::from_secs(seconds));
        let lasts = decision.notes.iter().any(|note| note.to_string().contains("keeps its startup boost"));
        for (was, becomes) in view.pods[0].spec.containers.iter().zip(&decision.amounts.containers) {
            if lasts && is_boosted(&view, &was.name) {
                prop_assert_eq!(was.resources.requests.cpu, becomes.resources.requests.cpu);
                prop_assert_eq!(was.resources.limits.cpu, becomes.resources.limits.cpu);
            }
        }
    }

    #[test]
    fn a_boost_ends_at_its_named_time(view in starting()) {
        let decision = at(&view, now());
        if let Some(end) = decision.boosts.next_end {
            let before = at(&view, end - SignedDuration::from_nanos(1));
            prop_assert_eq!(before.boosts.next_end, Some(end));
            let after = at(&view, end);
            prop_assert_eq!(after.boosts.next_end, None);
            prop_assert!(after.reason != Reason::StartupBoost, "{:?}", after);
        }
    }

    #[test]
    fn a_boost_is_taken_back_in_one_change(mut view in starting()) {
        view.limit_ranges.clear();
        ready(pod_of(&mut view), None);
        let first = at(&view, now());
        if first.action() != Action::Skip {
            for (container, becomes) in pod_of(&mut view).spec.containers.iter_mut().zip(&first.amounts.containers) {
                container.resources = becomes.resources;
            }
            let second = at(&view, now());
            prop_assert!(second.action() != Action::Resize, "{:?} then {:?}", first, second);
            let stuck = second.reason == Reason::BoostUnreadable;
            for name in ["a", "b"].into_iter().filter(|name| is_boosted(&view, name) && !stuck) {
                prop_assert!(second.boosts.done.contains(&name.to_owned()), "{:?} then {:?}", first, second);
            }
        }
    }

    #[test]
    fn requests_never_pass_limits_and_classes_stay(view in starting()) {
        let decision = at(&view, now());
        let mut after = Pod::clone(&view.pods[0]);
        for (container, becomes) in after.spec.containers.iter_mut().zip(&decision.amounts.containers) {
            let (request, limit) = (becomes.resources.requests.cpu, becomes.resources.limits.cpu);
            prop_assert!(limit.is_none_or(|limit| request <= Some(limit)), "{:?}", decision);
            container.resources = becomes.resources;
        }
        prop_assert_eq!(view.pods[0].qos_class(), after.computed_qos());
    }

    #[test]
    fn the_end_of_a_boost_gives_nothing(
        mut view in starting(), request in 0_u64..100_000, more in 0_u64..1_000_000, limited in any::<bool>(),
    ) {
        view.vpas[0].status.recommendation = None;
        let pod = pod_of(&mut view);
        ready(pod, None);
        let mut before = serde_json::json!({"requests": {"cpu": format!("{request}m")}});
        if limited {
            before["limits"] = serde_json::json!({"cpu": format!("{}m", request + more)});
        }
        for name in ["a", "b", "c"] {
            annotate(pod, name, &before.to_string());
        }
        let decision = at(&view, now());
        for (was, becomes) in view.pods[0].spec.containers.iter().zip(&decision.amounts.containers) {
            let (was, becomes) = (was.resources, becomes.resources);
            prop_assert!(becomes.requests.cpu <= was.requests.cpu.or(was.limits.cpu), "{:?}", decision);
            let raised = was.limits.cpu.is_some_and(|limit| becomes.limits.cpu.is_none_or(|to| to > limit));
            prop_assert!(!raised, "{:?}", decision);
        }
    }

    #[test]
    fn whatever_an_annotation_says_there_is_a_decision(mut view in starting(), before in ".*", name in "[ab]?") {
        annotate(pod_of(&mut view), &name, &before);
        ready(pod_of(&mut view), Some(Timestamp::MIN));
        view.vpas[0].spec.startup_boost = for_seconds(i64::MAX);
        prop_assert_eq!(at(&view, now()).amounts.containers.len(), view.pods[0].spec.containers.len());
    }
}
