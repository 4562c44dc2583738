//! Connects the tasks, runs them until a signal, and stops them in this order: the controller, the control socket, the
//! watcher of kills, the receivers, the audit log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::backend::{AgentBackend, record_refusal};
use super::discovery::{Discovery, DiscoveryLinks};
use super::event_emitter::emit_events;
use super::oom::{OomLinks, watch_for_kills};
use super::source_merge::SourceMerge;
use super::state_directory::StateDirectory;
use super::{machine, reporting, show_change, view};
use crate::actuate::{LeastLimits, PodResizer};
use crate::config::{Config, MEND_API_VERSION, RunArguments, Source};
use crate::control::{Access, CallGate, ControlSocket, Limits, serve};
use crate::decide::Refusals;
use crate::doctor::Locations;
use crate::guard::Guard;
use crate::kubernetes::events::EventRecorder;
use crate::kubernetes::metrics::{ApiMetrics, EventMetrics};
use crate::kubernetes::{ApiClient, ApiResizer, Latest, Timing};
use crate::model::objects::Pod;
use crate::observe::audit::{Audit, AuditOptions, DURABLE_WITHIN};
use crate::observe::health::{Heartbeat, Readiness};
use crate::observe::http::{self, Exposed};
use crate::observe::log::LogFilter;
use crate::observe::metrics::registry;
use crate::oom::watch::NodePods;
use crate::reconcile::annotations::Annotator;
use crate::reconcile::controller::{
    Controller, Discovered, Event, GuardLink, NodeFacts, Passes, Publisher, ResizeEndpoint,
};
use crate::reconcile::history::History;
use crate::reconcile::metrics::Metrics;
use crate::reconcile::savings::Savings;
use crate::reconcile::store::Store;
use crate::runtime::RuntimeMetrics;
use crate::sources::NodeView;
use crate::sources::directory::DirectorySource;
use crate::sources::kubernetes::KubernetesSource;

/// The most events that may wait for the controller.
const EVENTS: usize = 1024;
/// The most changes by which a watcher may lag.
const CHANGES: usize = 1024;
/// The longest wait for the audit log at the end of the agent.
const AUDIT_GRACE: Duration = Duration::from_secs(5);
/// The longest wait for the end of an earlier agent: a pod that is deleted by force overlaps with its successor.
const OTHERS_END: Duration = Duration::from_secs(5);
/// The longest interval between two heartbeats of a healthy controller.
const STALLED: Duration = Duration::from_secs(30);

