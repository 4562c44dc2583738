//! Judges a whole pod after every other rule: what the API server refuses, and what would restart a container.
//!
//! LimitRanges bound each container and the pod (`PodValidateLimitFunc`, kubernetes `plugin/pkg/admission/limitranger`). A change
//! that breaks one of their rules is skipped. A note names a rule that is broken already, or that the VPA's policy breaks:
//! upstream asks for such changes too, and the API server refuses them. Before 1.38 it checks all containers at each resize.

use super::candidate::{Candidate, amounts, differ};
use super::case::Case;
use super::index::Limits;
use super::note::Note;
use crate::model::objects::{Container, LimitRangeItem, Pod};
use crate::model::{KubeletVersion, PageSize, PodAmounts, QosClass, Reason, Requirements, Resource, ResourceList};

impl Case<'_> {
    /// Why the pod may not be given these amounts. None if it may. `outcome` has the candidates' outcomes, and the pod's own;
    /// `admitted` is the pod with these amounts as [`admitted()`] returns it.
    pub(super) fn forbids(&mut self, outcome: &PodAmounts, admitted: &Pod, limits: &Limits<'_>) -> Option<Reason> {
        let notes = &mut self.decision.notes;
        let (pod, refusals) = (self.pod, &self.options.refusals);
        let kubelet = refusals.kubelet;
        let by_kind = refusals.by_pod_level(pod).or_else(|| refusals.by_huge_pages(pod));
        let refused = by_kind
            .map(|why| (Reason::KubeletRefuses, Note::new(None, None, why)))
            .or_else(|| class_change(pod, admitted, kubelet))
            .or_else(|| self.candidates.iter().find_map(below_least))
            .or_else(|| low_default(pod, outcome, limits))
            .or_else(|| refused_default(pod, outcome, admitted, kubelet));
        if let Some((reason, note)) = refused {
            notes.push(note);
            return Some(reason);
        }
        if let Some(Breach { why, is_new }) = breach_of(pod, &self.candidates, admitted, limits, kubelet) {
            notes.push(Note::new(None, None, why));
            if is_new {
                return Some(Reason::LimitRangeExceeded);
            }
        }
        if let Some((resource, to, bound)) = admitted.exceeded_by(PodAmounts::NONE) {
            let [to, bound] = resource.quantities([to, bound]);
            let text = format!("containers would have {to} of {resource}, and the pod's own resources allow {bound}");
            notes.push(Note::new(None, Some(resource), text));
            return Some(Reason::PodLevelExceeded);
        }
        let known = notes.len();
        notes.extend(restarts(&self.candidates));
        (notes.len() > known).then_some(Reason::RestartRequired)
    }
}

/// A container that would have less than it can run with. What it runs with already is no new harm.
fn below_least(candidate: &Candidate<'_>) -> Option<(Reason, Note)> {
    let lacks = |has: Requirements| has.with_least_quota().below_least(PageSize::KIB_4);
    let is_new = candidate.changes() && lacks(candidate.standing).is_none();
    let why = lacks(candidate.outcome).filter(|_| is_new)?;
    Some((Reason::BelowLeast, Note::new(Some(&candidate.spec.name), None, why)))
}

/// A rule of a LimitRange that amounts break.
struct Breach {
    why: String,
    /// The change breaks the rule, and the VPA's policy does not demand it.
    is_new: bool,
}

/// The pod with these amounts as the API server admits it: at a resize each container without a limit or a request gets the default
/// of a LimitRange (`mergePodResourceRequirements`, kubernetes `plugin/pkg/admission/limitranger`), and then the pod's own amounts are
/// completed. No API server is asked where the kubelet does not resize, nor about a static pod.
pub(super) fn admitted(pod: &Pod, outcome: &PodAmounts, limits: &Limits<'_>, kubelet: KubeletVersion) -> Pod {
    let mut admitted = pod.with_requirements(outcome);
    if !pod.resizes_in_place() {
        return admitted;
    }
    if !limits.defaults.is_empty() {
        let spec = &mut admitted.spec;
        for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
            let has = container.resources.with_requests();
            container.resources = limits.defaults.iter().fold(has, |has, (_, default)| has.or(*default));
        }
    }
    if kubelet >= KubeletVersion::POD_LIMITS_FILLED_IN {
        admitted.spec.resources = admitted.spec.resources.map(|own| own_filled_in(&admitted, own));
    }
    admitted
}

