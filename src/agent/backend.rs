//! Implements the calls of the control socket: passes requests to the controller, and reads files outside of it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use kube::core::{Selector, SelectorExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use super::doctor;
use super::oom::Kills;
use super::{explain, fitting, savings_report, usage, view};
use crate::actuate::Job;
use crate::config::RunArguments;
use crate::control::{
    self, CallGate, Caller, ChangeFeed, Changes, Control, ControlError, Right, check_change, find_pod, proto,
    resize_values,
};
use crate::doctor::Locations;
use crate::model::ChangeRecord;
use crate::model::objects::{PodId, PodKey};
use crate::observe::audit::{Audit, Refusal};
use crate::reconcile::controller::{Controller, Event, PodSnapshot, Reply, send};
use crate::reconcile::overrides::Override;
use crate::reconcile::pod::{PodState, ended_early, not_running, pod_targets};
use crate::reconcile::work::OperatorRequest;
use crate::resize::{Act, Facts};

/// Dry runs at once: each asks the controller and the runtime, and who may only read may ask for all pods.
const PREVIEWS: usize = 8;

/// The service at the control socket.
#[derive(Debug, Clone)]
pub(super) struct AgentBackend {
    pub(super) gate: Arc<CallGate>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) changes: ChangeFeed,
    pub(super) audit: Audit,
    pub(super) locations: Locations,
    pub(super) arguments: RunArguments,
    pub(super) kills: Kills,
}

