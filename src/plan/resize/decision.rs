//! Decides how a pass uses a pod's resize at the API server, once before the pass begins. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::room::Room;
use super::{Phase, Unreported, amounts, changes, check_room, granted, grows, lowers_memory, same, taken_back, undone};
use crate::model::objects::Pod;
use crate::model::{Cause, KubeletVersion, NamedRequirements, Resource, ResourceList, Step, Withheld};

/// A kubelet that could not lower a limit tries again about every ten seconds, and checks what is in use first.
const RECLAIM_EVERY: Duration = Duration::from_secs(2);

/// The next pass tries the API server again after this time, unless the agent notices earlier that it is back.
const LATER: Duration = Duration::from_secs(5);

/// The last request that the API server accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcceptedResize {
    /// The amounts of the request.
    pub targets: Vec<NamedRequirements>,
    /// The spec's generation with these amounts.
    pub generation: i64,
    /// The kubelet's grant before the request.
    pub held: Vec<NamedRequirements>,
    /// The spec without the requests of this agent that the kubelet had not allocated. Files of version 0.1 do not have this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<NamedRequirements>,
}

impl AcceptedResize {
    /// Whether `pod` is older than the request, and does not show it yet.
    pub const fn is_unseen_in(&self, pod: &Pod) -> bool {
        pod.metadata.generation < self.generation
    }

    /// Whether the spec of `pod` has the amounts that the request changed.
    pub fn is_in(&self, pod: &Pod) -> bool {
        let (before, spec) = (known_before(&self.before, &self.held), pod.requirements());
        self.targets.iter().all(|NamedRequirements { name, resources }| {
            let of = |all| NamedRequirements::find(all, name).map_or_else(|| amounts(resources), amounts);
            let changes = amounts(resources).into_iter().zip(of(before)).zip(of(&spec));
            changes.into_iter().all(|((to, before), has)| to == before || to == has)
        })
    }

    /// The spec that the API server has, as far as this agent knows: the accepted one if `pod` is older.
    pub fn spec(&self, pod: &Pod) -> Vec<NamedRequirements> {
        if self.is_unseen_in(pod) {
            return pod.with_requirements(&self.targets).requirements();
        }
        pod.requirements()
    }

    /// These amounts of `pod` without the requests of this agent that the kubelet has not allocated.
    pub fn without_requests(&self, pod: &Pod, amounts: Vec<NamedRequirements>) -> Vec<NamedRequirements> {
        let is_open = self.is_unseen_in(pod) || Phase::of(pod).is_open();
        if is_open {
            taken_back(&amounts, &self.targets, known_before(&self.before, &self.held))
        } else {
            amounts
        }
    }
}

/// The spec `before` a request; where a file of version 0.1 has none, the kubelet's grant.
pub fn known_before<'a>(before: &'a [NamedRequirements], held: &'a [NamedRequirements]) -> &'a [NamedRequirements] {
    if before.is_empty() { held } else { before }
}

/// The facts about the resize of a pod whose kubelet resizes in place.
#[derive(Debug, Clone, Default)]
pub struct ResizeFacts {
    pub accepted: Option<AcceptedResize>,
    /// The node's room for this pod. None if the node's capacity is unknown.
    pub room: Option<Room>,
    /// The requests that the scheduler may free for the pod. The agent asks the kubelet if there
    /// would be room without them.
    pub yields: ResourceList,
    pub kubelet: KubeletVersion,
    /// The message of the kubelet, if it has tried to write the targets and failed.
    pub failed: Option<String>,
    /// In an emergency the agent patches only after this time: until then the kubelet would write an earlier request
    /// over limits that the agent has grown since.
    pub too_early: Option<Duration>,
    /// Set while the kubelet has not reported the pod's resources. The agent patches nothing before.
    pub unreported: Option<Unreported>,
    /// A sentence about the outage, if the API server is away. The agent sends it nothing then.
    pub away: Option<String>,
    /// Whether the cgroups get the targets before the spec can have them.
    pub by_hand: bool,
    /// Whether the cgroups got values before the spec could have them. Another client may have changed the spec since.
    pub ahead: bool,
    /// Whether a request has no answer yet. The spec may differ from the one that was read last.
    pub unanswered: bool,
}

