//! Connects the tasks, runs them until a signal, and stops them in order.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::TryFutureExt;
use procfs::Current;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::backend::{AgentBackend, record_refusal};
use super::discovery::{Discovery, DiscoveryLinks, UnsavedLimits};
use super::event_emitter::emit_events;
use super::lock::StateLock;
use super::oom::{OomLinks, watch_for_kills};
use super::source_merge::SourceMerge;
use super::{machine, reporting, view};
use crate::actuate::shrink::{Freezer, thaw_on_panic};
use crate::actuate::{Concurrency, LeastLimits, PodResizer};
use crate::config::{Config, MEND_API_VERSION, RunArguments, Source};
use crate::control::{Access, CallGate, ControlSocket, Limits, proto, serve};
use crate::doctor::Locations;
use crate::guard;
use crate::guard::{Guard, LentLast, LimitFiles};
use crate::kubernetes::events::EventRecorder;
use crate::kubernetes::metrics::{ApiMetrics, EventMetrics};
use crate::kubernetes::{ApiClient, ApiHealth, ApiResizer, Timing};
use crate::model::{Bytes, ChangeRecord};
use crate::observe::audit::{Audit, AuditOptions, DURABLE_WITHIN};
use crate::observe::health::{Heartbeat, Readiness};
use crate::observe::http::{self, Exposed};
use crate::observe::log::LogFilter;
use crate::observe::metrics::registry;
use crate::oom::watch::NodePods;
use crate::reconcile::annotations::Annotator;
use crate::reconcile::controller::{
    Controller, Discovered, Event, GuardLink, Hooks, NodeFacts, Options, Passes, Publisher, ResizeEndpoint, Store,
};
use crate::reconcile::history::History;
use crate::reconcile::metrics::Metrics;
use crate::reconcile::store::{Restored, StateFile, StateWriter};
use crate::reconcile::worth::Worth;
use crate::runtime::RuntimeMetrics;
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
pub async fn run(config: Config, arguments: RunArguments, log: LogFilter) -> Result<()> {
    let signals = signals().context("cannot receive signals")?;
    if let Some(file) = arguments.outdated_file() {
        tracing::warn!(file = %file.display(), "the configuration is of vscaled.io/v1alpha1: {MEND_API_VERSION}");
    }
    let StateDirectory {
        file: state,
        freezer,
        restored,
        limit_files,
        left,
        _lock,
    } = StateDirectory::open(&config.state_dir, "run", OTHERS_END).await?;
    let access = Access {
        operators: machine::group("operatorGroup", config.operator_group.as_deref())?,
        readers: machine::group("readerGroup", config.reader_group.as_deref())?,
    };
    let socket = ControlSocket::bind(&config.socket, access).await.context("socket")?;
    let http = match config.http_address {
        Some(address) => Some(http::listen(address).await?),
        None => None,
    };
    let address = http.as_ref().and_then(|listener| listener.local_addr().ok());
    let stop = CancellationToken::new();
    let mut registry = registry();
    let metrics = Metrics::register(&mut registry);
    let worth = Worth::register(&mut registry);
    let mut readiness = Readiness::default();
    let starting = vec![readiness.latch("sources and node")];
    let api = connect(&config, ApiMetrics::register(&mut registry)).await?;
    let heartbeat = Heartbeat::new(STALLED);

    let (events, inbox) = mpsc::channel(EVENTS);
    let (discover, discovery_asked) = mpsc::channel(1);
    let (formula, seen) = watch::channel(None);
    let (records, _) = broadcast::channel(CHANGES);
    let (changes, _) = broadcast::channel(CHANGES);

    let (views, view) = watch::channel(Arc::new(restored.described()));
    let counted_events = EventMetrics::register(&mut registry);
    let cluster = api.clone().map(|api| {
        let recorder = EventRecorder::start(api.clone(), &config.node_name, counted_events, stop.clone());
        tokio::spawn(emit_events(records.subscribe(), recorder));
        api.keep_probing(stop.clone());
        tokio::spawn(report_returns(api.health.clone(), events.clone()));
        let resizer: Arc<dyn PodResizer> = Arc::new(ApiResizer::new(api.clone()));
        (resizer, Annotator::start(api, stop.clone()))
    });
    let (resizer, annotator) = cluster.unzip();
    let source_merge = start_sources(&config, api.clone(), &stop);
    tokio::spawn(source_merge.run(views, events.clone()));
    let (residents, watched_residents) = watch::channel(Arc::new(NodePods::default()));
    let known = reporting::AgentMetadata {
        view: view.clone(),
        residents: watched_residents.clone(),
    };
    let (reporter, recovered) = reporting::start(&config, api, known, &mut registry, &stop);
    let (audit, audit_writer) = start_audit(&config).unzip();
    let audit = audit.unwrap_or_default();
    let oom_links = OomLinks {
        audit: audit.clone(),
        reporter: reporter.clone(),
        recovered,
        residents: watched_residents,
        records: records.subscribe(),
        changes: changes.clone(),
        events: events.clone(),
        stop: stop.clone(),
    };
    let oom = watch_for_kills(&config, oom_links, &mut registry);
    let least_limits = Arc::new(LeastLimits::default());
    let discovery = Discovery::new(DiscoveryLinks {
        config: config.clone(),
        concurrency: Arc::new(Concurrency::new(config.workers)),
        freezer,
        least_limits: Arc::clone(&least_limits),
        runtime_metrics: RuntimeMetrics::register(&mut registry),
        view,
        residents,
        seen,
        unsaved: UnsavedLimits::new(left, restored.problem.is_some()),
    });
    tokio::spawn(discovery.run(discovery_asked, events.clone()));
    tokio::spawn(publish_changes(records.subscribe(), changes.clone()));
    if let Some(listener) = http {
        let exposed = Exposed {
            registry,
            heartbeat: heartbeat.clone(),
            readiness,
        };
        let served = http::serve(listener, exposed, stop.clone());
        tokio::spawn(served.inspect_err(|error| tracing::error!(%error, "metrics and health are not served any more")));
    }
    let audited = audit.clone();
    let gate = CallGate::new(Limits::default(), stop.clone(), move |caller, call, reason| {
        record_refusal(&audited, caller, call, None, reason);
    });
    let gate = Arc::new(gate);
    let backend = AgentBackend {
        gate: Arc::clone(&gate),
        events: events.clone(),
        changes,
        audit: audit.clone(),
        locations: Locations::from(&config),
        arguments: arguments.clone(),
        kills: oom.kills.clone(),
    };
    let control = tokio::spawn(async move { serve(socket, backend, &gate).await });

    let (reported, reports) = mpsc::unbounded_channel();
    let guard = Guard::start(reported, Arc::clone(&limit_files))
        .inspect_err(|error| tracing::error!(%error, "no guard: no limit is grown in an emergency"))
        .ok();
    let kill_problems = [oom.problems.clone(), vec![reporting::problems(&reporter)]].concat();
    let controller = Controller::new(
        options(&config),
        NodeFacts {
            found: Discovered::default(),
            machine: machine::capacity(),
            discover,
            formula,
            starting,
        },
        Passes::new(events.clone()),
        ResizeEndpoint::new(resizer),
        Store::new(StateWriter::start(state), restored, limit_files),
        GuardLink {
            guard,
            reports,
            least_limits,
            stale: true,
        },
        Publisher {
            metrics,
            worth,
            annotator,
            kill_problems,
            history: History::new(records, audit),
            next: None,
        },
    );
    let controller = tokio::spawn(controller.run(inbox, stop.clone(), heartbeat));

    let address = address.map(tracing::field::display);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %config.socket.display(), http = address, "vscaled runs");
    until_stop(signals, config, &arguments, &events, &log).await;
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

