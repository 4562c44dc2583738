//! Operators' requests. The controller answers from its state; the caller reads files and speaks protobuf.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;

use super::Controller;
use crate::actuate::Node;
use crate::model::objects::{PodId, PodKey, Shared, VerticalPodAutoscaler};
use crate::model::{Cause, ChangeRecord, ControlError, PodAmounts};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::pod::{Now, PodInput, PodState, not_running};
use crate::reconcile::savings::SavingsReport;
use crate::reconcile::work::{OperatorRequest, RequestId};
use crate::resize::Facts;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, ControlError>>;
/// Gets the record of the pass that carried out a request, and why the state after it is not saved.
type RecordReply = Reply<(Arc<ChangeRecord>, Option<String>)>;

/// The state of the agent and of every pod.
#[derive(Debug)]
pub(crate) struct AgentSnapshot {
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) problems: Vec<String>,
    /// What the kubelet and the API server refuse to resize, one sentence each.
    pub(crate) refusals: Vec<String>,
    pub(crate) pods: Vec<PodState>,
    pub(crate) quiet: SignedDuration,
    /// The namespaces that may use hooks.
    pub(crate) hooks: Vec<String>,
}

/// The state of one pod, with what `explain` needs.
#[derive(Debug)]
pub(crate) struct PodSnapshot {
    pub(crate) state: PodState,
    pub(crate) node: Option<Arc<Node>>,
    /// The facts about the pod's resize, where a pass would go through the API server now.
    pub(crate) resize: Option<Facts>,
    /// The latest changes, oldest first.
    pub(crate) changes: Vec<Arc<ChangeRecord>>,
    /// The VPA behind the decision.
    pub(crate) vpa: Option<Shared<VerticalPodAutoscaler>>,
    /// The problems of the sources, one sentence each.
    pub(crate) problems: Vec<String>,
    pub(crate) capacity: NodeCapacity,
    pub(crate) quiet: SignedDuration,
    /// Whether the agent writes nothing.
    pub(crate) observes: bool,
    /// The configuration key that forbids the pod's hooks.
    pub(crate) hooks_forbidden_by: Option<&'static str>,
}

/// Requests without an answer.
#[derive(Debug, Default)]
pub(super) struct Requests {
    latest: RequestId,
    waiting: HashMap<RequestId, RecordReply>,
    /// Requests whose passes ended, with the results.
    pub(super) ended: Vec<(RecordReply, Arc<ChangeRecord>)>,
}

impl Requests {
    fn add(&mut self, reply: RecordReply) -> RequestId {
        self.latest += 1;
        self.waiting.insert(self.latest, reply);
        self.latest
    }

    pub(super) fn answer(&mut self, id: Option<RequestId>, record: Arc<ChangeRecord>) {
        let reply = id.and_then(|id| self.waiting.remove(&id));
        self.ended.extend(reply.map(|reply| (reply, record)));
    }

    pub(super) fn refuse(&mut self, id: RequestId, error: ControlError) {
        if let Some(reply) = self.waiting.remove(&id) {
            send(reply, Err(error));
        }
    }

    /// Answers once the desired state is saved, or cannot be: a confirmed override ends on time also if the agent is killed.
    pub(super) fn answer_once<F>(&mut self, saved: F) -> impl Future<Output = ()> + use<F>
    where
        F: Future<Output = Result<(), String>>,
    {
        let ended = std::mem::take(&mut self.ended);
        async move {
            let unsaved = saved.await.err();
            for (reply, record) in ended {
                send(reply, Ok((record, unsaved.clone())));
            }
        }
    }
}

impl Controller {
    pub(crate) fn pods(&self) -> impl Iterator<Item = &PodState> {
        self.pods.values()
    }

    /// Whether every source has answered since the agent's start.
    pub(crate) const fn has_view(&self) -> bool {
        self.sources.seen
    }

    /// The savings of vscaled in this time, or since the agent's start.
    pub(crate) fn savings(&self, since: Option<Duration>) -> SavingsReport {
        let followed = self.pods.values().filter(|_| !self.config.observe_only);
        self.publisher.savings.report(followed, since, Timestamp::now())
    }

