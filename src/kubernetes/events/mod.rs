//! Kubernetes Events at the API server.
//!
//! [`EventRecorder::record`] never waits. A task creates an Event for each new message, raises the count of a repeated one, and
//! bounds their number (`limits`). During an outage of the API server the task waits; the queue drops and counts messages
//! beyond its capacity.
//!
//! [`post()`] makes one attempt to create an Event and returns its failure. The Event's name makes a second attempt harmless.

mod limits;
mod post;
mod rates;
mod writer;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::Kind;
use super::client::ApiClient;
use crate::kubernetes::metrics::{EventMetrics, EventOutcome};
use crate::model::objects::PodId;
use limits::EventLimits;
use writer::EventWriter;

pub use post::{NamedEvent, Posted, Subject, name, post};
pub use rates::{EventRates, OF_A_POD, OF_THE_NODE};

const EVENTS: Kind = Kind::new("", "v1", "events");

/// The capacity of the queue of messages.
const QUEUE: usize = 256;

/// A pod, or one of its containers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodReference {
    /// The pod, by the UID it has at the API server.
    pub pod: PodId,
    pub container: Option<String>,
    /// Whether the container is an init container.
    pub init: bool,
}

impl PodReference {
    /// The container's place in the pod's object, such as `spec.containers{app}`.
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

/// A message about a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventMessage {
    pub about: PodReference,
    pub severity: Severity,
    /// The machine-readable reason, such as `Resized`.
    pub reason: &'static str,
    pub message: String,
    /// Messages with the same value share an Event, which has the newest text.
    pub continues: Option<String>,
}

/// The sending end of the task that writes Events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<EventMessage>,
    metrics: EventMetrics,
}

impl EventRecorder {
    /// Starts the task, which writes Events in the name of a node until `stop`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(client: ApiClient, node: &str, metrics: EventMetrics, stop: CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer = EventWriter {
            client,
            node: node.to_owned(),
            limits: EventLimits::new(Instant::now().into_std()),
            metrics: metrics.clone(),
            started: Timestamp::now(),
        };
        // Cancel-safe: an unwritten Event counts as not recorded.
        tokio::spawn(stop.run_until_cancelled_owned(writer.run(receiver)));
        Self { sender, metrics }
    }

    /// Queues a message, or counts it as lost when the queue is full.
    pub fn record(&self, message: EventMessage) {
        if self.sender.try_send(message).is_err() {
            self.metrics.count(EventOutcome::Lost, 1);
        }
    }
}
