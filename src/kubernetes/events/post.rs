//! One attempt to create or to change an Event. The caller repeats it after a failure. An Event that exists already stays as it is, so the
//! Event's name makes a second attempt harmless.

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use super::{PodReference, Severity};
use crate::kubernetes::call::{Call, Kind, Verb};
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::error::ApiError;
use crate::printable::is_dangerous;

const EVENTS: Kind = Kind::new("", "v1", "events");

/// The namespace of Events about cluster-scoped objects.
const OF_NO_NAMESPACE: &str = "default";

/// An Event whose name identifies what it reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedEvent {
    /// The same name for the same occurrence; empty before the Event is sent for the first time, if it is about a change.
    pub name: String,
    pub subject: Subject,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
    pub annotations: Vec<(&'static str, String)>,
    /// Messages about changes with the same value share an Event, which has the newest text. Not sent.
    pub continues: Option<String>,
}

/// The object of an Event.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A pod, or one of its containers. The Event lives in its namespace.
    Pod(PodReference),
    #[default]
    Node,
}

impl Subject {
    /// The namespace of an Event about the subject.
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
        /// The count of the existing Event, at least 1.
        count: u64,
    },
}

/// Creates one Event in the name of a node.
///
/// Errors: [`ApiError`] when the API server may not have the Event.
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

/// Raises the count of an Event and replaces its text. Returns whether the API server still has the Event.
///
/// Errors: [`ApiError`] when the API server may have the Event as it was.
pub async fn raise(client: &ApiClient, event: &NamedEvent) -> Result<bool, ApiError> {
    let namespace = Some(event.subject.namespace());
    let call = Call::new(Verb::Patch, EVENTS).within(namespace).named(&event.name);
    let (last, message) = (seconds(event.last), shortened(&event.message));
    let patch = json!({"count": event.count, "lastTimestamp": last, "message": message});
    match client.send::<Value>(&call, &patch).await {
        Err(error) if error.problem.names_no_object() => Ok(false),
        answer => answer.map(|_| true),
    }
}

/// The API server's limit of a message in bytes.
const LONGEST_MESSAGE: usize = 1024;

const COMPONENT: &str = "vscaled";

impl NamedEvent {
    /// The Event as JSON, in the name of a node.
    pub fn body(&self, node: &str) -> Value {
        let namespace = self.subject.namespace();
        let mut metadata = json!({"name": self.name, "namespace": namespace});
        for (name, value) in &self.annotations {
            metadata["annotations"][*name] = Value::from(value.replace(is_dangerous, "\u{fffd}"));
        }
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": involved(node, &self.subject),
            "reason": self.reason,
            "message": shortened(&self.message),
            "type": self.severity,
            "source": {"component": COMPONENT, "host": node},
            "reportingComponent": COMPONENT,
            "reportingInstance": node,
            "firstTimestamp": seconds(self.first),
            "lastTimestamp": seconds(self.last),
            // An int32 on the wire.
            "count": i32::try_from(self.count).unwrap_or(i32::MAX),
        })
    }
}

fn involved(node: &str, subject: &Subject) -> Value {
    match subject {
        Subject::Pod(reference) => {
            let mut object = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": reference.pod.namespace,
                "name": reference.pod.name,
                "uid": reference.pod.uid,
            });
            if let Some(path) = reference.field_path() {
                object["fieldPath"] = Value::from(path);
            }
            object
        }
        // The kubelet's Events about its node have the name as UID, too.
        Subject::Node => json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}),
    }
}

/// The name of an Event: the name of a pod and a distinguishing suffix, cut to 253 bytes (RFC 1123 subdomain).
pub fn name(stem: &str, suffix: &str) -> String {
    let room = 252_usize.saturating_sub(suffix.len());
    format!("{}.{suffix}", cut(stem, room).trim_end_matches(['-', '.']))
}

/// The longest beginning of a text with at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// `metav1.Time` has whole seconds.
fn seconds(time: Timestamp) -> String {
    time.round(Unit::Second).unwrap_or(time).to_string()
}