/// How a pass uses a pod's resize.
#[derive(Debug, Clone, PartialEq, Eq, Default, derive_more::Display)]
pub enum ResizeDecision {
    /// The pass writes without the API server.
    #[default]
    #[display("writes without the API server")]
    Direct,
    /// The pass sends no patch and writes nothing: the patch is invalid, or the node has no room.
    #[display("refused: {why}")]
    Refuse { why: String, no_room: bool },
    /// The pass sends no patch and writes nothing until the kubelet reports the pod's resources. The agent
    /// checks again after this time.
    #[display("waits: {}", why.reason())]
    Wait {
        why: Withheld,
        retry_after: Option<Duration>,
    },
    /// The spec needs no patch now.
    #[display("writes what the kubelet grants{}", _0.withheld.as_ref().map(|why| format!(": {}", why.reason())).unwrap_or_default())]
    Write(Grant),
    #[display("patches the spec")]
    Patch(ResizePatch),
}

/// The amounts that the cgroups may hold at the present phase of the resize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    pub targets: Vec<NamedRequirements>,
    /// Whether the kubelet is done. Until then it writes the same files, one after the other.
    pub settled: bool,
    /// Why the cgroups do not get the wanted amounts.
    pub withheld: Option<Withheld>,
    /// The kubelet cannot lower a memory limit until less memory is in use.
    pub reclaim: bool,
    /// Whether the cgroups have or get amounts that the spec does not have. The pass then also removes limits
    /// that the spec never had.
    pub ahead: bool,
    /// When the next pass checks again.
    pub retry_after: Option<Duration>,
}

/// A change of the pod's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizePatch {
    pub changes: Vec<Step>,
    /// The spec for which the changes were computed. The pass sends the patch only if the API server still has this spec.
    pub from: Vec<NamedRequirements>,
    /// The amounts that the spec gets.
    pub targets: Vec<NamedRequirements>,
    /// The kubelet's grant so far. The spec gets it back, as far as it changes, if the cgroups cannot hold the targets.
    pub held: Vec<NamedRequirements>,
    /// The spec without the requests of this agent that the kubelet has not allocated.
    before: Vec<NamedRequirements>,
    /// Whether the cgroups got values before the spec could have them, or the patch only reads the spec.
    pub ahead: bool,
    /// Whether the cgroups get the targets also while the API server is away.
    pub by_hand: bool,
    /// An error if the node is not known to have room.
    room: Result<(), String>,
}

impl ResizeFacts {
    /// Decides how a pass gives the containers of `pod` the `targets`.
    pub fn decide(&self, pod: &Pod, targets: &[NamedRequirements], cause: &Cause) -> ResizeDecision {
        let changes = match self.changes(pod, targets) {
            Ok(changes) => changes,
            Err(why) => return ResizeDecision::Refuse { why, no_room: false },
        };
        let room = self.check_room(pod, targets);
        let phase = self.phase(pod);
        let held = self.accepted.as_ref().map(|accepted| accepted.held.as_slice());
        let mut so_far = granted(pod, &phase, held);
        if changes.is_empty() && !self.unanswered {
            let mut grant = Grant::new(&phase, targets, &so_far, room);
            grant.ahead = self.ahead;
            return ResizeDecision::Write(grant);
        }
        if let Phase::Withheld(Withheld::Failed(_)) = phase {
            // The kubelet tries again to write the spec.
            so_far = pod.requirements();
        }
        if let Some(why) = &self.away {
            let given = if self.by_hand { targets } else { &so_far };
            let settled = phase == Phase::Settled;
            return ResizeDecision::Write(Grant::spec_later(given, self.by_hand, settled, why, LATER));
        }
        if let Some(Unreported { why, wait }) = &self.unreported {
            let (why, retry_after) = (Withheld::Unanswered(why.clone()), *wait);
            return ResizeDecision::Wait { why, retry_after };
        }
        if let Some(wait) = self.too_early {
            let given = if self.ahead { targets.to_vec() } else { so_far };
            return ResizeDecision::Write(Grant::postponed(&phase, given, cause, wait));
        }
        let full = |room: Room| check_room(&room.without(self.yields), pod, targets, self.kubelet).is_err();
        match room {
            Err(why) if self.room.is_some_and(full) => ResizeDecision::Refuse { why, no_room: true },
            room => ResizeDecision::Patch(self.patch(pod, changes, targets, room)),
        }
    }

    fn patch(
        &self,
        pod: &Pod,
        changes: Vec<Step>,
        targets: &[NamedRequirements],
        room: Result<(), String>,
    ) -> ResizePatch {
        let accepted = self.accepted.as_ref();
        let from = accepted.map_or_else(|| pod.requirements(), |accepted| accepted.spec(pod));
        let held = accepted.map(|accepted| accepted.held.as_slice());
        ResizePatch {
            // Without a change the pass only reads the spec.
            ahead: self.ahead || changes.is_empty(),
            changes,
            before: accepted.map_or_else(|| from.clone(), |accepted| accepted.without_requests(pod, from.clone())),
            from,
            targets: targets.to_vec(),
            held: granted(pod, &Phase::of(pod), held),
            by_hand: self.by_hand,
            room,
        }
    }