impl AgentBackend {
    /// Returns the result of a query, which the controller runs at once.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Controller) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, ControlError> {
        self.request(|controller, reply| send(reply, query(controller))).await
    }

    /// Sends a request to the controller, and waits for the answer. The controller receives requests at once, so a full
    /// channel means that it is overloaded.
    async fn request<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Controller, Reply<T>) + Send + 'static,
    ) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        let request = Event::Request(Box::new(|controller| request(controller, reply)));
        let busy = |reason: &str| ControlError::Busy(reason.to_owned());
        self.events.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => busy("the controller's queue is full; retry"),
            TrySendError::Closed(_) => busy("the agent is shutting down"),
        })?;
        answer.await.map_err(|_| ended_early())?
    }

    async fn snapshot(&self, pod: String) -> Result<PodSnapshot, ControlError> {
        let query = move |controller: &mut Controller| controller.snapshot(&find(controller, &pod)?);
        self.query(query).await
    }

    /// Carries out a request, and waits for its end. The audit log records a refusal.
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
        let named = pod.clone();
        let change = move |controller: &mut Controller, reply| match find(controller, &named) {
            Ok(found) => controller.change(&found, request, reply),
            Err(error) => send(reply, Err(error)),
        };
        let ended = self.request(change).await;
        let ended = ended.inspect_err(|error| record_refusal(&self.audit, caller, call, Some(pod), &error.to_string()));
        let (record, unsaved) = ended?;
        // An override that was not carried out is taken back.
        let unsaved = unsaved.filter(|_| call == "release" || record.outcome.is_kept());
        Ok(answer(&record, unsaved.as_deref()))
    }

    /// The steps of a request, without doing them.
    async fn preview(&self, pod: String, wanted: Override) -> Result<proto::Change, ControlError> {
        let snapshot = self.snapshot(pod).await?;
        let mut state = snapshot.state;
        let cause = wanted.cause();
        wanted.check_names(&state.pod)?;
        let set = state.set_override(wanted, &snapshot.capacity);
        set.map_err(ControlError::Refused)?;
        let targets = pod_targets(&state, Timestamp::now(), snapshot.resize.is_some());
        let (Some(node), Some(targets)) = (snapshot.node, targets) else {
            return Err(not_running(&state.pod));
        };
        let resize = snapshot.resize.map(|facts| {
            let (facts, waits) = at_once(facts);
            let mut amounts = targets.amounts.clone();
            node.least_limits.lift(&targets.bound.live().id.uid, &mut amounts);
            let act = state.resize.all_answered().next(&state.pod, &amounts, &cause, &facts);
            let waits = waits.filter(|_| matches!(act, Act::Patch(_)));
            (act, waits)
        });
        let (act, waits) = resize.unwrap_or_default();
        let mut job = Job::new(targets, cause);
        job.resize = act;
        let planned = view::planned(node, job).await.map_err(ControlError::Refused)?;
        Ok(proto::Change {
            reason: waits.unwrap_or_default(),
            ..planned
        })
    }

    /// Changes one pod, or each pod that a selector fits, so many at once.
    async fn change_each<F: Future<Output = Result<proto::Change, ControlError>>>(
        &self,
        (pod, selector, namespace): (String, String, String),
        overridden_only: bool,
        containers: &[String],
        at_once: usize,
        change: impl Fn(String) -> F,
    ) -> Result<proto::ChangeReply, ControlError> {
        if selector.is_empty() {
            let change = Some(change(pod).await?);
            return Ok(proto::ChangeReply {
                change,
                results: Vec::new(),
            });
        }
        let pods = self.select(&selector, &namespace, overridden_only).await?.into_iter();
        let all = pods.map(async |pod| view::result(&pod, containers.to_vec(), change(pod.to_string()).await));
        let results = stream::iter(all).buffered(at_once).collect().await;
        Ok(proto::ChangeReply { change: None, results })
    }

    async fn resize_pods(
        &self,
        caller: Caller,
        request: proto::ResizeRequest,
    ) -> Result<proto::ChangeReply, ControlError> {
        let (values, since) = (resize_values(&request)?, Timestamp::now());
        let wanted = Override {
            uid: caller.uid,
            pid: caller.pid,
            reason: request.reason,
            since,
            until: request.ttl_us.map(|micros| after(since, micros)),
            values,
        };
        let containers = wanted.values.containers.iter();
        let containers: Vec<String> = containers.map(|container| container.name.clone()).collect();
        let pods = (request.pod, request.selector, request.namespace);
        if request.dry_run {
            let preview = |pod| self.preview(pod, wanted.clone());
            return self.change_each(pods, false, &containers, PREVIEWS, preview).await;
        }
        let resize = |pod| self.change(caller, pod, OperatorRequest::Override(wanted.clone()));
        self.change_each(pods, false, &containers, usize::MAX, resize).await
    }

    async fn release_pods(
        &self,
        caller: Caller,
        request: proto::ReleaseRequest,
    ) -> Result<proto::ChangeReply, ControlError> {
        check_change(&request.pod, &request.selector, &request.namespace, &request.reason)?;
        let release = OperatorRequest::Release {
            uid: caller.uid,
            pid: caller.pid,
            reason: request.reason,
        };
        let pods = (request.pod, request.selector, request.namespace);
        let release = |pod| self.change(caller, pod, release.clone());
        self.change_each(pods, true, &[], usize::MAX, release).await
    }

    /// The pods that a selector fits.
    ///
    /// Errors: [`ControlError::Refused`] if the selector fits none.
    async fn select(&self, selector: &str, namespace: &str, overridden_only: bool) -> Result<Vec<PodId>, ControlError> {
        let parsed =
            control::selector(selector).map_err(|message| ControlError::Invalid(format!("selector: {message}")))?;
        let namespace = namespace.to_owned();
        let fits = move |state: &&PodState| {
            is_selected(state, &parsed, &namespace) && (!overridden_only || state.desired.overridden.is_some())
        };
        let id = |state: &PodState| {
            let described = || state.pod.id_with(&state.pod.metadata.uid);
            state.identity.clone().unwrap_or_else(described)
        };
        let fitting = move |controller: &mut Controller| Ok(controller.pods().filter(fits).map(id).collect());
        let pods: Vec<PodId> = self.query(fitting).await?;
        if pods.is_empty() {
            let overridden = if overridden_only { " with an override" } else { "" };
            let message =
                format!("no pod{overridden} on this node fits the selector {selector:?}: `vscalectl get` lists them");
            return Err(ControlError::Refused(message));
        }
        Ok(pods)
    }
}

#[tonic::async_trait]
impl Control for AgentBackend {
    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<proto::GetReply>, Status> {
        let get = async |request: proto::GetRequest| {
            let query = move |controller: &mut Controller| {
                let vpas = request.usage.then(|| controller.vpas());
                Ok((controller.agent_snapshot(), vpas))
            };
            let (snapshot, vpas) = self.query(query).await?;
            let now = Timestamp::now();
            let pods = snapshot.pods.iter();
            let mut pods: Vec<_> = pods.map(|state| view::pod(state, now, snapshot.quiet)).collect();
            if let Some(vpas) = vpas {
                let live = snapshot.pods.into_iter().map(|state| state.live).collect();
                pods = usage::add(pods, live, vpas, snapshot.node.clone()).await?;
            }
            // The screen of `top` shows the first problem.
            let mut problems = fitting::fit(&mut pods);
            problems.extend(snapshot.problems);
            Ok(proto::GetReply {
                agent: Some(view::agent(snapshot.node.as_deref(), problems)),
                pods,
            })
        };
        self.gate.read("get", request, get).await
    }

