//! The resize of one pod at the API server and its kubelet. Pure.
//!
//! Where the kubelet resizes in place (KEP-1287), the pod spec is the truth. The kubelet first allocates the spec's amounts, then
//! writes them. [`Resize`] is the whole of what the agent knows about that. A pass asks [`Resize::next`] what to do ([`Act`]), and
//! after a patch [`Patch::answered`]. The cgroups get the patched amounts once the kubelet has allocated them, or once the node is
//! known to have room. Until then they get what the kubelet has [granted](granted()) so far.
//!
//! | what happens | input | what [`Resize`] knows then |
//! |---|---|---|
//! | a pass is about to patch the spec | [`begins`](Resize::begins) | a prepared request, which is saved before the API server sees it |
//! | the API server accepts the patch | [`answered`](Resize::answered) | the accepted request, [`unseen`](Resize::unseen) until the pod's object shows its generation |
//! | the API server denies the patch, or another client was faster | [`answered`](Resize::answered) | what it knew before the pass |
//! | no answer comes, or the agent is killed | [`answered`](Resize::answered), [`restored`](Resize::restored) | still the prepared request: the next patch reads the spec first |
//! | an object has the amounts of a prepared request | [`sees`](Resize::sees) | this request as the accepted one |
//! | the kubelet has carried out the accepted request | [`sees`](Resize::sees) | the spec as the grant; there is no request to take back |
//! | the API server is away, and an operator or the guard has set amounts | [`begins`](Resize::begins), [`answered`](Resize::answered) | the spec that the cgroups are ahead of |
//! | another client has changed what the cgroups have ahead of that spec | [`is_overtaken`](Resize::is_overtaken) | nothing: the other client's amounts apply |
//! | the spec has what the cgroups have | [`answered`](Resize::answered), [`catch_up`](Resize::catch_up) | that the cgroups are not ahead |
//! | a pass ends | [`ended`](Resize::ended) | why the pod does not have its targets yet |
//! | the pod is back at its own amounts | [`end_return`](Resize::end_return), [`returns_to`](Resize::returns_to) | these as the spec before the request |
//!
//! A request has three sets of amounts: its `targets`, the kubelet's grant `held` before, and the spec `before` without requests that
//! the kubelet has not allocated. The spec gets back `held` where the cgroups cannot hold the targets, and `before` where nothing is
//! desired any more.
//!
//! The state and its inputs are here, the acts of a pass in `act.rs`, a patch and its answers in `patch.rs`, the requests and the
//! arithmetic of their amounts in `request.rs`, and what a pod's status shows of its kubelet in `kubelet.rs`.

mod act;
mod kubelet;
mod patch;
mod request;

use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};

pub use act::{Act, Facts, Grant};
pub use kubelet::{NodeSupport, check_room, granted, reserved};
pub use patch::{Patch, Report, ResizeError, altered, changes};
pub use request::{Request, differing, taken_back};

use crate::model::objects::{Container, Pod, ResizePhase};
use crate::model::{Cause, ChangeRecord, Outcome, PodAmounts, Resource, Withheld};

/// At most one request in this time is sent because the kubelet is about to lower a limit.
const SEND_EVERY: Duration = Duration::from_secs(1);

/// The resize of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resize {
    /// The request that the API server accepted last.
    #[serde(rename = "asked")]
    accepted: Option<Request>,
    /// A request that is about to be sent, or that was sent without an answer.
    #[serde(rename = "asking", skip_serializing_if = "Option::is_none")]
    prepared: Option<Request>,
    /// The spec from before the cgroups got targets that the spec gets once the API server is back, with what is known since to come
    /// from this agent or not to concern it. Another spec is another client's change, or a request without an answer.
    #[serde(deserialize_with = "amounts_of_spec", skip_serializing_if = "Option::is_none")]
    written_ahead: Option<PodAmounts>,
    /// How the latest pass ended, if the pod does not have its targets yet: the kubelet does not grant them, the API server has not
    /// answered, or the node has no room, so that the pass did not patch the spec.
    #[serde(skip)]
    obstacle: Option<Outcome>,
    /// When the API server accepted the latest request.
    #[serde(skip)]
    accepted_at: Option<Instant>,
}

/// Amounts, or an object that has them as its `spec`, as earlier builds wrote it.
fn amounts_of_spec<'de, D: Deserializer<'de>>(written: D) -> Result<Option<PodAmounts>, D::Error> {
    let mut written = serde_json::Value::deserialize(written)?;
    let spec = written.get_mut("spec").map(serde_json::Value::take);
    serde_json::from_value(spec.unwrap_or(written)).map_err(serde::de::Error::custom)
}