/// The state directory of the one process that may write limits, with the state of an earlier process.
#[derive(Debug)]
pub(super) struct StateDirectory {
    pub(super) file: StateFile,
    pub(super) freezer: Arc<Freezer>,
    pub(super) restored: Restored,
    /// The files of temporary limits, and the limits of an earlier agent.
    pub(super) limit_files: Arc<LimitFiles>,
    pub(super) left: BTreeMap<String, LentLast>,
    pub(super) _lock: StateLock,
}

impl StateDirectory {
    /// Locks and reads the directory, and thaws the cgroups that an earlier agent had frozen when it was killed.
    ///
    /// Errors: another process has the lock for longer than `patience`, or the directory cannot be used.
    pub(super) async fn open(directory: &Path, command: &str, patience: Duration) -> Result<Self> {
        allow_open_files();
        let file = StateFile::in_directory(directory).context("stateDir")?;
        let lock = StateLock::acquire(directory, command, patience).await?;
        let shown = directory.display();
        let unusable =
            |error| anyhow!("stateDir: cannot use {shown}: {error}; check that it is writable and has free space");
        // Before any step that could fail or block: processes may be frozen.
        let freezer = Arc::new(thaw(directory).map_err(unusable)?);
        let (limit_files, left) = LimitFiles::below(directory).map_err(unusable)?;
        Ok(Self {
            restored: file.load().context("stateDir")?,
            file,
            freezer,
            limit_files,
            left,
            _lock: lock,
        })
    }
}

