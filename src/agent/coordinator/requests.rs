//! What operators ask of the coordinator. It answers from what it knows; whatever takes reading files is done by the
//! caller, on a [`Snapshot`].

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::Coordinator;
use super::guarding::release_floors;
use crate::actuate::{Node, ThroughApi};
use crate::agent::capacity::Headroom;
use crate::agent::entry::{ByHand, Entry, Waiter};
use crate::agent::overrides::Override;
use crate::agent::standing::Standing;
use crate::agent::view;
use crate::control::{ControlError, Selector, find_pod, proto};
use crate::decide::PodDecision;
use crate::model::objects::{Pod, PodId, VerticalPodAutoscaler};
use crate::model::{Cause, ChangeRecord, ControlFile, LivePod, Target, Withheld};
use crate::plan::resize;
use crate::plan::shrink::{Holds, Progress};

/// Where an answer goes.
pub(in crate::agent) type Reply<T> = oneshot::Sender<Result<T, ControlError>>;

/// One request.
#[derive(Debug)]
pub(in crate::agent) enum Request {
    /// Every pod.
    Get(Reply<proto::GetReply>),
    /// How the agent stands.
    Health(Reply<Health>),
    /// What is known about one pod.
    Snapshot(String, Reply<Snapshot>),
    /// The names of the pods with these labels, in this namespace if one is named; only those with an override, if so asked.
    Select(Selection, Reply<Vec<PodId>>),
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
    Release {
        /// Who wants it.
        uid: u32,
        /// And from which process.
        pid: i32,
        /// And why.
        reason: String,
    },
}

/// Several pods at once.
#[derive(Debug)]
pub(in crate::agent) struct Selection {
    pub(in crate::agent) selector: Selector,
    /// Empty for all.
    pub(in crate::agent) namespace: String,
    pub(in crate::agent) overridden_only: bool,
}

/// How the agent stands at one moment.
#[derive(Debug)]
pub(in crate::agent) struct Health {
    pub(in crate::agent) node: Option<Arc<Node>>,
    /// What is degraded, one sentence each.
    pub(in crate::agent) problems: Vec<String>,
    /// How many pods are known.
    pub(in crate::agent) pods: usize,
    /// Whether the kubelet reports what is in force, as those do that resize in place.
    pub(in crate::agent) kubelet_resizes: bool,
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
    /// Whether these are kept until other pods of the workload have lower ones.
    pub(in crate::agent) waits_for_turn: bool,
    pub(in crate::agent) node: Option<Arc<Node>>,
    pub(in crate::agent) through: Option<ThroughApi>,
    pub(in crate::agent) withheld: Option<Withheld>,
    pub(in crate::agent) next: String,
    pub(in crate::agent) changes: Vec<Arc<ChangeRecord>>,
    /// The VPA behind the decision.
    pub(in crate::agent) vpa: Option<Arc<VerticalPodAutoscaler>>,
    /// What is left alone because something else keeps changing it, and until when.
    pub(in crate::agent) paused: Vec<(Target, ControlFile, Timestamp)>,
    /// What the runtime could not be told yet, and why.
    pub(in crate::agent) owed: Option<String>,
    /// Whether the node can hold an override, and if not, why.
    pub(in crate::agent) headroom: Headroom,
}

impl Coordinator {
    pub(super) fn take_request(&mut self, request: Request) {
        match request {
            Request::Get(reply) => answer(reply, Ok(self.describe())),
            Request::Health(reply) => answer(reply, Ok(self.health())),
            Request::Snapshot(pod, reply) => answer(reply, self.snapshot(&pod)),
            Request::Select(selection, reply) => answer(reply, self.select(&selection)),
            Request::Order(pod, order) => match self.find_actionable(&pod) {
                Ok(key) => self.carry_out(&key, order),
                Err(error) => answer(order.reply, Err(error)),
            },
            Request::History(pod, reply) => answer(reply, self.recent(pod.as_deref())),
        }
    }

    fn health(&self) -> Health {
        Health {
            node: self.node.clone(),
            problems: self.problems(),
            pods: self.entries.len(),
            kubelet_resizes: self
                .entries
                .values()
                .any(|entry| resize::supports_in_place_resize(&entry.pod)),
        }
    }