/// What the resize is, without a change.
impl Resize {
    /// What outlasts the agent.
    #[must_use]
    pub fn saved(&self) -> Self {
        Self {
            obstacle: None,
            accepted_at: None,
            ..self.clone()
        }
    }

    /// The resize as if the API server had answered every request.
    #[must_use]
    pub fn all_answered(&self) -> Self {
        Self {
            prepared: None,
            written_ahead: None,
            ..self.clone()
        }
    }

    /// The request that the API server accepted last.
    pub const fn accepted(&self) -> Option<&Request> {
        self.accepted.as_ref()
    }

    /// The request that has no answer.
    pub const fn prepared(&self) -> Option<&Request> {
        self.prepared.as_ref()
    }

    /// Why the pod does not have its targets yet, by the latest pass.
    pub const fn withheld(&self) -> Option<&Withheld> {
        match &self.obstacle {
            Some(Outcome::Withheld(withheld)) => Some(withheld),
            _ => None,
        }
    }

    /// Whether the latest pass did not patch the spec because the node has no room.
    pub const fn has_no_room(&self) -> bool {
        self.obstacle.is_some() && self.withheld().is_none()
    }

    /// Whether nothing stood in the way of the latest pass.
    pub const fn is_clear(&self) -> bool {
        self.obstacle.is_none()
    }

    /// Whether the resize only waits for an API server that is away.
    pub const fn waits_for_api_server(&self) -> bool {
        matches!(self.withheld(), Some(Withheld::SpecLater(_)))
    }

    /// Whether this outcome is news: not if nothing was written and every value was as desired already, or if the kubelet's answer, or
    /// that the node has no room, is known.
    pub fn is_news(&self, record: &ChangeRecord) -> bool {
        let is_known = match &record.outcome {
            // The API server is patched in a moment, and the growth itself is on record.
            Outcome::Withheld(Withheld::Postponed(_)) => true,
            Outcome::Withheld(withheld) => self.withheld() == Some(withheld),
            // Retries find no room every minute. If something else stands in the way of one, the next one shows that.
            Outcome::Refused(_) => self.has_no_room() && record.cause == Cause::Retry,
            _ => false,
        };
        let has_waited = matches!(self.withheld(), Some(Withheld::Deferred(_) | Withheld::Failed(_)));
        let is_taken_up = has_waited && record.outcome.holds();
        !record.steps.is_empty() || record.outcome.reason().is_some() && !is_known || is_taken_up
    }

    /// What the API server or the kubelet does next with the resize of `pod`, as a sentence.
    pub fn next_step(&self, pod: &Pod) -> Option<String> {
        let step = match self.withheld() {
            Some(Withheld::Deferred(_)) => {
                "The kubelet tries again when the node has room; a smaller recommendation replaces this one at once."
            }
            Some(Withheld::Infeasible(_)) => "Nothing until other values are wanted: this node can never hold these.",
            Some(Withheld::Failed(_)) => "The kubelet tries again by itself.",
            Some(Withheld::Unanswered(_)) => "The kubelet has not answered yet; the values follow its answer.",
            Some(Withheld::Postponed(_)) => "The kubelet is asked once the guard no longer raises the limit.",
            Some(Withheld::SpecLater(_)) => {
                "The API server is asked once it is back; if another client has changed the pod's resources by then, its values apply."
            }
            None if self.is_in_flight(pod) => {
                "The resize is in flight: the kernel has the values, and the kubelet has not carried it out yet."
            }
            None => return None,
        };
        Some(step.to_owned())
    }

    /// Whether the cgroups have amounts that the spec does not have yet.
    pub const fn is_ahead(&self) -> bool {
        self.written_ahead.is_some()
    }

    /// The kubelet's grant before the request that was accepted last.
    fn held(&self) -> Option<&PodAmounts> {
        self.accepted.as_ref().map(|accepted| &accepted.held)
    }

    /// The kubelet's grant to the containers of `pod`, before requests without an answer.
    pub fn granted(&self, pod: &Pod) -> PodAmounts {
        let prepared = self.prepared.as_ref().map(|prepared| &prepared.held);
        granted(pod, &ResizePhase::of(pod), prepared.or_else(|| self.held()))
    }

    /// Whether the API server has the requests of these targets from this agent: it has accepted them, or has not answered.
    /// Limits may differ: temporary and kept limits are in the patch, too.
    pub fn has_asked_for(&self, targets: &PodAmounts) -> bool {
        let accepted = self.accepted.iter().map(|accepted| &accepted.targets);
        let prepared = self.prepared.iter().flat_map(Request::patches);
        accepted.chain(prepared).any(|asked| {
            let mut targets = targets.iter();
            targets.all(|(of, target)| asked.get(of).is_some_and(|asked| asked.requests == target.requests))
        })
    }