/// The pod's own amounts, with those that the API server fills in.
fn own_filled_in(pod: &Pod, own: Requirements) -> Requirements {
    let requests = pod.total(PodAmounts::NONE, |has| has.requests.or(has.limits));
    let limits = pod.total(PodAmounts::NONE, |has| has.limits);
    let has_each = |resource: Resource| {
        let mut all = pod.all_containers();
        all.all(|container| container.resources.limits.get(resource).is_some())
    };
    let limits = ResourceList::from_fn(|resource| limits.get(resource).filter(|_| has_each(resource)));
    own.filled_in(requests, limits)
}

/// The first rule of a LimitRange that a resource of the `admitted` pod breaks, a new breach before an old one.
fn breach_of(
    pod: &Pod,
    candidates: &[Candidate<'_>],
    admitted: &Pod,
    limits: &Limits<'_>,
    kubelet: KubeletVersion,
) -> Option<Breach> {
    let standing = amounts(candidates, |one| one.standing);
    let breaches = limits.items.iter().flat_map(|(range, item)| {
        let parts: Vec<_> = match item.kind.as_str() {
            "Pod" => vec![None],
            _ => pod.all_containers().zip(admitted.all_containers()).map(Some).collect(),
        };
        let breach = |part: Option<(&Container, &Container)>, resource: Resource| {
            let (before, after) = match part {
                Some((was, becomes)) => {
                    let before = standing.container(&was.name).unwrap_or(&was.resources);
                    (*before, becomes.resources)
                }
                None => (sums(pod, &standing), sums(admitted, PodAmounts::NONE)),
            };
            let stays = before.of(resource) == after.of(resource);
            let is_checked = !stays || kubelet < KubeletVersion::LIMIT_RANGES_LEAVE_OLD;
            let what = broken(item, resource, &after).filter(|_| is_checked)?;
            let others = limits.items.iter();
            let others = others.filter(|(_, other)| contradict(item, other, resource, candidates.len() as u64));
            let contradicted: String = others
                .map(|(other, _)| format!("; LimitRange {other} contradicts it"))
                .collect();
            let mut changed = candidates
                .iter()
                .filter(|one| part.is_none_or(|(was, _)| was.name == one.spec.name));
            let by_policy = changed.any(|one| one.is_pinned(resource));
            let of = part.map_or("the pod".to_owned(), |(was, _)| format!("container {}", was.name));
            Some(Breach {
                why: format!(
                    "{of}: {resource} {what} of LimitRange {range} for a {}{contradicted}",
                    item.kind
                ),
                is_new: !contradicted.is_empty() || broken(item, resource, &before).is_none() && !by_policy,
            })
        };
        let breaches = |part| Resource::ALL.map(|resource| breach(part, resource));
        parts.into_iter().flat_map(breaches).flatten().collect::<Vec<_>>()
    });
    breaches.min_by_key(|breach| !breach.is_new)
}

/// The default limit of a LimitRange that is below the request of a container without a limit: the API server fills it in at each
/// resize of the pod (`mergePodResourceRequirements`, kubernetes `plugin/pkg/admission/limitranger`), and then refuses it.
fn low_default(pod: &Pod, outcome: &PodAmounts, limits: &Limits<'_>) -> Option<(Reason, Note)> {
    let mut filled_in = limits.defaults.iter().filter(|_| pod.resizes_in_place());
    filled_in.find_map(|(range, defaults)| {
        pod.all_containers().find_map(|container| {
            let after = outcome.container(&container.name).unwrap_or(&container.resources);
            Resource::ALL.into_iter().find_map(|resource| {
                let default = defaults.limits.get(resource);
                let default = default.filter(|_| after.limits.amount(resource) == 0)?;
                let request = after.requests.get(resource).filter(|request| *request > default)?;
                let [default, request] = resource.quantities([default, request]);
                let name = &container.name;
                let why = format!(
                    "container {name}: {resource} request {request} is above the default limit {default} of LimitRange {range}, which \
                     the API server fills in"
                );
                Some((Reason::LimitRangeExceeded, Note::new(None, None, why)))
            })
        })
    })
}

/// A default of a LimitRange that no resize may fill in: it would restart its container, or it is for an init container that is no
/// sidecar. Kubelets resize those from 1.36 on, and none with a `resizePolicy` that restarts (`ValidatePodResize`, kubernetes
/// `pkg/apis/core/validation`).
fn refused_default(pod: &Pod, outcome: &PodAmounts, admitted: &Pod, kubelet: KubeletVersion) -> Option<(Reason, Note)> {
    let mut pairs = pod.all_containers().zip(admitted.all_containers());
    pairs.find_map(|(was, becomes)| {
        let has = outcome.container(&was.name).unwrap_or(&was.resources);
        let [has, becomes] = [has, &becomes.resources].map(|one| one.with_requests());
        let is_filled_in = |resource: &Resource| differ(&has, &becomes, *resource);
        let mut filled_in = Resource::ALL.into_iter().filter(is_filled_in);
        let restarts = |resource: &Resource| was.restarts_for(*resource);
        let (reason, resource, then) = if pod.container(&was.name).is_some() {
            let then = "the kubelet would restart the container for that";
            (Reason::RestartRequired, filled_in.find(restarts)?, then)
        } else {
            let is_resized = kubelet >= KubeletVersion::RESIZES_INIT_CONTAINERS && !Resource::ALL.iter().any(restarts);
            let resource = filled_in.next().filter(|_| !is_resized)?;
            (
                Reason::LimitRangeExceeded,
                resource,
                "refuses that for an init container",
            )
        };
        let text = format!("at each resize the API server fills in its {resource} from a LimitRange, and {then}");
        Some((reason, Note::new(Some(&was.name), Some(resource), text)))
    })
}

/// The amounts of a whole pod (`podRequests` and `podLimits` there).
fn sums(pod: &Pod, amounts: &PodAmounts) -> Requirements {
    let own = pod.pod_level_in(amounts).unwrap_or_default();
    Requirements {
        requests: own.requests.or(pod.total(amounts, |has| has.requests.or(has.limits))),
        limits: own.limits.or(pod.total(amounts, |has| has.limits)),
    }
}

/// What a LimitRange's list of bounds refuses about the amounts of a resource: the rule with the numbers.
fn broken(item: &LimitRangeItem, resource: Resource, has: &Requirements) -> Option<String> {
    let [request, limit] = has.of(resource);
    let (request, limit) = (request.or(limit), limit.filter(|limit| *limit > 0));
    let amounts = [("request", request), ("limit", limit)];
    // A bound also needs an amount of its own kind.
    let bound = |bound: Option<u64>, is_beyond: fn(&u64, &u64) -> bool, side: &str, rule: &str, needs: usize| {
        let bound = bound?;
        let mut set = amounts.iter().filter_map(|(name, amount)| Some((name, (*amount)?)));
        let beyond = set.find(|(_, amount)| is_beyond(amount, &bound));
        let (needed, own) = amounts[needs];
        if let Some((name, amount)) = beyond {
            let [amount, bound] = resource.quantities([amount, bound]);
            return Some(format!("{name} {amount} is {side} the {rule} {bound}"));
        }
        let bound = resource.quantity(bound);
        own.is_none()
            .then(|| format!("has no {needed}, as the {rule} {bound} needs"))
    };
    let min = bound(item.min.get(resource), u64::lt, "below", "minimum", 0);
    let max = bound(item.max.get(resource), u64::gt, "above", "maximum", 1);
    let ratio = item.max_ratio.get(resource);
    let ratio = ratio.and_then(|ratio| match (request.unwrap_or(0), limit) {
        (0, _) | (_, None) => Some("lacks a request or a limit, as the maxLimitRequestRatio needs".to_owned()),
        (request, Some(limit)) => {
            let is_above = u128::from(limit) * 1000 > u128::from(request) * u128::from(ratio);
            is_above.then(|| {
                let (whole, part) = (ratio / 1000, ratio % 1000);
                let [limit, request] = resource.quantities([limit, request]);
                format!(
                    "limit {limit} is more than {whole}.{part:03} times the request {request}, the maxLimitRequestRatio"
                )
            })
        }
    });
    min.or(max).or(ratio)
}

/// Whether no amounts of a pod with so many running containers are within both lists of bounds.
fn contradict(one: &LimitRangeItem, other: &LimitRangeItem, resource: Resource, running: u64) -> bool {
    let of_pod = |item: &LimitRangeItem, bound: Option<u64>| match &*item.kind {
        "Container" if one.kind != other.kind => Some(bound?.saturating_mul(running)),
        "Container" | "Pod" => bound,
        _ => None,
    };
    let above = |low: &LimitRangeItem, high: &LimitRangeItem| {
        let bounds = of_pod(low, low.min.get(resource)).zip(of_pod(high, high.max.get(resource)));
        bounds.is_some_and(|(min, max)| min > max)
    };
    above(one, other) || above(other, one)
}

/// Whether the pod would get another class as it is `admitted`. A resize must not change the class (KEP-1287).
fn class_change(pod: &Pod, admitted: &Pod, kubelet: KubeletVersion) -> Option<(Reason, Note)> {
    // The class follows from the pod's own resources where it has any. Before 1.37 empty ones made it BestEffort for good.
    let own = pod.spec.resources.unwrap_or_default() != Requirements::default();
    let is_fixed = if own {
        pod.resizable_pod_level().is_none()
    } else {
        pod.spec.resources.is_some() && kubelet < KubeletVersion::EMPTY_POD_LEVEL_IS_NONE
    };
    if is_fixed {
        return None;
    }
    let from = pod.qos_class();
    let mut to = admitted.computed_qos();
    // A lone limit implies an equal request only until the API server fills in the request. It has done so for every
    // object that has a class.
    let mut after = admitted.all_containers().map(|container| &container.resources);
    if !own && to == QosClass::Guaranteed && pod.status.qos_class.is_some() && after.any(has_lone_limit) {
        to = QosClass::Burstable;
    }
    (from != to).then(|| {
        let text = format!("the pod is {from} and would become {to}, which the API refuses");
        (Reason::QoSClassChange, Note::new(None, None, text))
    })
}

fn has_lone_limit(has: &Requirements) -> bool {
    let mut resources = Resource::ALL.into_iter();
    resources.any(|resource| has.limits.amount(resource) > 0 && has.requests.amount(resource) == 0)
}

/// The resources whose change would restart their container.
fn restarts(candidates: &[Candidate<'_>]) -> impl Iterator<Item = Note> {
    candidates.iter().flat_map(|candidate| {
        let restarts = move |resource: &Resource| {
            candidate.moves(*resource)
                && differ(&candidate.in_force, &candidate.outcome, *resource)
                && candidate.spec.restarts_for(*resource)
        };
        let restarting = Resource::ALL.into_iter().filter(restarts);
        restarting.map(|resource| {
            let why = format!("its resizePolicy restarts the container when {resource} changes");
            candidate.note(resource, format!("{resource} is left as it is: {why}"))
        })
    })
}
