//! A patch of a pod's spec: its steps, what the API server makes of it, and what the pass does then. Pure.

use std::time::Duration;

use super::act::LATER;
use super::request::undone;
use super::{Act, Grant, Request, taken_back};
use crate::model::objects::{Container, Pod, ResizePhase};
use crate::model::{Change, Outcome, PodAmounts, Requirements, Resource, Step, Target, Withheld};

/// The pause after a call that the API server did not answer.
const SOON: Duration = Duration::from_secs(1);

/// A change of the pod's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub changes: Vec<Step>,
    /// The spec for which the changes were computed. The pass sends the patch only if the API server still has this spec.
    pub from: PodAmounts,
    /// Whether an earlier request has no answer. Only the API server's spec shows whether that was carried out, so the pass reads
    /// the spec before it sends the patch.
    pub reads_first: bool,
    /// The request as the API server accepts it, with the generation of the spec before. The spec gets back what the kubelet held, as
    /// far as it changes, if the cgroups cannot hold the targets.
    pub request: Request,
    /// Whether the cgroups got values before the spec could have them, or the patch only reads the spec.
    pub ahead: bool,
    /// The amounts that the cgroups get if the API server turns out to be away, instead of those that the kubelet held.
    pub(super) by_hand: Option<PodAmounts>,
    /// An error if the node is not known to have room.
    pub(super) room: Result<(), String>,
}

/// The API server did not make the requested change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The pass has ended before it sent the request.
    #[error("the request was not sent")]
    NotSent,
    /// The API server has accepted the request. The one that takes it back, to these amounts, has no answer.
    #[error("the request may have been taken back")]
    NotTakenBack(PodAmounts),
    /// The API server cannot resize in place, `everywhere` or because of the pod's kubelet.
    #[error("no resizing in place here: {why}")]
    Unsupported { why: String, everywhere: bool },
    /// The pod no longer exists.
    #[error("{0}")]
    Gone(String),
    /// Admission made another change. The text names both.
    #[error("admission changed the request: {0}")]
    Altered(String),
    /// A quota, a LimitRange, admission or validation denies the request, and will until a rule changes.
    #[error("{0}")]
    Denied(String),
    /// The API server does not answer.
    #[error("{0}")]
    Away(String),
    /// The pod has changed since the agent read it, and must be read again.
    #[error(
        "another client changes the pod at the same time; the amounts are requested once the agent knows the change"
    )]
    Stale,
    /// The API server refuses for now.
    #[error("{reason}")]
    Refused {
        reason: String,
        /// How long the API server asks to wait (`Retry-After`).
        retry_after: Option<Duration>,
    },
}

impl ResizeError {
    /// Whether the API server may have carried out the request although no answer says so.
    pub(super) const fn may_be_carried_out(&self) -> bool {
        matches!(self, Self::Altered(_) | Self::Away(_) | Self::Refused { .. })
    }
}

/// How the API server answered a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What became of the request that the pass prepared: the one that the API server has accepted, or the one that took it back. `None`
    /// if the pass prepared none.
    pub answer: Option<Result<Request, ResizeError>>,
    /// The API server did not show the spec before the pass wrote amounts of the pod's object, which may be older.
    pub unread: bool,
    /// The API server has an older generation of the pod than the one that it accepted a request with: its etcd was restored from a
    /// backup.
    pub forgotten: bool,
    /// The API server cannot resize any pod in place.
    pub unsupported: bool,
    /// The pass sent no request: the node has no room for the targets.
    pub no_room: bool,
    /// How long to wait before the next request.
    pub retry_after: Option<Duration>,
}

impl Report {
    /// The request that the API server has accepted last.
    pub fn accepted(&self) -> Option<&Request> {
        self.answer.as_ref()?.as_ref().ok()
    }

    /// Why a rule denies the request. The pass writes the values that were granted before.
    pub fn denied(&self) -> Option<&str> {
        match &self.answer {
            Some(Err(ResizeError::Denied(why))) => Some(why),
            _ => None,
        }
    }
}

