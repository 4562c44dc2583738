//! The metrics, typed. Each component registers what it owns and counts through methods, so that no name or label is
//! spelt twice; docs/metrics.md lists them all.

mod agent;
mod labels;
mod process;
#[cfg(test)]
mod tests;

pub use agent::{DecisionMetrics, ManifestMetrics, ResizeMetrics, RuntimeMetrics};
pub use labels::{CallOutcome, PodState, ResizeOutcome, Stage, StepOutcome};

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// A registry whose names begin with `vscaled_`, with the metrics that belong to the process as a whole.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("vscaled");
    registry.register(
        "build",
        "What runs here",
        Info::new([("version", env!("CARGO_PKG_VERSION"))]),
    );
    registry.register_collector(Box::new(process::ProcessCollector));
    registry
}
