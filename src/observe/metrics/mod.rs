//! The metrics, typed. Every family is declared in [`families`], with its name, labels and meaning; each component registers
//! what it owns and counts through methods, so that no name or label is spelt twice. docs/metrics.md lists them all.

mod agent;
mod api;
mod declare;
pub mod families;
mod guard;
mod labels;
mod oom;
mod process;
mod report;
mod shrink;
#[cfg(test)]
mod tests;

pub use agent::{DecisionMetrics, ProblemMetrics, ResizeMetrics, RuntimeMetrics};
pub use api::{ApiMetrics, EventMetrics};
pub use declare::{Declaration, Described, Series};
pub use guard::GuardMetrics;
pub use labels::{
    CallOutcome, GrowthOutcome, LinkOutcome, PodState, ProblemKind, ReportOutcome, ResizeOutcome, ShrinkOutcome, Stage,
    StepOutcome, WatchEnd,
};
pub use oom::{KillLabels, KillMetrics};
pub use report::ReportMetrics;
pub use shrink::ShrinkMetrics;

use prometheus_client::registry::Registry;

/// A registry whose names begin with `vscaled_`, with the metrics that belong to the process as a whole.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix(declare::PREFIX);
    families::BUILD_INFO
        .register(&mut registry)
        .with([env!("CARGO_PKG_VERSION")])
        .set(1);
    registry.register_collector(Box::new(process::ProcessCollector));
    registry
}
