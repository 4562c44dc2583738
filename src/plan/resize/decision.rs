//! What a pass does about a pod's resize at the API server, decided once, before the pass begins. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::room::Room;
use super::{Phase, Unaskable, changes, check_room, granted, grows, meanwhile, same};
use crate::model::objects::Pod;
use crate::model::{Cause, KubeletVersion, NamedRequirements, Resource, ResourceList, Step, Withheld};

/// A kubelet that could not lower a limit tries again every ten seconds or so, and looks at what is in use first.
const RECLAIM_EVERY: Duration = Duration::from_secs(2);

/// How long after an API server that is away is looked at again, where nobody says that it is back.
const LATER: Duration = Duration::from_secs(5);

/// The request that the API server accepted last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcceptedResize {
    /// What the spec was given.
    pub targets: Vec<NamedRequirements>,
    /// The spec's generation with it.
    pub generation: i64,
    /// What the kubelet had granted before.
    pub held: Vec<NamedRequirements>,
}

/// What is known about the resize of a pod whose kubelet resizes in place.
#[derive(Debug, Clone)]
pub struct ResizeFacts {
    pub accepted: Option<AcceptedResize>,
    /// The node's room, if it is known.
    pub room: Option<Room>,
    /// What of that others take may be freed for the pod: the kubelet is asked where there would be room without it.
    pub yields: ResourceList,
    pub kubelet: KubeletVersion,
    /// The kubelet has tried to write what is wanted, and failed, with these words.
    pub failed: Option<String>,
    /// This is an emergency: nothing is patched until this much later. Nobody has to wait for an answer, and the kubelet
    /// cannot write what it was asked for a moment ago over what was given since.
    pub too_early: Option<Duration>,
    /// The kubelet has not reported the pod's resources yet: nothing is patched before it has.
    pub unreported: Option<Unreported>,
    /// The API server is away, as this sentence says: it is not asked.
    pub away: Option<String>,
    /// Whether the cgroups are given what is wanted before the spec can have it.
    pub by_hand: bool,
    /// Whether the cgroups were given values before the spec could have them: somebody else may have changed it since.
    pub ahead: bool,
    /// Whether something was asked for without an answer: the spec may be another than the one that was read last.
    pub unanswered: bool,
}

/// The pod's status does not show yet that its kubelet resizes in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreported {
    /// What is waited for, as a sentence.
    pub why: String,
    /// How long at most; unbounded where the kubelet certainly resizes.
    pub wait: Option<Duration>,
}

/// What a pass does about a pod's resize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ResizeDecision {
    /// Nothing: it writes without the API server.
    #[default]
    Direct,
    /// Nothing is patched, and nothing written: the patch could not be made, or the node has no room.
    Refuse {
        why: String,
        no_room: bool,
    },
    /// Nothing is patched, and nothing written, before the kubelet reports the pod's resources.
    Wait {
        why: Withheld,
        retry_after: Option<Duration>,
    },
    /// The spec needs no patch, or none now.
    Write(Grant),
    Patch(ResizePatch),
}

/// What the cgroups may hold as far as the kubelet is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub targets: Vec<NamedRequirements>,
    /// Whether the kubelet is done: until then it writes the same files, not all of them at once.
    pub settled: bool,
    /// Why they are not what is wanted.
    pub withheld: Option<Withheld>,
    /// The kubelet waits for less to be in use than a memory limit that the cgroups have already.
    pub reclaim: bool,
    /// Whether they were or are given what the spec does not have: also a limit may have to go that it never had.
    pub ahead: bool,
    /// When the next pass looks again.
    pub retry_after: Option<Duration>,
}

/// A change of the pod's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizePatch {
    pub changes: Vec<Step>,
    /// What the spec is given.
    pub targets: Vec<NamedRequirements>,
    /// What the kubelet has granted so far: what the spec gets back if the cgroups cannot hold the targets.
    pub held: Vec<NamedRequirements>,
    /// Whether the spec has to be as it was read when this is done.
    pub ahead: bool,
    /// Whether the cgroups have the targets also while the API server is away.
    pub by_hand: bool,
    /// Whether the node is known to have room.
    room: Result<(), String>,
}

impl ResizeFacts {
    /// What a pass does so that the containers of `pod` have `targets`.
    pub fn decide(&self, pod: &Pod, targets: &[NamedRequirements], cause: &Cause) -> ResizeDecision {
        let changes = match self.changes(pod, targets) {
            Ok(changes) => changes,
            Err(invalid) => {
                return ResizeDecision::Refuse {
                    why: invalid.to_string(),
                    no_room: false,
                };
            }
        };
        let room = self.check_room(pod, targets);
        let phase = self.phase(pod);
        let so_far = granted(pod, &phase, self.held());
        if changes.is_empty() && !self.unanswered {
            return ResizeDecision::Write(Grant {
                ahead: self.ahead,
                ..Grant::new(&phase, targets, &so_far, room)
            });
        }
        if let Some(why) = &self.away {
            let given = if self.by_hand { targets } else { &so_far };
            let settled = phase == Phase::Settled;
            return ResizeDecision::Write(Grant::spec_later(given, self.by_hand, settled, why, LATER));
        }
        if let Some(Unreported { why, wait }) = &self.unreported {
            return ResizeDecision::Wait {
                why: Withheld::Unanswered(why.clone()),
                retry_after: *wait,
            };
        }
        if let Some(wait) = self.too_early {
            let given = if self.ahead { targets.to_vec() } else { so_far };
            return ResizeDecision::Write(Grant::for_now(&phase, given, cause, wait));
        }
        let full = |room: Room| check_room(&room.without(self.yields), pod, targets, self.kubelet).is_err();
        match room {
            Err(why) if self.room.is_some_and(full) => ResizeDecision::Refuse { why, no_room: true },
            room => ResizeDecision::Patch(ResizePatch {
                // Without a change it is only read.
                ahead: self.ahead || changes.is_empty(),
                changes,
                targets: targets.to_vec(),
                held: granted(pod, &Phase::of(pod), self.held()),
                by_hand: self.by_hand,
                room,
            }),
        }
    }

