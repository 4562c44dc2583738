//! What of reporting the configuration asks for, started.

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::observe::metrics::ReportMetrics;
use crate::oom::kmsg::BootId;
use crate::report::grpc::{GrpcDelivery, Identity};
use crate::report::spool::{Recovered, Spool};
use crate::report::{Deliver, Reporter};

/// The directory of the spool, below the state directory.
const SPOOL: &str = "spool";

/// Opens the spool and starts delivering what is in it. What was there is said in the log, and given back: the watcher of
/// kills goes on from the checkpoint. Blocks for as long as it takes to read the spool.
pub(super) fn start(config: &Config, registry: &mut Registry, stop: &CancellationToken) -> (Reporter, Recovered) {
    let metrics = ReportMetrics::register(registry);
    let mut destinations: Vec<Box<dyn Deliver>> = Vec::new();
    if let Some(options) = config.report.grpc() {
        destinations.push(Box::new(GrpcDelivery::new(options, identity(config))));
    }
    let selected = destinations.iter().map(|one| one.destination()).collect();
    let (spool, recovered) = Spool::open(&config.state_dir.join(SPOOL), config.report.bounds(), selected);
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
    (Reporter::start(spool, destinations, &metrics, stop), recovered)
}

fn identity(config: &Config) -> Identity {
    Identity {
        node: config.node_name.clone(),
        boot_id: BootId::current().map(|boot| boot.0).unwrap_or_default(),
    }
}
