//! What operators ask of the coordinator. It answers from what it knows; whatever takes reading files is done by the
//! caller, on a [`Snapshot`].

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Coordinator;
use crate::actuate::{Cause, ChangeRecord, LivePod, Node, PodId};
use crate::agent::entry::{Entry, Waiter};
use crate::agent::overrides::Override;
use crate::agent::standing::Standing;
use crate::agent::view;
use crate::control::{ControlError, find_pod, proto};
use crate::decide::PodDecision;
use crate::objects::Pod;

/// Where an answer goes. A caller that left does not get it, and nothing else follows.
type Reply<T> = oneshot::Sender<Result<T, ControlError>>;

/// One request.
#[derive(Debug)]
pub(in crate::agent) enum Request {
    /// Every pod.
    Get(Reply<proto::GetReply>),
    /// What is known about one pod.
    Snapshot(String, Reply<Snapshot>),
    /// Let this stand, and do it.
    Override(String, Override, Reply<oneshot::Receiver<Arc<ChangeRecord>>>),
    /// End an override.
    Release(String, Reply<oneshot::Receiver<Arc<ChangeRecord>>>),
    /// What was done lately, to all pods or to one.
    History(Option<String>, Reply<Vec<Arc<ChangeRecord>>>),
}

/// What is known about one pod at one moment.
#[derive(Debug)]
pub(in crate::agent) struct Snapshot {
    pub(in crate::agent) summary: proto::Pod,
    pub(in crate::agent) pod: Arc<Pod>,
    pub(in crate::agent) decision: PodDecision,
    pub(in crate::agent) standing: Standing,
    pub(in crate::agent) live: Option<LivePod>,
    pub(in crate::agent) node: Option<Arc<Node>>,
    pub(in crate::agent) next: String,
    pub(in crate::agent) changes: Vec<Arc<ChangeRecord>>,
}

impl Coordinator {
    pub(super) fn take_request(&mut self, request: Request) {
        let answered = match request {
            Request::Get(reply) => reply.send(Ok(self.describe())).is_ok(),
            Request::Snapshot(pod, reply) => reply.send(self.snapshot(&pod)).is_ok(),
            Request::Override(pod, values, reply) => reply.send(self.set_override(&pod, values)).is_ok(),
            Request::Release(pod, reply) => reply.send(self.release(&pod)).is_ok(),
            Request::History(pod, reply) => reply.send(self.recent(pod.as_deref())).is_ok(),
        };
        if !answered {
            tracing::debug!("an operator left before the answer");
        }
    }

    fn describe(&self) -> proto::GetReply {
        let mut problems = self.node_problems.clone();
        problems.extend(self.source_problems.iter().cloned());
        problems.extend(self.saver.problem());
        problems.extend(
            self.options
                .observe_only
                .then(|| "observing only: nothing is written".to_owned()),
        );
        proto::GetReply {
            agent: Some(view::agent(self.node.as_deref(), problems)),
            pods: self
                .entries
                .values()
                .map(|entry| view::pod(entry, Timestamp::now()))
                .collect(),
        }
    }

    /// The pod a caller means.
    fn find(&self, text: &str) -> Result<(String, &Entry), ControlError> {
        let now = Timestamp::now();
        let pods: Vec<proto::Pod> = self.entries.values().map(|entry| view::pod(entry, now)).collect();
        let found = find_pod(&pods, text)?;
        let key = format!("{}/{}", found.namespace, found.name);
        match self.entries.get(&key) {
            Some(entry) => Ok((key, entry)),
            None => Err(ControlError::NotFound { pod: text.to_owned() }),
        }
    }

    fn snapshot(&self, text: &str) -> Result<Snapshot, ControlError> {
        let (_, entry) = self.find(text)?;
        let now = Timestamp::now();
        let id = entry.live.as_ref().map(|live| &live.id);
        let changes = id
            .map(|id| self.history.iter(Some(id)).rev().take(5).cloned().collect())
            .unwrap_or_default();
        Ok(Snapshot {
            summary: view::pod(entry, now),
            pod: Arc::clone(&entry.pod),
            decision: entry.decision.clone(),
            standing: entry.standing.clone(),
            live: entry.live.clone(),
            node: self.node.clone(),
            next: view::next(entry, now),
            changes,
        })
    }

    fn set_override(
        &mut self,
        text: &str,
        values: Override,
    ) -> Result<oneshot::Receiver<Arc<ChangeRecord>>, ControlError> {
        let key = self.find_actionable(text)?;
        let cause = Cause::Operator {
            uid: values.uid,
            pid: values.pid,
            reason: values.reason.clone(),
        };
        let Some(entry) = self.entries.get_mut(&key) else {
            return Err(ControlError::NotFound { pod: key });
        };
        let before = entry.standing.clone();
        let pod = Arc::clone(&entry.pod);
        entry
            .standing
            .set_override(&pod, values)
            .map_err(|error| ControlError::Refused(error.to_string()))?;
        Ok(self.ask_and_wait(&key, cause, Some(before)))
    }

    fn release(&mut self, text: &str) -> Result<oneshot::Receiver<Arc<ChangeRecord>>, ControlError> {
        let key = self.find_actionable(text)?;
        let ended = self
            .entries
            .get_mut(&key)
            .is_some_and(|entry| entry.standing.end_override());
        if ended {
            Ok(self.ask_and_wait(&key, Cause::OverrideEnded, None))
        } else {
            Err(ControlError::Refused(format!(
                "{key} has no override; `vscalectl get overrides` lists them"
            )))
        }
    }

    /// The key of a pod on which something can be done now.
    fn find_actionable(&self, text: &str) -> Result<String, ControlError> {
        let (key, entry) = self.find(text)?;
        if self.options.observe_only {
            let message = "the agent only observes (observeOnly is set): nothing is written; use --dry-run";
            return Err(ControlError::Refused(message.to_owned()));
        }
        if self.node.is_none() {
            let problems = self.node_problems.join("; ");
            return Err(ControlError::Busy(format!(
                "the node is not known well enough yet: {problems}"
            )));
        }
        if entry.live.is_none() {
            return Err(ControlError::Refused(format!(
                "{key} has no running container on this node"
            )));
        }
        Ok(key)
    }

    fn ask_and_wait(
        &mut self,
        key: &str,
        cause: Cause,
        before: Option<Standing>,
    ) -> oneshot::Receiver<Arc<ChangeRecord>> {
        let (reply, receiver) = oneshot::channel();
        self.unsaved = true;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.wanted_changed();
            entry.ask(cause, true, Some(Waiter { reply, before }));
        }
        receiver
    }

    fn recent(&self, pod: Option<&str>) -> Result<Vec<Arc<ChangeRecord>>, ControlError> {
        let id: Option<PodId> = match pod {
            None => None,
            Some(text) => {
                let (key, entry) = self.find(text)?;
                let live = entry.live.as_ref().map(|live| live.id.clone());
                Some(live.ok_or_else(|| ControlError::Refused(format!("{key} has no running container on this node")))?)
            }
        };
        Ok(self.history.iter(id.as_ref()).cloned().collect())
    }
}
