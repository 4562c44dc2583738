//! What an Event looks like on the wire: `v1`, in the fields that every reader knows. Pure.

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use super::{NamedEvent, Subject};

/// The API server's own limit of a message, in bytes.
const LONGEST_MESSAGE: usize = 1024;

const COMPONENT: &str = "vscaled";

impl NamedEvent {
    /// The Event as it goes to the API server in the name of a node.
    #[must_use]
    pub fn body(&self, node: &str) -> Value {
        let namespace = self.subject.namespace();
        let mut metadata = json!({"name": self.name, "namespace": namespace});
        for (name, value) in &self.annotations {
            metadata["annotations"][*name] = Value::from(value.as_str());
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
        // As the kubelet speaks of its node: the name stands for the UID.
        Subject::Node => json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}),
    }
}

/// A change of an Event that has happened again.
pub(super) fn repeated(message: &str, count: u32, now: Timestamp) -> Value {
    json!({"count": count, "lastTimestamp": seconds(now), "message": shortened(message)})
}

/// The name of an Event: that of a pod and what tells the Event from others, as far as 253 bytes have room for both
/// (RFC 1123 subdomain).
#[must_use]
pub fn name(stem: &str, suffix: &str) -> String {
    let room = 252_usize.saturating_sub(suffix.len());
    format!("{}.{suffix}", cut(stem, room).trim_end_matches(['-', '.']))
}

/// The beginning of a text, at most so many bytes.
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

/// A message as short as it must be, and printable: a command's name is the process's own choice.
fn shortened(message: &str) -> String {
    const MARK: &str = " …";
    let message = message.replace(char::is_control, "\u{fffd}");
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    cut(&message, LONGEST_MESSAGE - MARK.len()).to_owned() + MARK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_where_a_character_ends() {
        let cut = shortened(&"ä".repeat(600));
        assert!(cut.len() <= LONGEST_MESSAGE && cut.ends_with(" …"), "{}", cut.len());
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn names_are_short_enough() {
        let long = "p".repeat(253);
        assert_ne!(name("web", "x"), name("web", "y"));
        assert_eq!(name(&long, "x").len(), 253);
        assert_eq!(name("web-", "x").matches("-.").count(), 0);
    }
}
