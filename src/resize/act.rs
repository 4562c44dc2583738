//! What a pass does about a pod's resize. Pure.

use std::time::Duration;

use super::kubelet::{check_room, granted, grows, lowers_memory};
use super::request::least;
use super::{Patch, Report, Request, Resize, ResizeError, changes};
use crate::model::objects::{Pod, ResizePhase};
use crate::model::{Cause, KubeletVersion, Outcome, PodAmounts, ResourceList, Step, Withheld};
use crate::plan::Room;

/// A kubelet that could not lower a limit tries again about every ten seconds, and checks what is in use first.
const RECLAIM_EVERY: Duration = Duration::from_secs(2);

/// The next pass tries the API server again after this time, unless the agent notices earlier that it is back.
pub(super) const LATER: Duration = Duration::from_secs(5);

/// A pass that found no room again is repeated after this time, unless a change of the node or of another pod leaves room earlier. The
/// first one is repeated like any failed pass: no such change counts until it has ended.
const ROOM_CHECK: Duration = Duration::from_secs(60);

/// What the node, its kubelet and the API server have to do with a pod's resize.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The node's room for this pod. None if the node's capacity is unknown.
    pub room: Option<Room>,
    /// The requests that the scheduler may free for the pod. The agent asks the kubelet if there
    /// would be room without them.
    pub yields: ResourceList,
    pub kubelet: KubeletVersion,
    /// In an emergency the agent patches only after this time: until then the kubelet would write an earlier request
    /// over limits that the agent has grown since.
    pub too_early: Option<Duration>,
    /// Why the agent waits for the kubelet's report of the pod's resources, as a sentence, and for how long at most. It patches
    /// nothing before.
    pub unreported: Option<(String, Option<Duration>)>,
    /// A sentence about the outage, if the API server is away. The agent sends it nothing then.
    pub away: Option<String>,
    /// The amounts that the cgroups get before the spec can have them, where an operator or the guard has set some.
    pub by_hand: Option<PodAmounts>,
}

/// What a pass does next about the resize.
#[derive(Debug, Clone, PartialEq, Eq, Default, derive_more::Display)]
pub enum Act {
    /// The pass writes without the API server.
    #[default]
    #[display("writes without the API server")]
    Direct,
    /// The pass sends no patch, writes nothing and ends: the patch is invalid, the node has no room, or the kubelet or the API
    /// server has to answer first.
    #[display("ends: {} {}", outcome.word(), outcome.reason().unwrap_or_default())]
    End {
        outcome: Outcome,
        /// When the agent checks again.
        retry_after: Option<Duration>,
        /// Whether the node has no room for the targets.
        no_room: bool,
    },
    /// The spec needs no patch now.
    #[display("writes what the kubelet grants{}", _0.withheld.as_ref().map(|why| format!(": {}", why.reason())).unwrap_or_default())]
    Write(Grant),
    #[display("patches the spec")]
    Patch(Patch),
}

/// The amounts that the cgroups may hold at the present phase of the resize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    pub targets: PodAmounts,
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
    /// The spec from which these amounts follow, if the kubelet writes them, too. Where the cgroups have others, the pod's object may be
    /// late, and the kubelet may have written a later spec: the pass reads the spec before it writes.
    pub follows: Option<PodAmounts>,
}

impl Act {
    /// The pass ends with this outcome.
    pub(super) const fn end(outcome: Outcome, retry_after: Option<Duration>) -> Self {
        Self::End {
            outcome,
            retry_after,
            no_room: false,
        }
    }
}

