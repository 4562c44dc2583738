//! Metrics of calls to the API server, of watches and of Events.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use strum::VariantArray;

use super::Verb;
use crate::observe::metrics::{Counters, family, register, series};

/// How a watch of the API server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum WatchEnd {
    Over,
    Silent,
    Forgotten,
    Failed,
}

/// The outcome of a message for an Event: written, in a new Event or in a changed one; held back by a rate limit; or lost,
/// because the API server refused it or the queue was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum EventOutcome {
    Written,
    HeldBack,
    Lost,
}

/// Counts of calls and of ended watches.
#[derive(Debug, Clone)]
pub struct ApiMetrics {
    /// By verb, resource and code.
    calls: Family<[(&'static str, String); 3], Counter>,
    watches: Counters<2>,
}

impl ApiMetrics {
    /// Registers the families without series.
    pub fn register(registry: &mut Registry) -> Self {
        let watches = "Watches of the API server that ended, by how";
        Self {
            calls: register(registry, "api_calls", "Calls to the API server", Family::default()),
            watches: register(registry, "api_watches", watches, Family::default()),
        }
    }

    /// Counts a call. `code` is the HTTP status of the answer, or a word if there was no answer.
    pub fn called(&self, verb: Verb, resource: String, code: String) {
        let labels = [("verb", verb.to_string()), ("resource", resource), ("code", code)];
        self.calls.get_or_create(&labels).inc();
    }

    /// Begins the series of a resource's watches at zero.
    pub fn watching(&self, resource: &'static str) {
        for end in WatchEnd::VARIANTS {
            let labels = [("resource", resource), ("end", end.into())];
            drop(self.watches.get_or_create(&labels));
        }
    }

    /// Counts the end of a watch.
    pub fn watched(&self, resource: &'static str, end: WatchEnd) {
        let labels = [("resource", resource), ("end", end.into())];
        self.watches.get_or_create(&labels).inc();
    }
}

/// Counts of Kubernetes Events by outcome.
#[derive(Debug, Clone)]
pub struct EventMetrics(Counters<1>);

impl EventMetrics {
    /// Registers the family, with every outcome at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let help = "Kubernetes Events, by outcome";
        Self(family(registry, "events", help, series::<EventOutcome>("outcome")))
    }

    /// Counts messages with this outcome.
    pub fn count(&self, outcome: EventOutcome, events: u64) {
        self.0.get_or_create(&[("outcome", outcome.into())]).inc_by(events);
    }
}
