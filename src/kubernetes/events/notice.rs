//! One Event that must not be lost: a [`Notice`] → the API server, in one attempt.
//!
//! Whoever has it to give tries again after a failure. The Event's name makes that harmless: what exists already was
//! written before, and how much it told is given back.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{EVENTS, Severity, body};
use crate::kubernetes::call::{Call, Verb};
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::error::{ApiError, Problem};

/// Where Events about what has no namespace live.
const OF_NO_NAMESPACE: &str = "default";

/// An Event in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its name; the same for the same thing.
    pub name: String,
    /// What it is about.
    pub subject: Subject,
    /// How grave it is.
    pub severity: Severity,
    /// Why, in one word for machines.
    pub reason: &'static str,
    /// What happened, for people.
    pub message: String,
    /// When it happened first.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
    /// How often.
    pub count: u64,
    /// Annotations of the Event itself.
    pub annotations: Vec<(&'static str, String)>,
}

/// What a notice is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A pod, or a part of it. The Event lives in its namespace.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID at the API server.
        uid: String,
        /// Which part of the object, such as `spec.containers{app}`.
        field_path: Option<String>,
    },
    /// The node in whose name Events are written.
    Node,
}

impl Subject {
    /// Where an Event about it lives.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Pod { namespace, .. } => namespace,
            Self::Node => OF_NO_NAMESPACE,
        }
    }
}

/// A notice is at the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// As of now.
    Now,
    /// An Event of that name was there already, and says that it happened so often. It is left as it is.
    Before {
        /// Its count, at least 1.
        count: u64,
    },
}

/// Writes one Event in the name of a node.
///
/// # Errors
/// [`ApiError`] when it may not have been written.
pub async fn post(client: &ApiClient, node: &str, notice: &Notice) -> Result<Posted, ApiError> {
    let namespace = notice.subject.namespace();
    let create = Call::new(Verb::Create, EVENTS).within(Some(namespace));
    match client.send::<Value>(&create, &body::new(node, notice)).await {
        Ok(_) => Ok(Posted::Now),
        Err(ApiError {
            problem: Problem::Conflict(_),
            ..
        }) => {
            let get = Call::new(Verb::Get, EVENTS).within(Some(namespace)).named(&notice.name);
            let there: Counted = client.read(&get).await?;
            Ok(Posted::Before {
                count: there.count.max(1),
            })
        }
        Err(error) => Err(error),
    }
}

/// An Event, as far as it is read back.
#[derive(Debug, Deserialize)]
struct Counted {
    #[serde(default)]
    count: u64,
}
