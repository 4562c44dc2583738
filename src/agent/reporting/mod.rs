//! What of reporting the configuration asks for, started.

mod metadata;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::kubernetes::ApiClient;
use crate::oom::kmsg::BootId;
use crate::report::cluster::EventDelivery;
use crate::report::grpc::{GrpcDelivery, Identity};
use crate::report::log::{KillLog, Recovered};
use crate::report::metrics::ReportMetrics;
use crate::report::{Deliver, Reporter, ReporterHandle};

pub(super) use metadata::AgentMetadata;

/// The file that keeps when the VPA recommender was told of which container.
const VPA_EVENTS: &str = "vpa-events.json";

/// Opens the log of kills and starts to deliver what is pending in it, also to the API server if there is a way to
/// one. Returns what an earlier agent left: the watcher goes on from its checkpoint. Blocks for as long as it
/// takes to read the log.
pub(super) fn start(
    config: &Config,
    api: Option<ApiClient>,
    known: AgentMetadata,
    registry: &mut Registry,
    stop: &CancellationToken,
) -> (Reporter, Recovered) {
    let metrics = ReportMetrics::register(registry);
    let destinations = destinations(config, api, known);
    let selected = destinations.iter().map(|one| one.destination()).collect();
    let (log, recovered) = KillLog::open(&config.state_dir, config.report.bounds(), selected);
    if let Some(problem) = &recovered.problem {
        tracing::error!("{problem}");
    }
    if recovered.forgotten > 0 {
        tracing::warn!(
            reports = recovered.forgotten,
            "OOM reports are given up: where they were to go is not configured any more"
        );
    }
    for (destination, pending) in recovered.pending.iter().filter(|(_, pending)| *pending > 0) {
        tracing::info!(
            destination = destination.as_str(),
            pending,
            "OOM reports from before are still to be delivered"
        );
    }
    (Reporter::start(log, destinations, &metrics, stop), recovered)
}

fn destinations(config: &Config, api: Option<ApiClient>, known: AgentMetadata) -> Vec<Box<dyn Deliver>> {
    let mut destinations: Vec<Box<dyn Deliver>> = Vec::new();
    if let Some(options) = config.report.grpc() {
        let identity = Identity {
            node: config.node_name.clone(),
            boot_id: BootId::current().map(|boot| boot.0).unwrap_or_default(),
        };
        destinations.push(Box::new(GrpcDelivery::new(options, identity)));
    }
    let Some(api) = api else { return destinations };
    let (node, known) = (config.node_name.as_str(), Arc::new(known));
    if let Some(windows) = config.report.vpa_events() {
        let (known, memory) = (Arc::clone(&known), config.state_dir.join(VPA_EVENTS));
        let delivery = EventDelivery::for_recommender(api.clone(), node, known, windows, memory);
        destinations.push(Box::new(delivery));
    }
    if config.report.pod_events() {
        destinations.push(Box::new(EventDelivery::for_people(api, node, known)));
    }
    destinations
}

/// What is wrong with reporting, as it changes.
pub(super) fn problems(mut reporter: ReporterHandle) -> watch::Receiver<Vec<String>> {
    let now = |reporter: &ReporterHandle| reporter.status().problems().collect::<Vec<_>>();
    let (sender, problems) = watch::channel(now(&reporter));
    tokio::spawn(async move {
        while reporter.changed().await.is_ok() {
            sender.send_replace(now(&reporter));
        }
    });
    problems
}
