//! Kubernetes Events at the API server.
//!
//! [`EventRecorder::record`] never waits: a task of its own creates an Event for each new message, raises the count of one
//! that repeats, and counts floods (`limits`), so that a node writes a bounded number of Events. While the API server is away
//! the task waits; messages that no longer fit are counted, not kept.
//!
//! [`post()`] creates every Event, also those that must not be lost: one attempt, whose failure the caller sees, under a name
//! that makes a second attempt harmless.

mod limits;
mod post;
mod writer;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::call::Kind;
use super::client::ApiClient;
use crate::kubernetes::metrics::{EventMetrics, EventOutcome};
use crate::model::objects::PodId;
use writer::Writer;

pub use post::{NamedEvent, Posted, Subject, name, post};

const EVENTS: Kind = Kind::new("", "v1", "events");

const WAITING: usize = 256;

/// A pod, or one of its containers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodReference {
    /// The pod, by the UID it has at the API server.
    pub pod: PodId,
    pub container: Option<String>,
    /// Whether it is an init container.
    pub init: bool,
}

impl PodReference {
    /// Where the container stands in the pod's object, such as `spec.containers{app}`.
    pub fn field_path(&self) -> Option<String> {
        let list = if self.init { "initContainers" } else { "containers" };
        self.container.as_ref().map(|name| format!("spec.{list}{{{name}}}"))
    }
}

/// The type of an Event: `Normal` or `Warning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum Severity {
    Normal,
    Warning,
}

/// What happened to a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventMessage {
    pub about: PodReference,
    pub severity: Severity,
    /// Why, in one word for machines, such as `Resized`.
    pub reason: &'static str,
    pub message: String,
    /// What it continues, if anything: messages that continue the same share an Event, which has the newest text.
    pub continues: Option<String>,
}

/// Records what happens as Events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<EventMessage>,
    counted: EventMetrics,
}

impl EventRecorder {
    /// Starts the task that writes Events in the name of a node, until `stop`.
    ///
    /// Panics: Outside of a tokio runtime.
    #[must_use]
    pub fn start(client: ApiClient, node: &str, counted: EventMetrics, stop: CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = Writer::new(client, node.to_owned(), counted.clone());
        // Cancel-safe: an Event that was not written counts as not recorded.
        tokio::spawn(stop.run_until_cancelled_owned(writer.run(receiver)));
        Self { sender, counted }
    }

    /// Records a message, or counts it as lost when too many wait already.
    pub fn record(&self, message: EventMessage) {
        if self.sender.try_send(message).is_err() {
            self.counted.count(EventOutcome::Lost, 1);
        }
    }
}