    async fn explain(&self, request: Request<proto::ExplainRequest>) -> Result<Response<proto::ExplainReply>, Status> {
        let explain = async |request: proto::ExplainRequest| {
            let snapshot = self.snapshot(request.pod).await?;
            let kills = self.kills.borrow().iter().cloned().collect();
            explain::explain(snapshot, kills).await
        };
        self.gate.read("explain", request, explain).await
    }

    async fn history(&self, request: Request<proto::HistoryRequest>) -> Result<Response<proto::HistoryReply>, Status> {
        let history = async |request: proto::HistoryRequest| {
            let query = move |controller: &mut Controller| {
                let named = [in_history, view::identifiers];
                let [pods, objects] = named.map(|named| controller.pods().map(named).collect::<Vec<_>>());
                let records = records_of(&request.pod, [&pods, &objects], controller.recent(None));
                missing_only_in(controller.has_view(), records)
            };
            let records = self.query(query).await?;
            let changes = records.iter().map(|record| view::change(record)).collect();
            Ok(proto::HistoryReply { changes })
        };
        self.gate.read("history", request, history).await
    }

    async fn report(&self, request: Request<proto::ReportRequest>) -> Result<Response<proto::ReportReply>, Status> {
        let report = async |request: proto::ReportRequest| {
            let since = request.since_us.map(Duration::from_micros);
            let query = move |controller: &mut Controller| {
                Ok((
                    controller.savings(since),
                    controller.agent_snapshot(),
                    controller.recent(None),
                ))
            };
            let (savings, snapshot, changes) = self.query(query).await?;
            let kills: Vec<_> = self.kills.borrow().iter().cloned().collect();
            savings_report::report(savings, snapshot, &changes, &kills).await
        };
        self.gate.read("report", request, report).await
    }

    async fn oom_list(&self, request: Request<proto::OomListRequest>) -> Result<Response<proto::OomListReply>, Status> {
        let list = async |request: proto::OomListRequest| {
            let kills = self.kills.borrow();
            let wanted = kills.iter().filter(|report| view::is_kill_of(report, &request.pod));
            let kills = wanted.map(|report| view::kill(report)).collect();
            Ok(proto::OomListReply { kills })
        };
        self.gate.read("oom list", request, list).await
    }

    async fn doctor(&self, request: Request<proto::DoctorRequest>) -> Result<Response<proto::DoctorReply>, Status> {
        let doctor = async {
            let agent = self.query(|controller| Ok(controller.agent_snapshot())).await?;
            let checks = doctor::examine(self.locations.clone(), self.arguments.outdated_file(), agent).await?;
            Ok(proto::DoctorReply { checks })
        };
        self.gate.read("doctor", request, |_| doctor).await
    }

    async fn resize(&self, request: Request<proto::ResizeRequest>) -> Result<Response<proto::ChangeReply>, Status> {
        // A dry run changes nothing.
        let is_dry = request.get_ref().dry_run;
        let needs = if is_dry { Right::Read } else { Right::Change };
        let agent = self.clone();
        let resize = |caller, request| async move { agent.resize_pods(caller, request).await };
        self.gate.change("resize", needs, request, resize).await
    }

    async fn release(&self, request: Request<proto::ReleaseRequest>) -> Result<Response<proto::ChangeReply>, Status> {
        let agent = self.clone();
        let release = |caller, request| async move { agent.release_pods(caller, request).await };
        self.gate.change("release", Right::Change, request, release).await
    }

    type WatchStream = Changes;

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Result<Response<Changes>, Status> {
        self.gate.watch(&request, self.changes.watch())
    }
}

/// So many microseconds after a time, or the end of all time.
fn after(since: Timestamp, micros: u64) -> Timestamp {
    let later = SignedDuration::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
    since.checked_add(later).unwrap_or(Timestamp::MAX)
}

/// Whether a selector fits a pod of the namespace, or of any if that is empty.
fn is_selected(state: &PodState, selector: &Selector, namespace: &str) -> bool {
    let metadata = &state.pod.metadata;
    (namespace.is_empty() || metadata.namespace == namespace) && selector.matches(&metadata.labels)
}

/// A pod as the history names it: also while it is down, the records of a static pod have the UID of its cgroups, which its
/// object only claims.
fn in_history(state: &PodState) -> proto::Pod {
    let mut pod = view::identifiers(state);
    if let Some(id) = &state.identity {
        pod.uid = (*id.uid).to_owned();
    }
    pod
}

