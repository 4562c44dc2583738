//! Metrics of the container runtime.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::error::{Problem, RuntimeError};
use crate::observe::metrics::{Counters, Histograms, labels, register, seconds};

labels! {
    /// What became of one call to the container runtime.
    pub(crate) enum CallOutcome {
        Ok = "ok",
        Refused = "refused",
        NotFound = "not_found",
        Timeout = "timeout",
        Unavailable = "unavailable",
        Unusable = "unusable",
    }
}

impl CallOutcome {
    /// The outcome of a call to the runtime.
    fn of<T>(answer: Result<T, &RuntimeError>) -> Self {
        match answer.map_err(|error| &error.problem) {
            Ok(_) => Self::Ok,
            Err(Problem::NoSocket | Problem::Unavailable { .. }) => Self::Unavailable,
            Err(Problem::Deadline { .. }) => Self::Timeout,
            Err(Problem::NotFound) => Self::NotFound,
            Err(Problem::Refused { .. }) => Self::Refused,
            Err(
                Problem::Unimplemented
                | Problem::Nonsense { .. }
                | Problem::NotCri { .. }
                | Problem::UnknownRuntime { .. }
                | Problem::Invalid { .. },
            ) => Self::Unusable,
        }
    }
}

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

    /// Counts a call and the time until the answer; `call` is the method's name in
    /// its protocol, such as `UpdateContainerResources`.
    pub fn called<T>(&self, call: &'static str, took: Duration, answer: Result<T, &RuntimeError>) {
        let outcome = CallOutcome::of(answer).as_str();
        self.calls.get_or_create(&[("call", call), ("outcome", outcome)]).inc();
        self.durations
            .get_or_create(&[("call", call)])
            .observe(took.as_secs_f64());
    }
}