    /// The amounts that another client has set in the spec since `before`: those that this agent has not requested. All others
    /// are unset.
    pub fn edits_of_others(&self, before: &Pod, pod: &Pod) -> PodAmounts {
        if pod.metadata.generation <= before.metadata.generation || self.unseen(pod).is_some() {
            return PodAmounts::default();
        }
        let known = self.spec(before);
        let undone = |prepared: &Request| prepared.undone(&prepared.targets);
        let undone: Vec<_> = self.prepared.iter().map(undone).collect();
        let prepared = self.prepared.iter().flat_map(Request::specs);
        request::edits(&known, &pod.requirements(), prepared.chain(&undone))
    }

    /// The spec of `pod` without requests of this agent that the kubelet has not allocated; `None` if there are none.
    pub fn without_requests(&self, pod: &Pod) -> Option<PodAmounts> {
        let spec = self.spec(pod);
        let without = self.without_open_requests(pod, spec.clone());
        // The API server may carry out a request without an answer still.
        (self.prepared.is_some() || !without.same(&spec)).then_some(without)
    }

    /// Whether none of these amounts of `pod` is a request of this agent that the kubelet has not allocated.
    pub fn is_allocated(&self, pod: &Pod, amounts: &PodAmounts) -> bool {
        self.without_open_requests(pod, amounts.clone()).same(amounts)
    }

    /// These amounts of `pod` without requests of this agent that the kubelet has not allocated.
    fn without_open_requests(&self, pod: &Pod, amounts: PodAmounts) -> PodAmounts {
        let unanswered = self.prepared.iter();
        let answered = unanswered.fold(amounts, |amounts, prepared| prepared.without(amounts));
        self.without_accepted(pod, answered)
    }

    /// These amounts of `pod` without the accepted request, unless the kubelet has allocated that.
    fn without_accepted(&self, pod: &Pod, amounts: PodAmounts) -> PodAmounts {
        match &self.accepted {
            Some(accepted) if self.unseen(pod).is_some() || ResizePhase::of(pod).is_open() => {
                taken_back(&amounts, &accepted.targets, accepted.known_before())
            }
            _ => amounts,
        }
    }

    /// The spec that the API server has, as far as this agent knows.
    pub fn spec(&self, pod: &Pod) -> PodAmounts {
        match self.unseen(pod) {
            Some(accepted) => pod.with_requirements(&accepted.targets).requirements(),
            None => pod.requirements(),
        }
    }

    /// The accepted request that `pod` does not show yet, because the object is older.
    pub fn unseen(&self, pod: &Pod) -> Option<&Request> {
        let accepted = self.accepted.as_ref();
        accepted.filter(|accepted| pod.metadata.generation < accepted.generation)
    }

    /// Whether `pod` shows every request that the API server may have carried out.
    pub fn is_known_in(&self, pod: &Pod) -> bool {
        self.prepared.is_none() && self.unseen(pod).is_none()
    }

    /// Whether the kubelet has not carried out the accepted request yet.
    pub fn is_in_flight(&self, pod: &Pod) -> bool {
        self.unseen(pod).is_some() || self.accepted.is_some() && ResizePhase::of(pod) != ResizePhase::Settled
    }

    /// Whether the spec has the amounts that the accepted request changed, and the kubelet has carried them out.
    pub fn is_carried_out_in(&self, pod: &Pod) -> bool {
        !self.is_in_flight(pod) && self.accepted.as_ref().is_some_and(|accepted| accepted.is_in(pod))
    }

    /// Whether this agent requested the spec of `pod`, or may have: a request has no answer yet. The API server may have filled in
    /// amounts that the request leaves unset.
    pub fn is_ours(&self, pod: &Pod) -> bool {
        let is_in_spec = |accepted: &Request| accepted.targets.are_in(&pod.requirements());
        self.accepted.as_ref().is_some_and(is_in_spec) || !self.is_known_in(pod) || self.is_ahead()
    }

    /// Whether the spec of `pod` is the one that was accepted last.
    pub fn is_spec_of(&self, pod: &Pod) -> bool {
        let accepted = self.accepted.as_ref();
        accepted.is_some_and(|accepted| accepted.targets.same(&pod.requirements()))
    }