impl Patch {
    /// What the pass does after the API server's answer: `pod` has the patch, or the call failed while the API server is `away`.
    /// Completes the `report` about that.
    pub fn answered(&self, answer: Result<&Pod, &ResizeError>, away: Option<String>, report: &mut Report) -> Act {
        let error = match answer {
            Ok(pod) => {
                report.answer = Some(Ok(Request {
                    generation: pod.metadata.generation,
                    ..self.request.clone()
                }));
                let Request { targets, held, .. } = &self.request;
                return Act::Write(Grant {
                    // The amounts are new: a file that differs from them is no drift.
                    settled: false,
                    ..Grant::new(&ResizePhase::of(pod), targets, held, self.room.clone())
                });
            }
            Err(error) => error,
        };
        let reason = error.to_string();
        match error {
            ResizeError::Stale if self.ahead => self.later(&reason, SOON),
            ResizeError::Refused { retry_after, .. } if self.ahead => self.later(&reason, retry_after.unwrap_or(SOON)),
            ResizeError::Away(_) => {
                let why = away.unwrap_or_else(|| "the API server did not answer".to_owned());
                self.later(&why, SOON)
            }
            // A denial of the present amounts says nothing about requests that have no answer.
            ResizeError::Denied(_) if self.changes.is_empty() => self.later(&reason, LATER),
            // The pass also takes back values that were written before the API server was asked.
            ResizeError::Denied(_) => Act::Write(Grant {
                targets: self.request.held.clone(),
                ..Grant::default()
            }),
            ResizeError::Unsupported { everywhere, .. } => {
                report.unsupported = *everywhere;
                Act::Direct
            }
            ResizeError::Stale => Act::end(Outcome::Withheld(Withheld::Unanswered(reason)), Some(SOON)),
            ResizeError::Refused { retry_after, .. } => Act::end(Outcome::Refused(reason), *retry_after),
            ResizeError::Altered(_) => {
                // Admission has changed the spec after this request.
                report.answer = Some(Ok(self.request.clone()));
                Act::end(Outcome::Refused(reason), None)
            }
            ResizeError::Gone(_) | ResizeError::NotSent | ResizeError::NotTakenBack(_) => {
                Act::end(Outcome::Interrupted(reason), None)
            }
        }
    }

    /// The pass writes what the cgroups may hold if the API server could not be asked, for the reason `why`.
    fn later(&self, why: &str, wait: Duration) -> Act {
        let by_hand = self.by_hand.as_ref();
        Act::Write(Grant::spec_later(&self.request.held, by_hand, false, why, wait))
    }

    /// The request that takes the patch back: the patched amounts become those of `held`.
    pub fn taken_back(&self, held: PodAmounts) -> Request {
        Request {
            targets: undone(&self.from, &self.request.targets, &held),
            held,
            ..self.request.clone()
        }
    }

    /// The changes of the request `back` where `pod` still has the patch.
    ///
    /// # Errors
    /// A sentence, if the API server would refuse them.
    pub fn undo(&self, pod: &Pod, back: &Request) -> Result<Vec<Step>, String> {
        let without = taken_back(&pod.requirements(), &self.request.targets, &back.targets);
        changes(pod, &without)
    }
}

/// The steps of a patch after which the pod's spec has the wanted amounts: one for each container that differs.
///
/// # Errors
/// A sentence, if the API server would refuse the patch because it removes an amount, or the kubelet would restart a container.
pub fn changes(pod: &Pod, wanted: &PodAmounts) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for (of, resources) in wanted.iter() {
        // The API server would fill in the requests.
        let to = resources.with_requests();
        let from = match of {
            Some(name) => {
                let Some(container) = pod.container(name) else { continue };
                check(container, &to)?;
                container.resources
            }
            None => {
                check_pod(pod, wanted, &to)?;
                pod.spec.resources.unwrap_or_default()
            }
        };
        if from != to {
            steps.push(Step {
                target: of.into(),
                change: Change::Resize { from, to },
            });
        }
    }
    Ok(steps)
}