impl Resize {
    /// What a pass does to give the containers of `pod` the `targets`.
    pub fn next(&self, pod: &Pod, targets: &PodAmounts, cause: &Cause, facts: &Facts) -> Act {
        let changes = match self.changes(pod, targets) {
            Ok(changes) => changes,
            Err(why) => return Act::end(Outcome::Refused(why), None),
        };
        let room = facts.check_room(pod, targets);
        let phase = self.phase(pod);
        let mut so_far = self.granted_so_far(pod, &phase);
        if changes.is_empty() && self.prepared.is_none() {
            let mut grant = Grant::new(&phase, targets, &so_far, room);
            grant.ahead = self.is_ahead();
            grant.follows = (!grant.ahead && !cause.is_emergency()).then(|| self.spec(pod));
            return Act::Write(grant);
        }
        if let ResizePhase::Withheld(Withheld::Failed(_)) = phase {
            // The kubelet tries again to write the spec.
            so_far = pod.requirements();
        }
        if let Some(why) = &facts.away {
            let settled = phase == ResizePhase::Settled;
            return Act::Write(Grant::spec_later(&so_far, facts.by_hand.as_ref(), settled, why, LATER));
        }
        if let Some((why, wait)) = &facts.unreported {
            return Act::end(Outcome::Withheld(Withheld::Unanswered(why.clone())), *wait);
        }
        if let Some(wait) = facts.too_early {
            let ahead = facts.by_hand.as_ref().filter(|_| self.is_ahead());
            let given = ahead.unwrap_or(&so_far).clone();
            return Act::Write(Grant::postponed(&phase, given, cause, wait));
        }
        if let Some(why) = facts.why_full(pod, targets) {
            return Act::End {
                outcome: Outcome::Refused(why),
                retry_after: self.has_no_room().then_some(ROOM_CHECK),
                no_room: true,
            };
        }
        let from = self.spec(pod);
        Act::Patch(Patch {
            // Without a change the pass only reads the spec.
            ahead: self.is_ahead() || changes.is_empty(),
            changes,
            request: Request {
                targets: targets.clone(),
                generation: pod.metadata.generation,
                held: self.granted_so_far(pod, &ResizePhase::of(pod)),
                before: self.without_accepted(pod, from.clone()),
                earlier: Vec::new(),
            },
            from,
            reads_first: self.prepared.is_some(),
            by_hand: facts.by_hand.clone(),
            room,
        })
    }

    /// The kubelet's grant to the containers of `pod`. A kubelet that has not answered yet lowers amounts at any moment: the cgroups
    /// hold no more than that.
    fn granted_so_far(&self, pod: &Pod, phase: &ResizePhase) -> PodAmounts {
        let granted = granted(pod, phase, self.held());
        let is_unanswered = *phase == ResizePhase::Accepted && self.accepted.is_some();
        if is_unanswered || self.unseen(pod).is_some() {
            least(&granted, &self.spec(pod))
        } else {
            granted
        }
    }

    fn changes(&self, pod: &Pod, targets: &PodAmounts) -> Result<Vec<Step>, String> {
        match self.unseen(pod) {
            Some(accepted) if accepted.targets.same(targets) => Ok(Vec::new()),
            Some(accepted) => changes(&pod.with_requirements(&accepted.targets), targets),
            None => changes(pod, targets),
        }
    }

    /// The phase of the resize to what the spec already has.
    fn phase(&self, pod: &Pod) -> ResizePhase {
        match (self.unseen(pod), ResizePhase::of(pod), self.withheld()) {
            (Some(_), _, _) => ResizePhase::Accepted,
            // The kubelet tries again, and has not succeeded yet.
            (None, ResizePhase::InProgress, Some(Withheld::Failed(why))) => {
                ResizePhase::Withheld(Withheld::Failed(why.clone()))
            }
            (None, phase, _) => phase,
        }
    }
}

impl Facts {
    /// Whether the node has room for a pod with these amounts.
    fn check_room(&self, pod: &Pod, targets: &PodAmounts) -> Result<(), String> {
        match &self.room {
            Some(room) => check_room(room, pod, targets, self.kubelet).map_err(|full| full.to_string()),
            None if !grows(pod, targets, self.kubelet) => Ok(()),
            None => Err("the kubelet has not answered, and how much room the node has is not known".to_owned()),
        }
    }

    /// Why the agent does not ask the kubelet for a resize of `pod`: the node has no room even if the scheduler frees what it may, or the
    /// kubelet would evict other pods for a critical one.
    pub fn why_full(&self, pod: &Pod, targets: &PodAmounts) -> Option<String> {
        let why = self.check_room(pod, targets).err()?;
        if pod.is_critical() {
            let not_asked = "the kubelet would evict others for this critical pod, so askWhenFull does not apply";
            return Some(format!("{why}; {not_asked}"));
        }
        let room = self.room?.without(self.yields);
        check_room(&room, pod, targets, self.kubelet).is_err().then_some(why)
    }
}