/// Cuts a message to the API server's limit and replaces dangerous characters, which tenants may write.
pub fn shortened(message: &str) -> String {
    const MARK: &str = " …";
    let message = message.replace(is_dangerous, "\u{fffd}");
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    cut(&message, LONGEST_MESSAGE - MARK.len()).to_owned() + MARK
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::{Method, StatusCode};

    use super::*;

    #[test]
    fn a_message_is_cut_where_a_character_ends() {
        let cut = shortened(&"ä".repeat(600));
        assert!(cut.len() <= LONGEST_MESSAGE && cut.ends_with(" …"), "{}", cut.len());
        assert_eq!(shortened("short"), "short");
        assert_eq!(
            shortened("a\u{1b}b\u{9b}\u{202e}c\u{200b}\n"),
            "a\u{fffd}b\u{fffd}\u{fffd}c\u{fffd}\u{fffd}"
        );
    }

    fn event() -> NamedEvent {
        NamedEvent {
            name: "web.1".to_owned(),
            subject: Subject::Node,
            severity: Severity::Warning,
            reason: "OOMKilled",
            message: "killed".to_owned(),
            first: "2026-03-01T12:00:00Z".parse().unwrap(),
            last: "2026-03-01T12:01:00.4Z".parse().unwrap(),
            count: 1 << 40,
            annotations: vec![("vscaled.io/kill", "b\u{202e}1".to_owned())],
            continues: None,
        }
    }

    #[test]
    fn an_event_about_the_node_has_all_fields() {
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": "web.1", "namespace": "default", "annotations": {"vscaled.io/kill": "b\u{fffd}1"}
            },
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"},
            "reason": "OOMKilled",
            "message": "killed",
            "type": "Warning",
            "source": {"component": "vscaled", "host": "node-1"},
            "reportingComponent": "vscaled",
            "reportingInstance": "node-1",
            "firstTimestamp": "2026-03-01T12:00:00Z",
            "lastTimestamp": "2026-03-01T12:01:00Z",
            "count": i32::MAX,
        });
        assert_eq!(event().body("node-1"), expected);
    }

    #[test]
    fn an_event_about_a_container_names_its_place() {
        let of = |init| {
            let (namespace, name) = ("shop".to_owned(), "web".to_owned());
            let pod = crate::model::objects::PodId {
                uid: "u".into(),
                namespace,
                name,
            };
            let container = Some("app".to_owned());
            let subject = Subject::Pod(PodReference { pod, container, init });
            let body = NamedEvent { subject, ..event() }.body("node-1");
            assert_eq!(body["metadata"]["namespace"], "shop");
            body["involvedObject"].clone()
        };
        let mut expected = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "u",
            "fieldPath": "spec.containers{app}"});
        assert_eq!(of(false), expected);
        expected["fieldPath"] = "spec.initContainers{app}".into();
        assert_eq!(of(true), expected);
    }

    #[tokio::test]
    async fn an_event_that_exists_keeps_its_count() {
        for (there, count) in [("{\"count\": 5}", 5), ("{\"count\": 0}", 1), ("{}", 1)] {
            let router = Router::new().fallback(async move |method: Method| match method {
                Method::POST => (StatusCode::CONFLICT, "{}"),
                _ => (StatusCode::OK, there),
            });
            let posted = post(&ApiClient::to(&router), "node-1", &event()).await.unwrap();
            assert_eq!(posted, Posted::Existed { count });
        }
    }

    #[tokio::test]
    async fn only_a_forgotten_event_cannot_be_raised() {
        let gone = "{\"reason\": \"NotFound\"}";
        for (code, body, raised) in [
            (200, "{}", Some(true)),
            (404, gone, Some(false)),
            (404, "of a proxy", None),
            (403, "{}", None),
            (500, "{}", None),
        ] {
            let router = Router::new().fallback(async move || (StatusCode::from_u16(code).unwrap(), body));
            assert_eq!(
                raise(&ApiClient::to(&router), &event()).await.ok(),
                raised,
                "{code} {body}"
            );
        }
    }

    #[tokio::test]
    async fn a_raised_event_has_its_new_count() {
        let (bodies, mut sent) = tokio::sync::mpsc::channel(1);
        let router = Router::new().fallback(async move |body: String| {
            bodies.send(body).await.unwrap();
            "{}"
        });
        let raised = NamedEvent { count: 7, ..event() };
        assert!(raise(&ApiClient::to(&router), &raised).await.unwrap());
        let patch: Value = serde_json::from_str(&sent.recv().await.unwrap()).unwrap();
        assert_eq!(
            patch,
            json!({"count": 7, "lastTimestamp": "2026-03-01T12:01:00Z", "message": "killed"})
        );
    }

    #[test]
    fn names_are_short_enough() {
        let long = "p".repeat(253);
        assert_ne!(name("web", "x"), name("web", "y"));
        assert_eq!(name(&long, "x").len(), 253);
        assert_eq!(name("web-", "x").matches("-.").count(), 0);
    }
}
