//! The agent as the control socket sees it: passes requests to the coordinator and does the reading that takes time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::coordinator::{Event, Order, Request, Snapshot, Wish, not_running};
use super::oom::{self, Kills};
use super::overrides::Override;
use super::{explain, view};
use crate::actuate::shrink::SeenBefore;
use crate::actuate::{Cause, Job, preview};
use crate::control::{Backend, Caller, ControlError, proto, resize_values};
use crate::plan::shrink::Holds;
use crate::resources::NamedRequirements;

/// The way to the coordinator.
#[derive(Debug, Clone)]
pub(super) struct AgentBackend {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) changes: broadcast::Sender<Arc<proto::Change>>,
    pub(super) kills: Kills,
}

impl AgentBackend {
    /// Asks the coordinator. It takes requests in at once, so a full channel means that it is overwhelmed.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, ControlError>>) -> Request,
    ) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        let stopping = || ControlError::Busy("the agent is shutting down".to_owned());
        self.events
            .try_send(Event::Request(request(reply)))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => ControlError::Busy("too much is going on".to_owned()),
                mpsc::error::TrySendError::Closed(_) => stopping(),
            })?;
        let gone = |_| ControlError::Busy("the pod or the agent went away before it was done".to_owned());
        answer.await.map_err(gone)?
    }

    /// Has an order carried out, and waits for how it ends.
    async fn order(&self, pod: String, wish: Wish) -> Result<proto::Change, ControlError> {
        let record = self.ask(|reply| Request::Order(pod, Order { wish, reply })).await?;
        Ok(view::change(&record))
    }

    /// The steps a request would take.
    async fn rehearse(&self, snapshot: Snapshot, wanted: Override) -> Result<proto::Change, ControlError> {
        let Snapshot {
            pod,
            mut standing,
            live,
            node,
            ..
        } = snapshot;
        standing
            .set_override(&pod, wanted.clone())
            .map_err(|error| ControlError::Refused(error.to_string()))?;
        let (Some(node), Some(live), Some(targets)) = (node, live, standing.targets(&pod)) else {
            return Err(not_running(&pod));
        };
        let id = live.id.clone();
        let cause = Cause::Operator {
            uid: wanted.uid,
            pid: wanted.pid,
            reason: wanted.reason,
        };
        let job = Job {
            pod,
            live,
            handles: None,
            targets,
            lift_undeclared: false,
            cause: cause.clone(),
            asked: std::time::Instant::now(),
            held_before: false,
            foreign: crate::actuate::ForeignWriters::default(),
            check_runtime: true,
            // An operator's word ends what is kept.
            holds: Holds::default(),
            seen: SeenBefore::default(),
        };
        let steps = preview(node, job).await.map_err(ControlError::Refused)?;
        Ok(proto::Change {
            at: Timestamp::now().to_string(),
            namespace: id.namespace,
            name: id.name,
            uid: id.uid,
            cause: cause.to_string(),
            outcome: "Planned".to_owned(),
            steps: steps.iter().map(view::step).collect(),
            ..proto::Change::default()
        })
    }
}

impl Backend for AgentBackend {
    async fn get(&self, _request: proto::GetRequest) -> Result<proto::GetReply, ControlError> {
        self.ask(Request::Get).await
    }

    async fn explain(&self, request: proto::ExplainRequest) -> Result<proto::ExplainReply, ControlError> {
        let snapshot = self.ask(|reply| Request::Snapshot(request.pod, reply)).await?;
        explain::explain(snapshot).await
    }

    async fn resize(&self, caller: Caller, request: proto::ResizeRequest) -> Result<proto::ResizeReply, ControlError> {
        let wanted = override_of(caller, &request, resize_values(&request)?);
        let change = if request.dry_run {
            let snapshot = self.ask(|reply| Request::Snapshot(request.pod, reply)).await?;
            self.rehearse(snapshot, wanted).await?
        } else {
            self.order(request.pod, Wish::Override(wanted)).await?
        };
        Ok(proto::ResizeReply { change: Some(change) })
    }

    async fn release(
        &self,
        caller: Caller,
        request: proto::ReleaseRequest,
    ) -> Result<proto::ReleaseReply, ControlError> {
        tracing::info!(
            uid = caller.uid,
            pid = caller.pid,
            pod = request.pod,
            "override released by hand"
        );
        let change = self.order(request.pod, Wish::Release).await?;
        Ok(proto::ReleaseReply { change: Some(change) })
    }

    async fn history(&self, request: proto::HistoryRequest) -> Result<proto::HistoryReply, ControlError> {
        let pod = (!request.pod.is_empty()).then_some(request.pod);
        let records = self.ask(|reply| Request::History(pod, reply)).await?;
        Ok(proto::HistoryReply {
            changes: records.iter().map(|record| view::change(record)).collect(),
        })
    }

    async fn oom_list(&self, request: proto::OomListRequest) -> Result<proto::OomListReply, ControlError> {
        let kills = self.kills.borrow();
        let wanted = kills.iter().filter(|report| oom::is_of(report, &request.pod));
        Ok(proto::OomListReply {
            kills: wanted.map(|report| oom::kill(report)).collect(),
        })
    }

    fn watch(&self) -> broadcast::Receiver<Arc<proto::Change>> {
        self.changes.subscribe()
    }
}

fn override_of(caller: Caller, request: &proto::ResizeRequest, values: Vec<NamedRequirements>) -> Override {
    let since = Timestamp::now();
    let ttl = request
        .ttl_us
        .map(|micros| SignedDuration::from_micros(i64::try_from(micros).unwrap_or(i64::MAX)));
    Override {
        uid: caller.uid,
        pid: caller.pid,
        reason: request.reason.clone(),
        since,
        until: ttl.map(|ttl| since.checked_add(ttl).unwrap_or(Timestamp::MAX)),
        values,
    }
}