    /// What is degraded, one sentence each.
    fn problems(&self) -> Vec<String> {
        let mut problems = self.node_problems.clone();
        problems.extend(self.source_problems.iter().cloned());
        problems.extend(self.restore_problem.clone());
        problems.extend(self.saver.problem());
        problems.extend(self.history.problem());
        problems.extend(self.kill_problems());
        problems.extend(self.applied_problems());
        problems.extend(self.updater_problems());
        problems.extend(
            self.options
                .observe_only
                .then(|| "observing only: nothing is written".to_owned()),
        );
        problems
    }

    fn describe(&self) -> proto::GetReply {
        proto::GetReply {
            agent: Some(view::agent(self.node.as_deref(), self.problems())),
            pods: self
                .entries
                .values()
                .map(|entry| view::pod(entry, Timestamp::now(), self.quiet()))
                .collect(),
        }
    }

    /// What hinders watching for kills.
    pub(super) fn kill_problems(&self) -> impl Iterator<Item = String> {
        self.kill_problems.iter().flat_map(|problems| problems.borrow().clone())
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
            None => Err(gone(text)),
        }
    }

    fn select(&self, wanted: &Selection) -> Result<Vec<PodId>, ControlError> {
        let fits = |entry: &Entry| {
            let metadata = &entry.pod.metadata;
            (wanted.namespace.is_empty() || metadata.namespace == wanted.namespace)
                && wanted.selector.selects(&metadata.labels)
                && (!wanted.overridden_only || entry.standing.overridden.is_some())
        };
        let id = |entry: &Entry| {
            let described = || entry.pod.id_with(&entry.pod.metadata.uid);
            entry.last_lived.clone().unwrap_or_else(described)
        };
        let fitting = self.entries.values().filter(|entry| fits(entry));
        Ok(fitting.map(|entry| id(entry)).collect())
    }

    fn snapshot(&self, text: &str) -> Result<Snapshot, ControlError> {
        let (key, entry) = self.find(text)?;
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
            waits_for_turn: entry.shrinking.progress(now) == Some(Progress::Waits),
            node: self.node.clone(),
            through: self.through_now(entry),
            withheld: entry.withheld.clone(),
            next: view::next(entry, now),
            changes,
            vpa: self.vpa_of(entry),
            paused: entry
                .foreign
                .all_paused(now)
                .map(|(target, file, until)| (target.clone(), file, until))
                .collect(),
            owed: entry.owed.then(|| entry.last_reason()),
            headroom: self.headroom(&key),
        })
    }

    pub(super) fn vpa_of(&self, entry: &Entry) -> Option<Arc<VerticalPodAutoscaler>> {
        let (name, namespace) = (entry.decision.vpa.as_ref()?, &entry.pod.metadata.namespace);
        let mut vpas = self.view.vpas.iter();
        let found = vpas.find(|vpa| vpa.metadata.name == *name && vpa.metadata.namespace == *namespace);
        found.cloned().map(Arc::new)
    }

    /// Does what an operator wants, once it is its turn.
    fn carry_out(&mut self, key: &str, order: Order) {
        let headroom = self.headroom(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return answer(order.reply, Err(gone(key)));
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
                if let Err(error) = headroom.set_override(&mut entry.standing, &entry.pod, values) {
                    return answer(order.reply, Err(ControlError::Refused(error)));
                }
                entry.shrinking.forget_regrets();
                release_floors(&self.floors, entry, before.loans_without(&entry.standing));
                (cause, Some(before))
            }
            Wish::Release { uid, pid, reason } if entry.standing.end_override() => {
                (Cause::Released { uid, pid, reason }, None)
            }
            Wish::Release { .. } => {
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

    /// Ends the overrides whose time is over.
    pub(super) fn end_overrides(&mut self, now: Timestamp) {
        for entry in self.entries.values_mut() {
            if entry.standing.ends_at().is_some_and(|at| at <= now) && entry.standing.end_override() {
                self.unsaved = true;
                self.unwatched = true;
                entry.start_over();
                entry.ask(Cause::OverrideEnded, true);
            }
        }
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

/// A pod that is known under no name like this, or not any more.
fn gone(pod: &str) -> ControlError {
    ControlError::NotFound {
        pod: pod.to_owned(),
        nearest: Vec::new(),
    }
}

pub(in crate::agent) fn not_running(pod: &Pod) -> ControlError {
    ControlError::Refused(format!("{} has no running container on this node", pod.full_name()))
}