/// Describes how the accepted spec differs from the patch, if it does: plugins and webhooks may change what they admit. What the patch
/// leaves unset they may fill in.
pub fn altered(accepted: &Pod, asked: &[Step]) -> Option<String> {
    let altered = asked.iter().filter_map(|step| {
        let Change::Resize { to, .. } = &step.change else {
            return None;
        };
        let has = match &step.target {
            Target::Container(name) => accepted.container(name)?.resources,
            Target::Pod => accepted.spec.resources?,
        };
        let has = Requirements::choose([&has, to], |[has, to]| to.and(has));
        let change = Change::Resize { from: *to, to: has };
        (has != *to).then(|| format!("{}: {change}", step.target))
    });
    let altered: Vec<String> = altered.collect();
    (!altered.is_empty()).then(|| altered.join("; "))
}

/// No amount of a running pod, or of its containers, can be removed (`resourcesRemoved`, kubernetes `pkg/apis/core/validation`).
fn check_kept(of: &str, from: &Requirements, to: &Requirements) -> Result<(), String> {
    let mut fields = from.fields().into_iter().zip(to.fields());
    let removed = fields.find_map(|((field, old), (_, new))| Some((field, old.filter(|_| new.is_none())?)));
    removed.map_or(Ok(()), |(field, old)| {
        Err(format!(
            "{of}: its {field} of {old} cannot be removed from a running pod, only changed: the API server refuses that"
        ))
    })
}

/// Whether a patch can give a container of a running pod these amounts.
fn check(container: &Container, to: &Requirements) -> Result<(), String> {
    let Container { name, resources, .. } = container;
    check_kept(&format!("container {name}"), resources, to)?;
    let fields = resources.fields().into_iter().zip(to.fields());
    for ((field, old), (_, new)) in fields.filter(|((_, old), (_, new))| old != new) {
        let [old, new] = [old, new].map(|amount| amount.unwrap_or_else(|| "unset".to_owned()));
        let of_field = |resource: &&Resource| field.ends_with(resource.name());
        let resource = Resource::ALL.iter().find(of_field).copied();
        if let Some(resource) = resource.filter(|resource| container.restarts_for(*resource)) {
            let changes =
                |other: &&Resource| resources.of(**other) != to.of(**other) && !container.restarts_for(**other);
            let alone = Resource::ALL.iter().find(changes).map_or_else(String::new, |other| {
                format!("; its {other} is not changed either: request {other} alone to change it now")
            });
            return Err(format!(
                "container {name}: its {field} stays {old} instead of {new}: its resizePolicy for {resource} is RestartContainer, \
                 so the kubelet would restart it, and vscaled never restarts; set NotRequired in the workload's pod template, or \
                 change the amount there and let new pods have it{alone}"
            ));
        }
    }
    Ok(())
}

/// Whether a patch can give a running pod these amounts of its own.
fn check_pod(pod: &Pod, wanted: &PodAmounts, to: &Requirements) -> Result<(), String> {
    let from = pod.spec.resources.unwrap_or_default();
    check_kept("pod", &from, to)?;
    for resource in Resource::ALL {
        let (old, new) = (from.limits.text(resource), to.limits.text(resource));
        let restarting = pod.restarts_with_pod_limit(resource, wanted);
        if let Some(Container { name, .. }) = restarting.filter(|_| old != new) {
            let [old, new] = [old, new].map(|limit| limit.unwrap_or_else(|| "unset".to_owned()));
            return Err(format!(
                "pod: its limits.{resource} stays {old} instead of {new}: container {name} has no {resource} limit of its own, and its \
                 resizePolicy for {resource} is RestartContainer, so the kubelet would restart it, and vscaled never restarts; give \
                 it a limit or set NotRequired in the workload's pod template"
            ));
        }
    }
    Ok(())
}