/// Runs the agent until SIGTERM or SIGINT. It finishes the steps in progress, and leaves limits as they are.
///
/// Errors: the agent cannot start. It has written nothing then.
pub async fn run(mut config: Config, arguments: RunArguments, log: LogFilter) -> Result<()> {
    let receive = |kind| signal(kind).context("cannot receive signals");
    let mut terminate = receive(SignalKind::terminate())?;
    let mut interrupt = receive(SignalKind::interrupt())?;
    let mut hangup = receive(SignalKind::hangup())?;
    if let Some(file) = arguments.outdated_file() {
        tracing::warn!(file = %file.display(), "the configuration is of vscaled.io/v1alpha1: {MEND_API_VERSION}");
    }
    let mut state = StateDirectory::open(&config.state_dir, "run", OTHERS_END).await?;
    // An intact state file is complete for pods without temporary limits.
    let is_lost = state.restored.problem.is_some();
    state.earlier_limits.retain(|_, lent| is_lost || !lent.is_empty());
    let access = Access {
        operators: machine::group("operatorGroup", config.operator_group.as_deref())?,
        readers: machine::group("readerGroup", config.reader_group.as_deref())?,
    };
    let socket = ControlSocket::bind(&config.socket, access).await.context("socket")?;
    let http = config.http_address.map(http::listen).transpose()?;
    let address = http.as_ref().and_then(|listener| listener.local_addr().ok());
    let stop = CancellationToken::new();
    let mut registry = registry();
    let metrics = Metrics::register(&mut registry);
    let savings = Savings::register(&mut registry);
    let mut readiness = Readiness::default();
    let starting = vec![readiness.latch("sources and node")];
    let api = connect(&config, ApiMetrics::register(&mut registry)).await?;
    let heartbeat = Heartbeat::new(STALLED);

    let (events, inbox) = mpsc::channel(EVENTS);
    let (discover, discovery_asked) = mpsc::channel(1);
    let (formula, seen) = watch::channel(None);
    let (records, _) = broadcast::channel(CHANGES);
    let (changes, _) = broadcast::channel(CHANGES);

    let (views, view) = watch::channel(Arc::new(NodeView {
        pods: state.restored.described(),
        ..NodeView::default()
    }));
    let (source_merge, pods) = start_sources(&config, api.clone(), &stop);
    tokio::spawn(source_merge.run(views, events.clone()));
    let counted_events = EventMetrics::register(&mut registry);
    let cluster = api.clone().map(|api| {
        let recorder = EventRecorder::start(api.clone(), &config.node_name, counted_events, stop.clone());
        tokio::spawn(emit_events(records.subscribe(), view.clone(), recorder));
        api.keep_probing(stop.clone());
        let (health, returned) = (api.health.clone(), events.clone());
        tokio::spawn(async move {
            while {
                health.returned().await;
                returned.send(Event::ApiServerReturned).await.is_ok()
            } {}
        });
        let resizer: Arc<dyn PodResizer> = Arc::new(ApiResizer::new(api.clone(), pods));
        (resizer, Annotator::start(api, stop.clone()))
    });
    let (resizer, annotator) = cluster.unzip();
    let (node_pods, watched_node_pods) = watch::channel(Arc::new(NodePods::default()));
    let known = reporting::AgentMetadata {
        view: view.clone(),
        node_pods: watched_node_pods.clone(),
    };
    let (reporter, recovered) = reporting::start(&config, api, known, &mut registry, &stop);
    let (audit, audit_writer) = start_audit(&config).unzip();
    let audit = audit.unwrap_or_default();
    let oom_links = OomLinks {
        audit: audit.clone(),
        reporter: reporter.clone(),
        recovered,
        node_pods: watched_node_pods,
        records: records.subscribe(),
        changes: changes.clone(),
        events: events.clone(),
        stop: stop.clone(),
    };
    let oom = watch_for_kills(&config, oom_links, &mut registry);
    let least_limits = Arc::new(LeastLimits::default());
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
    tokio::spawn(discovery.run(discovery_asked, events.clone()));
    if let Some(listener) = http {
        let exposed = Exposed::new(registry, heartbeat.clone(), readiness);
        http::serve(listener, exposed, stop.clone()).context("cannot serve metrics and health")?;
    }
    let audited = audit.clone();
    let gate = CallGate::new(Limits::default(), stop.clone(), move |caller, call, reason| {
        record_refusal(&audited, caller, call, None, reason);
    });
    let gate = Arc::new(gate);
    let backend = AgentBackend {
        gate: Arc::clone(&gate),
        events: events.clone(),
        changes: changes.clone(),
        audit: audit.clone(),
        locations: Locations::from(&config),
        arguments: arguments.clone(),
        kills: oom.kills.clone(),
    };
    let control = tokio::spawn(async move { serve(socket, backend, &gate).await });

    let (reported, reports) = mpsc::unbounded_channel();
    let guard = Guard::start(reported, Arc::clone(&state.limit_files))
        .inspect_err(|error| tracing::error!(%error, "no guard: no limit is grown in an emergency"))
        .ok();
    let kill_problems = [oom.problems.clone(), vec![reporting::problems(&reporter)]].concat();
    let controller = Controller::new(
        config.clone(),
        NodeFacts {
            answers: Refusals::default(),
            found: Discovered::default(),
            machine: machine::capacity(),
            discover,
            formula,
            starting,
        },
        Passes::new(events.clone()),
        ResizeEndpoint {
            resizer,
            ..ResizeEndpoint::default()
        },
        Store::start(state.file, state.restored, state.limit_files),
        GuardLink {
            guard,
            reports,
            least_limits,
            stale: true,
        },
        Publisher {
            metrics,
            savings,
            annotator,
            kill_problems,
            history: History {
                records: VecDeque::new(),
                listeners: records,
                show: Box::new(move |record| show_change(&changes, || view::change(record))),
                audit,
            },
            next: None,
        },
    );
    let controller = tokio::spawn(controller.run(inbox, stop.clone(), heartbeat));

    let address = address.map(tracing::field::display);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %config.socket.display(), http = address, "vscaled runs");
    loop {
        // Cancel-safe: a signal stays pending.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {}
        }
        match config.reload(&arguments) {
            Ok(reload) => {
                tracing::info!(applied = ?reload.applied, needs_restart = ?reload.needs_restart, "reloaded");
                config = reload.config;
                if let Err(error) = log.set(&config.log_level) {
                    tracing::error!(%error, "the log level stays as it was");
                }
                if events.send(Event::Config(Box::new(config.clone()))).await.is_err() {
                    break;
                }
            }
            Err(error) => tracing::error!(%error, "not reloaded; the earlier configuration stays in force"),
        }
    }
    stop.cancel();
    for (name, ended) in [("controller", controller.await), ("control socket", control.await)] {
        if let Err(error) = ended {
            tracing::error!(task = name, %error, "did not stop in order");
        }
    }
    oom.finish().await;
    reporter.finish().await;
    if let Some(writer) = audit_writer
        && tokio::time::timeout(AUDIT_GRACE, writer).await.is_err()
    {
        tracing::warn!("the audit log may lack what was done last: the disk is too slow");
    }
    tracing::info!("stopped; limits stay as they are");
    Ok(())
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
