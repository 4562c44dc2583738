//! Metrics of the way to the API server.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Verb;
use crate::observe::metrics::{Counters, family, labels, register};

labels! {
    /// How a watch of the API server ended.
    pub enum WatchEnd {
        Over = "over",
        Silent = "silent",
        Forgotten = "forgotten",
        Failed = "failed",
    }
}

/// Answers of the API server.
#[derive(Debug, Clone)]
pub struct ApiMetrics {
    calls: Family<CallLabels, Counter>,
    watches: Counters<2>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    verb: &'static str,
    resource: String,
    code: String,
}

impl ApiMetrics {
    /// Registers the families, which begin empty.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let watches = "Watches of the API server that ended, by how";
        Self {
            calls: register(registry, "api_calls", "Calls to the API server", Family::default()),
            watches: register(registry, "api_watches", watches, Family::default()),
        }
    }

    /// Counts a call; `code` is the HTTP status of the answer, or a word where there was none.
    pub fn called(&self, verb: Verb, resource: String, code: String) {
        let verb = verb.as_str();
        let labels = CallLabels { verb, resource, code };
        self.calls.get_or_create(&labels).inc();
    }

    /// Begins the series of a watch, so that ends of such watches show from zero.
    pub fn watching(&self, resource: &'static str) {
        for end in WatchEnd::ALL {
            drop(self.watches.get_or_create(&watch(resource, *end)));
        }
    }

    /// Counts the end of a watch.
    pub fn watched(&self, resource: &'static str, end: WatchEnd) {
        self.watches.get_or_create(&watch(resource, end)).inc();
    }
}

const fn watch(resource: &'static str, end: WatchEnd) -> [(&'static str, &'static str); 2] {
    [("resource", resource), ("end", end.as_str())]
}

/// Kubernetes Events, by what became of them.
#[derive(Debug, Clone)]
pub struct EventMetrics {
    written: Counter,
    held_back: Counter,
    lost: Counter,
}

impl EventMetrics {
    /// Registers the family, with every outcome at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let outcomes = ["written", "held_back", "lost"].map(|outcome| [("outcome", outcome)]);
        let help = "Kubernetes Events, by what became of them";
        let events: Counters<1> = family(registry, "events", help, outcomes);
        let [written, held_back, lost] = outcomes.map(|labels| events.get_or_create_owned(&labels));
        Self {
            written,
            held_back,
            lost,
        }
    }

    /// Counts an Event that was made, or whose count was raised.
    pub fn written(&self) {
        self.written.inc();
    }

    /// Counts what is in no Event because there was too much of it.
    pub fn held_back(&self, count: u64) {
        self.held_back.inc_by(count);
    }

    /// Counts an Event that was refused, or came when too many were waiting.
    pub fn lost(&self) {
        self.lost.inc();
    }
}
