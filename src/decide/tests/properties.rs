//! What holds for every decision.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::arbitrary::{anything, sensible};
use super::*;
use crate::decide::decide_pod;
use crate::model::objects::{ContainerPolicy, ControlledValues};
use crate::model::{Action, Reason};

/// Container, what it had and what it gets, for each resource that changes.
fn changes<'a>(
    view: &'a KnownObjects,
    decision: &'a PodDecision,
) -> impl Iterator<Item = (&'a str, Requirements, Requirements, Resource)> {
    let pairs = view.pods[0].spec.containers.iter().zip(&decision.amounts.containers);
    let each = pairs.flat_map(|(was, becomes)| {
        Resource::ALL.map(|resource| (was.name.as_str(), was.resources, becomes.resources, resource))
    });
    each.filter(|(_, was, becomes, resource)| was.requests.get(*resource) != becomes.requests.get(*resource))
}

fn amount_of(policy: Option<&ContainerPolicy>, bound: impl Fn(&ContainerPolicy) -> Option<u64>) -> Option<u64> {
    policy.and_then(bound).filter(|amount| *amount > 0)
}

/// The decision after `applied` was carried out, any time later.
fn later(view: &KnownObjects, applied: Option<&PodAmounts>, hours: i64) -> PodDecision {
    let then = now() + SignedDuration::from_hours(hours);
    decide_pod(&view.pods[0], &index(view), then, &Options::default(), applied.into())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_reason_in_range_is_true_of_the_requests(mut view in sensible()) {
        // No rule moves the bounds, and no kill outranks them.
        view.vpas[0].spec.resource_policy = None;
        view.limit_ranges.clear();
        pod_of(&mut view).status.container_statuses.clear();
        let decision = decide_one(&view);
        if ![Reason::InRange, Reason::TooYoung, Reason::AgeUnknown].contains(&decision.reason) {
            return Ok(());
        }
        let recommendation = view.vpas[0].status.recommendation.as_ref().unwrap();
        for container in &view.pods[0].spec.containers {
            let mut all = recommendation.container_recommendations.iter();
            let Some(own) = all.find(|own| own.container_name == container.name) else { continue };
            for resource in Resource::ALL.into_iter().filter(|resource| own.target.get(*resource).is_some()) {
                let request = container.resources.requests.get(resource);
                prop_assert!(request.is_some(), "{} {resource}", container.name);
                let [low, high] = [own.lower_bound, own.upper_bound].map(|bound| bound.get(resource));
                prop_assert!(low.is_none_or(|low| request >= Some(low)) && high.is_none_or(|high| request <= Some(high)));
            }
        }
    }

    #[test]
    fn requests_stay_within_what_the_policy_allows(view in sensible()) {
        let decision = decide_one(&view);
        for (container, _, becomes, resource) in changes(&view, &decision) {
            let policy = view.vpas[0].policy_for(container);
            let request = becomes.requests.amount(resource);
            if let Some(max) = amount_of(policy, |policy| policy.max_allowed.get(resource)) {
                prop_assert!(request <= max, "{container} {resource}: {request} above {max}");
            }
            // With RequestsOnly the container's own limit is stronger.
            let follows_limit = policy.is_some_and(|policy| policy.controlled_values == Some(ControlledValues::RequestsOnly))
                && request == becomes.limits.amount(resource);
            if let Some(min) = amount_of(policy, |policy| policy.min_allowed.get(resource)) {
                prop_assert!(request >= min || follows_limit, "{container} {resource}: {request} below {min}");
            }
        }
    }

    #[test]
    fn requests_never_pass_limits(view in sensible()) {
        let decision = decide_one(&view);
        for container in &decision.amounts.containers {
            for resource in Resource::ALL {
                if let Some(limit) = container.resources.limits.get(resource) {
                    prop_assert!(container.resources.requests.amount(resource) <= limit, "{container:?}");
                }
            }
        }
    }

    #[test]
    fn the_qos_class_stays(view in sensible()) {
        let decision = decide_one(&view);
        let mut after = Pod::clone(&view.pods[0]);
        for (container, becomes) in after.spec.containers.iter_mut().zip(&decision.amounts.containers) {
            container.resources = becomes.resources;
        }
        prop_assert_eq!(view.pods[0].qos_class(), after.computed_qos());
    }

    #[test]
    fn what_has_no_recommendation_is_not_changed(view in sensible()) {
        let decision = decide_one(&view);
        let said = &view.vpas[0].status.recommendation.as_ref().unwrap().container_recommendations;
        for (container, _, _, resource) in changes(&view, &decision) {
            let first = said.iter().find(|said| said.container_name == container);
            prop_assert!(first.is_some_and(|said| said.target.get(resource).is_some()), "{container} {resource}");
        }
    }

    #[test]
    fn without_a_resize_the_spec_counts(view in sensible()) {
        let decision = decide_one(&view);
        prop_assert_eq!(decision.amounts.containers.len(), view.pods[0].spec.containers.len());
        if decision.action() != Action::Resize {
            prop_assert_eq!(changes(&view, &decision).count(), 0);
        }
    }

    #[test]
    fn deciding_on_the_record_of_the_result_changes_nothing(view in sensible(), hours in 0_i64..1000) {
        let first = decide_one(&view);
        let second = later(&view, Some(&first.amounts), hours);
        if first.action() == Action::Resize {
            prop_assert_ne!(second.action(), Action::Resize, "{:?} then {:?}", first, second);
            prop_assert_eq!(first.amounts, second.amounts);
        }
    }

    #[test]
    fn deciding_on_the_resized_pod_changes_nothing(mut view in sensible(), hours in 0_i64..1000) {
        // With a LimitRange the drift of rounded ratios, which is upstream's, can move a bound by a unit.
        view.limit_ranges.clear();
        let first = decide_one(&view);
        for (container, becomes) in pod_of(&mut view).spec.containers.iter_mut().zip(&first.amounts.containers) {
            container.resources = becomes.resources;
        }
        let second = later(&view, None, hours);
        if first.action() == Action::Resize {
            prop_assert_ne!(second.action(), Action::Resize, "{:?} then {:?}", first, second);
        }
    }

    #[test]
    fn no_input_is_too_absurd_for_a_decision(view in anything(), applied in anything()) {
        let record: PodAmounts = applied.pods[0]
            .spec
            .containers
            .iter()
            .map(|container| NamedRequirements::new(&container.name, container.resources))
            .collect();
        for decision in [decide_one(&view), later(&view, Some(&record), 1)] {
            prop_assert_eq!(decision.amounts.containers.len(), view.pods[0].spec.containers.len());
            prop_assert!(
                decision.action() != Action::Resize
                    || decision.amounts.containers.iter().any(|container| !container.resources.requests.is_empty())
            );
        }
    }

    #[test]
    fn changed_amounts_lie_within_limits(view in anything()) {
        let decision = decide_one(&view);
        for (container, _, becomes, resource) in changes(&view, &decision) {
            let (request, limit) = (becomes.requests.amount(resource), becomes.limits.amount(resource));
            prop_assert!(request > 0, "{container} {resource}");
            prop_assert!(limit == 0 || request <= limit, "{container} {resource}: {request} above {limit}");
        }
    }
}
