//! Metrics of the container runtime.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::error::Problem;
use crate::observe::metrics::{Counters, Histograms, register, seconds};

/// How one call to the container runtime ended, as the value of a label.
pub(crate) const fn outcome(problem: Option<&Problem>) -> &'static str {
    match problem {
        None => "ok",
        Some(Problem::NoSocket | Problem::Unavailable(_)) => "unavailable",
        Some(Problem::Deadline { .. }) => "timeout",
        Some(Problem::NotFound) => "not_found",
        Some(Problem::Refused { .. }) => "refused",
        Some(Problem::Unimplemented | Problem::Unusable(_)) => "unusable",
    }
}

/// Counts and times the calls to the container runtime.
#[derive(Debug, Clone)]
pub struct RuntimeMetrics {
    calls: Counters<2>,
    durations: Histograms<1>,
}

impl RuntimeMetrics {
    /// Registers the families, which have no series at first.
    pub fn register(registry: &mut Registry) -> Self {
        let calls = "Calls to the container runtime";
        let durations = "Time until the container runtime answered, or until the deadline";
        let timed: Histograms<1> = Family::new_with_constructor(seconds);
        Self {
            calls: register(registry, "runtime_calls", calls, Family::default()),
            durations: register(registry, "runtime_call_duration_seconds", durations, timed),
        }
    }

    /// Counts a call and the time until the answer. `call` is the method's name in its protocol, such as
    /// `UpdateContainerResources`; `problem` is why the call failed, if it did.
    pub fn called(&self, call: &'static str, took: Duration, problem: Option<&Problem>) {
        let labels = [("call", call), ("outcome", outcome(problem))];
        self.calls.get_or_create(&labels).inc();
        self.durations
            .get_or_create(&[("call", call)])
            .observe(took.as_secs_f64());
    }
}