/// The records of the pod that a caller names, or of all pods, which stand in the same order under the UIDs of their objects. A pod on
/// this node is found before those that have ended.
///
/// Errors: as [`find_pod`], if the text names neither.
fn records_of(
    text: &str,
    [pods, objects]: [&[proto::Pod]; 2],
    mut records: Vec<Arc<ChangeRecord>>,
) -> Result<Vec<Arc<ChangeRecord>>, ControlError> {
    if text.is_empty() {
        return Ok(records);
    }
    let of_object = || pods.get(objects.iter().position(|object| object.uid == text)?);
    let found = find_pod(pods, text).or_else(|error| of_object().ok_or(error));
    let is_of = |pod: &PodId| match &found {
        // A manifest may have no UID.
        Ok(found) if !found.uid.is_empty() => *pod.uid == *found.uid,
        _ => *pod.uid == *text || pod.to_string() == text,
    };
    records.retain(|record| is_of(&record.pod));
    match found {
        Err(ControlError::NotFound { .. }) if !records.is_empty() => Ok(records),
        found => found.map(|_| records),
    }
}

/// The pod that a caller names.
fn find(controller: &Controller, text: &str) -> Result<PodKey, ControlError> {
    let pods: Vec<_> = controller.pods().map(view::identifiers).collect();
    let pod = missing_only_in(controller.has_view(), find_pod(&pods, text))?;
    Ok(PodKey::new(&pod.namespace, &pod.name))
}

/// What was found. Where the agent has no view of the node's pods yet, it does not say that a pod is missing.
fn missing_only_in<T>(has_view: bool, found: Result<T, ControlError>) -> Result<T, ControlError> {
    found.map_err(|error| match error {
        ControlError::NotFound { .. } if !has_view => {
            let why = "the pods are not known yet, because a source has not answered since the agent's start";
            ControlError::Busy(why.to_owned())
        }
        error => error,
    })
}

/// The facts for the steps of a pass that runs at once, and why a pass would wait for the kubelet's report before it patches the spec.
fn at_once(mut facts: Facts) -> (Facts, Option<String>) {
    facts.too_early = None;
    // The pass writes the cgroups ahead of an API server that is away.
    let (unreported, away) = (facts.unreported.take(), facts.away.take());
    (facts, unreported.filter(|_| away.is_none()).map(|(why, _)| why))
}

/// The answer to a request that a pass carried out; `unsaved` says why the state after it is not saved.
fn answer(record: &ChangeRecord, unsaved: Option<&str>) -> proto::Change {
    let mut change = view::change(record);
    // The caller asked for the kernel's values, and they are verified. Whether the kubelet agrees, the history tells.
    record.outcome.word().clone_into(&mut change.outcome);
    if let Some(problem) = unsaved {
        let and = if change.reason.is_empty() { "" } else { "; " };
        change.reason += &format!("{and}this is not saved, and a restart of the agent may take it back: {problem}");
    }
    change
}

