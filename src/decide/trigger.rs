//! When a recommendation is acted on (`GetUpdatePriority` and `AddPod`, autoscaler `pkg/updater/priority`).
//!
//! At once when a request lies outside its range, or when a container was killed for memory soon after its start and
//! the change would help. Otherwise only for old pods and for differences that are large enough.

use jiff::{SignedDuration, Timestamp};

use super::candidate::{Candidate, Part};
use super::case::Case;
use super::note::Note;
use super::{Options, TROUBLE_WINDOW};
use crate::model::objects::{ContainerPolicy, ContainerStatus, Pod, VerticalPodAutoscaler, annotation, is_label};
use crate::model::{Reason, Resource};

impl Case<'_> {
    /// Why to act now, or why not.
    pub(super) fn trigger(&mut self, vpa: &VerticalPodAutoscaler) -> Reason {
        let (pod, options) = (self.pod, self.options);
        let observed = observed(pod);
        let is_regular = |name: &str| pod.spec.containers.iter().any(|container| container.name == name);
        let counts = |name: &str| {
            let observed = observed.as_ref();
            observed.is_none_or(|names| names.contains(&name) || !is_regular(name))
        };
        let counted = self.candidates.iter().filter(|one| counts(&one.spec.name));
        let drift = Drift::of(&counted);
        let quick_oom = counted.clone().any(|one| {
            // No change helps a sidecar without a recommendation, and upstream's recommender has none for sidecars.
            let is_followed = is_regular(&one.spec.name) || one.has_target();
            let status = pod.container_status(&one.spec.name);
            is_followed && status.is_some_and(|status| was_quick_oom(status, vpa, options, self.now))
        });
        match pod.status.start_time {
            _ if quick_oom && drift.any => Reason::QuickOOM,
            _ if quick_oom => Reason::InRange,
            _ if drift.missing => Reason::RequestMissing,
            _ if drift.outside => Reason::OutOfBounds,
            _ if asks_for_too_much(pod, counted.clone()) => Reason::AskedTooMuch,
            _ if drift.relative < options.update_threshold => Reason::InRange,
            None => Reason::AgeUnknown,
            Some(start) if self.now.duration_since(start) >= options.lifetime => Reason::LongLived,
            Some(start) => {
                let from = start.checked_add(options.lifetime).ok();
                let note = |at: Timestamp| Note::new(None, None, format!("old enough to be changed from {at}"));
                self.decision.notes.extend(from.map(note));
                Reason::TooYoung
            }
        }
    }

    /// Whether the pod was in trouble within the [`TROUBLE_WINDOW`]: the kernel killed one of its processes for memory, the guard
    /// grew one of its limits or could not, its cpu was throttled, or a lower memory limit did not hold.
    pub(super) fn in_trouble(&mut self) -> bool {
        let killed = self.pod.terminations().filter(|end| end.reason == "OOMKilled");
        let killed = killed.filter_map(|end| end.finished_at);
        let latest = killed.chain(self.known.own_trouble).filter(|at| *at <= self.now).max();
        let counts = latest.is_some_and(|at| self.now.duration_since(at) < TROUBLE_WINDOW);
        if !counts {
            let text = format!(
                "the VPA's changes wait for trouble: an OOM kill, throttling, a limit that the guard raised, or a lower memory limit that \
                 did not hold, within {TROUBLE_WINDOW:#}"
            );
            self.decision.notes.push(Note::new(None, None, text));
        }
        counts
    }
}

/// Whether the kubelet has deferred or refused the amounts of the spec, and less is recommended. The pod does not have
/// the amounts of its spec, so no age or threshold protects it.
fn asks_for_too_much<'a>(pod: &Pod, mut candidates: impl Iterator<Item = &'a Candidate<'a>>) -> bool {
    let less = |one: &Candidate<'_>| {
        Resource::ALL.into_iter().any(|resource| {
            let asked = one.spec.resources.requests.get(resource);
            let target = one.target(resource);
            asked.zip(target).is_some_and(|(asked, target)| target < asked)
        })
    };
    pod.resize_condition("PodResizePending").is_some() && candidates.any(less)
}

/// Whether the kernel has ended the container's last run for memory soon after its start, and not long ago.
fn was_quick_oom(status: &ContainerStatus, vpa: &VerticalPodAutoscaler, options: &Options, now: Timestamp) -> bool {
    let Some(end) = &status.last_state.terminated else {
        return false;
    };
    let (Some(started), Some(finished)) = (end.started_at, end.finished_at) else {
        return false;
    };
    let policy = vpa.spec.update_policy.as_ref();
    let own = policy.and_then(|policy| policy.evict_after_oom_seconds);
    let own = own.filter(|seconds| *seconds >= 1).map(SignedDuration::from_secs);
    let window = own.unwrap_or(options.oom_window);
    end.reason == "OOMKilled"
        && finished.duration_since(started) < window
        && now.duration_since(finished) < window
        && !vpa.policy_for(&status.name).is_some_and(ContainerPolicy::is_off)
}

/// The regular containers that upstream's webhook saw when the pod was created: regular ones that were injected later do not
/// count. `None` if all containers count: without the list, and if an entry is no container name
/// (`ParseVpaObservedContainersValue`, autoscaler `pkg/utils/annotations`).
fn observed(pod: &Pod) -> Option<Vec<&str>> {
    let list = pod.metadata.annotations.get(annotation::OBSERVED)?;
    let names: Vec<&str> = list.split(", ").filter(|_| !list.is_empty()).collect();
    names.iter().all(|name| is_label(name)).then_some(names)
}

/// How far requests are from their targets.
#[derive(Debug, Clone, Copy, Default)]
struct Drift {
    /// A resource with a target has no request.
    missing: bool,
    /// A request lies outside its range.
    outside: bool,
    /// The requests of a resource differ from its targets, both summed over the pod.
    any: bool,
    /// The differences of these sums relative to the requests, added up over resources.
    relative: f64,
}

impl Drift {
    fn of<'a>(candidates: &(impl Iterator<Item = &'a Candidate<'a>> + Clone)) -> Self {
        let mut drift = Self::default();
        for resource in Resource::ALL {
            let (mut requests, mut targets, mut has_target) = (0_u128, 0_u128, false);
            for candidate in candidates.clone().filter(|candidate| !candidate.ends_boost(resource)) {
                let bound = |part| candidate.recommended(part, resource);
                let Some(target) = candidate.target(resource) else {
                    continue;
                };
                has_target = true;
                targets += u128::from(target);
                let Some(request) = candidate.in_force.requests.get(resource) else {
                    drift.missing = true;
                    continue;
                };
                requests += u128::from(request);
                drift.outside |= bound(Part::Lower).is_some_and(|lower| request < lower)
                    || bound(Part::Upper).is_some_and(|upper| request > upper);
            }
            if !has_target {
                continue;
            }
            // Upstream counts memory in thousandths too, and a missing request as one of them.
            let unit = if resource == Resource::Memory { 1000 } else { 1 };
            let (requests, targets) = ((requests * unit).max(1), targets * unit);
            drift.any |= requests != targets;
            drift.relative += relative_difference(requests, targets);
        }
        drift
    }
}

/// The difference of two sums, relative to the first.
#[expect(clippy::cast_precision_loss, reason = "upstream compares the same ratio in f64")]
pub(super) fn relative_difference(before: u128, after: u128) -> f64 {
    before.abs_diff(after) as f64 / before.max(1) as f64
}