    pub(crate) fn agent_snapshot(&self) -> AgentSnapshot {
        AgentSnapshot {
            node: self.node.known(),
            problems: self.problems(),
            refusals: self.node.refusals().sentences(),
            pods: self.pods().cloned().collect(),
            quiet: self.quiet(),
            hooks: self.config.hooks.clone(),
        }
    }

    /// The VPA of each pod, in the order of [`Self::pods`].
    pub(crate) fn vpas(&self) -> Vec<Option<Shared<VerticalPodAutoscaler>>> {
        self.pods().map(|state| self.sources.vpa_of(state).cloned()).collect()
    }

    /// Hands an operator's request to a pod.
    pub(crate) fn change(&mut self, pod: &PodKey, request: OperatorRequest, reply: RecordReply) {
        let is_possible = self.find_actionable(pod).and_then(|state| match &request {
            OperatorRequest::Override(wanted) => wanted.check_names(&state.pod),
            OperatorRequest::Release { .. } => Ok(()),
        });
        if let Err(error) = is_possible {
            return send(reply, Err(error));
        }
        let id = self.requests.add(reply);
        self.apply(pod, PodInput::Requested { id, request });
    }

    /// The state of one pod, by namespace and name.
    pub(crate) fn snapshot(&self, pod: &PodKey) -> Result<PodSnapshot, ControlError> {
        let state = self.find(pod)?;
        let live = state.live.as_ref();
        let mut changes = live.map(|live| self.recent(Some(&live.id))).unwrap_or_default();
        changes.drain(..changes.len().saturating_sub(5));
        Ok(PodSnapshot {
            state: state.clone(),
            node: self.node.known(),
            resize: self.resize_facts(state),
            changes,
            vpa: self.sources.vpa_of(state).cloned(),
            problems: self.sources.problems.clone(),
            capacity: self.capacity(self.pods()),
            quiet: self.quiet(),
            observes: self.config.observe_only,
            hooks_forbidden_by: self.hooks_forbidden_by(state),
        })
    }

    /// For a request of an operator, which does not wait for the objects of silent sources.
    fn resize_facts(&self, state: &PodState) -> Option<Facts> {
        let (node, now) = (self.node.known()?, Now::read());
        let support = self.node_support(&node, now);
        let mut capacity = self.capacity(self.pods());
        let (none, cause) = (PodAmounts::NONE, Cause::Sweep);
        let facts = self.endpoint.facts(state, none, &cause, &support, &mut capacity, now)?;
        let away = self.endpoint.get()?.away();
        Some(Facts { away, ..facts })
    }

    fn find(&self, pod: &PodKey) -> Result<&PodState, ControlError> {
        // The pod existed when its name was looked up.
        let missing = || ControlError::no_pod(&pod.to_string(), &[]);
        self.pods.get(pod).ok_or_else(missing)
    }

    /// Errors: why nothing can be changed for this pod now.
    fn find_actionable(&self, pod: &PodKey) -> Result<&PodState, ControlError> {
        let state = self.find(pod)?;
        if self.config.observe_only {
            return Err(observes());
        }
        if self.node.known().is_none() {
            let problems = self.node.found.problems.join("; ");
            let message = format!("the node is not known well enough yet: {problems}");
            return Err(ControlError::Busy(message));
        }
        let running = Some(state).filter(|state| state.live.is_some());
        running.ok_or_else(|| not_running(&state.pod))
    }

    /// The latest changes of all pods or of one, oldest first.
    pub(crate) fn recent(&self, pod: Option<&PodId>) -> Vec<Arc<ChangeRecord>> {
        self.publisher.history.iter(pod).cloned().collect()
    }
}

/// The refusal of a request to an agent that only observes.
pub(super) fn observes() -> ControlError {
    let message =
        "the agent only observes (observeOnly is set) and writes nothing: set observeOnly to false to have it act";
    ControlError::Refused(message.to_owned())
}

/// Sends an answer, unless the caller has left.
pub(crate) fn send<T>(reply: Reply<T>, answer: Result<T, ControlError>) {
    if reply.send(answer).is_err() {
        tracing::debug!("an operator left before the answer");
    }
}