/// Thaws the cgroups that an earlier agent had frozen when it was killed, and makes a panic thaw cgroups too.
fn thaw(state_dir: &Path) -> io::Result<Freezer> {
    let freezer = Freezer::below(state_dir)?;
    let left = freezer.thaw_left_behind();
    for cgroup in &left.thawed {
        tracing::warn!(cgroup = %cgroup.display(), "was left frozen when the agent was killed; it goes on now");
    }
    for problem in &left.problems {
        tracing::error!("a cgroup may have been left frozen: {problem}");
    }
    thaw_on_panic();
    Ok(freezer)
}

/// Raises the limit of open files. Every guarded container needs three descriptors on v1 and one on v2, and two more if crun
/// made an inner cgroup: 1024 are too few for a full node.
fn allow_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
        } else {
            Ok(())
        }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files could not be raised; a full node may need more");
    }
}

/// The client of the API server, if the configuration has that source.
pub(super) async fn connect(config: &Config, counted: ApiMetrics) -> Result<Option<ApiClient>> {
    if !config.source.has_cluster() {
        return Ok(None);
    }
    let client = ApiClient::connect(config.kubeconfig.as_deref(), counted).await?;
    Ok(Some(client))
}

/// Starts the configured sources. Objects of the cluster win over manifests.
pub(super) fn start_sources(config: &Config, api: Option<ApiClient>, stop: &CancellationToken) -> SourceMerge {
    let mut sources = Vec::new();
    if let Some(api) = api {
        let kubelet = (config.source == Source::Kubelet).then(|| config.kubelet_socket.clone());
        let (source, states) = KubernetesSource::new(api, &config.node_name, kubelet, Timing::default());
        tokio::spawn(source.run(stop.clone()));
        sources.push(states);
    }
    if config.source.has_directory() {
        let (source, states) = DirectorySource::new(config.manifests.clone(), &config.node_name);
        tokio::spawn(source.run(stop.clone()));
        sources.push(states);
    }
    SourceMerge { sources }
}

/// Tells the controller whenever the API server answers again.
async fn report_returns(health: ApiHealth, events: mpsc::Sender<Event>) {
    loop {
        health.returned().await;
        if events.send(Event::ApiServerReturned).await.is_err() {
            return;
        }
    }
}

/// Converts records to changes for the watchers at the socket.
async fn publish_changes(
    mut records: broadcast::Receiver<Arc<ChangeRecord>>,
    changes: broadcast::Sender<Arc<proto::Change>>,
) {
    loop {
        match records.recv().await {
            // A record without a number is not in the history either.
            Ok(record) if changes.receiver_count() == 0 || record.sequence == 0 => {}
            // The last watcher may just have left.
            Ok(record) => drop(changes.send(Arc::new(view::change(&record)))),
            Err(broadcast::error::RecvError::Lagged(missed)) => tracing::warn!(missed, "watchers were not told of all"),
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// SIGTERM, SIGINT and SIGHUP.
fn signals() -> io::Result<[Signal; 3]> {
    Ok([
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ])
}

/// Reloads on SIGHUP; returns on SIGTERM and SIGINT.
async fn until_stop(
    [mut terminate, mut interrupt, mut hangup]: [Signal; 3],
    mut config: Config,
    arguments: &RunArguments,
    events: &mpsc::Sender<Event>,
    log: &LogFilter,
) {
    loop {
        // Cancel-safe: a signal stays pending.
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hangup.recv() => {}
        }
        match config.reload(arguments) {
            Ok(reload) => {
                tracing::info!(applied = ?reload.applied, needs_restart = ?reload.needs_restart, "reloaded");
                config = reload.config;
                if let Err(error) = log.set(&config.log_level) {
                    tracing::error!(%error, "the log level stays as it was");
                }
                if events.send(Event::Options(options(&config))).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::error!(%error, "not reloaded; the earlier configuration stays in force"),
        }
    }
}

fn options(config: &Config) -> Options {
    Options {
        decide: config.decide_options(),
        sweep_interval: config.sweep_interval,
        observe_only: config.observe_only,
        repair_pod_level: config.repair_pod_level,
        ask_when_full: config.ask_when_full,
        annotate: config.applied_annotation,
        hooks: Hooks {
            enabled: config.hooks,
            forbidden: config.hooks_forbidden_namespaces.clone(),
        },
        guard: config.guard.then(|| guard_settings(config)),
    }
}

fn guard_settings(config: &Config) -> guard::Settings {
    // If the size of the memory is unknown, its parts are zero, and the guard gives nothing.
    let all = procfs::Meminfo::current().map_or(0, |meminfo| meminfo.mem_total);
    let all = Bytes::new(all);
    guard::Settings {
        reserve: config.guard_reserve.of(all),
        budget: guard::budgets::Budget {
            pod: config.guard_pod_budget.of(all),
            node: config.guard_node_budget.of(all),
        },
        quiet: config.guard_quiet_period,
    }
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