    /// Whether the kubelet is about to write a memory limit that is lower than one of `given`.
    pub fn is_about_to_lower<'a>(&self, pod: &Pod, given: impl IntoIterator<Item = (&'a str, u64)>) -> bool {
        let spec = match (self.unseen(pod), ResizePhase::of(pod)) {
            (Some(accepted), _) => accepted.targets.clone(),
            (None, ResizePhase::Settled | ResizePhase::Withheld(Withheld::Infeasible(_))) => return false,
            (None, _) => pod.requirements(),
        };
        let lowers = |(name, given)| spec.limit(name, Resource::Memory).is_some_and(|asked| asked < given);
        given.into_iter().any(lowers)
    }

    /// How long to wait before a request with temporary limits is sent: until no limit has grown for `calm`. Where the kubelet is
    /// about to write a lower limit, the request is sent at once, but at most once in a second.
    pub fn too_early(&self, calm: Duration, about_to_lower: bool, now: Instant) -> Option<Duration> {
        let pause = |at| SEND_EVERY.saturating_sub(now.saturating_duration_since(at));
        let most = self.accepted_at.map_or(Duration::ZERO, pause);
        let wait = if about_to_lower { calm.min(most) } else { calm };
        (!wait.is_zero()).then_some(wait)
    }
}

/// What happens to the resize.
impl Resize {
    /// Takes a new object of the pod.
    pub fn sees(&mut self, pod: &Pod) {
        self.observe_settled(pod);
        self.recognise(pod);
    }

    /// Takes what another client has set in the spec of `pod` since the cgroups were written ahead of it. Returns whether that is an
    /// amount that the cgroups have ahead: with the `targets`, or because an operator has `set` it. Then no request counts any more.
    pub fn is_overtaken(&mut self, pod: &Pod, targets: &PodAmounts, set: &PodAmounts) -> bool {
        let is_ours = self.is_spec_of(pod);
        let Some(before) = self.written_ahead.as_mut().filter(|_| !is_ours) else {
            return false;
        };
        let edits = request::edits(before, &pod.requirements(), std::iter::once(targets));
        if request::overtake(&edits, before, targets, set) {
            *self = Self::default();
            return true;
        }
        // Also an amount that is no edit, because the targets have it: they may have another one later.
        *before = pod.requirements();
        false
    }

    /// Takes the state of an earlier agent, which may have taken its last request back to the amounts `undone`.
    pub fn restored(&mut self, pod: &Pod, undone: impl FnOnce(PodAmounts) -> PodAmounts) {
        if let Some(prepared) = &mut self.prepared {
            let known = prepared.undone(&prepared.targets);
            let undone = undone(known.clone());
            prepared.earlier.extend((undone != known).then_some(undone));
        }
        self.recognise(pod);
    }

    /// Takes what a pass over `pod` is about to do: it patches the spec, or writes targets ahead of it that are new.
    pub fn begins(&mut self, pod: &Pod, act: &Act, is_new: bool) {
        match act {
            // A patch without changes only reads the spec.
            Act::Patch(Patch { changes, request, .. }) if !changes.is_empty() => {
                self.prepare(pod, &request.targets, &request.held);
            }
            Act::Write(grant) if is_new && grant.is_written_ahead() => self.write_ahead(pod),
            _ => {}
        }
    }

    /// Takes the API server's answers to a pass over `pod` with this outcome; `by_hand` if the cgroups get the targets also while
    /// the API server is away.
    pub fn answered(&mut self, pod: &Pod, report: &Report, outcome: &Outcome, by_hand: bool, now: Instant) {
        if report.forgotten {
            // No later object will show it. An answer to this pass is newer.
            self.accepted = None;
        }
        if by_hand && matches!(outcome, Outcome::Withheld(Withheld::SpecLater(_))) {
            self.write_ahead(pod);
        } else if report.accepted().is_some() || outcome.holds() && report.retry_after.is_none() {
            drop(self.catch_up());
        }
        match &report.answer {
            None => {}
            Some(Ok(accepted)) => {
                (self.accepted, self.prepared) = (Some(accepted.clone()), None);
                self.accepted_at = Some(now);
            }
            Some(Err(ResizeError::NotTakenBack(held))) => {
                // The spec has the patch, or these amounts.
                self.end_prepared(true);
                self.prepare(pod, held, held);
            }
            Some(Err(error)) => self.end_prepared(error.may_be_carried_out()),
        }
    }

    /// Notes what stood in the way of a pass that ended with this outcome.
    pub fn ended(&mut self, outcome: Outcome, no_room: bool) {
        self.obstacle = Some(outcome).filter(|outcome| no_room || matches!(outcome, Outcome::Withheld(_)));
    }