    /// The accepted request, if `pod` was read before and does not show it yet.
    fn unseen(&self, pod: &Pod) -> Option<&AcceptedResize> {
        let accepted = self.accepted.as_ref();
        accepted.filter(|accepted| accepted.is_unseen_in(pod))
    }

    fn changes(&self, pod: &Pod, targets: &[NamedRequirements]) -> Result<Vec<Step>, String> {
        match self.unseen(pod) {
            Some(accepted) if same(&accepted.targets, targets) => Ok(Vec::new()),
            Some(accepted) => changes(&pod.with_requirements(&accepted.targets), targets),
            None => changes(pod, targets),
        }
    }

    /// The phase of the resize to what the spec already has.
    fn phase(&self, pod: &Pod) -> Phase {
        match (self.unseen(pod), Phase::of(pod), &self.failed) {
            (Some(_), _, _) => Phase::Accepted,
            // The kubelet tries again, and has not succeeded yet.
            (None, Phase::InProgress, Some(why)) => Phase::Withheld(Withheld::Failed(why.clone())),
            (None, phase, _) => phase,
        }
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
        let settled = *phase == Phase::Settled;
        let Err(withheld) = phase.grants(room) else {
            return Self {
                targets: wanted.to_vec(),
                settled,
                ..Self::default()
            };
        };
        // A kubelet that failed has allocated the wanted amounts and tries again. Only it undoes what it wrote.
        let failed = matches!(withheld, Withheld::Failed(_));
        let reclaim = failed && lowers_memory(granted, wanted);
        Self {
            targets: if failed { wanted } else { granted }.to_vec(),
            settled,
            withheld: Some(withheld),
            reclaim,
            retry_after: reclaim.then_some(RECLAIM_EVERY),
            ..Self::default()
        }
    }

    /// The patch waits. The cgroups get the granted amounts, with the limits that are kept or were grown. A pass in
    /// an emergency does only that.
    fn postponed(phase: &Phase, granted: Vec<NamedRequirements>, cause: &Cause, wait: Duration) -> Self {
        let done = matches!(
            cause,
            Cause::FailedShrink { .. }
                | Cause::Guard {
                    resource: Resource::Memory,
                    ..
                }
        );
        let why = "a memory limit is being grown; the API server is asked once that is over";
        Self {
            targets: granted,
            settled: *phase == Phase::Settled,
            withheld: (!done).then(|| Withheld::Postponed(why.to_owned())),
            retry_after: Some(wait),
            ..Self::default()
        }
    }

    /// The API server is away, so the spec follows later. The cgroups get the values of operators and
    /// of the guard at once.
    fn spec_later(given: &[NamedRequirements], by_hand: bool, settled: bool, why: &str, wait: Duration) -> Self {
        let then = if by_hand {
            "the kernel has the values now, the spec follows later"
        } else {
            "the wanted amounts are requested when it is back"
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

    /// Whether the cgroups get amounts that the spec cannot have yet.
    pub const fn is_written_ahead(&self) -> bool {
        self.ahead && matches!(self.withheld, Some(Withheld::SpecLater(_)))
    }
}

impl ResizePatch {
    /// The amounts that the cgroups may hold once the API server has applied the patch and returned `pod`.
    pub fn grant(&self, pod: &Pod) -> Grant {
        Grant::new(&Phase::of(pod), &self.targets, &self.held, self.room.clone())
    }

    /// The amounts that the cgroups may hold if the API server could not be asked, for the reason `why`.
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
            before: self.before.clone(),
        }
    }

    /// The changes that take the patch back where `pod` still has it: the patched amounts become those of `held`.
    ///
    /// # Errors
    /// A sentence, if the API server would refuse them.
    pub fn undo(&self, pod: &Pod, held: &[NamedRequirements]) -> Result<Vec<Step>, String> {
        changes(pod, &taken_back(&pod.requirements(), &self.targets, &self.undone(held)))
    }

    /// The spec once the patch is taken back: the patched amounts are those of `held`.
    pub fn undone(&self, held: &[NamedRequirements]) -> Vec<NamedRequirements> {
        undone(&self.from, &self.targets, held)
    }

    /// The request that takes the patch back, as the API server accepted it.
    pub fn taken_back(&self, generation: i64, held: Vec<NamedRequirements>) -> AcceptedResize {
        AcceptedResize {
            targets: self.undone(&held),
            generation,
            held,
            before: self.before.clone(),
        }
    }
}
