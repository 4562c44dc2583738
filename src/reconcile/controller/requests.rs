//! What operators ask of the controller. It answers from what it knows; whoever asked reads files and speaks protobuf.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::SignedDuration;
use tokio::sync::oneshot;

use super::Controller;
use crate::actuate::Node;
use crate::control::{ControlError, Selector};
use crate::model::objects::{PodId, VerticalPodAutoscaler};
use crate::model::{Cause, ChangeRecord};
use crate::plan::resize::{NodeSupport, ResizeFacts, supports_in_place_resize};
use crate::reconcile::capacity::Headroom;
use crate::reconcile::pod::{Now, PodInput, PodState, not_running};
use crate::reconcile::work::{OperatorRequest, RequestId};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, ControlError>>;
type RecordReply = Reply<Arc<ChangeRecord>>;

/// One request. Pods are named by namespace and name.
#[derive(Debug)]
pub(crate) enum Request {
    /// How every pod is doing.
    Get(Reply<AgentSnapshot>),
    /// How the agent is doing.
    Health(Reply<Health>),
    /// What pods can be called.
    Names(Reply<Vec<PodName>>),
    /// What is known about one pod.
    Snapshot(String, Reply<PodSnapshot>),
    /// The pods with these labels.
    Select(Selection, Reply<Vec<PodId>>),
    /// Change what is desired for this pod, and do it.
    Change(String, OperatorRequest, RecordReply),
    /// What was done lately, to all pods or to one.
    History(Option<String>, Reply<Vec<Arc<ChangeRecord>>>),
}

#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) selector: Selector,
    pub(crate) namespace: String,
    pub(crate) overridden_only: bool,
}

/// How the agent is doing.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) node: Option<Arc<Node>>,
    /// What is degraded, one sentence each.
    pub(crate) problems: Vec<String>,
    /// How many pods are known.
    pub(crate) pods: usize,
    /// Pods with settings inside that no resize reaches.
    pub(crate) out_of_reach: Vec<String>,
    /// Whether the kubelet reports what is in force, as those do that resize in place.
    pub(crate) kubelet_resizes: bool,
}

/// How the agent and every pod are doing.
#[derive(Debug)]
pub(crate) struct AgentSnapshot {
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) problems: Vec<String>,
    pub(crate) pods: Vec<PodState>,
    pub(crate) quiet: SignedDuration,
}

/// What a pod can be called.
#[derive(Debug)]
pub(crate) struct PodName {
    pub(crate) id: PodId,
    /// The ids of its containers.
    pub(crate) containers: Vec<String>,
}

/// What is known about one pod.
#[derive(Debug)]
pub(crate) struct PodSnapshot {
    pub(crate) state: PodState,
    pub(crate) node: Option<Arc<Node>>,
    /// What is known about the pod's resize, where a pass would go through the API server now.
    pub(crate) resize: Option<ResizeFacts>,
    /// The latest changes, oldest first.
    pub(crate) changes: Vec<Arc<ChangeRecord>>,
    /// The VPA behind the decision.
    pub(crate) vpa: Option<VerticalPodAutoscaler>,
    pub(crate) headroom: Headroom,
    /// How long a container has to be quiet before a temporary limit ends.
    pub(crate) quiet: SignedDuration,
}

/// Requests that are to be answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    latest: RequestId,
    waiting: HashMap<RequestId, RecordReply>,
    /// Requests whose passes ended, and how.
    ended: Vec<(RecordReply, Arc<ChangeRecord>)>,
}

impl Requests {
    fn add(&mut self, reply: RecordReply) -> RequestId {
        self.latest += 1;
        self.waiting.insert(self.latest, reply);
        self.latest
    }

    pub(super) fn answer(&mut self, id: RequestId, record: Arc<ChangeRecord>) {
        let reply = self.waiting.remove(&id);
        self.ended.extend(reply.map(|reply| (reply, record)));
    }

    pub(super) fn refuse(&mut self, id: RequestId, error: ControlError) {
        if let Some(reply) = self.waiting.remove(&id) {
            send(reply, Err(error));
        }
    }

    /// The pod is not described any more: whoever waits for it gets no answer.
    pub(super) fn drop_all(&mut self, state: &PodState) {
        for id in state.work.requests() {
            self.waiting.remove(&id);
        }
    }

    /// Answers once what is desired now would survive the agent: a change that was confirmed ends when it was to end.
    pub(super) fn answer_once(&mut self, saved: impl Future<Output = ()> + Send + 'static) {
        if self.ended.is_empty() {
            return;
        }
        let mut ended = Self {
            ended: std::mem::take(&mut self.ended),
            ..Self::default()
        };
        tokio::spawn(async move {
            saved.await;
            ended.answer_now();
        });
    }

    pub(super) fn answer_now(&mut self) {
        for (reply, record) in self.ended.drain(..) {
            send(reply, Ok(record));
        }
    }
}

