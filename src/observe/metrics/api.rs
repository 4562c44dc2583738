//! What the way to the API server counts.

use std::borrow::Cow;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::declare::Series;
use super::families;
use super::labels::WatchEnd;
use crate::kubernetes::Verb;

/// How the API server answers.
#[derive(Debug, Clone)]
pub struct ApiMetrics {
    calls: Series<Counter, 3>,
    watches: Series<Counter, 2>,
}

impl ApiMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            calls: families::API_CALLS.register(registry),
            watches: families::API_WATCHES.register(registry),
        }
    }

    /// The API server was called; `code` is the HTTP status of its answer, or a word where there was none.
    pub fn called(&self, verb: Verb, resource: String, code: String) {
        self.calls
            .with([Cow::Borrowed(verb.as_str()), Cow::Owned(resource), Cow::Owned(code)])
            .inc();
    }

    /// A watch is under way: from now on, how such watches end shows from zero.
    pub fn watching(&self, resource: &'static str) {
        for end in WatchEnd::ALL {
            self.watches.with([resource, end.as_str()]);
        }
    }

    /// A watch ended.
    pub fn watched(&self, resource: &'static str, end: WatchEnd) {
        self.watches.with([resource, end.as_str()]).inc();
    }
}

/// What becomes of what is said in Events.
#[derive(Debug, Clone)]
pub struct EventMetrics {
    written: Counter,
    held_back: Counter,
    lost: Counter,
}

impl EventMetrics {
    /// Registers them, at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let events = families::EVENTS.register(registry);
        Self {
            written: events.with(["written"]),
            held_back: events.with(["held_back"]),
            lost: events.with(["lost"]),
        }
    }

    /// An Event was made or its count raised.
    pub fn written(&self) {
        self.written.inc();
    }

    /// So much was said that is in no Event, because there was too much of it.
    pub fn held_back(&self, count: u64) {
        self.held_back.inc_by(count);
    }

    /// An Event was refused, or came when too many were waiting.
    pub fn lost(&self) {
        self.lost.inc();
    }
}
