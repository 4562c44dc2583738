//! Starts the tasks of the agent and connects them.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::backend::{AgentBackend, record_refusal};
use super::discovery::{Discovery, DiscoveryLinks};
use super::oom::{KillWatch, watch_for_kills};
use super::run::Running;
use super::source_merge::SourceMerge;
use super::state_directory::StateDirectory;
use super::{machine, reporting, view};
use crate::actuate::{LeastLimits, PodResizer};
use crate::config::{Config, RunArguments, Source};
use crate::control::{Access, CallGate, ChangeFeed, ControlSocket, Limits, serve};
use crate::doctor::Locations;
use crate::feed::Feed;
use crate::guard::{Guard, LimitFiles};
use crate::kubernetes::metrics::ApiMetrics;
use crate::kubernetes::{ApiClient, ApiResizer, Latest, Timing};
use crate::model::ChangeRecord;
use crate::model::objects::Pod;
use crate::observe::audit::{Audit, AuditOptions, DURABLE_WITHIN};
use crate::observe::health::Heartbeat;
use crate::observe::http::{self, Exposed};
use crate::observe::metrics::registry;
use crate::oom::watch::NodePods;
use crate::reconcile::annotations::Annotator;
use crate::reconcile::controller::{Controller, Event, GuardLink, NodeFacts, Publisher};
use crate::reconcile::history::History;
use crate::reconcile::metrics::Metrics;
use crate::reconcile::savings::Savings;
use crate::reconcile::store::Store;
use crate::report::Reporter;
use crate::runtime::RuntimeMetrics;
use crate::sources::directory::DirectorySource;
use crate::sources::kubernetes::KubernetesSource;
use crate::sources::{KnownObjects, NodeView};

/// The most events that may wait for the controller.
const EVENTS: usize = 1024;
/// The longest interval between two heartbeats of a healthy controller.
const STALLED: Duration = Duration::from_secs(30);

/// What many tasks need to reach the others.
pub(super) struct Channels {
    pub(super) events: mpsc::Sender<Event>,
    /// Each change of a pod, for the tasks of the agent.
    pub(super) records: Feed<Arc<ChangeRecord>>,
    /// The same for callers of the control socket.
    pub(super) changes: ChangeFeed,
    pub(super) audit: Audit,
    pub(super) stop: CancellationToken,
}

/// Starts the agent.
///
/// Errors: a socket, an address or the API server cannot be used. No task writes to a pod then.
pub(super) async fn start(
    config: &Config,
    arguments: &RunArguments,
    mut state: StateDirectory,
    stop: &CancellationToken,
) -> Result<Running> {
    // An intact state file is complete for pods without temporary limits.
    let is_lost = state.restored.problem.is_some();
    state.earlier_limits.retain(|_, lent| is_lost || !lent.is_empty());
    let (socket, http) = listen(config).await?;
    let address = http.as_ref().and_then(|listener| listener.local_addr().ok());
    let mut registry = registry();
    let (metrics, savings) = (Metrics::register(&mut registry), Savings::register(&mut registry));
    let starting = Arc::new(());
    let api = connect(config, ApiMetrics::register(&mut registry)).await?;
    let heartbeat = Heartbeat::new(STALLED);

    let (audit, audit_writer) = start_audit(config).unzip();
    let (events, inbox) = mpsc::channel(EVENTS);
    let channels = Channels {
        events,
        records: Feed::default(),
        changes: ChangeFeed::default(),
        audit: audit.unwrap_or_default(),
        stop: stop.clone(),
    };
    // The first view has the pods of which an earlier agent knew.
    let (views, view) = watch::channel(Arc::new(NodeView::from(KnownObjects {
        pods: state.restored.described(),
        ..KnownObjects::default()
    })));
    let (source_merge, pods) = start_sources(config, api.clone(), stop);
    tokio::spawn(source_merge.run(views, channels.events.clone()));
    let cluster = api.as_ref().map(|api| follow_cluster(api, pods, &channels));
    let (resizer, annotator) = cluster.unzip();
    let (node_pods, watched) = watch::channel(Arc::new(NodePods::default()));
    let known = reporting::AgentMetadata {
        view: view.clone(),
        node_pods: watched.clone(),
    };
    let for_events = api.map(|api| (api, channels.records.listen()));
    let (reporter, recovered) = reporting::start(config, for_events, known, &mut registry, stop);
    let oom = watch_for_kills(config, &channels, watched, reporter.clone(), recovered, &mut registry);
    let least_limits = Arc::new(LeastLimits::default());
    let (discover, discovery_asked) = mpsc::channel(1);
    let (formula, seen) = watch::channel(None);
    let discovery = Discovery::new(DiscoveryLinks {
        config: config.clone(),
        freezer: state.freezer,
        least_limits: Arc::clone(&least_limits),
        runtime_metrics: RuntimeMetrics::register(&mut registry),
        view,
        node_pods,
        seen,
        unsaved: state.earlier_limits,
    });
    tokio::spawn(discovery.run(discovery_asked, channels.events.clone()));
    if let Some(listener) = http {
        let exposed = Exposed::new(registry, heartbeat.clone(), Arc::downgrade(&starting));
        http::serve(listener, exposed, stop.clone()).context("cannot serve metrics and health")?;
    }
    let control = answer_callers(config, arguments, socket, &oom, &channels);
    let guard = start_guard(&state.limit_files, least_limits);
    let controller = Controller::new(
        config.clone(),
        NodeFacts::new(machine::capacity(), discover, formula, starting),
        channels.events.clone(),
        resizer,
        Store::start(state.file, state.restored, state.limit_files),
        guard,
        Publisher {
            metrics,
            savings,
            annotator,
            kill_problems: kill_problems(&oom, &reporter),
            history: history(&channels),
        },
    );
    let controller = tokio::spawn(controller.run(inbox, stop.clone(), heartbeat));
    let address = address.map(tracing::field::display);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %config.socket.display(), http = address, "vscaled runs");
    Ok(Running {
        events: channels.events,
        controller,
        control,
        oom,
        reporter,
        audit_writer,
        lock: state.lock,
    })
}