impl Controller {
    pub(super) fn take_request(&mut self, request: Request) {
        match request {
            Request::Get(reply) => send(reply, Ok(self.agent_snapshot())),
            Request::Health(reply) => send(reply, Ok(self.health())),
            Request::Names(reply) => send(reply, Ok(self.pods.values().map(name).collect())),
            Request::Snapshot(pod, reply) => send(reply, self.find(&pod).map(|state| self.snapshot(state))),
            Request::Select(selection, reply) => send(reply, Ok(self.select(&selection))),
            Request::Change(pod, request, reply) => match self.find_actionable(&pod) {
                Ok(()) => {
                    let id = self.requests.add(reply);
                    self.apply(&pod, PodInput::Requested(id, request));
                }
                Err(error) => send(reply, Err(error)),
            },
            Request::History(pod, reply) => send(reply, self.recent(pod.as_deref())),
        }
    }

    fn health(&self) -> Health {
        Health {
            node: self.node.known(),
            problems: self.problems(),
            pods: self.pods.len(),
            out_of_reach: self.out_of_reach(),
            kubelet_resizes: self.pods.values().any(|state| supports_in_place_resize(&state.pod)),
        }
    }

    fn out_of_reach(&self) -> Vec<String> {
        let has_any = |state: &&PodState| state.decision.findings().next().is_some();
        let found = self.pods.values().filter(has_any);
        let mut names: Vec<String> = found.map(|state| state.pod.full_name()).collect();
        names.sort_unstable();
        names
    }

    fn agent_snapshot(&self) -> AgentSnapshot {
        AgentSnapshot {
            node: self.node.known(),
            problems: self.problems(),
            pods: self.pods.values().cloned().collect(),
            quiet: self.quiet(),
        }
    }

    fn select(&self, wanted: &Selection) -> Vec<PodId> {
        let fits = |state: &&PodState| {
            let metadata = &state.pod.metadata;
            (wanted.namespace.is_empty() || metadata.namespace == wanted.namespace)
                && wanted.selector.selects(&metadata.labels)
                && (!wanted.overridden_only || state.desired.overridden.is_some())
        };
        let id = |state: &PodState| {
            let described = || state.pod.id_with(&state.pod.metadata.uid);
            state.identity.clone().unwrap_or_else(described)
        };
        self.pods.values().filter(fits).map(id).collect()
    }

    fn snapshot(&self, state: &PodState) -> PodSnapshot {
        let id = state.live.as_ref().map(|live| &live.id);
        let latest = id.map(|id| self.history.iter(Some(id)).rev().take(5).cloned());
        let mut changes: Vec<_> = latest.into_iter().flatten().collect();
        changes.reverse();
        PodSnapshot {
            state: state.clone(),
            node: self.node.known(),
            resize: self.resize_facts(state),
            changes,
            vpa: self.sources.vpa_of(state).cloned(),
            headroom: self.capacity().headroom(state, self.node.managers()),
            quiet: self.quiet(),
        }
    }

    fn resize_facts(&self, state: &PodState) -> Option<ResizeFacts> {
        let (node, now) = (self.node.known()?, Now::read());
        let pods = self.pods.values().map(|state| &*state.pod);
        let support = NodeSupport::of(pods, node.known_kubelet(), self.endpoint.upgraded(), now.wall);
        let mut capacity = self.capacity();
        self.endpoint
            .facts(state, &[], &Cause::Sweep, &support, &mut capacity, now)
    }

    fn find(&self, pod: &str) -> Result<&PodState, ControlError> {
        // It was there when its name was looked up.
        self.pods.get(pod).ok_or_else(|| ControlError::NotFound {
            pod: pod.to_owned(),
            nearest: Vec::new(),
        })
    }

    /// Whether something can be done to a pod now.
    fn find_actionable(&self, pod: &str) -> Result<(), ControlError> {
        let state = self.find(pod)?;
        if self.options.observe_only {
            let message = "the agent only observes (observeOnly is set): nothing is written; use --dry-run";
            return Err(ControlError::Refused(message.to_owned()));
        }
        if self.node.known().is_none() {
            let problems = self.node.problems.join("; ");
            return Err(ControlError::Busy(format!(
                "the node is not known well enough yet: {problems}"
            )));
        }
        match state.live {
            Some(_) => Ok(()),
            None => Err(not_running(&state.pod)),
        }
    }

    fn recent(&self, pod: Option<&str>) -> Result<Vec<Arc<ChangeRecord>>, ControlError> {
        let id = pod.map(|pod| {
            let state = self.find(pod)?;
            let live = state.live.as_ref().map(|live| live.id.clone());
            live.ok_or_else(|| not_running(&state.pod))
        });
        let id = id.transpose()?;
        Ok(self.history.iter(id.as_ref()).cloned().collect())
    }
}

fn name(state: &PodState) -> PodName {
    let uid = state.live.as_ref().map_or(&state.pod.metadata.uid, |live| &live.id.uid);
    let live = state.live.iter().flat_map(|live| live.containers.values());
    PodName {
        id: state.pod.id_with(uid),
        containers: live.map(|container| container.id.clone()).collect(),
    }
}

/// Sends an answer. A caller that left does not get it, and nothing else follows.
fn send<T>(reply: Reply<T>, answer: Result<T, ControlError>) {
    if reply.send(answer).is_err() {
        tracing::debug!("an operator left before the answer");
    }
}
