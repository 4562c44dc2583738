//! The agent as the control socket sees it: passes requests to the controller and does the reading that takes time.

use std::sync::Arc;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::doctor::Doctor;
use super::oom::{self, Kills};
use super::{explain, view};
use crate::actuate::shrink::SeenBefore;
use crate::actuate::{Job, preview};
use crate::control::{Backend, Caller, ControlError, Selector, find_pod, proto, resize_values};
use crate::model::objects::PodId;
use crate::model::{Cause, NamedRequirements};
use crate::observe::audit::{Audit, Refusal};
use crate::plan::resize::ResizeFacts;
use crate::reconcile::controller::{Controller, Event, PodSnapshot, Reply, Request, send};
use crate::reconcile::overrides::Override;
use crate::reconcile::pod::{PodState, not_running};
use crate::reconcile::work::OperatorRequest;

/// The way to the controller.
#[derive(Debug, Clone)]
pub(super) struct AgentBackend {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) changes: broadcast::Sender<Arc<proto::Change>>,
    pub(super) audit: Audit,
    pub(super) doctor: Arc<Doctor>,
    pub(super) kills: Kills,
}

impl AgentBackend {
    /// Asks the controller, which answers at once.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Controller) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, ControlError> {
        self.request(|controller, reply| send(reply, question(controller)))
            .await
    }

    /// Has the controller answer. It takes requests in at once, so a full channel means that it is overwhelmed.
    async fn request<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Controller, Reply<T>) + Send + 'static,
    ) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        let stopping = || ControlError::Busy("the agent is shutting down".to_owned());
        let request = Request(Box::new(|controller| request(controller, reply)));
        self.events
            .try_send(Event::Request(request))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => ControlError::Busy("too much is going on".to_owned()),
                mpsc::error::TrySendError::Closed(_) => stopping(),
            })?;
        let gone = |_| ControlError::Busy("the pod or the agent went away before it was done".to_owned());
        answer.await.map_err(gone)?
    }

    /// The pod that a caller means, by namespace and name.
    async fn find(&self, text: &str) -> Result<String, ControlError> {
        let pods: Vec<proto::Pod> = self
            .ask(|controller| Ok(controller.pods().map(view::named).collect()))
            .await?;
        find_pod(&pods, text).map(|pod| format!("{}/{}", pod.namespace, pod.name))
    }

    async fn snapshot(&self, pod: &str) -> Result<PodSnapshot, ControlError> {
        let pod = self.find(pod).await?;
        self.ask(move |controller| controller.snapshot(&pod)).await
    }

    /// Has a request carried out, and waits for how it ends. One that is refused is written down.
    async fn change(
        &self,
        caller: Caller,
        pod: String,
        request: OperatorRequest,
    ) -> Result<proto::Change, ControlError> {
        let call = match request {
            OperatorRequest::Override(_) => "resize",
            OperatorRequest::Release { .. } => "release",
        };
        let ended = match self.find(&pod).await {
            Ok(found) => {
                let change = move |controller: &mut Controller, reply| controller.change(&found, request, reply);
                self.request(change).await
            }
            Err(error) => Err(error),
        };
        let ended = ended.inspect_err(|error| self.refused(caller, call, Some(pod), &error.to_string()));
        Ok(view::change(&*ended?))
    }

    fn refused(&self, caller: Caller, call: &'static str, pod: Option<String>, reason: &str) {
        self.audit.refused(Refusal {
            time: Timestamp::now(),
            uid: caller.uid,
            pid: caller.pid,
            call,
            pod,
            reason: reason.to_owned(),
        });
    }

    /// The steps a request would take.
    async fn rehearse(&self, pod: String, wanted: Override) -> Result<proto::Change, ControlError> {
        let snapshot = self.snapshot(&pod).await?;
        let mut state = snapshot.state;
        let cause = Cause::Operator {
            uid: wanted.uid,
            pid: wanted.pid,
            reason: wanted.reason.clone(),
        };
        let headroom = &snapshot.headroom;
        headroom
            .set_override(&mut state.desired, &state.pod, wanted)
            .map_err(ControlError::Refused)?;
        // An operator's word ends what is kept.
        state.shrink.forget_backoffs();
        let targets = state.pod_targets(Timestamp::now(), snapshot.resize.is_some());
        let (Some(node), Some(targets)) = (snapshot.node, targets) else {
            return Err(not_running(&state.pod));
        };
        let id = targets.bound.live().id.clone();
        let resize = snapshot.resize.map(|facts| {
            // The steps are shown as they are taken once nothing is waited for.
            let facts = ResizeFacts {
                too_early: None,
                unreported: None,
                away: None,
                ahead: None,
                ..facts
            };
            let mut containers = targets.containers.clone();
            node.least_limits.lift(&id.uid, &mut containers);
            facts.decide(&state.pod, &containers, &cause)
        });
        let job = Job {
            targets,
            handles: None,
            resize: resize.unwrap_or_default(),
            resizer: None,
            saved: None,
            cause: cause.clone(),
            asked: std::time::Instant::now(),
            held_before: false,
            foreign: crate::actuate::ForeignWriters::default(),
            check_runtime: true,
            seen: SeenBefore::default(),
        };
        let steps = preview(node, job).await.map_err(ControlError::Refused)?;
        Ok(view::planned(id, &cause, &steps))
    }

    async fn resize_one(
        &self,
        caller: Caller,
        pod: String,
        wanted: Override,
        dry_run: bool,
    ) -> Result<proto::Change, ControlError> {
        if dry_run {
            self.rehearse(pod, wanted).await
        } else {
            self.change(caller, pod, OperatorRequest::Override(wanted)).await
        }
    }

    /// The pods a selector fits.
    ///
    /// Errors: [`ControlError::Refused`] if it fits none.
    async fn select(&self, selector: &str, namespace: &str, overridden_only: bool) -> Result<Vec<PodId>, ControlError> {
        let parsed: Selector = selector.parse().map_err(|error| ControlError::Invalid {
            field: "selector".to_owned(),
            message: format!("{error}"),
        })?;
        let namespace = namespace.to_owned();
        let fits = move |state: &&PodState| {
            let metadata = &state.pod.metadata;
            (namespace.is_empty() || metadata.namespace == namespace)
                && parsed.selects(&metadata.labels)
                && (!overridden_only || state.desired.overridden.is_some())
        };
        let id = |state: &PodState| {
            let described = || state.pod.id_with(&state.pod.metadata.uid);
            state.identity.clone().unwrap_or_else(described)
        };
        let pods: Vec<PodId> = self
            .ask(move |controller| Ok(controller.pods().filter(fits).map(id).collect()))
            .await?;
        if pods.is_empty() {
            let what = if overridden_only {
                "no pod with an override"
            } else {
                "no pod"
            };
            let message = format!("{what} on this node fits the selector {selector:?}: `vscalectl get` lists them");
            return Err(ControlError::Refused(message));
        }
        Ok(pods)
    }
}

