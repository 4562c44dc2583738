//! What operators ask of the coordinator. It answers from what it knows; whatever takes reading files is done by the
//! caller, on a [`Snapshot`].

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Coordinator;
use crate::actuate::{Cause, ChangeRecord, LivePod, Node, PodId};
use crate::agent::entry::{ByHand, Entry, Waiter};
use crate::agent::overrides::Override;
use crate::agent::standing::Standing;
use crate::agent::view;
use crate::control::{ControlError, find_pod, proto};
use crate::decide::PodDecision;
use crate::objects::Pod;
use crate::plan::shrink::Holds;

/// Where an answer goes.
pub(in crate::agent) type Reply<T> = oneshot::Sender<Result<T, ControlError>>;

/// One request.
#[derive(Debug)]
pub(in crate::agent) enum Request {
    /// Every pod.
    Get(Reply<proto::GetReply>),
    /// What is known about one pod.
    Snapshot(String, Reply<Snapshot>),
    /// Change what stands for this pod, and do it.
    Order(String, Order),
    /// What was done lately, to all pods or to one.
    History(Option<String>, Reply<Vec<Arc<ChangeRecord>>>),
}

/// A request to change what stands for a pod, answered with how that ended. The orders for one pod are carried out one
/// after another, each from where the one before it ended: a refused one takes nothing with it.
#[derive(Debug)]
pub(in crate::agent) struct Order {
    pub(in crate::agent) wish: Wish,
    pub(in crate::agent) reply: Reply<Arc<ChangeRecord>>,
}

/// What an operator wants.
#[derive(Debug)]
pub(in crate::agent) enum Wish {
    /// These values.
    Override(Override),
    /// The end of earlier ones.
    Release,
}

/// What is known about one pod at one moment.
#[derive(Debug)]
pub(in crate::agent) struct Snapshot {
    pub(in crate::agent) summary: proto::Pod,
    pub(in crate::agent) pod: Arc<Pod>,
    pub(in crate::agent) decision: PodDecision,
    pub(in crate::agent) standing: Standing,
    pub(in crate::agent) live: Option<Arc<LivePod>>,
    pub(in crate::agent) holds: Holds,
    pub(in crate::agent) node: Option<Arc<Node>>,
    pub(in crate::agent) next: String,
    pub(in crate::agent) changes: Vec<Arc<ChangeRecord>>,
}

impl Coordinator {
    pub(super) fn take_request(&mut self, request: Request) {
        match request {
            Request::Get(reply) => answer(reply, Ok(self.describe())),
            Request::Snapshot(pod, reply) => answer(reply, self.snapshot(&pod)),
            Request::Order(pod, order) => match self.find_actionable(&pod) {
                Ok(key) => self.carry_out(&key, order),
                Err(error) => answer(order.reply, Err(error)),
            },
            Request::History(pod, reply) => answer(reply, self.recent(pod.as_deref())),
        }
    }

    fn describe(&self) -> proto::GetReply {
        let mut problems = self.node_problems.clone();
        problems.extend(self.source_problems.iter().cloned());
        problems.extend(self.restore_problem.clone());
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
                .map(|entry| view::pod(entry, Timestamp::now(), self.quiet()))
                .collect(),
        }
    }

    /// The pod a caller means.
    fn find(&self, text: &str) -> Result<(String, &Entry), ControlError> {
        let now = Timestamp::now();
        let pods: Vec<proto::Pod> = self
            .entries
            .values()
            .map(|entry| view::pod(entry, now, self.quiet()))
            .collect();
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
        let mut changes: Vec<_> = id
            .map(|id| self.history.iter(Some(id)).rev().take(5).cloned().collect())
            .unwrap_or_default();
        // Newest last, as in the history.
        changes.reverse();
        Ok(Snapshot {
            summary: view::pod(entry, now, self.quiet()),
            pod: Arc::clone(&entry.pod),
            decision: entry.decision.clone(),
            standing: entry.standing.clone(),
            live: entry.live.clone(),
            holds: entry.shrinking.holds(now),
            node: self.node.clone(),
            next: view::next(entry, now),
            changes,
        })
    }

    /// Does what an operator wants, once it is its turn.
    fn carry_out(&mut self, key: &str, order: Order) {
        let Some(entry) = self.entries.get_mut(key) else {
            return answer(order.reply, Err(ControlError::NotFound { pod: key.to_owned() }));
        };
        if entry.work.waiter.is_some() {
            entry.work.orders.push_back(order);
            return;
        }
        let before = ByHand::of(entry);
        let (cause, before) = match order.wish {
            Wish::Override(values) => {
                let cause = Cause::Operator {
                    uid: values.uid,
                    pid: values.pid,
                    reason: values.reason.clone(),
                };
                let pod = Arc::clone(&entry.pod);
                if let Err(error) = entry.standing.set_override(&pod, values) {
                    return answer(order.reply, Err(ControlError::Refused(error.to_string())));
                }
                entry.shrinking.forget_regrets();
                (cause, Some(before))
            }
            Wish::Release if entry.standing.end_override() => (Cause::OverrideEnded, None),
            Wish::Release => {
                let message = format!("{key} has no override; `vscalectl get overrides` lists them");
                return answer(order.reply, Err(ControlError::Refused(message)));
            }
        };
        entry.work.waiter = Some(Waiter {
            reply: order.reply,
            before,
        });
        entry.start_over();
        entry.ask(cause, true);
        self.unsaved = true;
        self.unwatched = true;
    }

    /// Carries out the orders that waited, up to the first that takes a pass.
    pub(super) fn next_order(&mut self, key: &str) {
        while let Some(entry) = self.entries.get_mut(key)
            && entry.work.waiter.is_none()
            && let Some(order) = entry.work.orders.pop_front()
        {
            self.carry_out(key, order);
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
            return Err(not_running(&entry.pod));
        }
        Ok(key)
    }

    fn recent(&self, pod: Option<&str>) -> Result<Vec<Arc<ChangeRecord>>, ControlError> {
        let id: Option<PodId> = match pod {
            None => None,
            Some(text) => {
                let (_, entry) = self.find(text)?;
                let live = entry.live.as_ref().map(|live| live.id.clone());
                Some(live.ok_or_else(|| not_running(&entry.pod))?)
            }
        };
        Ok(self.history.iter(id.as_ref()).cloned().collect())
    }
}

/// Sends an answer. A caller that left does not get it, and nothing else follows.
pub(in crate::agent) fn answer<T>(reply: Reply<T>, with: Result<T, ControlError>) {
    if reply.send(with).is_err() {
        tracing::debug!("an operator left before the answer");
    }
}

pub(in crate::agent) fn not_running(pod: &Pod) -> ControlError {
    ControlError::Refused(format!("{} has no running container on this node", pod.full_name()))
}