impl Grant {
    /// The cgroups get the wanted amounts once the kubelet has allocated them, and before that if the node is known to have `room`. Else
    /// they keep what the kubelet has granted.
    pub(super) fn new(
        phase: &ResizePhase,
        wanted: &PodAmounts,
        granted: &PodAmounts,
        room: Result<(), String>,
    ) -> Self {
        let withheld = match phase {
            ResizePhase::InProgress | ResizePhase::Settled => None,
            ResizePhase::Accepted => room.err().map(Withheld::Unanswered),
            ResizePhase::Withheld(withheld) => Some(withheld.clone()),
        };
        // A kubelet that failed has allocated the wanted amounts and tries again. Only it undoes what it wrote.
        let failed = matches!(withheld, Some(Withheld::Failed(_)));
        let reclaim = failed && lowers_memory(granted, wanted);
        Self {
            targets: if failed || withheld.is_none() { wanted } else { granted }.clone(),
            settled: *phase == ResizePhase::Settled,
            withheld,
            reclaim,
            retry_after: reclaim.then_some(RECLAIM_EVERY),
            ..Self::default()
        }
    }

    /// The patch waits. The cgroups get the granted amounts, with the limits that are kept or were grown. A pass in
    /// an emergency does only that.
    fn postponed(phase: &ResizePhase, granted: PodAmounts, cause: &Cause, wait: Duration) -> Self {
        let done = cause.is_emergency();
        let why = "the guard is raising a memory limit; the API server is asked once that is over";
        Self {
            targets: granted,
            settled: *phase == ResizePhase::Settled,
            withheld: (!done).then(|| Withheld::Postponed(why.to_owned())),
            retry_after: Some(wait),
            ..Self::default()
        }
    }

    /// The API server is away, so the spec follows later. The cgroups get the values of operators and
    /// of the guard at once, and the `granted` ones without such values.
    pub(super) fn spec_later(
        granted: &PodAmounts,
        by_hand: Option<&PodAmounts>,
        settled: bool,
        why: &str,
        wait: Duration,
    ) -> Self {
        let ahead = by_hand.is_some();
        let then = if ahead {
            "the kernel has the values now, the spec follows later"
        } else {
            "the wanted amounts are requested when it is back"
        };
        Self {
            targets: by_hand.unwrap_or(granted).clone(),
            settled: ahead || settled,
            withheld: Some(Withheld::SpecLater(format!("{why}: {then}"))),
            ahead,
            retry_after: Some(wait),
            ..Self::default()
        }
    }

    /// What the pass does after the API server has shown the pod, or has not. Completes the `report` about that.
    pub fn was_read(mut self, read: Result<&Pod, &ResizeError>, report: &mut Report) -> Act {
        let follows = self.follows.take();
        match read {
            Ok(pod) if follows.is_some_and(|spec| !spec.are_in(&pod.requirements())) => {
                let why =
                    "another client has changed the pod; its cgroups are compared once the agent knows the change";
                Act::end(Outcome::Withheld(Withheld::Unanswered(why.to_owned())), Some(LATER))
            }
            Err(ResizeError::Gone(why)) => Act::end(Outcome::Interrupted(why.clone()), None),
            Err(error @ (ResizeError::Away(_) | ResizeError::Refused { .. })) => {
                report.unread = true;
                if let ResizeError::Refused { retry_after, .. } = error {
                    self.retry_after = self.retry_after.max(*retry_after);
                }
                Act::Write(self)
            }
            // What denies a request that changes nothing says nothing about the spec.
            Ok(_) | Err(_) => Act::Write(self),
        }
    }

    /// Whether the cgroups get amounts that the spec cannot have yet.
    pub const fn is_written_ahead(&self) -> bool {
        self.ahead && matches!(self.withheld, Some(Withheld::SpecLater(_)))
    }
}