/// The history of changes, which also goes to the tasks of the agent, to the audit log and to callers of the control socket.
fn history(channels: &Channels) -> History {
    let changes = channels.changes.clone();
    History::new(channels.records.clone(), channels.audit.clone(), move |record| {
        changes.send(|| view::change(record));
    })
}

/// Opens the control socket, and the address for metrics and health if the configuration has one.
async fn listen(config: &Config) -> Result<(ControlSocket, Option<TcpListener>)> {
    let access = Access {
        operators: machine::group("operatorGroup", config.operator_group.as_deref())?,
        readers: machine::group("readerGroup", config.reader_group.as_deref())?,
    };
    let socket = ControlSocket::bind(&config.socket, access).await.context("socket")?;
    let http = config.http_address.map(http::listen).transpose()?;
    Ok((socket, http))
}

/// Starts what writes annotations. Tells the controller when the API server is back.
fn follow_cluster(api: &ApiClient, pods: Option<Latest<Pod>>, channels: &Channels) -> (Arc<dyn PodResizer>, Annotator) {
    let stop = || channels.stop.clone();
    api.keep_probing(stop());
    let (health, returned) = (api.health.clone(), channels.events.clone());
    tokio::spawn(async move {
        while {
            health.returned().await;
            returned.send(Event::ApiServerReturned).await.is_ok()
        } {}
    });
    let resizer = Arc::new(ApiResizer::new(api.clone(), pods));
    (resizer, Annotator::start(api.clone(), stop()))
}

/// The present problems of the watcher, the recorder and the receivers of kills.
fn kill_problems(oom: &KillWatch, reporter: &Reporter) -> Box<dyn Fn() -> Vec<String> + Send + Sync> {
    let (watched, status) = (oom.problems.clone(), reporter.status());
    Box::new(move || {
        let watched = watched.iter().flat_map(|problems| problems.borrow().clone());
        watched.chain(status.borrow().problems()).collect()
    })
}

/// Starts the guard. An agent without one does everything else.
fn start_guard(limit_files: &Arc<LimitFiles>, least_limits: Arc<LeastLimits>) -> GuardLink {
    let (reported, reports) = mpsc::unbounded_channel();
    let guard = Guard::start(reported, Arc::clone(limit_files))
        .inspect_err(|error| tracing::error!(%error, "the guard cannot start: no limit is raised before it is reached"))
        .ok();
    GuardLink {
        guard,
        reports,
        least_limits,
        changed: <_>::default(),
    }
}

fn answer_callers(
    config: &Config,
    arguments: &RunArguments,
    socket: ControlSocket,
    oom: &KillWatch,
    channels: &Channels,
) -> JoinHandle<()> {
    let audited = channels.audit.clone();
    let gate = CallGate::new(Limits::default(), channels.stop.clone(), move |caller, call, reason| {
        record_refusal(&audited, caller, call, None, reason);
    });
    let gate = Arc::new(gate);
    let backend = AgentBackend {
        gate: Arc::clone(&gate),
        events: channels.events.clone(),
        changes: channels.changes.clone(),
        audit: channels.audit.clone(),
        locations: Locations {
            cgroup_root: config.custom_cgroup_root().map(Path::to_owned),
            state_dir: config.state_dir.clone(),
            audit_file: config.audit_file(),
            kmsg: config.kmsg.clone(),
        },
        arguments: arguments.clone(),
        kills: oom.kills.clone(),
    };
    tokio::spawn(async move { serve(socket, backend, &gate).await })
}

/// The client of the API server, if the configuration has that source.
pub(super) async fn connect(config: &Config, counted: ApiMetrics) -> Result<Option<ApiClient>> {
    if !config.source.has_cluster() {
        return Ok(None);
    }
    let client = ApiClient::connect(config.kubeconfig.as_deref(), counted).await?;
    Ok(Some(client))
}

/// Starts the configured sources. Objects of the cluster win over manifests. Also returns access to the pods that the API server
/// sends.
pub(super) fn start_sources(
    config: &Config,
    api: Option<ApiClient>,
    stop: &CancellationToken,
) -> (SourceMerge, Option<Latest<Pod>>) {
    let (mut sources, mut pods) = (Vec::new(), None);
    if let Some(api) = api {
        let kubelet = (config.source == Source::Kubelet).then(|| config.kubelet_socket.clone());
        let (source, states) = KubernetesSource::new(api, &config.node_name, kubelet, Timing::default());
        // What a kubelet says of a pod may not be what the API server has.
        pods = (config.source != Source::Kubelet).then(|| source.pods());
        tokio::spawn(source.run(stop.clone()));
        sources.push(states);
    }
    if config.source.has_directory() {
        let (source, states) = DirectorySource::new(config.manifests.clone(), &config.node_name);
        tokio::spawn(source.run(stop.clone()));
        sources.push(states);
    }
    (SourceMerge { sources }, pods)
}

/// Starts the audit log, if the configuration has one.
pub(super) fn start_audit(config: &Config) -> Option<(Audit, JoinHandle<()>)> {
    let options = AuditOptions {
        path: config.audit_file()?,
        bytes: config.audit_log_size.get(),
        files: config.audit_log_files,
        sync_within: DURABLE_WITHIN,
    };
    Some(Audit::start(options))
}
