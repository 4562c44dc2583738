//! Kubernetes Events: what is to be said about a pod → Events at the API server, few of them whatever happens.
//!
//! [`Events::say`] never waits: it hands over to one task. That task says new things at once, raises the count of what
//! repeats, and folds floods into counts (`limits`), so that a node writes a bounded number of Events however
//! much there is to say. While the API server is away it waits; what no longer fits is counted, not kept.
//!
//! For Events that must not be lost there is [`post`]: one attempt, whose failure its caller sees, under a name that makes a
//! second attempt harmless.

mod body;
mod limits;
mod notice;
mod writer;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::call::Kind;
use super::client::ApiClient;
use crate::kubernetes::metrics::EventMetrics;
use writer::Writer;

pub use notice::{Notice, Posted, Subject, post};

const EVENTS: Kind = Kind::new("", "v1", "events");

/// What may wait to be said.
const WAITING: usize = 256;

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct About {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// One of its containers, or the pod as a whole.
    pub container: Option<String>,
}

/// How grave it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Something to be said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Saying {
    /// About what.
    pub about: About,
    /// How grave it is.
    pub severity: Severity,
    /// Why, in one word for machines, such as `Resized`.
    pub reason: &'static str,
    /// What happened, for people.
    pub message: String,
}

/// Where to say things. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    sender: mpsc::Sender<Saying>,
    counted: EventMetrics,
}

impl Events {
    /// Starts the task that writes Events in the name of a node, until `stop`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(client: ApiClient, node: &str, counted: EventMetrics, stop: CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = Writer::new(client, node.to_owned(), counted.clone());
        tokio::spawn(async move {
            tokio::select! {
                // Cancel-safe: an Event that was not written is a message that was not given.
                () = writer.run(receiver) => {}
                () = stop.cancelled() => {}
            }
        });
        Self { sender, counted }
    }

    /// Says something, or counts it as lost when too much is waiting already.
    pub fn say(&self, saying: Saying) {
        if self.sender.try_send(saying).is_err() {
            self.counted.lost();
        }
    }
}
