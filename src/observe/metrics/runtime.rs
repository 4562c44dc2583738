//! Metrics of the container runtime.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::labels::CallOutcome;
use super::{Counters, Histograms, register, seconds};
use crate::runtime::RuntimeError;

/// Answers of the container runtime.
#[derive(Debug, Clone)]
pub struct RuntimeMetrics {
    calls: Counters<2>,
    durations: Histograms<1>,
}

impl RuntimeMetrics {
    /// Registers the families, which begin empty.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let durations = "Time until the container runtime answered, or was given up";
        Self {
            calls: register(
                registry,
                "runtime_calls",
                "Calls to the container runtime",
                Family::default(),
            ),
            durations: register(
                registry,
                "runtime_call_duration_seconds",
                durations,
                Family::new_with_constructor(seconds),
            ),
        }
    }

    /// Counts a call and the time until the answer; `call` is the method's name in its protocol, such as
    /// `UpdateContainerResources`.
    pub fn called<T>(&self, call: &'static str, took: Duration, answer: Result<T, &RuntimeError>) {
        let outcome = CallOutcome::of(answer).as_str();
        self.calls.get_or_create(&[("call", call), ("outcome", outcome)]).inc();
        self.durations
            .get_or_create(&[("call", call)])
            .observe(took.as_secs_f64());
    }
}