    /// The accepted request that `pod` does not show yet, because it was read before.
    fn unseen(&self, pod: &Pod) -> Option<&AcceptedResize> {
        let accepted = self.accepted.as_ref();
        accepted.filter(|accepted| pod.metadata.generation < accepted.generation)
    }

    fn changes(&self, pod: &Pod, targets: &[NamedRequirements]) -> Result<Vec<Step>, Unaskable> {
        match self.unseen(pod) {
            Some(accepted) if same(&accepted.targets, targets) => Ok(Vec::new()),
            Some(accepted) => changes(&pod.with_requirements(&accepted.targets), targets),
            None => changes(pod, targets),
        }
    }

    /// Where what the spec has already got to.
    fn phase(&self, pod: &Pod) -> Phase {
        match (self.unseen(pod), Phase::of(pod), &self.failed) {
            (Some(_), _, _) => Phase::Accepted,
            // It tries again: until it has succeeded, this is no reason to write what it could not.
            (None, Phase::InProgress, Some(why)) => Phase::Failed(why.clone()),
            (None, phase, _) => phase,
        }
    }

    /// What the kubelet had granted at the last accepted request.
    fn held(&self) -> Option<&[NamedRequirements]> {
        self.accepted.as_ref().map(|accepted| accepted.held.as_slice())
    }

    /// Whether the node has room for a pod with these amounts.
    fn check_room(&self, pod: &Pod, targets: &[NamedRequirements]) -> Result<(), String> {
        match &self.room {
            Some(room) => check_room(room, pod, targets, self.kubelet).map_err(|full| full.to_string()),
            None if !grows(pod, targets, self.kubelet) => Ok(()),
            None => Err("the kubelet has not answered, and how much room the node has is not known".to_owned()),
        }
    }
}

impl Grant {
    fn new(
        phase: &Phase,
        wanted: &[NamedRequirements],
        granted: &[NamedRequirements],
        room: Result<(), String>,
    ) -> Self {
        let (targets, withheld, reclaim) = match phase.grants(room) {
            Ok(()) => (wanted.to_vec(), None, false),
            Err(withheld) => {
                let kept = meanwhile(&withheld, wanted, granted.to_vec());
                let reclaim = !same(&kept, granted);
                (kept, Some(withheld), reclaim)
            }
        };
        Self {
            targets,
            settled: *phase == Phase::Settled,
            withheld,
            reclaim,
            ahead: false,
            retry_after: reclaim.then_some(RECLAIM_EVERY),
        }
    }

    /// The kernel is given what was granted, with the limits that are kept or were grown. A pass that is for nothing else is
    /// done with that.
    fn for_now(phase: &Phase, granted: Vec<NamedRequirements>, cause: &Cause, wait: Duration) -> Self {
        let done = match cause {
            Cause::Regret { .. } => true,
            Cause::Guard { resource, .. } => *resource == Resource::Memory,
            _ => false,
        };
        let why = "a memory limit is being grown; the API server is asked once that is over";
        Self {
            targets: granted,
            settled: *phase == Phase::Settled,
            withheld: (!done).then(|| Withheld::Postponed(why.to_owned())),
            reclaim: false,
            ahead: false,
            retry_after: Some(wait),
        }
    }

    /// The API server cannot be asked: the spec follows later. What an operator set, or the guard gave, the kernel has at once.
    fn spec_later(given: &[NamedRequirements], by_hand: bool, settled: bool, why: &str, wait: Duration) -> Self {
        let then = if by_hand {
            "the kernel has the values now, the spec follows later"
        } else {
            "what is wanted is asked for when it is back"
        };
        Self {
            targets: given.to_vec(),
            settled: by_hand || settled,
            withheld: Some(Withheld::SpecLater(format!("{why}: {then}"))),
            reclaim: false,
            ahead: by_hand,
            retry_after: Some(wait),
        }
    }

    /// Whether the cgroups are given what the spec cannot have yet.
    pub const fn is_written_ahead(&self) -> bool {
        self.ahead && matches!(self.withheld, Some(Withheld::SpecLater(_)))
    }
}

impl ResizePatch {
    /// What the cgroups may hold once the API server has made `pod` of the patch.
    #[must_use]
    pub fn grant(&self, pod: &Pod) -> Grant {
        Grant::new(&Phase::of(pod), &self.targets, &self.held, self.room.clone())
    }

    /// What the cgroups may hold where the API server could not be asked, for this reason.
    #[must_use]
    pub fn later(&self, why: &str, wait: Duration) -> Grant {
        let given = if self.by_hand { &self.targets } else { &self.held };
        Grant::spec_later(given, self.by_hand, false, why, wait)
    }

    /// The request as the API server accepted it.
    pub fn accepted(&self, generation: i64) -> AcceptedResize {
        AcceptedResize {
            targets: self.targets.clone(),
            generation,
            held: self.held.clone(),
        }
    }
}
