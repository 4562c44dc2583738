//! When a recommendation is acted on (`GetUpdatePriority` and `AddPod`, autoscaler `pkg/updater/priority`).
//!
//! At once when a request lies outside its range, or when a container was killed for memory soon after its start and
//! the change would help; else only for old pods and differences that are large enough.

use jiff::{SignedDuration, Timestamp};

use super::Options;
use super::candidate::Candidate;
use super::note::Note;
use crate::model::objects::{ContainerPolicy, ContainerStatus, Pod, VerticalPodAutoscaler, annotation};
use crate::model::{Reason, Resource};

/// Upstream's webhook lists the containers it saw when the pod was created; those injected later do not count.
const OBSERVED: &str = annotation::OBSERVED;

/// Why to act now, or why not.
pub(super) fn when(
    pod: &Pod,
    vpa: &VerticalPodAutoscaler,
    candidates: &[Candidate<'_>],
    now: Timestamp,
    options: &Options,
    notes: &mut Vec<Note>,
) -> Reason {
    let observed = Observed::of(pod);
    let drift = Drift::of(candidates, &observed);
    let quick_oom = pod
        .statuses()
        .filter(|status| pod.container(&status.name).is_some())
        .any(|status| observed.counts(&status.name) && was_quick_oom(status, vpa, options));
    if quick_oom {
        return if drift.any { Reason::QuickOOM } else { Reason::InRange };
    }
    if drift.missing {
        return Reason::RequestMissing;
    }
    if drift.outside {
        return Reason::OutOfBounds;
    }
    if asked_too_much(pod, candidates, &observed) {
        return Reason::AskedTooMuch;
    }
    if drift.relative < options.update_threshold {
        return Reason::InRange;
    }
    let Some(start) = pod.status.start_time else {
        return Reason::AgeUnknown;
    };
    if now.duration_since(start) >= options.lifetime {
        return Reason::LongLived;
    }
    notes.extend(start.checked_add(options.lifetime).map(|at| Note::ActsFrom { at }));
    Reason::TooYoung
}

/// Whether the kubelet has put off or refused what the spec asks for, and less is recommended. What nobody has
/// is no reason to wait.
fn asked_too_much(pod: &Pod, candidates: &[Candidate<'_>], observed: &Observed<'_>) -> bool {
    let less = |one: &Candidate<'_>| {
        Resource::ALL.into_iter().any(|resource| {
            let asked = one.standing.requests.get(resource);
            let target = one.target(resource);
            asked.zip(target).is_some_and(|(asked, target)| target < asked)
        })
    };
    let mut counted = candidates.iter().filter(|one| observed.counts(&one.spec.name));
    pod.resize_condition("PodResizePending").is_some() && counted.any(less)
}

/// Whether the container's last end was a kill for memory soon after its start.
fn was_quick_oom(status: &ContainerStatus, vpa: &VerticalPodAutoscaler, options: &Options) -> bool {
    let Some(end) = &status.last_state.terminated else {
        return false;
    };
    let (Some(started), Some(finished)) = (end.started_at, end.finished_at) else {
        return false;
    };
    let ran: SignedDuration = finished.duration_since(started);
    let own = vpa
        .spec
        .update_policy
        .as_ref()
        .and_then(|policy| policy.evict_after_oom_seconds);
    let window = own.filter(|seconds| *seconds >= 1).map(SignedDuration::from_secs);
    end.reason == "OOMKilled"
        && ran < window.unwrap_or(options.oom_window)
        && !vpa.policy_for(&status.name).is_some_and(ContainerPolicy::is_off)
}

/// Which containers count for whether to act.
enum Observed<'a> {
    All,
    Listed(Vec<&'a str>),
}

impl<'a> Observed<'a> {
    /// A list that holds anything but container names is ignored
    /// (`ParseVpaObservedContainersValue`, autoscaler `pkg/utils/annotations`).
    fn of(pod: &'a Pod) -> Self {
        match pod.metadata.annotations.get(OBSERVED).map(String::as_str) {
            None => Self::All,
            Some("") => Self::Listed(Vec::new()),
            Some(list) if list.split(", ").all(is_label) => Self::Listed(list.split(", ").collect()),
            Some(_) => Self::All,
        }
    }

    fn counts(&self, container: &str) -> bool {
        match self {
            Self::All => true,
            Self::Listed(names) => names.contains(&container),
        }
    }
}

/// A DNS-1123 label, which container names are.
fn is_label(text: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(inner)
        && bytes.last().is_some_and(inner)
        && bytes.iter().all(|byte| inner(byte) || *byte == b'-')
}

/// How far requests are from their targets.
#[derive(Debug, Clone, Copy, Default)]
struct Drift {
    /// A resource with a target has no request.
    missing: bool,
    /// A request lies outside its range.
    outside: bool,
    /// Some sum of requests differs from its sum of targets.
    any: bool,
    /// Differences relative to the requests, each taken over the whole pod, added up over resources.
    relative: f64,
}

impl Drift {
    fn of(candidates: &[Candidate<'_>], observed: &Observed<'_>) -> Self {
        let mut drift = Self::default();
        for resource in Resource::ALL {
            let (mut requests, mut targets, mut targeted) = (0_u128, 0_u128, false);
            let counted = candidates
                .iter()
                .filter(|candidate| observed.counts(&candidate.spec.name) && !candidate.ends_boost(resource));
            for (candidate, recommended) in counted.filter_map(|one| Some((one, one.recommended.as_ref()?))) {
                let Some(target) = recommended.target.get(resource) else {
                    continue;
                };
                targeted = true;
                targets += u128::from(target);
                let Some(request) = candidate.in_force.requests.get(resource) else {
                    drift.missing = true;
                    continue;
                };
                requests += u128::from(request);
                drift.outside |= recommended.lower.get(resource).is_some_and(|lower| request < lower)
                    || recommended.upper.get(resource).is_some_and(|upper| request > upper);
            }
            if targeted {
                drift.add(resource, requests, targets);
            }
        }
        drift
    }

    fn add(&mut self, resource: Resource, requests: u128, targets: u128) {
        // Upstream counts memory in thousandths too, and no request as one of them.
        let unit = match resource {
            Resource::Cpu => 1,
            Resource::Memory => 1000,
        };
        let (requests, targets) = ((requests * unit).max(1), targets * unit);
        self.any |= requests != targets;
        #[expect(clippy::cast_precision_loss, reason = "upstream compares the same ratio in f64")]
        let relative = requests.abs_diff(targets) as f64 / requests as f64;
        self.relative += relative;
    }
}
