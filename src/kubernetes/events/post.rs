//! One attempt to create an Event. The caller repeats it after a failure: the Event's name makes that harmless, because an
//! Event that exists already is left as it is.

use jiff::Timestamp;
use serde_json::Value;

use super::{EVENTS, PodReference, Severity};
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::error::ApiError;

/// Where Events about what has no namespace live.
const OF_NO_NAMESPACE: &str = "default";

/// An Event with a name that stands for what it tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedEvent {
    /// Its name; the same for the same thing.
    pub name: String,
    pub subject: Subject,
    pub severity: Severity,
    /// Why, in one word for machines.
    pub reason: &'static str,
    pub message: String,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
    /// Annotations of the Event itself.
    pub annotations: Vec<(&'static str, String)>,
}

/// What an Event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A pod, or one of its containers. The Event lives in its namespace.
    Pod(PodReference),
    /// The node in whose name Events are written.
    Node,
}

impl Subject {
    /// Where an Event about it lives.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Pod(reference) => &reference.pod.namespace,
            Self::Node => OF_NO_NAMESPACE,
        }
    }
}

/// The API server has the Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    Created,
    /// An Event of that name existed already.
    Existed {
        /// Its count, at least 1.
        count: u64,
    },
}

/// Writes one Event in the name of a node.
///
/// Errors: [`ApiError`] when it may not have been written.
pub async fn post(client: &ApiClient, node: &str, event: &NamedEvent) -> Result<Posted, ApiError> {
    let namespace = event.subject.namespace();
    let create = Call::new(Verb::Create, EVENTS).within(Some(namespace));
    match client.send::<Value>(&create, &event.body(node)).await {
        Ok(_) => Ok(Posted::Created),
        Err(error) if error.problem.status() == Some(409) => {
            let get = Call::new(Verb::Get, EVENTS).within(Some(namespace)).named(&event.name);
            let there: Value = client.read(&get).await?;
            let count = there.get("count").and_then(Value::as_u64).unwrap_or(0).max(1);
            Ok(Posted::Existed { count })
        }
        Err(error) => Err(error),
    }
}