/// Records the refusal of a call in the audit log.
pub(super) fn record_refusal(audit: &Audit, caller: Caller, call: &'static str, pod: Option<String>, reason: &str) {
    audit.refused(Refusal {
        time: Timestamp::now(),
        uid: caller.uid,
        pid: caller.pid,
        call,
        pod,
        reason: reason.to_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::PodDecision;
    use crate::model::objects::{OwnerReference, Pod, annotation};
    use crate::model::{Cause, Outcome};

    fn pod(name: &str, uid: &str) -> PodId {
        PodId {
            uid: uid.into(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn an_override_ends_after_its_microseconds() {
        let since = Timestamp::UNIX_EPOCH;
        assert_eq!(after(since, 90_000_000), Timestamp::from_second(90).unwrap());
        assert_eq!(after(since, u64::MAX), Timestamp::MAX);
    }

    #[test]
    fn a_selector_fits_labels_in_a_namespace() {
        let web = control::selector("app=web").unwrap();
        for (app, namespace, fits) in [
            ("web", "", true),
            ("web", "shop", true),
            ("web", "bank", false),
            ("db", "", false),
            ("db", "shop", false),
        ] {
            let mut pod = Pod::default();
            pod.metadata.namespace = "shop".to_owned();
            pod.metadata.labels.insert("app".to_owned(), app.to_owned());
            let decision = PodDecision::undecided(&pod);
            let state = PodState::new(Arc::new(pod), decision);
            assert_eq!(is_selected(&state, &web, namespace), fits, "{app} {namespace:?}");
        }
    }

    #[test]
    fn an_ended_pod_keeps_its_history() {
        let present = |name: &str, uid: &str| proto::Pod {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..proto::Pod::default()
        };
        let pods = [
            present("db-0", "u2"),
            present("manifest", ""),
            present("twin", "u5"),
            present("twin", "u6"),
        ];
        let mut objects = pods.clone();
        objects[0].uid = "mirror".to_owned();
        let records = [
            ("web", "u1"),
            ("db-0", "u0"),
            ("db-0", "u2"),
            ("manifest", "u3"),
            ("twin", "u5"),
        ];
        let records = records.map(|(name, uid)| {
            let record = ChangeRecord::new(pod(name, uid), Cause::Sweep, Outcome::Applied);
            Arc::new(record)
        });
        let found = |text: &str| -> Result<String, ControlError> {
            let records = records_of(text, [&pods, &objects], records.to_vec())?;
            let uids: Vec<&str> = records.iter().map(|record| &*record.pod.uid).collect();
            Ok(uids.join(" "))
        };
        for (text, uids) in [
            ("", "u1 u0 u2 u3 u5"),
            ("shop/web", "u1"),
            ("u1", "u1"),
            ("shop/db-0", "u2"),
            ("u0", "u0"),
            ("mirror", "u2"),
            ("shop/manifest", "u3"),
            ("u6", ""),
        ] {
            assert_eq!(found(text), Ok(uids.to_owned()), "{text}");
        }
        let unknown = found("shop/db-1").unwrap_err().to_string();
        assert!(unknown.contains("(did you mean shop/db-0"), "{unknown}");
        assert!(matches!(found("shop/twin"), Err(ControlError::Invalid(_))));
    }

    #[test]
    fn no_pod_is_missing_before_the_first_view() {
        let found = |has_view| missing_only_in(has_view, find_pod(&[], "shop/web")).unwrap_err();
        assert!(matches!(found(true), ControlError::NotFound { .. }));
        let unknown = found(false).to_string();
        assert!(unknown.starts_with("busy: the pods are not known yet"), "{unknown}");
    }

    #[test]
    fn only_the_history_names_static_pods_by_cgroups() {
        let mut mirror = Pod::default();
        mirror.metadata.uid = "mirror".to_owned();
        let annotations = &mut mirror.metadata.annotations;
        annotations.insert(annotation::MIRROR.to_owned(), "hash".to_owned());
        mirror.metadata.owner_references = vec![OwnerReference {
            kind: "Node".to_owned(),
            ..OwnerReference::default()
        }];
        let decision = PodDecision::undecided(&mirror);
        let mut state = PodState::new(Arc::new(mirror), decision);
        let uids = |state: &PodState| [in_history(state), view::identifiers(state)].map(|pod| pod.uid);
        assert_eq!(uids(&state), ["mirror", "mirror"], "it has never run here");
        state.identity = Some(pod("db-0", "hash"));
        assert_eq!(uids(&state), ["hash", "mirror"], "it is down");
    }

    #[test]
    fn a_preview_says_what_its_pass_waits_for() {
        let why = "waits until its kubelet reports";
        for (away, expected) in [(None, Some(why)), (Some("the API server is away".to_owned()), None)] {
            let facts = Facts {
                too_early: Some(Duration::from_secs(1)),
                unreported: Some((why.to_owned(), None)),
                away,
                ..Facts::default()
            };
            let (facts, waits) = at_once(facts);
            assert_eq!(waits.as_deref(), expected);
            assert_eq!((facts.too_early, facts.unreported, facts.away), (None, None, None));
        }
        assert_eq!(at_once(Facts::default()).1, None);
    }

    #[test]
    fn an_answer_warns_of_an_unsaved_state() {
        let pod = pod("web", "u1");
        let full = "this is not saved, and a restart of the agent may take it back: the disk is full";
        for (outcome, unsaved, reason) in [
            (Outcome::Applied, None, String::new()),
            (Outcome::Applied, Some("the disk is full"), full.to_owned()),
            (
                Outcome::RuntimeOwed("no runtime".to_owned()),
                Some("the disk is full"),
                format!("no runtime; {full}"),
            ),
        ] {
            let mut record = ChangeRecord::new(pod.clone(), Cause::Sweep, outcome);
            record.in_flight = true;
            let change = answer(&record, unsaved);
            assert_eq!((&*change.outcome, change.reason), (record.outcome.word(), reason));
        }
    }
}