impl Backend for AgentBackend {
    async fn get(&self, _request: proto::GetRequest) -> Result<proto::GetReply, ControlError> {
        let snapshot = self.ask(|controller| Ok(controller.agent_snapshot())).await?;
        let now = Timestamp::now();
        let pods = snapshot.pods.iter();
        Ok(proto::GetReply {
            agent: Some(view::agent(snapshot.node.as_deref(), snapshot.problems)),
            pods: pods.map(|state| view::pod(state, now, snapshot.quiet)).collect(),
        })
    }

    async fn explain(&self, request: proto::ExplainRequest) -> Result<proto::ExplainReply, ControlError> {
        let snapshot = self.snapshot(&request.pod).await?;
        explain::explain(snapshot).await
    }

    async fn resize(&self, caller: Caller, request: proto::ResizeRequest) -> Result<proto::ResizeReply, ControlError> {
        let wanted = override_of(caller, &request, resize_values(&request)?);
        if request.selector.is_empty() {
            let change = self.resize_one(caller, request.pod, wanted, request.dry_run).await?;
            return Ok(proto::ResizeReply {
                change: Some(change),
                results: Vec::new(),
            });
        }
        let pods = self.select(&request.selector, &request.namespace, false).await?;
        let names: Vec<String> = wanted.values.iter().map(|container| container.name.clone()).collect();
        let all = pods.into_iter().map(async |pod| {
            let ended = self
                .resize_one(caller, pod.to_string(), wanted.clone(), request.dry_run)
                .await;
            result(pod, names.clone(), ended)
        });
        Ok(proto::ResizeReply {
            change: None,
            results: join_all(all).await,
        })
    }

    async fn release(
        &self,
        caller: Caller,
        request: proto::ReleaseRequest,
    ) -> Result<proto::ReleaseReply, ControlError> {
        let release = || OperatorRequest::Release {
            uid: caller.uid,
            pid: caller.pid,
            reason: request.reason.clone(),
        };
        if request.selector.is_empty() {
            let change = self.change(caller, request.pod.clone(), release()).await?;
            return Ok(proto::ReleaseReply {
                change: Some(change),
                results: Vec::new(),
            });
        }
        let pods = self.select(&request.selector, &request.namespace, true).await?;
        let all = pods.into_iter().map(async |pod| {
            let ended = self.change(caller, pod.to_string(), release()).await;
            result(pod, Vec::new(), ended)
        });
        Ok(proto::ReleaseReply {
            change: None,
            results: join_all(all).await,
        })
    }

    async fn history(&self, request: proto::HistoryRequest) -> Result<proto::HistoryReply, ControlError> {
        let pod = match request.pod.as_str() {
            "" => None,
            pod => Some(self.find(pod).await?),
        };
        let records = self.ask(move |controller| controller.recent(pod.as_deref())).await?;
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

    async fn doctor(&self) -> Result<proto::DoctorReply, ControlError> {
        let agent = self.ask(|controller| Ok(controller.agent_snapshot())).await?;
        let checks = self.doctor.examine(agent).await?;
        Ok(proto::DoctorReply {
            checks: checks.into_iter().map(Into::into).collect(),
        })
    }

    fn record_refusal(&self, caller: Caller, call: &'static str, reason: &str) {
        self.refused(caller, call, None, reason);
    }
}

fn result(pod: PodId, containers: Vec<String>, ended: Result<proto::Change, ControlError>) -> proto::PodResult {
    let (change, error) = match ended {
        Ok(change) => (Some(change), String::new()),
        Err(error) => (None, error.to_string()),
    };
    proto::PodResult {
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
        containers,
        change,
        error,
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