    /// Forgets what stood in the way of the latest pass: the next one has other targets.
    pub fn start_over(&mut self) {
        self.obstacle = None;
    }

    /// Notes that the pod has its own amounts again: the request for them stands although nothing is desired any more.
    pub fn end_return(&mut self) {
        if let Some(accepted) = &mut self.accepted {
            accepted.before.clone_from(&accepted.targets);
        }
    }

    /// Notes the pod's `own` amounts. On the way back to them, the spec before the accepted request has what an operator or the guard had
    /// set.
    pub fn returns_to(&mut self, own: &PodAmounts) {
        if let Some(accepted) = &mut self.accepted {
            accepted.before = request::undone(accepted.known_before(), &accepted.targets, own);
        }
    }

    /// Notes that the spec has its targets. Returns the spec from before the cgroups were written ahead of it, if they were.
    pub fn catch_up(&mut self) -> Option<PodAmounts> {
        let before = self.written_ahead.take();
        self.prepared.take_if(|_| before.is_some());
        before
    }

    /// Notes that the cgroups get targets before the spec of `pod` does.
    fn write_ahead(&mut self, pod: &Pod) {
        self.written_ahead.get_or_insert_with(|| pod.requirements());
    }

    /// Notes a request for these targets that is about to be sent, or that has no answer.
    fn prepare(&mut self, pod: &Pod, targets: &PodAmounts, held: &PodAmounts) {
        let unseen = self.unseen(pod).map(|accepted| accepted.targets.clone());
        let (before, earlier) = match self.prepared.take() {
            Some(mut prepared) => {
                prepared.earlier.retain(|targets| *targets != prepared.targets);
                prepared.earlier.push(prepared.targets);
                (prepared.before, prepared.earlier)
            }
            None => (unseen.unwrap_or_else(|| pod.requirements()), Vec::new()),
        };
        self.prepared = Some(Request {
            targets: targets.clone(),
            generation: 0,
            held: held.clone(),
            before,
            earlier,
        });
    }

    /// Notes whether the prepared request of a pass that has ended may have been carried out. If so, no earlier one has been:
    /// the pass read the spec before. An agent that is killed amid a pass leaves both.
    fn end_prepared(&mut self, unanswered: bool) {
        let Some(prepared) = &mut self.prepared else { return };
        if unanswered {
            prepared.earlier.clear();
        } else if let Some(earlier) = prepared.earlier.pop() {
            prepared.targets = earlier;
        } else {
            self.prepared = None;
        }
    }

    /// Notes the spec that the kubelet has settled on as its grant, for every later patch of the spec. A kubelet that does not
    /// report the generation of that spec shows only which requests it has allocated: the fast path may have written the limits in
    /// force.
    fn observe_settled(&mut self, pod: &Pod) {
        let is_settled = ResizePhase::of(pod) == ResizePhase::Settled;
        let accepted = self.accepted.as_mut().filter(|_| is_settled);
        let Some(accepted) = accepted else { return };
        let allocated = |container: &Container| {
            let status = pod.container_status(&container.name);
            status.and_then(|status| status.allocated_resources) == Some(container.resources.requests)
        };
        match pod.status.observed_generation {
            0 if accepted.generation <= pod.metadata.generation && pod.running_containers().all(allocated) => {
                accepted.before = pod.requirements();
            }
            observed if accepted.generation <= observed => {
                (accepted.held, accepted.before) = (pod.requirements(), pod.requirements());
            }
            _ => {}
        }
    }

    /// Recognises the spec of `pod` as a patch of this agent, or of an earlier one that did not see the answer.
    fn recognise(&mut self, pod: &Pod) {
        let generation = pod.metadata.generation;
        let newer = self.accepted.as_ref().is_none_or(|known| known.generation < generation);
        let Some(prepared) = self.prepared.as_ref().filter(|_| newer) else {
            return;
        };
        let spec = pod.requirements();
        let Some((targets, unanswered)) = prepared.recognised_in(&spec, self.accepted.is_some()) else {
            return;
        };
        let accepted = Request {
            targets,
            generation,
            held: prepared.held.clone(),
            before: self.without_accepted(pod, prepared.undone(&prepared.targets)),
            earlier: Vec::new(),
        };
        (self.accepted, self.prepared) = (Some(accepted), unanswered);
        if let Some(before) = &mut self.written_ahead {
            // The cgroups are ahead of this spec now, if at all.
            *before = spec;
        }
    }
}

#[cfg(test)]
mod act_tests;
#[cfg(test)]
mod tests;
